"""Pictures as characters, for a terminal of any width.

Owns: what is drawn with which character, and what is left out where there is no room. Refuses to know: where they are
printed. Lines are `rich` texts, so that a file gets them without colours; series differ by their marks and words too.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from taximeter.figures import shared_out
from taximeter.measurement.pictures.axis import Ruler, quantity_text
from taximeter.measurement.pictures.chart import (
    Band,
    Bars,
    Chart,
    Dots,
    Line,
    Mark,
    Picture,
    Ratios,
    Rule,
    Split,
    known,
    visible,
)

_WIDEST: Final = 100
_NARROWEST: Final = 32
_AT_THE_END: Final = 0.93  # of the axis
_TONES: Final = ("blue", "cyan", "yellow", "red", "magenta", "white", "bright_black")


@dataclass(frozen=True, slots=True, kw_only=True)
class Letters:
    """What there is to draw with."""

    dots: str  # one sample in a place, several, many
    marks: str  # of the series, by their tone
    parts: str  # of a whole
    up: str
    across: str
    corner: str
    notch: str
    rule_across: str
    rule_up: str
    heights: str  # of a bar, in eighths; or full ones only
    band: str
    interval: tuple[str, str, str]
    has_braille: bool


UNICODE: Final = Letters(
    dots="·•●",
    marks="ox+*#%@",
    parts="█▓▒░▚▞■",
    up="│",
    across="─",
    corner="└",
    notch="┴",
    rule_across="╌",
    rule_up="╎",
    heights=" ▁▂▃▄▅▆▇█",
    band="░",
    interval=("├", "─", "┤"),
    has_braille=True,
)
ASCII: Final = Letters(
    dots=".oO",
    marks="ox+*#%@",
    parts="#=:.+*%",
    up="|",
    across="-",
    corner="+",
    notch="+",
    rule_across="-",
    rule_up=":",
    heights=" ########",
    band=" ",
    interval=("[", "-", "]"),
    has_braille=False,
)


def plot(picture: Picture, width: int, *, letters: Letters = UNICODE, height: int = 12) -> list[Text]:
    """All lines of the picture, none of them wider than `width` as long as that is at least 32; over 100 is not used.
    `height` is that of the room between the axes of a chart."""
    width = max(_NARROWEST, min(width, _WIDEST))
    lines = [Text(line, style="bold") for line in _wrapped(picture.says, width)]
    match picture:
        case Chart():
            chart, drawn = _chart(picture, width, height, letters)
            lines, notes = lines + drawn, chart.notes
        case Split():
            lines, notes = lines + _split(picture, width, letters), picture.notes
        case Ratios():
            lines, notes = lines + _ratios(picture, width, letters), picture.notes
    return lines + [Text(line, style="dim") for note in notes for line in _wrapped(note, width)]


@dataclass(slots=True)
class _Canvas:
    """Places by column and row, (0, 0) is at the top left; later marks are over earlier ones."""

    columns: int
    rows: int
    letters: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    tones: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    fine: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])  # dots of a braille letter

    def put(self, column: int, row: int, letter: str, tone: int) -> None:
        if 0 <= column < self.columns and 0 <= row < self.rows:
            self.letters[column, row] = letter
            self.tones[column, row] = tone
            self.fine.pop((column, row), None)

    def put_fine(self, x: int, y: int, tone: int) -> None:
        """One dot of a raster of 2 by 4 in each place."""
        place = (x // 2, y // 4)
        if not (0 <= place[0] < self.columns and 0 <= place[1] < self.rows):
            return
        bit = (0x01, 0x02, 0x04, 0x40)[y % 4] if x % 2 == 0 else (0x08, 0x10, 0x20, 0x80)[y % 4]
        self.fine[place] = self.fine.get(place, 0) | bit
        self.letters[place] = chr(0x2800 + self.fine[place])
        self.tones[place] = tone

    def write(self, column: int, row: int, text: str, tone: int) -> None:
        for number, letter in enumerate(text):
            self.put(column + number, row, letter, tone)

    def is_free(self, column: int, row: int, width: int) -> bool:
        return all((column + number, row) not in self.letters for number in range(width))

    def line(self, row: int) -> Text:
        text = Text()
        for column in range(self.columns):
            letter = self.letters.get((column, row), " ")
            tone = self.tones.get((column, row))
            text.append(letter, style=None if tone is None else _tone(tone))
        return text


def _tone(tone: int) -> str:
    return _TONES[tone % len(_TONES)]


def _chart(chart: Chart, width: int, height: int, letters: Letters) -> tuple[Chart, list[Text]]:
    chart, across, up = chart.framed(most_x=max(3, width // 13), most_y=5)
    left = max((cell_len(text) for _, text in up.ticks), default=1) + 1
    ends = {id(mark): _end_of(mark) for mark in chart.series if isinstance(mark, Line) and len(chart.series) > 1}
    right = max((cell_len(end) for end in ends.values()), default=-1) + 1
    canvas = _Canvas(columns=max(10, width - left - 1 - right), rows=height)
    for mark in sorted(chart.marks, key=_depth):
        _draw(mark, canvas, across, up, letters)
    for mark in chart.marks:
        if isinstance(mark, Line) and mark.has_dots:  # over all lines, which would hide them
            letter = letters.marks[mark.tone % len(letters.marks)]
            for x, y in mark.points:
                canvas.put(_column(canvas, across, x), _row(canvas, up, y), letter, mark.tone)
    titles = [Text(_cut(_title(up), width), style="dim")]
    told = {min(height - 1, max(0, round((1 - up.place(tick)) * (height - 1)))): text for tick, text in up.ticks}
    taken: dict[int, tuple[str, int]] = {}
    for mark in chart.series:
        # A name behind a line that ends in the middle would seem to be another's.
        if isinstance(mark, Line) and ends.get(id(mark)) and across.place(mark.points[-1][0]) > _AT_THE_END:
            row = _row(canvas, up, mark.points[-1][1])
            free = sorted((abs(other - row), other) for other in range(height) if other not in taken)
            if free:
                taken[free[0][1]] = (ends[id(mark)], mark.tone)
    lines: list[Text] = []
    for row in range(height):
        line = (
            Text(f"{told.get(row, ''):>{left}}", style="dim").append(letters.up, style="dim").append(canvas.line(row))
        )
        if row in taken:
            line.append(f" {taken[row][0]}", style=_tone(taken[row][1]))
        line.rstrip()
        lines.append(line)
    return chart, [*titles, *lines, *_foot(across, canvas, left, letters), *_legend(chart, canvas, width, letters)]


def _foot(across: Ruler, canvas: _Canvas, left: int, letters: Letters) -> list[Text]:
    """The lower axis, its ticks and its title."""
    edge = [letters.across] * canvas.columns
    under = [" "] * (left + 1 + canvas.columns)
    for tick, text in across.ticks:
        column = round(across.place(tick) * (canvas.columns - 1))
        begin = max(0, min(left + 1 + column - len(text) // 2, len(under) - len(text)))
        # A tick's text that would touch another one is left out; its notch stays.
        if all(letter == " " for letter in under[max(0, begin - 1) : begin + len(text) + 1]):
            under[begin : begin + len(text)] = text
        edge[column] = letters.notch
    title = _cut(_title(across), left + 1 + canvas.columns)
    middle = max(
        0, min(left + 1 + (canvas.columns - cell_len(title)) // 2, left + 1 + canvas.columns - cell_len(title))
    )
    return [
        Text(" " * left + letters.corner + "".join(edge), style="dim"),
        Text("".join(under).rstrip(), style="dim"),
        Text(" " * middle + title, style="dim"),
    ]


def _legend(chart: Chart, canvas: _Canvas, width: int, letters: Letters) -> list[Text]:
    is_band_seen = letters.band in canvas.letters.values()
    named = [mark for mark in chart.marks if mark.name and (is_band_seen or not isinstance(mark, Band))]
    entries = [(_sample(mark, letters), mark) for mark in named]
    if len(entries) < 2 and not any(isinstance(mark, Rule) for _, mark in entries):
        return []
    return _flowing(((f"{sample} {visible(mark.name)}", mark.tone) for sample, mark in entries), width)


def _flowing(entries: Iterable[tuple[str, int]], width: int) -> list[Text]:
    """Entries beside each other, as many as fit in a line."""
    lines = [Text()]
    for entry, tone in entries:
        text = _cut(entry, width)
        if lines[-1].plain and cell_len(lines[-1].plain) + 3 + cell_len(text) > width:
            lines.append(Text())
        if lines[-1].plain:
            lines[-1].append("   ")
        lines[-1].append(text, style=_tone(tone))
    return lines


def _sample(mark: Mark, letters: Letters) -> str:
    """How a legend shows it."""
    match mark:
        case Dots():
            return letters.dots[1]
        case Line(has_dots=True):
            return letters.marks[mark.tone % len(letters.marks)]
        case Line():
            return "⠒⠒" if letters.has_braille else ".."
        case Band():
            return letters.band * 2
        case Bars():
            return letters.heights[-1]
        case Rule(x=None):
            return letters.rule_across * 2
        case Rule():
            return letters.rule_up


def _end_of(mark: Line) -> str:
    """What stands behind a line's last point: short names only."""
    name = visible(mark.name)
    return name if cell_len(name) <= 8 else ""


def _depth(mark: Mark) -> int:
    return (Band, Bars, Rule, Line, Dots).index(type(mark))


def _draw(mark: Mark, canvas: _Canvas, across: Ruler, up: Ruler, letters: Letters) -> None:
    match mark:
        case Band(edges=edges):
            _fill(edges, canvas, across, up, mark.tone, letters)
        case Bars(bars=bars):
            for bar in bars:
                _stand(bar, canvas, across, up, mark.tone, letters)
        case Rule(x=None, y=y):
            row = _row(canvas, up, y or 0.0)
            for column in range(canvas.columns):
                canvas.put(column, row, letters.rule_across, mark.tone)
        case Rule(x=x):
            column = _column(canvas, across, x or 0.0)
            for row in range(canvas.rows):
                canvas.put(column, row, letters.rule_up, mark.tone)
        case Line():
            _trace(mark, canvas, across, up, letters)
        case Dots(points=points):
            counts: dict[tuple[int, int], int] = {}
            for x, y in points:
                place = (_column(canvas, across, x), _row(canvas, up, y))
                counts[place] = counts.get(place, 0) + 1
            for (column, row), count in counts.items():
                canvas.put(column, row, letters.dots[min(2, (count + 1) // 3)], mark.tone)


def _fill(
    edges: Sequence[tuple[float, float, float]], canvas: _Canvas, across: Ruler, up: Ruler, tone: int, letters: Letters
) -> None:
    for (x0, low0, high0), (x1, low1, high1) in pairwise(edges):
        first, last = _column(canvas, across, x0), _column(canvas, across, x1)
        for column in range(first, last + 1):
            share = (column - first) / (last - first) if last > first else 0.0
            top = _row(canvas, up, high0 + (high1 - high0) * share)
            bottom = _row(canvas, up, low0 + (low1 - low0) * share)
            if bottom > top + 1:  # less is not to be seen
                for row in range(top, bottom + 1):
                    canvas.put(column, row, letters.band, tone)


def _stand(
    bar: tuple[float, float, float], canvas: _Canvas, across: Ruler, up: Ruler, tone: int, letters: Letters
) -> None:
    first, last = _column(canvas, across, bar[0]), _column(canvas, across, bar[1])
    eighths = round(up.place(bar[2]) * canvas.rows * 8)
    if bar[2] > 0:
        eighths = max(1, eighths)  # something is not nothing
    for column in range(first, max(first + 1, last)):
        for level in range(math.ceil(eighths / 8)):
            canvas.put(column, canvas.rows - 1 - level, letters.heights[min(8, eighths - 8 * level)], tone)


def _trace(mark: Line, canvas: _Canvas, across: Ruler, up: Ruler, letters: Letters) -> None:
    wide, tall = (canvas.columns * 2, canvas.rows * 4) if letters.has_braille else (canvas.columns, canvas.rows)
    # The same places as everything else has, in a finer raster.
    places = [(across.place(x) * (wide - 1), (1 - up.place(y)) * (tall - 1)) for x, y in mark.points]
    for (x0, y0), (x1, y1) in pairwise(places):
        steps = max(1, math.ceil(max(abs(x1 - x0), abs(y1 - y0))))
        for step in range(steps + 1):
            if mark.is_dashed and step % 6 > 2:
                continue
            x, y = round(x0 + (x1 - x0) * step / steps), round(y0 + (y1 - y0) * step / steps)
            if letters.has_braille:
                canvas.put_fine(x, y, mark.tone)
            else:
                canvas.put(x, y, ".", mark.tone)


def _column(canvas: _Canvas, across: Ruler, x: float) -> int:
    return round(across.place(x) * (canvas.columns - 1))


def _row(canvas: _Canvas, up: Ruler, y: float) -> int:
    return round((1 - up.place(y)) * (canvas.rows - 1))


def _split(split: Split, width: int, letters: Letters) -> list[Text]:
    wholes = [math.fsum(known(amounts)) for _, amounts in split.rows]
    totals = [quantity_text(whole, split.unit) for whole in wholes]
    labels = [visible(label) for label, _ in split.rows]
    longest = min(max(map(cell_len, labels), default=0), width // 3)
    behind = max(map(len, totals), default=0)
    room = width - longest - behind - 2
    largest = max(wholes, default=0.0) or 1.0
    lines: list[Text] = []
    for label, (_, amounts), whole, total in zip(labels, split.rows, wholes, totals, strict=True):
        text = Text(f"{_padded(label, longest)} ")
        units = [round(amount / largest * 1e9) for amount in known(amounts)]  # whole numbers, for `shared_out`
        counts = shared_out(units, round(whole / largest * room))
        for number, (count, (_, tone)) in enumerate(zip(counts, split.parts, strict=True)):
            text.append(letters.parts[number % len(letters.parts)] * count, style=_tone(tone))
        said = " and unknown" if None in amounts else ""
        text.append(f" {total}{said if cell_len(text.plain) + len(total) + 1 + len(said) <= width else ''}")
        lines.append(text)
    named = (
        (f"{letters.parts[number % len(letters.parts)]} {visible(part)}", tone)
        for number, (part, tone) in enumerate(split.parts)
    )
    return [*lines, *_flowing(named, width)]


def _ratios(ratios: Ratios, width: int, letters: Letters) -> list[Text]:
    rows = [row for row in ratios.rows if row.is_drawable]
    labels = [visible(row.label) for row in rows]
    longest = min(max(map(cell_len, labels), default=0), width // 3)
    figures = [row.text.removeprefix(f"{row.label}: ") for row in rows]
    behind = max(map(cell_len, figures), default=0)
    if longest + behind + 16 > width:  # no room for intervals in figures: the picture shows them
        figures = [f"{row.value:.3g}×" for row in rows]
        behind = max(map(cell_len, figures), default=0)
    canvas = _Canvas(columns=max(10, width - longest - behind - 2), rows=max(1, len(rows)))
    across = ratios.ruler(most_ticks=max(2, canvas.columns // 7))
    begin, middle, end = letters.interval
    for number, row in enumerate(rows):
        canvas.put(_column(canvas, across, 1.0), number, letters.rule_up, 6)
        if row.low is not None and row.high is not None:
            first, last = _column(canvas, across, row.low), _column(canvas, across, row.high)
            canvas.write(first, number, middle * (last - first + 1), row.tone)
            canvas.put(first, number, begin, row.tone)
            canvas.put(last, number, end, row.tone)
        canvas.put(_column(canvas, across, row.value), number, letters.dots[2], row.tone)
    lines = [
        Text(f"{_padded(label, longest)} ").append(canvas.line(number)).append(f" {figures[number]}")
        for number, label in enumerate(labels)
    ]
    sides = f"< {visible(ratios.left)} | {visible(ratios.right)} >"
    ticks = _foot(across, canvas, longest, letters)[1]
    return [*lines, ticks, *(Text(line, style="dim") for line in _wrapped(sides, width))]


def _title(axis: Ruler) -> str:
    return visible(axis.title) + (" (log)" if axis.is_log else "")


def _padded(text: str, width: int) -> str:
    return set_cell_size(_cut(text, width), width)


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def _wrapped(text: str, width: int) -> list[str]:
    lines = textwrap.wrap(visible(text), width, break_on_hyphens=False)
    return [part for line in lines for part in ([line] if cell_len(line) <= width else _halves(line, width))]


def _halves(line: str, width: int) -> list[str]:
    """A line whose letters are two places wide, in pieces that fit."""
    pieces, piece = list[str](), ""
    for letter in line:
        if cell_len(piece + letter) > width:
            pieces.append(piece)
            piece = ""
        piece += letter
    return [*pieces, piece]
