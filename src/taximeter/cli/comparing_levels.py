"""`taximeter compare --concurrency`: levels of load for all sides in turn.

Owns: how a side's stretch is driven, and what is kept of all of them. Refuses to know: who is compared, and what may be
said of it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from numpy.random import default_rng

from taximeter.cli.measuring import Bench, count_range
from taximeter.clock import SYSTEM_CLOCK
from taximeter.errors import RequestError, UpstreamError
from taximeter.measurement.asking.observation import Observation
from taximeter.measurement.asking.prompts import Prompts
from taximeter.measurement.compare.compare import Rounds
from taximeter.measurement.compare.levels import DriveStretch, Turns, levels_of, run_turns
from taximeter.measurement.load.fleet import Asking
from taximeter.measurement.load.level import closed_level, drive
from taximeter.measurement.load.run import LoadRun
from taximeter.measurement.load.saturation import steps
from taximeter.measurement.load.slo import Slo
from taximeter.measurement.load.workload import Ask, Workload
from taximeter.records import to_json

_WARM_UPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the sides' levels came to, by label."""

    observations: Mapping[str, tuple[Observation, ...]]
    curves: Mapping[str, Any]
    warnings: tuple[str, ...]


async def measure_levels(
    benches: Mapping[str, Bench],
    workload: Workload,
    turns: Turns,
    *,
    duration_s: float,
    slo: Slo | None,
    may_ask: Callable[[str], bool],
    say: Callable[[str], object],
    on_progress: Callable[[int, int], object],
) -> Measured:
    """Warm everybody up, and let each have its turns. Ctrl-C keeps what was measured until then; before the first
    stretch has ended it is raised."""
    runs: dict[str, dict[int, list[LoadRun]]] = {label: {} for label in benches}
    warnings: list[str] = []
    drivers = {
        label: await _driver(each, workload, turns, duration_s, lambda _, label=label: may_ask(label), say)
        for label, each in benches.items()
    }
    try:
        is_whole = await run_turns(
            drivers,
            turns,
            on_run=lambda label, level, run: runs[label].setdefault(level, []).append(run),
            on_progress=on_progress,
        )
        if not is_whole:
            warnings.append("it ended early: more would have cost more than --max-cost")
    except asyncio.CancelledError:
        if not any(runs.values()):
            raise
        if (task := asyncio.current_task()) is not None:
            task.uncancel()
        warnings.append("it was interrupted: these are the stretches until then")
    rng = default_rng(turns.seed)
    found = {label: levels_of(of, slo=slo, rng=rng) for label, of in runs.items()}
    for label, levels in found.items():
        for level, many in levels.spoilt.items():
            warnings.append(
                f"{label}: {many} of {len(runs[label][level])} stretches at {level} at a time were over before all "
                "were busy: they are in no figure; a longer --duration helps"
            )
    return Measured(
        observations={label: levels.observations for label, levels in found.items()},
        curves={label: to_json(list(levels.points)) for label, levels in found.items()},
        warnings=tuple(warnings),
    )


async def _driver(
    each: Bench,
    workload: Workload,
    turns: Turns,
    duration_s: float,
    allows: Callable[[Ask], bool],
    say: Callable[[str], object],
) -> DriveStretch:
    """Somebody who is warm, and can be loaded."""
    asker, name = each.asker(), each.target.name
    prompts = await Prompts.calibrated(
        each.target, asker, seed=secrets.randbelow(2**48), report=lambda what: say(f"{name}: {what}")
    )
    asking = Asking(target=each.target, run=each.run, prompts=prompts)
    (ask,) = workload.listed
    if (ask.prompt_tokens or 0) < prompts.shortest_tokens:
        raise RequestError(
            f"the shortest prompt that {name} can be given has {prompts.shortest_tokens} tokens", param="prompt-tokens"
        )
    latency_s = 0.0
    for _ in range(_WARM_UPS):
        if not allows(ask):
            raise RequestError("not even the warm-up may be paid for", param="max-cost")
        seen = await asker.ask(asking.question("warm-up", ask))
        if not seen.is_complete:
            raise UpstreamError(f"{name} does not answer its warm-up: {seen.error}", status=seen.status)
        latency_s = (seen.ended_ns - seen.sent_ns) / 1e9

    async def stretch(concurrency: int) -> LoadRun:
        level = closed_level(
            workload,
            concurrency,
            jitter_s=min(latency_s, duration_s),
            duration_s=duration_s,
            seed=turns.seed,
        )
        return await drive(level, each.asker(began_ns=SYSTEM_CLOCK.monotonic_ns()), asking.question, allows=allows)

    return stretch


def turns_of(concurrency: str, plan: Rounds) -> Turns:
    """From the least to the most at a time, each twice the one before. Raises RequestError for several lengths."""
    if len(plan.prompt_tokens) > 1:
        raise RequestError("with --concurrency prompts have one length", param="prompt-tokens")
    low, high = count_range(concurrency, "concurrency", most=1_000)
    levels = dict.fromkeys(int(level) for level in steps(low, high, whole=True))
    return Turns(levels=tuple(levels), rounds=plan.rounds, seed=plan.seed)


def price_of_all(prices: Mapping[str, Decimal | None]) -> str:
    """What is told before anything is sent, where something is billed by the request."""
    known = ", ".join(f"{label} ${price:.6f}" for label, price in prices.items() if price)
    return f"each request costs about {known}; how many there are is up to the servers: --max-cost limits it"
