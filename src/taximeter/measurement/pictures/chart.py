"""What a picture consists of, before anybody draws it.

Owns: the vocabulary (points, lines, bands, bars, rules; parts of a whole; ratios with intervals) and what can be drawn
of it. Refuses to know: how it is drawn, and what is measured.

Each picture has a `name`, which says what it is of, and `says`, which says what it shows: the finding is the title.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from taximeter.measurement.pictures.axis import Axis, Ruler, Unit, can_be_drawn, quantity_text, ruler

Point = tuple[float, float]

_FAR: Final = 3.0  # times beyond the rest: a rule out there would leave no room for what was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Dots:
    """Samples. `tone` is the number of a colour, here and in what follows."""

    name: str
    points: tuple[Point, ...]
    tone: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Points that belong together in their order. `has_dots` shows each of them: they were measured, and what is
    between was not."""

    name: str
    points: tuple[Point, ...]
    tone: int = 0
    has_dots: bool = False
    is_dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """An interval at each x: (x, low, high)."""

    name: str
    edges: tuple[tuple[float, float, float], ...]
    tone: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """A histogram: (from x, to x, y)."""

    name: str
    bars: tuple[tuple[float, float, float], ...]
    tone: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A line across the whole picture, at an x or at a y: a target, a limit, a knee."""

    name: str
    x: float | None = None
    y: float | None = None
    tone: int = 3

    def __post_init__(self) -> None:
        if (self.x is None) == (self.y is None):
            raise ValueError("a rule is at an x or at a y")


Mark = Dots | Line | Band | Bars | Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Marks between two axes."""

    name: str
    says: str
    x: Axis
    y: Axis
    marks: tuple[Mark, ...]
    notes: tuple[str, ...] = ()

    @property
    def series(self) -> tuple[Mark, ...]:
        """What a legend names: everything but rules, which have their names beside them."""
        return tuple(mark for mark in self.marks if not isinstance(mark, Rule) and mark.name)

    def drawable(self) -> Chart:
        """Without what cannot be drawn, and with a note that says how many points that are."""
        kept: list[Mark] = []
        left_out = 0
        for mark in self.marks:
            cleaned, dropped = _cleaned(mark)
            left_out += dropped
            if cleaned is not None:
                kept.append(cleaned)
        notes = self.notes
        if left_out:
            notes = (
                *notes,
                f"{left_out:,} values are left out, as no finite, positive numbers of a sensible size",
            )
        return Chart(name=self.name, says=self.says, x=self.x, y=self.y, marks=tuple(kept), notes=notes)

    def framed(self, *, most_x: int, most_y: int) -> tuple[Chart, Ruler, Ruler]:
        """What can be drawn, and its axes with at most so many ticks. Rules far away from the rest become notes."""
        chart = self.drawable()
        xs = [x for mark in chart.marks for x in _xs(mark)]
        ys = [y for mark in chart.marks for y in _ys(mark)]
        marks: list[Mark] = []
        notes = list(chart.notes)
        for mark in chart.marks:
            if isinstance(mark, Rule):
                at, values, axis = (mark.x, xs, chart.x) if mark.y is None else (mark.y, ys, chart.y)
                if at is not None and values and not min(values) / _FAR <= at <= max(values) * _FAR:
                    notes.append(f"{mark.name}, {quantity_text(at, axis.unit)}, is far outside of this picture")
                    continue
                values.append(at or 0.0)
            marks.append(mark)
        chart = replace(chart, marks=tuple(marks), notes=tuple(notes))
        is_histogram = any(isinstance(mark, Bars) for mark in marks)
        across = ruler(chart.x, xs, most_ticks=most_x, is_from_zero=is_histogram)
        return chart, across, ruler(chart.y, ys, most_ticks=most_y)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What each of several wholes consists of. `parts` are names with their tones, `rows` labels with an amount for
    each part; a part that is unknown is None, and its row says so."""

    name: str
    says: str
    unit: Unit
    parts: tuple[tuple[str, int], ...]
    rows: tuple[tuple[str, tuple[float | None, ...]], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if any(len(amounts) != len(self.parts) for _, amounts in self.rows):
            raise ValueError("each row has an amount, or None, for each part")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """One ratio with its interval; `low` and `high` are None where the samples are too few to say."""

    label: str
    value: float
    low: float | None
    high: float | None
    tone: int = 0

    @property
    def is_drawable(self) -> bool:
        return all(end is None or (can_be_drawn(end) and end > 0) for end in (self.value, self.low, self.high))

    @property
    def text(self) -> str:
        """In words, with its interval."""
        if self.low is None or self.high is None:
            return f"{self.label}: {self.value:.3g}× (no interval: too few samples)"
        return f"{self.label}: {self.value:.3g}× ({self.low:.3g} to {self.high:.3g})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Ratios around 1, which is no difference. `left` and `right` say what is on either side of it."""

    name: str
    says: str
    left: str
    right: str
    rows: tuple[Ratio, ...]
    notes: tuple[str, ...] = ()

    def ruler(self, *, most_ticks: int) -> Ruler:
        """The logarithmic axis of the ratios: 1 is always on it, and not at its very end."""
        ends = [
            end for row in self.rows if row.is_drawable for end in (row.value, row.low, row.high) if end is not None
        ]
        low, high = min([*ends, 1 / 1.25]), max([*ends, 1.25])
        room = (high / low) ** 0.04
        low, high = low / room, high * room
        # From the middle outwards, so that both sides are divided alike.
        wanted = [0.9, 1.1, 0.8, 1.25, 0.67, 1.5, 0.5, 2.0] if high / low < 12 else [0.5, 2.0, 0.2, 5.0]
        wanted += [10.0**exponent for far in range(1, 25) for exponent in (far, -far)]
        bare = Ruler(low=low, high=high, is_log=True, ticks=(), title="")
        taken = [1.0]
        for tick in wanted:
            if low <= tick <= high and all(abs(bare.place(tick) - bare.place(one)) >= 1 / most_ticks for one in taken):
                taken.append(tick)
        return replace(bare, ticks=tuple((tick, f"{tick:g}×") for tick in sorted(taken)))


Picture = Chart | Split | Ratios


def known(amounts: Iterable[float | None]) -> list[float]:
    """Amounts that can be drawn; what is not known, or cannot, is 0 wide."""
    return [amount if amount is not None and can_be_drawn(amount) else 0.0 for amount in amounts]


def visible(text: str) -> str:
    """Text that anybody may be shown: what is no letter, a terminal would obey or a document may not hold."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _xs(mark: Mark) -> list[float]:
    match mark:
        case Rule():
            return []  # see `framed`
        case Band(edges=edges):
            return [edge[0] for edge in edges]
        case Bars(bars=bars):
            return [x for bar in bars for x in bar[:2]]
        case Dots(points=points) | Line(points=points):
            return [point[0] for point in points]


def _ys(mark: Mark) -> list[float]:
    match mark:
        case Rule():
            return []
        case Band(edges=edges):
            return [y for edge in edges for y in edge[1:]]
        case Bars(bars=bars):
            return [bar[2] for bar in bars]
        case Dots(points=points) | Line(points=points):
            return [point[1] for point in points]


def _cleaned(mark: Mark) -> tuple[Mark | None, int]:
    """The mark without what cannot be drawn, None where nothing is left, and how many values that were."""
    match mark:
        case Rule(x=x, y=y):
            return (mark, 0) if all(value is None or can_be_drawn(value) for value in (x, y)) else (None, 1)
        case Band(edges=edges):
            kept = tuple(edge for edge in edges if all(map(can_be_drawn, edge)))
            made: Mark = Band(name=mark.name, edges=kept, tone=mark.tone)
            return (made if len(kept) > 1 else None), len(edges) - len(kept)
        case Bars(bars=bars):
            kept = tuple(bar for bar in bars if all(map(can_be_drawn, bar)))
            return (Bars(name=mark.name, bars=kept, tone=mark.tone) if kept else None), len(bars) - len(kept)
        case Dots(points=points):
            shown = _shown(points)
            return (Dots(name=mark.name, points=shown, tone=mark.tone) if shown else None), len(points) - len(shown)
        case Line(points=points):
            shown = _shown(points)
            line = Line(name=mark.name, points=shown, tone=mark.tone, has_dots=mark.has_dots, is_dashed=mark.is_dashed)
            return (line if shown else None), len(points) - len(shown)


def _shown(points: tuple[Point, ...]) -> tuple[Point, ...]:
    return tuple(point for point in points if can_be_drawn(point[0]) and can_be_drawn(point[1]))
