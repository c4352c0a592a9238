"""What is measured of one answer, against a scripted server on a virtual clock: the definitions, to the nanosecond."""

from __future__ import annotations

import asyncio

import pytest

from taximeter.errors import UpstreamError
from taximeter.measurement.asking.asker import Asker, Sent
from taximeter.measurement.asking.observation import Observation, Origin
from taximeter.measurement.asking.wire import Question
from taximeter.records import Outcome, Request
from taximeter.upstreams.dispatch import Stale
from tests.measurement_harness import (
    MS,
    Script,
    ScriptedServer,
    VirtualClock,
    chat,
    event,
    question,
    refusal,
    text_chunk,
    until,
    usage,
    virtually,
)


class _Books:
    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.begun_ids: list[str] = []

    def begun(self, request: Request, question: Question) -> None:
        del question
        self.begun_ids.append(request.id)

    def keep(self, sent: Sent) -> str | None:
        self.sent.append(sent)
        return f"rcpt_{len(self.sent)}"


def observed(script: Script, *, due_ms: float | None = None, books: _Books | None = None) -> Observation:
    async def work(clock: VirtualClock) -> Observation:
        asker = Asker(ScriptedServer(clock, lambda _q, _n: script), name="server", run="run", books=books, clock=clock)
        return await asker.ask(question(), scheduled_ns=None if due_ms is None else round(due_ms * MS))

    return virtually(work)


def test_the_first_token_is_not_the_first_event() -> None:
    """A role chunk at 5 ms, a token at 500: the time to the first token is 500, the first event is told apart."""
    seen = observed(chat([500, 550, 600], role_ms=5))
    assert seen.ttft_ns() == 500 * MS
    assert seen.headers_ns == seen.first_event_ns == 5 * MS


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]},
        {"refusal": "no"},
    ],
)
def test_a_token_on_any_channel_is_the_first_one(delta: dict[str, object]) -> None:
    chunks = [(100.0, event(choices=[{"index": 0, "delta": delta}])), (300.0, text_chunk())]
    end = [
        (300.0, event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])),
        (300.0, event(choices=[], usage=usage(64, 2))),
        (300.0, b"data: [DONE]\n\n"),
    ]
    assert observed(Script(chunks=[*chunks, *end])).ttft_ns() == 100 * MS


def test_several_tokens_in_a_chunk_are_several_tokens() -> None:
    """11 tokens in chunks of 1, 5 and 5 at 500, 750 and 1,000 ms: 250 ms between chunks, 50 between tokens."""
    seen = observed(chat([500, 750, 1000], output_tokens=11))
    assert seen.chunk_gaps_ns == (250 * MS, 250 * MS)
    assert seen.itl_ns == 50 * MS
    assert seen.output_tokens == 11
    assert seen.arrival_tokens is None  # who counts at the end only does not say which chunk had how many


def test_even_tokens() -> None:
    """The worked example of the definitions: first at 500 ms, 11 tokens 50 ms apart, last at 1,000."""
    seen = observed(chat([500 + 50 * number for number in range(11)]))
    assert (seen.ttft_ns(), seen.itl_ns, seen.end_to_end_ns()) == (500 * MS, 50 * MS, 1000 * MS)
    assert seen.arrival_tokens == (1,) * 11


def test_a_running_count_says_how_many_tokens_each_chunk_brought() -> None:
    counted = [(500.0, 1), (750.0, 6), (1000.0, 11)]
    chunks = [(at, text_chunk(usage=usage(64, count))) for at, count in counted]
    end = [(1000.0, event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}], usage=usage(64, 11)))]
    seen = observed(Script(chunks=[*chunks, *end, (1000.0, b"data: [DONE]\n\n")]))
    assert seen.arrival_tokens == (1, 5, 5)
    assert seen.itl_ns == 50 * MS


def test_a_count_that_grows_is_a_token_even_where_its_text_is_held_back() -> None:
    """A parser of tool calls keeps the text; the running count shows that a token came."""
    empty = event(choices=[{"index": 0, "delta": {}}], usage=usage(64, 1))
    chunks = [
        (100.0, empty),
        (200.0, text_chunk(usage=usage(64, 2))),
        (200.0, event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}], usage=usage(64, 2))),
        (200.0, b"data: [DONE]\n\n"),
    ]
    seen = observed(Script(chunks=chunks))
    assert seen.ttft_ns() == 100 * MS
    assert seen.arrivals_ns == (100 * MS, 200 * MS)
    assert seen.arrival_tokens == (1, 1)


def test_a_last_event_with_the_count_only_is_no_token() -> None:
    seen = observed(chat([100, 200], end_ms=900))
    assert seen.arrivals_ns == (100 * MS, 200 * MS)
    assert seen.end_to_end_ns() == 200 * MS
    assert seen.ended_ns == 900 * MS


def test_one_token_has_no_gap() -> None:
    assert observed(chat([100])).itl_ns is None


def test_without_a_usage_nothing_is_guessed() -> None:
    seen = observed(chat([100, 200, 300], with_usage=False))
    assert seen.is_complete
    assert seen.output_tokens is None
    assert seen.prompt_tokens is None
    assert seen.itl_ns is None
    assert seen.arrival_tokens is None
    assert seen.prompt_is_exact is None


def test_latency_counts_from_when_the_request_was_due() -> None:
    async def work(clock: VirtualClock) -> Observation:
        asker = Asker(ScriptedServer(clock, lambda _q, _n: chat([100, 200])), name="server", run="run", clock=clock)
        await until(50 * MS, clock)
        return await asker.ask(question(), scheduled_ns=20 * MS)

    seen = virtually(work)
    assert seen.dispatch_delay_ns == 30 * MS
    assert (seen.ttft_ns(), seen.ttft_ns(Origin.SENT)) == (130 * MS, 100 * MS)
    assert (seen.end_to_end_ns(), seen.end_to_end_ns(Origin.SENT)) == (230 * MS, 200 * MS)


def test_a_refusal_is_an_observation_and_a_receipt() -> None:
    books = _Books()
    seen = observed(refusal(), books=books)
    assert (seen.outcome, seen.status, seen.ttft_ns()) == (Outcome.REFUSED, 429, None)
    assert "too many requests" in (seen.error or "")
    assert len(books.sent) == len(books.begun_ids) == 1


def test_what_breaks_off_is_failed_and_its_tokens_are_a_lower_bound() -> None:
    seen = observed(Script(chunks=[(100.0, text_chunk()), (200.0, text_chunk())], breaks=True))
    assert seen.outcome is Outcome.FAILED
    assert seen.ttft_ns() == 100 * MS
    assert seen.end_to_end_ns() is None
    assert seen.output_tokens is None


def test_what_ends_without_an_end_is_failed() -> None:
    assert observed(Script(chunks=[(100.0, text_chunk())])).outcome is Outcome.FAILED


def test_what_is_not_a_stream_cannot_be_timed() -> None:
    whole = Script(
        chunks=[(100.0, b'{"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}')],
        headers={"content-type": "application/json"},
    )
    seen = observed(whole)
    assert seen.outcome is Outcome.FAILED
    assert "stream" in (seen.error or "")


def test_a_dead_connection_is_tried_again_and_its_time_counts() -> None:
    async def work(clock: VirtualClock) -> Observation:
        async def answer(number: int) -> Script:
            if number == 0:
                await until(40 * MS, clock)
                raise Stale("the connection had been closed")
            return chat([100, 200])

        books = _Books()
        server = ScriptedServer(clock, lambda _q, number: answer(number))
        seen = await Asker(server, name="server", run="run", books=books, clock=clock).ask(question())
        assert [each.error is None for each in books.sent[0].tries] == [False, True]
        return seen

    seen = virtually(work)
    assert seen.attempts == 2
    assert seen.ttft_ns() == 140 * MS


def test_a_server_that_is_away_is_asked_once() -> None:
    async def work(clock: VirtualClock) -> Observation:
        async def answer() -> Script:
            raise UpstreamError("connection refused")

        server = ScriptedServer(clock, lambda _q, _n: answer())
        seen = await Asker(server, name="server", run="run", clock=clock).ask(question())
        assert len(server.asked) == 1
        return seen

    assert virtually(work).outcome is Outcome.FAILED


def test_who_is_cancelled_has_a_receipt() -> None:
    ended: list[Observation] = []

    async def work(clock: VirtualClock) -> list[Sent]:
        books = _Books()
        server = ScriptedServer(clock, lambda _q, _n: chat([100, 200, 300]))
        asker = Asker(server, name="s", run="run", books=books, clock=clock)
        asking = asyncio.ensure_future(asker.ask(question(), on_end=ended.append))
        await until(150 * MS, clock)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        return books.sent

    (sent,) = virtually(work)
    assert sent.observation.outcome is Outcome.ABORTED
    assert sent.observation.arrivals_ns == (100 * MS,)
    assert sent.watch.stop(sent.ended_ns).total_ns == 150 * MS
    assert [each.receipt_id for each in ended] == ["rcpt_1"]


def test_an_engines_own_phases_are_kept() -> None:
    seen = observed(
        chat([100, 200], metrics={"queue_time_ms": 10, "time_to_first_token_ms": 80, "generation_time_ms": 100})
    )
    assert {phase.value: ns for phase, ns in seen.reported_ns.items()} == {
        "queue": 10 * MS,
        "prefill": 80 * MS,
        "decode": 100 * MS,
    }
