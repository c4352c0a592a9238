"""`attention_packed`: attention over the cache of the native forward pass, whose layout suits vectors of sixteen keys.

Owns: the native kernels as single calls, for tests and benchmarks (the forward pass makes them itself), and the cache's
layout in numpy. Needs the native code. Refuses to know: who shares blocks, and when they are given away.

A layer's cache is (blocks, kv_heads, 2, block_tokens, head_dim) of float32, or of bf16 as uint16: for each block and
head the keys of block_tokens tokens (a multiple of 16), then their values. Within these,

    keys, for every 16 tokens   float32 (head_dim, 16 tokens)       bf16 (head_dim / 2, 16 tokens, 2): pairs of features
    values                      float32 (tokens, head_dim)          bf16 (tokens / 2, head_dim, 2): pairs of tokens

An int8 cache is (blocks, kv_heads, 2, block_tokens, head_dim + 4): bytes in bf16's order, and behind the keys and
behind the values of a block and head the float32 scales of its tokens, one for each vector.

Tolerance: with a float32 cache that of `paged_attention`. With bf16 and int8 the same for the rounded keys and values,
except at `avx512_bf16` and `amx`, which round the scaled queries and the weights to bf16 too.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from taximeter import _native
from taximeter.engine.kernels.contract import F32, I32, I64

U16 = npt.NDArray[np.uint16]
I8 = npt.NDArray[np.int8]
Cache = F32 | U16 | I8
Format = Literal["f32", "bf16", "int8"]

_Element = TypeVar("_Element", np.uint16, np.int8)

_LEAST = np.float32(2.0**-100)  # a vector without a larger element is kept as zeros


def paged_attention(
    q: F32,
    cache: Cache,
    block_tables: I32,
    row_seq: I32,
    row_pos: I32,
    level: str,
    *,
    scale: float,
    window: int | None,
) -> F32:
    """The contract of `kernels.paged_attention`, at a native level, for example `avx2`."""
    out = np.empty(q.shape, np.float32)
    _native.paged_attention(level, q, cache, block_tables, row_seq, row_pos, scale, window, out)
    return out


def kv_put(k: F32, v: F32, cache: Cache, slots: I64, level: str) -> None:
    """Write k and v (rows, kv_heads, head_dim) into the cache, rounded as its format says.

    Row r goes to `slots[r]` = block × block_tokens + offset. Two rows of one call never share a slot.
    """
    _native.kv_put(level, k, v, cache, slots)


def pack(keys: F32, values: F32, cache_format: Format) -> Cache:
    """A cache from keys and values, each (blocks, kv_heads, block_tokens, head_dim): the layout, in numpy."""
    blocks, kv_heads, tokens, head_dim = keys.shape
    if cache_format == "f32":
        groups = keys.reshape(blocks, kv_heads, tokens // 16, 16, head_dim)
        return np.stack([groups.swapaxes(3, 4).reshape(keys.shape), values], axis=2)
    if cache_format == "bf16":
        return np.stack(_in_pairs(round_bf16(keys), round_bf16(values)), axis=2)
    key_bytes, key_scales = round_int8(keys)
    value_bytes, value_scales = round_int8(values)
    halves = [
        np.concatenate([half.reshape(blocks, kv_heads, -1), scales.view(np.int8).reshape(blocks, kv_heads, -1)], axis=2)
        for half, scales in zip(_in_pairs(key_bytes, value_bytes), (key_scales, value_scales), strict=True)
    ]
    return np.stack(halves, axis=2).reshape(blocks, kv_heads, 2, tokens, head_dim + 4)


def _in_pairs(keys: npt.NDArray[_Element], values: npt.NDArray[_Element]) -> list[npt.NDArray[_Element]]:
    """Keys with two features of a token side by side, values with two tokens of a feature."""
    blocks, kv_heads, tokens, head_dim = keys.shape
    pairs = keys.reshape(blocks, kv_heads, tokens // 16, 16, head_dim // 2, 2).swapaxes(3, 4)
    mixed = values.reshape(blocks, kv_heads, tokens // 2, 2, head_dim).swapaxes(3, 4)
    return [pairs.reshape(keys.shape), mixed.reshape(keys.shape)]


def round_bf16(x: F32) -> U16:
    """The upper halves of x, rounded to nearest even; not-a-number stays one."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(x), bits >> np.uint32(16) | np.uint32(0x40), rounded).astype(np.uint16)


def widen_bf16(x: U16) -> F32:
    """What bf16 values are as float32."""
    return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)


def round_int8(x: F32) -> tuple[I8, F32]:
    """Whole numbers from -127 to 127 for the vectors along the last axis, and the scale that brings each of them back.

    A vector of next to nothing becomes zeros with a scale of zero, one that is not finite zeros with not-a-number.
    """
    largest = np.abs(x).max(axis=-1, keepdims=True)
    finite, kept = np.isfinite(largest), largest >= _LEAST
    usable = np.where(finite & kept, largest, np.float32(1.0))
    factor = np.where(finite & kept, np.float32(127.0) / usable, np.float32(0.0))
    quanta = np.rint(np.where(finite, x, np.float32(0.0)) * factor).astype(np.int8)
    scale = np.where(finite, np.where(kept, usable / np.float32(127.0), np.float32(0.0)), np.float32(np.nan))
    return quanta, np.ascontiguousarray(scale[..., 0], np.float32)


def widen_int8(quanta: I8, scale: F32) -> F32:
    """What int8 vectors are as float32."""
    return quanta.astype(np.float32) * scale[..., None]
