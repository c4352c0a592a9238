"""Tables of cells, as databases and spreadsheets write them.

Owns: what parts the cells, the heading, and which letters bytes are that are no UTF-8. Refuses to know: columns.

Spreadsheets write a first line `sep=;` for themselves, and letters as Windows has them in much of Europe. People write
blanks around the names of columns, and between cells and their quotes.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple

from taximeter.importers.chunks import CHUNK_BYTES, CHUNK_ROWS, Cells
from taximeter.importers.counted import Counted
from taximeter.importers.logged import LogFile

_MOST_CELL_BYTES = 64 << 20  # prompts and answers are in there
_DELIMITERS = ",;\t|"
_SAYS_DELIMITER = re.compile(r'\ufeff?"?sep=([^\s\w"]|\t)"?[\r\n]*', re.IGNORECASE)
_AROUND_NAMES = "\ufeff\xa0 \t"
_BLANK = "\ufeff\0 \r\n"
_ESCAPED = "surrogateescape"  # bytes that are no UTF-8 come as halves of pairs, which nothing else does


class _Table(NamedTuple):
    names: list[str]
    rows: Iterator[list[str]]


def names_of_columns(head: str) -> list[str]:
    """The names in the heading of a table that begins so; none where there is no heading."""
    try:
        table = _begun(io.StringIO(head, newline=""))
    except csv.Error:
        return []
    return [] if table is None else table.names


def cells_of(log: LogFile) -> Iterator[Cells]:
    """The rows of a table. Those without anything in them are none."""
    csv.field_size_limit(_MOST_CELL_BYTES)
    file = Counted(log)
    try:
        table = _begun(io.TextIOWrapper(file.buffered(), encoding="utf-8-sig", errors=_ESCAPED, newline=""))
    except csv.Error:
        log.note("a file that is no CSV")
        return
    if table is None:
        return
    names = _in_unicode([table.names], log)[0]
    rows: list[list[str]] = []
    until_bytes = file.left_bytes - CHUNK_BYTES
    while True:
        try:
            for row in table.rows:
                if not (row and row[0]) and not any(row):
                    continue
                if len(row) != len(names):
                    _make_even(row, len(names), log)
                rows.append(row)
                if len(rows) >= CHUNK_ROWS or file.left_bytes < until_bytes:
                    yield Cells(names, rows if file.are_ascii else _in_unicode(rows, log))
                    rows, until_bytes = [], file.left_bytes - CHUNK_BYTES
        except csv.Error:
            log.note("a row that is no CSV")
            continue
        break
    if rows:
        yield Cells(names, rows if file.are_ascii else _in_unicode(rows, log))


def _begun(lines: Iterable[str]) -> _Table | None:
    """A table at its first row; None for lines without anything. Raises csv.Error."""
    lines = iter(lines)
    first = next((line for line in lines if line.strip(_BLANK)), None)
    if first is None:
        return None
    says = _SAYS_DELIMITER.fullmatch(first)
    if says is not None:
        delimiter, first = says[1], next(lines, "")
    else:
        delimiter = max(_DELIMITERS, key=first.count)
    # Quotes are quotes only where a cell begins with them.
    has_blanks = re.search(rf'{re.escape(delimiter)} +"', first) is not None
    rows = csv.reader(chain([first.lstrip(_BLANK)], lines), delimiter=delimiter, skipinitialspace=has_blanks)
    return _Table([name.strip(_AROUND_NAMES) for row in islice(rows, 1) for name in row], rows)


def _make_even(row: list[str], cells: int, log: LogFile) -> None:
    if len(row) < cells:
        log.note("a row with less cells than columns")
        row += [""] * (cells - len(row))
    elif any(row[cells:]):
        log.note("a row with more cells than columns: is the delimiter in a cell without quotes?")
    del row[cells:]


def _in_unicode(rows: list[list[str]], log: LogFile) -> list[list[str]]:
    return [row if _is_unicode(row) else _read_again(row, log) for row in rows]


def _is_unicode(row: list[str]) -> bool:
    try:
        "".join(row).encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_again(row: list[str], log: LogFile) -> list[str]:
    """The cells of a row with bytes in it that are no UTF-8. Damage is not taken for another way of writing: where
    there are letters in UTF-8 too, the others are lost."""
    written = [cell.encode("utf-8", _ESCAPED) for cell in row]
    read = [cell.decode("utf-8", "replace") for cell in written]
    if not "".join(read).replace("\N{REPLACEMENT CHARACTER}", "").isascii():
        log.note("a row with bytes that are no UTF-8: they are left out")
        return read
    log.note("a row that is no UTF-8 is read as Windows-1252")
    return [cell.decode("cp1252", "replace") for cell in written]
