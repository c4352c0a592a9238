"""How fast `paged_attention` is with the heads of SmolLM2-135M: chunks of a long prompt, and one row behind it."""

from __future__ import annotations

from argparse import Namespace

import numpy as np
from measure import Figure, arguments, shortest_s, show

from taximeter.engine import kernels

HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 9, 3, 64, 16
CONTEXT = 4096
RANGES = ((0, 512), (CONTEXT - 512, CONTEXT), (CONTEXT - 1, CONTEXT))  # positions of the rows


def figures_of(begin: int, end: int, options: Namespace) -> list[Figure]:
    """Rows at positions `begin` to `end`, at every level."""
    noise = np.random.default_rng(0)
    blocks = CONTEXT // BLOCK_SIZE
    shape = (blocks, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    k_cache, v_cache = noise.standard_normal(shape, dtype=np.float32), noise.standard_normal(shape, dtype=np.float32)
    tables = noise.permutation(blocks).astype(np.int32)[None]
    positions, sequence = np.arange(begin, end, dtype=np.int32), np.zeros(end - begin, np.int32)
    q = noise.standard_normal((end - begin, HEADS, HEAD_DIM), dtype=np.float32)

    def run() -> None:
        kernels.paged_attention(q, k_cache, v_cache, tables, sequence, positions, scale=0.125, window=None)

    figures: list[Figure] = []
    for level in options.level:
        with kernels.use_level(level):
            seconds = shortest_s(run)
        figures.append(
            Figure(
                kernel="paged_attention",
                level=level,
                threads=options.threads,
                shape=f"rows {begin} to {end - 1}",
                time_us=seconds * 1e6,
                gflop_per_s=4 * HEAD_DIM * HEADS * float((positions + 1.0).sum()) / seconds / 1e9,
                gb_per_s=8 * HEAD_DIM * KV_HEADS * end / seconds / 1e9,
            )
        )
    return figures


def main() -> None:
    options = arguments(__doc__ or "")
    show([figure for begin, end in RANGES for figure in figures_of(begin, end, options)], as_json=options.json)


if __name__ == "__main__":
    main()
