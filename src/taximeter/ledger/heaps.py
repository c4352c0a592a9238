"""Heaps: what is known of an interval and a name while it is added up, and the figures that come of it.

Owns: which sums make a slice, how they are asked for, and percentiles. Refuses to know: which heaps somebody wants.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache

from taximeter.ledger import rows
from taximeter.ledger.columns import HOUR_AMOUNTS, HOUR_SUMS, MONEY_UNITS, PHASE_COLUMNS, TOKEN_COLUMNS, UNKNOWN_COLUMNS
from taximeter.ledger.database import Asking
from taximeter.ledger.hours import OF_RECEIPTS, Source, Span, active_hours, hours_between, summed
from taximeter.ledger.names import Groups, Names, cut
from taximeter.ledger.sql import Condition, all_of, instant
from taximeter.ledger.totals import CostTotals, Percentiles, Slice
from taximeter.records import PICODOLLARS_PER_DOLLAR, Basis, Outcome, Phase, TaskWords

MOST_TIMED = 100_000
"""Of more timed receipts in one question, percentiles look at an even part only."""

# ruff: noqa: S608 - all words of these questions are our own

_STRIPE = timedelta(minutes=5)
_MOST_BY_NUMBER = 8  # of fewer than every so manieth, whole stripes of time are passed over
_SPREAD, _SPREAD_OVER = 40_503, 65_536  # the golden section of these: multiples of it lie evenly
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BASES = tuple(Basis)
_OUTCOMES = tuple(Outcome)

_FAILED = ("cost_dollars", "cost_picodollars", "unpriced")
ADDED = (*HOUR_SUMS, *(f"failed_{name}" for name in _FAILED), *(outcome.value for outcome in _OUTCOMES))
OF_COSTS = ("receipts", "unpriced", "cost_dollars", "cost_picodollars")


def _sums(source: Source, names: Sequence[str]) -> list[str]:
    """Those of `ADDED`, then the weakest bases, and when the first was received and the last closed."""
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
class Heap:
    """What is known of one interval and name so far. The numbers are those of a question's names, the instants as
    stored, for text sorts by time."""

    numbers: list[int]
    usage_rank: int | None
    cost_rank: int | None
    time_rank: int | None
    first_at: str
    last_at: str
    times: tuple[list[int], list[int], list[int]] = field(default_factory=lambda: ([], [], []))

    def add(self, more: Heap) -> None:
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


class Heaps:
    """The sums `names` by interval and by the name of the kind `by`."""

    def __init__(self, by: str | None, only: Groups, words: TaskWords, names: Sequence[str]) -> None:
        self._by, self._only, self._words, self._names = by, only, words, names
        self._at = {name: place for place, name in enumerate(names)}
        self._heaps: dict[Key, Heap] = {}

    def fill(
        self,
        asking: Asking,
        spans: Spans,
        names: Collection[str] | None = None,
        *,
        also: tuple[str, Condition] | None = None,
    ) -> None:
        """Add up what was closed in the spans; with `names` only theirs, with `also` only that of which the condition
        holds, which is about that column."""
        mine = Names(self._by, self._only, self._words, about=also and also[0])
        width, end = len(mine.columns), len(mine.columns) + len(self._names)
        asked: dict[str, str] = {}  # a hundred columns take longer to write than to read
        for interval, span in self._cut(spans):
            for source, part in mine.parts(span):
                if source.table not in asked:
                    asked[source.table] = ", ".join([*mine.columns, *_sums(source, self._names)])
                which = all_of([source.within(part), *mine.conditions, *([] if also is None else also[1:])])
                question = f"SELECT {asked[source.table]} FROM {source.table} WHERE {which.text}{mine.grouped}"
                for row in asking.ask(question, *which.values):
                    counts, name = mine.name(row[:width], span[0])
                    if counts and row[-1] is not None and (names is None or name in names):
                        self._add((interval, name), Heap([*map(int, row[width:end])], *row[end:]))  # Postgres: decimals

    def be_what_is_left(self, whole: Heaps, others: Heaps) -> None:
        """Have the sums of `whole` less those of `others`. Of these bases and instants are known, which do not
        follow."""
        self._names, self._at = whole._names, whole._at
        heap = self._heaps[0, None]
        heap.numbers = [*whole._heaps[0, None].numbers]
        for other in others._heaps.values():
            heap.numbers = [one - another for one, another in zip(heap.numbers, other.numbers, strict=True)]

    def split(self, kept: Collection[str | None]) -> Heaps:
        """Take out all that has none of these names, as one."""
        others = Heaps(None, self._only, self._words, self._names)
        for key in [key for key in self._heaps if key[1] not in kept]:
            others._add((0, None), self._heaps.pop(key))
        return others

    def _add(self, key: Key, heap: Heap) -> None:
        known = self._heaps.get(key)
        if known is None:
            self._heaps[key] = heap
        else:
            known.add(heap)

    def add_up(self, others: Heaps) -> None:
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
        asked = f"SELECT {', '.join([*mine.columns, *measures])} FROM {_receipts_that_count(asking)}"
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
                                times.extend(asking.numbers(joined))

    def gather_times(self, others: Heaps) -> None:
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
                    cost=dollars_of(dollars, picodollars),
                    last_at=instant(heap.last_at),
                )
            )
        return found

    def _in_order(self) -> list[tuple[Key, Heap]]:
        return sorted(self._heaps.items(), key=lambda item: (item[0][0], item[0][1] is None, item[0][1] or ""))

    def _cut(self, spans: Spans) -> Iterator[tuple[int, Span]]:
        return ((interval, part) for interval, span in spans for part in cut(span, self._words.instants))


def _receipts_that_count(asking: Asking) -> str:
    """Those that nothing corrects. As long as nothing corrects any, an index has all that is asked of them."""
    corrected = asking.ask("SELECT 1 FROM receipts WHERE supersedes IS NOT NULL LIMIT 1")
    return OF_RECEIPTS.table if corrected else "receipts"


def _looked_at(asking: Asking, span: Span, every: int) -> Iterator[Span]:
    """All of the span; or of the hours in which there was anything, every so manieth stripe of very many."""
    if every <= _MOST_BY_NUMBER:
        yield span
        return
    for busy in hours_between(active_hours(asking, *span), span[1]):
        yield from _stripes((max(span[0], busy[0]), busy[1]), every)


def _stripes(span: Span, every: int) -> Iterator[Span]:
    """What the span has of every so manieth stripe of time, counted from 1970."""
    since, until = span[0].astimezone(UTC), span[1].astimezone(UTC)
    number = (since - _EPOCH) // _STRIPE // every * every
    while (start := _EPOCH + number * _STRIPE) < until:
        stripe = (max(since, start), min(until, start + _STRIPE))
        if stripe[0] < stripe[1]:
            yield stripe
        number += every


class _Figures:
    """Where the figures of a slice stand among a question's numbers; those that are not there are 0. Looked up once for
    all slices, of which there may be tens of thousands."""

    def __init__(self, at: Mapping[str, int]) -> None:
        self._at = {name: at.get(name, -1) for name in ADDED}
        self._outcomes = [(outcome, at[outcome.value]) for outcome in _OUTCOMES if outcome.value in at]
        self._tokens = [(leaf, at[leaf]) for leaf in TOKEN_COLUMNS if leaf in at]
        self._unknown = [(leaf, at[column]) for leaf, column in UNKNOWN_COLUMNS.items() if column in at]
        self._phases = [(phase, at[name]) for phase, name in zip(Phase, PHASE_COLUMNS, strict=True) if name in at]
        amounts = {unit: [self._at[column] for column in HOUR_AMOUNTS[unit]] for unit in MONEY_UNITS}
        self._money = [(unit, *places) for unit, places in amounts.items() if max(places) >= 0]

    def slice(self, interval: int, name: str | None, heap: Heap) -> Slice:
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
                unit: dollars_of(numbers[dollars], numbers[picodollars])
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
        return dollars_of(numbers[self._at[dollars]], numbers[self._at[picodollars]])


_NO_DOLLARS = rows.join_money(0)


def dollars_of(dollars: int, picodollars: int) -> Decimal:
    """The sum of both, exact."""
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
