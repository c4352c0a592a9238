"""What a measurement of load looks like in a terminal: the finding first, then the table, then what not to trust, then
what the figures mean.

Owns: columns, and how figures with their intervals are written. Refuses to know: how they came about.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rich.text import Text

from taximeter.cli.console import out
from taximeter.cli.tables import print_table
from taximeter.figures import count_text
from taximeter.measurement.estimates import Estimate
from taximeter.measurement.load.load import Load
from taximeter.measurement.load.point import DEFINITIONS, LoadPoint, Spread

if TYPE_CHECKING:
    from taximeter.measurement.pictures.chart import Chart

_RIGHT: Final = (
    *("requests/s", "at a time", "n", "missed", "answered/s", "tokens/s", "peak", "goodput/s", "met", "delay p99"),
    *(f"{what} {name}" for what in ("TTFT", "ITL", "end") for name in ("p50", "p95", "p99")),
)
_LEAST_TELLING: Final = (
    *("peak", "delay p99", "end p95", "ITL p95", "TTFT p95", "end p99", "end p50", "answered/s"),
    *("missed", "ITL p99", "met", "n", "TTFT p99"),
)
_SHAPES: Final = {"TTFT": "ttft", "ITL": "itl", "end": "end_to_end"}


def show(load: Load, *, subject: str, setting: Sequence[str], chart: Chart | None) -> None:
    """Print it. `subject` is who was measured, `setting` how, `chart` is drawn where there is room for it."""
    console = out()
    console.print(Text(subject, style="bold"), soft_wrap=True)
    console.print(Text(f"{load.says[:1].upper()}{load.says[1:]}."), soft_wrap=True)
    if not load.is_complete:
        console.print(Text("It was stopped before its end: this is what was measured until then.", style="yellow"))
    for line in setting:
        console.print(Text(line, style="dim"), soft_wrap=True)
    if load.points:
        console.print()
        print_table([_row(load, point) for point in load.points], right=_RIGHT, least_telling=_LEAST_TELLING)
        _notes(load)
    if chart is not None:
        _draw(chart, console.width)
    console.print()
    for name, meaning in DEFINITIONS.items():
        console.print(Text(f"{name}: {meaning}", style="dim"), soft_wrap=True)


def _row(load: Load, point: LoadPoint) -> Mapping[str, Text]:
    cells: dict[str, Text] = {"requests/s" if load.is_open_loop else "at a time": Text(f"{point.level:.4g}")}
    for what, field in _SHAPES.items():
        spread: Spread | None = getattr(point, field)
        for name in ("p50", "p95", "p99"):
            cells[f"{what} {name}"] = Text("-" if spread is None else ms_with_interval(spread.at(name)))
    met = point.attainment
    missed = point.requests_in_window - sum(n for outcome, n in point.outcomes.items() if outcome.value == "completed")
    delay = "" if point.dispatch_delay is None else f"{point.dispatch_delay.at('p99').value / 1e6:,.1f} ms"
    cells |= {
        "delay p99": Text(delay if load.is_open_loop else ""),
        "answered/s": Text(f"{point.completed_per_s:,.3g}"),
        "tokens/s": Text("?" if point.output is None else f"{point.output.mean_per_s:,.0f}"),
        "peak": Text("" if point.output is None else f"{point.output.peak_per_s:,.0f}"),
        "goodput/s": Text("" if met is None else f"{met.requests_per_s:,.3g}"),
        "met": Text("" if met is None else percent_with_interval(met.share)),
        "n": Text(count_text(point.requests_in_window)),
        "missed": Text(count_text(missed) if missed else "", style="red"),
        "": Text(", ".join(dict.fromkeys(flag.trouble.value for flag in point.flags)), style="yellow"),
    }
    return cells


def ms_with_interval(found: Estimate) -> str:
    """`312 ms (290-340)`; a question mark where there are too few samples for an interval."""
    value = _ms(found.value)
    if found.low is None or found.high is None:
        return f"{value} ms?"
    return f"{value} ms ({_ms(found.low)}-{_ms(found.high)})"


def _ms(ns: float) -> str:
    ms = ns / 1e6
    return f"{ms:,.0f}" if ms >= 1000 else f"{ms:.3g}" if ms >= 1 else f"{ms:.2f}"


def percent_with_interval(found: Estimate) -> str:
    if found.low is None or found.high is None:
        return f"{100 * found.value:.3g} %"
    return f"{100 * found.value:.3g} % ({_percent(found.low)}-{_percent(found.high)})"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}" if share > 1e-5 else "0"


def _notes(load: Load) -> None:
    console = out()

    def tell(point: LoadPoint, says: str, style: str) -> None:
        console.print(Text(f"{point.level:.4g}{load.unit}: {says}", style=style), soft_wrap=True)

    spreads = [spread for point in load.points for spread in (point.ttft, point.itl, point.end_to_end) if spread]
    reasons = {
        one.unknown_reason
        for spread in spreads
        for one in spread.percentiles.values()
        if one.unknown_reason is not None
    }
    console.print(Text("in brackets: 95 % intervals; n: requests of the steady window", style="dim"), soft_wrap=True)
    if reasons:
        needs = ", ".join(sorted(reason.removeprefix("n too small: ") for reason in reasons))
        console.print(Text(f"? n too small for an interval: {needs}", style="dim"), soft_wrap=True)
    for warning in load.warnings:
        console.print(Text(warning, style="yellow"), soft_wrap=True)
    for point in load.points:
        if point.attainment is not None and point.attainment.misses:
            missed = ", ".join(f"{count:,} {miss.value}" for miss, count in point.attainment.misses.items())
            tell(point, f"missed the target: {missed}", "dim")
        for error, count in point.errors.items():
            tell(point, f"{count:,} times: {error}", "red")


def _draw(chart: Chart, width: int) -> None:
    from taximeter.measurement.pictures.plots import ASCII, UNICODE, plot  # noqa: PLC0415  # only where it is drawn

    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
    console = out()
    console.print()
    chart = replace(chart, says=chart.name)  # what it says stands at the top
    for line in plot(chart, min(width, 100), letters=UNICODE if is_unicode else ASCII):
        console.print(line, soft_wrap=True)


def latency_chart(load: Load) -> Chart | None:
    """TTFT against load; None with fewer than two levels that have one."""
    from taximeter.measurement.pictures.illustrations import Level, latency_by_load  # noqa: PLC0415  # see `_draw`

    levels = [
        Level(at=point.level, latencies={share: point.ttft.at(name) for share, name in _DRAWN})
        for point in load.points
        if point.ttft is not None
    ]
    if len(levels) < 2:
        return None
    return latency_by_load(
        levels,
        latency="time to first token",
        load="requests/s" if load.is_open_loop else "requests at a time",
        says=load.says,
        knee=None if load.knee is None or not load.knee.is_within else load.knee.level,
        target_ns=None if load.slo is None or load.slo.ttft_ns is None else float(load.slo.ttft_ns),
    )


_DRAWN: Final = ((0.5, "p50"), (0.95, "p95"))
