"""Every nanosecond of a step is on somebody's account."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.engine.metering import StepCosts, divide_exactly

SMOLLM2 = StepCosts(
    # 30 layers; h 576, 9 and 3 heads of 64, ff 1,536: 106,168,320 weights in matrices
    linear_flop_per_token=2 * 106_168_320,
    head_flop_per_row=2 * 576 * 49_152,
    attention_flop_per_key=4 * 9 * 64,
    global_layers=30,
    sliding_layers=0,
    sliding_window=0,
)


@given(st.integers(0, 10**15), st.lists(st.integers(0, 10**14), min_size=1, max_size=40).filter(any))
def test_the_parts_sum_to_the_whole_and_are_fair(total: int, weights: list[int]) -> None:
    """Nothing is lost, nothing invented, and nobody is off by a whole nanosecond."""
    parts = divide_exactly(total, weights)
    assert sum(parts) == total
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part * sum(weights) - total * weight) < sum(weights)


def test_whoever_brought_nothing_pays_nothing() -> None:
    """A weight of zero is a share of zero, whatever the remainders."""
    assert divide_exactly(7, [0, 3, 0, 3]) == [0, 4, 0, 3]


@pytest.mark.parametrize("weights", [[], [0, 0], [3, -1]])
def test_impossible_divisions_are_refused(weights: list[int]) -> None:
    """No weights, no division."""
    with pytest.raises(ValueError, match="cannot divide"):
        divide_exactly(10, weights)


def test_operations_of_a_prompt_match_the_formulas() -> None:
    """SmolLM2-135M reading 512 tokens: linear 108.716 + attention 9.077 + head 0.0566 = 117.850 billion."""
    linear = 2 * 106_168_320 * 512
    attention = 4 * 30 * 9 * 64 * (512 * 513 // 2)
    head = 2 * 576 * 49_152
    assert SMOLLM2.of_chunk(0, 512, 1) == linear + attention + head
    assert round(SMOLLM2.of_chunk(0, 512, 1) / 1e9, 3) == 117.850
    assert round(SMOLLM2.of_chunk(0, 2048, 1) / 1e9, 3) == 579.948


def test_cutting_a_prompt_does_not_change_its_work() -> None:
    """Three chunks bring exactly what one would have."""
    whole = SMOLLM2.of_chunk(0, 1200, 1)
    assert SMOLLM2.of_chunk(0, 509, 0) + SMOLLM2.of_chunk(509, 1018, 0) + SMOLLM2.of_chunk(1018, 1200, 1) == whole


def test_sliding_layers_stop_growing_at_their_window() -> None:
    """Beyond the window a sliding layer costs the same per token; a global one keeps growing."""
    costs = StepCosts(
        linear_flop_per_token=0,
        head_flop_per_row=0,
        attention_flop_per_key=1,
        global_layers=1,
        sliding_layers=1,
        sliding_window=10,
    )
    assert costs.of_chunk(0, 10, 0) == 2 * (10 * 11 // 2)
    assert costs.of_chunk(99, 100, 0) == 100 + 10
