"""Tables for terminals of any width. Owns: which columns are left out where there is no room. Refuses to know: what is
in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from taximeter.cli.console import out

_GAP = 2
_SHORTEST_NAME, _SHORT_NAME = 8, 18


def print_table(
    rows: Sequence[Mapping[str, Text]],
    *,
    right: Collection[str],
    least_telling: Sequence[str],
    shorten: Mapping[str, int] | None = None,
    names: str | None = None,
    whole_names: bool = False,
    dim: Collection[str] = (),
) -> None:
    """Print rows of cells by heading; those in `right` end at the right edge of their column. Columns of empty
    cells are left out. See `fitting`."""
    console = out()
    columns = {heading: [row[heading].plain for row in rows] for heading in rows[0]}
    columns = {heading: texts for heading, texts in columns.items() if any(texts)}
    shown = fitting(
        columns, console.width, least_telling=least_telling, shorten=shorten or {}, names=names, whole_names=whole_names
    )
    # Laid out here: the library's own tables take a millisecond a row, and there are two thousand models.
    widths = {heading: max(map(cell_len, (heading, *texts))) for heading, texts in shown.items()}
    *_, last = shown
    lines = [Text(style="dim"), *(Text() for _ in rows)]
    for heading, texts in shown.items():
        is_right, own = heading in right, "dim" if heading in dim else ""
        cells = [(heading, ""), *((text, row[heading].style or own) for text, row in zip(texts, rows, strict=True))]
        for line, (text, style) in zip(lines, cells, strict=True):
            space = " " * (widths[heading] - cell_len(text))
            if is_right:
                line.append(space)
            line.append(text, style)
            if heading != last:
                line.append(" " * _GAP if is_right else space + " " * _GAP)
    width = console.width
    for line in lines:
        line.rstrip()
        if cell_len(line.plain) > width:
            line.truncate(width, overflow="ellipsis")
    console.print(Text("\n").join(lines), soft_wrap=True)


def fitting(
    columns: Mapping[str, Sequence[str]],
    width: int,
    *,
    least_telling: Sequence[str],
    shorten: Mapping[str, int],
    names: str | None = None,
    whole_names: bool = False,
) -> Mapping[str, Sequence[str]]:
    """As many of the columns as fit side by side: the first of `least_telling` goes first, then those in `shorten` lose
    all but so many characters, then the next columns go. All but those and the column of `names` are whole: names are
    cut to the shortest before one of the two most telling columns goes, and have what room is left. `whole_names` are
    cut for those two only."""
    shown = dict(columns)
    room = max(map(cell_len, shown[names])) if whole_names and names else _SHORT_NAME

    def needed() -> int:
        wide = {heading: max(map(cell_len, [heading, *texts])) for heading, texts in shown.items()}
        if names in wide:
            wide[names] = min(wide[names], room)
        return sum(wide.values()) + _GAP * (len(wide) - 1)

    going = [each for each in least_telling if each in columns]
    for heading in going:
        if heading in going[-2:]:
            room = _SHORTEST_NAME
        if needed() <= width:
            break
        del shown[heading]
        if needed() > width:
            shown |= {key: [text[:length] for text in shown[key]] for key, length in shorten.items()}
    if names in shown:
        others = needed() - min(room, max(map(cell_len, [names, *shown[names]])))
        room = max(_SHORTEST_NAME, width - others)
        shown[names] = [_cut(text, room) for text in shown[names]]
    return shown


def _cut(text: str, room: int) -> str:
    return text if cell_len(text) <= room else set_cell_size(text, room - 1).rstrip() + "…"
