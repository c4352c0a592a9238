"""What the kernel benchmarks share: the shortest of many runs, the machine's own ceilings, and one table."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from taximeter.engine import kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One kernel at one level on one shape; the shortest time of all runs."""

    kernel: str
    level: str
    threads: int
    shape: str
    time_us: float
    gflop_per_s: float
    gb_per_s: float


def arguments(about: str) -> argparse.Namespace:
    """The options that every kernel benchmark takes."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--level", action="append", choices=kernels.levels(), help="only this level (repeatable)")
    parser.add_argument("--threads", type=int, default=kernels.threads(), help="threads of the native levels")
    options = parser.parse_args()
    options.level = options.level or list(kernels.levels())
    kernels.set_threads(options.threads)
    return options


def shortest_s(run: Callable[[], object], *, budget_s: float = 0.4) -> float:
    """The shortest of at least three runs within a time budget: what the code takes when nothing gets in its way."""
    run()
    best, spent, runs = float("inf"), 0.0, 0
    while runs < 3 or spent < budget_s:
        start = time.perf_counter()
        run()
        took = time.perf_counter() - start
        best, spent, runs = min(best, took), spent + took, runs + 1
    return best


def ceilings() -> tuple[float, float]:
    """(GFLOP/s, GB/s) that numpy's BLAS reaches here: a large float32 product, and a dot product that reads memory."""
    square = np.ones((2048, 2048), np.float32)
    long = np.ones(1 << 26, np.float32)
    return 2 * 2048**3 / shortest_s(lambda: square @ square) / 1e9, 2 * long.nbytes / shortest_s(
        lambda: long @ long
    ) / 1e9


def show(figures: Sequence[Figure], *, as_json: bool) -> None:
    """Print figures, and what share of the machine's ceilings they are."""
    gflop, gb = ceilings()
    if as_json:
        document = {
            "blas_gflop_per_s": gflop,
            "blas_gb_per_s": gb,
            "figures": [asdict(figure) for figure in figures],
        }
        print(json.dumps(document, indent=2))
        return
    table = Table(
        title=figures[0].kernel,
        caption=f"% of what numpy's BLAS reaches here: {gflop:.0f} GFLOP/s in a product, {gb:.0f} GB/s read",
        box=SIMPLE_HEAD,
    )
    for heading in ("shape", "level"):
        table.add_column(heading, no_wrap=True)
    for heading in ("µs", "GFLOP/s", "%", "GB/s", "%"):
        table.add_column(heading, justify="right", no_wrap=True)
    for figure in figures:
        table.add_row(
            figure.shape,
            figure.level,
            f"{figure.time_us:,.0f}",
            f"{figure.gflop_per_s:.1f}",
            f"{100 * figure.gflop_per_s / gflop:.0f}",
            f"{figure.gb_per_s:.1f}",
            f"{100 * figure.gb_per_s / gb:.0f}",
        )
    Console().print(table)
