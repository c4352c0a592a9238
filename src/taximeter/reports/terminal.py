"""A report as lines for a terminal of any width.

Owns: which columns are left out where there is no room, how names are cut, and where sentences break. Refuses to know:
colours; a line says only what it is.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from enum import StrEnum
from typing import Final

from rich.cells import cell_len, set_cell_size

from taximeter.reports.cells import Column, View, columns, heading_of, span_text
from taximeter.reports.facts import facts, notes
from taximeter.reports.report import Report

_GAP: Final = 2
_SHORTEST_NAME: Final = 8
_SHORT_NAME: Final = 18  # names are cut to this before columns go
_ABOUT_WIDTH: Final = 12
_LONGEST_SENTENCE: Final = 100
_SHORTEST_BAR, _LONGEST_BAR = 8, 24
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


class Kind(StrEnum):
    """What a line is."""

    TITLE = "title"
    SPAN = "span"
    HEADING = "heading"
    ROW = "row"
    TOTAL = "total"
    FACT = "fact"
    NOTE = "note"
    EMPTY = "empty"


Line = tuple[Kind, str]


def terminal_lines(report: Report, width: int, view: View = View.TOKENS, *, bars: bool = True) -> list[Line]:
    """All lines, none of them wider than `width` as long as that is at least 20. With `bars` rows show their share of
    the largest cost where there is room."""
    lines: list[Line] = [(Kind.TITLE, f"by {heading_of(report.question.by)}")]
    lines += [(Kind.SPAN, line) for line in _wrapped(span_text(report.question), width)]
    if not report.rows:
        return lines
    lines.append((Kind.EMPTY, ""))
    table = fitting(columns(report, view), width)
    drawn = _bars(report, width - _width(table)) if bars else []
    lines.append((Kind.HEADING, _line(table, [column.heading for column in table])))
    for number in range(len(report.rows)):
        text = _line(table, [column.cells[number] for column in table])
        lines.append((Kind.ROW, f"{text}{' ' * _GAP}{drawn[number]}".rstrip() if drawn else text))
    lines.append((Kind.TOTAL, _line(table, [column.total for column in table])))
    lines.append((Kind.EMPTY, ""))
    for about, said in facts(report):
        head = f"{about:<{_ABOUT_WIDTH}}"
        told = _wrapped(said, width - _ABOUT_WIDTH)
        lines += [(Kind.FACT, (head if not number else " " * _ABOUT_WIDTH) + line) for number, line in enumerate(told)]
    if left_out := notes(report):
        lines.append((Kind.EMPTY, ""))
        lines += [(Kind.NOTE, line) for note in left_out for line in _wrapped(note, width)]
    return lines


def fitting(table: Sequence[Column], width: int) -> list[Column]:
    """As many columns as fit side by side: names are cut first, or said in fewer words, then the columns that tell
    least go; what is left of the width is the names'."""
    name, *rest = table
    longest = max(map(cell_len, (name.heading, *name.cells, name.total)))
    room = min(longest, _SHORT_NAME)
    shown = list(rest)
    while shown and room + _GAP + _width(shown) > width:
        if len(shown) <= 2 and room > _SHORTEST_NAME:
            room -= 1
        else:
            shown.remove(min(shown, key=lambda column: column.rank))
    room = max(_SHORTEST_NAME, min(longest, width - _width(shown) - _GAP if shown else width))
    texts = name.short if name.short and longest > room else name.cells
    cut = replace(name, cells=tuple(_cut(text, room) for text in texts), total=_cut(name.total, room))
    return [cut, *shown]


def _cut(text: str, room: int) -> str:
    return text if cell_len(text) <= room else set_cell_size(text, room - 1).rstrip() + "…"


def _width(table: Sequence[Column]) -> int:
    return sum(_column_width(column) + _GAP for column in table) - _GAP


def _column_width(column: Column) -> int:
    return max(map(cell_len, (column.heading, *column.cells, column.total)))


def _line(table: Sequence[Column], texts: Sequence[str]) -> str:
    placed: list[str] = []
    for column, text in zip(table, texts, strict=True):
        space = " " * (_column_width(column) - cell_len(text))
        placed.append(space + text if column.is_number else text + space)
    return (" " * _GAP).join(placed).rstrip().replace("\N{NO-BREAK SPACE}", " ")


def _bars(report: Report, room: int) -> list[str]:
    """Each row's cost as a bar, in eighths of a character; none where there is no room or nothing to compare."""
    length = min(room - 2 * _GAP, _LONGEST_BAR)
    costs = [max(row.sums.cost, Decimal(0)) for row in report.rows]
    largest = max(costs)
    if length < _SHORTEST_BAR or len(costs) < 2 or not largest:
        return []
    eighths = [round(cost * length * 8 / largest) for cost in costs]
    return [_EIGHTHS[-1] * (count // 8) + _EIGHTHS[count % 8].strip() for count in eighths]


def _wrapped(text: str, width: int) -> list[str]:
    lines = textwrap.wrap(text, max(8, min(width, _LONGEST_SENTENCE)), break_on_hyphens=False) or [""]
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]
