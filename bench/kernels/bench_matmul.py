"""How fast `matmul` is on the weights of SmolLM2-135M: one row as in decode, a few, and a prefill's worth."""

from __future__ import annotations

from argparse import Namespace
from itertools import cycle

import numpy as np
from measure import Figure, arguments, shortest_s, show

from taximeter.engine import kernels

QKV, GATE_AND_UP, DOWN, HEAD = (960, 576), (3072, 576), (576, 1536), (49152, 576)
ROWS = (1, 8, 64, 512)

# Weights are walked through in turn, so that one row finds them in memory and not in a cache.
WALK_BYTES = 1 << 28


def figures_of(n: int, k: int, rows: int, options: Namespace) -> list[Figure]:
    """One product at every level."""
    noise = np.random.default_rng(0)
    x = noise.standard_normal((rows, k), dtype=np.float32)
    copies = max(1, WALK_BYTES // (n * k * 4))
    weights = cycle([noise.standard_normal((n, k), dtype=np.float32) for _ in range(copies)])
    figures: list[Figure] = []
    for level in options.level:
        with kernels.use_level(level):
            seconds = shortest_s(lambda: kernels.matmul(x, next(weights)))
        figures.append(
            Figure(
                kernel="matmul",
                level=level,
                threads=options.threads,
                shape=f"{rows} × {k} → {n}",
                time_us=seconds * 1e6,
                gflop_per_s=2 * rows * n * k / seconds / 1e9,
                gb_per_s=4 * (n * k + rows * (n + k)) / seconds / 1e9,
            )
        )
    return figures


def main() -> None:
    options = arguments(__doc__ or "")
    shapes = [(*weight, rows) for weight in (QKV, GATE_AND_UP, DOWN) for rows in ROWS]
    shapes += [(*HEAD, rows) for rows in (1, 8)]  # logits are wanted for one row of each sequence only
    show([figure for shape in shapes for figure in figures_of(*shape, options)], as_json=options.json)


if __name__ == "__main__":
    main()
