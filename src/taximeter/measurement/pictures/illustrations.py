"""The pictures of this room: what is on which axis, and what a picture says where nobody has said it better.

Owns: which marks a finding needs. Refuses to know: who found it, and how pictures are drawn. All times are nanoseconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from taximeter.measurement.asking.observation import Observation
from taximeter.measurement.pictures.axis import Axis, Unit, quantity_text
from taximeter.measurement.pictures.chart import Band, Bars, Chart, Dots, Line, Mark, Ratio, Ratios, Rule, Split

PARTS: Final = (("queue", 2), ("network", 5), ("prefill", 0), ("decode", 1), ("unexplained", 6))
"""What an answer's time consists of, in the order in which it passes, each with its tone."""

_BINS_PER_DOUBLING: Final = 4
_LEAST_GAP_NS: Final = 10_000.0  # events of one read have no time between them
_TARGET_TONE, _KNEE_TONE = 3, 4


class Interval(Protocol):
    """A figure with what it may as well be; `estimates.Estimate` is one."""

    @property
    def value(self) -> float: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of load: `at` is its rate or its concurrency, `latencies` are percentiles by their shares."""

    at: float
    latencies: Mapping[float, Interval]


def ttft_by_length(
    samples: Mapping[int, Sequence[float]],
    *,
    says: str,
    curve: Sequence[tuple[float, Interval]] = (),
    target_ns: float | None = None,
    notes: Sequence[str] = (),
) -> Chart:
    """Every sample, by the tokens of its prompt; the fitted curve and the band it may as well run in."""
    marks: list[Mark] = []
    edges = tuple(
        (at, fitted.low, fitted.high) for at, fitted in curve if fitted.low is not None and fitted.high is not None
    )
    if edges:
        marks.append(Band(name="95 % band of the fit", edges=edges, tone=1))
    if curve:
        marks.append(Line(name="fit", points=tuple((at, fitted.value) for at, fitted in curve), tone=1))
    points = tuple((float(length), ns) for length, many in samples.items() for ns in many)
    marks.append(Dots(name="samples", points=points))
    if target_ns is not None:
        marks.append(Rule(name=f"target {quantity_text(target_ns, Unit.TIME)}", y=target_ns, tone=_TARGET_TONE))
    return Chart(
        name="Time to first token by prompt length, each sample",
        says=says,
        x=Axis(label="prompt length, tokens", is_geometric=True, at=tuple(map(float, sorted(samples)))),
        y=Axis(label="time to first token", unit=Unit.TIME, is_geometric=True),
        marks=tuple(marks),
        notes=tuple(notes),
    )


def split_by_length(rows: Mapping[int, Mapping[str, float | None]], *, says: str, notes: Sequence[str] = ()) -> Split:
    """What the whole time consists of at each prompt length. A part that is not named is none, one that is None is
    unknown."""
    present = [part for part in PARTS if any(amounts.get(part[0], 0.0) != 0 for amounts in rows.values())]
    return Split(
        name="What the time to the whole answer consists of, by prompt length (medians)",
        says=says,
        unit=Unit.TIME,
        parts=tuple(present),
        rows=tuple(
            (f"{length:,} tokens", tuple(amounts.get(name, 0.0) for name, _ in present))
            for length, amounts in sorted(rows.items())
        ),
        notes=tuple(notes),
    )


def gap_histogram(observations: Sequence[Observation], *, says: str | None = None) -> Chart:
    """How long nothing comes: between events, and, apart from it, for each token. They differ where events bring
    several tokens."""
    chunk_gaps = [float(gap) for seen in observations for gap in seen.chunk_gaps_ns]
    token_gaps: list[tuple[float, int]] = []
    uncounted = 0
    for seen in observations:
        if seen.arrival_tokens is None:
            uncounted += bool(seen.chunk_gaps_ns)
            continue
        pairs = zip(seen.chunk_gaps_ns, seen.arrival_tokens[1:], strict=False)  # no gap stands before the first event
        token_gaps += [(gap / tokens, tokens) for gap, tokens in pairs if tokens]
    notes: list[str] = []
    if uncounted:
        notes.append(
            f"{uncounted:,} of {len(observations):,} answers do not say how many tokens each event brought: they are in"
            " the gaps between events only"
        )
    if (at_once := sum(gap < _LEAST_GAP_NS for gap in chunk_gaps)) and chunk_gaps:
        notes.append(f"{at_once:,} of {len(chunk_gaps):,} gaps are under 10 µs (events that came together): first bar")
    marks: list[Mark] = []
    if chunk_gaps:
        bars = _bins([(gap, 1) for gap in chunk_gaps])
        marks.append(Bars(name=f"between events, n = {len(chunk_gaps):,}", bars=bars, tone=0))
    if token_gaps:
        name = f"for each token, n = {sum(weight for _, weight in token_gaps):,}"
        marks.append(Line(name=name, points=_outline(_bins(token_gaps)), tone=3))
    return Chart(
        name="Gaps in the stream: between events, and for each token",
        says=says if says is not None else _gaps_say(chunk_gaps),
        x=Axis(label="gap", unit=Unit.TIME, is_geometric=True),
        y=Axis(label="share of gaps", unit=Unit.SHARE),
        marks=tuple(marks),
        notes=tuple(notes),
    )


def latency_by_load(
    levels: Sequence[Level],
    *,
    latency: str,
    load: str,
    says: str,
    knee: float | None = None,
    target_ns: float | None = None,
    notes: Sequence[str] = (),
) -> Chart:
    """Percentiles of a `latency` against the `load`. `knee` is the highest load that was kept up with, `target_ns`
    what was wanted of the latency."""
    marks: list[Mark] = []
    for tone, share in enumerate(sorted({share for level in levels for share in level.latencies})):
        found = [(level.at, level.latencies[share]) for level in levels if share in level.latencies]
        edges = tuple((at, one.low, one.high) for at, one in found if one.low is not None and one.high is not None)
        if len(edges) > 1:
            marks.append(Band(name="", edges=edges, tone=tone))
        points = tuple((at, one.value) for at, one in found)
        marks.append(Line(name=f"p{100 * share:g}", points=points, tone=tone, has_dots=True))
    if knee is not None:
        marks.append(Rule(name=f"kept up to {quantity_text(knee, Unit.COUNT)}", x=knee, tone=_KNEE_TONE))
    if target_ns is not None:
        marks.append(Rule(name=f"target {quantity_text(target_ns, Unit.TIME)}", y=target_ns, tone=_TARGET_TONE))
    return Chart(
        name=f"{latency[:1].upper()}{latency[1:]} against load; shaded: 95 % intervals",
        says=says,
        x=Axis(label=load, is_geometric=True, at=tuple(level.at for level in levels)),
        y=Axis(label=latency, unit=Unit.TIME, is_geometric=True),
        marks=tuple(marks),
        notes=tuple(notes),
    )


def ratios_of(rows: Sequence[tuple[str, Interval, int]], *, figure: str, says: str, base: str) -> Ratios:
    """Ratios of the medians of `figure`, a latency, to those of `base`: labels, ratios and tones."""
    return Ratios(
        name=f"{figure}: medians as ratios to those of {base}, with 95 % intervals",
        says=says,
        left=f"quicker than {base}",
        right=f"slower than {base}",
        rows=tuple(
            Ratio(label=label, value=ratio.value, low=ratio.low, high=ratio.high, tone=tone)
            for label, ratio, tone in rows
        ),
    )


def _bins(gaps: Sequence[tuple[float, int]]) -> tuple[tuple[float, float, float], ...]:
    """Shares of the weight in bins of a quarter of a doubling. Empty bins in between are there, with nothing."""
    counts: dict[int, int] = {}
    for gap, weight in gaps:
        place = math.floor(math.log2(max(gap, _LEAST_GAP_NS)) * _BINS_PER_DOUBLING)
        counts[place] = counts.get(place, 0) + weight
    whole = sum(counts.values())
    return tuple(
        (2 ** (place / _BINS_PER_DOUBLING), 2 ** ((place + 1) / _BINS_PER_DOUBLING), counts.get(place, 0) / whole)
        for place in range(min(counts), max(counts) + 1)
    )


def _outline(bars: Sequence[tuple[float, float, float]]) -> tuple[tuple[float, float], ...]:
    inner = [point for left, right, share in bars for point in ((left, share), (right, share))]
    return ((bars[0][0], 0.0), *inner, (bars[-1][1], 0.0))


def _gaps_say(gaps: Sequence[float]) -> str:
    if not gaps:
        return "No answer brought more than one event with tokens: there are no gaps"
    ordered = sorted(gaps)
    half, longest = (quantity_text(gap, Unit.TIME) for gap in (ordered[len(ordered) // 2], ordered[-1]))
    return f"Half of the gaps are under {half}, the longest is {longest}"
