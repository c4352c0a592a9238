"""Sums of receipts by what they belong to, over any intervals: what reports are made of.

Owns: intervals, and what of a question is asked of the database. Refuses to know: zones, days and blocks, which are
intervals of whoever asks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from taximeter.ledger.database import Asking
from taximeter.ledger.heaps import ADDED, OF_COSTS, Heaps, Spans, dollars_of
from taximeter.ledger.hours import HOUR, Span, check_kind, hours_between, hours_of, summed
from taximeter.ledger.names import Groups, Names, cut
from taximeter.ledger.sql import Condition, all_of, one_of
from taximeter.ledger.totals import CostTotals, Dearest, Slice, Spent
from taximeter.records import PICODOLLARS_PER_DOLLAR, TaskWords

# ruff: noqa: S608 - all words of these questions are our own

_MOST_APART = 500  # names that one question can tell from all others

Name = str | None


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
        heaps = Heaps(self._by, self._only, self._words, ADDED)
        heaps.fill(asking, spans, names)
        if percentiles:
            heaps.take_times(asking, spans, heaps.timed())
        return heaps.slices()

    def with_whole(self, asking: Asking, spans: Spans, *, percentiles: bool) -> tuple[list[Slice], Slice | None]:
        """The slices, and all of them together; with `percentiles` for each of them, else for the whole alone. The
        spans follow each other."""
        end_to_end = [(0, (spans[0][1][0], spans[-1][1][1]))]
        whole = Heaps(None, self._only, self._words, ADDED)
        if self._by is None:
            heaps = Heaps(None, self._only, self._words, ADDED)
            heaps.fill(asking, spans)
            whole.add_up(heaps)
        else:
            # Counts that are nothing in all are nothing in any: most of a hundred columns need not be added up by name.
            whole.fill(asking, end_to_end)
            heaps = Heaps(self._by, self._only, self._words, whole.names_that_count())
            heaps.fill(asking, spans)
        if percentiles:
            heaps.take_times(asking, spans, whole.timed())
            whole.gather_times(heaps)
        else:
            whole.take_times(asking, end_to_end, whole.timed())
        return heaps.slices(), next(iter(whole.slices()), None)

    def costs(self, asking: Asking, spans: Spans, names: Collection[str] | None = None) -> list[CostTotals]:
        """What each of the slices costs, and no more."""
        heaps = Heaps(self._by, self._only, self._words, OF_COSTS)
        heaps.fill(asking, spans, names)
        return heaps.costs()

    def dearest(self, asking: Asking, before: Span, span: Span, most: int) -> Dearest:
        """See `Ledger.dearest`. What everything costs is asked first; all else is added up of what is shown, and of the
        others together."""
        spent = self._spent(asking, span)
        names = sorted(spent, key=lambda name: (name is None, -spent[name][2], -spent[name][0], name or ""))
        shown = names if len(names) <= most else names[: most - 1]
        rest = names[len(shown) :]
        spans = [(0, span)]
        whole = Heaps(None, self._only, self._words, ADDED)
        column = Names(self._by, self._only, self._words).column
        whole.fill(asking, spans)
        if rest and column is not None and len(shown) <= _MOST_APART:
            heaps = Heaps(self._by, self._only, self._words, ADDED)
            heaps.fill(asking, spans, also=(column, one_of(column, shown)))
            others = Heaps(None, self._only, self._words, ())  # what they sum to is known: all the rest
            others.fill(asking, spans, also=(column, _none_of(column, shown)))
            others.be_what_is_left(whole, heaps)
        else:
            heaps = Heaps(self._by, self._only, self._words, whole.names_that_count())
            heaps.fill(asking, spans)
            others = heaps.split(shown)
        whole.take_times(asking, spans, whole.timed())
        slices = {part.name: part for part in heaps.slices()}
        past = self._spent(asking, before)
        return Dearest(
            slices=tuple(slices[name] for name in shown),
            others=next(iter(others.slices()), None),
            names=len(rest),
            whole=next(iter(whole.slices()), None),
            before={name: _spent(past[name]) for name in shown if name in past},
            others_before=_all_spent([past[name] for name in rest if name in past]),
            whole_before=_all_spent([*past.values()]),
        )

    def _spent(self, asking: Asking, span: Span) -> dict[Name, _Spent]:
        """What everything costs, by name: there may be tens of thousands of these."""
        mine = Names(self._by, self._only, self._words)
        width = len(mine.columns)
        found: dict[Name, _Spent] = {}
        for piece in cut(span, self._words.instants):
            for source, part in mine.parts(piece):
                which = all_of([source.within(part), *mine.conditions])
                sums = ", ".join([*mine.columns, *(summed(source.sums[name]) for name in OF_COSTS)])
                question = f"SELECT {sums} FROM {source.table} WHERE {which.text}{mine.grouped}"
                for row in asking.ask(question, *which.values):
                    counts, name = (True, row[0]) if mine.column else mine.name(row[:width], piece[0])
                    if counts:
                        receipts, unpriced, dollars, picodollars = map(int, row[width:])  # Postgres: decimals
                        more = (receipts, unpriced, dollars * PICODOLLARS_PER_DOLLAR + picodollars)
                        known = found.get(name)
                        found[name] = more if known is None else _together([known, more])
        return found


_Spent = tuple[int, int, int]
"""Receipts, those without a known cost, and picodollars."""


def _together(parts: Sequence[_Spent]) -> _Spent:
    receipts, unpriced, picodollars = map(sum, zip(*parts, strict=True))
    return receipts, unpriced, picodollars


def _all_spent(parts: Sequence[_Spent]) -> Spent | None:
    """All of these, None of nothing."""
    return _spent(_together(parts)) if parts else None


def _spent(part: _Spent) -> Spent:
    receipts, unpriced, picodollars = part
    return Spent(receipts=receipts, unpriced=unpriced, cost=dollars_of(0, picodollars))


def _none_of(column: str, values: Sequence[object]) -> Condition:
    """That the column has none of these values, or none at all."""
    other = one_of(column, values)
    return Condition(f"({column} IS NULL OR NOT {other.text})", other.values)


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
