"""The three other studies for the eye: what a cache saves, decode at depth, and interference.

Owns: their tables, pictures and facts. Refuses to know: terminals and files.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, cast

from taximeter.figures import duration_text
from taximeter.measurement.pictures.axis import Axis, Unit
from taximeter.measurement.pictures.chart import Band, Chart, Dots, Line, Mark, Picture, Ratio, Ratios
from taximeter.measurement.pictures.illustrations import gap_histogram
from taximeter.measurement.pictures.page import Table
from taximeter.measurement.results import DEFINITIONS
from taximeter.measurement.sweep.cache_study import CacheStudy
from taximeter.measurement.sweep.findings import NS_PER_S, SWEEP_DEFINITIONS, Findings, between, conclusions
from taximeter.measurement.sweep.fit import Fit
from taximeter.measurement.sweep.interference import PHASES, Interference
from taximeter.measurement.sweep.shown import Shown, number_text, share_cell, time_text
from taximeter.measurement.sweep.sweep import Sweep
from taximeter.records import to_json

_NOTHING, _SOMETHING = 0.01, 0.05
"""A share of a step below the first is none; an interval from there to beyond the second tells nothing."""
_CACHE_DEFINITIONS: Final = {
    "cold": "a prompt whose beginning the server has not seen",
    "warm": "a prompt with the beginning of the one right before it, and another end",
}
_GAP_DEFINITIONS: Final = {
    "before": "gaps that end before the long prompt is sent",
    "during": "gaps that reach into the time from sending the long prompt to its first token",
    "after": "gaps that begin after that token",
}


def shown_cache(study: CacheStudy) -> Shown:
    """What a prefix that was seen before saves."""
    rows = tuple(
        (
            f"{point.prompt_tokens:,}",
            f"{point.shared_tokens:,}",
            time_text(point.cold_ns),
            time_text(point.warm_ns),
            share_cell(point.ratio),
            "?" if point.hit_ratio is None else f"{point.hit_ratio:.0%}",
        )
        for point in study.points
    )
    headings = ("prompt tokens", "seen before", "TTFT cold", "TTFT warm", "warm of cold", "hits, it says")
    ratios = tuple(
        Ratio(
            label=f"{point.prompt_tokens:,} tokens", value=point.ratio.value, low=point.ratio.low, high=point.ratio.high
        )
        for point in study.points
        if point.ratio is not None
    )
    pictures: tuple[Picture, ...] = ()
    if ratios:
        name = "Time to first token of warm prompts, in times of cold ones"
        pictures = (
            Ratios(name=name, says=study.says.rstrip("."), left="warm is faster", right="cold is faster", rows=ratios),
        )
    plain = {name: getattr(study, name) for name in ("points", "has_cache", "says", "stopped")}
    return Shown(
        title="Prefix cache",
        says=study.says,
        levers=("put what prompts have in common at their beginning",) if study.has_cache else (),
        warnings=_warnings(study.warnings, study.stopped),
        tables=(Table(name="By prompt length: medians with 95 % intervals", headings=headings, rows=rows),),
        pictures=pictures,
        facts={},
        definitions={**DEFINITIONS, **_CACHE_DEFINITIONS},
        conclusions=cast("dict[str, Any]", to_json(plain)),
        observations=study.observations,
        is_valid=bool(ratios),
    )


def _depth_says(fit: Fit) -> str:
    """What the curve says of its deepest point; that it cannot tell, where looking back may as well cost nothing."""
    first, last = fit.points[0], fit.points[-1]
    back = fit.share("e", ("d", "e"), last.tokens)
    deep, shallow = (duration_text(round(fit.at(point.tokens).value)) for point in (last, first))
    took = f"a token takes {deep} at depth {last.tokens:,.0f}, {shallow} at {first.tokens:,.0f}"
    if back.low is None or (back.low < _NOTHING and (back.high or 0.0) > _SOMETHING):
        return f"Cannot tell whether depth slows it: {took}, and looking back is {share_cell(back)} of a step there."
    return f"A{took[1:]}: looking back is {share_cell(back)} of a step there."


def shown_depth(sweep: Sweep, found: Findings) -> Shown:
    """How fast it writes, the deeper in the context."""
    fit = sweep.itl_fit
    rows: list[tuple[str, ...]] = []
    for point in sweep.points:
        length = next((each for each in found.lengths if each.prompt_tokens == point.prompt_tokens), None)
        if point.itl_ns is None or length is None:
            continue
        step = length.step
        rows.append(
            (
                f"{length.depth_tokens:,.0f}",
                f"{len(point.observations)}",
                time_text(point.itl_ns),
                f"{NS_PER_S / point.itl_ns.value:,.1f}" if point.itl_ns.value else "?",
                share_cell(length.kv_cache),
                "" if step is None else f"{step.per_s / 1e9:,.1f} GB/s",
            )
        )
    says, pictures, facts = "Nothing can be said: too few lengths have a time per token.", (), {}
    if fit is not None and rows:
        says = _depth_says(fit)
        pictures = (_depth_chart(sweep, says.rstrip(".")),)
        facts = {
            "At depth 0": f"{time_text(fit['d'])} a token",
            "Each token back": f"{number_text(fit['e'])} ns",
            "Twice as long": f"at depth {number_text(fit.overtakes('e', 'd'))}",
        }
    headings = ("depth", "n", "ITL", "tokens/s", "KV cache in a step", "reads")
    return Shown(
        title="Decode at depth",
        says=says,
        warnings=_warnings(sweep.warnings, sweep.stopped),
        tables=(Table(name="By depth: medians with 95 % intervals", headings=headings, rows=tuple(rows)),),
        pictures=pictures,
        facts=facts,
        definitions={**DEFINITIONS, **SWEEP_DEFINITIONS},
        conclusions=conclusions(sweep, found),
        observations=sweep.observations,
        is_valid=bool(rows),
    )


def _depth_chart(sweep: Sweep, says: str) -> Chart:
    fit = sweep.itl_fit
    assert fit is not None  # noqa: S101 - who calls has one
    curve = [(at, fit.at(at)) for at in between(fit.points[0].tokens, fit.points[-1].tokens)]
    edges = tuple((at, one.low, one.high) for at, one in curve if one.low is not None and one.high is not None)
    half = sweep.plan.output_tokens / 2
    samples = tuple(
        (point.prompt_tokens + half, float(itl))
        for point in sweep.points
        for seen in point.observations
        if (itl := seen.itl_ns) is not None
    )
    marks: list[Mark] = [Band(name="95 % band of the fit", edges=edges, tone=1)] if edges else []
    marks.append(Line(name="fit", points=tuple((at, one.value) for at, one in curve), tone=1))
    marks.append(Dots(name="samples", points=samples))
    return Chart(
        name="Time per token by depth, each sample",
        says=says,
        x=Axis(label="depth, tokens", is_geometric=True),
        y=Axis(label="time per token", unit=Unit.TIME),
        marks=tuple(marks),
    )


def shown_interference(study: Interference) -> Shown:
    """How long running answers stand still."""
    rows = tuple((phase, time_text(study.largest_ns.get(phase))) for phase in PHASES)
    table = Table(name="The largest gap of running answers: medians", headings=("phase", "largest gap"), rows=rows)
    streams = [stream for met in study.encounters for stream in met.streams]
    harmed = study.ratio is not None and study.ratio.low is not None and study.ratio.low > 2
    plain = {
        name: getattr(study, name)
        for name in ("streams", "largest_ns", "ratio", "alone_ns", "among_ns", "says", "stopped")
    }
    plain["rounds_ns"] = [met.largest_ns for met in study.encounters]
    return Shown(
        title="Interference",
        says=study.says,
        levers=("prompts that are read in smaller chunks", "a server of their own for long prompts") if harmed else (),
        warnings=_warnings(study.warnings, study.stopped),
        tables=(table,),
        pictures=(replace(gap_histogram(streams), name="Gaps of running answers, all phases"),) if streams else (),
        facts={
            "The prompt, alone": f"{time_text(study.alone_ns)} to its first token",
            "Among answers": f"{time_text(study.among_ns)} to its first token",
        },
        definitions={**DEFINITIONS, **_GAP_DEFINITIONS},
        conclusions=cast("dict[str, Any]", to_json(plain)),
        observations=study.observations,
        is_valid=bool(study.encounters),
    )


def _warnings(warnings: tuple[str, ...], stopped: str | None) -> tuple[str, ...]:
    return warnings if stopped is None else (f"it ended early: {stopped}", *warnings)
