"""Every request that was measured as a line of CSV, with all digits of its stamps. Owns: the columns. Refuses to know:
what they are concluded to mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from taximeter.measurement.asking.observation import Observation, Origin
from taximeter.records import Phase
from taximeter.reports.csv_lines import csv_lines, no_formula

_COLUMNS: Final = (
    *("request", "shape", "outcome", "status", "attempts", "error"),
    *("asked_prompt_tokens", "prompt_tokens", "cached_tokens", "asked_output_tokens", "output_tokens"),
    *("scheduled_ns", "sent_ns", "headers_ns", "first_event_ns", "first_token_ns", "last_token_ns", "ended_ns"),
    *("ttft_ns", "ttft_from_sending_ns", "itl_ns", "end_to_end_ns", "dispatch_delay_ns", "longest_gap_ns"),
    *("events", "client_lag_ns", "receipt"),
    *(f"reported_{phase.value}_ns" for phase in Phase),
)


def requests_csv(
    places: Iterable[Mapping[str, object]], observations: Iterable[Observation], *, headings: tuple[str, ...]
) -> str:
    """One line for each observation, what is in its place (by `headings`) first. An empty field is unknown. Stamps are
    nanoseconds since the run began, as in `observation`."""
    lines = (
        {**{name: _safe(value) for name, value in place.items()}, **_line(seen)}
        for place, seen in zip(places, observations, strict=True)
    )
    return csv_lines((*headings, *_COLUMNS), lines)


def _line(seen: Observation) -> Mapping[str, object]:
    arrivals = seen.arrivals_ns
    fields: dict[str, object] = {
        "request": seen.id,
        "shape": no_formula(seen.shape),
        "outcome": seen.outcome.value,
        "error": no_formula(seen.error),
        "first_token_ns": arrivals[0] if arrivals else None,
        "last_token_ns": arrivals[-1] if arrivals else None,
        "ttft_ns": seen.ttft_ns(),
        "ttft_from_sending_ns": seen.ttft_ns(Origin.SENT),
        "end_to_end_ns": seen.end_to_end_ns(),
        "longest_gap_ns": max(seen.chunk_gaps_ns, default=None),
        "events": len(arrivals),
        "receipt": seen.receipt_id,
    }
    for phase in Phase:
        fields[f"reported_{phase.value}_ns"] = seen.reported_ns.get(phase)
    for name in _COLUMNS:
        if name not in fields:
            fields[name] = getattr(seen, name)
    return fields


def _safe(value: object) -> object:
    return no_formula(value) if isinstance(value, str) else value
