"""G2: what a request waits for a busy event loop is on its receipt, as the gateway's: when it comes in, and when its
answer does. And the other clocks of a stream (L1, L2)."""

from __future__ import annotations

import asyncio
import http.client
import sys
import threading
import time
from urllib.parse import urlsplit

import httpx
import pytest

from taximeter.clock import FakeClock, arrived_ns, socket_of
from taximeter.records import Receipt, inter_token_ns
from tests.fakes import WAIT_S
from tests.gateway_harness import CHAT, Caller, app_of, fake_house, listening
from tests.passing import CHAT_STREAM, CHAT_USAGE, asking, encoded
from tests.upstream_harness import Do, ScriptedUpstream, an_upstream, passing_house, streamed, whole
from tests.wire import DONE, chat, chunk, sse

S = 1_000_000_000
BLOCK_S = 1.0

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says when bytes came")


class Blocked:
    """An event loop, kept busy for a second."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._is_blocked = threading.Event()

    def begin(self) -> None:
        """Returns when the loop does nothing else any more."""
        assert self.loop is not None
        self._is_blocked.clear()
        self.loop.call_soon_threadsafe(self._block)
        assert self._is_blocked.wait(WAIT_S)

    def _block(self) -> None:
        self._is_blocked.set()
        time.sleep(BLOCK_S)


def caught_loop(house: object, blocked: Blocked) -> None:
    """Remember the loop that the house is served on."""
    begin = house.relay.begin

    def noting(*args: object) -> object:
        blocked.loop = asyncio.get_running_loop()
        return begin(*args)

    house.relay.begin = noting


@linux_only
@pytest.mark.parametrize("is_new", [True, False], ids=["a new connection", "a kept one"])
def test_when_the_request_comes(is_new: bool) -> None:
    """It lay in the socket for a second: total and gateway have that second, the upstream has not."""
    with ScriptedUpstream(whole(chat(CHAT_USAGE))).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        blocked = Blocked()
        caught_loop(house, blocked)
        with (
            listening(house) as url,
            httpx.Client(base_url=url, timeout=WAIT_S) as client,
            httpx.Client(base_url=url, timeout=WAIT_S) as other,
        ):
            client.post(CHAT, json=asking())
            blocked.begin()
            (other if is_new else client).post(CHAT, json=asking())
    timing = ledger.kept[-1].timing
    assert 0.8 * S < timing.gateway_ns < 3 * S
    assert timing.upstream_ns < 0.6 * S


@linux_only
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_when_the_answer_comes(stream: bool) -> None:
    """It was there while we did something else: that second is not the upstream's, nor in the first token's time."""
    answer = streamed(*CHAT_STREAM) if stream else whole(chat(CHAT_USAGE))
    with ScriptedUpstream(whole(chat(CHAT_USAGE)), [Do.HOLD, *answer]).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        blocked = Blocked()
        caught_loop(house, blocked)
        with listening(house) as url:
            httpx.post(url + CHAT, json=asking(), timeout=WAIT_S)
            parts = urlsplit(url)
            connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=WAIT_S)
            connection.request("POST", CHAT, encoded(asking(stream=stream)), {"content-type": "application/json"})
            assert up.held.acquire(timeout=WAIT_S)
            blocked.begin()
            up.release()
            assert connection.getresponse().read()
            connection.close()
    timing = ledger.kept[-1].timing
    assert 0.7 * S < timing.gateway_ns < 3 * S
    assert timing.upstream_ns < 0.6 * S
    if stream:
        assert timing.first_token_ns < 0.6 * S


@linux_only
def test_when_our_own_engine_answers() -> None:
    """The stamp at the edge is the same for every door."""
    house, _, ledger = fake_house()
    blocked = Blocked()
    caught_loop(house, blocked)
    with listening(house) as url, httpx.Client(base_url=url, timeout=WAIT_S) as client:
        client.post(CHAT, json=asking(model="fake"))
        blocked.begin()
        client.post(CHAT, json=asking(model="fake"))
    first, second = (receipt.timing.gateway_ns for receipt in ledger.kept)
    assert first < 0.5 * S
    assert 0.8 * S < second < 3 * S


async def played(events: list[tuple[int, bytes]], usage: dict[str, object]) -> Receipt:
    """The receipt of a stream whose events come at those milliseconds."""
    clock = FakeClock()
    steps = [step for _, event in events for step in (Do.HOLD, event)]
    with ScriptedUpstream(streamed(*steps, sse(chunk(usage=usage)), sse(DONE))).listening() as up:
        house, ledger = passing_house(an_upstream(up.url), clock=clock)
        caller = Caller(app_of(house), CHAT, asking(stream=True, usage=True))
        calling = asyncio.create_task(caller.call())
        now_ms, seen = 0, 0
        for at_ms, event in events:
            assert await asyncio.to_thread(up.held.acquire, timeout=WAIT_S)
            async with asyncio.timeout(WAIT_S), caller.wrote:  # what came before was read at its own time
                await caller.wrote.wait_for(lambda seen=seen: len(caller.reply.body) >= seen)
            clock.advance(ms=at_ms - now_ms)
            now_ms, seen = at_ms, seen + len(event)
            up.release()
        await calling
        await house.aclose()
    [receipt] = ledger.kept
    return receipt


async def test_the_first_token_is_stamped_once() -> None:
    """L1: tokens at 500, 600 ... 1,500 ms; the first is at 500, whatever comes last."""
    events = [(at_ms, sse(chunk("x"))) for at_ms in range(500, 1_501, 100)]
    receipt = await played(events, {"prompt_tokens": 1, "completion_tokens": 11, "total_tokens": 12})
    assert receipt.timing.first_token_ns == 500_000_000
    assert receipt.timing.total_ns == 1_500_000_000


async def test_a_role_is_no_token_and_reasoning_is() -> None:
    """L2: role at 5 ms, reasoning at 1,175, text at 183,581, the end at 192,851, 13,228 tokens."""
    finish = chunk("", role="assistant")
    events = [
        (5, sse(chunk("", role="assistant"))),
        (1_175, sse(chunk(None, reasoning_content="Hm"))),
        (183_581, sse(chunk("x"))),
        (192_851, sse(finish)),
    ]
    receipt = await played(events, {"prompt_tokens": 1, "completion_tokens": 13_228, "total_tokens": 13_229})
    assert receipt.timing.first_token_ns == 1_175_000_000
    assert receipt.timing.first_answer_ns == 183_581_000_000
    assert inter_token_ns(receipt.timing, receipt.usage.output_tokens) == round(191_676_000_000 / 13_227)


async def test_who_asks_a_socket_does_not_close_it() -> None:
    """What is asked for when bytes came lets go of the connection as it found it, and its end is no error."""
    with ScriptedUpstream(whole(b"{}")).listening() as up:
        host, _, port = up.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        asked = socket_of(writer.transport)
        assert arrived_ns(7 * S, asked) <= 7 * S
        del asked
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        asked = socket_of(writer.transport)
        writer.close()
        await writer.wait_closed()
        assert arrived_ns(7 * S, asked) == 7 * S
        assert socket_of(writer.transport) is None
