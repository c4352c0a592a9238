"""Packed matrices: nothing of a weight file is lost on the way in, and nothing but whole matrices gets in."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from taximeter import _native
from taximeter.engine.kernels.contract import F32
from taximeter.engine.kernels.matmul_packed import U8, pack, unpack_rows
from taximeter.engine.weights import open_checkpoint
from taximeter.engine.weights.dequantize import TYPES, dequantize
from tests.unit.kernels.weight_blocks import FLOATS, KINDS, block_weights

HALF_AT = {"Q4_1": [0, 2], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
HOSTILE_HALVES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0xFFFF, 0x3C00]
every_kind = pytest.mark.parametrize("kind", KINDS)


def random_rows(kind: str, n: int, k: int) -> U8:
    row_bytes = k // TYPES[kind].block_weights * TYPES[kind].block_bytes
    return np.random.default_rng([n, k]).integers(0, 256, (n, row_bytes), dtype=np.uint8)


def dequantized(kind: str, rows: U8) -> F32:
    return dequantize(TYPES[kind], rows.reshape(-1)).reshape(len(rows), -1)


def assert_same_bits(ours: F32, theirs: F32) -> None:
    """Equal bit by bit, signs of zero included; of what is not a number only that it is none."""
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
    known = ~np.isnan(ours)
    np.testing.assert_array_equal(ours[known].view(np.uint32), theirs[known].view(np.uint32))


@every_kind
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 33, 100])
@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_any_bytes_come_back_as_they_went_in(kind: str, n: int, blocks: int) -> None:
    """Random bytes, which are every code and scale there is, infinite ones too, mean the same packed as in the file."""
    k = blocks * block_weights(kind)
    rows = random_rows(kind, n, k)
    assert_same_bits(unpack_rows(pack(kind, rows, k), np.arange(n)), dequantized(kind, rows))


@every_kind
def test_hostile_scales_come_back_as_they_went_in(kind: str) -> None:
    """Zeros of both signs, denormals, the largest half, infinities and not-a-numbers, in every scale."""
    k = block_weights(kind)
    places = HALF_AT.get(kind, [0])
    halves = np.array(HOSTILE_HALVES, dtype="<u2")
    rows = random_rows(kind, halves.size ** len(places), k)
    for turn, place in enumerate(places):
        chosen = halves[np.arange(len(rows)) // halves.size**turn % halves.size]
        rows[:, place : place + 2] = chosen.view(np.uint8).reshape(-1, 2)
    assert_same_bits(unpack_rows(pack(kind, rows, k), np.arange(len(rows))), dequantized(kind, rows))


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_real_tensors_come_back_as_they_went_in(name: str, request: pytest.FixtureRequest) -> None:
    """The matrices of a real model's first layer, and some rows of its embedding."""
    path = request.getfixturevalue(f"{name}_path")
    assert isinstance(path, Path)
    checkpoint = open_checkpoint(path)
    matrices = [
        name for name in checkpoint.names() if name.startswith("blk.0.") and len(checkpoint.raw(name).shape) == 2
    ]
    assert len(matrices) == 7
    for matrix in [*matrices, "token_embd.weight"]:
        raw = checkpoint.raw(matrix)
        rows = raw.data[:2000]
        packed = pack(raw.kind, rows, raw.shape[1])
        assert_same_bits(unpack_rows(packed, np.arange(len(rows))), dequantized(raw.kind, rows))


def test_rows_are_looked_up_in_any_order() -> None:
    """As an embedding is: any rows, some twice, or none."""
    rows = random_rows("Q4_K", 40, 512)
    wanted = np.array([39, 0, 16, 16, 15])
    packed = pack("Q4_K", rows, 512)
    assert_same_bits(unpack_rows(packed, wanted), dequantized("Q4_K", rows[wanted]))
    assert unpack_rows(packed, wanted[:0]).shape == (0, 512)


def test_a_mapped_file_may_begin_at_any_byte() -> None:
    """Rows that are read-only and not aligned are packed as they lie."""
    rows = random_rows("Q8_0", 5, 64)
    buffer = bytes(3) + rows.tobytes()
    shifted = np.frombuffer(buffer, np.uint8, offset=3).reshape(rows.shape)
    assert_same_bits(unpack_rows(pack("Q8_0", shifted, 64), np.arange(5)), dequantized("Q8_0", rows))


def test_a_tile_is_as_large_as_its_rows() -> None:
    """Sixteen rows take what they take in the file, but for rounding up to a cache line."""
    assert pack("Q8_0", random_rows("Q8_0", 16, 96), 96).size_bytes == 16 * 3 * 34 + 32
    assert pack("Q4_K", random_rows("Q4_K", 32, 256), 256).size_bytes == 2 * (2048 + 320)
    assert pack("F32", random_rows("F32", 17, 3), 3).size_bytes == 2 * 16 * 3 * 4


def hostile_floats(k: int) -> F32:
    """Rows that rounding could get wrong: halves, ties of the largest, zeros, tiny values, outliers."""
    noise = np.random.default_rng(k)
    rows = [noise.standard_normal(k), np.zeros(k), np.arange(k) - k / 2, np.tile([127.0, 0.5, -2.5, 1.5], k // 4)]
    rows += [noise.standard_normal(k) * scale for scale in (1e-7, 1e-30, 1e4)]
    rows += [noise.choice([-8.0, 8.0], k), np.where(np.arange(k) % 32 == 7, 1e3, 0.01), 2.0 ** -(np.arange(k) % 32)]
    return np.array(rows, dtype=np.float32)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q8_0"])
def test_weights_are_quantized_as_the_gguf_package_does(kind: str) -> None:
    """Byte for byte, the awkward values included."""
    weights = np.concatenate([hostile_floats(256), np.random.default_rng(0).standard_normal((200, 256), np.float32)])
    with np.errstate(all="ignore"):
        theirs = gguf.quants.quantize(weights, gguf.GGMLQuantizationType[kind])
    ours = _native.quantize_rows(kind, weights)
    np.testing.assert_array_equal(ours, theirs.view(np.uint8))


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_denormal_weights_become_zeros(kind: str) -> None:
    """Whose scale has no inverse in float32; no code of theirs matters, and none is undefined."""
    weights = np.random.default_rng(0).standard_normal((3, 96)).astype(np.float32) * np.float32(1e-42)
    assert not dequantized(kind, _native.quantize_rows(kind, weights)).any()


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q8_0"])
@pytest.mark.parametrize("broken", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_does_not_become_a_weight(kind: str, broken: float) -> None:
    """It stays recognizably broken, and spoils its own group at most."""
    weights = np.random.default_rng(0).standard_normal((3, 96), np.float32)
    weights[1, 40] = broken
    back = dequantized(kind, _native.quantize_rows(kind, weights))
    assert not np.isfinite(back[1, 32:64]).all()
    back[1, 32:64] = 0.0
    assert np.isfinite(back).all()


def rows_of(*shape: int, dtype: npt.DTypeLike = np.uint8) -> npt.NDArray[np.generic]:
    return np.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("kind", "rows", "k", "complaint"),
    [
        ("Q3_K", rows_of(4, 110), 256, "Q3_K"),
        ("q8_0", rows_of(4, 34), 32, "q8_0"),
        ("Q8_0", rows_of(4, 34), 33, "blocks of 32"),
        ("Q8_0", rows_of(4, 34), 64, "axis 1"),
        ("Q4_K", rows_of(4, 18), 32, "blocks of 256"),
        ("Q8_0", rows_of(4, 34, dtype=np.int8), 32, "dtype"),
        ("F32", rows_of(4, 32, dtype=np.float32), 32, "dtype"),
        ("Q8_0", rows_of(136), 32, "dimensions"),
        ("Q8_0", rows_of(0, 34), 32, "0 × 32"),
        ("Q8_0", rows_of(4, 0), 0, "4 × 0"),
        ("Q8_0", rows_of(4, 34), -32, "-32"),
        ("Q8_0", rows_of(4, 34), 1 << 40, "weights"),
        ("Q8_0", rows_of(4, 68)[:, ::2], 32, "contiguous"),
        ("F16", rows_of(4, 7), 3, "axis 1"),
    ],
)
def test_what_is_no_matrix_is_refused(kind: str, rows: U8, k: int, complaint: str) -> None:
    """An unknown kind, rows of the wrong length, and sizes that do not go together are a ValueError that says so."""
    with pytest.raises(ValueError, match=complaint):
        pack(kind, rows, k)


@pytest.mark.parametrize("wanted", [[-1], [5], [0, 1 << 40]])
def test_rows_outside_the_matrix_are_refused(wanted: list[int]) -> None:
    """Nothing is read that is not there."""
    packed = pack("Q8_0", random_rows("Q8_0", 5, 32), 32)
    with pytest.raises(ValueError, match="outside the 5"):
        unpack_rows(packed, np.array(wanted))
    with pytest.raises(ValueError, match="out"):
        packed.unpack_rows(np.array([0]), np.empty((1, 33), np.float32))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in (*FLOATS, "Q4_0", "Q8_0")])
def test_kinds_that_are_only_read_are_never_written(kind: str) -> None:
    """Asking for one is a ValueError, not a poor imitation."""
    with pytest.raises(ValueError, match=kind):
        _native.quantize_rows(kind, np.zeros((1, 256), np.float32))


def test_floats_that_are_not_whole_blocks_are_refused() -> None:
    """A row of 33 has no place in blocks of 32."""
    with pytest.raises(ValueError, match="33"):
        _native.quantize_rows("Q8_0", np.zeros((1, 33), np.float32))
