"""Figures from samples: worked values, and intervals that hold as often as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.measurement import estimates
from taximeter.measurement.estimates import Estimate


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize(("share", "expected"), [(0.5, 25.0), (0.9, 37.0), (0.25, 17.5)])
def test_percentiles_are_interpolated_linearly(share: float, expected: float) -> None:
    """Others' floor index gives 30 and 40 for the first two."""
    assert estimates.percentile([40, 10, 30, 20], share, rng=rng()).value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("share", "needed"), [(0.99, 299), (0.95, 59), (0.9, 29), (0.5, 5), (0.01, 299)])
def test_too_few_samples_are_called_so(share: float, needed: int) -> None:
    assert estimates.samples_needed(share) == needed
    few = estimates.percentile(range(needed - 1), share, rng=rng())
    assert few.interval is None
    assert few.unknown_reason == f"n too small: {estimates.percentile_name(share)} needs {needed}"
    assert (few.n, few.value) == (needed - 1, pytest.approx(share * (needed - 2)))
    enough = estimates.percentile(range(needed), share, rng=rng())
    assert enough.interval is not None
    assert enough.unknown_reason is None


def test_percentiles_have_names() -> None:
    assert [estimates.percentile_name(share) for share in (0.5, 0.99, 0.999)] == ["p50", "p99", "p99.9"]


@pytest.mark.parametrize("share", [0.0, 1.0, 99.0])
def test_what_is_no_percentile_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        estimates.percentile([1, 2], share, rng=rng())


@pytest.mark.parametrize("samples", [[], [1.0, math.nan]])
def test_no_figure_comes_from_nothing(samples: list[float]) -> None:
    for estimate in (estimates.mean, estimates.median):
        with pytest.raises(ValueError, match="sample"):
            estimate(samples, rng=rng())


def test_what_never_came_is_infinite_and_stays_so() -> None:
    """Failures counted as infinitely late move percentiles, and no figure becomes a NaN."""
    samples = [1.0] * 90 + [math.inf] * 10
    assert estimates.percentile(samples, 0.95, rng=rng()).value == math.inf
    below = estimates.percentile(samples, 0.5, rng=rng())
    assert (below.value, below.interval) == (1.0, (1.0, 1.0))
    edge = estimates.percentile(samples, 0.9, rng=rng())
    assert edge.interval == (1.0, math.inf)


def test_a_mean_of_one_has_no_interval() -> None:
    alone = estimates.mean([3.0], rng=rng())
    assert (alone.value, alone.interval, alone.n) == (3.0, None, 1)


def test_shares_are_wilsons() -> None:
    """5 of 10: the textbook's 0.2366 to 0.7634; none of 10: 0 to 0.2775."""
    half = estimates.share(5, 10)
    assert half.value == 0.5
    assert half.interval == pytest.approx((0.23659, 0.76341), abs=1e-5)
    assert estimates.share(0, 10).interval == pytest.approx((0.0, 0.27753), abs=1e-5)
    assert estimates.share(10, 10).interval == pytest.approx((1 - 0.27753, 1.0), abs=1e-5)


@pytest.mark.parametrize(("k", "n"), [(0, 0), (3, 2), (-1, 2)])
def test_what_is_no_share_is_refused(k: int, n: int) -> None:
    with pytest.raises(ValueError, match="no share"):
        estimates.share(k, n)


def test_an_estimate_has_an_interval_or_a_reason() -> None:
    for wrong in ({"low": 1.0}, {}, {"low": 1.0, "high": 2.0, "unknown_reason": "none"}):
        with pytest.raises(ValueError, match="interval"):
            Estimate(value=1.0, n=1, **wrong)  # pyright: ignore[reportArgumentType]


def test_units_change_all_three() -> None:
    in_ms = Estimate(value=2e6, low=1e6, high=3e6, n=5).scaled(1e-6)
    assert (in_ms.value, in_ms.low, in_ms.high, in_ms.n) == (2.0, 1.0, 3.0, 5)
    assert Estimate(value=2.0, n=1, unknown_reason="one").scaled(2).unknown_reason == "one"


def test_the_drawn_percentiles_are_those_of_drawn_samples() -> None:
    """The short way and the long one have the same distribution."""
    samples = np.sort(np.random.default_rng(1).lognormal(size=60))
    drawn = np.random.default_rng(2).choice(samples, size=(4000, 60))
    for share in (0.5, 0.95):
        long = np.quantile(np.quantile(drawn, share, axis=1), [0.025, 0.25, 0.5, 0.75, 0.975])
        short = np.quantile(estimates._percentile_draws(samples, share, rng()), [0.025, 0.25, 0.5, 0.75, 0.975])
        assert short == pytest.approx(long, rel=0.08)


@pytest.mark.parametrize(
    ("estimate", "n", "truth", "at_least"),
    [
        ("mean", 5, math.exp(0.5 * 0.3**2), 0.88),
        ("mean", 40, math.exp(0.5 * 0.3**2), 0.92),
        ("median", 5, 1.0, 0.90),
        ("median", 40, 1.0, 0.92),
    ],
)
def test_intervals_hold_as_often_as_they_say(estimate: str, n: int, truth: float, at_least: float) -> None:
    """Of skewed samples, as latencies are: five repeats are as few as the sweep has, and few can only say so much."""
    source, draws = np.random.default_rng(11), rng()
    held = 0
    for _ in range(300):
        found = getattr(estimates, estimate)(source.lognormal(0, 0.3, size=n), rng=draws)
        held += found.low <= truth <= found.high
    assert held / 300 >= at_least


def test_intervals_of_very_many_are_quick_and_right() -> None:
    samples = np.random.default_rng(3).exponential(size=200_000)
    middle, tail = estimates.mean(samples, rng=rng()), estimates.percentile(samples, 0.99, rng=rng())
    assert middle.low < 1.0 < middle.high  # pyright: ignore[reportOptionalOperand]
    assert middle.high - middle.low == pytest.approx(2 * 1.96 / 200_000**0.5, rel=0.02)  # pyright: ignore[reportOptionalOperand]
    assert tail.low < math.log(100) < tail.high  # pyright: ignore[reportOptionalOperand]


def test_ratios_and_differences_have_intervals() -> None:
    source = np.random.default_rng(5)
    slow, fast = source.normal(200, 4, size=30), source.normal(100, 2, size=20)
    ratio = estimates.ratio_of_medians(slow, fast, rng=rng())
    assert (ratio.n, ratio.value) == (20, pytest.approx(2, rel=0.02))
    assert ratio.low < 2 < ratio.high < 2.1  # pyright: ignore[reportOptionalOperand]
    difference = estimates.difference_of_medians(slow, fast, rng=rng())
    assert difference.low < 100 < difference.high < 105  # pyright: ignore[reportOptionalOperand]
    assert estimates.ratio_of_medians(slow, fast[:4], rng=rng()).unknown_reason == "n too small: p50 needs 5"


@settings(max_examples=60)
@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=80), st.floats(0.01, 0.99))
def test_every_interval_holds_its_own_figure(samples: list[float], share: float) -> None:
    for found in (estimates.percentile(samples, share, rng=rng()), estimates.mean(samples, rng=rng())):
        slack = 1e-9 * (1 + abs(found.value))
        assert min(samples) - slack <= found.value <= max(samples) + slack
        if found.low is not None and found.high is not None:
            assert min(samples) - slack <= found.low <= found.value <= found.high <= max(samples) + slack
