"""Rows of an export, some thousand at a time: each by itself, or a column of all of them.

Owns: what a cell has. Refuses to know: how a file has them, and what is in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from taximeter.importers.strangers import nested

Row = Mapping[str, Any]

CHUNK_ROWS, CHUNK_BYTES = 10_000, 4 << 20
"""A chunk is over with whichever comes first: with prompts and answers in them, rows are long."""


def cell(row: Row, column: str) -> Any:
    """What a column has, None where that is nothing. Dots lead into objects."""
    if column in row:
        value = row[column]
        return None if value == "" else value
    name, dot, rest = column.partition(".")
    return cell(nested(row.get(name)), rest) if dot else None


class Chunk(Protocol):
    """Some rows. `column` is what `cell` has of each, an empty text where that is nothing, or None."""

    def __len__(self) -> int: ...

    def row(self, place: int) -> Row:
        """One of them, without empty texts where they were cells of a table."""
        ...

    def column(self, name: str) -> Sequence[Any]: ...


class Objects(list[Row]):
    """Rows that are objects of JSON."""

    def row(self, place: int) -> Row:
        return self[place]

    def column(self, name: str) -> Sequence[Any]:
        return [cell(row, name) for row in self] if "." in name else [row.get(name) for row in self]


class Cells:
    """Rows of a table, each with as many cells as there are names."""

    def __init__(self, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self._names = names
        self._rows = rows
        self._columns: list[tuple[str, ...]] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, place: int) -> Row:
        return {name: value for name, value in zip(self._names, self._rows[place], strict=True) if value != ""}

    def column(self, name: str) -> Sequence[Any]:
        before, dot, rest = name.partition(".")
        by_itself = self._names.count(name)
        in_objects = self._names.count(before) if dot else 0
        if not by_itself and not in_objects:
            return [None] * len(self)
        if by_itself == 1 and not in_objects:
            return self._cells(name)
        if in_objects == 1 and not by_itself:
            return [cell(nested(value), rest) for value in self._cells(before)]
        return [cell(self.row(place), name) for place in range(len(self))]

    def _cells(self, name: str) -> Sequence[str]:
        if self._columns is None:
            self._columns = list(zip(*self._rows, strict=True))
        return self._columns[self._names.index(name)]
