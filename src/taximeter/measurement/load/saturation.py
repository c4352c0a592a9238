"""How much load a server takes before it misses a target.

Owns: which levels are tried, and the bracket that is left. Refuses to know: how one is tried.

A level holds where the share of requests that met the target is at least the target's, and the queue does not grow. By
bisection the highest that held and the lowest that did not come together until they differ by a tenth. Each is a
measurement: where its interval has the target's share inside, the value decides, and the bracket is not certain.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from taximeter.errors import RequestError
from taximeter.measurement.load.point import LoadPoint
from taximeter.measurement.load.slo import Slo

CLOSE_ENOUGH: Final = 1.1
MOST_PROBES: Final = 6


class Held(StrEnum):
    """What a level says of the target."""

    YES = "held"
    NO = "missed"
    PERHAPS = "held, perhaps"
    PERHAPS_NOT = "missed, perhaps"

    @property
    def counts_as_held(self) -> bool:
        return self in (Held.YES, Held.PERHAPS)

    @property
    def is_certain(self) -> bool:
        return self in (Held.YES, Held.NO)


def judged(point: LoadPoint, slo: Slo) -> Held:
    """Whether the target held at a level. A level without a single request in its window did not hold, perhaps."""
    if point.attainment is None:
        return Held.PERHAPS_NOT
    share = point.attainment.share
    low, high = share.interval or (0.0, 1.0)
    if high < slo.share or not point.is_sustained:
        return Held.NO
    if low >= slo.share:
        return Held.YES
    return Held.PERHAPS if share.value >= slo.share else Held.PERHAPS_NOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation:
    """The target holds at `held_at` and is missed at `missed_at`; what lies between was not tried. None is a side that
    was not found within the levels that were allowed. `goodput_per_s` is what meets the target at `held_at`."""

    held_at: float | None
    missed_at: float | None
    is_certain: bool
    goodput_per_s: float | None
    goodput_tokens_per_s: float | None

    def says(self, unit: str) -> str:
        """The bracket in words; `unit` is what a level is in, after its number."""
        doubt = "" if self.is_certain else ", not certainly"
        if self.held_at is None and self.missed_at is None:
            return "no level was measured"
        if self.held_at is None:
            return f"the target is missed at {self.missed_at:.4g}{unit} already{doubt}"
        if self.missed_at is None:
            return f"the target still holds at {self.held_at:.4g}{unit}, the most that was tried{doubt}"
        return f"the target holds at {self.held_at:.4g}{unit} and is missed at {self.missed_at:.4g}{unit}{doubt}"


def bracket(points: Iterable[LoadPoint], slo: Slo) -> Saturation:
    """What levels that were measured say: the lowest that missed, and the highest below it that held. Of levels that
    were measured twice the later counts. A level that missed, perhaps, below one that certainly held, did not miss."""
    by_level = {point.level: point for point in points}
    verdicts = {level: judged(point, slo) for level, point in by_level.items()}
    sure = max((level for level, verdict in verdicts.items() if verdict is Held.YES), default=0.0)
    held: LoadPoint | None = None
    for level in sorted(by_level):
        verdict = verdicts[level]
        if not verdict.counts_as_held and (verdict is Held.NO or level > sure):
            certain = verdict.is_certain and (held is None or judged(held, slo).is_certain)
            return _saturation(held, level, is_certain=certain)
        held = by_level[level]
    return _saturation(held, None, is_certain=held is None or judged(held, slo).is_certain)


def _saturation(held: LoadPoint | None, missed_at: float | None, *, is_certain: bool) -> Saturation:
    good = None if held is None else held.attainment
    return Saturation(
        held_at=None if held is None else held.level,
        missed_at=missed_at,
        is_certain=is_certain,
        goodput_per_s=None if good is None else good.requests_per_s,
        goodput_tokens_per_s=None if good is None else good.tokens_per_s,
    )


async def bisect(
    probe: Callable[[float], Awaitable[LoadPoint | None]],
    measured: Sequence[LoadPoint],
    slo: Slo,
    *,
    whole: bool = False,
    close_enough: float = CLOSE_ENOUGH,
    most_probes: int = MOST_PROBES,
) -> list[LoadPoint]:
    """Measure between the highest level that held and the lowest that did not, until they are close; gives the new
    points. With `whole` levels are whole numbers. A probe that gives None ends it."""
    points = list(measured)
    for _ in range(most_probes):
        found = bracket(points, slo)
        if found.held_at is None or found.missed_at is None or found.missed_at <= found.held_at * close_enough:
            break
        level = math.sqrt(found.held_at * found.missed_at)
        if whole:
            level = float(round(level))
            if not found.held_at < level < found.missed_at:
                break
        point = await probe(level)
        if point is None:
            break
        points.append(point)
    return points[len(measured) :]


def steps(low: float, high: float, *, factor: float = 2.0, whole: bool = False) -> tuple[float, ...]:
    """Levels from `low` to `high`, each about `factor` times the one before; both ends are among them. Raises
    RequestError for a range that is none."""
    if not 0 < low <= high < math.inf:
        raise RequestError(f"{low:g}..{high:g} is no range of loads", param="rate", hint="--rate 2..32")
    count = max(0, math.ceil(math.log(high / low) / math.log(factor) - 1e-9))
    levels = [low * (high / low) ** (number / count) if count else low for number in range(count + 1)]
    return tuple(dict.fromkeys(float(round(level)) for level in levels)) if whole else tuple(levels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """Where more load stops bringing more answers: `level` is the highest that the server kept up with. Of an open loop
    that is answering at least 95 % as many requests as were due; of a closed loop it is the lowest concurrency with 90
    % of the most tokens per second. `is_within` says whether higher levels were measured that it did not keep up
    with."""

    level: float
    is_within: bool
    tokens_per_s: float | None


_KEPT_UP: Final = 0.95
_NEARLY_ALL: Final = 0.9


def knee(points: Sequence[LoadPoint]) -> Knee | None:
    """None where the server kept up with no level, or there is nothing to see it by."""
    ordered = sorted(points, key=lambda point: point.level)
    if not ordered:
        return None
    if ordered[0].is_open_loop:
        kept = [point for point in ordered if _kept_up(point)]
        found = kept[-1] if kept else None
        is_within = found is not None and found is not ordered[-1]
    else:
        most = max((point.output.mean_per_s for point in ordered if point.output), default=0.0)
        near = [point for point in ordered if point.output and point.output.mean_per_s >= _NEARLY_ALL * most > 0]
        found = near[0] if near else None
        is_within = found is not None and found is not ordered[-1]
    if found is None:
        return None
    return Knee(level=found.level, is_within=is_within, tokens_per_s=found.output and found.output.mean_per_s)


def _kept_up(point: LoadPoint) -> bool:
    """Whether requests were answered, later ones as fast as earlier ones, and for long enough to see that."""
    whole = sum(count for outcome, count in point.outcomes.items() if outcome.value == "completed")
    is_seen = point.requests_in_window > 0 and not point.is_too_short
    return is_seen and point.is_sustained and whole >= _KEPT_UP * point.requests_in_window
