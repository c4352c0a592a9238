"""Exports as rows: CSV, JSON lines, a JSON list, or an object that holds one.

Owns: telling these apart, and what of a file is unreadable. Refuses to know: columns.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from taximeter.importers.logged import LogFile
from taximeter.importers.strangers import UNREADABLE, mapping

Row = Mapping[str, Any]

DELIMITERS = ",;\t|"

_MOST_CELL_BYTES = 64 << 20  # prompts and answers are in there
_MOST_DOCUMENT_BYTES = 1 << 30  # a list in one document is read as a whole
_HEAD_BYTES = 1 << 16
_LISTS = ("data", "observations", "items", "results", "logs", "rows")

_decode = msgspec.json.Decoder().decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def rows_of(log: LogFile) -> Iterator[Row]:
    """The rows of an export, from its beginning. What cannot be read is noted and left out."""
    log.file.seek(0)
    head = log.file.read(min(_HEAD_BYTES, log.size)).removeprefix(b"\xef\xbb\xbf").lstrip()
    log.file.seek(0)
    if head.startswith(b"[") or (head.startswith(b"{") and not _is_a_line(head)):
        yield from _of_document(log)
    elif head.startswith(b"{"):
        yield from _of_lines(log)
    elif head:
        yield from _of_table(log)
    log.offset = log.size


def _is_a_line(head: bytes) -> bool:
    """Whether the first line is an object by itself."""
    first, end, _ = head.partition(b"\n")
    try:
        entry = mapping(_decode(first))
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
            row = mapping(_decode(line))
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
    try:
        parts = _decode_list(body) if body.lstrip().removeprefix(b"\xef\xbb\xbf").startswith(b"[") else _parts(body)
    except UNREADABLE:
        log.note("a file that is no JSON")
        return
    for part in parts:
        try:
            row = mapping(_decode(part))
        except UNREADABLE:
            row = None
        if row is None:
            log.note("an entry that is no JSON object")
        else:
            yield row


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
    names = [name for row in csv.reader([first], delimiter=delimiter) for name in row]
    rows = csv.reader(text, delimiter=delimiter)
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
