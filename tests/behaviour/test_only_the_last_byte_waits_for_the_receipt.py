"""An answer that is not streamed is with its client, all but its last byte, before anything is written about it; the
last byte comes when the receipt is durable, and not before."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx
import pytest

from taximeter.records import Outcome
from taximeter.upstreams.secrets import Secret
from tests.fakes import WAIT_S, MemoryLedger
from tests.gateway_harness import CHAT, Caller, app_of, listening
from tests.passing import CHAT_STREAM, CHAT_USAGE, asking
from tests.upstream_harness import ScriptedUpstream, Steps, an_upstream, chunked, head, passing_house, streamed, whole
from tests.wire import chat

ANSWER = json.dumps(chat(CHAT_USAGE)).encode()
KEY = "sk-upstream-0123456789"
REFUSAL = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}", "type": "t"}}).encode()

ANSWERS: dict[str, Steps] = {
    "with a length": whole(ANSWER),
    "in chunks": [head(transfer_encoding="chunked") + chunked(ANSWER[:7]) + chunked(ANSWER[7:]) + b"0\r\n\r\n"],
}


@asynccontextmanager
async def asked(steps: Steps) -> AsyncGenerator[tuple[Caller, MemoryLedger]]:
    """Somebody who has asked, and a ledger that answers for no receipt."""
    with ScriptedUpstream(steps).listening() as up:
        house, ledger = passing_house(an_upstream(up.url, key=Secret(KEY, "env:K")))
        ledger.stuck_receipts = True
        caller = Caller(app_of(house), CHAT, asking())
        calling = asyncio.create_task(caller.call())
        yield caller, ledger
        await asyncio.to_thread(ledger.answer)
        await calling
        ledger.stuck_receipts = False
        await house.aclose()


@pytest.mark.parametrize("way", ANSWERS)
async def test_all_but_the_last_byte_is_there_before(way: str) -> None:
    """The head with the length of the whole, and all of the body but one byte, while the ledger does not answer."""
    async with asked(ANSWERS[way]) as (caller, ledger):
        await asyncio.to_thread(ledger.wait_until_asked)
        assert caller.reply.body == ANSWER[:-1]
        assert caller.reply.headers["content-length"] == str(len(ANSWER))
        assert not caller.reply.is_ended
        assert ledger.kept == []
    assert caller.reply.body == ANSWER
    [receipt] = ledger.kept
    assert (receipt.outcome, receipt.usage.output_tokens) == (Outcome.COMPLETED, 5)
    assert receipt.id == caller.reply.headers["x-taximeter-receipt"]


@pytest.mark.parametrize(
    "steps",
    [whole(b""), whole(b"", status=502), [head(status=204)], whole(b"", status=304)],
    ids=["empty", "empty error", "204", "304"],
)
async def test_a_head_that_is_all_of_an_answer_waits(steps: Steps) -> None:
    """Where there is no last byte to hold back, the head is held."""
    async with asked(steps) as (caller, ledger):
        await asyncio.to_thread(ledger.wait_until_asked)
        assert caller.reply.status == 0
    assert caller.reply.is_ended
    assert caller.reply.body == b""
    assert len(ledger.kept) == 1


async def test_an_answer_of_one_byte_waits_with_it() -> None:
    """Its head goes, and nothing else."""
    async with asked(whole(b"1")) as (caller, ledger):
        await asyncio.to_thread(ledger.wait_until_asked)
        assert (caller.reply.status, caller.reply.body) == (200, b"")
    assert caller.reply.body == b"1"


async def test_an_error_is_shown_without_keys_at_once() -> None:
    """What goes ahead of the receipt is concealed as the rest is, and has the length of what is shown."""
    async with asked(whole(REFUSAL, status=401)) as (caller, ledger):
        await asyncio.to_thread(ledger.wait_until_asked)
        shown = caller.reply.body
        assert caller.reply.status == 401
        assert shown.startswith(b'{"error"')
        assert int(caller.reply.headers["content-length"]) == len(shown) + 1
    assert KEY.encode() not in caller.reply.body
    assert caller.reply.body == shown + b"}"
    assert ledger.kept[0].outcome is Outcome.REFUSED


async def test_who_leaves_with_all_but_the_last_byte_leaves_too_late() -> None:
    """The answer was whole when they left: completed, with its usage."""
    async with asked(whole(ANSWER)) as (caller, ledger):
        await asyncio.to_thread(ledger.wait_until_asked)
        caller.gone.set()
        await asyncio.sleep(0)
    [receipt] = ledger.kept
    assert (receipt.outcome, receipt.usage.output_tokens) == (Outcome.COMPLETED, 5)


async def test_who_leaves_at_the_first_byte_leaves_too_late() -> None:
    """Between the first byte and the look at the answer: the same."""
    with ScriptedUpstream(whole(ANSWER)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        caller = Caller(app_of(house), CHAT, asking())
        calling = asyncio.create_task(caller.call())
        async with asyncio.timeout(WAIT_S), caller.wrote:
            await caller.wrote.wait_for(lambda: caller.reply.status)
        caller.gone.set()
        await calling
        await house.aclose()
    [receipt] = ledger.kept
    assert (receipt.outcome, receipt.usage.output_tokens) == (Outcome.COMPLETED, 5)


async def test_nothing_is_seen_of_a_stream_that_a_killed_process_would_forget() -> None:
    """The note that the request began is not written: not even the head is shown."""
    with ScriptedUpstream(streamed(*CHAT_STREAM)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        ledger.stuck = True
        caller = Caller(app_of(house), CHAT, asking(stream=True))
        calling = asyncio.create_task(caller.call())
        await asyncio.to_thread(ledger.wait_until_asked)
        assert caller.reply.status == 0
        await asyncio.to_thread(ledger.answer)  # the note
        await asyncio.to_thread(ledger.wait_until_asked)
        assert caller.reply.status == 200
        await asyncio.to_thread(ledger.answer)  # the receipt
        await calling
        await house.aclose()
    assert (len(ledger.begun), len(ledger.kept)) == (1, 1)


async def test_a_body_that_comes_at_once_is_shown_before_its_note() -> None:
    """The ledger expects the request by then, so that a killed process would not be silent on it; then the note."""
    with ScriptedUpstream(whole(ANSWER)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        ledger.stuck = True
        caller = Caller(app_of(house), CHAT, asking())
        calling = asyncio.create_task(caller.call())
        await caller.until(ANSWER[:-1])
        assert len(ledger.expected) == 1
        assert not ledger.kept
        await asyncio.to_thread(ledger.answer)  # the note
        await asyncio.to_thread(ledger.answer)  # the receipt
        await calling
        await house.aclose()
    assert caller.reply.body == ANSWER
    assert (len(ledger.begun), len(ledger.kept)) == (1, 1)


async def test_an_upstream_is_asked_for_nothing_that_a_killed_process_would_not_count() -> None:
    """The note is written while the upstream answers; before it is asked the ledger has been told to expect one."""
    seen: list[tuple[int, int]] = []

    def asked_now(_: object) -> Steps:
        seen.append((len(ledger.expected), len(ledger.begun)))
        return whole(ANSWER)

    with ScriptedUpstream(asked_now).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        await Caller(app_of(house), CHAT, asking()).call()
        await house.aclose()
    [(expected, _)] = seen
    assert expected == 1
    assert ledger.expected == [request.id for request in ledger.begun]


def test_over_a_socket_it_is_one_answer_after_the_other() -> None:
    """Lengths are right: the connection serves again, and so does the upstream's."""
    with ScriptedUpstream(whole(ANSWER)).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        with listening(house) as url, httpx.Client(timeout=WAIT_S) as client:
            for _ in range(5):
                assert client.post(url + CHAT, json=asking()).content == ANSWER
        assert up.connections == 1
    assert len(ledger.kept) == 5
    for receipt in ledger.kept:
        timing = receipt.timing
        assert timing.gateway_ns + timing.upstream_ns == timing.total_ns
