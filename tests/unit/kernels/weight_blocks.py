"""Weight matrices in GGUF's blocks, made from codes and scales that are known: the opposite of dequantizing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from taximeter.engine.kernels.contract import F32
from taximeter.engine.kernels.matmul_packed import U8, GroupedWeights

BITS = {"Q4_0": 4, "Q4_1": 4, "Q5_0": 5, "Q5_1": 5, "Q8_0": 8, "Q4_K": 4, "Q5_K": 5, "Q6_K": 6}
OFFSETS = {"Q4_0": 8, "Q5_0": 16, "Q8_0": 128, "Q6_K": 32}
FLOATS = ("F32", "F16", "BF16")
KINDS = (*FLOATS, *BITS)

F16 = npt.NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class Made:
    """Rows as a file has them, and what they mean."""

    rows: U8
    weights: GroupedWeights


def block_weights(kind: str) -> int:
    return 1 if kind in FLOATS else 256 if kind.endswith("_K") else 32


def make(kind: str, codes: U8, noise: np.random.Generator) -> Made:
    """Blocks of a quantized kind with these codes (n, k), unsigned, and random scales."""
    n, k = codes.shape
    blocks = codes.reshape(n, k // block_weights(kind), -1)
    match kind:
        case "Q6_K":
            return _six_bits(blocks, noise)
        case "Q4_K" | "Q5_K":
            return _super_blocks(kind, blocks, noise)
        case _:
            return _small_blocks(kind, blocks, noise)


def _small_blocks(kind: str, codes: U8, noise: np.random.Generator) -> Made:
    n, groups, _ = codes.shape
    d = _halves(noise, n, groups)
    parts = [_as_bytes(d)]
    if kind in OFFSETS:
        minimums = -OFFSETS[kind] * d.astype(np.float32)
    else:
        m = _halves(noise, n, groups)
        minimums = m.astype(np.float32)
        parts.append(_as_bytes(m))
    if kind == "Q8_0":
        parts.append(codes ^ np.uint8(128))  # a signed byte
    else:
        if BITS[kind] == 5:
            parts.append(np.packbits(codes >> 4, axis=2, bitorder="little"))
        parts.append((codes[:, :, :16] & 15) | (codes[:, :, 16:] & 15) << 4)
    return _made(parts, codes, d.astype(np.float32), minimums)


def _super_blocks(kind: str, codes: U8, noise: np.random.Generator) -> Made:
    n, blocks, _ = codes.shape
    d, dmin = _halves(noise, n, blocks), _halves(noise, n, blocks)
    s, t = noise.integers(0, 64, (2, n, blocks, 8), dtype=np.uint8)
    upper_s, upper_t = s[..., 4:], t[..., 4:]
    six = [s[..., :4] | upper_s >> 4 << 6, t[..., :4] | upper_t >> 4 << 6, upper_s & 15 | (upper_t & 15) << 4]
    parts = [_as_bytes(d), _as_bytes(dmin), *six]
    groups = codes.reshape(n, blocks, 8, 32)
    if kind == "Q5_K":
        # Bit g of byte f is the fifth bit of feature f in group g.
        parts.append(np.packbits(groups >> 4, axis=2, bitorder="little").reshape(n, blocks, 32))
    parts.append(((groups[:, :, ::2] & 15) | (groups[:, :, 1::2] & 15) << 4).reshape(n, blocks, 128))
    scales = d.astype(np.float32)[:, :, None] * s
    minimums = -(dmin.astype(np.float32)[:, :, None] * t)
    return _made(parts, codes, scales, minimums)


def _six_bits(codes: U8, noise: np.random.Generator) -> Made:
    n, blocks, _ = codes.shape
    d = _halves(noise, n, blocks)
    steps = noise.integers(-128, 128, (n, blocks, 16), dtype=np.int8)
    halves = codes.reshape(n, blocks, 2, 4, 32)  # each half block: four groups, of which two share a byte's nibbles
    nibbles = halves[:, :, :, :2] & 15 | (halves[:, :, :, 2:] & 15) << 4
    pairs = halves >> 4 << np.array([0, 2, 4, 6], np.uint8)[:, None]
    parts = [
        nibbles.reshape(n, blocks, 128),
        np.bitwise_or.reduce(pairs, axis=3).reshape(n, blocks, 64),
        steps.view(np.uint8),
        _as_bytes(d),
    ]
    scales = d.astype(np.float32)[:, :, None] * steps
    return _made(parts, codes, scales, -OFFSETS["Q6_K"] * scales)


def _made(parts: list[U8], codes: U8, scales: F32, minimums: F32) -> Made:
    n = len(codes)
    return Made(
        rows=np.ascontiguousarray(np.concatenate(parts, axis=2).reshape(n, -1)),
        weights=GroupedWeights(
            codes.reshape(n, -1), scales.reshape(n, -1).astype(np.float32), minimums.reshape(n, -1).astype(np.float32)
        ),
    )


def _halves(noise: np.random.Generator, n: int, count: int) -> F16:
    """Scales of the sizes that models have, both signs, with zeros, denormals and an outlier among them."""
    scales = (noise.standard_normal((n, count)) * 0.02).astype(np.float16)
    spoiled = noise.integers(0, 24, (n, count))
    scales[spoiled == 0] = 0.0
    scales[spoiled == 1] = np.float16(3e-7)
    scales[spoiled == 2] = np.float16(900.0)
    return scales


def _as_bytes(scales: F16) -> U8:
    return scales.astype("<f2")[:, :, None].view(np.uint8)
