"""Exports as rows: CSV, JSON lines, a JSON list, an object that holds one, or a dump.

Owns: telling these apart, and what of a file is unreadable. Refuses to know: columns.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import msgspec

from taximeter.importers.decoding import BLANK, UNREADABLE, decoded
from taximeter.importers.dumps import is_a_dump, rows_in
from taximeter.importers.logged import LogFile
from taximeter.importers.strangers import mapping

Row = Mapping[str, Any]

DELIMITERS = ",;\t|"

_MOST_CELL_BYTES = 64 << 20  # prompts and answers are in there
_MOST_DOCUMENT_BYTES = 1 << 30  # a list in one document is read as a whole
_HEAD_BYTES = 1 << 16
_LISTS = ("data", "observations", "items", "results", "logs", "rows")

_BOM = b"\xef\xbb\xbf"
_LIST_BEGINS = re.compile(r"\s*\[|\"(?:" + "|".join(_LISTS) + r")\"\s*:\s*\[")
_BETWEEN = re.compile(r"[\s,\0]*")
_forgiving = json.JSONDecoder(strict=False, parse_constant=lambda _: None)
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def rows_of(log: LogFile, *, tables: Callable[[Row], bool] | None = None) -> Iterator[Row]:
    """The rows of an export, from its beginning; of a database's dump those of the tables that `tables` says by their
    columns. What cannot be read is noted and left out."""
    log.file.seek(0)
    head = log.file.read(min(_HEAD_BYTES, log.size)).removeprefix(_BOM).lstrip(BLANK)
    log.file.seek(0)
    if tables is not None and is_a_dump(head):
        yield from rows_in(io.BufferedReader(_Counted(log), 1 << 20), tables)
    elif head.startswith(b"[") or (head.startswith(b"{") and not _is_a_line(head)):
        yield from _of_document(log)
    elif head.startswith(b"{") or any(_is_an_object(line) for line in head.splitlines()):
        yield from _of_lines(log)
    elif head:
        yield from _of_table(log)
    log.offset = log.size


def _is_an_object(line: bytes) -> bool:
    if not line.startswith(b"{"):
        return False
    try:
        return mapping(decoded(line)) is not None
    except UNREADABLE:
        return False


def _is_a_line(head: bytes) -> bool:
    """Whether the first line is an object by itself."""
    first, end, _ = head.partition(b"\n")
    try:
        entry = mapping(decoded(first))
    except UNREADABLE:
        return not end  # it is long, and not written over lines
    return entry is not None and not any(isinstance(entry.get(name), list) for name in _LISTS)


def _of_lines(log: LogFile) -> Iterator[Row]:
    reader = io.BufferedReader(_Counted(log), 1 << 20)
    for line in reader:
        if not line.strip():
            continue
        if len(line) > _MOST_CELL_BYTES:
            log.note(f"a line of more than {_MOST_CELL_BYTES >> 20} MB is skipped")
            continue
        try:
            row = mapping(decoded(line))
        except UNREADABLE:
            row = None
        if row is None:
            log.note("a line that is no JSON object")
        else:
            yield row


def _of_document(log: LogFile) -> Iterator[Row]:
    if log.size > _MOST_DOCUMENT_BYTES:
        log.note("a list of more than 1 GB in one JSON document: export it as JSON lines")
        return
    body = log.file.read(log.size)
    log.on_bytes(len(body))
    body = body.removeprefix(_BOM).strip(BLANK)
    try:
        parts: Iterable[object] = _decode_list(body) if body.startswith(b"[") else _parts(body)
    except UNREADABLE:
        parts = _damaged(body, log)
    for part in parts:
        try:
            row = mapping(decoded(bytes(part)) if isinstance(part, msgspec.Raw) else part)
        except UNREADABLE:
            row = None
        if row is None:
            log.note("an entry that is no JSON object")
        else:
            yield row


def _damaged(body: bytes, log: LogFile) -> Iterator[object]:
    """The entries of a list that is no sound JSON as a whole, as far as they are."""
    text = body.decode("utf-8", "replace")
    begins = _LIST_BEGINS.match(text) or _LIST_BEGINS.search(text)
    if begins is None:
        log.note("a file that is no JSON")
        return
    place = begins.end()
    while True:
        between = _BETWEEN.match(text, place)
        place = place if between is None else between.end()
        if text.startswith("]", place):
            return
        try:
            entry, place = _forgiving.raw_decode(text, place)
        except (ValueError, RecursionError):
            log.note("a list that is damaged or breaks off: the rest of it is left out")
            return
        try:
            yield decoded(json.dumps(entry))
        except UNREADABLE:
            yield None


def _parts(body: bytes) -> list[msgspec.Raw]:
    """The list that an object holds, or the object itself."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    for name in _LISTS:
        if name in fields and bytes(fields[name]).startswith(b"["):
            return _decode_list(fields[name])
    return [msgspec.Raw(body)]


def _of_table(log: LogFile) -> Iterator[Row]:
    csv.field_size_limit(_MOST_CELL_BYTES)
    text = io.TextIOWrapper(
        io.BufferedReader(_Counted(log), 1 << 20), encoding="utf-8-sig", errors="replace", newline=""
    )
    first = text.readline()
    delimiter = max(DELIMITERS, key=first.count)
    rows = csv.reader(chain([first], text), delimiter=delimiter)
    try:
        names = next(rows)
    except csv.Error:
        log.note("a file that is no CSV")
        return
    while True:
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error:
            log.note("a row that is no CSV")
            continue
        if len(cells) < len(names) and cells:
            log.note("a row with less cells than columns")
        yield {name: cell for name, cell in zip(names, cells, strict=False) if cell != ""}


class _Counted(io.RawIOBase):
    """The file up to where it ended when it was opened, telling how much of it was read."""

    def __init__(self, log: LogFile) -> None:
        self._log = log
        self._left = log.size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        block = self._log.file.read(min(len(buffer), self._left))
        buffer[: len(block)] = block
        self._left -= len(block)
        self._log.on_bytes(len(block))
        return len(block)
