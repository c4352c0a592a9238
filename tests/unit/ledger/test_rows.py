"""Records as rows, and back."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.errors import LedgerError
from taximeter.ledger import Ledger, rows
from taximeter.ledger.database import Session
from taximeter.records import Receipt, Usage
from tests.unit.ledger.records import a_receipt, any_receipts, picodollars


@settings(deadline=None)
@given(receipt=any_receipts())
def test_what_is_read_is_what_was_written(shared_ledger_of_each: Ledger, receipt: Receipt) -> None:
    """Any receipt the vocabulary allows comes back equal, field by field, also from numbers past 64 bits and text
    that no database takes."""
    ledger = shared_ledger_of_each
    ledger.append(receipt).result()
    assert ledger.receipt(receipt.id) == receipt
    assert ledger.receipt(receipt.request.id) == receipt


@given(st.integers(-rows.LARGEST * 10**12, rows.LARGEST * 10**12))
def test_money_in_two_columns_is_exact(count: int) -> None:
    """Dollars and picodollars hold every amount up to the largest, negative ones too, and give it back."""
    columns = rows.split_money(picodollars(count))
    assert columns is not None
    dollars, rest = columns
    assert dollars * 10**12 + rest == count
    assert 0 <= rest < 10**12
    assert rows.join_money(count) == picodollars(count)


@pytest.mark.parametrize("amount", [Decimal(rows.LARGEST + 1), -(Decimal(10) ** 30), Decimal("1e-13")])
def test_money_that_does_not_fit_is_not_squeezed(amount: Decimal) -> None:
    """Past the largest, or finer than a picodollar, the columns stay empty."""
    assert rows.split_money(amount) is None


def test_a_number_past_the_largest_is_null_in_its_column_and_whole_in_the_document(
    ledger: Ledger, stranger: Session
) -> None:
    """10^25 tokens and 10^30 dollars neither crash nor wrap; the row says how many numbers it could not hold."""
    receipt = a_receipt(input_tokens=10**25, dollars=Decimal(10) ** 30)
    ledger.append(receipt).result()
    assert ledger.receipt(receipt.id) == receipt
    columns = "input_fresh_tokens, output_text_tokens, cost_dollars, cost_picodollars, off_scale"
    assert stranger.ask(f"SELECT {columns} FROM receipts") == [(None, 10, None, None, 2)]


def test_a_receipt_that_could_not_be_read_back_is_refused_alone(ledger: Ledger) -> None:
    """One unreadable document would spoil every list: it is refused, counted as lost, and the list is whole."""
    usage = Usage(input_fresh_tokens=1, input_cache_read_tokens=0, output_text_tokens=1, reported={"odd": object()})
    odd = a_receipt()
    object.__setattr__(odd, "usage", usage)
    overlong = a_receipt()
    object.__setattr__(overlong.request.sampling, "temperature", 10**400)
    good = a_receipt()
    done = [ledger.append(receipt) for receipt in (odd, overlong, good)]
    with pytest.raises(LedgerError, match="JSON"):
        done[0].result()
    with pytest.raises(LedgerError, match="cannot be read"):
        done[1].result()
    done[2].result()
    assert ledger.receipts() == [good]
    assert ledger.counts().lost == 2
