"""Columns that SQLite selects from are the rows that were meant, and nothing that is none of them crashes anybody."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.ledger import native_rows
from taximeter.ledger.calls import names_of, texts_of
from taximeter.ledger.native_rows import Insertion, Piece, insert


@pytest.fixture(name="connection", scope="module")
def _connection() -> Iterator[sqlite3.Connection]:
    with native_rows.known_to_new_connections():
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    if not native_rows.are_known(connection):
        connection.close()
        pytest.skip("the native code was not built here, or Python's SQLite is not to be had")
    yield connection
    connection.close()


def test_only_connections_that_were_opened_for_it_know_the_table(connection: sqlite3.Connection) -> None:
    """All others in the process are as they were."""
    other = sqlite3.connect(":memory:")
    assert native_rows.are_known(connection)
    assert not native_rows.are_known(other)
    other.close()


_values = st.none() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def _several(count: int) -> st.SearchStrategy[Any]:
    """As many, as a tuple or an array."""
    numbers = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=count, max_size=count)
    names = st.lists(st.text("az09_", max_size=30), min_size=count, max_size=count)
    return (
        st.lists(_values, min_size=count, max_size=count).map(tuple)
        | numbers.map(lambda values: np.array(values, dtype=np.int64))
        | names.map(names_of)
    )


@st.composite
def _columns(draw: st.DrawFn) -> tuple[list[int], list[list[Piece]]]:
    """Numbers in any order, and columns in pieces of any length."""
    count = draw(st.integers(1, 12))
    first = draw(st.integers(-5, 2**62))
    numbers = draw(st.permutations(range(first, first + count)))
    columns: list[list[Piece]] = []
    for _ in range(draw(st.integers(1, 5))):
        edges = sorted(draw(st.lists(st.integers(0, count), max_size=3)))
        pieces: list[Piece] = []
        for begin, end in zip([0, *edges], [*edges, count], strict=True):
            pieces.append((draw(_several(end - begin) | _values), end - begin))
        columns.append(pieces)
    return numbers, columns


def in_full(piece: Piece) -> Sequence[object]:
    values, count = piece
    if isinstance(values, np.ndarray):
        return texts_of(values) if values.dtype.kind == "S" else values.tolist()
    return cast("tuple[object, ...]", values) if isinstance(values, tuple) else [values] * count


@settings(deadline=None)
@given(told=_columns())
def test_rows_are_what_the_columns_say(
    connection: sqlite3.Connection, told: tuple[list[int], list[list[Piece]]]
) -> None:
    """Whatever stands in them, in the order of their numbers; what is there already stays."""
    numbers, columns = told
    names = [f"column_{place}" for place in range(len(columns))]
    connection.execute("DROP TABLE IF EXISTS kept")
    connection.execute(f"CREATE TABLE kept (number INTEGER PRIMARY KEY, {', '.join(names)}, also)")
    connection.execute("INSERT INTO kept (number) VALUES (?)", (numbers[0],))
    whole = [list(chain.from_iterable(map(in_full, column))) for column in columns]
    insert(
        connection,
        Insertion(
            table="kept",
            names=["number", *names],
            columns=[[(tuple(numbers), len(numbers))], *columns],
            also="also",
            values="7",
            behind=" ON CONFLICT DO NOTHING",
        ),
    )
    found = {row[0]: row[1:] for row in connection.execute("SELECT * FROM kept")}
    expected = {number: (*row, 7) for number, *row in zip(numbers, *whole, strict=True)}
    assert found == expected | {numbers[0]: (None,) * (len(names) + 1)}


@pytest.mark.parametrize(
    ("numbers", "columns"),
    [
        ((), []),
        ((1, 1), []),
        ((1, 3), []),
        ((-(2**63), 2**63 - 1), []),
        ((1, 2), [[(("a",), 1)]]),
        ((1, 2), [[(("a", "b", "c"), 3)]]),
        ((1, 2), [[(("a", "b"), 1), ("c", 1)]]),
        ((1, 2), [[("a", -1), ("b", 3)]]),
        ((1, 2), [[("a", 2**62)]]),
        ((1,), [[(1.5, 1)]]),
        ((1,), [[(b"bytes", 1)]]),
        ((1,), [["a"]]),
        ((1,), [("a", 1)]),
        ((1,), [[("a", 1)]] * 100),
        ((1,), [[(np.zeros(2, np.int64), 1)]]),
        ((1,), [[(np.zeros(1, np.int32), 1)]]),
        ((1,), [[(np.zeros(1), 1)]]),
        ((1,), [[(np.zeros((1, 1, 1), np.uint8), 1)]]),
        ((1,), [[(np.zeros((1, 1), np.int64), 1)]]),
        ((1, 2), [[(np.zeros(4, np.int64)[::2], 2)]]),
        ((1, 2), [[(np.zeros((2, 4), np.uint8)[:, :2], 2)]]),
    ],
)
def test_columns_that_make_no_rows_are_refused(connection: sqlite3.Connection, numbers: Any, columns: Any) -> None:
    """With what is wrong about them."""
    from taximeter._native import ColumnRows  # noqa: PLC0415 - absent where it was not built

    assert connection
    with pytest.raises(ValueError, match=r"row|column|piece"):
        ColumnRows(np.array(numbers, dtype=np.int64), columns)


@pytest.mark.parametrize("value", [2**63, "\ud800"])
def test_what_sqlite_cannot_hold_is_refused(connection: sqlite3.Connection, value: Any) -> None:
    """A number beyond 64 bits, and half a character."""
    from taximeter._native import ColumnRows  # noqa: PLC0415 - as above

    assert connection
    with pytest.raises((OverflowError, UnicodeEncodeError)):
        ColumnRows(np.array([1]), [[(value, 1)]])


def test_a_handle_that_nobody_offers_is_an_error(connection: sqlite3.Connection) -> None:
    """Also one whose rows are gone, and none at all."""
    from taximeter._native import ColumnRows  # noqa: PLC0415 - as above

    rows = ColumnRows(np.array([1]), [[("a", 1)]])
    handle = rows.handle
    found = connection.execute("SELECT c0, c1, c2, c99 FROM taximeter_rows(?)", (handle,)).fetchall()
    assert found == [(1, "a", None, None)]
    del rows
    for gone in (handle, -1, 2**62, "text that is longer"):
        if gone == "text that is longer":  # as a number it is 0, the handle of nothing
            assert connection.execute("SELECT * FROM taximeter_rows(?)", (gone,)).fetchall() == []
            continue
        with pytest.raises(sqlite3.OperationalError, match="nobody offers"):
            connection.execute("SELECT c0 FROM taximeter_rows(?)", (gone,))
    with pytest.raises(sqlite3.OperationalError):
        connection.execute("SELECT c0 FROM taximeter_rows")


def test_rows_stay_while_they_are_gone_through(connection: sqlite3.Connection) -> None:
    """Two can be, at once; and a view cannot have them."""
    from taximeter._native import ColumnRows  # noqa: PLC0415 - as above

    one = ColumnRows(np.arange(3), [[(tuple(f"a{n}" for n in range(3)), 3)]])
    other = ColumnRows(np.arange(2), [[("b", 2)]])
    both = "SELECT x.c1, y.c1 FROM taximeter_rows(?) x, taximeter_rows(?) y"
    found = connection.execute(both, (one.handle, other.handle)).fetchall()
    assert found == [(f"a{n}", "b") for n in range(3) for _ in range(2)]
    connection.execute(f"CREATE VIEW of_rows AS SELECT c0 FROM taximeter_rows({one.handle})")
    with pytest.raises(sqlite3.OperationalError, match="unsafe use"):
        connection.execute("SELECT * FROM of_rows")


def test_rows_that_were_made_ahead_follow_their_numbers(connection: sqlite3.Connection) -> None:
    """Numbers that are others by then are the rows' numbers; and a second time the rows are made anew."""
    numbers = np.array([2, 1, 3])
    belonging: list[Piece] = [("x", 2), (None, 1)]
    told = Insertion(
        table="kept",
        names=["number", "name", "belongs", "session", "last"],
        columns=[[(numbers, 3)], [(("b", "a", "c"), 3)], belonging, [("s", 2), ("t", 1)]],
        also="also",
        values="7",
        behind="",
    )
    told.make_ahead()
    for first in (1, 11):
        connection.execute("DROP TABLE IF EXISTS kept")
        connection.execute("CREATE TABLE kept (number INTEGER PRIMARY KEY, name, belongs, session, last, also)")
        numbers += first - numbers.min()
        insert(connection, told, [(5, 1), (6, 2)])
        found = connection.execute("SELECT * FROM kept").fetchall()
        assert found == [
            (first, "a", "x", "s", 6, 7),
            (first + 1, "b", "x", "s", 5, 7),
            (first + 2, "c", None, "t", 6, 7),
        ]


def test_rows_that_are_offered_stay_as_they_are(connection: sqlite3.Connection) -> None:
    """No column comes later."""
    from taximeter._native import ColumnRows  # noqa: PLC0415 - as above

    rows = ColumnRows(np.arange(1), [])
    rows.add([("a", 1)])
    assert connection.execute("SELECT c0, c1 FROM taximeter_rows(?)", (rows.handle,)).fetchall() == [(0, "a")]
    with pytest.raises(ValueError, match="stay as they are"):
        rows.add([("b", 1)])
