"""Sums of receipts by what they belong to, over any intervals: what reports are made of.

Tasks are what people say they are, so they are found out here, row by row, and not in SQL: between two instants at
which somebody said something, a receipt's task depends on what it belongs to alone, and sums are kept by all of that
together.
Owns: intervals, names, and percentiles. Refuses to know: zones, days and blocks, which are intervals of whoever asks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import sqlalchemy as sa

from taximeter.ledger import rows
from taximeter.ledger.columns import HOUR_AMOUNTS, HOUR_SUMS, MONEY_UNITS, PHASE_COLUMNS, TOKEN_COLUMNS, UNKNOWN_COLUMNS
from taximeter.ledger.hours import (
    HOUR,
    OF_RECEIPTS,
    Belongs,
    Column,
    Source,
    Span,
    active_hours,
    hours_of,
    parts_of,
    within,
)
from taximeter.ledger.totals import Percentiles, Slice
from taximeter.records import LABEL_KIND, PICODOLLARS_PER_DOLLAR, Basis, Outcome, Phase, TaskWords

MOST_TIMED = 200_000
"""Of more timed receipts in one question, percentiles look at an even part only."""

KINDS = ("task", "run", "session", "model", "served_by", "key", "source", "outcome")

_STRIPE = timedelta(minutes=5)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BASES = tuple(Basis)
_OUTCOMES = tuple(Outcome)
_JOINT = ("task", "run", "session", "labels")  # what a task may be found out from

Groups = Sequence[tuple[str, str]]


class Names:
    """How the name that a row has is found: the `columns` to group by, and what their values mean at an instant. With
    `only`, whether it belongs to all of these is asked too."""

    def __init__(self, source: Source, by: str | None, only: Groups, words: TaskWords) -> None:
        said = not words.is_empty and (by == "task" or any(kind == "task" for kind, _ in only))
        self._tasks = [name for kind, name in only if kind == "task"] if said else []
        self._words = words if said else None
        self._by = by
        self._belongs = Belongs(source.keys, [group for group in only if not (said and group[0] == "task")])
        self.conditions = self._belongs.conditions
        keys: dict[str, Column] = {name: source.keys[name] for name in _JOINT} if said else {}
        if by is not None and not by.startswith(LABEL_KIND):
            keys[by] = source.keys[by]
        elif by is not None:
            keys["labels"] = source.keys["labels"]
        self._places = {name: place for place, name in enumerate(keys)}
        self.columns = [*keys.values(), *self._belongs.columns]

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
            return labels.get(rows.stored_name(self._by.removeprefix(LABEL_KIND)))
        return values[self._places[self._by]]

    def _groups(self, values: Sequence[Any]) -> dict[str, str]:
        places = self._places
        groups = {kind: values[places[kind]] for kind in _JOINT[:3] if values[places[kind]] is not None}
        labels = rows.labels_from(values[places["labels"]])
        return groups | {LABEL_KIND + name: value for name, value in labels.items()}


_FAILED = ("cost_dollars", "cost_picodollars", "unpriced")
_ADDED = (*HOUR_SUMS, *(f"failed_{name}" for name in _FAILED), *(outcome.value for outcome in _OUTCOMES))
_AT = {name: place for place, name in enumerate(_ADDED)}


def _sums(source: Source) -> list[Column]:
    """`_ADDED`, then the weakest bases, and when the first was received and the last closed."""
    outcome = source.keys["outcome"]
    completed = outcome == Outcome.COMPLETED.value
    added = [source.sums[name] for name in HOUR_SUMS]
    added += [sa.case((completed, 0), else_=source.sums[name]) for name in _FAILED]
    added += [sa.case((outcome == one.value, source.sums["receipts"]), else_=0) for one in _OUTCOMES]
    ranks = [
        sa.func.max(sa.case({basis.value: rank for rank, basis in enumerate(_BASES)}, value=source.keys[name]))
        for name in ("usage_basis", "cost_basis")
    ]
    spans = [sa.func.min(source.first_at), sa.func.max(source.last_at)]
    return [*(sa.func.coalesce(sa.func.sum(column), 0) for column in added), *ranks, *spans]


@dataclass(slots=True)
class _Heap:
    """What is known of one interval and name so far."""

    numbers: list[int]
    usage_rank: int | None
    cost_rank: int | None
    first_at: datetime
    last_at: datetime
    times: tuple[list[int], list[int], list[int]] = field(default_factory=lambda: ([], [], []))

    def add(self, more: _Heap) -> None:
        self.numbers = [one + another for one, another in zip(self.numbers, more.numbers, strict=True)]
        self.usage_rank = _weaker(self.usage_rank, more.usage_rank)
        self.cost_rank = _weaker(self.cost_rank, more.cost_rank)
        self.first_at, self.last_at = min(self.first_at, more.first_at), max(self.last_at, more.last_at)


def _weaker(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else max(one, other)


Key = tuple[int, str | None]


class Slices:
    """One question: `spans` are those that a report wants summed, each with the number of its interval."""

    def __init__(self, by: str | None, only: Groups, words: TaskWords) -> None:
        """Raises ValueError for a kind that nothing is kept by."""
        for kind in (*(kind for kind, _ in only), *([] if by is None else [by])):
            if kind not in KINDS and not kind.startswith(LABEL_KIND):
                raise ValueError(f"receipts are added up by {', '.join(KINDS)} or {LABEL_KIND}NAME, not by {kind!r}")
        self._by, self._only, self._words = by, only, words
        self._asked: dict[int, tuple[Names, sa.Select[Any]]] = {}

    def answer(
        self,
        connection: sa.Connection,
        spans: Sequence[tuple[int, Span]],
        *,
        percentiles: bool,
        names: Collection[str] | None = None,
    ) -> list[Slice]:
        """The slices, by interval and name; with `names`, only these."""
        cut = [(interval, part) for interval, span in spans for part in _cut(span, self._words.instants)]
        heaps: dict[Key, _Heap] = {}
        for interval, part in cut:
            for name, heap in self._heaps(connection, part):
                if names is not None and name not in names:
                    continue
                known = heaps.get((interval, name))
                if known is None:
                    heaps[interval, name] = heap
                else:
                    known.add(heap)
        if percentiles:
            self._take_times(connection, cut, heaps)
        order = sorted(heaps, key=lambda key: (key[0], key[1] is None, key[1] or ""))
        return [_slice(*key, heaps[key]) for key in order]

    def _heaps(self, connection: sa.Connection, span: Span) -> Iterator[tuple[str | None, _Heap]]:
        for source, part in parts_of(span):
            mine, question = self._question(source)
            width = len(mine.columns)
            for row in connection.execute(question, {"since": part[0], "until": part[1]}):
                counts, name = mine.name(row[:width], span[0])
                if counts and row[width]:
                    numbers = list(map(int, row[width : width + len(_ADDED)]))  # Postgres has decimals here
                    yield name, _Heap(numbers, *row[width + len(_ADDED) :])

    def _question(self, source: Source) -> tuple[Names, sa.Select[Any]]:
        """Made once: a hundred columns take longer to write down than to read."""
        if id(source) not in self._asked:
            mine = Names(source, self._by, self._only, self._words)
            question = sa.select(*mine.columns, *_sums(source)).where(within(source), *mine.conditions)
            self._asked[id(source)] = mine, question.group_by(*mine.columns) if mine.columns else question
        return self._asked[id(source)]

    def _take_times(self, connection: sa.Connection, cut: Sequence[tuple[int, Span]], heaps: dict[Key, _Heap]) -> None:
        """Durations, for percentiles: all of them, or of very many those of every so manieth five minutes."""
        timed = sum(heap.numbers[_AT["timed"]] for heap in heaps.values())
        if not timed:
            return
        every = -(-timed // MOST_TIMED)
        mine, this = Names(OF_RECEIPTS, self._by, self._only, self._words), OF_RECEIPTS.keys
        width = len(mine.columns)
        measures = [this[name] for name in ("first_token_ns", "itl_ns", "total_ns")]
        question = sa.select(*mine.columns, *measures).where(
            within(OF_RECEIPTS), this["total_ns"].is_not(None), *mine.conditions
        )
        for interval, span in cut:
            of: dict[tuple[Any, ...], _Heap | None] = {}
            for part in _looked_at(connection, span, every):
                for row in connection.execute(question, {"since": part[0], "until": part[1]}).all():
                    key = row[:width]
                    if key not in of:
                        counts, name = mine.name(key, span[0])
                        of[key] = heaps.get((interval, name)) if counts else None
                    heap = of[key]
                    if heap is not None:
                        first_ns, itl_ns, total_ns = row[width:]
                        first, itl, total = heap.times
                        total.append(total_ns)
                        if first_ns is not None:
                            first.append(first_ns)
                        if itl_ns is not None:
                            itl.append(itl_ns)


def _looked_at(connection: sa.Connection, span: Span, every: int) -> Iterator[Span]:
    """All of the span; or of the hours in which there was anything, every so manieth stripe."""
    if every == 1:
        yield span
        return
    for busy in hours_between(active_hours(connection, *span), span[1]):
        yield from _stripes((max(span[0], busy[0]), busy[1]), every)


def _cut(span: Span, instants: Sequence[datetime]) -> Iterator[Span]:
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


def hours_of_tasks(connection: sa.Connection, names: Collection[str], words: TaskWords, until: datetime) -> list[Span]:
    """When there can be receipts of these tasks."""
    groups = {("task", name) for name in names} | {group for group, task in words.assigned.items() if task in names}
    if words.each is not None:
        groups |= {(words.each, name) for name in names}
    hours = {hour for kind, name in groups for hour in hours_of(connection, kind, name)}
    for window in words.windows:
        if window.task in names:
            end = min(until, window.until or until)
            if window.since < end:
                first = window.since.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
                hours |= {first + number * HOUR for number in range(-(-(end - first) // HOUR))}
    return hours_between(hours, until)


def _slice(interval: int, name: str | None, heap: _Heap) -> Slice:
    numbers = heap.numbers

    def of(column: str) -> int:
        return numbers[_AT[column]]

    def amount(dollars: str, picodollars: str) -> Decimal:
        return rows.join_money(of(dollars) * PICODOLLARS_PER_DOLLAR + of(picodollars))

    money = {unit: amount(*HOUR_AMOUNTS[unit]) for unit in MONEY_UNITS if any(map(of, HOUR_AMOUNTS[unit]))}
    first_token, inter_token, total = heap.times
    return Slice(
        interval=interval,
        name=name,
        receipts=of("receipts"),
        outcomes={outcome: of(outcome.value) for outcome in _OUTCOMES if of(outcome.value)},
        tokens={leaf: of(leaf) for leaf in TOKEN_COLUMNS},
        unknown={leaf: of(column) for leaf, column in UNKNOWN_COLUMNS.items() if of(column)},
        cost=amount(*HOUR_AMOUNTS["cost"]),
        unpriced=of("unpriced"),
        money=money,
        failed_cost=amount("failed_cost_dollars", "failed_cost_picodollars"),
        failed_unpriced=of("failed_unpriced"),
        phases_ns={phase: of(column) for phase, column in zip(Phase, PHASE_COLUMNS, strict=True)},
        timed=of("timed"),
        compute_ns=of("compute_ns"),
        first_token=_percentiles(first_token, of("first_tokens")),
        inter_token=_percentiles(inter_token, of("itls")),
        total=_percentiles(total, of("timed")),
        first_at=heap.first_at,
        last_at=heap.last_at,
        usage_basis=None if heap.usage_rank is None else _BASES[heap.usage_rank],
        cost_basis=None if heap.cost_rank is None else _BASES[heap.cost_rank],
        cost_reported=amount(*HOUR_AMOUNTS["reported"]),
        reported=of("reported"),
        off_scale=of("off_scale"),
    )


def _percentiles(durations: list[int], of: int) -> Percentiles:
    """By nearest rank."""
    durations.sort()
    n = len(durations)

    def at(percent: int) -> int | None:
        return durations[-(-percent * n // 100) - 1] if n else None

    return Percentiles(n=n, p50_ns=at(50), p90_ns=at(90), p95_ns=at(95), p99_ns=at(99), of=of)
