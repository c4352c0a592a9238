"""Axes of charts: whatever the largest value is, it is on the axis."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.reports.charts import Bar, Scale, over_time

LABEL_WIDTH = 38  # of a day's, in the pictures' own units


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


@pytest.mark.parametrize("count", [1, 7, 31, 72, 90])
def test_every_label_of_the_time_axis_is_on_the_picture(count: int) -> None:
    """Also the last one, whose bar ends where the picture does."""
    bars = [Bar(label="12-01", parts=[Decimal(1)], title="") for _ in range(count)]
    drawn = over_time(bars, name="cost", ticks=Scale.up_to(Decimal(1)), tick_texts=["", "", "", "", "", ""])
    width = float(re.findall(r'viewBox="0 0 (\d+) ', drawn)[0])
    labels = re.findall(r'<text x="([\d.]+)" y="[\d.]+" text-anchor="(middle|end)">12-01<', drawn)
    assert labels
    for x, side in labels:
        assert float(x) + (LABEL_WIDTH / 2 if side == "middle" else 0) <= width
