"""Sums that are kept as receipts are written, so that no question adds up a million rows.

Four tables: `usage_by_hour`, by the hour a receipt was closed in and by all that reports ask by, together: its model,
backend and outcome, and what it belongs to; `usage_by_day`, the same by day and of all runs together; `group_totals`,
by whatever requests said they belong to (task, run, session, `label:NAME`), with one group of everything; and
`group_hours`, in which hours a group had receipts. All of it is written in the receipt's own transaction; a correction
takes away what it corrects. Owns: what a receipt adds to which sum. Refuses to know: when anything is committed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from operator import add

import msgspec

from taximeter.ledger.columns import (
    BUCKET_COLUMNS,
    DAY_KEYS,
    GROUP_COUNTS,
    GROUP_KEYS,
    HOUR_AMOUNTS,
    HOUR_KEYS,
    MONEY_COLUMNS,
    PHASE_COLUMNS,
    RECEIPT_COLUMNS,
    REPORTED_COLUMN,
    SPAN_COLUMNS,
    TOKEN_COLUMNS,
    UNKNOWN_COLUMNS,
)
from taximeter.ledger.database import Session
from taximeter.ledger.rows import Row, labels_from
from taximeter.records import LABEL_KIND, PICODOLLARS_PER_DOLLAR, Outcome, Usage

# ruff: noqa: S608 - all words of these statements are our own

ALL = ("all", "")

_AT = {name: place for place, name in enumerate(RECEIPT_COLUMNS)}
_TOKENS = slice(_AT[TOKEN_COLUMNS[0]], _AT[TOKEN_COLUMNS[-1]] + 1)
_KEYS = tuple(_AT[name] for name in HOUR_KEYS)
_KINDS = ("task", "run", "session")
_encode = msgspec.json.Encoder().encode

# What is plainly added up, where it is known; and how many know it, for those of which that is asked.
_PLAIN = tuple((_AT[name], name) for name in ("off_scale", *PHASE_COLUMNS, "compute_ns"))
_COUNTED = ((_AT["total_ns"], "timed"), (_AT["first_token_ns"], "first_tokens"), (_AT["itl_ns"], "itls"))
_UNCOUNTED = tuple((_AT[name], name) for name in ("total_ns", "first_token_ns"))
_TOKENS_AT = tuple((_AT[name], name, UNKNOWN_COLUMNS[name]) for name in TOKEN_COLUMNS)
_BUCKETS_AT = tuple((_AT[column], unit) for unit, column in BUCKET_COLUMNS.items())

Telling = tuple[str, Sequence[Row]]
"""A statement, and the rows of values that it is told with."""

Key = tuple[str | None, ...]
"""An hour, as its column has it, and the values of `HOUR_KEYS`; or a day, and those of `DAY_KEYS`."""


@dataclass(slots=True)
class Sums:
    """What is added to one row. `counts` and `picodollars` (by the amounts of `HOUR_AMOUNTS`) have only what is not 0;
    `uncounted` is how many receipts do not know a bucket."""

    counts: dict[str, int] = field(default_factory=dict[str, int])
    picodollars: dict[str, int] = field(default_factory=dict[str, int])
    uncounted: int = 0
    first_at: str | None = None
    last_at: str | None = None

    def add(self, more: Sums, sign: int = 1) -> None:
        """Count what is in `more` too, or (-1) no longer."""
        for mine, theirs in ((self.counts, more.counts), (self.picodollars, more.picodollars)):
            for name, number in theirs.items():
                mine[name] = mine.get(name, 0) + sign * number
        self.uncounted += sign * more.uncounted
        if sign > 0:  # what was seen was seen
            self.first_at = more.first_at if self.first_at is None else min(self.first_at, more.first_at or "~")
            self.last_at = more.last_at if self.last_at is None else max(self.last_at, more.last_at or "")


class Rollup:
    """What a batch of receipts changes, gathered before it is told to the database: many receipts share a row."""

    def __init__(self) -> None:
        self._hours: defaultdict[Key, Sums] = defaultdict(Sums)
        self._hours_of: set[tuple[str, str, str]] = set()

    def add(self, row: Row) -> None:
        """A receipt is written."""
        key = _key(row)
        self._hours[key].add(_sums(row))
        self._hours_of.update((kind, name, str(key[0])) for kind, name in groups_of(key))

    def take(self, row: Row) -> None:
        """A receipt is corrected, and counts no longer. When a group began and ended stays as it was."""
        self._hours[_key(row)].add(_sums(row), -1)

    def write(self, session: Session) -> None:
        """Tell the database."""
        for telling in self.tellings():
            session.tell(*telling)

    def tellings(self) -> list[Telling]:
        """What is told to the database, in an order that is the same for everybody."""
        days: defaultdict[Key, Sums] = defaultdict(Sums)
        groups: defaultdict[tuple[str, str], _Group] = defaultdict(_Group)
        for key, sums in self._hours.items():
            days[_day(key)].add(sums)
            mine = _totals(key, sums)
            for group in (ALL, *groups_of(key)):
                groups[group].add(mine, sums)
        return [
            *_of_usage(("usage_by_hour", "hour"), HOUR_KEYS, self._hours),
            *_of_usage(("usage_by_day", "day"), DAY_KEYS, days),
            (ADD_TO_GROUP, [(*group, *sums.row()) for group, sums in sorted(groups.items())]),
            (ADD_HOUR, sorted(self._hours_of)),
        ]


def _of_usage(table: tuple[str, str], keys: Sequence[str], added: Mapping[Key, Sums]) -> Iterator[Telling]:
    """To add to the rows of a table of usage, which is named with its column of time."""
    told: defaultdict[tuple[tuple[str, ...], tuple[str, ...]], list[Row]] = defaultdict(list)
    for key, sums in added.items():
        names, numbers = [*sums.counts], [*sums.counts.values()]
        for amount, picodollars in sums.picodollars.items():
            names += HOUR_AMOUNTS[amount]
            numbers += divmod(picodollars, PICODOLLARS_PER_DOLLAR)
        there = [(name, value) for name, value in zip(keys, key[1:], strict=True) if value is not None]
        values = [value for _, value in there]
        told[tuple([name for name, _ in there]), tuple(names)].append(
            (key[0], digest(key), *values, *numbers, sums.first_at, sums.last_at)
        )
    for (also, names), rows in told.items():
        yield adding_to_usage(table, also, names), sorted(rows)


def digest(key: Key) -> str:
    """What stands for all of a key but its hour or day: together they are too long for an index of Postgres."""
    return sha256(_encode(key[1:])).hexdigest()[:32]


def groups_of(key: Key) -> list[tuple[str, str]]:
    """What receipts with that key belong to: kinds and names."""
    groups = [(kind, name) for kind, place in _GROUP_PLACES if (name := key[place]) is not None]
    labels = key[_LABELS_PLACE]
    if labels is not None:
        groups += [(LABEL_KIND + name, value) for name, value in labels_from(labels).items()]
    return groups


_GROUP_PLACES = tuple((kind, 1 + HOUR_KEYS.index(kind)) for kind in _KINDS)
_LABELS_PLACE = 1 + HOUR_KEYS.index("labels")
_OUTCOME_PLACE = 1 + HOUR_KEYS.index("outcome")


def hour_of(instant: str) -> str:
    """When the hour began that a stored instant lies in."""
    return f"{instant[:13]}:00:00.000000"


def _day(key: Key) -> Key:
    """What an hour's row is in the sums of its day."""
    return (f"{str(key[0])[:10]} 00:00:00.000000", *without_run(key)[1:])


def without_run(key: Key) -> Key:
    """What is left of it in the sums of a day."""
    return (*key[:_RUN_PLACE], *key[_RUN_PLACE + 1 :])


_RUN_PLACE = 1 + HOUR_KEYS.index("run")


def _key(row: Row) -> Key:
    return (hour_of(row[_AT["closed_at"]]), *[row[place] for place in _KEYS])


def _sums(row: Row) -> Sums:
    """Of one receipt."""
    counts, picodollars = {"receipts": 1}, dict[str, int]()
    for place, name, unknown in _TOKENS_AT:
        count = row[place]
        if count is None:
            counts[unknown] = 1
        elif count:
            counts[name] = count
    for place, name in (*_PLAIN, *_UNCOUNTED):
        if number := row[place]:
            counts[name] = number
    for place, name in _COUNTED:
        if row[place] is not None:
            counts[name] = 1
    dollars = row[_AT["cost_dollars"]]
    if dollars is None:
        counts["unpriced"] = 1
    else:
        picodollars["cost"] = dollars * PICODOLLARS_PER_DOLLAR + row[_AT["cost_picodollars"]]
        for place, unit in _BUCKETS_AT:
            if amount := row[place]:
                picodollars[unit] = amount
    reported = row[_AT[REPORTED_COLUMN]]
    if reported is not None:
        counts["reported"], picodollars["reported"] = 1, reported
    uncounted = int(None in row[_TOKENS])
    return Sums(counts, picodollars, uncounted, row[_AT["received_at"]], row[_AT["closed_at"]])


_INPUTS, _OUTPUTS = frozenset(Usage.INPUT_LEAVES), frozenset(Usage.OUTPUT_LEAVES)


def _totals(key: Key, sums: Sums) -> tuple[int, ...]:
    """What a row of an hour is to a group: `GROUP_COUNTS`, and the picodollars of the cost."""
    receipts = sums.counts.get("receipts", 0)
    inputs = outputs = 0
    for name, number in sums.counts.items():
        if name in _INPUTS:
            inputs += number
        elif name in _OUTPUTS:
            outputs += number
    return (
        receipts,
        0 if key[_OUTCOME_PLACE] == Outcome.COMPLETED.value else receipts,
        sums.counts.get("unpriced", 0),
        sums.counts.get("off_scale", 0),
        inputs,
        outputs,
        sums.uncounted,
        sums.picodollars.get("cost", 0),
    )


class _Group:
    """What is added to a group's row."""

    def __init__(self) -> None:
        self.totals: tuple[int, ...] = (0,) * (len(GROUP_COUNTS) + 1)
        self.first_at: str | None = None
        self.last_at: str | None = None

    def add(self, totals: tuple[int, ...], sums: Sums) -> None:
        self.totals = tuple(map(add, self.totals, totals))
        if sums.first_at is not None and sums.last_at is not None:
            self.first_at = sums.first_at if self.first_at is None else min(self.first_at, sums.first_at)
            self.last_at = sums.last_at if self.last_at is None else max(self.last_at, sums.last_at)

    def row(self) -> Row:
        *counts, picodollars = self.totals
        return (*counts, *divmod(picodollars, PICODOLLARS_PER_DOLLAR), self.first_at, self.last_at)


def _adding(
    table: str,
    keys: Sequence[str],
    counts: Iterable[str],
    amounts: Iterable[tuple[str, str]],
    *,
    also: Sequence[str] = (),
) -> str:
    """The statement that adds a row to what is in the table under its key, of which `also` is a part that the key
    implies. All words in it are our own."""
    sets = [f"{name} = {table}.{name} + excluded.{name}" for name in counts]
    names = [*keys, *also, *counts]
    for dollars, picodollars in amounts:
        sum_ = f"({table}.{picodollars} + excluded.{picodollars})"
        rest = f"{sum_} % {PICODOLLARS_PER_DOLLAR}"
        # What is divided is a multiple: Postgres would round its decimals.
        sets += [
            f"{dollars} = {table}.{dollars} + excluded.{dollars} + ({sum_} - {rest}) / {PICODOLLARS_PER_DOLLAR}",
            f"{picodollars} = {rest}",
        ]
        names += (dollars, picodollars)
    for name, better in zip(SPAN_COLUMNS, "<>", strict=True):
        sets.append(
            f"{name} = CASE WHEN excluded.{name} {better} {table}.{name} THEN excluded.{name} ELSE {table}.{name} END"
        )
    names += SPAN_COLUMNS
    return (
        f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        f" ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {', '.join(sets)}"
    )


_PAIRS: Mapping[str, tuple[str, str]] = {dollars: (dollars, rest) for dollars, rest in HOUR_AMOUNTS.values()}
_SECONDS = frozenset(rest for _, rest in HOUR_AMOUNTS.values())


@cache
def adding_to_usage(table: tuple[str, str], also: tuple[str, ...], names: tuple[str, ...]) -> str:
    """The statement that adds a row to a table of usage: its hour or day, its digest, what of the key is there, the
    sums `names` and the span. Only of what is there: most of the columns are for few receipts (and see `sparse`)."""
    counts = [name for name in names if name not in _PAIRS and name not in _SECONDS]
    amounts = [_PAIRS[name] for name in names if name in _PAIRS]
    return _adding(table[0], (table[1], "digest"), counts, amounts, also=also)


ADD_TO_GROUP = _adding("group_totals", GROUP_KEYS, GROUP_COUNTS, [MONEY_COLUMNS])
ADD_HOUR = "INSERT INTO group_hours (kind, name, hour) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
