"""Sums of receipts by what they belong to, over any intervals: what reports are made of.

Tasks are what people say they are, so they are found out here, row by row, and not in SQL: between two instants at
which somebody said something, a receipt's task depends on what it belongs to alone, and sums are kept by all of that
together.
Owns: intervals, names, and percentiles. Refuses to know: zones, days and blocks, which are intervals of whoever asks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise
from typing import Any

import msgspec

from taximeter.ledger import rows
from taximeter.ledger.columns import HOUR_AMOUNTS, HOUR_SUMS, MONEY_UNITS, PHASE_COLUMNS, TOKEN_COLUMNS, UNKNOWN_COLUMNS
from taximeter.ledger.database import Asking
from taximeter.ledger.hours import (
    HOUR,
    OF_RECEIPTS,
    Belongs,
    Source,
    Span,
    active_hours,
    check_kind,
    hours_of,
    parts_of,
    summed,
)
from taximeter.ledger.sql import Condition, all_of, instant
from taximeter.ledger.totals import CostTotals, Percentiles, Slice
from taximeter.records import LABEL_KIND, PICODOLLARS_PER_DOLLAR, Basis, Outcome, Phase, TaskWords

MOST_TIMED = 100_000
"""Of more timed receipts in one question, percentiles look at an even part only."""

# ruff: noqa: S608 - all words of these questions are our own

_STRIPE = timedelta(minutes=5)
_MOST_BY_NUMBER = 8  # of fewer than every so manieth, whole stripes of time are passed over
_SPREAD, _SPREAD_OVER = 40_503, 65_536  # the golden section of these: multiples of it lie evenly
_decode_numbers = msgspec.json.Decoder(list[int]).decode
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BASES = tuple(Basis)
_OUTCOMES = tuple(Outcome)
_JOINT = ("task", "run", "session", "labels")  # what a task may be found out from

Groups = Sequence[tuple[str, str]]


class Names:
    """How the name that a row has is found: the `columns` to group by (`grouped` says so), and what their values mean
    at an instant. With `only`, whether it belongs to all of these is asked too."""

    def __init__(self, by: str | None, only: Groups, words: TaskWords) -> None:
        said = not words.is_empty and (by == "task" or any(kind == "task" for kind, _ in only))
        self._tasks = [name for kind, name in only if kind == "task"] if said else []
        self._words = words if said else None
        self._by = by
        self._belongs = Belongs([group for group in only if not (said and group[0] == "task")])
        self.conditions = self._belongs.conditions
        keys: list[str] = [*_JOINT] if said else []
        column = "labels" if by is not None and by.startswith(LABEL_KIND) else by
        if column is not None and column not in keys:
            keys.append(column)
        self._places = {name: place for place, name in enumerate(keys)}
        self.columns = [*keys, *self._belongs.columns]
        self.grouped = f" GROUP BY {', '.join(self.columns)}" if self.columns else ""

    def name(self, values: Sequence[Any], at: datetime) -> tuple[bool, str | None]:
        """Whether a row with these values of `columns` counts, and as whose."""
        if self._belongs.columns and not self._belongs.accepts(values[-1:]):
            return False, None
        if self._words is None:
            return True, self._plain(values)
        groups = self._groups(values)
        task = self._words.task_of(groups, at)
        if any(task != name for name in self._tasks):
            return False, None
        return True, task if self._by == "task" else self._plain(values)

    def _plain(self, values: Sequence[Any]) -> str | None:
        if self._by is None:
            return None
        if self._by.startswith(LABEL_KIND):
            labels = rows.labels_from(values[self._places["labels"]])
            return labels.get(rows.stored_label(self._by.removeprefix(LABEL_KIND)))
        return values[self._places[self._by]]

    def _groups(self, values: Sequence[Any]) -> dict[str, str]:
        places = self._places
        groups = {kind: values[places[kind]] for kind in _JOINT[:3] if values[places[kind]] is not None}
        labels = rows.labels_from(values[places["labels"]])
        return groups | {LABEL_KIND + name: value for name, value in labels.items()}


_FAILED = ("cost_dollars", "cost_picodollars", "unpriced")
_ADDED = (*HOUR_SUMS, *(f"failed_{name}" for name in _FAILED), *(outcome.value for outcome in _OUTCOMES))
_OF_COSTS = ("receipts", "unpriced", "cost_dollars", "cost_picodollars")


def _sums(source: Source, names: Sequence[str]) -> list[str]:
    """Those of `_ADDED`, then the weakest bases, and when the first was received and the last closed."""
    made = {
        f"failed_{name}": f"CASE WHEN outcome = '{Outcome.COMPLETED}' THEN 0 ELSE {source.sums[name]} END"
        for name in _FAILED
    }
    made |= {one.value: f"CASE WHEN outcome = '{one}' THEN {source.sums['receipts']} ELSE 0 END" for one in _OUTCOMES}
    ranks = " ".join(f"WHEN '{basis}' THEN {rank}" for rank, basis in enumerate(_BASES))
    # Times are timed by us, or by whoever wrote the log: a receipt that was read from one names it as its source.
    timed_by = f"CASE WHEN source IS NULL THEN {_BASES.index(Basis.MEASURED)} ELSE {_BASES.index(Basis.REPORTED)} END"
    weakest = [f"max(CASE {name} {ranks} END)" for name in ("usage_basis", "cost_basis")]
    weakest.append(f"max(CASE WHEN {source.sums['timed']} > 0 THEN {timed_by} END)")
    added = [summed(made[name] if name in made else source.sums[name]) for name in names]
    return [*added, *weakest, f"min({source.first_at})", f"max({source.last_at})"]


@dataclass(slots=True)
class _Heap:
    """What is known of one interval and name so far. The numbers are those of a question's names, the instants as
    stored, for text sorts by time."""

    numbers: list[int]
    usage_rank: int | None
    cost_rank: int | None
    time_rank: int | None
    first_at: str
    last_at: str
    times: tuple[list[int], list[int], list[int]] = field(default_factory=lambda: ([], [], []))

    def add(self, more: _Heap) -> None:
        self.numbers = [one + another for one, another in zip(self.numbers, more.numbers, strict=True)]
        self.usage_rank = _weaker(self.usage_rank, more.usage_rank)
        self.cost_rank = _weaker(self.cost_rank, more.cost_rank)
        self.time_rank = _weaker(self.time_rank, more.time_rank)
        self.first_at, self.last_at = min(self.first_at, more.first_at), max(self.last_at, more.last_at)


def _weaker(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else max(one, other)


Key = tuple[int, str | None]
Spans = Sequence[tuple[int, Span]]
"""Those that a report wants summed, each with the number of its interval."""


class Slices:
    """One question."""

    def __init__(self, by: str | None, only: Groups, words: TaskWords) -> None:
        """Raises ValueError for a kind that nothing is kept by."""
        for kind in (*(kind for kind, _ in only), *([] if by is None else [by])):
            check_kind(kind)
        self._by, self._only, self._words = by, only, words

    def answer(
        self, asking: Asking, spans: Spans, *, percentiles: bool, names: Collection[str] | None = None
    ) -> list[Slice]:
        """The slices, by interval and name; with `names`, only these."""
        heaps = _Heaps(self._by, self._only, self._words, _ADDED)
        heaps.fill(asking, spans, names)
        if percentiles:
            heaps.take_times(asking, spans, heaps.timed())
        return heaps.slices()

    def with_whole(self, asking: Asking, spans: Spans, *, percentiles: bool) -> tuple[list[Slice], Slice | None]:
        """The slices, and all of them together; with `percentiles` for each of them, else for the whole alone. The
        spans follow each other."""
        end_to_end = [(0, (spans[0][1][0], spans[-1][1][1]))]
        whole = _Heaps(None, self._only, self._words, _ADDED)
        if self._by is None:
            heaps = _Heaps(None, self._only, self._words, _ADDED)
            heaps.fill(asking, spans)
            whole.add_up(heaps)
        else:
            # Counts that are nothing in all are nothing in any: most of a hundred columns need not be added up by name.
            whole.fill(asking, end_to_end)
            heaps = _Heaps(self._by, self._only, self._words, whole.names_that_count())
            heaps.fill(asking, spans)
        if percentiles:
            heaps.take_times(asking, spans, whole.timed())
            whole.gather_times(heaps)
        else:
            whole.take_times(asking, end_to_end, whole.timed())
        return heaps.slices(), next(iter(whole.slices()), None)

    def costs(self, asking: Asking, spans: Spans, names: Collection[str] | None = None) -> list[CostTotals]:
        """What each of the slices costs, and no more."""
        heaps = _Heaps(self._by, self._only, self._words, _OF_COSTS)
        heaps.fill(asking, spans, names)
        return heaps.costs()


class _Heaps:
    """The sums `names` by interval and by the name of the kind `by`."""

    def __init__(self, by: str | None, only: Groups, words: TaskWords, names: Sequence[str]) -> None:
        self._by, self._only, self._words, self._names = by, only, words, names
        self._at = {name: place for place, name in enumerate(names)}
        self._heaps: dict[Key, _Heap] = {}

    def fill(self, asking: Asking, spans: Spans, names: Collection[str] | None = None) -> None:
        """Add up what was closed in the spans; with `names`, only theirs."""
        mine = Names(self._by, self._only, self._words)
        width, end = len(mine.columns), len(mine.columns) + len(self._names)
        asked: dict[str, str] = {}  # a hundred columns take longer to write than to read
        for interval, span in self._cut(spans):
            for source, part in parts_of(span):
                if source.table not in asked:
                    asked[source.table] = ", ".join([*mine.columns, *_sums(source, self._names)])
                which = all_of([source.within(part), *mine.conditions])
                question = f"SELECT {asked[source.table]} FROM {source.table} WHERE {which.text}{mine.grouped}"
                for row in asking.ask(question, *which.values):
                    counts, name = mine.name(row[:width], span[0])
                    if counts and row[-1] is not None and (names is None or name in names):
                        self._add(
                            (interval, name), _Heap([*map(int, row[width:end])], *row[end:])
                        )  # Postgres: decimals

    def _add(self, key: Key, heap: _Heap) -> None:
        known = self._heaps.get(key)
        if known is None:
            self._heaps[key] = heap
        else:
            known.add(heap)

    def add_up(self, others: _Heaps) -> None:
        """All of theirs, as one."""
        for heap in others._heaps.values():
            self._add((0, None), replace(heap, numbers=[*heap.numbers], times=([], [], [])))

    def names_that_count(self) -> list[str]:
        """Those of which anything is not 0, and all money: what was given back may make a sum of it 0."""
        return [
            name
            for name, place in self._at.items()
            if name.endswith("dollars") or any(heap.numbers[place] for heap in self._heaps.values())
        ]

    def timed(self) -> int:
        """How many have a time."""
        return sum(heap.numbers[self._at["timed"]] for heap in self._heaps.values()) if "timed" in self._at else 0

    def take_times(self, asking: Asking, spans: Spans, timed: int) -> None:
        """Durations, for percentiles: all of them, or an even part of very many. They come as texts, which takes a
        third of the time of rows."""
        every = -(-timed // MOST_TIMED)
        if not every:
            return
        mine = Names(self._by, self._only, self._words)
        measures = [asking.joined(name) for name in ("first_token_ns", "itl_ns", "total_ns")]
        asked = f"SELECT {', '.join([*mine.columns, *measures])} FROM {OF_RECEIPTS.table}"
        conditions = [Condition("total_ns IS NOT NULL"), *mine.conditions]
        if 1 < every <= _MOST_BY_NUMBER:
            conditions.append(Condition(f"number * {_SPREAD} % {_SPREAD_OVER} < {_SPREAD_OVER // every}"))
        width = len(mine.columns)
        for interval, span in self._cut(spans):
            for part in _looked_at(asking, span, every):
                which = all_of([OF_RECEIPTS.within(part), *conditions])
                for row in asking.ask(f"{asked} WHERE {which.text}{mine.grouped}", *which.values):
                    counts, name = mine.name(row[:width], span[0])
                    heap = self._heaps.get((interval, name)) if counts else None
                    if heap is not None:
                        for times, joined in zip(heap.times, row[width:], strict=True):
                            if joined:
                                times.extend(_decode_numbers(f"[{joined}]"))

    def gather_times(self, others: _Heaps) -> None:
        """All of theirs, for the one that is the sum of them."""
        for whole in self._heaps.values():
            for heap in others._heaps.values():
                for mine, theirs in zip(whole.times, heap.times, strict=True):
                    mine.extend(theirs)

    def slices(self) -> list[Slice]:
        figures = _Figures(self._at)
        return [figures.slice(*key, heap) for key, heap in self._in_order()]

    def costs(self) -> list[CostTotals]:
        found: list[CostTotals] = []
        for (interval, name), heap in self._in_order():
            receipts, unpriced, dollars, picodollars = heap.numbers
            found.append(
                CostTotals(
                    interval=interval,
                    name=name,
                    receipts=receipts,
                    unpriced=unpriced,
                    cost=_dollars(dollars, picodollars),
                    last_at=instant(heap.last_at),
                )
            )
        return found

    def _in_order(self) -> list[tuple[Key, _Heap]]:
        return sorted(self._heaps.items(), key=lambda item: (item[0][0], item[0][1] is None, item[0][1] or ""))

    def _cut(self, spans: Spans) -> Iterator[tuple[int, Span]]:
        return ((interval, part) for interval, span in spans for part in cut(span, self._words.instants))


def _looked_at(asking: Asking, span: Span, every: int) -> Iterator[Span]:
    """All of the span; or of the hours in which there was anything, every so manieth stripe of very many."""
    if every <= _MOST_BY_NUMBER:
        yield span
        return
    for busy in hours_between(active_hours(asking, *span), span[1]):
        yield from _stripes((max(span[0], busy[0]), busy[1]), every)


def cut(span: Span, instants: Sequence[datetime]) -> Iterator[Span]:
    """The span, in parts between those instants."""
    inside = instants[bisect_right(instants, span[0]) : bisect_right(instants, span[1])]
    return (part for part in pairwise([span[0], *inside, span[1]]) if part[0] < part[1])


def _stripes(span: Span, every: int) -> Iterator[Span]:
    """What the span has of every so manieth stripe of time, counted from 1970."""
    since, until = span[0].astimezone(UTC), span[1].astimezone(UTC)
    number = (since - _EPOCH) // _STRIPE // every * every
    while (start := _EPOCH + number * _STRIPE) < until:
        stripe = (max(since, start), min(until, start + _STRIPE))
        if stripe[0] < stripe[1]:
            yield stripe
        number += every


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


def hours_of_tasks(asking: Asking, names: Collection[str], words: TaskWords, until: datetime) -> list[Span]:
    """When there can be receipts of these tasks."""
    groups: dict[str, set[str]] = {"task": set(names)}
    for (kind, name), task in words.assigned.items():
        if task in names:
            groups.setdefault(kind, set()).add(name)
    if words.each is not None:
        groups.setdefault(words.each, set()).update(names)
    hours = {hour for kind, some in groups.items() for hour in hours_of(asking, kind, some)}
    for window in words.windows:
        if window.task in names:
            end = min(until, window.until or until)
            if window.since < end:
                first = window.since.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
                hours |= {first + number * HOUR for number in range(-(-(end - first) // HOUR))}
    return hours_between(hours, until)


class _Figures:
    """Where the figures of a slice stand among a question's numbers; those that are not there are 0. Looked up once for
    all slices, of which there may be tens of thousands."""

    def __init__(self, at: Mapping[str, int]) -> None:
        self._at = {name: at.get(name, -1) for name in _ADDED}
        self._outcomes = [(outcome, at[outcome.value]) for outcome in _OUTCOMES if outcome.value in at]
        self._tokens = [(leaf, at[leaf]) for leaf in TOKEN_COLUMNS if leaf in at]
        self._unknown = [(leaf, at[column]) for leaf, column in UNKNOWN_COLUMNS.items() if column in at]
        self._phases = [(phase, at[name]) for phase, name in zip(Phase, PHASE_COLUMNS, strict=True) if name in at]
        amounts = {unit: [self._at[column] for column in HOUR_AMOUNTS[unit]] for unit in MONEY_UNITS}
        self._money = [(unit, *places) for unit, places in amounts.items() if max(places) >= 0]

    def slice(self, interval: int, name: str | None, heap: _Heap) -> Slice:
        numbers, at = [*heap.numbers, 0], self._at
        first_token, inter_token, total = heap.times
        return Slice(
            interval=interval,
            name=name,
            receipts=numbers[at["receipts"]],
            outcomes={outcome: count for outcome, place in self._outcomes if (count := numbers[place])},
            tokens={leaf: count for leaf, place in self._tokens if (count := numbers[place])},
            unknown={leaf: count for leaf, place in self._unknown if (count := numbers[place])},
            cost=self._amount(numbers, *HOUR_AMOUNTS["cost"]),
            unpriced=numbers[at["unpriced"]],
            money={
                unit: _dollars(numbers[dollars], numbers[picodollars])
                for unit, dollars, picodollars in self._money
                if numbers[dollars] or numbers[picodollars]
            },
            failed_cost=self._amount(numbers, "failed_cost_dollars", "failed_cost_picodollars"),
            failed_unpriced=numbers[at["failed_unpriced"]],
            phases_ns={phase: ns for phase, place in self._phases if (ns := numbers[place])},
            timed=numbers[at["timed"]],
            compute_ns=numbers[at["compute_ns"]],
            first_token=_percentiles(first_token, numbers[at["first_tokens"]]),
            inter_token=_percentiles(inter_token, numbers[at["itls"]]),
            total=_percentiles(total, numbers[at["timed"]]),
            first_at=instant(heap.first_at),
            last_at=instant(heap.last_at),
            usage_basis=None if heap.usage_rank is None else _BASES[heap.usage_rank],
            cost_basis=None if heap.cost_rank is None else _BASES[heap.cost_rank],
            time_basis=None if heap.time_rank is None else _BASES[heap.time_rank],
            cost_reported=self._amount(numbers, *HOUR_AMOUNTS["reported"]),
            reported=numbers[at["reported"]],
            off_scale=numbers[at["off_scale"]],
        )

    def _amount(self, numbers: Sequence[int], dollars: str, picodollars: str) -> Decimal:
        return _dollars(numbers[self._at[dollars]], numbers[self._at[picodollars]])


_NO_DOLLARS = rows.join_money(0)


def _dollars(dollars: int, picodollars: int) -> Decimal:
    if not dollars and not picodollars:
        return _NO_DOLLARS
    return rows.join_money(dollars * PICODOLLARS_PER_DOLLAR + picodollars)


@lru_cache(maxsize=1_024)  # by run or session there are ten thousands of these
def _not_looked_at(of: int) -> Percentiles:
    return Percentiles(of=of)


def _percentiles(durations: list[int], of: int) -> Percentiles:
    """By nearest rank."""
    if not durations:
        return _not_looked_at(of)
    durations.sort()
    n = len(durations)

    def at(percent: int) -> int:
        return durations[-(-percent * n // 100) - 1]

    return Percentiles(n=n, p50_ns=at(50), p90_ns=at(90), p95_ns=at(95), p99_ns=at(99), of=of)
