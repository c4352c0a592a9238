"""A request has one first receipt, and who knows the request finds it: also a call's, which no index has by request."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from taximeter.errors import LedgerError
from taximeter.ledger import Form, Ledger, native_rows
from taximeter.ledger.firsts import BY_REQUEST, first_of, firsts_beginning
from taximeter.ledger.forms import Call
from taximeter.ledger.rollups import ALL
from taximeter.records import Receipt
from tests.unit.ledger.conftest import Open
from tests.unit.ledger.records import a_receipt
from tests.unit.ledger.test_bulk import LEAVES, a_call, a_prototype

FORM = Form.of(a_prototype(), LEAVES)


def of_a_gateway(request_id: str, *, receipt_id: str = "rcpt_of_a_gateway") -> Receipt:
    receipt = a_receipt()
    return replace(receipt, id=receipt_id, request=replace(receipt.request, id=request_id))


def _takes_none(_: object) -> bool:
    return False


def as_told(ledger: Ledger, entry: Call | Receipt) -> bool:
    """Whether it was written."""
    if isinstance(entry, Call):
        return ledger.append_many([entry]).written == 1
    try:
        ledger.append(entry).result()
    except LedgerError:
        return False
    return True


@pytest.mark.parametrize("entries", [*permutations(["call", "another", "gateway"], 2)])
def test_a_request_has_one_first_receipt(ledger: Ledger, entries: tuple[str, str]) -> None:
    """Whatever comes first and however it is named: a log's call, another of the same request, a gateway's receipt."""
    call = a_call(FORM, 1)
    made: dict[str, Call | Receipt] = {"call": call, "another": call._replace(id="rcpt_another")}
    made["gateway"] = of_a_gateway(call.request_id)
    first, second = (made[each] for each in entries)
    assert as_told(ledger, first)
    assert not as_told(ledger, second)
    assert [receipt.id for receipt in ledger.receipts()] == [first.id]
    found = ledger.receipt(call.request_id)
    assert found is not None
    assert found.id == first.id


@pytest.mark.parametrize("takes_columns", [True, False])
@pytest.mark.parametrize("is_first", [True, False])
def test_so_it_is_within_a_batch(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, *, takes_columns: bool, is_first: bool
) -> None:
    """One of two is written, the other is refused by name, and nothing of it is in the sums."""
    if not takes_columns:
        monkeypatch.setattr(native_rows, "are_known", _takes_none)
    call = a_call(FORM, 1)
    second = call._replace(id="rcpt_00000" if is_first else "rcpt_00002")
    became = ledger.append_many([call, second, a_call(FORM, 3)])
    assert became.written == 2
    ((refused, why),) = became.refused
    assert refused in (call.id, second.id)
    assert "has a receipt already" in why
    everything = ledger.group(*ALL)
    assert everything is not None
    assert everything.receipts == 2
    assert len(ledger.receipts()) == 2


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_calls_are_found_by_their_requests_and_by_how_these_begin(ledger: Ledger, path: Path) -> None:
    """By an index each time; and that of first receipts by request has none of them."""
    ledger.append_many([a_call(FORM, 1), a_call(FORM, 20)])
    ledger.append(of_a_gateway("req_2_of_a_gateway")).result()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM receipts").fetchone() == (3,)
        kept = connection.execute(f"SELECT count(*) FROM receipts INDEXED BY receipts_first WHERE {BY_REQUEST}")
        assert kept.fetchone() == (1,)
    for name, expected in {
        "req_00001": "rcpt_00001",
        "req_00001"[:8]: "rcpt_00001",
        "req_0002": "rcpt_00020",
        "req_2": "rcpt_of_a_gateway",
        "rcpt_0002": "rcpt_00020",
    }.items():
        found = ledger.receipt(name)
        assert found is not None, name
        assert found.id == expected
    for several in ("req_", "re", "req_000"):
        with pytest.raises(LedgerError, match="several receipts begin with"):
            ledger.receipt(several)
    assert ledger.receipt("abc") is None
    assert ledger.receipt("ab") is None


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_no_question_for_them_goes_through_the_table(ledger: Ledger, path: Path) -> None:
    """SQLite's own plans."""
    with closing(sqlite3.connect(path)) as connection:
        for question, values in (first_of("req_1"), *firsts_beginning("req_1", 4), *firsts_beginning("r", 4)):
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {question}", values)]
            assert not [step for step in plan if step.startswith("SCAN") or "TEMP B-TREE" in step], (question, plan)
            assert any("INDEX receipts_first" in step or "INDEX receipts_by_id" in step for step in plan), plan


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_an_older_ledger_gets_the_narrower_index(ledger: Ledger, path: Path, reopen: Open) -> None:
    """With what it holds: its calls and receipts are found as before, and nothing becomes a second one."""
    call, receipt = a_call(FORM, 1), of_a_gateway("req_of_a_gateway")
    ledger.append_many([call])
    ledger.append(receipt).result()
    ledger.close()
    with closing(sqlite3.connect(path)) as connection:  # as the version before made it
        connection.executescript(
            "DROP INDEX receipts_first;"
            "CREATE UNIQUE INDEX receipts_first ON receipts (request_id) WHERE supersedes IS NULL;"
            "UPDATE schema_version SET version_num = '0006';"
        )
    with reopen() as opened:
        for name, id_ in ((call.request_id, call.id), (receipt.request.id, receipt.id)):
            found = opened.receipt(name)
            assert found is not None
            assert found.id == id_
        again = opened.append_many([call, call._replace(id="rcpt_another")])
        assert again.written == 0
        assert again.present == [call.id]
        with pytest.raises(LedgerError, match="has a receipt already"):
            opened.append(replace(receipt, id="rcpt_another")).result()
    with closing(sqlite3.connect(path)) as connection:
        (sql,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'receipts_first'").fetchone()
    assert "source IS NULL OR" in sql
