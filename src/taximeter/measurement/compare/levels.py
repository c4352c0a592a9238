"""Levels of load for several servers in turn, so that each has a whole curve, made in the same minutes.

Owns: whose turn it is, and what the stretches of one level come to. Refuses to know: how a level is sent, and what an
hour costs.

Each level is measured once in each round, for everybody, in a random order. A level's throughput is the mean of its
stretches, and its interval is by how much they differ: what the machine does from one minute to the next is in it.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taximeter.measurement import estimates
from taximeter.measurement.asking.observation import Observation
from taximeter.measurement.compare.per_dollar import OperatingPoint
from taximeter.measurement.load.run import LoadRun
from taximeter.measurement.load.slo import Slo
from taximeter.measurement.load.steady import in_window, throughput, window_of

if TYPE_CHECKING:
    from numpy.random import Generator

DriveStretch = Callable[[int], Awaitable[LoadRun]]
"""Keeps so many requests under way for one stretch of time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Every concurrency of `levels`, `rounds` times for everybody."""

    levels: tuple[int, ...]
    rounds: int
    seed: int

    def order(self, labels: Sequence[str]) -> list[tuple[str, int]]:
        """Whose turn it is, and at which level: in each round levels come in a random order, and at each the sides."""
        chance = random.Random(self.seed)  # noqa: S311 - an order, not a key
        planned: list[tuple[str, int]] = []
        for _ in range(self.rounds):
            for level in chance.sample(self.levels, len(self.levels)):
                planned += [(label, level) for label in chance.sample(list(labels), len(labels))]
        return planned


async def run_turns(
    drivers: Mapping[str, DriveStretch],
    turns: Turns,
    *,
    on_run: Callable[[str, int, LoadRun], object],
    on_progress: Callable[[int, int], object] = lambda _done, _all: None,
) -> bool:
    """Let each have its turns; each run is told as it ends, so that cancelling loses one at most. Gives whether that
    was all: it ends with a run that was stopped."""
    order = turns.order(list(drivers))
    for number, (label, level) in enumerate(order):
        run = await drivers[label](level)
        on_run(label, level, run)
        if run.was_stopped:
            return False
        on_progress(number + 1, len(order))
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """What one side's runs come to. `points` are those of its levels that were under their load at least once, and
    `observations` their requests; `spoilt` says how many stretches never were, by level."""

    points: tuple[OperatingPoint, ...]
    observations: tuple[Observation, ...]
    spoilt: Mapping[int, int]


def levels_of(runs: Mapping[int, Sequence[LoadRun]], *, slo: Slo | None, rng: Generator) -> Levels:
    """The runs of one side by their level, put together."""
    points: list[OperatingPoint] = []
    kept: list[Observation] = []
    spoilt: dict[int, int] = {}
    for level, many in sorted(runs.items()):
        windows = [(run, window) for run in many if (window := window_of(run)) is not None]
        if len(windows) < len(many):
            spoilt[level] = len(many) - len(windows)
        seen = [each for run, window in windows for each in in_window(run, window)]
        kept += seen
        rates = [throughput(run.observations, window, rng=rng).mean_per_s for run, window in windows]
        itls = [float(itl) for each in seen if each.is_complete and (itl := each.itl_ns)]
        if not itls or not sum(rates):
            continue
        tokens, itl = estimates.mean(rates, rng=rng), estimates.median(itls, rng=rng)
        points.append(
            OperatingPoint(
                level=level,
                tokens_per_s=tokens.value,
                itl_ns=itl.value,
                tokens_interval=tokens.interval,
                itl_interval=itl.interval,
                meets_target=None if slo is None else sum(map(slo.meets, seen)) >= slo.share * len(seen),
            )
        )
    return Levels(points=tuple(points), observations=tuple(kept), spoilt=spoilt)
