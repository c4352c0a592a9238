"""One level of load before it is driven: everything that will be sent, and when.

Owns: what is fixed in advance, its division among several clients, and the call that drives it. Refuses to know: who
the server is, and what the figures say.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from taximeter.clock import SYSTEM_CLOCK, Clock
from taximeter.measurement.asking.asker import Asker
from taximeter.measurement.asking.wire import Question
from taximeter.measurement.load.arrivals import NS_PER_S, Arrivals, replayed_ns
from taximeter.measurement.load.client_health import HealthWatch
from taximeter.measurement.load.closed_loop import run_closed_loop
from taximeter.measurement.load.open_loop import run_open_loop
from taximeter.measurement.load.run import LoadRun
from taximeter.measurement.load.workload import Ask, Workload, repeats

MakeQuestion = Callable[[str, Ask], Question]
"""From the name of a level and what one request is to be, to the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """An open loop has `due_ns`, and `asks` for each of them; a closed one has `starts_ns`, when each of its slots
    begins, and asks without an end."""

    name: str
    is_open_loop: bool
    seed: tuple[int, ...]
    workload: Workload = field(repr=False)
    rate_per_s: float | None = None
    due_ns: tuple[int, ...] = field(default=(), repr=False)
    asks: tuple[Ask, ...] = field(default=(), repr=False)
    most_in_flight: int | None = None
    ramp_ns: int = 0
    starts_ns: tuple[int, ...] = field(default=(), repr=False)
    duration_s: float = 0.0
    patience_s: float = 60.0

    @property
    def value(self) -> float:
        """The rate, or the concurrency."""
        return float(len(self.starts_ns)) if self.rate_per_s is None else self.rate_per_s

    def endless(self) -> Iterator[Ask]:
        """What is asked, in turn. An open loop takes no more than it has."""
        return iter(self.asks) if self.is_open_loop else self.workload.asks(np.random.default_rng(self.seed))


def open_level(
    workload: Workload,
    rate_per_s: float | None,
    *,
    arrivals: Arrivals,
    duration_s: float,
    seed: int,
    most_in_flight: int | None = None,
    patience_s: float = 60.0,
) -> Level:
    """A level at a rate; None is that of the recorded times of a trace. The same seed gives the same schedule and the
    same lengths, so that levels differ in nothing but their rate."""
    ramp_ns = 0
    if workload.recorded_ns is None:
        assert rate_per_s is not None  # noqa: S101 - whoever has no times needs one
        due_ns = arrivals.times_ns(rate_per_s, duration_s, np.random.default_rng([seed, 0]))
        ramp_ns = round(arrivals.ramp_s * NS_PER_S)
    else:
        due_ns = replayed_ns(workload.recorded_ns, rate_per_s)
        due_ns = tuple(at_ns for at_ns in due_ns if at_ns <= duration_s * NS_PER_S)
        if rate_per_s is None:
            rate_per_s = (len(due_ns) - 1) * NS_PER_S / due_ns[-1] if due_ns[-1] else float(len(due_ns))
    return Level(
        name=f"{rate_per_s:.4g}/s",
        is_open_loop=True,
        seed=(seed,),
        workload=workload,
        rate_per_s=rate_per_s,
        due_ns=due_ns,
        asks=tuple(islice(workload.asks(np.random.default_rng([seed, 1])), len(due_ns))),
        most_in_flight=most_in_flight,
        ramp_ns=ramp_ns,
        patience_s=patience_s,
    )


def closed_level(
    workload: Workload,
    concurrency: int,
    *,
    jitter_s: float,
    duration_s: float,
    seed: int,
    patience_s: float = 60.0,
) -> Level:
    """A level of so many slots, which begin at moments drawn from the first `jitter_s`."""
    moments = np.random.default_rng([seed, 2]).uniform(0, jitter_s * NS_PER_S, concurrency)
    return Level(
        name=f"concurrency {concurrency}",
        is_open_loop=False,
        seed=(seed, 3),
        workload=workload,
        starts_ns=tuple(sorted(int(at_ns) for at_ns in moments)),
        duration_s=duration_s,
        patience_s=patience_s,
    )


def divided(level: Level, clients: int) -> list[Level]:
    """The level's parts for so many clients: each has every so-manieth request or slot, and the rate and the cap that
    go with it. Fewer parts where there is not enough for all."""
    things = len(level.due_ns) if level.is_open_loop else len(level.starts_ns)
    parts = max(1, min(clients, things, level.most_in_flight or clients))
    if parts == 1:
        return [level]
    rate, cap = level.rate_per_s, level.most_in_flight
    return [
        replace(
            level,
            seed=(*level.seed, part),
            rate_per_s=None if rate is None else rate * len(level.due_ns[part::parts]) / len(level.due_ns),
            due_ns=level.due_ns[part::parts],
            asks=level.asks[part::parts],
            most_in_flight=None if cap is None else len(range(part, cap, parts)),
            starts_ns=level.starts_ns[part::parts],
        )
        for part in range(parts)
    ]


async def drive(
    level: Level,
    asker: Asker,
    make: MakeQuestion,
    *,
    allows: Callable[[Ask], bool] = lambda _: True,
    stop: asyncio.Event | None = None,
    watch: HealthWatch | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> LoadRun:
    """Send all of it, and read the answers. When `allows` says no for a request, it and all later ones stay away, and
    the run was stopped."""
    is_denied = False
    made: list[Ask] = []

    def questions() -> Iterator[Question]:
        nonlocal is_denied
        for ask in level.endless():
            if not allows(ask):
                is_denied = True
                return
            if ask.is_literal:
                made.append(ask)
            yield make(level.name, ask)

    with _without_pauses():
        if level.rate_per_s is not None:
            run = await run_open_loop(
                asker,
                questions(),
                level.due_ns,
                rate_per_s=level.rate_per_s,
                most_in_flight=level.most_in_flight,
                ramp_ns=level.ramp_ns,
                patience_s=level.patience_s,
                stop=stop,
                watch=watch,
                clock=clock,
            )
        else:
            run = await run_closed_loop(
                asker,
                questions(),
                level.starts_ns,
                duration_s=level.duration_s,
                patience_s=level.patience_s,
                stop=stop,
                watch=watch,
                clock=clock,
            )
    return replace(run, was_stopped=run.was_stopped or is_denied, repeated=repeats(made))


@contextmanager
def _without_pauses() -> Generator[None]:
    """Python's garbage collector would look at all that is open, again and again: with 1,500 streams for a third of a
    second at a time. It does so once before and then not until the level is over."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
