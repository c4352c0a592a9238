"""Operations and bytes of two well-known models, by hand."""

from __future__ import annotations

import pytest

from taximeter.measurement.sweep.model_work import MachineLimit, ModelShape, prefill_work, step_work

SMOLLM2 = ModelShape(
    layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, feed_forward=1536, vocabulary=49_152,
    step_weight_bytes=2 * 134_515_008,
)  # fmt: skip
GEMMA = ModelShape(
    layers=18, hidden=640, heads=4, kv_heads=1, head_dim=256, feed_forward=2048, vocabulary=262_144,
    sliding_layers=15, window=512,
)  # fmt: skip


def test_weights() -> None:
    assert SMOLLM2.linear_weights == 106_168_320
    assert SMOLLM2.linear_weights + 576 * 49_152 == 134_515_008 - 30 * 2 * 576 - 576  # all but the norms
    assert GEMMA.linear_weights == 100_270_080
    assert GEMMA.linear_weights + 640 * 262_144 == 268_042_240


@pytest.mark.parametrize(
    ("tokens", "linear", "attention", "total"), [(512, 108.716, 9.077, 117.850), (2048, 434.865, 145.026, 579.948)]
)
def test_operations_of_a_prompt(tokens: int, linear: float, attention: float, total: float) -> None:
    assert SMOLLM2.linear_operations(tokens) / 1e9 == pytest.approx(linear, abs=5e-4)
    assert SMOLLM2.attention_operations(tokens) / 1e9 == pytest.approx(attention, abs=5e-4)
    assert SMOLLM2.output_operations() / 1e9 == pytest.approx(0.0566, abs=5e-5)
    assert SMOLLM2.prefill_operations(tokens) / 1e9 == pytest.approx(total, abs=1e-3)


def test_keys_and_values_of_a_position() -> None:
    assert SMOLLM2.kv_bytes(1) == 23_040
    assert GEMMA.kv_bytes(512) == 512 * 18_432
    assert GEMMA.kv_bytes(513) - GEMMA.kv_bytes(512) == 3_072


def test_a_window_stops_growing() -> None:
    """At 2,048: 37,748,736 bytes if nothing slid, 14,155,776 with 15 of 18 layers in a window of 512."""
    assert GEMMA.kv_bytes(2048) == 14_155_776
    nothing_slides = ModelShape(
        layers=18, hidden=640, heads=4, kv_heads=1, head_dim=256, feed_forward=2048, vocabulary=262_144
    )
    assert nothing_slides.kv_bytes(2048) == 37_748_736


@pytest.mark.parametrize("tokens", [1, 511, 512, 513, 700])
def test_attention_in_a_window_is_what_each_position_sees(tokens: int) -> None:
    seen = 3 * sum(range(1, tokens + 1)) + 15 * sum(min(position, 512) for position in range(1, tokens + 1))
    assert GEMMA.attention_operations(tokens) == 4 * 4 * 256 * seen
    assert GEMMA.step_operations(tokens) == (
        2 * GEMMA.linear_weights + 4 * 4 * 256 * (3 * tokens + 15 * min(tokens, 512)) + 2 * 640 * 262_144
    )


def test_work_beside_a_limit() -> None:
    limit = MachineLimit(operations_per_s=471.4e9, read_bytes_per_s=20e9, says="f32, 2 threads")
    prompt = prefill_work(SMOLLM2, 512, 0.5, limit)
    assert prompt.per_s == pytest.approx(235.7e9, rel=1e-4)
    assert prompt.limit_ratio == pytest.approx(0.5, rel=1e-4)
    step = step_work(SMOLLM2, 1000, 0.029207, limit)
    assert step is not None
    assert step.amount == 269_030_016 + 23_040_000
    assert step.limit_ratio == pytest.approx(0.5, rel=1e-3)
    assert prefill_work(SMOLLM2, 512, 0.5, None).limit_ratio is None


def test_what_weighs_an_unknown_amount_has_no_bytes() -> None:
    assert GEMMA.step_bytes(100) is None
    assert step_work(GEMMA, 100, 0.01, None) is None


@pytest.mark.parametrize(("sliding", "window"), [(31, 512), (3, None), (0, 512), (-1, 512)])
def test_what_cannot_slide_is_refused(sliding: int, window: int | None) -> None:
    with pytest.raises(ValueError, match="slide"):
        ModelShape(
            layers=30, hidden=1, heads=1, kv_heads=1, head_dim=1, feed_forward=1, vocabulary=1,
            sliding_layers=sliding, window=window,
        )  # fmt: skip
