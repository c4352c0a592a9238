"""Blocks of a weight file into float32, bit for bit as GGML defines each type.

Owns: the known tensor types, their block sizes, the arithmetic of each, and `RawTensor`, a tensor still in its blocks.
Refuses to know: files and names. Layouts are little-endian; `d` and `m` are float16 unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_Bytes = npt.NDArray[np.uint8]
_Floats = npt.NDArray[np.float32]
_Fill = Callable[[_Bytes, _Floats], None]  # (blocks, bytes per block) → (blocks, weights per block), in place

_CHUNK_WEIGHTS = 1 << 15  # 128 KiB of float32: intermediate arrays stay in a core's second-level cache


@dataclass(frozen=True, slots=True)
class TensorType:
    """How a tensor's weights are stored: `block_weights` of them in every `block_bytes` bytes."""

    name: str
    block_weights: int
    block_bytes: int
    fill: _Fill


@dataclass(frozen=True, slots=True, eq=False)
class RawTensor:
    """One tensor as it is stored: `kind` is a `TensorType`'s name, `shape` is (out_features, in_features) or (size,).

    `data` is (rows, bytes per row), C-contiguous; often a read-only view of a mapped file, which then stays mapped as
    long as the view lives. It may begin at any address: whoever reads wider than bytes must not rely on alignment.
    """

    kind: str
    shape: tuple[int, ...]
    data: _Bytes

    @classmethod
    def of(cls, kind: str, shape: tuple[int, ...], flat: _Bytes) -> RawTensor:
        """From all of a tensor's bytes in one run. A tensor of one dimension is one row."""
        rows = shape[0] if len(shape) > 1 else 1
        return cls(kind, shape, flat.reshape(rows, -1))

    def dequantized(self) -> _Floats:
        """A fresh float32 array of `shape`."""
        return dequantize(TYPES[self.kind], self.data.reshape(-1)).reshape(self.shape)


def dequantize(kind: TensorType, raw: _Bytes) -> _Floats:
    """All weights of `raw`, a flat run of whole blocks, as a fresh flat float32 array.

    Raises ValueError when `raw` is not a whole number of blocks. Infinite and not-a-number scales pass through.
    """
    blocks = raw.reshape(-1, kind.block_bytes)
    weights = np.empty((blocks.shape[0], kind.block_weights), dtype=np.float32)
    step = max(1, _CHUNK_WEIGHTS // kind.block_weights)
    with np.errstate(all="ignore"):
        for start in range(0, blocks.shape[0], step):
            kind.fill(blocks[start : start + step], weights[start : start + step])
    return weights.reshape(-1)


def _fill_f32(blocks: _Bytes, out: _Floats) -> None:
    out[:] = blocks.view("<f4")


def _fill_f16(blocks: _Bytes, out: _Floats) -> None:
    out[:] = blocks.view("<f2")


def _fill_bf16(blocks: _Bytes, out: _Floats) -> None:
    np.left_shift(blocks.view("<u2"), np.uint32(16), out=out.view(np.uint32), dtype=np.uint32)


def _fill_q4_0(blocks: _Bytes, out: _Floats) -> None:
    """d, 16 bytes of nibbles (low ones first): (q - 8) * d."""
    out[:] = _nibbles(blocks[:, 2:], 16).view(np.int8) - np.int8(8)
    out *= _half(blocks, 0)


def _fill_q4_1(blocks: _Bytes, out: _Floats) -> None:
    """d, m, nibbles: q * d + m."""
    out[:] = _nibbles(blocks[:, 4:], 16)
    out *= _half(blocks, 0)
    out += _half(blocks, 2)


def _fill_q5_0(blocks: _Bytes, out: _Floats) -> None:
    """d, 32 fifth bits, nibbles: (q - 16) * d."""
    out[:] = (_nibbles(blocks[:, 6:], 16) | _fifth_bits(blocks[:, 2:6])).view(np.int8) - np.int8(16)
    out *= _half(blocks, 0)


def _fill_q5_1(blocks: _Bytes, out: _Floats) -> None:
    """d, m, 32 fifth bits, nibbles: q * d + m."""
    out[:] = _nibbles(blocks[:, 8:], 16) | _fifth_bits(blocks[:, 4:8])
    out *= _half(blocks, 0)
    out += _half(blocks, 2)


def _fill_q8_0(blocks: _Bytes, out: _Floats) -> None:
    """d, 32 signed bytes: q * d."""
    out[:] = blocks[:, 2:].view(np.int8)
    out *= _half(blocks, 0)


def _fill_q4_k(blocks: _Bytes, out: _Floats) -> None:
    """d, dmin, 12 bytes of scales, 128 bytes of nibbles: d * scale * q - dmin * min in 8 sub-blocks of 32."""
    _scale_sub_blocks(_nibbles(blocks[:, 16:], 32), blocks, out)


def _fill_q5_k(blocks: _Bytes, out: _Floats) -> None:
    """As Q4_K, with 32 bytes before the nibbles whose bit i of byte l is the fifth bit of weight l in sub-block i."""
    bits = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]
    q = _nibbles(blocks[:, 48:], 32)
    q |= ((bits & np.uint8(1)) << np.uint8(4)).reshape(q.shape)
    _scale_sub_blocks(q, blocks, out)


def _fill_q6_k(blocks: _Bytes, out: _Floats) -> None:
    """128 bytes of low nibbles, 64 of upper bit pairs, 16 int8 scales, d last: d * scale * (q - 32) in runs of 16."""
    count = blocks.shape[0]
    low = _nibbles(blocks[:, :128], 64).reshape(count, 2, 4, 32)
    pairs = blocks[:, 128:192].reshape(count, 2, 1, 32) >> np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    q = (low | ((pairs & np.uint8(3)) << np.uint8(4))).view(np.int8) - np.int8(32)
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    scales *= _half(blocks, 208)
    runs = out.reshape(count, 16, 16)
    runs[:] = q.reshape(runs.shape)
    runs *= scales[:, :, None]


def _half(blocks: _Bytes, at: int) -> _Floats:
    """The float16 at byte `at` of every block, as a (blocks, 1) column."""
    return blocks[:, at : at + 2].view("<f2").astype(np.float32)


def _nibbles(packed: _Bytes, group_bytes: int) -> _Bytes:
    """Each group of bytes gives its low nibbles, then its high ones."""
    count, size = packed.shape
    groups = packed.reshape(count, size // group_bytes, group_bytes)
    q = np.empty((count, size // group_bytes, 2, group_bytes), dtype=np.uint8)
    np.bitwise_and(groups, np.uint8(15), out=q[:, :, 0])
    np.right_shift(groups, np.uint8(4), out=q[:, :, 1])
    return q.reshape(count, 2 * size)


def _fifth_bits(packed: _Bytes) -> _Bytes:
    """32 bits per block, weight 0 in the lowest, each as 0 or 16."""
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def _scale_sub_blocks(q: _Bytes, blocks: _Bytes, out: _Floats) -> None:
    """The common end of Q4_K and Q5_K. Scales and mins are 6 bits each: the first four of both in the low bits of bytes
    0-3 and 4-7; of the last four, the low nibbles share bytes 8-11 and the top bit pairs sit above the first four."""
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 2) & 48)], axis=1).astype(np.float32)
    mins = np.concatenate([second & 63, (third >> 4) | ((second >> 2) & 48)], axis=1).astype(np.float32)
    scales *= _half(blocks, 0)
    mins *= _half(blocks, 2)
    sub_blocks = out.reshape(-1, 8, 32)
    sub_blocks[:] = q.reshape(-1, 8, 32)
    sub_blocks *= scales[:, :, None]
    sub_blocks -= mins[:, :, None]


F32 = TensorType("F32", 1, 4, _fill_f32)
F16 = TensorType("F16", 1, 2, _fill_f16)
BF16 = TensorType("BF16", 1, 2, _fill_bf16)

GGML_TYPES: Mapping[int, TensorType] = {
    0: F32,
    1: F16,
    2: TensorType("Q4_0", 32, 18, _fill_q4_0),
    3: TensorType("Q4_1", 32, 20, _fill_q4_1),
    6: TensorType("Q5_0", 32, 22, _fill_q5_0),
    7: TensorType("Q5_1", 32, 24, _fill_q5_1),
    8: TensorType("Q8_0", 32, 34, _fill_q8_0),
    12: TensorType("Q4_K", 256, 144, _fill_q4_k),
    13: TensorType("Q5_K", 256, 176, _fill_q5_k),
    14: TensorType("Q6_K", 256, 210, _fill_q6_k),
    30: BF16,
}
"""Tensor types by the number GGUF files use."""

TYPES: Mapping[str, TensorType] = {kind.name: kind for kind in GGML_TYPES.values()}
"""Tensor types by name."""
