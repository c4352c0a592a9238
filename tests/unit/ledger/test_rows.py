"""Records as rows, and back."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.errors import LedgerError
from taximeter.ledger import Ledger, rows
from taximeter.ledger.columns import MONEY_UNITS
from taximeter.ledger.database import Session
from taximeter.records import Basis, Cost, Receipt, Usage
from tests.unit.ledger.records import a_cost, a_receipt, any_receipts, picodollars


@settings(deadline=None)
@given(receipt=any_receipts())
def test_what_is_read_is_what_was_written(shared_ledger_of_each: Ledger, receipt: Receipt) -> None:
    """Any receipt the vocabulary allows comes back equal, field by field, also from numbers past 64 bits and text
    that no database takes."""
    ledger = shared_ledger_of_each
    ledger.append(receipt).result()
    assert ledger.receipt(receipt.id) == receipt
    assert ledger.receipt(receipt.request.id) == receipt


_LARGEST = rows.LARGEST_PICODOLLARS


@given(st.lists(st.integers(-_LARGEST, _LARGEST), min_size=1, max_size=5))
def test_money_in_columns_is_exact(counts: list[int]) -> None:
    """Dollars and picodollars hold every amount up to the largest, negative ones too, and what it is made of."""
    lines = [a_cost(picodollars(count)).lines[0] for count in counts]
    units = ("input_fresh_tokens", "output_text_tokens", "compute_ns", "web_searches", "images")
    named = [replace(line, unit=unit) for line, unit in zip(lines, units, strict=False)]
    columns = rows.split_cost(Cost(lines=tuple(named), basis=Basis.DERIVED))
    if columns is None:  # two units that are no bucket's, and together too much
        assert abs(sum(counts[3:])) > _LARGEST
        return
    dollars, rest, *amounts = columns
    assert dollars * 10**12 + rest == sum(amounts) == sum(counts)
    assert 0 <= rest < 10**12
    by_unit = dict(zip(MONEY_UNITS, amounts, strict=True))
    assert [by_unit[unit] for unit in units[:3]] == [*counts[:3], 0, 0, 0][: len(units[:3])]
    assert by_unit["other"] == sum(counts[3:])
    assert rows.join_money(sum(counts)) == picodollars(sum(counts))


@pytest.mark.parametrize("amount", [picodollars(_LARGEST + 1), -(Decimal(10) ** 30), Decimal("1e-13")])
def test_money_that_does_not_fit_is_not_squeezed(amount: Decimal) -> None:
    """Past the largest, or finer than a picodollar, the columns stay empty."""
    assert rows.split_cost(a_cost(amount)) is None
    assert rows.picodollars_of(amount) is None


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
