"""Tasks where people said whose requests are theirs: their sums, the parts of these, and their receipts.

The sums that are kept of groups have what receipts name themselves, so these are added up from hours, and listed from
receipts, as reports do. Owns: which hours are looked at. Refuses to know: what the words come to (`names`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from typing import Any

from taximeter.ledger.database import Asking
from taximeter.ledger.hours import OF_RECEIPTS, Source, Span, parts_of, sums_by_usage, usage_totals
from taximeter.ledger.names import Names, cut
from taximeter.ledger.slices import Slices, hours_of_tasks
from taximeter.ledger.sql import Condition, all_of
from taximeter.ledger.totals import GroupTotals, Slice, UsageTotals
from taximeter.records import TaskWords, Usage

_FIRST_LOOK = timedelta(days=1)
_LATER_LOOKS = 4  # times as far back as the look before


def totals_of(asking: Asking, names: Collection[str], words: TaskWords, until: datetime) -> list[GroupTotals]:
    """The sums of these tasks' receipts that were closed before `until`."""
    spans = [(0, span) for span in hours_of_tasks(asking, names, words, until)]
    slices = Slices("task", (), words).answer(asking, spans, percentiles=False, names=names)
    return [_totals(part.name, part) for part in slices if part.name is not None]


def newest(asking: Asking, words: TaskWords, span: Span, limit: int) -> list[GroupTotals]:
    """Those of the tasks that had a receipt in the span, those with the newest first. Goes back no further than
    it takes to find so many."""
    back = _FIRST_LOOK
    while True:
        start = max(span[0], span[1] - back)
        costs = Slices("task", (), words).costs(asking, [(0, (start, span[1]))])
        found = {part.name: part.last_at for part in costs if part.name is not None}
        if len(found) >= limit or start == span[0]:
            break
        back *= _LATER_LOOKS
    names = sorted(found, key=lambda name: (found[name], name), reverse=True)[:limit]
    totals = {each.name: each for each in totals_of(asking, names, words, span[1])}
    return [totals[name] for name in names]


def usage_of(asking: Asking, name: str, words: TaskWords, until: datetime) -> list[UsageTotals]:
    """One task's sums by model, backend and outcome."""

    def parts() -> Iterator[tuple[tuple[Any, ...], list[int]]]:
        mine = Names("task", (), words)
        for source, part in _parts(asking, name, words, until):
            which = all_of([source.within(part), *mine.conditions])
            for *key, sums in sums_by_usage(asking, source, which, mine.columns):
                if mine.name(key[: len(mine.columns)], part[0]) == (True, name):
                    yield tuple(key[len(mine.columns) :]), sums

    return usage_totals(parts())


def members(asking: Asking, name: str, words: TaskWords, until: datetime, before: Condition | None) -> Iterator[int]:
    """The numbers of one task's receipts, newest first; of those for which `before` holds."""
    spans = [part for span in hours_of_tasks(asking, [name], words, until) for part in cut(span, words.instants)]
    mine = Names("task", (), words)
    asked = f"SELECT {', '.join(['number', *mine.columns])} FROM {OF_RECEIPTS.table}"  # noqa: S608 - our own words
    for since, end in reversed(spans):
        which = all_of([OF_RECEIPTS.within((since, end)), *mine.conditions, *([] if before is None else [before])])
        question = f"{asked} WHERE {which.text} ORDER BY closed_at DESC, id DESC"
        for number, *values in asking.each(question, *which.values):
            if mine.name(values, since) == (True, name):
                yield number


def _parts(asking: Asking, name: str, words: TaskWords, until: datetime) -> Iterator[tuple[Source, Span]]:
    for span in hours_of_tasks(asking, [name], words, until):
        for piece in cut(span, words.instants):
            yield from parts_of(piece)


def _totals(name: str, part: Slice) -> GroupTotals:
    return GroupTotals(
        kind="task",
        name=name,
        receipts=part.receipts,
        failures=sum(count for outcome, count in part.outcomes.items() if outcome.value != "completed"),
        input_tokens=sum(part.tokens.get(leaf, 0) for leaf in Usage.INPUT_LEAVES),
        output_tokens=sum(part.tokens.get(leaf, 0) for leaf in Usage.OUTPUT_LEAVES),
        uncounted=max(part.unknown.values(), default=0),
        cost=part.cost,
        unpriced=part.unpriced,
        off_scale=part.off_scale,
        first_at=part.first_at,
        last_at=part.last_at,
    )
