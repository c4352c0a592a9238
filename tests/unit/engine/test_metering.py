"""Every nanosecond of a step is on somebody's account."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.engine.metering import Share, Span, StepCosts, divide_exactly

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


WEIGHT_BYTES = 96_600_001


def costs(*, window: int = 0, sliding_layers: int = 0) -> StepCosts:
    """SmolLM2's sizes, in bf16 keys and values: 2 × 3 heads × 64 × 2 bytes for a key of a layer, with its value."""
    return replace(
        SMOLLM2,
        global_layers=30 - sliding_layers,
        sliding_layers=sliding_layers,
        sliding_window=window,
        kv_bytes_per_key=768,
    )


def test_a_decode_step_alone_reads_the_weights_and_its_own_context() -> None:
    """Weight bytes + context × 23,040 bytes a token: the whole formula for one stream."""
    [share] = costs().shares(
        [Span(start=511, end=512, logit_rows=1)], step_ns=5_000_000, weight_bytes=WEIGHT_BYTES, energy_uj=None
    )
    assert share == Share(
        compute_ns=5_000_000,
        operations=SMOLLM2.of_chunk(511, 512, 1),
        read_bytes=WEIGHT_BYTES + 512 * 23_040,
        energy_uj=None,
    )


def test_sliding_layers_read_no_more_than_their_window() -> None:
    """Gemma-3-270M: 18,432 bytes a token until 512 tokens, then only 3 of 18 layers grow: at 2,048 tokens 14,155,776
    bytes are read, not 37,748,736."""
    gemma = replace(costs(), global_layers=3, sliding_layers=15, sliding_window=512, kv_bytes_per_key=1024)
    assert gemma.kv_read_bytes(511, 512) == 512 * 18_432
    assert gemma.kv_read_bytes(2047, 2048) == 14_155_776
    assert replace(gemma, global_layers=18, sliding_layers=0).kv_read_bytes(2047, 2048) == 37_748_736
    # A chunk of 100 rows sees 99 keys more than one of them does.
    assert gemma.kv_read_bytes(1948, 2048) == 1024 * (3 * 2048 + 15 * (512 + 99))


def test_streams_share_one_reading_of_the_weights() -> None:
    """Eight decodes read an eighth of the weights each, the odd byte being the first one's."""
    spans = [Span(start=99, end=100, logit_rows=1)] * 8
    shares = costs().shares(spans, step_ns=8_000_000, weight_bytes=WEIGHT_BYTES, energy_uj=80)
    assert [share.read_bytes - 100 * 23_040 for share in shares] == [12_075_001, *[12_075_000] * 7]
    assert {(share.compute_ns, share.energy_uj) for share in shares} == {(1_000_000, 10)}


_SPANS = st.lists(
    st.builds(
        lambda start, count, logits: Span(start=start, end=start + count, logit_rows=int(logits)),
        st.integers(0, 10_000),
        st.integers(1, 600),
        st.booleans(),
    ),
    min_size=1,
    max_size=20,
)


@given(
    spans=_SPANS,
    step_ns=st.integers(0, 10**12),
    energy_uj=st.none() | st.integers(0, 10**9),
    window=st.integers(1, 5000),
    sliding_layers=st.integers(0, 30),
)
def test_shares_sum_to_their_step(
    spans: list[Span], step_ns: int, energy_uj: int | None, window: int, sliding_layers: int
) -> None:
    """Nanoseconds, operations, bytes and energy: all of the step, and no more."""
    model = costs(window=window, sliding_layers=sliding_layers)
    shares = model.shares(spans, step_ns=step_ns, weight_bytes=WEIGHT_BYTES, energy_uj=energy_uj)
    assert sum(share.compute_ns for share in shares) == step_ns
    assert sum(share.operations for share in shares) == sum(
        model.of_chunk(span.start, span.end, span.logit_rows) for span in spans
    )
    kv_bytes = sum(model.kv_read_bytes(span.start, span.end) for span in spans)
    assert sum(share.read_bytes for share in shares) == WEIGHT_BYTES + kv_bytes
    if energy_uj is None:
        assert {share.energy_uj for share in shares} == {None}
    else:
        assert sum(share.energy_uj or 0 for share in shares) == energy_uj
