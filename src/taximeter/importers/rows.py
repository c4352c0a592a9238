"""Exports as rows: CSV, JSON lines, a JSON list, an object that holds one, or a dump.

Owns: telling these apart, and which lines of JSON are unreadable. Refuses to know: columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar, cast

import msgspec

from taximeter.importers.chunks import CHUNK_BYTES, CHUNK_ROWS, Chunk, Objects, Row
from taximeter.importers.counted import Counted
from taximeter.importers.decoding import BLANK, UNREADABLE, decoded
from taximeter.importers.documents import LISTS, holds_a_list, objects_of
from taximeter.importers.dumps import is_a_dump, rows_in
from taximeter.importers.logged import LogFile
from taximeter.importers.strangers import mapping
from taximeter.importers.tables import cells_of

_MOST_LINE_BYTES = 64 << 20  # prompts and answers are in there
_HEAD_BYTES = 1 << 16
_OF_PAGES = frozenset(
    [
        "object",
        "has_more",
        "first_id",
        "last_id",
        "next",
        "next_page",
        "next_cursor",
        "cursor",
        "previous",
        "page",
        "limit",
        "count",
        "total",
        "total_pages",
        "meta",
        "pagination",
        "success",
        "status",
    ]
)
_OTHER_FORMS = {
    b"PK\x03\x04": "a workbook, or another archive: save the sheet as CSV",
    b"\xd0\xcf\x11\xe0": "a workbook: save the sheet as CSV",
    b"PAR1": "a file of Parquet: write it as CSV or as JSON lines",
    b"SQLite format 3\0": "a database of SQLite: write the table as CSV or as JSON lines",
    b"PGDMP": "a dump of Postgres that is packed: pg_restore --file writes it as text",
}
_BOM = b"\xef\xbb\xbf"
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode

_Entry = TypeVar("_Entry")


def rows_of(log: LogFile, *, tables: Callable[[Row], bool] | None = None) -> Iterator[Row]:
    """The rows of an export, from its beginning; of a database's dump those of the tables that `tables` says by their
    columns. What cannot be read is noted and left out."""
    for chunk in chunks_of(log, tables=tables):
        yield from map(chunk.row, range(len(chunk)))


def entries_of(log: LogFile, decode: Callable[[bytes], _Entry]) -> Iterator[_Entry | Row]:
    """The same, and lines of JSON as `decode` makes entries of them, as far as they are sound: it raises one of
    `UNREADABLE` where a line is no object."""
    # One at a time: what is made of it is gone before the next one is, and its memory is still at hand.
    for chunk in chunks_of(log, decode=cast("Callable[[bytes], Row]", decode), most_lines=1):
        yield from map(chunk.row, range(len(chunk)))


def chunks_of(
    log: LogFile,
    *,
    tables: Callable[[Row], bool] | None = None,
    decode: Callable[[bytes], Row] = _decode_object,
    most_lines: int = CHUNK_ROWS,
) -> Iterator[Chunk]:
    """The same by some thousand at a time."""
    log.file.seek(0)
    head = log.file.read(min(_HEAD_BYTES, log.size)).removeprefix(_BOM).lstrip(BLANK)
    what = next((what for begins, what in _OTHER_FORMS.items() if head.startswith(begins)), None)
    if what is not None:
        log.note(what)
    elif tables is not None and is_a_dump(head):
        for row in rows_in(Counted(log).buffered(), tables):
            yield Objects([row])
    elif head.startswith(b"[") or (head.startswith(b"{") and not _is_a_line(head)):
        yield from objects_of(log)
    elif head.startswith(b"{") or any(_is_an_object(line) for line in head.splitlines()):
        yield from _of_lines(log, decode, most_lines)
    elif head:
        yield from cells_of(log)
    log.offset = log.size


def _is_an_object(line: bytes) -> bool:
    if not line.startswith(b"{"):
        return False
    try:
        return mapping(decoded(line)) is not None
    except UNREADABLE:
        return False


def _is_a_line(head: bytes) -> bool:
    """Whether the first line is an object by itself, one of several or none that holds a list."""
    first, end, rest = head.partition(b"\n")
    try:
        entry = mapping(decoded(first))
    except UNREADABLE:
        return not end and not holds_a_list(first)  # it is long, and not written over lines
    return entry is not None and (bool(rest.strip(BLANK)) or not any(_lists_in(entry)))


def _lists_in(entry: Row) -> Iterator[list[object]]:
    for name, value in entry.items():
        if name in LISTS and isinstance(value, list):
            yield value


def _is_a_page(entry: Row) -> bool:
    """Whether an object is one of the answers in which an interface gives a long list."""
    return any(_lists_in(entry)) and not any(name not in LISTS and name not in _OF_PAGES for name in entry)


def _of_lines(log: LogFile, decode: Callable[[bytes], Row], most_lines: int) -> Iterator[Objects]:
    reader = Counted(log).buffered()
    are_pages = None
    while lines := reader.readlines(CHUNK_BYTES):
        for first in range(0, len(lines), most_lines):
            objects = _objects(lines[first : first + most_lines], log, decode)
            if are_pages is None and objects:
                are_pages = mapping(objects[0]) is not None and _is_a_page(objects[0])
            yield _on_pages(objects, log) if are_pages else objects


def _on_pages(pages: Objects, log: LogFile) -> Objects:
    entries = [entry for page in pages for entries in islice(_lists_in(page), 1) for entry in entries]
    rows = Objects(row for entry in entries if (row := mapping(entry)) is not None)
    if len(rows) < len(entries):
        log.note("an entry that is no JSON object", len(entries) - len(rows))
    return rows


def _objects(lines: Sequence[bytes], log: LogFile, decode: Callable[[bytes], Row]) -> Objects:
    try:
        if max(map(len, lines)) <= _MOST_LINE_BYTES:
            return Objects(map(decode, lines))
    except UNREADABLE:
        pass  # a line is damaged, or blank
    return Objects(_those_that_are_sound(lines, log))


def _those_that_are_sound(lines: Sequence[bytes], log: LogFile) -> Iterator[Row]:
    for line in lines:
        if not line.strip():
            continue
        if len(line) > _MOST_LINE_BYTES:
            log.note(f"a line of more than {_MOST_LINE_BYTES >> 20} MB is skipped")
            continue
        try:
            row = mapping(decoded(line))
        except UNREADABLE:
            row = None
        if row is None:
            log.note("a line that is no JSON object")
        else:
            yield row
