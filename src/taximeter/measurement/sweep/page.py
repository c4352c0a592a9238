"""A sweep for the eye: its tables and its pictures.

Owns: which figures of a sweep stand in which column, and which picture shows what. Refuses to know: terminals and
files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from taximeter.figures import duration_text
from taximeter.measurement.pictures.chart import Picture
from taximeter.measurement.pictures.illustrations import gap_histogram, split_by_length, ttft_by_length
from taximeter.measurement.pictures.page import Table
from taximeter.measurement.results import DEFINITIONS
from taximeter.measurement.sweep.findings import NS_PER_S, SWEEP_DEFINITIONS, Findings, between, conclusions
from taximeter.measurement.sweep.model_work import Work
from taximeter.measurement.sweep.shown import Shown, number_text, share_cell, time_text
from taximeter.measurement.sweep.sweep import Sweep
from taximeter.measurement.sweep.verdict import PARTS

_NO_VERDICT: Final = "Nothing can be concluded: no request counts."


def says(sweep: Sweep) -> str:
    """The verdict in words; that there is none, where there is none, or where it would be about something else."""
    if sweep.cold.is_cold is False:
        return f"No verdict: this was no cold run, {sweep.cold.says}."
    return _NO_VERDICT if sweep.verdict is None else sweep.verdict.says


def lengths_table(sweep: Sweep) -> Table:
    """Each length: its times with their intervals, and what they went to."""
    splits = {split.prompt_tokens: split for split in sweep.splits}
    rows: list[tuple[str, ...]] = []
    for point in sweep.points:
        split = splits.get(point.prompt_tokens)
        shares = [
            "?" if split is None or part not in split.shares else f"{split.shares[part].value:.0%}" for part in PARTS
        ]
        rows.append(
            (
                f"{point.prompt_tokens:,}",
                f"{len(point.observations)}",
                f"{sum(point.void.values())}" if point.void else "-",
                time_text(point.ttft_ns),
                time_text(point.itl_ns),
                time_text(point.total_ns),
                *shares,
            )
        )
    headings = ("prompt tokens", "n", "void", "TTFT", "ITL", "total", *PARTS)
    return Table(name="By prompt length: medians with 95 % intervals", headings=headings, rows=tuple(rows))


def work_table(found: Findings) -> Table:
    """Each length: what the work consists of, and how near the machine's limits it is."""
    has_work = any(length.prefill is not None or length.step is not None for length in found.lengths)
    rows: list[tuple[str, ...]] = []
    for length in found.lengths:
        weights = None if length.kv_cache is None else 1 - length.kv_cache.value
        row = [
            f"{length.prompt_tokens:,}",
            share_cell(length.attention),
            "?" if weights is None else f"{weights:.0%}",
            share_cell(length.kv_cache),
        ]
        if has_work:
            row += [_work(length.prefill, "op/s"), _work(length.step, "B/s")]
        rows.append(tuple(row))
    headings = ("prompt tokens", "attention in prefill", "weights in a step", "KV cache in a step")
    if has_work:
        headings = (*headings, "prefill", "decode")
    return Table(name="What the work consists of", headings=headings, rows=tuple(rows))


def figures(sweep: Sweep, found: Findings) -> Mapping[str, str]:
    """What follows from the curves, in words."""
    facts: dict[str, str] = {}
    if found.fixed_ns is not None:
        facts["Fixed overhead"] = time_text(found.fixed_ns)
    if found.prefill_tokens_per_s is not None:
        facts["Prefill"] = f"{number_text(found.prefill_tokens_per_s)} tokens/s, before attention counts"
    if (at := found.attention_overtakes_at_tokens) is not None:
        longest = max((length.prompt_tokens for length in found.lengths), default=0)
        facts["Attention overtakes"] = (
            f"at {number_text(at)} prompt tokens" if at.value < 100 * longest else "at no length near these"
        )
    if found.step_ns is not None:
        per_s = NS_PER_S / found.step_ns.value if found.step_ns.value else math.inf
        facts["Decode"] = f"{time_text(found.step_ns)} a token at depth 0, {per_s:,.0f} tokens/s"
    for name, fit in (("TTFT", sweep.ttft_fit), ("ITL", sweep.itl_fit)):
        if fit is not None and fit.residual_ratio is not None:
            facts[f"Fit of {name}"] = f"misses the medians by {fit.residual_ratio:.1%} (root mean square)"
    facts["Cache"] = sweep.cold.says
    if sweep.network_ns is not None:
        facts["Network"] = f"{time_text(sweep.network_ns)} a round trip"
    if sweep.splits:
        known = sweep.splits[0].known_by
        facts["Known how"] = "; ".join(f"{part}: {known[part]}" for part in PARTS if part in known)
        for part, reason in sweep.splits[0].unknown.items():
            facts[f"Not known: {part}"] = reason
    return facts


def pictures(sweep: Sweep) -> tuple[Picture, ...]:
    """The most telling first."""
    shown: list[Picture] = []
    counted = [point for point in sweep.points if point.observations]
    samples = {
        point.prompt_tokens: [float(ttft) for seen in point.observations if (ttft := seen.ttft_ns()) is not None]
        for point in counted
    }
    if samples:
        fit = sweep.ttft_fit
        curve = [] if fit is None else [(at, fit.at(at)) for at in between(min(samples), max(samples))]
        first, last = counted[0], counted[-1]
        assert first.ttft_ns is not None and last.ttft_ns is not None  # noqa: S101, PT018 - they were counted
        grown = (
            f"The first token comes after {duration_text(round(first.ttft_ns.value))} at {first.prompt_tokens:,} "
            f"prompt tokens, after {duration_text(round(last.ttft_ns.value))} at {last.prompt_tokens:,}"
        )
        shown.append(ttft_by_length(samples, says=grown, curve=curve))
    if sweep.splits:
        rows = {
            round(split.prompt_tokens): {
                part: split.parts_ns[part].value if part in split.parts_ns else None for part in PARTS
            }
            for split in sweep.splits
        }
        shown.append(split_by_length(rows, says=says(sweep).partition(". ")[0].rstrip(".")))
    seen = [each for point in counted for each in point.observations]
    if any(each.chunk_gaps_ns for each in seen):
        shown.append(gap_histogram(seen))
    return tuple(shown)


def shown_sweep(sweep: Sweep, found: Findings) -> Shown:
    """All of it, ready to be printed, drawn and kept."""
    return Shown(
        title="Sweep",
        says=says(sweep),
        levers=() if sweep.verdict is None or not sweep.is_valid else sweep.verdict.levers,
        warnings=sweep.warnings if sweep.stopped is None else (f"it ended early: {sweep.stopped}", *sweep.warnings),
        tables=(lengths_table(sweep), work_table(found)),
        pictures=pictures(sweep),
        facts=figures(sweep, found),
        definitions={**DEFINITIONS, **SWEEP_DEFINITIONS},
        conclusions=conclusions(sweep, found),
        observations=sweep.observations,
        is_valid=sweep.is_valid,
    )


def _work(work: Work | None, unit: str) -> str:
    if work is None:
        return "?"
    text = f"{work.per_s / 1e9:,.1f} G{unit}"
    return text if work.limit_ratio is None else f"{text} ({work.limit_ratio:.0%} of limit)"
