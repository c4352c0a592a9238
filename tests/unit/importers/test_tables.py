"""Tables as spreadsheets, databases and people write them."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.importers import tables
from taximeter.importers.logged import LogFile
from taximeter.importers.rows import rows_of
from taximeter.importers.tables import cells_of, names_of_columns


def _read(body: bytes) -> tuple[list[dict[str, Any]], Counter[str]]:
    """The rows, and what was noted."""
    with tempfile.TemporaryFile("w+b", buffering=0) as file:
        file.write(body)
        log = LogFile(Path("table.csv"), file, len(body))  # pyright: ignore[reportArgumentType]  # unbuffered: a FileIO
        return [dict(chunk.row(place)) for chunk in cells_of(log) for place in range(len(chunk))], log.notes


@pytest.mark.parametrize(
    "body",
    [
        b"when,model\na,b\n",
        b"when;model\r\na;b\r\n",
        b"when\tmodel\ra\tb\r",
        b"\n\nwhen|model\na|b",
        b"sep=;\r\nwhen;model\r\na;b\r\n",
        b'\xef\xbb\xbf"sep=\t"\nwhen\tmodel\na\tb\n',
        b"SEP=,\nwhen,model\na,b\n",
        b"sep=|\nwhen|model\na|b\n",
        b'\xef\xbb\xbf"when","model"\n"a","b"\n',
        b'"\xef\xbb\xbfwhen","model"\n"a","b"\n',
        b"sep=,\n\xef\xbb\xbfwhen,model\na,b\n",
        b" when , model\t\na,b\n",
        b'when, "model"\na, "b"\n',
        b"when,model\n\na,b\n,\n\n",
        b"when,model,\na,b,\n",
        b"model,when,model\n,a,b\n",
    ],
)
def test_a_table_is_read_however_it_is_written(body: bytes) -> None:
    """Its heading names the columns, and what has nothing in it is no row."""
    assert _read(body) == ([{"when": "a", "model": "b"}], Counter())
    names = names_of_columns(body.decode("utf-8"))
    assert set(names) - {""} == {"when", "model"}


def test_a_first_column_without_a_name_keeps_its_place() -> None:
    """As some write the numbers of rows."""
    assert _read(b"\twhen\n1\ta\n")[0] == [{"": "1", "when": "a"}]


@pytest.mark.parametrize(
    ("written", "read", "note"),
    [
        ("M\u00fcller".encode(), "M\u00fcller", None),
        ("M\u00fcller \u20ac".encode("cp1252"), "M\u00fcller \u20ac", "a row that is no UTF-8 is read as Windows-1252"),
        (
            "M\u00fcller".encode() + b"\xc3",
            "M\u00fcller\N{REPLACEMENT CHARACTER}",
            "a row with bytes that are no UTF-8: they are left out",
        ),
    ],
)
def test_letters_are_read_as_they_were_written(written: bytes, read: str, note: str | None) -> None:
    """Spreadsheets write them as Windows has them, and what is damaged is not taken for that."""
    rows, notes = _read(b"id,name\n1,a\n2," + written + b"\n3,b\n")
    assert [row["name"] for row in rows] == ["a", read, "b"]
    assert notes == Counter([] if note is None else [note])
    assert _read(written + b"\n1\n")[0] == [{read: "1"}]


def test_rows_of_other_lengths_are_said() -> None:
    """What is there is read."""
    rows, notes = _read(b"a,b\n1\n1,2,3\n1,2,\n")
    assert rows == [{"a": "1"}, {"a": "1", "b": "2"}, {"a": "1", "b": "2"}]
    assert [(said.partition(" than")[0], count) for said, count in notes.items()] == [
        ("a row with less cells", 1),
        ("a row with more cells", 1),
    ]


_PIECES = [
    b"sep=",
    b"sep=;\n",
    b"\xef\xbb\xbf",
    b"\xff",
    b"\0",
    b"\xc3\xa9",
    b"COPY a (b) FROM stdin;\n",
    b"NaN",
    b"\\",
]
_PIECES += [bytes([letter]) for letter in b"a1 ,;\t|\"'\r\n{}[]:"]


@settings(max_examples=400)
@given(pieces=st.lists(st.sampled_from(_PIECES), max_size=24))
def test_whatever_a_file_holds_it_ends_no_import(pieces: list[bytes]) -> None:
    """It has rows, or what is wrong with it is said, or there is nothing in it."""
    body = b"".join(pieces)
    with tempfile.TemporaryFile("w+b", buffering=0) as file:
        file.write(body)
        log = LogFile(Path("table.csv"), file, len(body))  # pyright: ignore[reportArgumentType]  # unbuffered: a FileIO
        rows = list(rows_of(log, tables=lambda names: "b" in names))
        assert all(isinstance(row, dict) for row in rows)
        assert log.offset == len(body)
    names_of_columns(body.decode("utf-8", "replace"))


def test_rows_come_in_chunks_that_are_not_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """By how many there are, and by how long they are."""
    body = b"a,b\n" + b"1,2\n" * 5
    monkeypatch.setattr(tables, "CHUNK_ROWS", 2)
    with tempfile.TemporaryFile("w+b", buffering=0) as file:
        file.write(body)
        log = LogFile(Path("table.csv"), file, len(body))  # pyright: ignore[reportArgumentType]  # unbuffered: a FileIO
        assert [len(chunk) for chunk in cells_of(log)] == [2, 2, 1]
        monkeypatch.setattr(tables, "CHUNK_ROWS", 1_000_000)
        monkeypatch.setattr(tables, "CHUNK_BYTES", 1 << 20)
        long = b"a,b\n" + (b"1," + b"x" * (1 << 10) + b"\n") * 5_000
        file.seek(0)
        file.write(long)
        log = LogFile(Path("table.csv"), file, len(long))  # pyright: ignore[reportArgumentType]  # unbuffered: a FileIO
        lengths = [len(chunk) for chunk in cells_of(log)]
    assert sum(lengths) == 5_000
    assert max(lengths) <= 2_200
