"""Sums of receipts, from the sums of their days and hours; at an edge within an hour, from the receipts themselves.

Owns: what can be added up and what of it belongs to whom, in both places alike. Refuses to know: who asks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

from taximeter.ledger import rows
from taximeter.ledger.columns import (
    HOUR_AMOUNTS,
    HOUR_SUMS,
    MONEY_COLUMNS,
    RECEIPT_COLUMNS,
    TOKEN_COLUMNS,
    UNKNOWN_COLUMNS,
)
from taximeter.ledger.database import Asking, batches
from taximeter.ledger.rows import stored_instant
from taximeter.ledger.sql import Condition, all_of, instant, one_of
from taximeter.ledger.totals import UsageTotals
from taximeter.records import LABEL_KIND, PICODOLLARS_PER_DOLLAR, Outcome

# ruff: noqa: S608 - all words of these questions are our own

HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)

KINDS = ("task", "run", "session", "model", "served_by", "key", "source", "outcome")
"""What receipts are added up by, beside their labels: columns of both tables."""

Span = tuple[datetime, datetime]
"""From an instant on, and before another; in UTC."""


def check_kind(kind: str) -> None:
    """Raises ValueError for a kind that nothing is kept by."""
    if kind not in KINDS and not kind.startswith(LABEL_KIND):
        raise ValueError(f"receipts are added up by {', '.join(KINDS)} or {LABEL_KIND}NAME, not by {kind!r}")


class Belongs:
    """Which rows of either table belong to all of some groups. `conditions` are SQL; what that cannot say of labels,
    `accepts` finds in the values of `columns`."""

    def __init__(self, groups: Sequence[tuple[str, str]]) -> None:
        self.conditions: list[Condition] = []
        self._labels: list[tuple[str, str]] = []
        for kind, name in groups:
            check_kind(kind)
            if kind.startswith(LABEL_KIND):
                self._labels.append((rows.stored_label(kind.removeprefix(LABEL_KIND)), rows.stored_name(name)))
            else:
                self.conditions.append(Condition(f"{kind} = ?", (rows.stored_name(name),)))
        self.columns: list[str] = []
        if self._labels:
            self.columns.append("labels")
            self.conditions.append(Condition("labels IS NOT NULL"))

    def accepts(self, values: Sequence[Any]) -> bool:
        """Whether a row with these values of `columns` belongs to them."""
        if not self._labels:
            return True
        labels = rows.labels_from(values[0])
        return all(labels.get(name) == value for name, value in self._labels)


@dataclass(frozen=True, slots=True)
class Source:
    """A table where sums come from: what is added up for each name of `HOUR_SUMS`, the columns of when the first of a
    row was received, when its last was closed and by which time it is found, and what else must hold. All that sums are
    kept by is called the same in both."""

    table: str
    sums: Mapping[str, str]
    first_at: str
    last_at: str
    at: str
    is_there: tuple[Condition, ...] = ()

    def within(self, span: Span) -> Condition:
        """That something was closed in the span."""
        bounds = Condition(f"{self.at} >= ? AND {self.at} < ?", tuple(map(stored_instant, span)))
        return all_of([bounds, *self.is_there])


def _of_receipts() -> Source:
    def is_null(name: str) -> str:
        return f"CASE WHEN {name} IS NULL THEN 1 ELSE 0 END"

    def is_known(name: str) -> str:
        return f"CASE WHEN {name} IS NOT NULL THEN 1 ELSE 0 END"

    sums = {
        "receipts": "1",
        "unpriced": is_null("cost_dollars"),
        "timed": is_known("total_ns"),
        "first_tokens": is_known("first_token_ns"),
        "itls": is_known("itl_ns"),
        "reported": is_known("reported_picodollars"),
    }
    sums |= {UNKNOWN_COLUMNS[name]: is_null(name) for name in TOKEN_COLUMNS}
    for dollars, picodollars in HOUR_AMOUNTS.values():
        if dollars not in RECEIPT_COLUMNS:
            sums[dollars] = f"{picodollars} / {PICODOLLARS_PER_DOLLAR}"
            sums[picodollars] = f"{picodollars} % {PICODOLLARS_PER_DOLLAR}"
    sums = {name: sums.get(name, name) for name in HOUR_SUMS}
    return Source("current_receipts", sums, "received_at", "closed_at", "closed_at")


OF_HOURS = Source(
    "usage_by_hour",
    {name: name for name in HOUR_SUMS},
    "first_at",
    "last_at",
    "hour",
    (Condition("receipts > 0"),),
)
OF_DAYS = replace(OF_HOURS, table="usage_by_day", at="day")
"""As that of hours, but for runs, which days know nothing of: a fraction of the rows."""
OF_RECEIPTS = _of_receipts()


def parts_of(span: Span, *, by_days: bool = False) -> Iterator[tuple[Source, Span]]:
    """The whole hours of a span, or with `by_days` its whole days and the hours around them, and what it has of an hour
    before and after them; in their order."""
    since, until = span[0].astimezone(UTC), span[1].astimezone(UTC)
    first, last = _hour_from(since), hour_of(until)
    if first > last:  # all within one hour
        parts = [(OF_RECEIPTS, (since, until))]
    else:
        first_day, last_day = _day_from(first), _day_of(last)
        if by_days and first_day < last_day:
            whole = [(OF_HOURS, (first, first_day)), (OF_DAYS, (first_day, last_day)), (OF_HOURS, (last_day, last))]
        else:
            whole = [(OF_HOURS, (first, last))]
        parts = [(OF_RECEIPTS, (since, first)), *whole, (OF_RECEIPTS, (last, until))]
    return ((source, part) for source, part in parts if part[0] < part[1])


def hour_of(at: datetime) -> datetime:
    """When the hour began that `at` is in."""
    return at.replace(minute=0, second=0, microsecond=0)


def _hour_from(at: datetime) -> datetime:
    hour = hour_of(at)
    return hour if hour == at else hour + HOUR


def _day_of(at: datetime) -> datetime:
    return at.replace(hour=0, minute=0, second=0, microsecond=0)


def _day_from(at: datetime) -> datetime:
    day = _day_of(at)
    return day if day == at else day + _DAY


def hours_of(asking: Asking, kind: str, names: Collection[str]) -> list[datetime]:
    """In which hours any of these groups had receipts, ascending."""
    found = set[str]()
    for some in batches([rows.stored_name(name) for name in names]):
        which = all_of([Condition("kind = ?", (rows.stored_kind(kind),)), one_of("name", some)])
        found.update(hour for (hour,) in asking.ask(f"SELECT hour FROM group_hours WHERE {which.text}", *which.values))
    return sorted(map(instant, found))


def hours_between(hours: Collection[datetime], until: datetime) -> list[Span]:
    """Spans of those hours, as few as there can be, all before `until`."""
    spans: list[Span] = []
    for hour in sorted(hours):
        if hour >= until:
            break
        end = min(hour + HOUR, until)
        if spans and spans[-1][1] == hour:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((hour, end))
    return spans


def newest_hour_of(asking: Asking, before: datetime) -> datetime | None:
    """The last hour in which a receipt was closed whose request had been received before then; hours are few where
    receipts are many."""
    question = "SELECT hour FROM usage_by_hour WHERE first_at < ? ORDER BY hour DESC LIMIT 1"
    return next((instant(hour) for (hour,) in asking.ask(question, stored_instant(before))), None)


def active_hours(asking: Asking, since: datetime, until: datetime) -> list[datetime]:
    """The hours of UTC in which something was closed from `since` and before `until`."""
    found: set[datetime] = set()
    for source, span in parts_of((since, until)):
        which = source.within(span)
        if source is OF_HOURS:
            found.update(instant(hour) for (hour,) in asking.ask(_EACH_HOUR, *which.values, which.values[1]))
        elif asking.ask(f"SELECT 1 FROM {source.table} WHERE {which.text} LIMIT 1", *which.values):
            found.add(hour_of(span[0]))
    return sorted(found)


# From one hour to the next by their key: an hour has hundreds of rows, and months of them would be read for nothing.
_EACH_HOUR = """
WITH RECURSIVE found (hour) AS (
    SELECT (SELECT hour FROM usage_by_hour WHERE hour >= ? AND hour < ? AND receipts > 0 ORDER BY hour LIMIT 1)
    UNION ALL
    SELECT (SELECT hour FROM usage_by_hour WHERE hour > found.hour AND hour < ? AND receipts > 0 ORDER BY hour LIMIT 1)
    FROM found WHERE hour IS NOT NULL
) SELECT hour FROM found WHERE hour IS NOT NULL
"""


_USAGE_KEYS = ("model", "served_by", "outcome")
_USAGE_SUMS = (
    *("receipts", "unpriced", "off_scale"),
    *TOKEN_COLUMNS,
    *UNKNOWN_COLUMNS.values(),
    *("total_ns", "timed", "first_token_ns", "first_tokens", "compute_ns"),
    *MONEY_COLUMNS,
)


def usage_in(asking: Asking, since: datetime, until: datetime) -> list[UsageTotals]:
    """See `Ledger.usage_by_hour`."""
    found: list[UsageTotals] = []
    for source, span in parts_of((since, until)):
        hour = [source.at] if source is OF_HOURS else []
        for *key, sums in sums_by_usage(asking, source, source.within(span), hour):
            found.append(_usage_totals(instant(key[0]) if hour else hour_of(span[0]), key[-3:], sums))
    return found


def usage_of(asking: Asking, kind: str, name: str) -> list[UsageTotals]:
    """See `Ledger.usage_of`."""
    belongs = Belongs([(kind, name)])
    theirs = Condition(
        f"{OF_HOURS.at} IN (SELECT hour FROM group_hours WHERE kind = ? AND name = ?)",
        (rows.stored_kind(kind), rows.stored_name(name)),
    )
    which = all_of([theirs, *OF_HOURS.is_there, *belongs.conditions])
    width = len(belongs.columns)
    found = sums_by_usage(asking, OF_HOURS, which, belongs.columns)
    return usage_totals((tuple(key[-3:]), sums) for *key, sums in found if belongs.accepts(key[:width]))


def usage_totals(parts: Iterable[tuple[tuple[Any, ...], list[int]]]) -> list[UsageTotals]:
    """Sums by model, backend and outcome from those keys and their sums, which may come in several parts."""
    merged: dict[tuple[Any, ...], list[int]] = {}
    for key, sums in parts:
        known = merged.get(key)
        merged[key] = sums if known is None else [one + more for one, more in zip(known, sums, strict=True)]
    return [
        _usage_totals(None, key, merged[key]) for key in sorted(merged, key=lambda key: (key[0], key[1] or "", key[2]))
    ]


def sums_by_usage(
    asking: Asking, source: Source, which: Condition, also_by: Sequence[str]
) -> Iterator[tuple[Any, ...]]:
    """Keys of usage, behind those of `also_by`, and a list of their sums."""
    keys = ", ".join([*also_by, *_USAGE_KEYS])
    sums = ", ".join(summed(source.sums[name]) for name in _USAGE_SUMS)
    order = ", ".join([*also_by, "model", "coalesce(served_by, '')", "outcome"])
    question = f"SELECT {keys}, {sums} FROM {source.table} WHERE {which.text} GROUP BY {keys} ORDER BY {order}"
    width = len(also_by) + len(_USAGE_KEYS)
    for row in asking.ask(question, *which.values):
        yield *row[:width], list(map(int, row[width:]))  # Postgres has decimals here


def summed(expression: str) -> str:
    """The sum of what is known."""
    return f"coalesce(sum({expression}), 0)"


_TOKENS_PLACE = slice(3, 3 + len(TOKEN_COLUMNS))
_UNKNOWN_PLACE = slice(_TOKENS_PLACE.stop, _TOKENS_PLACE.stop + len(TOKEN_COLUMNS))
_NONE_UNKNOWN = MappingProxyType(dict.fromkeys(TOKEN_COLUMNS, 0))
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}


def _usage_totals(hour: datetime | None, key: Sequence[Any], numbers: Sequence[int]) -> UsageTotals:
    """From `_USAGE_KEYS` and `_USAGE_SUMS`. A week has ten thousand of them."""
    model, served_by, outcome = key
    unknown = numbers[_UNKNOWN_PLACE]
    total_ns, timed, first_token_ns, first_tokens, compute_ns, dollars, picodollars = numbers[_UNKNOWN_PLACE.stop :]
    return UsageTotals(
        hour=hour,
        model=model,
        served_by=served_by,
        outcome=_OUTCOMES[outcome],
        receipts=numbers[0],
        unpriced=numbers[1],
        off_scale=numbers[2],
        tokens=dict(zip(TOKEN_COLUMNS, numbers[_TOKENS_PLACE], strict=True)),
        unknown=dict(zip(TOKEN_COLUMNS, unknown, strict=True)) if any(unknown) else _NONE_UNKNOWN,
        total_ns=total_ns,
        timed=timed,
        first_token_ns=first_token_ns,
        first_tokens=first_tokens,
        compute_ns=compute_ns,
        cost=rows.join_money(dollars * PICODOLLARS_PER_DOLLAR + picodollars),
    )
