"""Tables of a page that need no width: where the columns do not fit side by side, each row is a card.

Owns: how wide a table has to be, and what it is below that. Refuses to know: figures.

A window of eight hundred points has room for ten columns, one of four hundred for five, and whoever has to move a table
sideways no longer sees whose figures those are.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Final

from taximeter.reports.cells import Column

_LETTER_REM: Final = 0.47  # of the table's letters, digits and capitals among them
_BETWEEN_REM: Final = 0.75  # cells keep so far from each other
_NAMES_REM: Final = 8.0  # names may break anywhere
_FIGURE_REM: Final = 6.2  # a card's figures stand so far from each other, or as far as the longest of them needs
_BOLD_LETTER_REM: Final = 0.56
_NARROW_REM: Final = 34.0  # cards keep the places of figures that there are not in all of them, where that costs little

STYLE: Final = """
table { font-size: .8rem; } th, td { padding: .3rem .35rem; white-space: normal; vertical-align: baseline; }
td:first-child { overflow-wrap: anywhere; min-width: 8rem; }
td.n { white-space: nowrap; } .n + :not(.n) { padding-left: .9rem; }
.table { container-type: inline-size; }
"""

_AS_CARDS: Final = """@container (max-width: {width_rem:.1f}rem) {{
{id} table, {id} tbody, {id} tfoot {{ display: block; }} {id} thead {{ display: none; }}
{id} tr {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, {card_rem:.1f}rem), 1fr));
  gap: .35rem .9rem; padding: .6rem 0; border-bottom: 1px solid var(--line); align-items: start; }}
{id} td {{ display: block; padding: 0; border: 0; text-align: left; white-space: normal; }}
{id} td:first-child {{ grid-column: 1 / -1; max-width: none; font-weight: 650; }}
{id} td:empty {{ visibility: hidden; }}
{id} td::before {{ display: block; color: var(--dim); font-size: .72rem; font-weight: 400; }}
{labels}
}}
@container (max-width: {narrow_rem:.1f}rem) {{ {id} td:empty {{ display: none; }} }}
"""


def folding_table(table: Sequence[Column], count: int, *, name: str) -> str:
    """The first column says what each of `count` rows is called; what stands above the others is the program's own
    words. `name` is an identifier, this table's alone on its page."""
    head = "".join(f'<th scope="col"{_side(column)}>{html.escape(column.heading)}</th>' for column in table)
    body = "".join(_row(table, [column.cells[number] for column in table]) for number in range(count))
    foot = _row(table, [column.total for column in table])
    return (
        f"<style>{_as_cards(table, name)}</style>\n"
        f'<div class="table" id="{name}"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n'
        f"<tfoot>{foot}</tfoot></table></div>"
    )


def _row(table: Sequence[Column], cells: Iterable[str]) -> str:
    told = (f"<td{_side(column)}>{html.escape(cell)}</td>" for column, cell in zip(table, cells, strict=True))
    return f"<tr>{''.join(told)}</tr>\n"


def _side(column: Column) -> str:
    return ' class="n"' if column.is_number else ""


def _as_cards(table: Sequence[Column], name: str) -> str:
    labels = "\n".join(
        f'#{name} td:nth-child({place})::before {{ content: "{column.heading.strip() or _NOTHING}"; }}'
        for place, column in enumerate(table[1:], 2)
    )
    width_rem = _NAMES_REM + sum(map(_width_rem, table[1:]))
    words = (word for column in table[1:] for cell in (*column.cells, column.total) for word in cell.split(" "))
    card_rem = max(_FIGURE_REM, _BOLD_LETTER_REM * max(map(len, words), default=0))
    return _AS_CARDS.format(
        card_rem=card_rem, width_rem=width_rem, narrow_rem=min(width_rem, _NARROW_REM), id=f"#{name}", labels=labels
    )


_NOTHING: Final = r"\a0"  # a blank: cells without a heading stand level with the others


def _width_rem(column: Column) -> float:
    """What the column needs: numbers stay on one line, words may stand below each other."""
    cells = (*column.cells, column.total)
    parts = cells if column.is_number else (word for cell in cells for word in cell.split(" "))
    return _LETTER_REM * max(map(len, (*parts, *column.heading.split(" ")))) + _BETWEEN_REM
