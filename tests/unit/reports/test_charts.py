"""Axes of charts: whatever the largest value is, it is on the axis."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from taximeter.reports.charts import Scale


@given(largest=st.decimals(min_value=Decimal("1e-9"), max_value=Decimal("1e15"), allow_nan=False, allow_infinity=False))
def test_the_largest_value_is_on_the_axis(largest: Decimal) -> None:
    """And takes more than half of it; the axis has two to five steps of 1, 2 or 5 times a power of ten."""
    scale = Scale.up_to(largest)
    assert scale.end / 2 < largest <= scale.end
    assert 1 <= scale.steps <= 5
    assert str(scale.step.normalize().as_tuple().digits[0]) in "125"


def test_what_is_a_whole_number_of_steps_ends_the_axis() -> None:
    assert [(Scale.up_to(Decimal(each)).step, Scale.up_to(Decimal(each)).steps) for each in (268, 250, 100, 1)] == [
        (100, 3),
        (50, 5),
        (20, 5),
        (Decimal("0.2"), 5),
    ]
