"""Several client processes against a real server: together they are one client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import TypeVar

import pytest
from starlette.applications import Starlette
from starlette.requests import Request as HTTPRequest
from starlette.responses import StreamingResponse
from starlette.routing import Route

from taximeter.errors import UpstreamError
from taximeter.measurement.asking.asker import Sent
from taximeter.measurement.asking.prompts import Prompts
from taximeter.measurement.asking.target import Target
from taximeter.measurement.asking.wire import Question
from taximeter.measurement.load.arrivals import Arrivals
from taximeter.measurement.load.fleet import Asking, Fleet
from taximeter.measurement.load.level import closed_level, divided, open_level
from taximeter.measurement.load.run import LoadRun
from taximeter.measurement.load.workload import fixed, named
from taximeter.records import Dialect, Outcome, Request
from taximeter.upstreams.config import Family, Upstream
from taximeter.upstreams.secrets import Secret
from tests.measurement_harness import event, serving_app, text_chunk, usage

T = TypeVar("T")


class _Books:
    """Receipts as the ledger's books see them: told of beginnings and ends, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[int, str, str]] = []

    def begun(self, request: Request, question: Question) -> None:
        self.events.append((request.received_ns, "begun", request.id))

    def keep(self, sent: Sent) -> str | None:
        self.events.append((sent.ended_ns, "ended", sent.request.id))
        return None


class _Server:
    """Answers with as many tokens as are asked for, or never; it notes prompts and keys."""

    def __init__(self, *, answers: bool = True) -> None:
        self.prompts: list[str] = []
        self.keys: set[str | None] = set()
        self._answers = answers

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/chat/completions", self._chat, methods=["POST"])])

    async def _chat(self, request: HTTPRequest) -> StreamingResponse:
        asked = json.loads(await request.body())
        self.prompts.append(asked["messages"][0]["content"])
        self.keys.add(request.headers.get("authorization"))

        async def answer() -> AsyncGenerator[bytes]:
            for _ in range(asked["max_tokens"]):
                yield text_chunk()
            while not self._answers:
                await asyncio.sleep(0.05)
                yield b": waiting\n\n"
            yield event(choices=[{"index": 0, "delta": {}, "finish_reason": "length"}])
            yield event(choices=[], usage=usage(len(asked["messages"][0]["content"].split()), asked["max_tokens"]))
            yield b"data: [DONE]\n\n"

        return StreamingResponse(answer(), media_type="text/event-stream")


def asking(url: str) -> Asking:
    key = Secret("hidden-key-of-a-test", "env:TAXIMETER_TEST_FLEET_KEY")
    target = Target(
        name="server",
        url=url,
        model="m",
        dialect=Dialect.OPENAI_CHAT,
        upstream=Upstream(name="server", url=url, speaks=Family.OPENAI, key=key),
    )
    return Asking(target=target, run="run", prompts=Prompts(target, ["one", "two", "six"] * 9, 0, seed=1))


def at_a_server(server: _Server, work: Callable[[Asking], Coroutine[None, None, T]]) -> T:
    async def whole() -> T:
        async with serving_app(server.app()) as url:
            return await work(asking(url))

    return asyncio.run(whole())


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """Two processes, which take most of the time of these tests to start."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TAXIMETER_TEST_FLEET_KEY", "hidden-key-of-a-test")
        started = Fleet(2)
        asyncio.run(started.__aenter__())
    yield started
    asyncio.run(started.__aexit__(None, None, None))


def test_two_processes_send_one_schedule(fleet: Fleet) -> None:
    """Every request is sent once, by the clock that they share, has the key, and is on the books in the order of time;
    no two have the same prompt."""
    books, server = _Books(), _Server()
    first = open_level(fixed(40, 3), 100, arrivals=Arrivals(), duration_s=0.2, seed=1)
    second = closed_level(named("chat"), 3, jitter_s=0.01, duration_s=0.1, seed=1)

    async def work(who: Asking) -> tuple[LoadRun, LoadRun]:
        return await fleet.run(first, who, books=books), await fleet.run(second, who)

    opened, closed = at_a_server(server, work)
    assert [seen.scheduled_ns for seen in opened.observations] == list(first.due_ns)
    assert all(seen.is_complete and seen.output_tokens == 3 for seen in opened.observations)
    assert all(seen.sent_ns >= seen.scheduled_ns for seen in opened.observations)
    assert len(opened.clients) == len(closed.clients) == 2
    assert closed.concurrency == 3
    assert closed.busy_ns is not None
    assert len(set(server.prompts)) == len(server.prompts) == len(opened.observations) + len(closed.observations)
    assert server.keys == {"Bearer hidden-key-of-a-test"}
    assert books.events == sorted(books.events, key=lambda each: each[0])
    assert len(books.events) == 2 * len(opened.observations)


def test_stopping_stops_all_and_keeps_what_they_saw(fleet: Fleet) -> None:
    server = _Server(answers=False)

    async def work(who: Asking) -> LoadRun:
        stop = asyncio.Event()
        level = open_level(fixed(40, 3), 40, arrivals=Arrivals(burstiness=float("inf")), duration_s=0.1, seed=1)
        running = asyncio.ensure_future(fleet.run(level, who, stop=stop))
        while len(server.prompts) < 4:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.01)
        stop.set()
        return await running

    run = at_a_server(server, work)
    assert run.was_stopped
    assert [seen.outcome for seen in run.observations] == [Outcome.ABORTED] * 4


@pytest.mark.parametrize("before", [False, True], ids=["at its work", "before it had any"])
def test_a_client_that_died_is_told(before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAXIMETER_TEST_FLEET_KEY", "hidden-key-of-a-test")

    async def work(who: Asking) -> None:
        async with Fleet(1) as fleet:
            level = open_level(fixed(40, 3), 100, arrivals=Arrivals(), duration_s=60, seed=1)
            process, _ = fleet._clients[0]
            if before:
                process.kill()
                process.join()
            running = asyncio.ensure_future(fleet.run(level, who))
            await asyncio.sleep(0)
            process.kill()
            with pytest.raises(UpstreamError, match="died"):
                await running

    at_a_server(_Server(), work)


def test_a_divided_level_is_the_whole_one() -> None:
    level = open_level(named("chat"), 10, arrivals=Arrivals(), duration_s=10, seed=1, most_in_flight=5)
    parts = divided(level, 3)
    assert sorted(at_ns for part in parts for at_ns in part.due_ns) == list(level.due_ns)
    assert sum(part.rate_per_s or 0 for part in parts) == pytest.approx(10)
    assert [part.most_in_flight for part in parts] == [2, 2, 1]
    assert all(len(part.asks) == len(part.due_ns) for part in parts)
    assert len(divided(level, 9)) == 5  # each may have one under way
    slots = divided(closed_level(named("chat"), 7, jitter_s=1, duration_s=1, seed=1), 2)
    assert [len(part.starts_ns) for part in slots] == [4, 3]
    assert slots[0].seed != slots[1].seed
