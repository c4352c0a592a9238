"""Questions to the ledger."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.errors import LedgerError
from taximeter.ledger import Ledger
from taximeter.records import Receipt, exact_sum
from tests.unit.ledger.records import NOON, a_receipt, a_request, picodollars


def test_pages_follow_each_other_without_gap_or_repeat(ledger: Ledger) -> None:
    """Newest first by the time of closing, then by id, also where many closed at one instant or between whole
    seconds."""
    times = [NOON + timedelta(microseconds=500_000 * (number // 4)) for number in range(25)]
    receipts = [a_receipt(closed_at=at) for at in times]
    for receipt in receipts:
        ledger.append(receipt)
    expected = sorted(receipts, key=lambda receipt: (receipt.closed_at, receipt.id), reverse=True)
    assert ledger.append(expected[0]).result() is None
    seen = ledger.receipts(limit=7)
    while page := ledger.receipts(limit=7, before=seen[-1].id):
        seen += page
    assert seen == expected
    assert ledger.latest() == expected[0]
    assert ledger.receipts(limit=3, before=expected[1].request.id) == expected[2:5]
    assert ledger.receipts(limit=0) == ledger.receipts(limit=-1) == []
    assert ledger.receipts(limit=10**30) == expected
    with pytest.raises(LedgerError, match="no receipt"):
        ledger.receipts(before="rcpt_unheard_of")


def test_a_corrected_receipt_is_listed_and_counted_once(ledger: Ledger) -> None:
    """What the list shows adds up to the total; the old receipt can still be looked up, and paged from."""
    request = a_request()
    wrong = a_receipt(request, dollars=Decimal("0.02"))
    right = a_receipt(request, dollars=Decimal("0.01"), supersedes=wrong.id, closed_at=NOON + timedelta(seconds=1))
    other = a_receipt(dollars=Decimal("0.005"), closed_at=NOON - timedelta(seconds=1))
    for receipt in (wrong, right, other):
        ledger.append(receipt).result()
    assert ledger.receipts() == [right, other]
    assert ledger.total_cost() == Decimal("0.01") + Decimal("0.005")
    assert ledger.receipt(wrong.id) == wrong
    assert ledger.receipt(request.id) == right
    assert ledger.receipts(before=wrong.id) == [other]


def test_the_beginning_of_an_id_is_enough_when_only_one_begins_so(ledger: Ledger) -> None:
    """Several matches are an error that names them; wildcards mean themselves."""
    one = a_receipt(receipt_id="rcpt_0aaa")
    two = a_receipt(receipt_id="rcpt_0aab")
    for receipt in (one, two):
        ledger.append(receipt).result()
    assert ledger.receipt("rcpt_0aab") == two
    assert ledger.receipt(one.request.id[:-1]) == one
    with pytest.raises(LedgerError, match="rcpt_0aaa, rcpt_0aab"):
        ledger.receipt("rcpt_0")
    for nothing in ("", "rcpt_1", "rcpt_%", "%", "rcpt_0aa_", "\ud800", "\0"):
        assert ledger.receipt(nothing) is None
    for _ in range(7):
        ledger.append(a_receipt()).result()
    with pytest.raises(LedgerError, match=r"(rcpt_\w+, ){5}\.\.\."):
        ledger.receipt("r")


def test_an_empty_ledger_answers(ledger: Ledger) -> None:
    """Nothing is nothing, not an error."""
    assert ledger.receipts() == []
    assert ledger.latest() is None
    assert ledger.total_cost() == 0


@settings(deadline=None)
@given(st.lists(st.none() | st.integers(-(10**33), 10**33), max_size=8))
def test_the_total_is_the_exact_sum(shared_ledger_of_each: Ledger, counts: list[int | None]) -> None:
    """To the last picodollar, with negative amounts, none at all, and such as no sum of the tables takes."""
    ledger = shared_ledger_of_each
    before = ledger.total_cost()
    for future in [ledger.append(a_receipt(dollars=None if count is None else picodollars(count))) for count in counts]:
        future.result()
    added = picodollars(sum(count or 0 for count in counts))
    assert ledger.total_cost() == exact_sum([before, added])


def test_a_total_past_64_bits_neither_wraps_nor_raises(ledger: Ledger) -> None:
    """Three times 2^62 dollars, a picodollar, and 10^30 dollars that no column holds."""
    half = Decimal(2**62)
    for dollars in (half, half, half, picodollars(1), Decimal(10) ** 30):
        ledger.append(a_receipt(dollars=dollars)).result()
    assert ledger.total_cost() == picodollars((3 * 2**62 + 10**30) * 10**12 + 1)


def test_receipts_are_listed_by_when_their_requests_came(ledger: Ledger) -> None:
    """Whenever they were closed: one that took a day is of the day before."""
    hours = [(0, 30), (1, 1), (2, 2), (2, 26), (3, 3), (40, 41)]
    receipts = [
        replace(
            a_receipt(closed_at=NOON + timedelta(hours=closed)),
            request=replace(a_request(), received_at=NOON + timedelta(hours=received)),
        )
        for received, closed in hours
    ]
    for receipt in receipts:
        ledger.append(receipt).result()
    by_end = sorted(receipts, key=lambda receipt: (receipt.closed_at, receipt.id), reverse=True)
    for since, until in ((None, 2), (1, 3), (0, 1), (5, None), (-9, 0), (None, None)):
        start, end = (None if hour is None else NOON + timedelta(hours=hour) for hour in (since, until))
        expected = [
            receipt.id
            for receipt in by_end
            if (start is None or receipt.request.received_at >= start)
            and (end is None or receipt.request.received_at < end)
        ]
        found: list[Receipt] = []
        while page := ledger.receipts(2, found[-1].id if found else None, since=start, until=end):
            found += page
        assert [receipt.id for receipt in found] == expected
