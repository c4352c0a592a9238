"""An upstream that is down is left alone, and tried again by one at a time."""

from __future__ import annotations

from taximeter.clock import FakeClock
from taximeter.upstreams.breaker import Breaker


class World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.breaker = Breaker()

    def allows(self) -> bool:
        return self.breaker.allows(self.clock.monotonic_ns())

    def fails(self, times: int = 1) -> None:
        for _ in range(times):
            assert self.allows()
            self.breaker.failed(self.clock.monotonic_ns())

    def rests_s(self) -> float:
        return self.breaker.retry_after_s(self.clock.monotonic_ns())


def test_five_failures_in_a_row_open_it() -> None:
    """A success in between begins the count anew."""
    world = World()
    world.fails(4)
    world.breaker.succeeded()
    world.fails(4)
    assert world.allows()
    world.breaker.failed(world.clock.monotonic_ns())
    assert not world.allows()
    assert world.rests_s() == 5.0


def test_after_its_rest_one_tries_for_all() -> None:
    """Who succeeds closes it; until then nobody else waits for it."""
    world = World()
    world.fails(5)
    world.clock.advance(s=4)
    assert not world.allows()
    assert world.rests_s() == 1.0
    world.clock.advance(s=1)
    assert world.allows()
    assert not world.allows()
    world.breaker.succeeded()
    assert world.allows()
    assert world.allows()
    assert world.rests_s() == 0.0


def test_each_rest_is_twice_as_long_up_to_a_minute() -> None:
    """5, 10, 20, 40, 60, 60 seconds; after a success it begins at 5 again."""
    world = World()
    world.fails(5)
    rests: list[float] = []
    for _ in range(6):
        rests.append(world.rests_s())
        world.clock.advance(s=int(world.rests_s()))
        world.fails()
    assert rests == [5, 10, 20, 40, 60, 60]
    world.clock.advance(s=60)
    assert world.allows()
    world.breaker.succeeded()
    world.fails(5)
    assert world.rests_s() == 5.0


def test_who_goes_away_decides_nothing() -> None:
    """The next one may try."""
    world = World()
    world.fails(5)
    world.clock.advance(s=5)
    assert world.allows()
    world.breaker.undecided()
    assert world.allows()
