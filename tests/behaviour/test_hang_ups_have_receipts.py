"""Whoever goes away, and whenever: there is one receipt, it says aborted unless the answer was whole by then, it has
what was seen, and the upstream is let go."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta

import httpx
import pytest

from taximeter.clock import FakeClock
from taximeter.gateway.passage import Passage
from taximeter.gateway.relay import ShuttingDown
from taximeter.providers.sighting import Seen
from taximeter.records import Basis, Outcome, Phase, Receipt
from taximeter.serve import House
from taximeter.upstreams.config import Family
from tests.fakes import WAIT_S, MemoryLedger
from tests.gateway_harness import CHAT, MESSAGES, Caller, app_of, listening
from tests.passing import CHAT_END, CHAT_STREAM, CHAT_TEXT, CHAT_USAGE_EVENT, MESSAGES_STREAM, asking, asking_messages
from tests.upstream_harness import Do, Pauses, ScriptedUpstream, an_upstream, passing_house, streamed, whole
from tests.wire import chat, response, sse

HALF = MESSAGES_STREAM[:6]  # the start and three deltas


async def held(up: ScriptedUpstream) -> None:
    assert await asyncio.to_thread(up.held.acquire, timeout=WAIT_S)


async def left(up: ScriptedUpstream) -> None:
    assert await asyncio.to_thread(up.left.acquire, timeout=WAIT_S), "the upstream was not let go"


def finishing(house: House) -> asyncio.Event:
    """Set once the one answer that is being translated has said why it ends: of that nobody sees anything yet."""
    [exchange] = house.relay._running
    tap, has_finished = exchange._answer._tap, asyncio.Event()
    look = tap.event

    def looking(name: bytes, data: bytes) -> Seen:
        seen = look(name, data)
        if tap.found().finish_reasons:
            has_finished.set()
        return seen

    tap.event = looking
    return has_finished


async def test_in_the_middle_of_a_stream() -> None:
    """S7: the start said 25 and its placeholder; three deltas were seen; nothing says how many tokens they were. The
    input is reported, the output at least three, and derived."""
    with ScriptedUpstream(streamed(*HALF, Do.HOLD)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url, Family.ANTHROPIC))
        caller = Caller(app_of(house), MESSAGES, asking_messages(stream=True))
        calling = asyncio.create_task(caller.call())
        await caller.until(b"world")
        caller.gone.set()
        await calling
        await left(up)
        await house.aclose()
    [receipt] = ledger.kept
    assert (receipt.outcome, receipt.error) == (Outcome.ABORTED, None)
    assert receipt.usage.input_tokens == 25
    assert receipt.usage.output_text_tokens == 3
    assert receipt.usage.basis is Basis.DERIVED
    assert not caller.reply.is_ended


async def test_before_the_answer_begins() -> None:
    """Its time is the upstream's, and the try that was given up is on the receipt. No usage was seen: none is claimed
    (S11)."""
    with ScriptedUpstream([Do.SILENCE]).listening() as up:
        house, ledger = passing_house(an_upstream(up.url, retries=3))
        caller = Caller(app_of(house), CHAT, asking(stream=True))
        calling = asyncio.create_task(caller.call())
        await held(up)
        caller.gone.set()
        await calling
        await left(up)
        await house.aclose()
    [receipt] = ledger.kept
    assert (receipt.outcome, receipt.usage) == (Outcome.ABORTED, None)
    assert receipt.unmeasured_reason == "no upstream began to answer"
    [attempt] = receipt.tries
    assert (attempt.status, attempt.error) == (None, "given up: nobody waits for the answer any more")
    assert receipt.timing.upstream_ns > 0
    assert receipt.served_by == "up"
    assert len(up.books) == 1


async def test_while_another_try_is_waited_for() -> None:
    """Nobody is asked again for somebody who has gone."""
    pausing = asyncio.Event()

    class Waiting(Pauses):
        async def __call__(self, pause_s: float) -> None:
            pausing.set()
            await asyncio.Event().wait()

    with ScriptedUpstream(whole(b"{}", status=503)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url, retries=3), pauses=Waiting())
        caller = Caller(app_of(house), CHAT, asking())
        calling = asyncio.create_task(caller.call())
        await pausing.wait()
        caller.gone.set()
        await calling
        await house.aclose()
    [receipt] = ledger.kept
    assert receipt.outcome is Outcome.ABORTED
    assert [attempt.status for attempt in receipt.tries] == [503]
    assert len(up.books) == 1


async def test_after_the_end_it_is_too_late() -> None:
    """The last event is held back for the ledger when the client leaves: what was served was served."""
    with ScriptedUpstream(streamed(*CHAT_STREAM[:2], Do.HOLD, *CHAT_STREAM[2:])).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        caller = Caller(app_of(house), CHAT, asking(stream=True, usage=True))
        calling = asyncio.create_task(caller.call())
        await caller.until(b"Hello")
        await held(up)
        ledger.stuck = True
        up.release()
        await asyncio.to_thread(ledger.wait_until_asked)
        assert b"[DONE]" not in caller.reply.body
        caller.gone.set()
        await asyncio.sleep(0)
        await asyncio.to_thread(ledger.answer)
        await calling
        await house.aclose()
    [receipt] = ledger.kept
    assert (receipt.outcome, receipt.usage.output_tokens) == (Outcome.COMPLETED, 5)


@pytest.mark.parametrize("says", ["usage", "nothing"])
@pytest.mark.parametrize("path", [CHAT, MESSAGES], ids=["passage", "translated"])
async def test_when_every_choice_has_ended_it_is_too_late(path: str, says: str) -> None:
    """Many clients leave at the finish reason. All was generated by then: completed, whichever way it went. The usage
    that follows is waited for, a quarter of a second, and nobody else is."""
    rest = (CHAT_USAGE_EVENT, CHAT_END) if says == "usage" else (Do.SILENCE,)
    with ScriptedUpstream(streamed(*CHAT_TEXT[:4], Do.HOLD, CHAT_TEXT[4], Do.HOLD, *rest)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        asks = asking if path == CHAT else asking_messages
        caller = Caller(app_of(house), path, asks(stream=True))
        calling = asyncio.create_task(caller.call())
        await caller.until(b"world")
        await held(up)
        has_finished = finishing(house) if path == MESSAGES else None
        up.release()
        await held(up)
        async with asyncio.timeout(WAIT_S):
            await (caller.until(b'"finish_reason": "stop"') if has_finished is None else has_finished.wait())
        caller.gone.set()
        await asyncio.sleep(0)
        up.release()
        await calling
        await house.aclose()
    [receipt] = ledger.kept
    assert (receipt.outcome, receipt.error, receipt.finish_reasons) == (Outcome.COMPLETED, None, ("stop",))
    if says == "usage":
        assert (receipt.usage.input_tokens, receipt.usage.output_tokens) == (12, 5)
        assert receipt.usage.basis is Basis.REPORTED
    else:
        assert (receipt.usage.input_tokens, receipt.usage.output_text_tokens) == (None, 3)
        assert receipt.usage.basis is Basis.DERIVED


@pytest.mark.parametrize("path", [CHAT, MESSAGES], ids=["translated", "passage"])
async def test_when_the_stop_reason_has_come_it_is_too_late(path: str) -> None:
    """Anthropic's comes with the usage; `message_stop` adds nothing, and is not needed."""
    with ScriptedUpstream(streamed(*MESSAGES_STREAM[:-2], Do.HOLD, MESSAGES_STREAM[-2], Do.SILENCE)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url, Family.ANTHROPIC))
        asks = asking if path == CHAT else asking_messages
        caller = Caller(app_of(house), path, asks(stream=True))
        calling = asyncio.create_task(caller.call())
        await caller.until(b"world")
        await held(up)
        has_finished = finishing(house) if path == CHAT else None
        up.release()
        async with asyncio.timeout(WAIT_S):
            await (caller.until(b'"stop_reason": "end_turn"') if has_finished is None else has_finished.wait())
        caller.gone.set()
        await calling
        await left(up)
        await house.aclose()
    [receipt] = ledger.kept
    reason = "stop" if path == CHAT else "end_turn"
    assert (receipt.outcome, receipt.finish_reasons) == (Outcome.COMPLETED, (reason,))
    assert (receipt.usage.input_tokens, receipt.usage.output_tokens) == (25, 15)


@pytest.mark.parametrize("ends", [True, False])
async def test_a_server_that_goes_down_lets_a_whole_answer_end(ends: bool) -> None:
    """Its client is still there: it gets the rest if that comes in a moment, and else must not take it for whole."""
    rest = CHAT_STREAM[5:] if ends else (Do.SILENCE,)
    with ScriptedUpstream(streamed(*CHAT_TEXT, Do.HOLD, *rest)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        caller = Caller(app_of(house), CHAT, asking(stream=True, usage=True))
        calling = asyncio.create_task(caller.call())
        await caller.until(b'"finish_reason": "stop"')
        await held(up)
        closing = asyncio.create_task(house.relay.aclose())
        await asyncio.sleep(0)
        up.release()
        await closing
        reply = await calling
        await house.aclose()
    [receipt] = ledger.kept
    assert (receipt.outcome, receipt.error) == (Outcome.COMPLETED, None)
    assert reply.is_ended is ends
    assert reply.body == b"".join(CHAT_STREAM if ends else CHAT_TEXT)


async def test_a_response_that_has_only_begun_has_no_end() -> None:
    """`in_progress` is no reason why it ended."""
    begun = sse({"type": "response.created", "response": response(None, status="in_progress")})
    with ScriptedUpstream(streamed(begun, Do.SILENCE)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        caller = Caller(app_of(house), "/v1/responses", {"model": "gpt", "input": "Good day", "stream": True})
        calling = asyncio.create_task(caller.call())
        await caller.until(b"response.created")
        caller.gone.set()
        await calling
        await house.aclose()
    [receipt] = ledger.kept
    assert (receipt.outcome, receipt.finish_reasons) == (Outcome.ABORTED, ())


@pytest.mark.parametrize("stage", ["before", "middle"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_an_upstream_that_may_run_on_says_what_it_took(stage: str, stream: bool) -> None:
    """`drain_s`: aborted, and with the provider's own figures."""
    answer = streamed(*CHAT_STREAM) if stream else whole(chat({"prompt_tokens": 12, "completion_tokens": 5}))
    steps = [Do.HOLD, *answer] if stage == "before" else [answer[0][:40], Do.HOLD, answer[0][40:], *answer[1:]]
    with ScriptedUpstream(steps).listening() as up:
        house, ledger = passing_house(an_upstream(up.url, drain_s=30.0))
        caller = Caller(app_of(house), CHAT, asking(stream=stream))
        calling = asyncio.create_task(caller.call())
        await held(up)
        caller.gone.set()
        await asyncio.sleep(0)
        up.release()
        await calling
        await house.aclose()
    [receipt] = ledger.kept
    assert receipt.outcome is Outcome.ABORTED
    assert (receipt.usage.input_tokens, receipt.usage.output_tokens) == (12, 5)
    assert receipt.usage.basis is Basis.REPORTED


async def test_running_on_has_an_end() -> None:
    """An upstream that is still not done by then is let go."""
    with ScriptedUpstream(streamed(*HALF, Do.SILENCE)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url, Family.ANTHROPIC, drain_s=0.05))
        caller = Caller(app_of(house), MESSAGES, asking_messages(stream=True))
        calling = asyncio.create_task(caller.call())
        await caller.until(b"world")
        caller.gone.set()
        await calling
        await left(up)
        await house.aclose()
    assert [receipt.outcome for receipt in ledger.kept] == [Outcome.ABORTED]


async def test_at_once() -> None:
    """Let go in the very moment it was opened."""
    with ScriptedUpstream(whole(chat(None))).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        caller = Caller(app_of(house), CHAT, asking())
        caller.gone.set()
        await caller.call()
        await house.aclose()
    assert len(ledger.kept) == 1


async def test_while_the_server_goes_down() -> None:
    """In the middle: the client is told in its dialect, and the receipt says why."""
    with ScriptedUpstream(streamed(*HALF, Do.SILENCE)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url, Family.ANTHROPIC))
        caller = Caller(app_of(house), MESSAGES, asking_messages(stream=True))
        calling = asyncio.create_task(caller.call())
        await caller.until(b"world")
        await house.relay.aclose()
        reply = await calling
        await left(up)
        late = await Caller(app_of(house), MESSAGES, asking_messages()).call()
        await house.aclose()
    assert reply.body.startswith(b"".join(HALF))
    assert b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"' in reply.body
    assert late.status == 503
    stopped, refused = ledger.kept
    assert (stopped.outcome, stopped.error) == (Outcome.ABORTED, "ShuttingDown: the server is shutting down")
    assert stopped.usage.input_tokens == 25
    assert (refused.outcome, refused.error) == (Outcome.REFUSED, "ShuttingDown: the server is shutting down")


async def test_aborted_before_its_first_step() -> None:
    """A task that is cancelled before it has begun never runs; its request has a receipt all the same."""
    with ScriptedUpstream(whole(chat(None))).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        opened: list[object] = []
        follow = house.relay.follow

        def follow_and_abort(running: object) -> None:
            follow(running)
            opened.append(asyncio.ensure_future(running.abort(ShuttingDown())))
            running._stop_reading()

        house.relay.follow = follow_and_abort
        reply = await Caller(app_of(house), CHAT, asking()).call()
        await asyncio.gather(*opened)
        await house.aclose()
    assert reply.status == 503
    [receipt] = ledger.kept
    assert receipt.outcome is Outcome.ABORTED


def test_the_event_loop_is_closed_over_it() -> None:
    """What is in flight then has a receipt too."""
    ledger = MemoryLedger()

    async def run(up: ScriptedUpstream) -> None:
        house, _ = passing_house(an_upstream(up.url), ledger=ledger)
        caller = Caller(app_of(house), CHAT, asking(stream=True))
        calling = asyncio.create_task(caller.call())
        await caller.until(b"Hello")
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert calling in others
        for task in others:  # what a runner does at its end
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await house.aclose()

    with ScriptedUpstream(streamed(*CHAT_TEXT[:2], Do.SILENCE)).listening() as up:
        asyncio.run(run(up))
    [receipt] = ledger.kept
    assert receipt.outcome is Outcome.ABORTED
    assert receipt.usage.output_text_tokens == 1


def test_over_a_real_socket() -> None:
    """The same, noticed by the server itself, while nothing is written."""
    seen: list[Receipt] = []
    is_seen = threading.Event()
    with ScriptedUpstream(streamed(*HALF, Do.SILENCE)).listening() as up:
        house, _ = passing_house(an_upstream(up.url, Family.ANTHROPIC))
        house.relay.observers.append(lambda receipt: (seen.append(receipt), is_seen.set()))
        with listening(house) as url:
            body = asking_messages(stream=True)
            with httpx.stream("POST", url + MESSAGES, json=body, timeout=WAIT_S) as response:
                received = b""
                for piece in response.iter_raw():
                    received += piece
                    if b"world" in received:
                        break
            assert is_seen.wait(WAIT_S)
            assert up.left.acquire(timeout=WAIT_S)
    assert [receipt.outcome for receipt in seen] == [Outcome.ABORTED]


async def test_a_slow_client_loses_nothing_and_moves_no_time() -> None:
    """L3: nothing is read until the upstream has sent all; the times are the upstream's."""
    with ScriptedUpstream(streamed(*CHAT_STREAM)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        is_written = asyncio.Event()
        house.relay.observers.append(lambda _: is_written.set())
        caller = Caller(app_of(house), CHAT, asking(stream=True, usage=True))
        caller.may_write.clear()
        calling = asyncio.create_task(caller.call())
        async with asyncio.timeout(WAIT_S):
            await is_written.wait()
        [receipt] = ledger.kept
        assert caller.reply.status == 0, "something was written"
        caller.may_write.set()
        reply = await calling
        await house.aclose()
    assert reply.body == b"".join(CHAT_STREAM)
    assert receipt.timing.first_token_ns < receipt.timing.total_ns


async def test_of_a_client_that_reads_nothing_only_so_much_is_kept() -> None:
    """Eight megabytes, and then the upstream waits too; all of it arrives in the end."""

    class Noted(asyncio.Event):
        waited = asyncio.Event()

        async def wait(self) -> bool:
            self.waited.set()
            return await super().wait()

    event = b": " + b"x" * (256 * 1024) + b"\n\n"
    with ScriptedUpstream(streamed(*[event] * 80, *CHAT_STREAM)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        passages: list[Passage] = []
        follow = house.relay.follow

        def noting(passage: Passage) -> None:
            passage._was_read = Noted()
            passages.append(passage)
            follow(passage)

        house.relay.follow = noting
        caller = Caller(app_of(house), CHAT, asking(stream=True, usage=True))
        caller.may_write.clear()
        calling = asyncio.create_task(caller.call())
        async with asyncio.timeout(WAIT_S):
            await Noted.waited.wait()
        [passage] = passages
        assert 8 * 2**20 < passage._unread_bytes < 9 * 2**20
        assert not up.books[0].is_done
        caller.may_write.set()
        reply = await calling
        await house.aclose()
    assert len(reply.body) == 80 * len(event) + len(b"".join(CHAT_STREAM))
    assert ledger.kept[0].outcome is Outcome.COMPLETED


async def test_the_receipt_is_durable_before_the_last_event() -> None:
    """And nothing is seen at all before the ledger has noted that it began."""
    with ScriptedUpstream(streamed(*CHAT_STREAM)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        ledger.stuck = True
        caller = Caller(app_of(house), CHAT, asking(stream=True, usage=True))
        calling = asyncio.create_task(caller.call())
        await asyncio.to_thread(ledger.wait_until_asked)
        assert caller.reply.status == 0
        await asyncio.to_thread(ledger.answer)  # that it began
        await asyncio.to_thread(ledger.wait_until_asked)  # the receipt
        await caller.until(b'"completion_tokens": 5')
        assert b"[DONE]" not in caller.reply.body
        await asyncio.to_thread(ledger.answer)
        reply = await calling
        await house.aclose()
    assert reply.body == b"".join(CHAT_STREAM)


async def test_a_connection_that_does_not_end_holds_nobody_up() -> None:
    """The last event has come; that its connection stays open delays neither it nor the receipt. What comes late,
    comes."""
    steps = [*streamed(*CHAT_STREAM, ends=False), Do.HOLD, b"5\r\n: bye\r\n", Do.SILENCE]
    with ScriptedUpstream(steps).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        caller = Caller(app_of(house), CHAT, asking(stream=True, usage=True))
        calling = asyncio.create_task(caller.call())
        await caller.until(CHAT_END)
        [receipt] = ledger.kept
        await held(up)
        up.release()
        reply = await calling
        await house.aclose()
    assert reply.body == b"".join(CHAT_STREAM) + b": bye"
    assert reply.is_ended
    assert receipt.timing.phases()[Phase.GATEWAY] < 200_000_000


async def test_a_ledger_that_loses_a_receipt_is_not_the_clients_affair(caplog: pytest.LogCaptureFixture) -> None:
    """The answer is whole; the loss is counted."""
    with ScriptedUpstream(streamed(*CHAT_STREAM)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        ledger.broken = RuntimeError("the disk is full")
        with caplog.at_level(logging.CRITICAL):
            reply = await Caller(app_of(house), CHAT, asking(stream=True, usage=True)).call()
        await house.aclose()
    assert reply.body == b"".join(CHAT_STREAM)
    assert (ledger.accepted, ledger.lost, ledger.kept) == (1, 1, [])


async def test_wall_time_that_jumps_changes_no_duration() -> None:
    """L6: set back four minutes in the middle."""
    clock = FakeClock()
    with ScriptedUpstream(streamed(*CHAT_TEXT[:2], Do.HOLD, *CHAT_STREAM[2:])).listening() as up:
        house, ledger = passing_house(an_upstream(up.url), clock=clock)
        caller = Caller(app_of(house), CHAT, asking(stream=True, usage=True))
        calling = asyncio.create_task(caller.call())
        await caller.until(b"Hello")
        clock.advance(ms=700)
        clock.set_wall(clock.utc_now() - timedelta(seconds=240))
        await held(up)
        up.release()
        await calling
        await house.aclose()
    [receipt] = ledger.kept
    assert receipt.timing.total_ns == 700_000_000
    assert receipt.timing.upstream_ns == 700_000_000
