"""Axes of charts: whatever the largest value is, it is on the axis."""

from __future__ import annotations

import re
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.reports.charts import Bar, Scale, by_row, over_time

LABEL_WIDTH = 38  # of a day's


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


@pytest.mark.parametrize("count", [1, 7, 31, 72, 90, 400])
def test_labels_of_the_time_axis_never_meet(count: int) -> None:
    """Nor leave the page: beside the plot is room for half a label, and less room has fewer of the same labels."""
    bars = [Bar(label=f"at {number}", parts=[Decimal(1)], title="") for number in range(count)]
    drawn = over_time(bars, name="cost", ticks=Scale.up_to(Decimal(1)), tick_texts=["$0", "$1"])
    width = 375.0 - 2 * 16
    narrow = _labels(drawn, "")
    both = sorted(narrow + _labels(drawn, ' class="wide"'))
    assert _is_room(narrow, width - 72)
    assert _is_room(both, 45 * 16 - 72 - 16)
    assert narrow[0] == both[0]
    assert all(0 < at < 100 for at in both)


def _labels(drawn: str, kind: str) -> list[float]:
    """Where they are, in per cent."""
    return [float(at) for at in re.findall(rf'<text{kind} x="([0-9.]+)%" [^>]*>at ', drawn)]


def _is_room(labels: list[float], width: float) -> bool:
    return all((after - before) / 100 * width > LABEL_WIDTH for before, after in pairwise(labels))


@given(amount=st.integers(1, 10**18))
def test_amounts_of_the_axis_have_room_beside_it(amount: int) -> None:
    """Of a million millions of tokens too."""
    text = f"{amount:,}"
    drawn = over_time(
        [Bar(label="", parts=[Decimal(amount)], title="")],
        name="tokens",
        ticks=Scale.up_to(Decimal(amount)),
        tick_texts=["0", text],
    )
    (left,) = re.findall(r"margin-left:(\d+)px", drawn)
    assert int(left) >= 7 * len(text) + 8


def test_names_of_strangers_are_texts_and_keep_their_direction_to_themselves() -> None:
    bars = [Bar(label="</bdi><b>إصلاح", parts=[Decimal(1)], title='"><i>')]
    drawn = by_row(bars, name="by <task>", amounts=["$1"])
    assert "<b>" not in drawn
    assert "<i>" not in drawn
    assert "&lt;/bdi&gt;&lt;b&gt;إصلاح</bdi>" in drawn


@given(parts=st.lists(st.lists(st.integers(0, 10**15), min_size=2, max_size=2), min_size=1, max_size=4))
def test_the_longest_bar_ends_where_its_room_does(parts: list[list[int]]) -> None:
    """And none later; what is a hundredth of a thousandth is rounded away."""
    bars = [Bar(label="a", parts=[Decimal(part) for part in each], title="") for each in parts]
    drawn = by_row(bars, name="", amounts=["" for _ in bars])
    ends = [
        sum(float(width) for width in re.findall(r'<rect [^>]*width="([0-9.]+)"', bar))
        for bar in drawn.split("<svg")[1:]
    ]
    assert len(ends) == len(bars)
    assert max(ends) == pytest.approx(1000 if any(map(sum, parts)) else 0, abs=0.05)
