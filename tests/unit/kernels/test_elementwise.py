"""rms_norm, the gated activations, rope and kv_write against float64 or the definition."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.engine import kernels
from taximeter.engine.kernels.contract import F32

F64 = npt.NDArray[np.float64]


def normal(*shape: int, seed: int = 0) -> F32:
    return np.random.default_rng([seed, *shape]).standard_normal(shape, dtype=np.float32)


def assert_within_ulps(got: F32, expected: F64, ulps: float) -> None:
    assert got.dtype == np.float32
    spacing = np.spacing(np.abs(expected).astype(np.float32)).astype(np.float64)
    assert (np.abs(got - expected) <= ulps * spacing).all()


def silu(gate: F64) -> F64:
    return gate / (1.0 + np.exp(-gate))


def gelu(gate: F64) -> F64:
    return gate / 2.0 * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (gate + 0.044715 * gate**3)))


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e15])
@pytest.mark.parametrize("k", [1, 2, 17, 64, 2049])
def test_rms_norm_agrees_with_float64(k: int, scale: float) -> None:
    """Within a few units in the last place, for rows of any size and any scale."""
    x, weight = normal(5, k) * np.float32(scale), normal(k, seed=1)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    assert_within_ulps(kernels.rms_norm(x, weight, 1e-5), expected, 3.0)


def test_silu_mul_agrees_with_float64() -> None:
    """Also where the exponential overflows: the gate is then shut, not NaN."""
    gate = np.concatenate([normal(1, 1000) * 5, np.array([[0.0, -0.0, 80.0, -80.0, 1e30]], np.float32)], axis=1)
    up = normal(*gate.shape, seed=1)
    assert_within_ulps(kernels.silu_mul(gate, up), silu(gate.astype(np.float64)) * up, 4.0)
    assert kernels.silu_mul(np.full((1, 1), -1e30, np.float32), np.ones((1, 1), np.float32)) == 0.0


def test_gelu_tanh_mul_agrees_with_float64() -> None:
    """Within the rounding of 1 + tanh, which cancels for gates far below zero."""
    gate = np.concatenate([normal(1, 1000) * 3, np.array([[0.0, -0.0, 80.0, -80.0, 1e30]], np.float32)], axis=1)
    up = normal(*gate.shape, seed=1)
    wide = gate.astype(np.float64)
    error = np.abs(kernels.gelu_tanh_mul(gate, up) - gelu(wide) * up)
    assert (error <= 2.0**-22 * np.abs(wide * up)).all()


@pytest.mark.parametrize("rope_dim", [2, 6, 10])
def test_rope_turns_pairs_that_lie_half_the_dimension_apart(rope_dim: int) -> None:
    """Pair (i, i + rope_dim/2) turns by angle i; what lies past rope_dim stays."""
    x, angle = normal(4, 3, 10), normal(4, rope_dim // 2, seed=1)
    got = kernels.rope(x, np.cos(angle), np.sin(angle))
    half = rope_dim // 2
    turned = (x[..., :half] + 1j * x[..., half:rope_dim]) * np.exp(1j * angle.astype(np.float64))[:, None]
    np.testing.assert_allclose(got[..., :half], turned.real, atol=1e-6)
    np.testing.assert_allclose(got[..., half:rope_dim], turned.imag, atol=1e-6)
    np.testing.assert_array_equal(got[..., rope_dim:], x[..., rope_dim:])


@settings(deadline=None)
@given(rows=st.integers(1, 40), k=st.integers(1, 70), data=st.data())
def test_a_row_never_depends_on_its_mates(rows: int, k: int, data: st.DataObject) -> None:
    """Every elementwise kernel gives a row the same bits alone and in company."""
    x, other, weight = normal(rows, 2 * k), normal(rows, 2 * k, seed=1), normal(2 * k, seed=2)
    angle = normal(rows, k, seed=3)
    row = data.draw(st.integers(0, rows - 1))
    one = slice(row, row + 1)

    def turn(which: slice) -> F32:
        return kernels.rope(x[which, None], np.cos(angle)[which], np.sin(angle)[which])[:, 0]

    every = slice(None)
    np.testing.assert_array_equal(kernels.rms_norm(x[one], weight, 1e-6), kernels.rms_norm(x, weight, 1e-6)[one])
    np.testing.assert_array_equal(kernels.silu_mul(x[one], other[one]), kernels.silu_mul(x, other)[one])
    np.testing.assert_array_equal(kernels.gelu_tanh_mul(x[one], other[one]), kernels.gelu_tanh_mul(x, other)[one])
    np.testing.assert_array_equal(turn(one), turn(every)[one])


def test_kv_write_puts_each_row_in_its_slot_and_touches_no_other() -> None:
    """slot = block × block_size + offset, for every head; all else keeps its bits."""
    k, v = normal(3, 2, 5), normal(3, 2, 5, seed=1)
    k_cache, v_cache = normal(4, 2, 16, 5, seed=2), normal(4, 2, 16, 5, seed=3)
    k_expected, v_expected = k_cache.copy(), v_cache.copy()
    for row, (block, offset) in enumerate([(3, 15), (0, 0), (1, 7)]):
        k_expected[block, :, offset], v_expected[block, :, offset] = k[row], v[row]
    kernels.kv_write(k, v, k_cache, v_cache, np.array([3 * 16 + 15, 0, 16 + 7]))
    np.testing.assert_array_equal(k_cache, k_expected)
    np.testing.assert_array_equal(v_cache, v_expected)


@pytest.mark.parametrize("slot", [-1, 64])
def test_kv_write_refuses_a_slot_outside_the_cache(slot: int) -> None:
    """A slot past the end is an error before anything is written, and so is one that would count from the end."""
    cache = np.zeros((4, 2, 16, 5), np.float32)
    with pytest.raises(ValueError, match="64 slots"):
        kernels.kv_write(normal(2, 2, 5), normal(2, 2, 5), cache, cache, np.array([0, slot]))
    assert not cache.any()


def test_wrong_arrays_are_refused() -> None:
    """A wrong dtype, shape or layout is a ValueError that names it."""
    x = normal(4, 6)
    with pytest.raises(ValueError, match="weight"):
        kernels.rms_norm(x, normal(5), 1e-6)
    with pytest.raises(ValueError, match="up"):
        kernels.silu_mul(x, normal(4, 5))
    with pytest.raises(ValueError, match="contiguous"):
        kernels.gelu_tanh_mul(x[:, ::2], x[:, ::2])
    with pytest.raises(ValueError, match="float64"):
        kernels.silu_mul(x, x.astype(np.float64))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sin"):
        kernels.rope(normal(4, 1, 6), normal(4, 3), normal(3, 3))
    with pytest.raises(ValueError, match="rotates 8"):
        kernels.rope(normal(4, 1, 6), normal(4, 4), normal(4, 4))
