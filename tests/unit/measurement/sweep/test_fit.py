"""Curves through points: the exact ones come back exactly, noisy ones within their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.measurement.sweep.fit import ITL, TTFT, Fit, fit

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def exact(a: float, b: float, c: float, lengths: Sequence[int] = LENGTHS, repeats: int = 1) -> dict[float, list[float]]:
    return {n: [a + b * n + c * n * n] * repeats for n in lengths}


def noisy(
    true: Sequence[float], spread: float, source: np.random.Generator, repeats: int = 5
) -> Mapping[float, list[float]]:
    """Durations that scatter by `spread` of themselves, and now and then hiccup by half."""
    found: dict[float, list[float]] = {}
    for n in LENGTHS:
        curve = sum(coefficient * n**power for power, coefficient in enumerate(true))
        hiccups = 1 + 0.5 * (source.random(repeats) < 0.05)
        found[n] = list(curve * hiccups * source.lognormal(0, spread, size=repeats))
    return found


def holds(found: Fit, true: Sequence[float]) -> list[bool]:
    return [
        estimate.low <= value <= estimate.high  # pyright: ignore[reportOptionalOperand]
        for estimate, value in zip(found.coefficients, true, strict=True)
    ]


def test_the_reference_curve_comes_back() -> None:
    """20 + 0.5 n + 1e-4 n² at five lengths, one sample each."""
    samples = dict(
        zip((128, 256, 512, 1024, 2048), ([85.6384], [154.5536], [302.2144], [636.8576], [1463.4304]), strict=True)
    )
    found = fit(samples, TTFT, rng=rng())
    assert [estimate.value for estimate in found.coefficients] == pytest.approx([20, 0.5, 1e-4], abs=1e-6)
    assert found.residual_ratio == pytest.approx(0, abs=1e-9)
    assert {estimate.interval for estimate in found.coefficients} == {None}
    assert found["a"].unknown_reason == "n too small: 3 repeats of each length are needed"


def test_what_follows_from_the_coefficients() -> None:
    found = fit(exact(20, 0.5, 1e-4, repeats=5), TTFT, rng=rng())
    assert found.at(1000).value == pytest.approx(20 + 500 + 100)
    assert found.part(("b", "c"), 1000).value == pytest.approx(600)
    assert found.share("c", ("b", "c"), 1000).value == pytest.approx(1 / 6)
    assert found.overtakes("c", "b").value == pytest.approx(5000)
    assert found.per_second("b", unit_s=1e-3).value == pytest.approx(2000)
    assert found["b"].interval == pytest.approx((0.5, 0.5), rel=1e-6)


def test_where_there_is_no_quadratic_part_it_never_overtakes() -> None:
    found = fit(exact(20, 0.5, 0, repeats=5), TTFT, rng=rng())
    assert found["c"].value == pytest.approx(0, abs=1e-12)
    assert found.overtakes("c", "b").value > 1e9


@pytest.mark.parametrize("true", [(-5.0, 0.5, 1e-4), (20.0, 0.5, -1e-5), (50.0, -0.001, 1e-5)])
def test_no_coefficient_is_negative(true: tuple[float, float, float]) -> None:
    found = fit(exact(*true), TTFT, rng=rng())
    assert min(estimate.value for estimate in found.coefficients) == 0


def test_no_solution_is_better() -> None:
    """Against a search of the neighbourhood, where the unconstrained solution is negative."""
    samples = {n: [value] for n, value in zip(LENGTHS, (30, 35, 60, 110, 200, 400, 700), strict=True)}
    found = fit(samples, TTFT, rng=rng()).values()

    def missed(coefficients: np.ndarray) -> float:
        return sum(((coefficients @ [1, n, n * n]) / value - 1) ** 2 for n, (value,) in samples.items())

    best = missed(found)
    steps = np.array([1e-3, 1e-6, 1e-10])
    for direction in np.random.default_rng(3).normal(size=(300, 3)):
        assert missed(np.maximum(found + direction * steps, 0)) >= best - 1e-12


def test_a_hiccup_bends_nothing() -> None:
    samples = exact(20, 0.5, 1e-4, repeats=5)
    samples[512][2] *= 10
    found = fit(samples, TTFT, rng=rng())
    assert [estimate.value for estimate in found.coefficients] == pytest.approx([20, 0.5, 1e-4], rel=1e-6)


@pytest.mark.parametrize(
    ("true", "spread"), [((20.0, 0.5, 1e-4), 0.02), ((20.0, 0.5, 1e-4), 0.1), ((5.0, 0.5, 0.0), 0.05)]
)
def test_intervals_hold_the_truth_as_often_as_they_say(true: tuple[float, float, float], spread: float) -> None:
    source = np.random.default_rng(11)
    held = np.array([holds(fit(noisy(true, spread, source), TTFT, rng=rng()), true) for _ in range(40)]).mean(axis=0)
    assert min(held) >= 0.87


def test_bands_hold_the_truth_too() -> None:
    source, true = np.random.default_rng(12), (40.0, 0.004)
    held = 0
    for _ in range(40):
        band = fit(noisy(true, 0.04, source), ITL, rng=rng()).at(3000)
        held += band.low <= 52 <= band.high  # pyright: ignore[reportOptionalOperand]
    assert held / 40 >= 0.87


def test_what_is_no_such_curve_has_wide_intervals() -> None:
    """A step at 1,024 tokens, without any noise: what the curve misses is in its intervals."""
    stepped = {n: [(0.5 if n < 1024 else 0.8) * n + 20] * 5 for n in LENGTHS}
    found = fit(stepped, TTFT, rng=rng())
    assert found.residual_ratio is not None
    assert found.residual_ratio > 0.03
    assert found["b"].high - found["b"].low > 0.1  # pyright: ignore[reportOptionalOperand]
    assert max(abs(point.residual_ratio) for point in found.points) > 0.05


def test_too_few_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="3 coefficients need as many lengths, there are 2"):
        fit(exact(1, 1, 1, (64, 128)), TTFT, rng=rng())


@pytest.mark.parametrize("broken", [[], [0.0], [float("nan")], [float("inf")], [-1.0]])
def test_what_is_no_duration_is_refused(broken: list[float]) -> None:
    with pytest.raises(ValueError, match="durations"):
        fit({64: [1.0], 128: broken}, ITL, rng=rng())


@settings(max_examples=25, deadline=None)
@given(st.floats(0, 1e3), st.floats(1e-4, 10), st.floats(0, 1e-3))
def test_any_true_curve_comes_back(a: float, b: float, c: float) -> None:
    found = fit(exact(a, b, c), TTFT, rng=rng())
    for n in LENGTHS:
        assert found.at(n).value == pytest.approx(a + b * n + c * n * n, rel=1e-7)
