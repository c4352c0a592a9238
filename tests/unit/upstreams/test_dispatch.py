"""Who is tried, in which order, and who is told of it. What answers is scripted; nothing is waited for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from taximeter.clock import FakeClock
from taximeter.errors import UpstreamError
from taximeter.records import Attempt, Phase
from taximeter.upstreams.config import Upstream
from taximeter.upstreams.connection import Read
from taximeter.upstreams.dispatch import Dispatcher, NobodyAnswers, Outgoing, Stale, Trail, phases_of, retry_after_s
from tests.upstream_harness import Pauses, an_upstream

BODY = b"{}"


@dataclass
class FakeIncoming:
    upstream: Upstream
    status: int
    begun: Read
    retry_after: str | None = None
    is_closed: bool = False

    def header(self, name: str) -> str | None:
        return self.retry_after if name == "retry-after" else None

    def close(self) -> None:
        self.is_closed = True


@dataclass
class FakeClient:
    """Answers with what is next: a status, an incoming, or an error that is raised. Each try takes 10 ms."""

    clock: FakeClock
    says: list[object]
    asked: list[str] = field(default_factory=list)
    given: list[FakeIncoming] = field(default_factory=list)

    async def send(
        self, upstream: Upstream, method: str, path: str, headers: object, body: bytes, *, asked: object
    ) -> FakeIncoming:
        assert (method, path, body, asked) == ("POST", "/v1/x", BODY, None)
        self.asked.append(upstream.name)
        self.clock.advance(ms=10)
        said = self.says.pop(0)
        if isinstance(said, BaseException):
            raise said
        status, retry_after = said if isinstance(said, tuple) else (said, None)
        now_ns = self.clock.monotonic_ns()
        self.given.append(FakeIncoming(upstream, status, Read(b"", now_ns, now_ns), retry_after))
        return self.given[-1]


class Meter:
    """Hears what a machine that is paid by the hour would."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def sent(self, upstream: str, outgoing: Outgoing, at_ns: int) -> None:
        self.heard.append(f"sent {upstream}")

    def refused(self, outgoing: Outgoing, at_ns: int) -> None:
        self.heard.append("refused")

    def in_flight(self) -> int:
        return sum(1 if word.startswith("sent") else -1 for word in self.heard)


class World:
    def __init__(self, *says: object) -> None:
        self.clock = FakeClock()
        self.client = FakeClient(self.clock, list(says))
        self.meter = Meter()
        self.pauses = Pauses()
        self.trail = Trail()
        self.dispatcher = Dispatcher(self.client, listener=self.meter, clock=self.clock, pause=self.pauses)

    async def reach(self, *retries: int, is_metered: bool = True) -> FakeIncoming:
        upstreams = [an_upstream("http://x", name="abc"[n], retries=count) for n, count in enumerate(retries)]
        outgoing = Outgoing(
            method="POST",
            path="/v1/x",
            headers=[(b"authorization", b"Bearer sk-client")],
            body=BODY,
            request_id="req_1",
            received_ns=0,
            is_metered=is_metered,
        )
        assert "sk-client" not in repr(outgoing)
        return await self.dispatcher.reach(upstreams, outgoing, self.trail)


DOWN = UpstreamError("a gave no answer: connection refused")


@pytest.mark.parametrize("status", [200, 204, 301, 400, 401, 404, 422])
async def test_an_answer_is_an_answer(status: int) -> None:
    """Also a refusal that would be the same a moment later."""
    world = World(status)
    incoming = await world.reach(3, 3)
    assert (incoming.status, world.client.asked, incoming.is_closed) == (status, ["a"], False)
    assert world.trail.tries == [Attempt(upstream="a", started_ns=0, duration_ns=10_000_000, status=status)]
    assert world.meter.heard == ["sent a"]


@pytest.mark.parametrize("first", [408, 429, 500, 502, 503, 504, 529, DOWN])
async def test_it_is_tried_again_and_then_elsewhere(first: object) -> None:
    """Twice here, then there; what came to nothing is closed, and no machine is kept busy by it."""
    world = World(first, first, 200)
    incoming = await world.reach(1, 1)
    assert incoming.upstream.name == "b"
    assert world.client.asked == ["a", "a", "b"]
    assert [given.is_closed for given in world.client.given[:-1]] == [True] * (len(world.client.given) - 1)
    assert not incoming.is_closed
    assert world.meter.in_flight() == 1
    assert len(world.pauses.taken_s) == 1
    assert [each.started_ns for each in world.trail.tries] == [0, 10_000_000, 20_000_000]


async def test_the_last_one_that_answered_is_the_answer() -> None:
    """A refusal in the provider's words is better than none."""
    world = World(503, 529)
    incoming = await world.reach(0, 0)
    assert (incoming.status, incoming.is_closed, world.client.given[0].is_closed) == (529, False, True)


async def test_pauses_grow_and_heed_what_was_asked_for() -> None:
    """Twice as long each time, about; at least what the upstream says; at most five seconds, else it is left."""
    world = World(*[DOWN] * 4, (429, "3"), (429, "30"), 200)
    assert (await world.reach(3, 5, 0)).upstream.name == "c"
    first, second, third, asked = world.pauses.taken_s
    assert 0.15 <= first <= 0.25
    assert 1.4 < second / first < 3.5
    assert 1.0 < third / second < 3.5
    assert asked == 3
    assert world.client.asked == ["a"] * 4 + ["b"] * 2 + ["c"]


async def test_nobody() -> None:
    """What was tried is said, and no time when to come back: none of them rests."""
    world = World(DOWN, DOWN)
    with pytest.raises(NobodyAnswers, match="no answer from a, b: a gave no answer: connection refused") as caught:
        await world.reach(0, 0)
    assert caught.value.retry_after_s is None
    assert world.meter.in_flight() == 0


async def test_who_failed_five_times_rests() -> None:
    """Others are asked at once; when all rest, the one that wakes first says when."""
    world = World(*[DOWN] * 5, 200)
    with pytest.raises(NobodyAnswers):
        await world.reach(4)
    world.trail = Trail()
    assert (await world.reach(0, 0)).upstream.name == "b"
    assert world.trail.tries[0].error == "not tried: it failed several times just now"
    world.clock.advance(ms=1_000)
    with pytest.raises(NobodyAnswers) as caught:
        await world.reach(0)
    assert caught.value.retry_after_s == pytest.approx(5 - 1 - 0.01)


async def test_too_many_requests_are_no_illness() -> None:
    """429 and 408 open no breaker; 503 does."""
    world = World(*[429] * 20, *[503] * 5)
    for _ in range(20):
        assert (await world.reach(0)).status == 429
    for _ in range(5):
        assert (await world.reach(0)).status == 503
    with pytest.raises(NobodyAnswers):
        await world.reach(0)


async def test_a_stale_connection_is_free_once() -> None:
    """No pause, no retry used up, no breaker; a second one in a row is a failure like others."""
    stale = Stale("a had closed a connection that was kept for reuse")
    world = World(stale, 200)
    assert (await world.reach(0)).status == 200
    assert world.pauses.taken_s == []
    assert world.meter.in_flight() == 1
    world = World(stale, stale, 200)
    with pytest.raises(NobodyAnswers):
        await world.reach(0)
    assert world.client.asked == ["a", "a"]


async def test_giving_up_leaves_nothing_open() -> None:
    """In the middle of a try, and while another is waited for: the tries are seen all the same."""
    never = asyncio.Event()

    class Silent(FakeClient):
        async def send(self, *_args: object, **_more: object) -> FakeIncoming:
            await never.wait()
            raise AssertionError

    world = World()
    world.dispatcher._client = Silent(world.clock, [])
    reaching = asyncio.create_task(world.reach(3))
    await asyncio.sleep(0)
    reaching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reaching
    [attempt] = world.trail.tries
    assert attempt.error == "given up: nobody waits for the answer any more"
    assert world.meter.in_flight() == 0

    class Endless(Pauses):
        async def __call__(self, pause_s: float) -> None:
            await never.wait()

    world = World(503)
    world.dispatcher._pause = Endless()
    reaching = asyncio.create_task(world.reach(3))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    reaching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reaching
    assert world.client.given[0].is_closed
    assert world.meter.in_flight() == 0


async def test_nobody_is_asked_for_somebody_who_has_gone() -> None:
    """The try that runs may end; no other begins."""
    world = World(503, 200)
    world.trail.is_wanted = False
    with pytest.raises(NobodyAnswers):
        await world.reach(3, 3)
    assert world.client.asked == []


async def test_what_is_not_metered_is_told_to_nobody() -> None:
    """A machine would be busy with it for ever: it has no receipt to end it."""
    world = World(503, DOWN, 200)
    await world.reach(2, is_metered=False)
    assert world.meter.heard == []


def test_where_a_request_was_and_when() -> None:
    """At an upstream during each try, here between them, and still there with the one that is answered."""
    tries = [Attempt(upstream="a", started_ns=5, duration_ns=10), Attempt(upstream="b", started_ns=20, duration_ns=30)]
    answered = [(Phase.UPSTREAM, 105), (Phase.GATEWAY, 115), (Phase.UPSTREAM, 120)]
    assert list(phases_of(tries, 100, is_answered=True)) == answered
    assert list(phases_of(tries, 100, is_answered=False)) == [*answered, (Phase.GATEWAY, 150)]


@pytest.mark.parametrize(
    ("said", "wait_s"),
    [
        ("7", 7),
        ("0.5", 0.5),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
        (None, None),
    ],
)
def test_what_retry_after_may_say(said: str | None, wait_s: float | None) -> None:
    """Seconds; anything else is nothing."""
    assert retry_after_s(FakeIncoming(an_upstream("http://x"), 429, Read(b"", 0, 0), said)) == wait_s
