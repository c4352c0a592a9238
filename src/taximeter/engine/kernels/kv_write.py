"""`kv_write`: puts new keys and values where the scheduler decided. A copy, exact at every level."""

from __future__ import annotations

import numpy as np

from taximeter.engine.kernels.contract import F32, I64, require


def kv_write(k: F32, v: F32, k_cache: F32, v_cache: F32, slots: I64) -> None:
    """Write k and v (rows, kv_heads, head_dim) into the caches (blocks, kv_heads, block_size, head_dim), in place.

    Row r goes to `slots[r]` = block × block_size + offset. Two rows of one call never share a slot.
    """
    require("k", k, np.float32, None, None, None)
    rows, kv_heads, head_dim = k.shape
    require("v", v, np.float32, *k.shape)
    require("k_cache", k_cache, np.float32, None, kv_heads, None, head_dim)
    require("v_cache", v_cache, np.float32, *k_cache.shape)
    require("slots", slots, np.int64, rows)
    block_size = k_cache.shape[2]
    if rows and (slots.min() < 0 or slots.max() >= len(k_cache) * block_size):
        raise ValueError(f"a slot lies outside the cache's {len(k_cache) * block_size} slots")
    block, offset = np.divmod(slots, block_size)
    k_cache[block, :, offset] = k
    v_cache[block, :, offset] = v
