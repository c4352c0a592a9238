"""Tasks where people said whose requests are theirs: their sums, the parts of these, and their receipts.

The sums that are kept of groups have what receipts name themselves, so these are added up from hours, and listed from
receipts, as reports do. Owns: which hours are looked at. Refuses to know: what the words come to (`slices.Names`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from taximeter.ledger.hours import OF_RECEIPTS, Column, Source, Span, parts_of, sums_by_usage, usage_totals, within
from taximeter.ledger.slices import Names, Slices, cut, hours_of_tasks
from taximeter.ledger.totals import GroupTotals, Slice, UsageTotals
from taximeter.records import TaskWords, Usage

_FIRST_LOOK = timedelta(days=1)
_LATER_LOOKS = 4  # times as far back as the look before


def totals_of(
    connection: sa.Connection, names: Collection[str], words: TaskWords, until: datetime
) -> list[GroupTotals]:
    """The sums of these tasks' receipts that were closed before `until`."""
    spans = [(0, span) for span in hours_of_tasks(connection, names, words, until)]
    slices = Slices("task", (), words).answer(connection, spans, percentiles=False, names=names)
    return [_totals(part.name, part) for part in slices if part.name is not None]


def newest(connection: sa.Connection, words: TaskWords, span: Span, limit: int) -> list[GroupTotals]:
    """Those of the tasks that had a receipt in the span, those with the newest first. Goes back no further than
    it takes to find so many."""
    back = _FIRST_LOOK
    while True:
        start = max(span[0], span[1] - back)
        costs = Slices("task", (), words).costs(connection, [(0, (start, span[1]))])
        found = {part.name: part.last_at for part in costs if part.name is not None}
        if len(found) >= limit or start == span[0]:
            break
        back *= _LATER_LOOKS
    names = sorted(found, key=lambda name: (found[name], name), reverse=True)[:limit]
    totals = {each.name: each for each in totals_of(connection, names, words, span[1])}
    return [totals[name] for name in names]


def usage_of(connection: sa.Connection, name: str, words: TaskWords, until: datetime) -> list[UsageTotals]:
    """One task's sums by model, backend and outcome."""

    def parts() -> Iterator[tuple[tuple[Any, ...], list[int]]]:
        for source, part, mine in _parts(connection, name, words, until):
            which, bounds = sa.and_(within(source), *mine.conditions), {"since": part[0], "until": part[1]}
            for *key, sums in sums_by_usage(connection, source, which, mine.columns, bounds):
                if mine.name(key[: len(mine.columns)], part[0]) == (True, name):
                    yield tuple(key[len(mine.columns) :]), sums

    return usage_totals(parts())


def members(
    connection: sa.Connection, name: str, words: TaskWords, until: datetime, before: sa.ColumnElement[bool] | None
) -> Iterator[int]:
    """The numbers of one task's receipts, newest first; of those for which `before` holds."""
    this = OF_RECEIPTS.keys
    order: list[Column] = [this["closed_at"].desc(), this["id"].desc()]
    spans = [part for span in hours_of_tasks(connection, [name], words, until) for part in cut(span, words.instants)]
    mine = Names(OF_RECEIPTS, "task", (), words)
    question = sa.select(this["number"], *mine.columns).where(within(OF_RECEIPTS), *mine.conditions).order_by(*order)
    if before is not None:
        question = question.where(before)
    for since, end in reversed(spans):
        for number, *values in connection.execute(question, {"since": since, "until": end}):
            if mine.name(values, since) == (True, name):
                yield number


def _parts(
    connection: sa.Connection, name: str, words: TaskWords, until: datetime
) -> Iterator[tuple[Source, Span, Names]]:
    for span in hours_of_tasks(connection, [name], words, until):
        for piece in cut(span, words.instants):
            for source, part in parts_of(piece):
                yield source, part, Names(source, "task", (), words)


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
