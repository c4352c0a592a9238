"""`paged_attention`: attention of query rows over keys and values that lie in blocks.

Tolerance against float64: a softmax-weighted mean, about 2⁻²⁰ of the largest visible value.
"""

from __future__ import annotations

import numpy as np

from taximeter.engine.kernels.contract import F32, I32, require
from taximeter.engine.kernels.matmul import matmul

_CHUNK_KEYS = 128


def paged_attention(
    q: F32,
    k_cache: F32,
    v_cache: F32,
    block_tables: I32,
    row_seq: I32,
    row_pos: I32,
    *,
    scale: float,
    window: int | None,
) -> F32:
    """Attention of each row over the keys of its own sequence, up to its own position.

    q (rows, heads, head_dim); caches (blocks, kv_heads, block_size, head_dim); block_tables (seqs, max_blocks), of
    which only the entries that a row sees keys of are read; row_seq and row_pos (rows,) → a new array like q.

    Row r sees keys j ≤ row_pos[r] of sequence row_seq[r], and with a window only those with row_pos[r] - j < window.
    Query head h reads kv head h // (heads // kv_heads). Up to the last position asked for, what those blocks hold must
    be finite; beyond it they may hold anything.

    Computed by an online softmax over chunks of keys that begin at fixed positions. A chunk that a row does not see
    changes nothing in that row's running state, so a row ends with the same bits whichever rows, and however many
    chunks, are computed beside it.
    """
    blocks = _require(q, k_cache, v_cache, block_tables, row_seq, row_pos, window)
    out = np.empty(q.shape, np.float32)
    for seq in np.unique(row_seq):
        rows = np.flatnonzero(row_seq == seq)
        table = block_tables[seq, : int(blocks[rows].max())]
        out[rows] = _one_sequence(q[rows] * np.float32(scale), k_cache, v_cache, table, row_pos[rows], window)
    return out


def _require(
    q: F32, k_cache: F32, v_cache: F32, block_tables: I32, row_seq: I32, row_pos: I32, window: int | None
) -> I32:
    """Check everything the kernel relies on; returns how many blocks each row reads."""
    require("q", q, np.float32, None, None, None)
    rows, heads, head_dim = q.shape
    require("k_cache", k_cache, np.float32, None, None, None, head_dim)
    require("v_cache", v_cache, np.float32, *k_cache.shape)
    require("block_tables", block_tables, np.int32, None, None)
    require("row_seq", row_seq, np.int32, rows)
    require("row_pos", row_pos, np.int32, rows)
    kv_heads, block_size = k_cache.shape[1:3]
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"{heads} query heads cannot share {kv_heads} kv heads evenly")
    if window is not None and window < 1:
        raise ValueError(f"a window of {window} keys sees nothing")
    seqs, max_blocks = block_tables.shape
    if rows and (row_seq.min() < 0 or row_seq.max() >= seqs):
        raise ValueError(f"row_seq names a sequence outside the {seqs} of block_tables")
    if rows and (row_pos.min() < 0 or row_pos.max() >= max_blocks * block_size):
        raise ValueError(f"row_pos lies outside the {max_blocks * block_size} positions of a block table")
    blocks = row_pos // np.int32(block_size) + np.int32(1)
    for seq in np.unique(row_seq):
        first = _first_seen(row_pos[row_seq == seq], window) // block_size
        read = block_tables[seq, first : int(blocks[row_seq == seq].max())]
        if read.min() < 0 or read.max() >= len(k_cache):
            raise ValueError(f"block_tables names a block outside the cache's {len(k_cache)}")
    return blocks


def _one_sequence(q: F32, k_cache: F32, v_cache: F32, table: I32, row_pos: I32, window: int | None) -> F32:
    """Rows of one sequence, already scaled."""
    rows, heads, head_dim = q.shape
    kv_heads = k_cache.shape[1]
    group = heads // kv_heads
    end = int(row_pos.max()) + 1
    first_seen = _first_seen(row_pos, window)
    begin = first_seen - first_seen % _CHUNK_KEYS

    keys, values = (_gather(cache, table, begin, first_seen, end) for cache in (k_cache, v_cache))
    grouped = q.reshape(rows, kv_heads, group, head_dim)
    top = np.full((kv_heads, rows, group, 1), -np.inf, np.float32)
    total = np.zeros((kv_heads, rows, group, 1), np.float32)
    mixed = np.zeros((kv_heads, rows, group, head_dim), np.float32)
    for start in range(begin, end, _CHUNK_KEYS):
        position = np.arange(start, start + _CHUNK_KEYS, dtype=np.int32)
        seen = position <= row_pos[:, None]
        if window is not None:
            seen &= row_pos[:, None] - position < window
        here = np.flatnonzero(seen.any(axis=1))
        hidden = ~seen[here, None, :]
        chunk = slice(start - begin, start - begin + _CHUNK_KEYS)
        for head in range(kv_heads):
            queries = np.ascontiguousarray(grouped[here, head]).reshape(-1, head_dim)
            scores = matmul(queries, keys[head, chunk]).reshape(len(here), group, _CHUNK_KEYS)
            np.copyto(scores, -np.inf, where=hidden)
            old = top[head, here]
            new = np.maximum(old, scores.max(axis=-1, keepdims=True))
            weights = np.exp(scores - new)
            fade = np.exp(old - new)
            top[head, here] = new
            total[head, here] = total[head, here] * fade + weights.sum(axis=-1, keepdims=True)
            part = matmul(weights.reshape(-1, _CHUNK_KEYS), np.ascontiguousarray(values[head, chunk].T))
            mixed[head, here] = mixed[head, here] * fade + part.reshape(len(here), group, head_dim)
    return np.ascontiguousarray((mixed / total).transpose(1, 0, 2, 3)).reshape(q.shape)


def _first_seen(row_pos: I32, window: int | None) -> int:
    """The first position that any of a sequence's rows sees."""
    return 0 if window is None else max(0, int(row_pos.min()) - window + 1)


def _gather(cache: F32, table: I32, begin: int, first_seen: int, end: int) -> F32:
    """Positions `first_seen` to `end` of one sequence as (kv_heads, positions from `begin`, head_dim), with zeros where
    nobody sees anything, up to a whole chunk."""
    _blocks, kv_heads, block_size, head_dim = cache.shape
    first_block = first_seen // block_size
    read = cache[table[first_block:]].transpose(1, 0, 2, 3).reshape(kv_heads, -1, head_dim)
    skip = first_seen - first_block * block_size
    chunks = -(-(end - begin) // _CHUNK_KEYS)
    out = np.zeros((kv_heads, chunks * _CHUNK_KEYS, head_dim), np.float32)
    out[:, first_seen - begin : end - begin] = read[:, skip : skip + end - first_seen]
    return out
