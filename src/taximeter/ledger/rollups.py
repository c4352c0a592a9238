"""Sums that are kept as receipts are written, so that no question adds up a million rows.

Two tables: `usage_by_hour`, by the hour a receipt was closed in, model, backend and outcome; and `group_totals`, by
whatever requests said they belong to (task, run, session, `label:NAME`), with one group of everything. `members` says
which receipts a group has. All of it is written in the receipt's own transaction; a correction takes away what it
corrects. Owns: what a receipt adds to which sum. Refuses to know: when anything is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from taximeter.ledger.columns import (
    GROUP_COUNTS,
    GROUP_KEYS,
    GROUP_TIMES,
    HOUR_COUNTS,
    HOUR_KEYS,
    MEMBER_COLUMNS,
    MONEY_COLUMNS,
    RECEIPT_COLUMNS,
    TOKEN_COLUMNS,
)
from taximeter.ledger.database import Session
from taximeter.ledger.rows import Row, stored_name
from taximeter.records import LABEL_KIND, PICODOLLARS_PER_DOLLAR, Outcome, Usage

# ruff: noqa: S608 - all words of these statements are our own

ALL = ("all", "")

_AT = {name: place for place, name in enumerate(RECEIPT_COLUMNS)}
_FIRST_TOKENS, _LAST_TOKENS = _AT[TOKEN_COLUMNS[0]], _AT[TOKEN_COLUMNS[-1]] + 1
_INPUTS = len(Usage.INPUT_LEAVES)
_KINDS = ("task", "run", "session")

Key = tuple[str, ...]


@dataclass(slots=True)
class _Sums:
    """What is added to one row. `picodollars` is the whole amount."""

    counts: list[int]
    picodollars: int = 0
    first_at: str | None = None
    last_at: str | None = None

    def add(self, counts: Sequence[int], picodollars: int, sign: int) -> None:
        self.counts = [sum_ + sign * count for sum_, count in zip(self.counts, counts, strict=True)]
        self.picodollars += sign * picodollars

    def money(self) -> tuple[int, int]:
        return divmod(self.picodollars, PICODOLLARS_PER_DOLLAR)


def groups_of(row: Row, labels: Mapping[str, str]) -> list[Key]:
    """What a receipt belongs to: kinds and names."""
    groups = [(kind, str(name)) for kind in _KINDS if (name := row[_AT[kind]]) is not None]
    groups += {(stored_name(LABEL_KIND + name), stored_name(value)) for name, value in labels.items()}
    return groups


class Rollup:
    """What a batch of receipts changes, gathered before it is told to the database: many receipts share a row."""

    def __init__(self) -> None:
        self._hours: dict[Key, _Sums] = {}
        self._groups: dict[Key, _Sums] = {}
        self._members: list[Row] = []

    def add(self, row: Row, groups: Iterable[Key]) -> None:
        """A receipt is written."""
        closed_at, received_at = str(row[_AT["closed_at"]]), str(row[_AT["received_at"]])
        mine = [ALL, *groups]
        for sums in self._count(row, mine, 1):
            sums.first_at = received_at if sums.first_at is None else min(sums.first_at, received_at)
            sums.last_at = closed_at if sums.last_at is None else max(sums.last_at, closed_at)
        self._members += [(*key, closed_at, row[0]) for key in mine[1:]]

    def take(self, row: Row, groups: Iterable[Key]) -> None:
        """A receipt is corrected, and counts no longer. When a group began and ended stays as it was."""
        self._count(row, [ALL, *groups], -1)

    def write(self, session: Session) -> None:
        """Tell the database, in an order that is the same for everybody."""
        hours = [(*key, *sums.counts, *sums.money()) for key, sums in sorted(self._hours.items())]
        groups = [
            (*key, *sums.counts, *sums.money(), sums.first_at, sums.last_at)
            for key, sums in sorted(self._groups.items())
        ]
        session.tell(_ADD_TO_HOUR, hours)
        session.tell(_ADD_TO_GROUP, groups)
        session.tell(_ADD_MEMBER, self._members)

    def _count(self, row: Row, groups: Iterable[Key], sign: int) -> list[_Sums]:
        """Add the receipt's numbers to its sums; those of its groups."""
        hour = f"{str(row[_AT['closed_at']])[:13]}:00:00.000000"
        outcome = str(row[_AT["outcome"]])
        tokens = row[_FIRST_TOKENS:_LAST_TOKENS]
        dollars, picodollars = row[_AT["cost_dollars"]], row[_AT["cost_picodollars"]]
        unpriced = dollars is None
        amount = 0 if unpriced else int(dollars) * PICODOLLARS_PER_DOLLAR + int(picodollars)
        off_scale = int(row[_AT["off_scale"]])
        counts = [1, int(unpriced), off_scale]
        known = [0 if count is None else int(count) for count in tokens]
        for count, sum_ in zip(tokens, known, strict=True):
            counts += (sum_, int(count is None))
        for name in ("total_ns", "first_token_ns"):
            value = row[_AT[name]]
            counts += (0, 0) if value is None else (int(value), 1)
        counts.append(int(row[_AT["compute_ns"]] or 0))
        key = (hour, str(row[_AT["model"]]), str(row[_AT["served_by"]] or ""), outcome)
        if key not in self._hours:
            self._hours[key] = _Sums([0] * len(HOUR_COUNTS))
        self._hours[key].add(counts, amount, sign)

        failed = int(outcome != Outcome.COMPLETED.value)
        uncounted = int(None in tokens)
        counts = [1, failed, int(unpriced), off_scale, sum(known[:_INPUTS]), sum(known[_INPUTS:]), uncounted]
        found: list[_Sums] = []
        for group in groups:
            if group not in self._groups:
                self._groups[group] = _Sums([0] * len(GROUP_COUNTS))
            self._groups[group].add(counts, amount, sign)
            found.append(self._groups[group])
        return found


def _adding(table: str, keys: Sequence[str], counts: Sequence[str], times: Sequence[str] = ()) -> str:
    """The statement that adds a row to what is in the table under its key. All words in it are our own."""
    names = (*keys, *counts, *MONEY_COLUMNS, *times)
    dollars, picodollars = MONEY_COLUMNS
    sum_ = f"({table}.{picodollars} + excluded.{picodollars})"
    sets = [f"{name} = {table}.{name} + excluded.{name}" for name in counts]
    sets += [
        f"{dollars} = {table}.{dollars} + excluded.{dollars} + {sum_} / {PICODOLLARS_PER_DOLLAR}",
        f"{picodollars} = {sum_} % {PICODOLLARS_PER_DOLLAR}",
    ]
    for name, better in zip(times, "<>", strict=False):
        sets.append(
            f"{name} = CASE WHEN excluded.{name} {better} {table}.{name} THEN excluded.{name} ELSE {table}.{name} END"
        )
    return (
        f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        f" ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {', '.join(sets)}"
    )


_ADD_TO_HOUR = _adding("usage_by_hour", HOUR_KEYS, HOUR_COUNTS)
_ADD_TO_GROUP = _adding("group_totals", GROUP_KEYS, GROUP_COUNTS, GROUP_TIMES)
_ADD_MEMBER = f"INSERT INTO members ({', '.join(MEMBER_COLUMNS)}) VALUES (?, ?, ?, ?)"
