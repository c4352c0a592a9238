"""What measurements look like, made up: a server whose prompt costs 20 ms + 0.5 ms a token + 0.1 µs a token squared,
10 ms for each token of the answer, and bundles where it is asked for them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from taximeter.measurement.asking.observation import Observation
from taximeter.measurement.load.client_health import ClientHealth
from taximeter.measurement.load.load import Load, concluded
from taximeter.measurement.load.point import load_point
from taximeter.measurement.load.run import LoadRun
from taximeter.measurement.load.slo import Slo
from taximeter.records import Basis, Outcome, Usage
from tests.measurement_harness import MS

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True, kw_only=True)
class Known:
    """An interval by hand."""

    value: float
    low: float | None = None
    high: float | None = None


def ttft_ns(prompt_tokens: float) -> float:
    return (20 + 0.5 * prompt_tokens + 1e-4 * prompt_tokens**2) * MS


def an_observation(
    prompt_tokens: int = 64,
    output_tokens: int = 16,
    *,
    shape: str = "s",
    began_ns: int = 0,
    ttft: float | None = None,
    itl_ms: float = 10.0,
    bundle: int = 1,
    counts_each: bool = True,
    outcome: Outcome = Outcome.COMPLETED,
) -> Observation:
    """Complete unless it says otherwise. `bundle` tokens come with each event after the first."""
    first_ns = began_ns + round(ttft_ns(prompt_tokens) if ttft is None else ttft)
    brought = [1, *[bundle] * ((output_tokens - 1) // bundle)]
    arrivals = tuple(first_ns + round(number * bundle * itl_ms * MS) for number in range(len(brought)))
    return Observation(
        id=f"req_{shape}_{began_ns}",
        shape=shape,
        scheduled_ns=began_ns,
        sent_ns=began_ns,
        arrivals_ns=arrivals,
        arrival_tokens=tuple(brought) if counts_each else None,
        ended_ns=arrivals[-1],
        outcome=outcome,
        usage=Usage(
            input_fresh_tokens=prompt_tokens,
            input_cache_read_tokens=0,
            output_text_tokens=sum(brought),
            basis=Basis.REPORTED,
        ),
        asked_prompt_tokens=prompt_tokens,
        asked_output_tokens=sum(brought),
    )


def noisy_ttfts(lengths: Sequence[int] = LENGTHS, repeats: int = 5, seed: int = 1) -> Mapping[int, list[float]]:
    rng = random.Random(seed)
    return {length: [ttft_ns(length) * rng.lognormvariate(0, 0.05) for _ in range(repeats)] for length in lengths}


@cache
def a_load(
    rates: tuple[float, ...] = (1, 2, 4, 8, 16), *, slo: str | None = "ttft=500ms,itl=50ms", seconds: float = 20
) -> Load:
    """An open loop at a server whose waiting grows as its rate comes near 18 requests/s, and from there without end."""
    runs: list[LoadRun] = []
    for rate in rates:
        due = tuple(round(number * 1e9 / rate) for number in range(1, round(rate * seconds)))
        rng = random.Random(round(rate * 10))
        seen = [
            an_observation(
                128,
                17,
                shape=f"{rate:g}/s",
                began_ns=at_ns,
                ttft=(80 + rng.expovariate(1) * 400 / max(1.0, 18 - rate) + max(0.0, rate - 15) * at_ns / 1e8) * MS,
                itl_ms=10 + rate / 2,
            )
            for at_ns in due
        ]
        health = ClientHealth(due_ns=(), lag_ns=(), cpu_ns=10**9, wall_ns=10**10)
        ended_ns = max(one.ended_ns for one in seen)
        runs.append(
            LoadRun(
                is_open_loop=True,
                rate_per_s=rate,
                due_ns=due,
                ended_ns=ended_ns,
                observations=tuple(seen),
                clients=(health,),
            )
        )
    target = None if slo is None else Slo.parse(slo)
    rng = np.random.default_rng(1)
    points = [load_point(run, slo=target, rng=rng) for run in runs]
    return concluded(runs, points, is_open_loop=True, slo=target, is_complete=True)
