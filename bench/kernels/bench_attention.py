"""How fast attention over packed blocks is at every native level: whole prompts, and one row behind a long context."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from functools import partial
from itertools import cycle

import numpy as np
from measure import Figure, arguments, shortest_s, show

from taximeter.engine.kernels import attention_packed as packed


@dataclass(frozen=True, slots=True)
class Heads:
    model: str
    heads: int
    kv_heads: int
    head_dim: int


MODELS = (
    Heads("SmolLM2-135M", 9, 3, 64),
    Heads("Gemma-3-270M", 4, 1, 256),
    Heads("Llama-3.1-8B", 32, 8, 128),
)
RANGES = ((0, 512), (0, 2048), (4095, 4096), (8191, 8192))  # positions of the rows
BLOCK_TOKENS = 32

# Layers are walked through in turn, so that one row finds its keys in memory and not in a cache.
WALK_BYTES = 1 << 28


def figures_of(model: Heads, begin: int, end: int, options: Namespace) -> list[Figure]:
    """Rows at positions `begin` to `end` of one sequence, at every level, over a bf16 cache."""
    noise = np.random.default_rng(0)
    blocks = -(-end // BLOCK_TOKENS)
    shape = (blocks, model.kv_heads, BLOCK_TOKENS, model.head_dim)
    cache = packed.pack(
        noise.standard_normal(shape, dtype=np.float32), noise.standard_normal(shape, dtype=np.float32), "bf16"
    )
    layers = cycle([cache.copy() for _ in range(max(1, WALK_BYTES // cache.nbytes))] if end - begin == 1 else [cache])
    tables = noise.permutation(blocks).astype(np.int32)[None]
    positions, sequence = np.arange(begin, end, dtype=np.int32), np.zeros(end - begin, np.int32)
    q = noise.standard_normal((end - begin, model.heads, model.head_dim), dtype=np.float32)
    figures: list[Figure] = []
    for level in options.level:
        if level == "reference":
            continue
        run = partial(
            packed.paged_attention,
            q,
            block_tables=tables,
            row_seq=sequence,
            row_pos=positions,
            level=level.removeprefix("native:"),
            scale=0.125,
            window=None,
        )
        seconds = shortest_s(lambda run=run: run(cache=next(layers)))
        figures.append(
            Figure(
                kernel="paged_attention",
                level=level,
                threads=options.threads,
                shape=f"{model.model}: {begin} to {end - 1}",
                time_us=seconds * 1e6,
                gflop_per_s=4 * model.head_dim * model.heads * float((positions + 1.0).sum()) / seconds / 1e9,
                gb_per_s=cache.nbytes / seconds / 1e9,
            )
        )
    return figures


def main() -> None:
    options = arguments(__doc__ or "")
    show(
        [figure for model in MODELS for begin, end in RANGES for figure in figures_of(model, begin, end, options)],
        as_json=options.json,
    )


if __name__ == "__main__":
    main()
