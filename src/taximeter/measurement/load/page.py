"""A load as pictures and as a page. Owns: what stands where. Refuses to know: how it was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from taximeter.measurement.load.load import Load
from taximeter.measurement.load.point import DEFINITIONS, LoadPoint, Spread
from taximeter.measurement.pictures.axis import Axis, Unit, quantity_text
from taximeter.measurement.pictures.chart import Chart, Line, Mark, Picture, Rule
from taximeter.measurement.pictures.illustrations import Level, gap_histogram, latency_by_load
from taximeter.measurement.pictures.page import Page, Table

_SHOWN: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def load_charts(load: Load) -> tuple[Picture, ...]:
    """Latencies and throughput against load, with the knee and the target; then the gaps of all answers."""
    slo = load.slo
    figures: tuple[tuple[str, Callable[[LoadPoint], Spread | None], int | None], ...] = (
        ("time to first token", lambda point: point.ttft, None if slo is None else slo.ttft_ns),
        ("time between tokens (ITL)", lambda point: point.itl, None if slo is None else slo.itl_ns),
        ("end-to-end latency", lambda point: point.end_to_end, None if slo is None else slo.e2e_ns),
    )
    drawn: list[Picture] = []
    for latency, spread_of, target_ns in figures:
        levels = [
            Level(at=point.level, latencies={share: spread.at(name) for name, share in _SHOWN.items()})
            for point in load.points
            if (spread := spread_of(point)) is not None
        ]
        if levels:
            drawn.append(
                latency_by_load(
                    levels,
                    latency=latency,
                    load=_axis(load),
                    says=_latency_says(latency, levels, load),
                    knee=_knee(load),
                    target_ns=target_ns,
                )
            )
    if any(point.output for point in load.points):
        drawn.append(_throughput(load))
    if load.observations:
        drawn.append(gap_histogram([seen for seen in load.observations if seen.is_complete]))
    return tuple(drawn)


def load_page(
    load: Load,
    *,
    target: Mapping[str, Any],
    plan: Mapping[str, Any],
    environment: Mapping[str, str],
    made: str = "",
) -> Page:
    """`target` is `Target.describe()`; `plan` and `environment` are told as they are."""
    setup: Mapping[str, Any] = target.get("setup") or {}
    server = {
        name.replace("_", " "): target.get(name) for name in ("url", "model", "engine", "server_version", "dialect")
    }
    facts = {**server, **setup, **plan, **environment}
    cut = [] if load.is_complete else ["it was stopped before its end: these are the levels until then"]
    kind = (
        "Load" if load.is_open_loop else "Capacity: a closed loop shows what a server can do, not what its users wait"
    )
    return Page(
        title=kind,
        subject=f"{target.get('model')} at {target.get('url')}",
        says=load.says[:1].upper() + load.says[1:],
        warnings=(*cut, *load.warnings),
        pictures=load_charts(load),
        tables=(load_table(load),),
        facts={name.replace("_", " "): _told(value) for name, value in facts.items()},
        definitions=DEFINITIONS,
        made=made,
    )


def load_table(load: Load) -> Table:
    """The levels, one under the other."""
    has_target = load.slo is not None
    return Table(
        name="By level",
        headings=(
            "at a time" if not load.is_open_loop else "requests/s",
            *("n", "whole", "failed", "answered/s", "tokens/s"),
            *(f"{figure} {name}" for figure in ("TTFT", "ITL") for name in ("p50", "p99")),
            *("end to end p50", "waited to be sent p99"),
            *(("within target", "goodput/s") if has_target else ()),
        ),
        rows=tuple(_row(point, has_target=has_target) for point in load.points),
    )


def _row(point: LoadPoint, *, has_target: bool) -> tuple[str, ...]:
    whole = sum(count for outcome, count in point.outcomes.items() if outcome.value == "completed")
    attained = point.attainment
    row = [
        f"{point.level:.4g}",
        f"{point.requests_in_window:,}",
        f"{whole:,}",
        f"{point.requests_in_window - whole:,}",
        f"{point.completed_per_s:.3g}",
        "" if point.output is None else f"{point.output.mean_per_s:,.0f}",
        *(_cell(spread, name) for spread in (point.ttft, point.itl) for name in ("p50", "p99")),
        _cell(point.end_to_end, "p50"),
        _cell(point.dispatch_delay, "p99"),
    ]
    if has_target:
        row += ["", ""] if attained is None else [f"{attained.share.value:.1%}", f"{attained.requests_per_s:.3g}"]
    return tuple(row)


def _cell(spread: Spread | None, name: str) -> str:
    if spread is None:
        return ""
    figure = spread.at(name)
    doubt = "" if figure.interval is not None else " (n too small)"
    return quantity_text(figure.value, Unit.TIME) + doubt


def _throughput(load: Load) -> Chart:
    """What comes out, and how much of it met the target."""
    output = tuple((point.level, point.output.mean_per_s) for point in load.points if point.output is not None)
    marks: list[Mark] = [Line(name="output tokens/s", points=output, has_dots=True)]
    if load.slo is not None:
        good = tuple((p.level, p.attainment.tokens_per_s) for p in load.points if p.attainment is not None)
        marks.append(Line(name="of them within the target (goodput)", points=good, tone=1, has_dots=True))
    if (at := _knee(load)) is not None:
        marks.append(Rule(name=f"kept up to {at:.4g}", x=at, tone=4))
    most = max(output, key=lambda point: point[1])
    return Chart(
        name="Throughput against load",
        says=f"At most {most[1]:,.0f} output tokens/s, at {most[0]:.4g}{load.unit}",
        x=Axis(label=_axis(load), is_geometric=True, at=tuple(point.level for point in load.points)),
        y=Axis(label="output tokens/s"),
        marks=tuple(marks),
    )


def _latency_says(latency: str, levels: Sequence[Level], load: Load) -> str:
    first, last = levels[0], levels[-1]
    name = f"{latency[:1].upper()}{latency[1:]}"
    told = f"{name}: half are under {quantity_text(first.latencies[0.5].value, Unit.TIME)} at {first.at:.4g}{load.unit}"
    if last is first:
        return told
    return f"{told}, under {quantity_text(last.latencies[0.5].value, Unit.TIME)} at {last.at:.4g}{load.unit}"


def _knee(load: Load) -> float | None:
    """Where it is drawn: only where higher levels were measured that were not kept up with."""
    return load.knee.level if load.knee is not None and load.knee.is_within else None


def _axis(load: Load) -> str:
    return "requests/s due" if load.is_open_loop else "requests at a time"


def _told(value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, list | tuple):
        return ", ".join(map(_told, cast("Sequence[object]", value)))
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
