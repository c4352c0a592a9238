"""A call that went through the gateway and stands in a log has one receipt, whichever came first."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from taximeter.errors import LedgerError
from taximeter.ledger import FileMark, Ledger, same_calls
from taximeter.ledger.bulk import Appended
from taximeter.ledger.sqlite import SqliteSession
from taximeter.records import Receipt, Timing, new_id
from tests.unit.ledger.conftest import Open
from tests.unit.ledger.records import NOON, a_receipt, a_request

THEIRS = "req_011CSHoEeqs5C35K2UUqR7Fy"
EVER = [NOON - timedelta(days=400), NOON + timedelta(days=400)]


def of_gateway(upstream: str | None = THEIRS, *, at: datetime = NOON) -> Receipt:
    receipt = a_receipt(
        replace(a_request(at=at), session="by the gateway"),
        closed_at=at + timedelta(seconds=9),
        dollars=Decimal("0.25"),
    )
    return replace(receipt, upstream_request_id=upstream)


def of_log(upstream: str | None = THEIRS, *, at: datetime = NOON + timedelta(seconds=2), tokens: int = 5) -> Receipt:
    receipt = a_receipt(
        replace(a_request(at=at), session="by the log"), closed_at=at, dollars=Decimal("0.26"), input_tokens=tokens
    )
    return replace(receipt, upstream_request_id=upstream, source="a log", timing=Timing(total_ns=0), work=None)


def imported(ledger: Ledger, *receipts: Receipt) -> Appended:
    return ledger.append_many(receipts, [FileMark(source="a log", path="/log", document="{}")])


def all_in_one(ledger: Ledger) -> tuple[int, Decimal]:
    """Receipts and dollars by every sum that is kept; they must agree."""
    (whole,) = ledger.slices(None, EVER, percentiles=False)
    by_session = ledger.slices("session", EVER, percentiles=False)
    assert sum(part.receipts for part in by_session) == whole.receipts == len(ledger.receipts())
    assert sum(part.cost for part in by_session) == whole.cost == ledger.total_cost()
    return whole.receipts, whole.cost


def test_a_log_adds_nothing_to_what_the_gateway_saw(ledger: Ledger) -> None:
    """The gateway's receipt stays, however often the log is read, and is named as the reason."""
    ours, theirs = of_gateway(), of_log()
    ledger.append(ours).result()
    for _ in range(2):
        appended = imported(ledger, theirs)
        assert (appended.written, appended.through_gateway) == (0, [theirs.id])
    assert all_in_one(ledger) == (1, Decimal("0.25"))
    assert ledger.receipts() == [ours]


def test_a_gateways_receipt_that_comes_later_corrects_the_logs(ledger: Ledger, reopen: Open) -> None:
    """It was in a spool, say. It keeps its own names, and is found by them; writing it again changes nothing."""
    ours, theirs = of_gateway(), of_log()
    imported(ledger, theirs)
    for _ in range(2):
        ledger.append(ours).result()
    with reopen() as again:
        assert all_in_one(again) == (1, Decimal("0.25"))
        for name in (ours.id, ours.request.id, ours.request.id[:-3], theirs.request.id):
            assert again.receipt(name) == replace(ours, supersedes=theirs.id)
        assert imported(again, theirs).through_gateway == [theirs.id]
        assert all_in_one(again) == (1, Decimal("0.25"))


def test_our_own_name_is_found_in_a_log_too(ledger: Ledger) -> None:
    """Where an engine of ours answered in a provider's place, clients were told our name of the request."""
    ours = of_gateway(None)
    ledger.append(ours).result()
    assert imported(ledger, of_log(ours.request.id)).written == 0
    late = of_gateway(None)
    imported(ledger, of_log(late.request.id))
    ledger.append(late).result()
    assert imported(ledger, of_log(late.request.id)).written == 0
    assert all_in_one(ledger) == (2, Decimal("0.50"))


@pytest.mark.parametrize(
    "theirs",
    [of_log(None), of_log("req_011CSHoEeqs5C35K2UUqR7Fz"), of_log(at=NOON + timedelta(days=2))],
    ids=["no name", "another name", "another day"],
)
@pytest.mark.parametrize("log_first", [True, False])
def test_what_is_not_known_for_one_call_stays_two(ledger: Ledger, theirs: Receipt, log_first: bool) -> None:
    """Money is never left out on a guess."""
    theirs = replace(theirs, id=new_id("rcpt", NOON), request=replace(theirs.request, id=new_id("req", NOON)))
    ours = of_gateway(None if theirs.upstream_request_id is None else THEIRS)
    if log_first:
        imported(ledger, theirs)
    ledger.append(ours).result()
    if not log_first:
        assert imported(ledger, theirs).written == 1
    assert all_in_one(ledger) == (2, Decimal("0.51"))


def test_two_logs_of_one_call_stay_as_they_are(ledger: Ledger) -> None:
    """Only a gateway of ours saw the call; who wrote another log is not ours to judge."""
    imported(ledger, of_log(), of_log())
    assert all_in_one(ledger) == (2, Decimal("0.52"))


def test_only_the_receipt_of_the_same_call_may_be_corrected(ledger: Ledger) -> None:
    """By hand, too: another call's is refused."""
    theirs = of_log("req_of_something_else")
    imported(ledger, theirs)
    with pytest.raises(LedgerError, match="no receipt of the same request"):
        ledger.append(replace(of_gateway(), supersedes=theirs.id)).result()


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_neither_is_looked_for_in_a_whole_table(ledger: Ledger, path: Path) -> None:
    """SQLite's own plans of both questions."""
    ledger.append(of_gateway()).result()
    imported(ledger, of_log("req_another"))
    asked: list[str] = []
    with closing(ledger._database.session(patience_s=9)) as session:
        assert isinstance(session, SqliteSession)
        session._connection.set_trace_callback(asked.append)
        told = [(THEIRS, "2026-10-29 12:00:00.000000"), (new_id("req", NOON), "2026-10-29 12:00:00.000000")]
        assert same_calls.through_gateway(session, told)
        assert same_calls.of_a_log(session, of_gateway()) is None
    assert len(asked) == 6
    with closing(sqlite3.connect(path)) as connection:
        for question in asked:
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {question}")]
            scans = [step for step in plan if step.startswith("SCAN") and "LIMIT 1" not in question]
            assert not scans, (question, plan)
            assert "receipts" not in question or any("INDEX receipts_" in step for step in plan), (question, plan)
