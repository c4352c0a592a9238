"""Schedules."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.errors import RequestError
from taximeter.measurement.load.arrivals import NS_PER_S, Arrivals, replayed_ns


@settings(max_examples=60)
@given(
    rate=st.floats(0.05, 300),
    duration_s=st.floats(0.1, 60),
    ramp_s=st.one_of(st.just(0.0), st.floats(0.1, 20)),
    burstiness=st.one_of(st.just(math.inf), st.floats(0.1, 20)),
    seed=st.integers(0, 1000),
)
def test_a_schedule_has_as_many_arrivals_as_its_rate_says_and_in_order(
    rate: float, duration_s: float, ramp_s: float, burstiness: float, seed: int
) -> None:
    arrivals = Arrivals(burstiness=burstiness, ramp_s=ramp_s)
    times = arrivals.times_ns(rate, duration_s, np.random.default_rng(seed))
    assert len(times) == max(1, round(rate * (duration_s + ramp_s / 2)))
    assert list(times) == sorted(times)
    assert times[0] >= 0
    assert times[-1] <= (ramp_s + duration_s) * NS_PER_S + 1
    assert times == arrivals.times_ns(rate, duration_s, np.random.default_rng(seed))


@pytest.mark.parametrize(("burstiness", "variation"), [(0.25, 2.0), (1.0, 1.0), (4.0, 0.5)])
def test_burstiness_is_the_shape_of_the_gaps(burstiness: float, variation: float) -> None:
    """The coefficient of variation of a gamma distribution is one by the root of its shape: 1 for Poisson."""
    times = Arrivals(burstiness=burstiness).times_ns(100, 200, np.random.default_rng(3))
    gaps = np.diff(times)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.05)


def test_constant_arrivals_are_evenly_apart() -> None:
    times = Arrivals(burstiness=math.inf).times_ns(10, 1, np.random.default_rng(0))
    assert times == tuple(50_000_000 + 100_000_000 * number for number in range(10))


def test_a_ramp_grows_from_nothing_to_the_rate() -> None:
    """Half as many in the ramp as in the same time after it, a quarter of those in its first half."""
    times = np.asarray(Arrivals(burstiness=math.inf, ramp_s=10).times_ns(40, 10, np.random.default_rng(0))) / NS_PER_S
    counts, _ = np.histogram(times, bins=[0, 5, 10, 20])
    assert counts.tolist() == [50, 150, 400]


def test_a_trace_keeps_its_gaps_and_takes_a_rate() -> None:
    recorded = [5_000_000_000, 6_000_000_000, 9_000_000_000]
    assert replayed_ns(recorded) == (0, 1_000_000_000, 4_000_000_000)
    assert replayed_ns(recorded, rate_per_s=2) == (0, 250_000_000, 1_000_000_000)
    with pytest.raises(RequestError, match="at once"):
        replayed_ns([7, 7], rate_per_s=1)


@pytest.mark.parametrize(("rate", "duration_s"), [(0, 1), (-1, 1), (math.nan, 1), (1, 0), (1, math.inf), (1e6, 1e6)])
def test_what_is_no_rate_is_refused(rate: float, duration_s: float) -> None:
    with pytest.raises(RequestError):
        Arrivals().times_ns(rate, duration_s, np.random.default_rng(0))


@pytest.mark.parametrize("fields", [{"burstiness": 0}, {"burstiness": math.nan}, {"ramp_s": -1}, {"ramp_s": math.inf}])
def test_what_is_no_process_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(RequestError):
        Arrivals(**fields)
