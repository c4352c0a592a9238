"""The report: rows of exact sums, their total, the period before, and what tasks cost.

Owns: what is asked of the ledger for a question, and how its slices become rows. Refuses to know: SQL, and how a report
looks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final, Protocol

from taximeter.ledger import CostTotals, Dearest, Slice, Spent
from taximeter.records import Task, TaskWords
from taximeter.reports import periods
from taximeter.reports.question import Question
from taximeter.reports.sums import Cost, Sums, added
from taximeter.reports.tasks import TaskFigures, TaskLife, figures_of, lives_of

_BEGINNING: Final = datetime(1970, 1, 2, tzinfo=UTC)
_BACK: Final = (timedelta(days=2), timedelta(days=14), timedelta(days=90))
_HOURS_UP_TO: Final = timedelta(days=3)  # a timeline has points to be seen, and not more than fit
_DAYS_UP_TO: Final = timedelta(days=120)


class Receipts(Protocol):
    """What a report asks of a ledger. Receipts that another one corrects are in no answer."""

    def slices(
        self,
        by: str | None,
        edges: Sequence[datetime],
        *,
        only: Sequence[tuple[str, str]] = (),
        percentiles: bool = True,
    ) -> list[Slice]:
        """What was closed from `edges[i]` and before `edges[i + 1]`, by i and by the name of kind `by`; with None by i
        alone. Everything belongs to all of `only`. Tasks are those of `task_rules`."""
        ...

    def slices_and_whole(
        self,
        by: str | None,
        edges: Sequence[datetime],
        *,
        only: Sequence[tuple[str, str]] = (),
        percentiles: bool = True,
    ) -> tuple[list[Slice], Slice | None]:
        """The same, and all of it together; without `percentiles` only that one has them."""
        ...

    def dearest(
        self,
        by: str,
        edges: tuple[datetime, datetime, datetime],
        *,
        only: Sequence[tuple[str, str]] = (),
        most: int,
    ) -> Dearest:
        """What costs most from the second of `edges` on and before the third, in at most so many slices, the last of
        them of all other names; and what those cost from the first edge on and before the second."""
        ...

    def costs(
        self, by: str | None, edges: Sequence[datetime], *, only: Sequence[tuple[str, str]] = ()
    ) -> list[CostTotals]:
        """What each of the slices cost."""
        ...

    def task_costs(
        self, names: Collection[str], until: datetime, *, only: Sequence[tuple[str, str]] = ()
    ) -> list[CostTotals]:
        """What all of these tasks' receipts cost that were closed before `until`."""
        ...

    def active_hours(self, since: datetime, until: datetime) -> list[datetime]:
        """The hours of UTC in which a receipt was closed, ascending."""
        ...

    def task_rules(self) -> TaskWords:
        """Whose receipts are a task's by somebody's word."""
        ...

    def finished_tasks(self, since: datetime, until: datetime) -> list[Task]:
        """Those whose end, by the last word on it, was from `since` and before `until`."""
        ...

    def tasks_named(self, names: Collection[str]) -> dict[str, Task]:
        """How these tasks stand by the last word on each; those nobody said anything of are not in it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a report. `name` is None for receipts without one, and in a report by time, where `since` and `until`
    are the period's. `before` is what the same name cost in the period before, None where it had nothing. `task` is how
    a task stands, and what it cost in all. `others` counts the rows that are in this one together, 0 where it is one by
    itself."""

    name: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    sums: Sums
    before: Cost | None = None
    task: TaskLife | None = None
    others: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """An answered question. `total` is the exact sum of `rows`, `before` of the period before (as long, half-open), and
    `tasks` are what tasks cost that finished in each. `timeline` has the same receipts by hour, day or week, to be
    drawn; empty where nobody asked for it."""

    question: Question
    made_at: datetime
    rows: tuple[Row, ...]
    total: Sums
    before: Sums
    tasks: TaskFigures
    tasks_before: TaskFigures
    timeline: tuple[Row, ...] = ()


def answer(
    receipts: Receipts, question: Question, now: datetime, *, timeline: bool = False, most_rows: int | None = None
) -> Report:
    """The report on `question`, as the ledger stands. A table of costs does not show everything: with `most_rows`
    it is there sooner, and has no more rows than that (see `folded`); percentiles are of the total alone then, and of
    the period before there is the cost."""
    if most_rows is None:
        rows, total, before = _in_full(receipts, question)
    elif question.is_by_time:
        rows, total, before = _of_times(receipts, question, most_rows)
    else:
        rows, total, before = _of_the_dearest(receipts, question, most_rows)
    lives, lives_before = _lives(receipts, question, now)
    if question.by == "task":
        rows = _with_lives(receipts, question, rows, now)
    return Report(
        question=question,
        made_at=now,
        rows=tuple(rows),
        total=total,
        before=before,
        tasks=figures_of(lives),
        tasks_before=figures_of(lives_before),
        timeline=tuple(_timeline(receipts, question)) if timeline else (),
    )


_Answer = tuple[list[Row], Sums, Sums]
"""The rows, their total, and the total of the period before."""


def _in_full(receipts: Receipts, question: Question) -> _Answer:
    past_span = question.before, question.since
    by = None if question.is_by_time else question.by
    edges = _edges(receipts, question) if by is None else [question.since, question.until]
    slices, whole = receipts.slices_and_whole(by, edges, only=question.only)
    if by is None:
        rows = _by_time(slices, edges)
    else:
        past = {part.name: Cost.of(part) for part in receipts.costs(by, past_span, only=question.only)}
        rows = _by_name(slices, past)
    before = next((Sums.of(part) for part in receipts.slices(None, past_span, only=question.only)), Sums())
    return rows, Sums() if whole is None else Sums.of(whole), before


def _of_times(receipts: Receipts, question: Question, most_rows: int) -> _Answer:
    edges = _edges(receipts, question)
    slices, whole = receipts.slices_and_whole(None, edges, only=question.only, percentiles=False)
    costs = receipts.costs(None, [question.before, question.since], only=question.only)
    rows = _fold(_by_time(slices, edges), most_rows, is_by_time=True)
    return rows, Sums() if whole is None else Sums.of(whole), _cost_alone(next(iter(costs), None))


def _of_the_dearest(receipts: Receipts, question: Question, most_rows: int) -> _Answer:
    edges = question.before, question.since, question.until
    found = receipts.dearest(question.by, edges, only=question.only, most=most_rows)
    rows = _by_name(found.slices, {name: Cost.of(spent) for name, spent in found.before.items()})
    if found.others is not None:
        past = None if found.others_before is None else Cost.of(found.others_before)
        rows.append(Row(sums=Sums.of(found.others), before=past, others=found.names))
    return rows, Sums() if found.whole is None else Sums.of(found.whole), _cost_alone(found.whole_before)


def _cost_alone(spent: Spent | CostTotals | None) -> Sums:
    return Sums() if spent is None else Sums(receipts=spent.receipts, unpriced=spent.unpriced, cost=spent.cost)


def folded(report: Report, most_rows: int) -> Report:
    """The same with no more rows than that: the first ones, or the last ones of a report by time, and one for all
    others. Percentiles of that one are unknown."""
    return replace(report, rows=tuple(_fold(report.rows, most_rows, is_by_time=report.question.is_by_time)))


def _fold(rows: Sequence[Row], most_rows: int, *, is_by_time: bool) -> list[Row]:
    if len(rows) <= most_rows:
        return [*rows]
    kept = most_rows - 1
    if is_by_time:
        return [_together(rows[: len(rows) - kept]), *rows[len(rows) - kept :]]
    return [*rows[:kept], _together(rows[kept:])]


def _together(rows: Sequence[Row]) -> Row:
    past = [row.before for row in rows if row.before is not None]
    return Row(sums=added([row.sums for row in rows]), before=Cost.added(past) if past else None, others=len(rows))


def telling_kind(receipts: Receipts, since: datetime, until: datetime) -> str:
    """What a report of that span is by where nobody says: by task, by session where nothing belongs to a task, and by
    model where nothing belongs to a session either."""
    for kind in ("task", "session"):
        if any(part.name is not None for part in receipts.costs(kind, [since, until])):
            return kind
    return "model"


def _edges(receipts: Receipts, question: Question) -> list[datetime]:
    """Where the periods of a report by time meet."""
    since, until, zone = question.since, question.until, question.zone
    match question.by:
        case "day":
            return periods.day_edges(since, until, zone, lambda day: day, periods.next_day)
        case "week":
            return periods.day_edges(since, until, zone, periods.week_of, periods.next_week)
        case "month":
            return periods.day_edges(since, until, zone, periods.month_of, periods.next_month)
        case _:
            return periods.block_edges(since, until, blocks_within(receipts, since, until))


def blocks_within(receipts: Receipts, since: datetime, until: datetime) -> list[datetime]:
    """When those blocks began that have anything in the span. A silence of five hours before it is enough to know, and
    is not far as a rule."""
    for back in _BACK:
        start = since - back
        hours = receipts.active_hours(start, until)
        for earlier, later in pairwise([start, *hours]):
            if later - earlier >= periods.BLOCK and earlier + periods.BLOCK <= since:
                return periods.blocks([hour for hour in hours if hour >= later])
        if not hours:
            return []
    return periods.blocks(receipts.active_hours(_BEGINNING, until))


def timeline_edges(question: Question) -> list[datetime]:
    """Hours of a few days, days of a few months, weeks of more."""
    since, until, zone = question.since, question.until, question.zone
    if until - since <= _HOURS_UP_TO:
        return periods.hour_edges(since, until)
    if until - since <= _DAYS_UP_TO:
        return periods.day_edges(since, until, zone, lambda day: day, periods.next_day)
    return periods.day_edges(since, until, zone, periods.week_of, periods.next_week)


def _timeline(receipts: Receipts, question: Question) -> list[Row]:
    edges = timeline_edges(question)
    return _by_time(receipts.slices(None, edges, only=question.only, percentiles=False), edges)


def _by_time(slices: Iterable[Slice], edges: Sequence[datetime]) -> list[Row]:
    """Periods in which something happened, oldest first."""
    return [
        Row(since=edges[part.interval], until=edges[part.interval + 1], sums=Sums.of(part))
        for part in sorted(slices, key=lambda part: part.interval)
    ]


def _by_name(slices: Iterable[Slice], past: Mapping[str | None, Cost]) -> list[Row]:
    """What costs most comes first, receipts without a name last."""
    ordered = sorted(slices, key=lambda part: (part.name is None, -part.cost, -part.receipts, part.name or ""))
    return [Row(name=part.name, sums=Sums.of(part), before=past.get(part.name)) for part in ordered]


def _lives(receipts: Receipts, question: Question, now: datetime) -> tuple[list[TaskLife], list[TaskLife]]:
    """The tasks that finished in the question's span, and those of the span before."""
    spans = (question.since, question.until), (question.before, question.since)
    ends = [{task.name: task for task in receipts.finished_tasks(*span)} for span in spans]
    idle_s = receipts.task_rules().idle_s
    found: list[list[TaskLife]] = []
    for (since, until), ended in zip(spans, ends, strict=True):
        names = set(ended)
        if idle_s is not None:
            active = receipts.costs("task", [since, until], only=question.only)
            silent = {part.name for part in active if part.name is not None}
            names |= silent - receipts.tasks_named(silent).keys()
        costs = receipts.task_costs(names, now, only=question.only) if names else []
        lives = lives_of(names, ended, costs, idle_s=idle_s, now=now).values()
        found.append(
            [
                life
                for life in lives
                if life.ended_at is not None and since <= life.ended_at < until and (life.receipts or not question.only)
            ]
        )
    return found[0], found[1]


def _with_lives(receipts: Receipts, question: Question, rows: Sequence[Row], now: datetime) -> list[Row]:
    """The same rows, each with how its task stands."""
    names = [row.name for row in rows if row.name is not None]  # which one of all others has not
    if not names:
        return list(rows)
    costs = receipts.task_costs(names, now, only=question.only)
    idle_s = receipts.task_rules().idle_s
    lives = lives_of(names, receipts.tasks_named(names), costs, idle_s=idle_s, now=now)
    return [row if row.name is None else replace(row, task=lives[row.name]) for row in rows]
