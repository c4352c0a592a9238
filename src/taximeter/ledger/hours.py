"""Sums of receipts, from the sums of their hours; at an edge within an hour, from the receipts themselves.

Owns: what can be added up and what of it belongs to whom, in both places alike. Refuses to know: who asks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from taximeter.ledger import rows
from taximeter.ledger.columns import (
    HOUR_AMOUNTS,
    HOUR_SUMS,
    MONEY_COLUMNS,
    SPAN_COLUMNS,
    TOKEN_COLUMNS,
    UNKNOWN_COLUMNS,
)
from taximeter.ledger.database import batches
from taximeter.ledger.schema import current_receipts, group_hours, usage_by_hour
from taximeter.ledger.totals import UsageTotals
from taximeter.records import LABEL_KIND, PICODOLLARS_PER_DOLLAR, Outcome

HOUR = timedelta(hours=1)

Column = sa.ColumnElement[Any]
Span = tuple[datetime, datetime]
"""From an instant on, and before another; in UTC."""


class Belongs:
    """Which rows of a table belong to all of some groups. `conditions` are SQL; what that cannot say of labels,
    `accepts` finds in the values of `columns`."""

    def __init__(self, this: Mapping[str, Column], groups: Sequence[tuple[str, str]]) -> None:
        self.conditions: list[sa.ColumnElement[bool]] = []
        self._labels: list[tuple[str, str]] = []
        for kind, name in groups:
            if kind.startswith(LABEL_KIND):
                self._labels.append((rows.stored_label(kind.removeprefix(LABEL_KIND)), rows.stored_name(name)))
            else:
                self.conditions.append(this[kind] == rows.stored_name(name))
        self.columns: list[Column] = []
        if self._labels:
            self.columns.append(this["labels"])
            self.conditions.append(this["labels"].is_not(None))

    def accepts(self, values: Sequence[Any]) -> bool:
        """Whether a row with these values of `columns` belongs to them."""
        if not self._labels:
            return True
        labels = rows.labels_from(values[0])
        return all(labels.get(name) == value for name, value in self._labels)


@dataclass(frozen=True, slots=True)
class Source:
    """Where sums come from: what is added up for each name of `HOUR_SUMS`, and the columns of all keys."""

    sums: Mapping[str, Column]
    keys: Mapping[str, Column]
    first_at: Column
    last_at: Column
    at: Column
    is_there: sa.ColumnElement[bool]


def _of_hours() -> Source:
    this = usage_by_hour.c
    first_at, last_at = (this[name] for name in SPAN_COLUMNS)
    return Source({name: this[name] for name in HOUR_SUMS}, dict(this), first_at, last_at, this.hour, this.receipts > 0)


def _of_receipts() -> Source:
    this = current_receipts.c

    def is_null(name: str) -> Column:
        return sa.case((this[name].is_(None), 1), else_=0)

    def is_known(name: str) -> Column:
        return sa.case((this[name].is_not(None), 1), else_=0)

    sums: dict[str, Column] = {
        "receipts": sa.literal_column("1"),
        "unpriced": is_null("cost_dollars"),
        "timed": is_known("total_ns"),
        "first_tokens": is_known("first_token_ns"),
        "itls": is_known("itl_ns"),
        "reported": is_known("reported_picodollars"),
    }
    sums |= {UNKNOWN_COLUMNS[name]: is_null(name) for name in TOKEN_COLUMNS}
    for dollars, picodollars in HOUR_AMOUNTS.values():
        if dollars not in this:
            sums[dollars] = this[picodollars] // PICODOLLARS_PER_DOLLAR
            sums[picodollars] = this[picodollars] % PICODOLLARS_PER_DOLLAR
    sums = {name: sums[name] if name in sums else this[name] for name in HOUR_SUMS}
    return Source(sums, dict(this), this.received_at, this.closed_at, this.closed_at, sa.true())


OF_HOURS = _of_hours()
OF_RECEIPTS = _of_receipts()


def parts_of(span: Span) -> Iterator[tuple[Source, Span]]:
    """The whole hours of a span, and what it has of an hour before and after them; in their order."""
    since, until = span[0].astimezone(UTC), span[1].astimezone(UTC)
    first, last = _hour_from(since), hour_of(until)
    if first > last:  # all within one hour
        parts = [(OF_RECEIPTS, (since, until))]
    else:
        parts = [(OF_RECEIPTS, (since, first)), (OF_HOURS, (first, last)), (OF_RECEIPTS, (last, until))]
    return ((source, part) for source, part in parts if part[0] < part[1])


def hour_of(at: datetime) -> datetime:
    """When the hour began that `at` is in."""
    return at.replace(minute=0, second=0, microsecond=0)


def _hour_from(at: datetime) -> datetime:
    hour = hour_of(at)
    return hour if hour == at else hour + HOUR


def within(source: Source) -> sa.ColumnElement[bool]:
    """That something was closed from `since` on and before `until`, which are given with the question."""
    since, until = (sa.bindparam(name, type_=source.at.type) for name in ("since", "until"))
    return sa.and_(source.at >= since, source.at < until, source.is_there)


def hours_of(connection: sa.Connection, kind: str, names: Collection[str]) -> list[datetime]:
    """In which hours any of these groups had receipts, ascending."""
    this, found = group_hours.c, set[datetime]()
    of_kind = sa.select(this.hour).where(this.kind == rows.stored_kind(kind)).distinct()
    for some in batches([rows.stored_name(name) for name in names]):
        found.update(connection.scalars(of_kind.where(this.name.in_(some))))
    return sorted(found)


def newest_hour_of(connection: sa.Connection, before: datetime) -> datetime | None:
    """The last hour in which a receipt was closed whose request had been received before then; hours are few where
    receipts are many."""
    this = usage_by_hour.c
    question = sa.select(this.hour).where(this.first_at < before).order_by(this.hour.desc()).limit(1)
    return connection.scalar(question)


def active_hours(connection: sa.Connection, since: datetime, until: datetime) -> list[datetime]:
    """The hours of UTC in which something was closed from `since` and before `until`."""
    found: set[datetime] = set()
    for source, span in parts_of((since, until)):
        bounds = {"since": span[0], "until": span[1]}
        if source is OF_HOURS:
            found.update(connection.scalars(sa.select(source.at).where(within(source)).distinct(), bounds))
        elif connection.scalar(sa.select(source.at).where(within(source)).limit(1), bounds) is not None:
            found.add(hour_of(span[0]))
    return sorted(found)


_USAGE_KEYS = ("model", "served_by", "outcome")
_USAGE_SUMS = (
    *("receipts", "unpriced", "off_scale"),
    *TOKEN_COLUMNS,
    *UNKNOWN_COLUMNS.values(),
    *("total_ns", "timed", "first_token_ns", "first_tokens", "compute_ns"),
    *MONEY_COLUMNS,
)


def usage_in(connection: sa.Connection, since: datetime, until: datetime) -> list[UsageTotals]:
    """See `Ledger.usage_by_hour`."""
    found: list[UsageTotals] = []
    for source, span in parts_of((since, until)):
        hour = [source.at] if source is OF_HOURS else []
        bounds = {"since": span[0], "until": span[1]}
        for *key, sums in sums_by_usage(connection, source, within(source), hour, bounds):
            found.append(_usage_totals(key[0] if hour else hour_of(span[0]), key[-3:], sums))
    return found


def usage_of(connection: sa.Connection, kind: str, name: str) -> list[UsageTotals]:
    """See `Ledger.usage_of`."""
    belongs = Belongs(OF_HOURS.keys, [(kind, name)])
    this = group_hours.c
    theirs = sa.select(this.hour).where(this.kind == rows.stored_kind(kind), this.name == rows.stored_name(name))
    which = sa.and_(OF_HOURS.at.in_(theirs), OF_HOURS.is_there, *belongs.conditions)
    width = len(belongs.columns)
    found = sums_by_usage(connection, OF_HOURS, which, belongs.columns, {})
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
    connection: sa.Connection,
    source: Source,
    which: sa.ColumnElement[bool],
    also_by: Sequence[Column],
    bounds: Mapping[str, datetime],
) -> Iterator[tuple[Any, ...]]:
    """Keys of usage, behind those of `also_by`, and a list of their sums."""
    keys = [*also_by, *(source.keys[name] for name in _USAGE_KEYS)]
    sums = [sa.func.coalesce(sa.func.sum(source.sums[name]), 0) for name in _USAGE_SUMS]
    order = [*also_by, source.keys["model"], sa.func.coalesce(source.keys["served_by"], ""), source.keys["outcome"]]
    question = sa.select(*keys, *sums).where(which).group_by(*keys).order_by(*order)
    for row in connection.execute(question, bounds):
        yield *row[: len(keys)], list(map(int, row[len(keys) :]))  # Postgres has decimals here


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
