"""Axes: where a value stands between two ends, and which values are written beside it.

Owns: linear and logarithmic scales, their ticks, and the unit an axis is in. Refuses to know: pixels and characters; a
place is a share of the axis, 0 to 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Final

from taximeter.reports.charts import Scale

LEAST, MOST = 1e-9, 1e24
"""What can be drawn at all: nothing that is measured here is smaller, but for zero, or larger."""

_LOG_FROM: Final = 6.0  # times: a log axis for less would have hardly any ticks
_ROOM: Final = 1.06  # times, at both ends of a log axis


class Unit(Enum):
    """What values are in, and what they are shown in: names with how much one of them is, largest first."""

    TIME = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))  # values are nanoseconds
    COUNT = (("", 1.0),)
    LARGE_COUNT = (("billion", 1e9), ("million", 1e6), ("thousand", 1e3), ("", 1.0))
    SHARE = (("%", 0.01),)

    def scale(self, largest: float) -> tuple[str, float]:
        """The unit for an axis that ends at `largest`: the largest of which there are ten, or as many as there are."""
        for name, one in self.value:
            if largest >= (10 * one if self is Unit.TIME else one):
                return name, one
        return self.value[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What an axis is of. Where `is_geometric`, it is logarithmic as long as its values are positive and far enough
    apart. `at` are values that should be written beside it, such as the lengths that were measured."""

    label: str
    unit: Unit = Unit.COUNT
    is_geometric: bool = False
    at: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruler:
    """An axis that knows what stands on it. `ticks` are values with their texts; `title` is its label with the unit."""

    low: float
    high: float
    is_log: bool
    ticks: tuple[tuple[float, str], ...]
    title: str

    def place(self, value: float) -> float:
        """How far along it a value is. What lies outside is at its end."""
        value = min(max(value, self.low), self.high)
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def can_be_drawn(value: float) -> bool:
    """Whether a picture can show it: a finite number that is not negative, and of a size that something here has."""
    return value == 0 or LEAST <= value <= MOST


def ruler(axis: Axis, values: Iterable[float], *, most_ticks: int, is_from_zero: bool = True) -> Ruler:
    """The axis for `values`, all of which can be drawn. A linear one begins at zero, or, without `is_from_zero`, where
    the values do."""
    shown = list(values)
    least, largest = min(shown, default=0.0), max(shown, default=0.0)
    unit, one = axis.unit.scale(largest)
    title = f"{axis.label}, {unit}" if unit else axis.label
    if axis.is_geometric and least > 0 and largest >= least * _LOG_FROM:
        low, high = least / _ROOM, largest * _ROOM
        ticks = _wanted(axis.at, low, high, most_ticks, is_log=True) or _log_ticks(low, high, one, most_ticks)
        is_log = True
    elif axis.at and not is_from_zero and largest > least:
        room = (largest - least) * 0.03
        low, high, is_log = max(0.0, least - room), largest + room, False
        ticks = _wanted(axis.at, low, high, most_ticks, is_log=False)
    else:
        scale = Scale.up_to(Decimal(largest / one))
        low, high, is_log = 0.0, float(scale.end) * one, False
        ticks = [float(scale.step * number) * one for number in range(scale.steps + 1)]
    return Ruler(
        low=low, high=high, is_log=is_log, ticks=tuple((tick, _text(tick / one)) for tick in ticks), title=title
    )


def quantity_text(value: float, unit: Unit) -> str:
    """A value by itself: three digits and its unit."""
    name, one = unit.scale(value * 10 if unit is Unit.TIME else value)
    number = value / one
    text = f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
    if unit is Unit.SHARE:
        return f"{text}%"
    return f"{text} {name}" if name else text


def _text(value: float) -> str:
    if value and (value < 1e-3 or value >= 1e9):
        return f"{value:.3g}"
    return f"{value:.4g}" if value < 100 else f"{value:,.0f}"


def _log_ticks(low: float, high: float, one: float, most: int) -> list[float]:
    """The finest of the usual divisions that leaves no more than `most`."""
    first, last = math.floor(math.log10(low / one)), math.ceil(math.log10(high / one))
    for digits in ((1, 2, 5), (1, 3), (1,)):
        ticks = [digit * 10.0**exponent * one for exponent in range(first, last + 1) for digit in digits]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= most:
            return ticks
    return ticks[:: math.ceil(len(ticks) / most)]


def _wanted(at: Sequence[float], low: float, high: float, most: int, *, is_log: bool) -> list[float]:
    """Those of the wanted ticks that are on the axis and not too near to each other; the last of them always."""
    ends = Ruler(low=low, high=high, is_log=is_log, ticks=(), title="")
    apart = 1 / max(1, most)
    taken: list[float] = []
    for tick in sorted({tick for tick in at if low <= tick <= high}, reverse=True):
        if not taken or ends.place(taken[-1]) - ends.place(tick) >= apart:
            taken.append(tick)
    return taken[::-1]
