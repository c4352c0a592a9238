"""What calls by columns add to the sums: the rows of `rollups`, without an object for each of them.

A log has runs of few calls each, so that many of its calls are a sum of their own. Owns: adding up columns. Refuses to
know: what a call adds, and the statements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self, cast

import numpy as np

from taximeter.ledger.calls import Counts, Instants, Places, stored_instants, texts_of
from taximeter.ledger.columns import DAY_KEYS, GROUP_COUNTS, HOUR_AMOUNTS, HOUR_KEYS
from taximeter.ledger.rollups import (
    ADD_HOUR,
    ADD_TO_GROUP,
    ALL,
    Key,
    Telling,
    adding_to_usage,
    digest,
    groups_of,
    without_run,
)
from taximeter.records import PICODOLLARS_PER_DOLLAR, Outcome, Usage

_MOST_IN_A_SUM = 2**62  # of what is added up in 64 bits
_OUTCOME_PLACE = 1 + HOUR_KEYS.index("outcome")

Amount = tuple[Counts, Counts]
"""Dollars, and the picodollars beside them."""


def amount_of(picodollars: Counts) -> Amount:
    """Each as dollars and what is left."""
    dollars, rest = np.divmod(picodollars, PICODOLLARS_PER_DOLLAR)
    return dollars, rest


@dataclass(slots=True)
class SumColumns:
    """Sums, each at its place in all of the columns. `counts` and `amounts` are by the names of `HOUR_COUNTS` and
    `HOUR_AMOUNTS`; what has no column is 0 in all of them."""

    counts: dict[str, Counts]
    amounts: dict[str, Amount]
    first_at: Instants
    last_at: Instants

    def __len__(self) -> int:
        return len(self.first_at)

    def at(self, places: Places) -> SumColumns:
        """Those at `places`."""
        return SumColumns(
            {name: column[places] for name, column in self.counts.items()},
            {name: (dollars[places], rest[places]) for name, (dollars, rest) in self.amounts.items()},
            self.first_at[places],
            self.last_at[places],
        )

    def together(self, *keys: Counts) -> tuple[SumColumns, Places]:
        """One for all that have the same `keys`, in the order of these, of which the last counts first; and where
        somebody of each stands here."""
        order = np.lexsort(keys)
        is_first = np.ones(len(order), dtype=np.bool_)
        is_first[1:] = np.logical_or.reduce([np.diff(key[order]) != 0 for key in keys])
        begins = np.flatnonzero(is_first)
        mine = self.at(order)
        amounts: dict[str, Amount] = {}
        for name, (dollars, rest) in mine.amounts.items():
            more, rest_left = amount_of(_added(rest, begins))
            amounts[name] = _added(dollars, begins) + more, rest_left
        added = SumColumns(
            {name: _added(column, begins) for name, column in mine.counts.items()},
            amounts,
            np.minimum.reduceat(mine.first_at, begins),
            np.maximum.reduceat(mine.last_at, begins),
        )
        return added, order[begins]

    @classmethod
    def joined(cls, several: Sequence[Self]) -> Self:
        """All of them, one behind the other. They have the same columns."""
        first = several[0]
        return cls(
            {name: np.concatenate([each.counts[name] for each in several]) for name in first.counts},
            {
                name: (
                    np.concatenate([each.amounts[name][0] for each in several]),
                    np.concatenate([each.amounts[name][1] for each in several]),
                )
                for name in first.amounts
            },
            np.concatenate([each.first_at for each in several]),
            np.concatenate([each.last_at for each in several]),
        )


def _added(column: Counts, begins: Places) -> Counts:
    if len(column) and int(np.abs(column).max()) * len(column) > _MOST_IN_A_SUM:
        column = column.astype(object)
    return cast("Counts", np.add.reduceat(column, begins))


@dataclass(slots=True)
class KeyedSums:
    """Sums by hour, as `datetime64[h]` counts them, and by what else sums are kept by: `keys` are what there is of it,
    without an hour, and `key_of` has the place of each sum's. `uncounted` is whether the receipts do not know a
    bucket."""

    sums: SumColumns
    hours: Counts
    keys: Sequence[Key]
    key_of: Counts
    uncounted: bool


def tellings(several: Iterable[KeyedSums]) -> list[Telling]:
    """What is told to the database, each as many rows as there are; see `rollups.Rollup.tellings`."""
    hours: list[Telling] = []
    days: list[Telling] = []
    groups = _Groups()
    for each in several:
        sums, places = each.sums.together(each.key_of, each.hours)
        by_hour = KeyedSums(sums, each.hours[places], each.keys, each.key_of[places], each.uncounted)
        hours += _of_usage(("usage_by_hour", "hour"), HOUR_KEYS, by_hour)
        days += _of_usage(("usage_by_day", "day"), DAY_KEYS, _by_day(by_hour))
        groups.add(by_hour)
    return [*hours, *days, *groups.tellings()]


def _by_day(by_hour: KeyedSums) -> KeyedSums:
    """The hours are those in which days begin."""
    names: dict[Key, int] = {}
    day_key_of = np.array([names.setdefault(without_run(key), len(names)) for key in by_hour.keys], dtype=np.int64)
    hours, key_of = by_hour.hours // 24 * 24, day_key_of[by_hour.key_of]
    sums, places = by_hour.sums.together(key_of, hours)
    return KeyedSums(sums, hours[places], list(names), key_of[places], by_hour.uncounted)


def _hour_texts(hours: Counts) -> list[str]:
    return texts_of(stored_instants(hours.astype("datetime64[h]").astype("datetime64[us]")))


def _of_usage(table: tuple[str, str], keys: Sequence[str], by: KeyedSums) -> Iterator[Telling]:
    """To add to the rows of a table of usage, which is named with its column of time."""
    digests = [digest(key) for key in by.keys]
    patterns = [tuple([value is not None for value in key[1:]]) for key in by.keys]
    ranks = np.array([int(each[:15], 16) for each in digests], dtype=np.int64)  # as far as 64 bits have them
    for pattern in dict.fromkeys(patterns):
        of_pattern = np.array([each == pattern for each in patterns], dtype=np.bool_)
        places = np.flatnonzero(of_pattern[by.key_of])
        places = places[np.lexsort((ranks[by.key_of[places]], by.hours[places]))]
        sums, key_of = by.sums.at(places), cast("list[int]", by.key_of[places].tolist())
        there = [place for place, is_there in enumerate(pattern) if is_there]
        values = [[by.keys[key][1 + place] for key in key_of] for place in there]
        counts = {name: column for name, column in sums.counts.items() if column.any()}
        amounts = {name: each for name, each in sums.amounts.items() if each[0].any() or each[1].any()}
        names = (*counts, *chain.from_iterable(HOUR_AMOUNTS[name] for name in amounts))
        columns: list[Sequence[Any]] = [_hour_texts(by.hours[places]), [digests[key] for key in key_of], *values]
        columns += [column.tolist() for column in (*counts.values(), *chain.from_iterable(amounts.values()))]
        columns += [texts_of(stored_instants(each)) for each in (sums.first_at, sums.last_at)]
        yield adding_to_usage(table, tuple([keys[place] for place in there]), names), list(zip(*columns, strict=True))


class _Groups:
    """What is added to the sums of groups, and in which hours they had anything."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str], int] = {}
        self._sums: list[SumColumns] = []
        self._group_of: list[Counts] = []
        self._active: list[tuple[Counts, Counts]] = []  # groups, and an hour of each

    def add(self, by_hour: KeyedSums) -> None:
        """Each sum counts for all groups that its key belongs to, and for that of everything."""
        mine = [[ALL, *groups_of(key)] for key in by_hour.keys]
        groups = [[self._places.setdefault(group, len(self._places)) for group in each] for each in mine]
        counts = np.array([len(each) for each in groups], dtype=np.int64)
        sums, places = _totals(by_hour).together(by_hour.key_of)
        key_of = by_hour.key_of[places]
        self._sums.append(sums.at(np.repeat(np.arange(len(sums)), counts[key_of])))
        self._group_of.append(_flat([groups[key] for key in cast("list[int]", key_of.tolist())]))
        theirs = _flat([groups[key] for key in cast("list[int]", by_hour.key_of.tolist())])
        self._active.append((theirs, np.repeat(by_hour.hours, counts[by_hour.key_of])))

    def tellings(self) -> Iterator[Telling]:
        """In the order of the groups."""
        if not self._sums:
            return
        names = list(self._places)
        ranks = np.empty(len(names), dtype=np.int64)
        ranks[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
        group_of = np.concatenate(self._group_of)
        sums, places = SumColumns.joined(self._sums).together(ranks[group_of])
        groups = [names[group] for group in cast("list[int]", group_of[places].tolist())]
        numbers = [sums.counts[name].tolist() for name in GROUP_COUNTS]
        money = [each.tolist() for each in sums.amounts["cost"]]
        spans = [texts_of(stored_instants(each)) for each in (sums.first_at, sums.last_at)]
        rows = zip(groups, *numbers, *money, *spans, strict=True)
        yield ADD_TO_GROUP, [(*group, *row) for group, *row in rows]
        active, hours = (np.concatenate(each) for each in zip(*self._active, strict=True))
        is_named = active != self._places[ALL]
        _, places = np.unique(np.stack([ranks[active], hours])[:, is_named], axis=1, return_index=True)
        active, hours = active[is_named][places], hours[is_named][places]
        rows_of_hours = zip(active.tolist(), _hour_texts(hours), strict=True)
        yield ADD_HOUR, [(*names[group], hour) for group, hour in rows_of_hours]


def _flat(lists: Iterable[Sequence[int]]) -> Counts:
    return np.fromiter(chain.from_iterable(lists), dtype=np.int64)


def _totals(by_hour: KeyedSums) -> SumColumns:
    """What the sums are to groups: `GROUP_COUNTS` and the cost."""
    sums = by_hour.sums
    nothing = np.zeros(len(sums), dtype=np.int64)
    receipts = sums.counts["receipts"]
    failed = np.array([key[_OUTCOME_PLACE] != Outcome.COMPLETED.value for key in by_hour.keys], dtype=np.bool_)
    sides = [
        sum((column for name, column in sums.counts.items() if name in leaves), start=nothing)
        for leaves in (Usage.INPUT_LEAVES, Usage.OUTPUT_LEAVES)
    ]
    counts = {
        "receipts": receipts,
        "failures": np.where(failed[by_hour.key_of], receipts, 0),
        "unpriced": sums.counts.get("unpriced", nothing),
        "off_scale": nothing,
        "input_tokens": sides[0],
        "output_tokens": sides[1],
        "uncounted": receipts if by_hour.uncounted else nothing,
    }
    return SumColumns(counts, {"cost": sums.amounts.get("cost", (nothing, nothing))}, sums.first_at, sums.last_at)
