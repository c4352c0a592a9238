"""JSON documents: a list is read entry by entry, wherever blocks end, and a damaged one as far as it goes."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.importers import documents
from taximeter.importers.documents import objects_of
from taximeter.importers.logged import LogFile
from taximeter.importers.rows import rows_of

_TEXTS = st.text(alphabet='a"\\[]{},: \n\u00e9\N{GRINNING FACE}', max_size=6)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=8,
)
_ENTRIES = st.lists(st.dictionaries(_TEXTS, _VALUES, max_size=3) | st.integers(0, 3), max_size=6)
_WHOLE = 1 << 20


def _read(body: bytes, block_bytes: int) -> tuple[list[dict[str, Any]], Counter[str]]:
    """The objects, and what was noted."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryFile("w+b", buffering=0) as file:
        patch.setattr(documents, "CHUNK_BYTES", block_bytes)
        file.write(body)
        log = LogFile(Path("list.json"), file, len(body))  # pyright: ignore[reportArgumentType]  # unbuffered: a FileIO
        return [dict(row) for chunk in objects_of(log) for row in chunk], log.notes


@given(
    entries=_ENTRIES,
    name=st.none() | st.sampled_from(documents.LISTS),
    indent=st.none() | st.integers(0, 2),
    around=st.dictionaries(st.sampled_from(["a", "meta", "total"]), _VALUES, max_size=2),
    block_bytes=st.integers(1, 40),
)
def test_a_list_is_read_the_same_wherever_blocks_end(
    entries: list[Any], name: str | None, indent: int | None, around: dict[str, Any], block_bytes: int
) -> None:
    """By itself, and in an object among other things."""
    value = entries if name is None else {**around, name: entries, "has_more": False}
    rows, notes = _read(json.dumps(value, indent=indent, ensure_ascii=False).encode(), block_bytes)
    assert rows == [entry for entry in entries if isinstance(entry, dict)]
    assert notes.total() == sum(not isinstance(entry, dict) for entry in entries)


@given(
    entries=_ENTRIES,
    wrapped=st.booleans(),
    place=st.integers(0, 200),
    cut=st.integers(0, 3),
    put=st.sampled_from([b"", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b"NaN", b"\xff", b"\0", b"\n"]),
    block_bytes=st.integers(1, 40),
)
def test_a_damaged_list_is_read_the_same_wherever_blocks_end(
    entries: list[Any], wrapped: bool, place: int, cut: int, put: bytes, block_bytes: int
) -> None:
    """And what is left out is said."""
    sound = json.dumps({"data": entries} if wrapped else entries).encode()
    place %= len(sound)
    body = sound[:place] + put + sound[place + cut :]
    if body[:1] not in (b"[", b"{"):
        return
    assert _read(body, block_bytes) == _read(body, _WHOLE)


@pytest.mark.parametrize(
    ("body", "objects", "note"),
    [
        (b'[{"a": 1}, {"b": 2}', 2, "breaks off"),
        (b'[{"a": 1}}, {"b": 2}]', 1, "damaged"),
        (b'[{"a": 1], {"b": 2}]', 0, "damaged"),
        (b'{"total": 2, "data": [{"a": 1}, {"b"', 1, "breaks off"),
        (b'{"total": 2, "found": [{"a": 1}, {"b"', 0, "no JSON"),
        (b'[{"a": 1}, 5, {"b": 2}]', 2, "no JSON object"),
        (b'[{"a": NaN}, {"b": "\xff"},, {"c": "\n"}]', 3, None),
    ],
)
def test_what_is_left_out_of_a_list_is_said(body: bytes, objects: int, note: str | None) -> None:
    """As far as it goes it is read, and what is beside the point is forgiven."""
    rows, notes = _read(body, _WHOLE)
    assert len(rows) == objects
    assert [note in said for said in notes] == ([] if note is None else [True])


def test_a_long_list_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    """The first rows are there before the rest is read."""
    path = tmp_path / "list.json"
    path.write_text(json.dumps([{"text": "x" * 1_000, "n": n} for n in range(20_000)], indent=1))
    read_bytes = 0

    def count(more: int) -> None:
        nonlocal read_bytes
        read_bytes += more

    with path.open("rb", buffering=0) as file:
        size = path.stat().st_size
        rows = rows_of(LogFile(path, file, size, on_bytes=count))
        assert next(rows)["n"] == 0
        assert read_bytes < size / 2
        assert sum(1 for _ in rows) == 19_999
    assert read_bytes == size


def test_a_list_in_one_long_line_is_no_line(tmp_path: Path) -> None:
    """As interfaces answer with it: an object with the list in it, however long."""
    path = tmp_path / "list.json"
    path.write_text(json.dumps({"data": [{"text": "x" * 100, "n": n} for n in range(2_000)], "meta": {}}))
    with path.open("rb", buffering=0) as file:
        rows = list(rows_of(LogFile(path, file, path.stat().st_size)))
    assert [row["n"] for row in rows] == list(range(2_000))


@pytest.mark.parametrize(
    ("lines", "rows"),
    [
        ([{"n": 1, "items": [{"x": 1}]}, {"n": 2}], [{"n": 1, "items": [{"x": 1}]}, {"n": 2}]),
        ([{"data": [{"n": 1}, {"n": 2}], "meta": {"page": 1}}, {"data": [{"n": 3}]}], [{"n": 1}, {"n": 2}, {"n": 3}]),
        ([{"data": [{"n": 1}], "has_more": False}], [{"n": 1}]),
        ([{"n": 1}, {"data": [{"n": 2}]}], [{"n": 1}, {"data": [{"n": 2}]}]),
    ],
)
def test_pages_of_a_list_are_told_from_rows_with_lists(
    tmp_path: Path, lines: list[dict[str, Any]], rows: list[dict[str, Any]]
) -> None:
    """Answers of an interface are put into a file one below the other, and so are rows: none is left out."""
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with path.open("rb", buffering=0) as file:
        assert list(rows_of(LogFile(path, file, path.stat().st_size))) == rows


@pytest.mark.parametrize("made", [lambda: b'{"a": [1], "b": {"c": 2}}', lambda: b'{"a": "\\\\", "x": {"data": [1]}}'])
def test_an_object_without_a_list_is_a_row(made: Callable[[], bytes]) -> None:
    """It stands by itself."""
    assert _read(made(), 3) == ([json.loads(made())], Counter())
