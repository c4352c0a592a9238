"""A study that is over, ready for whoever shows it: a terminal, a page, a file.

Owns: what every study has to show, and how estimates are written in words. Refuses to know: which study it was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from taximeter.figures import duration_text
from taximeter.measurement.asking.observation import Observation
from taximeter.measurement.estimates import Estimate
from taximeter.measurement.pictures.chart import Picture
from taximeter.measurement.pictures.page import Page, Table

_NS_PER_S: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """`says` is the finding, `levers` what would change it, `facts` single figures by name, `conclusions` everything as
    plain data. `observations` are all requests in the order they were sent. One that is not `is_valid` is not what it
    claims to be."""

    title: str
    says: str
    levers: tuple[str, ...] = ()
    warnings: tuple[str, ...]
    tables: tuple[Table, ...]
    pictures: tuple[Picture, ...]
    facts: Mapping[str, str]
    definitions: Mapping[str, str]
    conclusions: Mapping[str, Any]
    observations: tuple[Observation, ...] = field(repr=False)
    is_valid: bool = True

    @property
    def advice(self) -> str | None:
        """The levers as a sentence."""
        return f"What would change it: {'; '.join(self.levers)}." if self.levers else None


def page_of(shown: Shown, *, subject: str, facts: Mapping[str, str], made: str) -> Page:
    """The whole page; `facts` are those of the circumstances."""
    return Page(
        title=shown.title,
        subject=subject,
        says=shown.says,
        warnings=shown.warnings,
        advice=() if shown.advice is None else (shown.advice,),
        pictures=shown.pictures,
        tables=shown.tables,
        facts={**shown.facts, **facts},
        definitions=shown.definitions,
        made=made,
    )


def time_text(estimate: Estimate | None) -> str:
    """Nanoseconds with their interval, for a cell."""
    if estimate is None:
        return "?"
    text = duration_text(round(estimate.value))
    if estimate.low is None or estimate.high is None:
        return f"{text} (n too small)"
    return f"{text} ({_short(estimate.low, estimate.value)}-{_short(estimate.high, estimate.value)})"


def number_text(estimate: Estimate) -> str:
    """A number with its interval; three digits are as many as it deserves."""
    text = _three(estimate.value)
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} ({_three(estimate.low)} to {_three(estimate.high)})"


def share_cell(estimate: Estimate | None) -> str:
    if estimate is None:
        return "?"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.0%}"
    return f"{estimate.value:.0%} ({estimate.low * 100:.0f}-{estimate.high * 100:.0f})"


def _short(ns: float, beside: float) -> str:
    """In the unit of what it stands beside."""
    return f"{ns / 1e6:,.1f}" if beside < _NS_PER_S else f"{ns / _NS_PER_S:,.3f}"


def _three(value: float) -> str:
    if not math.isfinite(value):
        return "∞"
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{round(value, 2 - math.floor(math.log10(abs(value)))):,.{digits}f}"
