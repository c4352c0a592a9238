"""When a price holds.

Owns: the period around an instant in which a choice among dated entries stays the same. Refuses to know: what is
being chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

_SMALLEST_STEP = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """From `start` on, up to and without `end`. None is open."""

    start: datetime | None = None
    end: datetime | None = None

    def holds(self, at: datetime) -> bool:
        return (self.start is None or self.start <= at) and (self.end is None or at < self.end)

    def within(self, other: Period) -> Period:
        """The part of this period that lies in `other` too."""
        starts = [start for start in (self.start, other.start) if start is not None]
        ends = [end for end in (self.end, other.end) if end is not None]
        return Period(start=max(starts, default=None), end=min(ends, default=None))


ALWAYS = Period()


def period_around(at: datetime, chosen: Callable[[datetime], object], boundaries: Iterable[datetime]) -> Period:
    """The period around `at` in which `chosen` gives what it gives at `at`.

    `boundaries` are the only instants at which it may change; each belongs to what follows it.
    """
    now = chosen(at)
    ordered = sorted(boundaries)
    start = next(
        (edge for edge in reversed(ordered) if edge <= at and chosen(edge - _SMALLEST_STEP) != now),
        None,
    )
    end = next((edge for edge in ordered if edge > at and chosen(edge) != now), None)
    return Period(start=start, end=end)


def midnight(day: date) -> datetime:
    """The instant at which `day` begins in UTC."""
    return datetime.combine(day, time.min, tzinfo=UTC)
