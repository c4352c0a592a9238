r"""Dumps of a Postgres database as text (`pg_dump`, `psql` with `COPY ... TO`): the rows of their tables.

Owns: where the rows of a table begin and end, and how their cells are written: `\N` for nothing, `\t` and its like for
what would be mistaken for the end of a cell. Refuses to know: what is in a table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

_BEGINS = re.compile(rb"\s*COPY\s+[^(;]+\((?P<columns>[^)]*)\)\s+FROM\s+stdin", re.IGNORECASE)
_DESCRIBES = re.compile(rb"CREATE TABLE\s+[^(;]+\((?P<columns>.*?)\n\);", re.IGNORECASE | re.DOTALL)
_NAME = re.compile(rb'^\s*(?:"([^"]+)"|(\w+))', re.MULTILINE)
_SETTING = rb"(?:--|SET |SELECT pg_catalog\.|\\restrict )[^\n]*\n"
_IS_DUMP = re.compile(
    # What was passed over is not tried again in other ways: a file may be blank for long.
    rb"\A[\s-]*PostgreSQL database dump|\A(?:" + _SETTING + rb"|\s)*+" + _BEGINS.pattern,
    re.IGNORECASE,
)
_ENDS = b"\\."
_NOTHING = b"\\N"
_ESCAPED = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|(.))", re.DOTALL)
_CONTROLS = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}

Names = Mapping[str, Any]


def is_a_dump(head: bytes) -> bool:
    """Whether a file that begins so is one."""
    return _IS_DUMP.match(head) is not None


def tables_in(head: bytes) -> Iterator[Names]:
    """The columns of each table that the beginning of a dump tells of."""
    for found in (*_DESCRIBES.finditer(head), *_BEGINS.finditer(head)):
        yield dict.fromkeys(_columns(found["columns"]))


def rows_in(lines: Iterable[bytes], wanted: Callable[[Names], bool]) -> Iterator[Names]:
    """The rows of the tables whose columns are `wanted`."""
    columns: list[str] | None = None
    is_wanted = False
    for line in lines:
        if columns is None:
            begins = _BEGINS.match(line)
            if begins is not None:
                columns = _columns(begins["columns"])
                is_wanted = wanted(dict.fromkeys(columns))
        elif line.rstrip(b"\r\n") == _ENDS:
            columns = None
        elif is_wanted:
            cells = line.rstrip(b"\r\n").split(b"\t")
            yield {name: _cell(cell) for name, cell in zip(columns, cells, strict=False)}


def _columns(listed: bytes) -> list[str]:
    found = _NAME.findall(listed.replace(b",", b"\n"))
    return [(quoted or plain).decode("utf-8", "replace") for quoted, plain in found]


def _cell(written: bytes) -> str | None:
    if written == _NOTHING:
        return None
    return (
        _ESCAPED.sub(_meant, written).decode("utf-8", "replace")
        if b"\\" in written
        else written.decode("utf-8", "replace")
    )


def _meant(found: re.Match[bytes]) -> bytes:
    octal, hexadecimal, other = found.groups()
    if octal is not None or hexadecimal is not None:
        return bytes([int(octal or hexadecimal, 8 if octal is not None else 16) & 0xFF])
    return _CONTROLS.get(other, other)
