"""Columns of values handed to SQLite as a table, where native code for that was built.

To bind a row and to take a step for it costs Python's driver as much as SQLite needs to insert it. A statement that
inserts what it selects is one step for twenty thousand of them, and lets other threads go on meanwhile. Owns: how
SQLite comes to know that table. Refuses to know: what the columns mean.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taximeter._native import ColumnRows

Piece = tuple[Any, int]
"""For so many rows: an array of 64-bit numbers or of names (see `calls`), a tuple of values, or one value that is
neither."""

_TABLE = "taximeter_rows"
_setting = threading.Lock()


@contextmanager
def known_to_new_connections() -> Generator[None]:
    """Connections that are opened within know the table, where there is one."""
    found = _functions()
    if found is None:
        yield
        return
    set_, cancel, entry = found
    with _setting:
        set_(entry)
        try:
            yield
        finally:
            cancel(entry)


def are_known(connection: sqlite3.Connection) -> bool:
    """Whether the connection knows the table."""
    try:
        connection.execute(f"SELECT c0 FROM {_TABLE}(0)").fetchall()  # noqa: S608 - our own word
    except sqlite3.Error:
        return False
    return True


@dataclass(slots=True, kw_only=True)
class Insertion:
    """Rows of `table` by columns, as pieces. The first of `names` is that of numbers which follow one on the other, in
    any order: the rows are inserted in theirs. In the columns `also` all of them have `values`, which are SQL, and
    `behind` ends the statement. Names and SQL are our own."""

    table: str
    names: Sequence[str]
    columns: Sequence[Sequence[Piece]]
    also: str
    values: str
    behind: str
    _made: _Made | None = field(default=None, init=False)

    def make_ahead(self) -> None:
        """Make the rows now, where they can be: who inserts them has less to do then. All of the numbers may change
        until they are, by the same; nothing else may."""
        if self._made is None and _functions() is not None:
            self._made = _made(self)

    def take(self) -> _Made:
        """The rows, for one time."""
        made, self._made = self._made or _made(self), None
        return made


@dataclass(frozen=True, slots=True)
class _Made:
    """Rows as SQLite takes them: those of `names`, which leave out what nobody has anything of. The first of their
    numbers was `first` when they were made."""

    rows: ColumnRows
    names: Sequence[str]
    first: int


def _made(told: Insertion) -> _Made:
    import numpy as np  # noqa: PLC0415 - only for who imports much

    from taximeter._native import ColumnRows  # noqa: PLC0415 - absent where it was not built

    numbers = np.concatenate([np.asarray(values, dtype=np.int64) for values, _ in told.columns[0]])
    there = [
        (name, [(_as_told(values), count) for values, count in column])
        for name, column in zip(told.names[1:], told.columns[1:], strict=False)
        if any(values is not None for values, _ in column)
    ]
    rows = ColumnRows(numbers, [column for _, column in there])
    return _Made(rows, [told.names[0], *(name for name, _ in there)], _first(told))


def _first(told: Insertion) -> int:
    return int(told.columns[0][0][0][0])


def insert(connection: sqlite3.Connection, told: Insertion, last: Sequence[Piece] = ()) -> None:
    """Insert them, by a connection that knows the table; `last` is of the last of the names, if that has no column."""
    made = told.take()
    names = [*made.names, told.also]
    if last:
        made.rows.add(list(last))
        names.insert(-1, told.names[-1])
    taken = ", ".join(["c0 + ?", *(f"c{place}" for place in range(1, len(names) - 1)), told.values])
    # "WHERE true", or the ON behind it would be taken for a join's.
    connection.execute(
        f"INSERT INTO {told.table} ({', '.join(names)}) SELECT {taken} FROM {_TABLE}(?) WHERE true{told.behind}",  # noqa: S608 - see above
        (_first(told) - made.first, made.rows.handle),
    )


def _as_told(values: Any) -> Any:
    """Names as the bytes they are: their own type is none that crosses over."""
    kind = getattr(getattr(values, "dtype", None), "kind", None)
    return values.view("u1").reshape(len(values), values.itemsize) if kind == "S" else values


@cache
def _functions() -> tuple[Callable[[int], object], Callable[[int], object], int] | None:
    """What tells the SQLite that Python's driver uses, what takes it back, and what it is told."""
    try:
        import _sqlite3  # noqa: PLC0415 - only for who imports much
        import ctypes  # noqa: PLC0415

        from taximeter._native import sqlite_rows_entry  # noqa: PLC0415

        library = ctypes.CDLL(_sqlite3.__file__)  # its symbols, and those of the library that it needs
        set_, cancel = library.sqlite3_auto_extension, library.sqlite3_cancel_auto_extension
    except (ImportError, AttributeError, OSError):  # not built, or not to be had
        return None
    set_.argtypes = cancel.argtypes = [ctypes.c_void_p]
    return set_, cancel, sqlite_rows_entry()
