"""Tables for terminals of any width. Owns: which columns are left out where there is no room. Refuses to know: what is
in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from taximeter.cli.console import out

_GAP = 2


def print_table(
    rows: Sequence[Mapping[str, Text]],
    *,
    right: Collection[str],
    least_telling: Sequence[str],
    shorten: Mapping[str, int] | None = None,
    dim: Collection[str] = (),
) -> None:
    """Print rows of cells by heading; those in `right` end at the right edge of their column. Columns of empty
    cells are left out. See `fitting`."""
    console = out()
    columns = {heading: [row[heading].plain for row in rows] for heading in rows[0]}
    columns = {heading: texts for heading, texts in columns.items() if any(texts)}
    shown = fitting(columns, console.width, least_telling=least_telling, shorten=shorten or {})
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for heading in shown:
        justify = "right" if heading in right else "left"
        table.add_column(heading, justify=justify, style="dim" if heading in dim else None, no_wrap=True)
    for number, row in enumerate(rows):
        table.add_row(*(Text(texts[number], style=row[heading].style) for heading, texts in shown.items()))
    console.print(table)


def fitting(
    columns: Mapping[str, Sequence[str]], width: int, *, least_telling: Sequence[str], shorten: Mapping[str, int]
) -> Mapping[str, Sequence[str]]:
    """As many of the columns as fit side by side, each of them whole: the first of `least_telling` goes first, then
    those in `shorten` lose all but so many characters, then the next columns go."""

    def needed(shown: Mapping[str, Sequence[str]]) -> int:
        return sum(max(map(len, [heading, *texts])) + _GAP for heading, texts in shown.items()) - _GAP

    shown = dict(columns)
    for heading in (each for each in least_telling if each in columns):
        if needed(shown) <= width:
            break
        del shown[heading]
        if needed(shown) > width:
            shown |= {key: [text[:length] for text in shown[key]] for key, length in shorten.items()}
    return shown
