"""Throughput per machine-dollar as a curve: its front, its crossings, and the words for them."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.measurement.compare.per_dollar import Curve, OperatingPoint, crossings, per_dollar_chart, says
from taximeter.records import MachineRate
from tests.measurement_harness import MS


def a_curve(
    name: str, rate: str, *points: tuple[float, float], meets: bool | None = None, spread: float | None = 0.01
) -> Curve:
    """Points are (tokens per second for each user, tokens per second of all), each off by `spread` at most."""

    def around(value: float) -> tuple[float, float] | None:
        return None if spread is None else (value * (1 - spread), value * (1 + spread))

    return Curve(
        name=name,
        rate=MachineRate(amount_per_hour=Decimal(rate)),
        points=tuple(
            OperatingPoint(
                level=number + 1,
                itl_ns=1e9 / speed,
                tokens_per_s=all_,
                itl_interval=around(1e9 / speed),
                tokens_interval=around(all_),
                meets_target=meets,
            )
            for number, (speed, all_) in enumerate(points)
        ),
    )


# A: cheap, much at once, slow for each. B: dear, quick.
A = a_curve("A", "0.50", (50, 50), (40, 160), (20, 400), (10, 500))
B = a_curve("B", "2.00", (200, 200), (100, 800), (50, 1200), (12.5, 1600))


def test_tokens_per_dollar() -> None:
    """400 tokens/s for half a dollar an hour: 400 × 3,600 / 0.50 = 2.88 million."""
    assert A.per_dollar(A.points[2]) == 400 * 3600 / 0.5 == 2_880_000


def test_the_front_leaves_out_what_is_beaten() -> None:
    beaten = a_curve("A", "1", (50, 50), (30, 40), (20, 400))
    assert [x for x, _ in beaten.front] == pytest.approx([20, 50])
    assert "beaten by its own other points" in str(per_dollar_chart([beaten, B]).marks)


def test_between_points_is_a_straight_line_and_beyond_is_nothing() -> None:
    assert A.at(30) == pytest.approx((160 + 400) / 2 * 7200)
    assert A.at(5) == A.at(10) == 500 * 7200  # who is content with less can have it
    assert A.at(50.1) is None


def test_the_lead_changes_where_the_lines_cross() -> None:
    """At 40 tokens/s A gives 1,152,000 and B 2,280,000 ... the rates decide; here they cross between 20 and 40."""
    (change,) = crossings(A, B)
    assert (change.below, change.above) == ("A", "B")
    assert 20 < change.interactivity < 40
    at = change.interactivity
    assert A.at(at) == pytest.approx(B.at(at))
    assert crossings(B, A) == (change,)


def test_a_lead_at_one_point_is_said_to_be_none_at_another() -> None:
    slow, whole = says([A, B], target_itl_ns=100 * MS)  # 10 tokens/s
    assert slow.startswith("At 10 tokens/s for each user: A gives 3.6 million output tokens per machine-dollar")
    assert "1.2 times as many as B (2.88 million)" in slow
    assert whole.startswith("The lead changes: A leads up to about 2")
    assert "B from there on; beyond 50 tokens/s only B was measured. A lead at one interactivity is none at" in whole
    quick, _ = says([A, B], target_itl_ns=25 * MS)  # 40 tokens/s
    assert quick.startswith("At 40 tokens/s for each user: B gives")


def test_who_never_is_quick_enough_is_said() -> None:
    told = says([A, B], target_itl_ns=10 * MS)[0]
    assert (
        told
        == "At 100 tokens/s for each user: B gives 1.44 million output tokens per machine-dollar; A is never that quick"
    )


def test_a_small_lead_is_too_close_to_call() -> None:
    near = a_curve("C", "0.50", (50, 52), (40, 158), (20, 410), (10, 505))
    told = says([A, near], target_itl_ns=50 * MS)
    assert "too close to call" in told[0]
    assert told[1] == "A and C are too close to call wherever both were measured"


def test_a_lead_everywhere_is_said_with_its_range() -> None:
    double = a_curve("D", "0.25", (50, 50), (40, 160), (20, 400), (10, 500))
    assert says([A, double])[0] == (
        "D gives 2 times as many tokens per dollar as A wherever both were measured, up to 50 tokens/s for each user"
    )


def test_a_lead_that_the_intervals_hide_is_not_certain() -> None:
    """Twice as many tokens for a dollar, each off by half: the worst of the one is the best of the other. Without an
    interval nothing is certain either."""
    points = (50, 50), (40, 160), (20, 400), (10, 500)
    for spread in (0.5, None):
        wide = [a_curve("A", "0.50", *points, spread=spread), a_curve("D", "0.25", *points, spread=spread)]
        at, whole = says(wide, target_itl_ns=50 * MS)
        assert at.endswith("2 times as many as A (2.88 million), not certainly")
        assert "2 times as many" in whole
        assert "none of it is certain: the intervals of their levels overlap, or are not known" in whole
        within = says([replace_meets(curve) for curve in wide], target="TTFT 1 s")[0]
        assert within.endswith("not certainly")
    assert says([A, a_curve("D", "0.25", *points)], target_itl_ns=50 * MS)[0].endswith("(2.88 million)")


def replace_meets(curve: Curve) -> Curve:
    return replace(curve, points=tuple(replace(point, meets_target=True) for point in curve.points))


def test_a_target_counts_measured_points_that_met_it() -> None:
    met, missed = a_curve("A", "1", (20, 100), meets=True), a_curve("B", "1", (20, 900), meets=False)
    told = says([met, missed], target="TTFT 500 ms for 0.95 of all")[0]
    assert told.startswith("Within TTFT 500 ms for 0.95 of all: A gives 360 thousand output tokens per machine-dollar")
    assert told.endswith("B meets it at no level measured")


def test_one_machine_or_an_empty_curve_says_so() -> None:
    assert says([A]) == ()
    assert "B has no point" in says([A, a_curve("B", "1")])[0]


def test_what_costs_nothing_is_endless_and_not_a_crash() -> None:
    free = a_curve("F", "0", (50, 50), (20, 400))
    assert free.per_dollar(free.points[0]) == math.inf
    assert "endless" in says([free, A], target_itl_ns=50 * MS)[0]
    per_dollar_chart([free, A])


def test_nonsense_is_no_point() -> None:
    for tokens_per_s, itl_ns in ((0, 1), (1, 0), (math.inf, 1), (1, math.nan)):
        with pytest.raises(ValueError, match="finite"):
            OperatingPoint(level=1, tokens_per_s=tokens_per_s, itl_ns=itl_ns)


_POINTS = st.lists(st.tuples(st.floats(1, 1e4), st.floats(1, 1e6)), min_size=1, max_size=8)


@given(one=_POINTS, other=_POINTS)
def test_crossings_are_where_the_lead_changes(one: list[tuple[float, float]], other: list[tuple[float, float]]) -> None:
    first, second = a_curve("A", "1", *one), a_curve("B", "3", *other)
    end = min(first.front[-1][0], second.front[-1][0])
    changes = crossings(first, second)
    assert [change.interactivity for change in changes] == sorted(change.interactivity for change in changes)
    for change in changes:
        assert change.interactivity <= end * (1 + 1e-9)
        assert {change.below, change.above} == {"A", "B"}
    for earlier, later in pairwise(changes):
        assert earlier.above == later.below
    for (slow, more), (quick, less) in pairwise(first.front):
        assert slow < quick
        assert more > less
    assert says([first, second], target_itl_ns=1e7)
