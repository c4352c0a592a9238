"""Tables with a map of their columns: the right buckets, and what a row does not say is unknown."""

from __future__ import annotations

import hashlib
from decimal import Decimal
from typing import Any

import pytest

from taximeter.errors import ConfigError
from taximeter.providers.metering.plain import LEAVES
from taximeter.records import Outcome
from tests.unit.importers.logs import Desk
from tests.unit.importers.test_exports import as_csv

MAP = """
source = "our-proxy"
provider = "openai"

[columns]
time = "when"
id = "id"
model = "model"
duration_ms = "took"
cost = "price"
session = "meta.chat"
key = "caller"
outcome = "status"

[tokens]
input = "in"
output = "out"
cache_read = "cached"
reasoning = "thought"

[labels]
team = "meta.team"
"""


def test_any_table_is_read_by_a_map_of_its_columns(desk: Desk) -> None:
    """Dots lead into objects; a row without an id is named by what it says."""
    columns = desk.folder / "map.toml"
    columns.write_text(MAP)
    row = {"when": "2026-10-29T12:00:00+02:00", "model": "g5-card", "in": "10000", "cached": 8_000, "out": 1_000}
    row |= {"thought": 300, "took": 1_500, "price": "$0.02", "meta": {"chat": "c1", "team": "search"}, "caller": "ci"}
    rows = [row | {"id": 1, "status": "ok"}, row | {"status": "error 500"}, row | {"status": "error 500"}]
    desk.write("calls.csv", as_csv(rows))
    summary = desk.run(columns=columns)
    receipts = desk.receipts()
    assert len(receipts) == 2
    assert {each.outcome for each in receipts} == {Outcome.COMPLETED, Outcome.FAILED}
    assert {(each.source, each.request.session, each.request.key) for each in receipts} == {("our-proxy", "c1", "ci")}
    assert receipts[0].request.labels == {"team": "search"}
    assert receipts[0].request.received_at.hour == 10
    assert [each.cost.total for each in receipts if each.cost] == [Decimal("0.0135")] * 2
    assert [each.timing.total_ns for each in receipts if each.timing] == [1_500_000_000] * 2
    assert summary.total.reported == Decimal("0.04")
    assert desk.run(columns=columns).files_unchanged == 1
    columns.write_text(MAP.replace('cache_read = "cached"\n', ""))
    assert desk.run(columns=columns).files_read == 1, "another map reads other things"


@pytest.mark.parametrize(
    ("written", "meant"),
    [("0,0056", "0.0056"), ("0,005", "0.005"), ("1,5", "1.5"), ("1.234,50", "1234.50"), ("1,234", None), ("n/a", None)],
)
def test_a_cost_may_have_a_decimal_comma(desk: Desk, written: str, meant: str | None) -> None:
    """Where it cannot be a comma between thousands; what is no number is said, and not nothing."""
    columns = desk.folder / "map.toml"
    columns.write_text(MAP)
    desk.write("calls.csv", f"when;model;in;out;price\n2026-10-29 12:00:00;g5-card;100;10;{written}\n".encode())
    summary = desk.run(columns=columns)
    (receipt,) = desk.receipts()
    assert receipt.cost_reported == (None if meant is None else Decimal(meant))
    assert summary.notes["a cost that is no number"] == (meant is None)


def test_a_table_that_a_spreadsheet_saved_is_read(desk: Desk) -> None:
    """With its own first line, commas in numbers, and letters as Windows has them."""
    columns = desk.folder / "map.toml"
    columns.write_text(MAP.replace("duration_ms", "duration_s"))
    table = (
        'sep=;\r\nwhen; "model"; in ;out;cached;price;took;caller\r\n'
        '2026-10-29 12:00:00; "g5-card";10000;1000,0;8000;0,0213;1,25;M\u00fcller\r\n;;;;;;;\r\n'
    )
    desk.write("calls.csv", table.encode("cp1252"))
    summary = desk.run(columns=columns)
    (receipt,) = desk.receipts()
    assert receipt.cost is not None
    assert (receipt.cost.total, receipt.cost_reported) == (Decimal("0.0135"), Decimal("0.0213"))
    assert receipt.timing is not None
    assert receipt.timing.total_ns == 1_250_000_000
    assert receipt.request.key == "M\u00fcller"
    assert dict(summary.notes) == {"a row that is no UTF-8 is read as Windows-1252": 1}


@pytest.mark.parametrize(
    ("begins", "said"),
    [
        (b"PK\x03\x04", "save the sheet"),
        (b"PAR1", "Parquet"),
        (b"SQLite format 3\0", "SQLite"),
        (b"PGDMP", "pg_restore"),
    ],
)
def test_what_is_no_text_is_told_what_to_do(desk: Desk, begins: bytes, said: str) -> None:
    """Once, not for each of what might be its rows."""
    columns = desk.folder / "map.toml"
    columns.write_text(MAP)
    path = desk.write("calls.csv", begins + b"\x00\x01\n,\n" * 100)
    (note,) = desk.run(path, columns=columns).notes.items()
    assert said in note[0]
    assert note[1] == 1


@pytest.mark.parametrize(
    "wrong", ["columns = 3", '[columns]\ntime = "t"', 'source = "x"\n[columns]\ntime = "t"\nmodle = "m"']
)
def test_a_map_that_is_not_understood_says_so(desk: Desk, wrong: str) -> None:
    """Before anything is read."""
    columns = desk.folder / "map.toml"
    columns.write_text(wrong)
    path = desk.write("calls.csv", b"t\n1\n")
    with pytest.raises(ConfigError, match=r"map\.toml"):
        desk.run(path, columns=columns)


def test_a_column_that_is_not_there_is_named(desk: Desk) -> None:
    """A map for another table: not each row's own fault."""
    columns = desk.folder / "map.toml"
    columns.write_text(MAP)
    desk.write("calls.csv", b"at,model,in,out\n2026-10-29 12:00:00,g5-card,100,10\n")
    assert dict(desk.run(columns=columns).notes) == {"a row without the column 'when', which has the time": 1}
    desk.write("calls.jsonl", {"when": None, "model": "g5-card", "in": 100, "out": 10})
    assert dict(desk.run(columns=columns).notes) == {"a row without a time": 1}
    desk.write("calls.jsonl", {"when": "yesterday, at noon", "model": "g5-card", "in": 100, "out": 10})
    assert dict(desk.run(columns=columns).notes) == {
        "a row with a time that is neither ISO 8601 nor a number since 1970": 1
    }


@pytest.mark.parametrize("rows", [1, 400])
def test_a_map_that_was_put_right_puts_receipts_right(desk: Desk, rows: int) -> None:
    """More tokens, fewer, or the same in other buckets: what the map says now counts, once."""
    columns = desk.folder / "map.toml"
    lines = [
        {"when": 1_790_000_000, "id": n, "model": "g5-card", "in": 2_006, "cached": 1_920, "out": 300}
        for n in range(rows)
    ]
    desk.write("calls.jsonl", *lines)
    inclusive = MAP.replace('session = "meta.chat"', "")
    exclusive = inclusive.replace("[tokens]", "[tokens]\ninput_includes_cache = false")
    found: list[tuple[int, int | None, int | None]] = []
    for text in (inclusive.replace('cache_read = "cached"\n', ""), inclusive, exclusive, inclusive):
        columns.write_text(text)
        summary = desk.run(columns=columns)
        used = [each.usage for each in desk.receipts()]
        assert len(used) == rows
        assert used[0] is not None
        assert all(each == used[0] for each in used)
        found.append((summary.corrected, used[0].input_fresh_tokens, used[0].input_cache_read_tokens))
        assert desk.run(columns=columns).corrected == 0
    assert found == [(0, 2_006, 0), (rows, 86, 1_920), (rows, 2_006, 1_920), (rows, 86, 1_920)]


def test_counts_that_contradict_each_other_are_unknown(desk: Desk) -> None:
    """A remainder below zero is a reason, never a zero."""
    columns = desk.folder / "map.toml"
    columns.write_text(MAP)
    desk.write("calls.jsonl", {"when": 1_790_000_000, "model": "g5-card", "in": 10, "cached": 20, "out": 1})
    desk.run(columns=columns)
    (receipt,) = desk.receipts()
    assert receipt.cost is None
    assert "contradict" in (receipt.uncosted_reason or "")


@pytest.mark.parametrize("missing", ["in", "out"])
def test_a_count_that_a_row_does_not_have_is_unknown(desk: Desk, missing: str) -> None:
    """Not zero: a call whose prompt nobody counted would be cheap. What the row does say stays."""
    columns = desk.folder / "map.toml"
    columns.write_text(MAP)
    row = {"when": 1_790_000_000, "model": "g5-card", "in": 10, "out": 7} | {missing: None}
    desk.write("calls.jsonl", row)
    desk.run(columns=columns)
    (receipt,) = desk.receipts()
    assert receipt.usage is not None
    assert (receipt.usage.input_tokens, receipt.usage.output_tokens) == (
        None if missing == "in" else 10,
        None if missing == "out" else 7,
    )
    assert receipt.cost is None
    assert "the row does not say how many tokens" in (receipt.uncosted_reason or "")


@pytest.mark.parametrize(
    ("row", "leaves"),
    [
        ({"cached": 5}, (None, 5, None, None, None, None, None)),
        ({"cached": 5, "out": 7, "thought": 2}, (None, 5, None, None, None, 5, 2)),
        ({"cached": 5, "written": 30, "written_1h": 10, "out": 7}, (None, 5, 0, 10, 20, 7, 0)),
        ({"in": 10, "thought": 2}, (10, 0, 0, 0, 0, None, 2)),
        ({"in": 10, "cached": "some", "out": 7}, (None, None, 0, 0, 0, 7, 0)),
        ({"in": 10, "cached": "1,234", "out": 7}, (None, None, 0, 0, 0, 7, 0)),
        ({"in": 10, "cached": "NULL", "out": "7,0"}, (10, 0, 0, 0, 0, 7, 0)),
        ({"in": "10.0", "cached": "4,0", "out": 7}, (6, 4, 0, 0, 0, 7, 0)),
        ({"in": "many", "out": "few"}, (None,) * 7),
        ({}, None),
    ],
)
def test_what_a_row_does_say_of_its_tokens_stays(
    desk: Desk, row: dict[str, Any], leaves: tuple[int | None, ...] | None
) -> None:
    """What is no count is unknown, said, and never nothing."""
    columns = desk.folder / "map.toml"
    columns.write_text(MAP.replace("[tokens]", '[tokens]\ncache_write = "written"\ncache_write_1h = "written_1h"'))
    desk.write("calls.jsonl", {"when": 1_790_000_000, "model": "g5-card", **row})
    summary = desk.run(columns=columns)
    (receipt,) = desk.receipts()
    found = receipt.usage and receipt.usage.leaves()
    assert (found and tuple(found[leaf] for leaf in LEAVES)) == leaves
    assert (receipt.cost is None) == (leaves is None or None in leaves)
    no_counts = sum(value in ("some", "1,234", "many", "few") for value in row.values())
    assert sum(count for note, count in summary.notes.items() if "no count" in note) == no_counts


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("ci", "ci"),
        ("nightly-batch-evaluation-in-production", "nightly-batch-evaluation-in-production"),
        ("8d5f6f0e-5b0a-4a5e-9d0e-6d1f0f3c2b1a", "8d5f6f0e-5b0a-4a5e-9d0e-6d1f0f3c2b1a"),
        ("sk-proj-abcdefghijklmnopqrstuvwxyz0123456789", ""),
        ("Bearer abc", ""),
        ("0123456789abcdef" * 2, ""),
        ("Ab3" * 14, ""),
        ("0123456789abcdef" * 4, "0123456789ab"),
    ],
)
def test_a_key_itself_is_never_kept(desk: Desk, said: str, kept: str) -> None:
    """Tables of gateways of one's own have them now and then: the beginning of a digest tells them apart as well."""
    columns = desk.folder / "map.toml"
    columns.write_text(MAP)
    desk.write("calls.jsonl", {"when": 1_790_000_000, "model": "g5-card", "in": 1, "out": 1, "caller": said})
    desk.run(columns=columns)
    (receipt,) = desk.receipts()
    assert receipt.request.key == (kept or hashlib.sha256(said.encode()).hexdigest()[:12])


def test_a_table_without_answers_has_none(desk: Desk) -> None:
    """Embeddings: where the map has no column for them, they are not looked for."""
    columns = desk.folder / "map.toml"
    columns.write_text(MAP.replace('output = "out"\n', "").replace('reasoning = "thought"\n', ""))
    desk.write("calls.jsonl", {"when": 1_790_000_000, "model": "g5-card", "in": 800_000})
    desk.run(columns=columns)
    assert desk.total() == 1
