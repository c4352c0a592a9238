"""matmul_packed at every native level, bit for bit against its definition in numpy, and row invariance to the bit."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter import _native
from taximeter.engine import kernels
from taximeter.engine.kernels.contract import F32
from taximeter.engine.kernels.matmul_packed import (
    PackedMatrix,
    matmul_bf16,
    matmul_packed,
    multiplies_bf16,
    pack,
    quantize_activations,
    reference_float_matmul,
    reference_matmul,
    reference_quantize,
    reference_tile_matmul,
    round_activations,
    round_weights,
)
from taximeter.engine.weights.dequantize import TYPES, dequantize
from tests.unit.kernels.weight_blocks import BITS, FLOATS, KINDS, Made, block_weights, make

LEVELS = tuple(_native.levels())
every_level = pytest.mark.parametrize("level", LEVELS)
quantized = pytest.mark.parametrize("kind", BITS)
floating = pytest.mark.parametrize("kind", FLOATS)
few_or_many = pytest.mark.parametrize("copies", [1, 6])  # of some rows: few and many take different ways
with_and_without = pytest.mark.parametrize("zeros", [False, True], ids=["even", "zeros"])

# One of everything; around one tile and around the rows that kernels take at once; one block, two, and many.
HOSTILE = [
    (1, 1, 1),
    (1, 100, 8),
    (2, 15, 2),
    (3, 17, 3),
    (5, 16, 9),
    (15, 33, 1),
    (16, 1, 2),
    (17, 100, 1),
    (33, 47, 3),
    (50, 20, 4),
]


def normal(*shape: int) -> F32:
    return np.random.default_rng(shape).standard_normal(shape, dtype=np.float32)


@cache
def matrix(kind: str, n: int, k: int) -> tuple[Made, PackedMatrix]:
    noise = np.random.default_rng([n, k])
    made = make(kind, noise.integers(0, 1 << BITS[kind], (n, k), dtype=np.uint8), noise)
    return made, pack(kind, made.rows, k)


@cache
def float_matrix(kind: str, n: int, k: int) -> tuple[F32, PackedMatrix]:
    rows = _native.quantize_rows(kind, normal(n, k))
    return dequantize(TYPES[kind], rows.reshape(-1)).reshape(n, k), pack(kind, rows, k)


def any_matrix(kind: str, n: int, k: int) -> PackedMatrix:
    return float_matrix(kind, n, k)[1] if kind in FLOATS else matrix(kind, n, k)[1]


def assert_same_bits(ours: F32, theirs: F32) -> None:
    assert ours.dtype == theirs.dtype == np.float32
    np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))


def assert_close(x: F32, w: F32, y: F32) -> None:
    """Within the rounding error of a sum of k products, and of what a unit does not make of denormals."""
    sizes = np.abs(x.astype(np.float64)) @ np.abs(w.astype(np.float64)).T
    k = x.shape[1]
    allowed = (2.0 * np.sqrt(k) + 4.0) * 2.0**-24 * sizes + 4 * k * 2.0**-126
    assert (np.abs(y - x.astype(np.float64) @ w.astype(np.float64).T) <= allowed).all()


def widened(bf16: npt.NDArray[np.uint16]) -> F32:
    return (bf16.astype(np.uint32) << 16).view(np.float32)


def fused(level: str) -> bool:
    return level != "portable"


@every_level
@with_and_without
@quantized
@pytest.mark.parametrize(("rows", "n", "blocks"), HOSTILE)
def test_quantized_weights_follow_the_definition(
    level: str, kind: str, zeros: bool, rows: int, n: int, blocks: int
) -> None:
    """Every shape, however ragged, gives the bits that the definition gives."""
    k = blocks * block_weights(kind)
    made, packed = matrix(kind, n, k)
    x = normal(rows, k)
    expected = reference_matmul(x, made.weights, zeros=zeros, fused=fused(level))
    assert_same_bits(matmul_packed(x, packed, level, zeros=zeros), expected)


@every_level
@floating
@pytest.mark.parametrize(
    ("rows", "n", "k"),
    [(r, n, k) for (r, n, _), k in zip(HOSTILE, (1, 2, 31, 32, 33, 64, 65, 7, 100, 40), strict=True)],
)
def test_float_weights_follow_the_definition(level: str, kind: str, rows: int, n: int, k: int) -> None:
    """Every shape gives the bits that the definition gives."""
    w, packed = float_matrix(kind, n, k)
    x = normal(rows, k)
    assert_same_bits(matmul_packed(x, packed, level), reference_float_matmul(x, w, fused=fused(level)))


@every_level
@with_and_without
@quantized
@few_or_many
@pytest.mark.parametrize("codes", ["least", "most", "against the signs"])
def test_no_sum_overflows(level: str, kind: str, zeros: bool, codes: str, copies: int) -> None:
    """The largest codes against the largest activations, where integer sums are furthest from zero."""
    k, most = 2 * block_weights(kind), (1 << BITS[kind]) - 1
    x = np.where(np.arange(k) % 2 == 0, 1.0, -1.0).astype(np.float32) if codes == "against the signs" else np.ones(k)
    x = np.stack([x, -x, x * 3e4, np.where(np.arange(k) % 5 == 0, -x, x)]).astype(np.float32)
    x = np.concatenate([x] * copies)
    pattern = np.full((18, k), 0 if codes == "least" else most, np.uint8)
    if codes == "against the signs":
        pattern[:, 1::2] = 0
    made = make(kind, pattern, np.random.default_rng(0))
    packed = pack(kind, made.rows, k)
    expected = reference_matmul(x, made.weights, zeros=zeros, fused=fused(level))
    assert_same_bits(matmul_packed(x, packed, level, zeros=zeros), expected)


def unfriendly(kind: str, k: int) -> F32:
    x = normal(8, k)
    match kind:
        case "outliers":
            x[:, ::50] *= 3e4
        case "one-sided":
            x = np.abs(x) * np.where(np.arange(8) % 2 == 0, 1, -1).astype(np.float32)[:, None]
            x[2] = 3.0
        case "zeros":
            x[2] = 0.0
            x[:, 32:64] = 0.0
            x[4] = -0.0
        case "denormals":
            x *= np.float32(1e-41)
        case "tiny":
            x *= np.float32(1e-36)
        case _:
            x *= np.float32(1e30)
    return x


UNFRIENDLY = ["outliers", "one-sided", "zeros", "denormals", "tiny", "large"]


@every_level
@with_and_without
@quantized
@few_or_many
@pytest.mark.parametrize("values", UNFRIENDLY)
def test_unfriendly_activations_follow_the_definition(
    level: str, kind: str, zeros: bool, values: str, copies: int
) -> None:
    """Outliers, rows and groups of zeros, denormals and huge values too."""
    made, packed = matrix(kind, 20, 256)
    x = np.concatenate([unfriendly(values, 256)] * copies)
    expected = reference_matmul(x, made.weights, zeros=zeros, fused=fused(level))
    assert_same_bits(matmul_packed(x, packed, level, zeros=zeros), expected)


@pytest.mark.parametrize("name", LEVELS)
@settings(deadline=None, max_examples=60)
@given(
    kind=st.sampled_from(KINDS),
    n=st.sampled_from([1, 16, 30, 133]),
    rows=st.integers(1, 40),
    zeros=st.booleans(),
    data=st.data(),
)
def test_a_row_never_depends_on_its_mates(
    name: str, kind: str, n: int, rows: int, zeros: bool, data: st.DataObject
) -> None:
    """A row gives the same bits alone, in any company, at any place, and however the call is cut."""
    k = 512 if kind not in FLOATS else 77
    packed, x = any_matrix(kind, n, k), normal(rows, k)
    order = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=150))
    alone = np.concatenate([matmul_packed(x[r : r + 1], packed, name, zeros=zeros) for r in range(rows)])
    assert_same_bits(matmul_packed(x, packed, name, zeros=zeros), alone)
    assert_same_bits(matmul_packed(x[order], packed, name, zeros=zeros), alone[order])


@every_level
@with_and_without
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "Q6_K"])
def test_rows_that_need_several_passes_follow_the_definition(level: str, zeros: bool, kind: str) -> None:
    """Features so many that not all rows fit into a thread's scratch memory at once, and so many that few do."""
    for rows, k in ((70, 14336), (20, 1 << 16)):
        made, packed = matrix(kind, 3, k)
        x = normal(rows, k)
        expected = reference_matmul(x, made.weights, zeros=zeros, fused=fused(level))
        assert_same_bits(matmul_packed(x, packed, level, zeros=zeros), expected)


@every_level
@with_and_without
@quantized
@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_few_rows_with_many_features_follow_the_definition(level: str, kind: str, zeros: bool, rows: int) -> None:
    """Where sums wait for their scales, they may be more than can wait at once, and the last of them fewer."""
    k = (4096 // block_weights(kind) + 3) * block_weights(kind)
    made, packed = matrix(kind, 17, k)
    x = normal(rows, k)
    expected = reference_matmul(x, made.weights, zeros=zeros, fused=fused(level))
    assert_same_bits(matmul_packed(x, packed, level, zeros=zeros), expected)


@with_and_without
@quantized
def test_all_levels_with_fused_multiply_add_agree(zeros: bool, kind: str) -> None:
    """What one machine answers, another answers too, to the bit."""
    packed, x = matrix(kind, 100, 512)[1], normal(19, 512)
    answers = [matmul_packed(x, packed, level, zeros=zeros) for level in LEVELS if fused(level)]
    for answer in answers:
        assert_same_bits(answer, answers[0])


@every_level
@with_and_without
@pytest.mark.parametrize("k", [1, 31, 32, 33, 100, 576])
def test_activations_are_quantized_as_defined(level: str, zeros: bool, k: int) -> None:
    """Codes, scales and sums, with a last group that is padded; ties go to the even code."""
    x = np.concatenate([normal(5, k), *(unfriendly(values, k) for values in UNFRIENDLY)])
    x[0] = np.resize([127.0, 0.5, 1.5, -2.5, -127.0], k)
    ours, theirs = quantize_activations(x, level, zeros=zeros), reference_quantize(x, zeros=zeros)
    np.testing.assert_array_equal(ours.q, theirs.q)
    np.testing.assert_array_equal(ours.z, theirs.z)
    for name in ("d", "s", "s_half"):
        assert_same_bits(np.abs(getattr(ours, name)), np.abs(getattr(theirs, name)))


@every_level
def test_codes_reach_from_the_least_to_the_largest(level: str) -> None:
    """Whatever stands for a value is half a step from it, a step being a 255th of the way from the least value of the
    group (or zero) to the largest (or zero); at either end rounding may cost another half. Zero is kept."""
    x = np.concatenate([normal(50, 64), *(unfriendly(values, 64) for values in ("outliers", "one-sided"))])
    x[:, 5] = 0.0
    groups = x.reshape(len(x), 2, 32)
    made = quantize_activations(x, level, zeros=True)
    back = (made.q.reshape(groups.shape).astype(np.float64) + made.z[:, :, None]) * made.d[:, :, None]
    steps = (np.maximum(groups.max(axis=2), 0).astype(np.float64) - np.minimum(groups.min(axis=2), 0)) / 255
    off = np.abs(back - groups) / steps[:, :, None]
    assert off.max() < 1 + 1e-4
    inside = (groups < groups.max(axis=2, keepdims=True)) & (groups > groups.min(axis=2, keepdims=True))
    assert off[inside].max() < 0.5 + 1e-4
    assert not back[:, 0, 5].any()


@every_level
@with_and_without
@few_or_many
@pytest.mark.parametrize("broken", [np.inf, -np.inf, np.nan])
def test_a_broken_activation_is_never_hidden(level: str, zeros: bool, broken: float, copies: int) -> None:
    """A row that holds an infinity or not-a-number has no finite output, and its mates do not notice."""
    x = normal(6 * copies, 256)
    packed = matrix("Q4_K", 33, 256)[1]
    whole = matmul_packed(x, packed, level, zeros=zeros)
    for at in (0, 17, 255):
        spoiled = x.copy()
        spoiled[3, at] = broken
        y = matmul_packed(spoiled, packed, level, zeros=zeros)
        assert not np.isfinite(y[3]).any()
        assert_same_bits(np.delete(y, 3, axis=0), np.delete(whole, 3, axis=0))


@every_level
@with_and_without
@quantized
@few_or_many
@pytest.mark.parametrize("broken", [np.inf, np.nan])
def test_a_broken_scale_spoils_its_own_output_only(
    level: str, zeros: bool, kind: str, broken: float, copies: int
) -> None:
    """Weights that are not finite make their output so, whatever shares the tile with them."""
    k = 2 * block_weights(kind)
    made = matrix(kind, 20, k)[0]
    x = normal(5 * copies, k)
    whole = matmul_packed(x, pack(kind, made.rows, k), level, zeros=zeros)
    rows = made.rows.copy()
    at = 208 if kind == "Q6_K" else 0
    rows[18, at : at + 2] = np.array([broken], "<f2").view(np.uint8)
    y = matmul_packed(x, pack(kind, rows, k), level, zeros=zeros)
    assert not np.isfinite(y[:, 18]).any()
    assert_same_bits(np.delete(y, 18, axis=1), np.delete(whole, 18, axis=1))


UNITS = [(level, kind) for level in LEVELS for kind in KINDS if multiplies_bf16(level, kind)]
every_unit = pytest.mark.parametrize(("level", "kind"), UNITS)


def for_units(kind: str, n: int, k: int) -> tuple[F32, PackedMatrix]:
    """A matrix, and the bf16 values that units take it for."""
    if kind in FLOATS:
        return float_matrix(kind, n, k)
    made, packed = matrix(kind, n, k)
    return round_weights(made.weights), packed


@every_unit
@pytest.mark.parametrize(("rows", "n", "blocks"), [*HOSTILE, (32, 32, 4), (100, 40, 70), (600, 18, 2)])
def test_units_for_bf16_follow_their_definition(level: str, kind: str, rows: int, n: int, blocks: int) -> None:
    """Every shape, however ragged: tile units give the bits of their order, others the precision of a sum."""
    k = blocks * block_weights(kind) if kind not in FLOATS else 32 * blocks - blocks % 3
    (w, packed), x = for_units(kind, n, k), normal(rows, k)
    y = matmul_bf16(x, packed, level)
    rounded = widened(round_activations(x, level))[:, :k].copy()
    if level == "amx":
        assert_same_bits(y, reference_tile_matmul(rounded, w))
    else:
        assert_close(rounded, w, y)


@every_unit
@pytest.mark.parametrize("values", UNFRIENDLY)
def test_units_for_bf16_bear_unfriendly_activations(level: str, kind: str, values: str) -> None:
    """Outliers, zeros, denormals and huge values: the precision of a sum, with what is denormal taken for zero."""
    (w, packed), x = for_units(kind, 20, 256), unfriendly(values, 256)
    rounded = widened(round_activations(x, level))[:, :256].copy()
    assert_close(
        np.where(np.abs(rounded) < np.finfo(np.float32).tiny, np.float32(0), rounded), w, matmul_bf16(x, packed, level)
    )


@every_unit
def test_units_for_bf16_compute_each_row_for_itself(level: str, kind: str) -> None:
    """The same bits alone, in any company and at any place; and what is broken in one row stays there."""
    packed, x = any_matrix(kind, 33, 512 if kind not in FLOATS else 77), normal(70, 512 if kind not in FLOATS else 77)
    whole, order = matmul_bf16(x, packed, level), np.random.default_rng(0).permutation(70)
    assert_same_bits(np.concatenate([matmul_bf16(x[r : r + 1], packed, level) for r in range(70)]), whole)
    assert_same_bits(matmul_bf16(x[order], packed, level), whole[order])
    for broken in (np.inf, np.nan):
        spoiled = x.copy()
        spoiled[19, 40] = broken
        y = matmul_bf16(spoiled, packed, level)
        assert not np.isfinite(y[19]).any()
        assert_same_bits(np.delete(y, 19, axis=0), np.delete(whole, 19, axis=0))


@pytest.mark.parametrize(("level", "kind"), [pair for pair in product(LEVELS, KINDS) if pair not in UNITS])
def test_where_there_are_no_units_the_product_is_refused(level: str, kind: str) -> None:
    """By name, before anything is computed."""
    with pytest.raises(ValueError, match=f"{level} has no units"):
        matmul_bf16(normal(1, 512), any_matrix(kind, 5, 512), level)


@every_level
@pytest.mark.parametrize("k", [1, 2, 31, 64, 577])
def test_activations_are_rounded_to_bf16(level: str, k: int) -> None:
    """To nearest, halves to even; a denormal may become zero; the end of a row is padded with zeros."""
    x = np.concatenate([normal(4, k), normal(1, k) * np.float32(1e-39), normal(1, k) * np.float32(1e38)])
    x[1] = np.resize([1.00390625, 1.01171875, np.inf, -np.inf, 3.4e38, -0.0], k)  # two ties, the second one upwards
    ours = round_activations(x, level)
    assert not ours[:, k:].any()
    bits = x.view(np.uint32)
    expected = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    denormal = np.abs(x) < np.finfo(np.float32).tiny
    np.testing.assert_array_equal(np.where(denormal, 0, ours[:, :k]), np.where(denormal, 0, expected))
    assert ((ours[:, :k] == expected) | ((ours[:, :k] & 0x7FFF) == 0))[denormal].all()
    assert np.isnan(widened(round_activations(np.full((1, k), np.nan, np.float32), level))[:, :k]).all()


@every_level
@pytest.mark.parametrize("kind", ["Q4_K", "BF16"])
def test_threads_do_not_change_the_result(level: str, kind: str) -> None:
    """The number of threads decides who computes, never what."""
    packed, x = any_matrix(kind, 300, 256), normal(70, 256)
    expected, before = matmul_packed(x, packed, level), kernels.threads()
    try:
        for threads in (1, 2, 5):
            kernels.set_threads(threads)
            assert_same_bits(matmul_packed(x, packed, level), expected)
    finally:
        kernels.set_threads(before)


@every_level
def test_no_rows(level: str) -> None:
    """No rows give no rows."""
    assert matmul_packed(normal(0, 256), matrix("Q4_K", 5, 256)[1], level).shape == (0, 5)


@every_level
@pytest.mark.parametrize(
    ("x", "out", "complaint"),
    [
        (normal(2, 32).astype(np.float64), np.empty((2, 5), np.float32), "x has the wrong dtype"),
        (normal(2, 64), np.empty((2, 5), np.float32), "x has size 64"),
        (normal(2, 31), np.empty((2, 5), np.float32), "x has size 31"),
        (normal(32), np.empty((1, 5), np.float32), "x has 1 dimensions"),
        (normal(2, 64)[:, ::2], np.empty((2, 5), np.float32), "x is not C-contiguous"),
        (normal(2, 32), np.empty((3, 5), np.float32), "out has size 3"),
        (normal(2, 32), np.empty((2, 16), np.float32), "out has size 16"),
        (normal(2, 32), np.empty((2, 5), np.float16), "out has the wrong dtype"),
    ],
)
def test_wrong_arrays_are_refused(level: str, x: F32, out: F32, complaint: str) -> None:
    """A wrong dtype, shape or layout is a ValueError that names it, never a copy behind the caller's back."""
    with pytest.raises(ValueError, match=complaint):
        _native.matmul_packed(level, matrix("Q8_0", 5, 32)[1], x, out, bf16=False, zeros=False)


def test_a_level_that_is_not_here_is_refused() -> None:
    """By name, and before anything is computed."""
    with pytest.raises(ValueError, match="avx1024"):
        matmul_packed(normal(1, 32), matrix("Q8_0", 5, 32)[1], "avx1024")
