"""How fast `matmul_packed` is in each weight format: one row as in decode, which reads memory, and 512 as in prefill,
which compute. Each against what this machine can do at most at the same level."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from itertools import cycle

import numpy as np
from measure import arguments, shortest_s
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from taximeter import _native
from taximeter.engine.kernels import matmul_packed as packed
from taximeter.engine.weights.dequantize import TYPES, TensorType

# One row: gate and up of a model with some 3 billion parameters. Many rows: an eighth of it, which stays in a cache.
K, DECODE_N, PREFILL_N, PREFILL_ROWS = 2048, 16384, 2048, 512

# Weights are walked through in turn, so that one row finds them in memory and not in a cache.
WALK_BYTES = 1 << 28
UNITS: Mapping[str, tuple[str, ...]] = {"F32": ("f32",), "F16": ("f32",), "BF16": ("bf16", "f32")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One format at one level. Shares are of what the machine reads, and of what the unit in use computes."""

    format: str
    level: str
    threads: int
    decode_us: float
    decode_gb_per_s: float
    decode_share: float
    prefill_us: float
    prefill_gop_per_s: float
    prefill_share: float | None


def matrix_of(kind: TensorType, n: int) -> packed.PackedMatrix:
    """Random codes, and float weights of sensible sizes: arithmetic on denormals would take far longer."""
    noise = np.random.default_rng(0)
    if kind.block_weights == 1:
        return packed.pack(kind.name, _native.quantize_rows(kind.name, noise.random((n, K), np.float32)), K)
    row_bytes = K // kind.block_weights * kind.block_bytes
    return packed.pack(kind.name, noise.integers(0, 0x78, (n, row_bytes), dtype=np.uint8), K)


@cache
def most_gb_per_s(level: str, threads: int) -> float:
    return _native.read_gb_per_s(level, threads, WALK_BYTES, 1.0)


@cache
def most_gop_per_s(level: str, kind: str, threads: int) -> float | None:
    rates = (_native.gop_per_s(level, unit, threads, 0.3) for unit in UNITS.get(kind, ("int8",)))
    return next((rate for rate in rates if rate is not None), None)


def time_s(x: packed.F32, matrices: list[packed.PackedMatrix], level: str) -> float:
    turn = cycle(matrices)
    return shortest_s(lambda: packed.matmul_packed(x, next(turn), level))


def figures_of(kind: TensorType, options: Namespace) -> list[Figure]:
    """One format at every native level."""
    x = np.random.default_rng(0).standard_normal((PREFILL_ROWS, K), dtype=np.float32)
    large, small = matrix_of(kind, DECODE_N), matrix_of(kind, PREFILL_N)
    walk = [large, *(matrix_of(kind, DECODE_N) for _ in range(WALK_BYTES // large.size_bytes))]
    figures: list[Figure] = []
    for level in [name.removeprefix("native:") for name in options.level if name != "reference"]:
        decode_s, prefill_s = time_s(x[:1], walk, level), time_s(x, [small], level)
        gb_per_s = large.size_bytes / decode_s / 1e9
        gop_per_s = 2 * PREFILL_ROWS * PREFILL_N * K / prefill_s / 1e9
        most = most_gop_per_s(level, kind.name, options.threads)
        figures.append(
            Figure(
                format=kind.name,
                level=level,
                threads=options.threads,
                decode_us=decode_s * 1e6,
                decode_gb_per_s=gb_per_s,
                decode_share=gb_per_s / most_gb_per_s(level, options.threads),
                prefill_us=prefill_s * 1e6,
                prefill_gop_per_s=gop_per_s,
                prefill_share=None if most is None else gop_per_s / most,
            )
        )
    return figures


def show(figures: list[Figure]) -> None:
    table = Table(
        title="matmul_packed",
        caption=f"1 × {K} → {DECODE_N} from memory, % of the rate at which it is read; "
        f"{PREFILL_ROWS} × {K} → {PREFILL_N}, % of what the level's unit computes in registers",
        box=SIMPLE_HEAD,
    )
    for heading in ("format", "level"):
        table.add_column(heading, no_wrap=True)
    for heading in ("1 row µs", "GB/s", "%", f"{PREFILL_ROWS} rows µs", "GOP/s", "%"):
        table.add_column(heading, justify="right", no_wrap=True)
    for figure in figures:
        table.add_row(
            figure.format,
            figure.level,
            f"{figure.decode_us:,.0f}",
            f"{figure.decode_gb_per_s:.1f}",
            f"{100 * figure.decode_share:.0f}",
            f"{figure.prefill_us:,.0f}",
            f"{figure.prefill_gop_per_s:,.0f}",
            "" if figure.prefill_share is None else f"{100 * figure.prefill_share:.0f}",
        )
    Console().print(table)


def main() -> None:
    options = arguments(__doc__ or "")
    figures = [figure for kind in TYPES.values() for figure in figures_of(kind, options)]
    if options.json:
        print(json.dumps([asdict(figure) for figure in figures], indent=2))
    else:
        show(figures)


if __name__ == "__main__":
    main()
