"""A whole study of load: levels one after the other, and what they say together.

Owns: which levels are measured, in which order, and when that ends. Refuses to know: how a level is driven, who the
server is, and how results are shown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from numpy.random import Generator

from taximeter.errors import RequestError
from taximeter.measurement.asking.observation import Observation
from taximeter.measurement.load.point import LoadPoint, load_point
from taximeter.measurement.load.run import LoadRun, Trouble
from taximeter.measurement.load.saturation import Held, Knee, Saturation, bisect, bracket, judged, knee
from taximeter.measurement.load.slo import Slo
from taximeter.measurement.load.steady import in_window, window_of

DriveLevel = Callable[[float], Awaitable[LoadRun | None]]
"""Drives one level, a rate or a concurrency. None where nothing more may be sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What was measured, level by level, upwards. `is_complete` says whether all that was planned was; `says` is the
    finding, in words. `observations` are the requests of each level's window."""

    is_open_loop: bool
    points: tuple[LoadPoint, ...]
    knee: Knee | None
    saturation: Saturation | None
    slo: Slo | None
    says: str
    is_complete: bool = True
    observations: tuple[Observation, ...] = field(default=(), repr=False)

    @property
    def unit(self) -> str:
        """What a level is in, after its number."""
        return " requests/s" if self.is_open_loop else " at a time"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Each trouble once: at which levels it was, and what it was at the last of them."""
        found: dict[Trouble, list[tuple[float, str]]] = {}
        for point in self.points:
            for flag in point.flags:
                found.setdefault(flag.trouble, []).append((point.level, flag.says))
        told: list[str] = []
        for trouble, of in found.items():
            *others, last = dict.fromkeys(f"{level:.4g}" for level, _ in of)
            at = f"{', '.join(others)} and {last}" if others else last
            which = f"at {last}, {of[-1][1]}" if others else of[-1][1]
            told.append(f"{trouble} at {at}{self.unit}: {which}")
        return tuple(told)


async def measure(
    drive: DriveLevel,
    levels: Sequence[float],
    *,
    is_open_loop: bool,
    slo: Slo | None,
    rng: Generator,
    until_it_bends: bool = False,
    on_point: Callable[[LoadPoint], object] = lambda _: None,
) -> Load:
    """Measure each of `levels`, and with a target what lies between the last that held and the first that did not. With
    `until_it_bends` no higher level is tried once the server does not keep up with one, or misses the target. A level
    that is stopped is the last."""
    points: list[LoadPoint] = []
    runs: list[LoadRun] = []

    async def probe(level: float) -> LoadPoint | None:
        run = None if runs and runs[-1].was_stopped else await drive(level)
        if run is None or not run.observations:
            return None
        point = load_point(run, slo=slo, rng=rng)
        runs.append(run)
        points.append(point)
        on_point(point)
        return point

    is_complete = True
    for level in levels:
        point = await probe(level)
        if point is None:
            is_complete = False
            break
        is_missed = slo is not None and judged(point, slo) is Held.NO
        if until_it_bends and (is_missed or has_bent(points)):
            break
    if slo is not None and is_complete:
        await bisect(probe, list(points), slo, whole=not is_open_loop)
    is_complete = is_complete and not any(run.was_stopped for run in runs)
    return concluded(runs, points, is_open_loop=is_open_loop, slo=slo, is_complete=is_complete)


def has_bent(points: Sequence[LoadPoint]) -> bool:
    """Whether the highest level measured is beyond the knee."""
    found = knee(points)
    return bool(points) and (found is None or found.is_within)


def concluded(
    runs: Sequence[LoadRun], points: Sequence[LoadPoint], *, is_open_loop: bool, slo: Slo | None, is_complete: bool
) -> Load:
    """The study, of levels in any order."""
    ordered = sorted(points, key=lambda point: point.level)
    bend = knee(ordered)
    limit = None if slo is None or not ordered else bracket(ordered, slo)
    load = Load(
        is_open_loop=is_open_loop,
        points=tuple(ordered),
        knee=bend,
        saturation=limit,
        slo=slo,
        says="",
        is_complete=is_complete,
        observations=tuple(seen for run in sorted(runs, key=lambda run: run.level) for seen in _measured(run)),
    )
    return replace(load, says=finding(load))


def _measured(run: LoadRun) -> Sequence[Observation]:
    window = window_of(run)
    return run.observations if window is None else in_window(run, window)


def finding(load: Load) -> str:
    """In a sentence or two: how much the server takes, and by what one sees it."""
    if not load.points:
        return "nothing was measured"
    parts: list[str] = []
    if load.saturation is not None:
        parts.append(f"{load.saturation.says(load.unit)} ({load.slo})")
        if load.saturation.goodput_per_s is not None:
            tokens = load.saturation.goodput_tokens_per_s or 0.0
            parts.append(f"goodput there is {load.saturation.goodput_per_s:.3g} requests/s and {tokens:,.0f} tokens/s")
    bend = load.knee
    if bend is None:
        parts.append(f"the server did not keep up with {load.points[0].level:.4g}{load.unit}, the least that was tried")
    elif load.is_open_loop:
        more = "and not with the next level" if bend.is_within else "the most that was tried"
        parts.append(f"the server kept up with {bend.level:.4g}{load.unit}, {more}")
    else:
        rate = "" if bend.tokens_per_s is None else f" ({bend.tokens_per_s:,.0f} tokens/s)"
        more = "more bring less than a tenth more" if bend.is_within else "the most that was tried"
        parts.append(f"capacity: {bend.level:.4g}{load.unit} are enough for nearly all tokens{rate}, {more}")
    return "; ".join(parts)


def auto_levels(latency_s: float, *, is_open_loop: bool) -> tuple[float, ...]:
    """Levels for who asked for none, around what one request at a time comes to: from half of that rate upwards."""
    if not latency_s > 0:
        raise RequestError(
            "the first requests took no time: say which levels to try", param="rate", hint="--rate 2..32"
        )
    if not is_open_loop:
        return tuple(float(2**power) for power in range(7))
    return tuple(float(f"{0.5 / latency_s * 2**power:.2g}") for power in range(8))
