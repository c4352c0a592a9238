"""Amounts: sums keep every digit."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from taximeter.records import Basis, Cost, CostLine, Rate, exact_sum

_PICODOLLAR = Decimal("1e-12")


@given(st.lists(st.integers(-(10**45), 10**45)))
def test_a_sum_of_picodollars_is_exact(counts: list[int]) -> None:
    """Any number of digits, where plain `sum` rounds to 28."""
    amounts = [Decimal(f"{count}e-12") for count in counts]
    assert exact_sum(amounts) == Decimal(f"{sum(counts)}e-12")


def test_a_costs_total_keeps_its_last_picodollar() -> None:
    """10^30 dollars and a picodollar: 43 digits."""
    rate = Rate(unit="compute_ns", amount=Decimal(1), per=1)
    lines = tuple(
        CostLine(unit=rate.unit, quantity=1, rate=rate, amount=amount, basis=Basis.ASSUMED)
        for amount in (Decimal(10) ** 30, _PICODOLLAR)
    )
    assert Cost(lines=lines, basis=Basis.ASSUMED).total == Decimal("1" + "0" * 30 + "." + "0" * 11 + "1")
