"""What a report is asked: by what, from when until when, in which zone, and of which requests only.

Owns: the kinds that a report can be by, and the spans they have by default. Refuses to know: receipts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from taximeter.errors import RequestError
from taximeter.records import LABEL_KIND
from taximeter.reports import periods

TIME_KINDS: Final = ("day", "week", "month", "block")
NAME_KINDS: Final = ("task", "run", "session", "model", "key", "source")

_LABEL: Final = LABEL_KIND.removesuffix(":")
_DAYS, _WEEKS, _MONTHS = 7, 8, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """`by` is one of `TIME_KINDS`, of `NAME_KINDS`, or `label:KEY`. What was closed from `since` and before `until` is
    in the report, both in UTC. `only` are kinds and names that all of it belongs to. Raises RequestError for a span
    without length and for a kind that is none.
    """

    by: str
    since: datetime
    until: datetime
    zone: ZoneInfo
    only: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        kind_named(self.by)
        if self.since >= self.until:
            raise RequestError(
                f"there is nothing between {self.since:%Y-%m-%d %H:%M} and {self.until:%Y-%m-%d %H:%M} UTC",
                param="since",
                hint="--since is before --until",
            )

    @property
    def is_by_time(self) -> bool:
        return self.by in TIME_KINDS

    @property
    def before(self) -> datetime:
        """When the period before began, which is as long and ends where this one begins."""
        return self.since - (self.until - self.since)


def kind_named(text: str) -> str:
    """The kind that people mean by `text`. Raises RequestError when it is none."""
    kind, colon, key = text.strip().partition(":")
    if kind.lower() == _LABEL and colon and key:
        return LABEL_KIND + key.lower()
    if not colon and kind.lower() in (*TIME_KINDS, *NAME_KINDS):
        return kind.lower()
    known = ", ".join((*NAME_KINDS, *TIME_KINDS, "label:NAME"))
    raise RequestError(f"there is no report by {text!r}", param="by", hint=f"by one of {known}")


def default_since(by: str, until: datetime, zone: ZoneInfo) -> datetime:
    """Whole days: the last seven, today among them; for weeks eight of them, for months twelve."""
    today = periods.day_of(until - timedelta(microseconds=1), zone)
    match by:
        case "week":
            first = periods.week_of(today) - timedelta(weeks=_WEEKS - 1)
        case "month":
            first = periods.month_of(today)
            for _ in range(_MONTHS - 1):
                first = periods.month_of(first - timedelta(days=1))
        case _:
            first = today - timedelta(days=_DAYS - 1)
    return periods.midnight(first, zone)
