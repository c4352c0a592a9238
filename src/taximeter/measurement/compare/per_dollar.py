"""What an hour's rent buys: throughput per machine-dollar against how fast each user is served, as a whole curve.

Owns: the curve of one machine, its front, where two curves cross, and what that says at a latency target. Refuses to
know: how the points were measured.

Interactivity is 1 / ITL: the tokens per second that one user sees. More users at once mean more tokens per dollar, and
fewer for each of them; so there is no one figure, and a lead at one interactivity may be none at another. Between two
measured points a straight line is assumed; beyond the quickest one nothing is.

Points have intervals on both sides. A lead is certain where the one's curve through the worst ends of its intervals is
above the other's through the best ends of its own: that asks more than 95 % does, and never says too much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from taximeter.measurement.pictures.axis import Axis, Unit, quantity_text
from taximeter.measurement.pictures.chart import Chart, Dots, Line, Mark, Rule
from taximeter.records import MachineRate

TOO_CLOSE: Final = 1.1
"""Times: a lead of less is not called one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """One level of load at which a machine was measured: output tokens per second of all users together, and the median
    ITL in nanoseconds, each with its 95 % interval; None is not known. `meets_target` is None without a target."""

    level: float
    tokens_per_s: float
    itl_ns: float
    tokens_interval: tuple[float, float] | None = None
    itl_interval: tuple[float, float] | None = None
    meets_target: bool | None = None

    def __post_init__(self) -> None:
        if not (0 < self.tokens_per_s < math.inf and 0 < self.itl_ns < math.inf):
            raise ValueError("throughput and ITL are finite numbers above 0")

    def at_end(self, end: int) -> OperatingPoint | None:
        """The point at the worse ends of both intervals (0), or at the better ones (1); None where they are not known,
        or where it would be none."""
        if self.tokens_interval is None or self.itl_interval is None:
            return None
        tokens_per_s, itl_ns = self.tokens_interval[end], self.itl_interval[1 - end]
        if not (tokens_per_s > 0 and itl_ns > 0):
            return None
        return replace(self, tokens_per_s=tokens_per_s, itl_ns=itl_ns)

    @property
    def interactivity(self) -> float:
        """Tokens per second for one user."""
        return 1e9 / self.itl_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One machine at its rate, at all levels that were measured."""

    name: str
    rate: MachineRate
    points: tuple[OperatingPoint, ...]

    def per_dollar(self, point: OperatingPoint) -> float:
        """Output tokens for a dollar of machine time; infinite where an hour costs nothing."""
        rate = float(self.rate.amount_per_hour)
        return point.tokens_per_s * 3600 / rate if rate else math.inf

    @property
    def front(self) -> tuple[tuple[float, float], ...]:
        """The points that no other beats at both, as (interactivity, tokens per dollar), from slow to quick users."""
        best = 0.0
        kept: list[tuple[float, float]] = []
        ordered = sorted(self.points, key=lambda point: (point.interactivity, self.per_dollar(point)), reverse=True)
        for point in ordered:
            if (dollars := self.per_dollar(point)) > best:
                best = dollars
                kept.append((point.interactivity, dollars))
        return tuple(reversed(kept))

    def at(self, interactivity: float) -> float | None:
        """Tokens per dollar where each user is to have at least so many tokens per second; None where no measured point
        is that quick."""
        front = self.front
        if not front or interactivity > front[-1][0]:
            return None
        if interactivity <= front[0][0]:
            return front[0][1]
        for (slow, more), (quick, less) in pairwise(front):
            if interactivity <= quick:
                return more + (less - more) * (interactivity - slow) / (quick - slow)
        return front[-1][1]

    @property
    def least(self) -> Curve:
        """What it gives at least. A point whose interval is not known promises nothing."""
        ends = [end for point in self.points if (end := point.at_end(0)) is not None]
        return replace(self, points=tuple(ends))

    @property
    def most(self) -> Curve | None:
        """What it may give at most; None where nobody can say, as the interval of a point is not known."""
        ends = [point.at_end(1) for point in self.points]
        known = tuple(end for end in ends if end is not None)
        return replace(self, points=known) if len(known) == len(ends) else None

    def surely_leads(self, other: Curve, interactivity: float) -> bool:
        """Whether it gives more for a dollar at so many tokens per second for each user, whatever intervals hide."""
        ours = self.least.at(interactivity)
        if ours is None or other.most is None:
            return False
        theirs = other.most.at(interactivity)
        return theirs is None or ours > theirs

    def best_within_target(self) -> OperatingPoint | None:
        """The measured point that gives most tokens per dollar of those that meet the target; None where none does."""
        meeting = [point for point in self.points if point.meets_target]
        return max(meeting, key=self.per_dollar, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Where the lead changes: `below` leads where users are slower than `interactivity`, `above` where quicker."""

    interactivity: float
    below: str
    above: str


def crossings(one: Curve, other: Curve) -> tuple[Crossing, ...]:
    """Where one's front passes the other's, from slow to quick users, where both were measured."""
    if not one.front or not other.front:
        return ()
    end = min(one.front[-1][0], other.front[-1][0])
    places = sorted({x for x, _ in (*one.front, *other.front) if x <= end})
    gaps = [(x, _gap(one, other, x)) for x in places]
    found: list[Crossing] = []
    earlier: tuple[float, float] | None = None
    for x, gap in gaps:
        if gap == 0:
            continue
        if earlier is not None and (gap > 0) is not (earlier[1] > 0):
            before, was = earlier
            at = before + (x - before) * was / (was - gap)
            below, above = (one.name, other.name) if was > 0 else (other.name, one.name)
            found.append(Crossing(interactivity=at, below=below, above=above))
        earlier = (x, gap)
    return tuple(found)


def _gap(one: Curve, other: Curve, interactivity: float) -> float:
    ours, theirs = one.at(interactivity), other.at(interactivity)
    assert ours is not None  # noqa: S101 - only asked where both were measured
    assert theirs is not None  # noqa: S101
    return 0.0 if ours == theirs else ours - theirs


def says(curves: Sequence[Curve], *, target: str | None = None, target_itl_ns: float | None = None) -> tuple[str, ...]:
    """What the curves show, in sentences: at the target where one is stated, then where the lead changes, or that it
    does not."""
    told: list[str] = []
    if target is not None:
        told.append(_at_target(curves, target))
    elif target_itl_ns is not None:
        told.append(_at_interactivity(curves, 1e9 / target_itl_ns))
    for number, one in enumerate(curves):
        told += [_lead(one, other) for other in curves[number + 1 :]]
    return tuple(told)


def _at_target(curves: Sequence[Curve], target: str) -> str:
    found = {curve.name: (curve, curve.best_within_target()) for curve in curves}
    best = {name: curve.per_dollar(point) for name, (curve, point) in found.items() if point is not None}

    def is_sure(one: str, other: str) -> bool:
        (ahead, mine), (behind, theirs) = found[one], found[other]
        least, most = (None if point is None else point.at_end(end) for point, end in ((mine, 0), (theirs, 1)))
        return least is not None and most is not None and ahead.per_dollar(least) > behind.per_dollar(most)

    ranking = _ranking(best, [curve.name for curve in curves], "meets it at no level measured", is_sure)
    return f"Within {target}: {ranking}"


def _at_interactivity(curves: Sequence[Curve], interactivity: float) -> str:
    best = {curve.name: dollars for curve in curves if (dollars := curve.at(interactivity)) is not None}
    by_name = {curve.name: curve for curve in curves}
    ranking = _ranking(
        best,
        list(by_name),
        "is never that quick",
        lambda one, other: by_name[one].surely_leads(by_name[other], interactivity),
    )
    return f"At {_speed(interactivity)} for each user: {ranking}"


def _ranking(
    best: Mapping[str, float], names: Sequence[str], otherwise: str, is_sure: Callable[[str, str], bool]
) -> str:
    ordered = sorted(best, key=lambda name: best[name], reverse=True)
    parts: list[str] = []
    if ordered:
        first = ordered[0]
        parts.append(f"{first} gives {_millions(best[first])} output tokens per machine-dollar")
        for name in ordered[1:]:
            if best[first] < best[name] * TOO_CLOSE:
                parts.append(f"{name} {_millions(best[name])}, too close to call")
            else:
                doubt = "" if is_sure(first, name) else ", not certainly"
                times = _times(best[first], best[name])
                parts.append(f"{times} times as many as {name} ({_millions(best[name])}){doubt}")
    parts += [f"{name} {otherwise}" for name in names if name not in best]
    return "; ".join(parts)


def _lead(one: Curve, other: Curve) -> str:
    if not one.front or not other.front:
        bare = one.name if not one.front else other.name
        return f"{bare} has no point with a throughput and an ITL: there is no curve to compare"
    shared = min(one.front[-1][0], other.front[-1][0])
    beyond = "" if one.front[-1][0] == other.front[-1][0] else _beyond(one, other)
    places = [x for x, _ in (*one.front, *other.front) if x <= shared]
    ratios = [_ratio(one, other, x) for x in places]
    if all(1 / TOO_CLOSE < ratio < TOO_CLOSE for ratio in ratios):
        return f"{one.name} and {other.name} are too close to call wherever both were measured{beyond}"
    changes = crossings(one, other)
    if changes:
        first = changes[0]
        told = f"{first.below} leads up to about {_speed(first.interactivity)} for each user"
        for change in changes:
            told += f", {change.above} from there on"
            if change is not changes[-1]:
                following = changes[changes.index(change) + 1]
                told += f" up to about {_speed(following.interactivity)}"
        doubt = _doubt(one, other, places)
        return f"The lead changes: {told}{beyond}{doubt}. A lead at one interactivity is none at another"
    ahead, behind = (one, other) if max(ratios) >= TOO_CLOSE or min(ratios) > 1 else (other, one)
    ratios = ratios if ahead is one else [1 / ratio for ratio in ratios]
    span = (
        f"{min(ratios):.2g}"
        if f"{min(ratios):.2g}" == f"{max(ratios):.2g}"
        else f"{min(ratios):.2g} to {max(ratios):.2g}"
    )
    return (
        f"{ahead.name} gives {span} times as many tokens per dollar as {behind.name} wherever both were measured,"
        f" up to {_speed(shared)} for each user{beyond}{_doubt(one, other, places)}"
    )


def _doubt(one: Curve, other: Curve, places: Sequence[float]) -> str:
    """What is not certain of a lead, in words; nothing where it is certain all along. How quick the quickest point is
    has an interval too: a place that is only within it proves nothing."""
    ends = [curve.least.front for curve in (one, other)]
    surely_measured = min((front[-1][0] if front else 0.0) for front in ends)
    places = [x for x in places if x <= surely_measured]
    sure = [x for x in places if one.surely_leads(other, x) or other.surely_leads(one, x)]
    if sure and len(sure) == len(places):
        return ""
    if not sure:
        return "; none of it is certain: the intervals of their levels overlap, or are not known"
    at = ", ".join(_speed(x) for x in sorted(set(sure)))
    return f"; it is certain only at {at}"


def _beyond(one: Curve, other: Curve) -> str:
    quicker, slower = (one, other) if one.front[-1][0] > other.front[-1][0] else (other, one)
    return f"; beyond {_speed(slower.front[-1][0])} only {quicker.name} was measured"


def _ratio(one: Curve, other: Curve, interactivity: float) -> float:
    ours, theirs = one.at(interactivity), other.at(interactivity)
    if ours is None or theirs is None or ours == theirs:
        return 1.0
    return ours / theirs


def per_dollar_chart(
    curves: Sequence[Curve], *, target: str | None = None, target_itl_ns: float | None = None
) -> Chart:
    """Every measured point, and each machine's front as a line."""
    told = says(curves, target=target, target_itl_ns=target_itl_ns)
    marks: list[Mark] = []
    for tone, curve in enumerate(curves):
        marks.append(Line(name=curve.name, points=curve.front, tone=tone, has_dots=True))
        beaten = _beaten(curve)
        if beaten:
            marks.append(Dots(name=f"{curve.name}, beaten by its own other points", points=beaten, tone=tone))
    if target_itl_ns is not None:
        name = f"ITL {quantity_text(target_itl_ns, Unit.TIME)}: target met to the right"
        marks.append(Rule(name=name, x=1e9 / target_itl_ns))
    rates = ", ".join(f"{curve.name} ${curve.rate.amount_per_hour:f}/h" for curve in curves)
    return Chart(
        name="Output tokens per machine-dollar against tokens per second for each user (1 / median ITL)",
        says=told[0] if told else "One machine: nothing to compare with",
        x=Axis(label="tokens/s for each user", is_geometric=True),
        y=Axis(label="output tokens per machine-dollar", unit=Unit.LARGE_COUNT, is_geometric=True),
        marks=tuple(marks),
        notes=(f"Machine rates: {rates}. Lines join measured points; between them they are assumed.", *told[1:]),
    )


def _beaten(curve: Curve) -> tuple[tuple[float, float], ...]:
    on_front = set(curve.front)
    all_points: Iterable[tuple[float, float]] = ((p.interactivity, curve.per_dollar(p)) for p in curve.points)
    return tuple(point for point in all_points if point not in on_front)


def _millions(amount: float) -> str:
    return "endless" if amount == math.inf else quantity_text(amount, Unit.LARGE_COUNT)


def _times(more: float, less: float) -> str:
    return "endlessly many" if more == math.inf else f"{more / less:.2g}"


def _speed(interactivity: float) -> str:
    return f"{interactivity:.3g} tokens/s"
