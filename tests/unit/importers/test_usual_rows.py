"""Rows that are read by columns say what they would have said one by one, whatever stands in them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.importers.alike import Alike, call_digest
from taximeter.importers.chunks import Cells, Chunk, Objects
from taximeter.importers.column_map import ColumnMap, Columns, Tokens
from taximeter.importers.instants import epoch_us, epochs_us
from taximeter.importers.logged import LogFile, LoggedCall
from taximeter.importers.mapped_rows import MappedRows
from taximeter.importers.usual_rows import UsualRows
from taximeter.ledger.calls import texts_of

_USUAL_TIMES = ["2026-10-29T12:00:00.125+02:00", "2026-10-30T23:59:59.999+02:00", "2026-02-28T00:00:00.000+02:00"]
_TIMES = [
    *_USUAL_TIMES,
    *("2026-10-29T12:00:00Z", "2026-10-29 12:00:00.123456789", "2026-02-29T12:00:00.125+02:00", "1793275200", ""),
    *("2026-10-29T24:00:00.125+02:00", "2026-10-29T12:00:60.125+02:00", "2014-10-29T12:00:00.125+02:00", "noon"),
]
_COUNTS = ["0", "7", "10", "250", "", "-3", " 5 ", "1_0", "12,0", "1,234", "x", "NULL", "9" * 19, "9" * 30, "\u0665"]
_TEXTS = [
    "a",
    "b",
    "",
    " ",
    "1",
    "sk-proj-abcdefghijklmnopqrstuvwxyz",
    '{"x": "n", "y": 1}',
    "\N{REPLACEMENT CHARACTER}",
]
_AMOUNTS = ["0.5", "12", "0", "$0.02", "0,25", "", "free", "-1", "1e400", "1500"]
_WORDS = ["ok", "", "OK ", "error", "200", "success"]
_ODD: list[Any] = [None, 0, 1, True, 5, 2.0, 2.5, -1, 10**30, float("inf"), {"x": 1}, ["a"]]
_COLUMNS: dict[str, list[str]] = {
    "when": _TIMES,
    "ends": _TIMES,
    **dict.fromkeys(("in", "out", "cached", "written", "written_5m", "thought"), _COUNTS),
    **dict.fromkeys(("id", "model", "chat", "caller", "tier", "seller", "meta", "meta.y"), _TEXTS),
    **dict.fromkeys(("took", "first", "price"), _AMOUNTS),
    "status": _WORDS,
    "why": ["", "", "", "overloaded"],
}
_USUALLY = {
    "when": _USUAL_TIMES[0],
    "in": "250",
    "out": "7",
    "cached": "10",
    "thought": "2",
    "written": "20",
    "written_5m": "5",
    "id": "",
    "model": "a",
    "status": "ok",
    "price": "0.5",
}


@st.composite
def maps(draw: st.DrawFn) -> ColumnMap:
    """Of some columns, or of most."""

    def column(*names: str) -> str | None:
        return draw(st.sampled_from([*names, *names, None]))

    return ColumnMap(
        source="proxy",
        columns=Columns(
            time="when",
            id=column("id", "meta.x"),
            model=column("model"),
            end=column("ends"),
            duration_ms=column("took"),
            first_token_s=column("first"),
            provider=column("seller"),
            cost=column("price"),
            session=column("chat", "meta.x"),
            key=column("caller"),
            tier=column("tier"),
            outcome=column("status"),
            error=column("why"),
        ),
        tokens=Tokens(
            input=draw(st.sampled_from(["in", "in", "in", "in", "meta.y", None])),
            output=column("out"),
            cache_read=column("cached"),
            cache_write=column("written"),
            cache_write_5m=column("written_5m"),
            reasoning=column("thought"),
            input_includes_cache=draw(st.booleans()),
            output_includes_reasoning=draw(st.booleans()),
        ),
        labels=draw(st.sampled_from([{}, {"team": "chat"}, {"team": "meta.x", "of": "meta.y"}])),
        model=draw(st.sampled_from([None, "one for all"])),
    )


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    """Rows of a table or of JSON: most cells are as they usually are."""
    count = draw(st.integers(0, 8))
    names = [*_USUALLY, *draw(st.lists(st.sampled_from(list(_COLUMNS)), max_size=12))]
    are_cells = draw(st.booleans())

    def value(name: str) -> Any:
        said: st.SearchStrategy[Any] = st.sampled_from(_COLUMNS[name])
        if not are_cells:
            said |= st.sampled_from(_ODD)
        if name in _USUALLY:
            usually = st.just(_USUALLY[name])
            said = st.one_of(usually, usually, usually, usually, usually, usually, said)
        return draw(said)

    rows = [[value(name) for name in names] for _ in range(count)]
    if are_cells:
        return Cells(names, rows)
    return Objects(dict(zip(names, row, strict=True)) for row in rows)


@settings(max_examples=150)
@given(by=maps(), chunk=chunks())
def test_by_columns_rows_say_what_they_say_one_by_one(by: ColumnMap, chunk: Chunk) -> None:
    """Each call once, in the one way or the other; and only what is read one by one has anything to note."""
    alike, others = UsualRows(MappedRows(by)).of(chunk)
    rows, (log, of_others) = MappedRows(by), (_log(), _log())
    one_by_one = [rows.call(chunk.row(place), log) for place in range(len(chunk))]
    left = [rows.call(chunk.row(place), of_others) for place in others]
    found = [*_calls_of(alike), *map(_named, left)]
    assert sorted(map(repr, found)) == sorted(map(repr, map(_named, one_by_one)))
    assert log.notes == of_others.notes
    assert sum(map(len, alike)) + len(others) == len(chunk)


def test_usual_rows_are_read_by_columns() -> None:
    """All of them, however many kinds there are; and a row that has failed is not among them."""
    names = ["when", "id", "in", "out", "model", "price", "took", "status"]
    rows = [[_USUAL_TIMES[n % 3], f"r{n}", "250", "7", "ab"[n % 2], ["", "0.5"][n % 2], "", "ok"] for n in range(6)]
    rows[4][6] = "1500"
    rows[5][7] = "error"
    by = ColumnMap(
        source="proxy",
        columns=Columns(time="when", id="id", model="model", cost="price", duration_ms="took", outcome="status"),
        tokens=Tokens(input="in", output="out"),
    )
    alike, others = UsualRows(MappedRows(by)).of(Cells(names, rows))
    assert others == [5]
    assert [(each.kind.model, each.kind.timed, len(each)) for each in alike] == [
        ("a", False, 2),
        ("b", False, 2),
        ("a", True, 1),
    ]
    assert [each.reported is None for each in alike] == [True, False, True]


@pytest.mark.parametrize("first", _TIMES)
@given(values=st.lists(st.sampled_from([*_TIMES, *_ODD]) | st.datetimes().map(str), max_size=5))
def test_instants_of_many_are_those_of_each(first: str, values: list[Any]) -> None:
    """Whichever way of writing them comes first."""
    at_us, are_there = epochs_us([first, *values])
    each = [epoch_us(value) for value in [first, *values]]
    assert at_us.tolist() == [at or 0 for at in each]
    assert are_there.tolist() == [at is not None for at in each]


@given(instants=st.lists(st.datetimes(), min_size=1), layout=st.sampled_from(["auto", "seconds", "milliseconds"]))
def test_instants_of_any_day_are_read(instants: list[Any], layout: str) -> None:
    """Of days of the calendar, in each of the ways in which programs write them."""
    for zone in ("", "Z", "+05:30", "-11:00"):
        texts = [instant.isoformat("T", layout) + zone for instant in instants]
        assert epochs_us(texts)[0].tolist() == [epoch_us(text) or 0 for text in texts]


def _log() -> LogFile:
    return LogFile(Path("table.csv"), cast("Any", None), 0, notes=Counter[str]())


def _named(call: LoggedCall | None) -> object:
    """A call by what names it, without its name."""
    if call is None:
        return None
    digest, call.identity = call_digest(call), ""
    return digest, call


def _calls_of(alike: list[Alike]) -> list[object]:
    for each in alike:
        assert len({each.kind.provider, *(origin.provider for origin in each.origins)}) == 1
    return [(digest, each.call(place)) for each in alike for place, digest in enumerate(texts_of(each.digests))]
