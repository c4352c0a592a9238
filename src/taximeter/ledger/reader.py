"""Questions to the ledger. Each is one snapshot on a connection of its own, and never waits for the writer.

Owns: every SELECT that people ask for. Refuses to know: how anything came to be written.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import islice, pairwise
from typing import Any

from taximeter.errors import LedgerError
from taximeter.ledger import hours, of_tasks, rows, task_words
from taximeter.ledger.columns import GROUP_COUNTS, MONEY_COLUMNS, RECEIPT_COLUMNS
from taximeter.ledger.database import Asking, Database, batches
from taximeter.ledger.documents import record_from
from taximeter.ledger.firsts import first_of, firsts_beginning
from taximeter.ledger.forms import derive
from taximeter.ledger.hours import Span
from taximeter.ledger.names import Groups
from taximeter.ledger.rollups import ALL
from taximeter.ledger.slices import Slices, hours_of_tasks
from taximeter.ledger.sql import Condition, all_of, instant, one_of
from taximeter.ledger.totals import CostTotals, Dearest, GroupTotals, Slice, UsageTotals
from taximeter.ledger.transactions import FIRST_CORRECTION
from taximeter.records import PICODOLLARS_PER_DOLLAR, Receipt, Task, TaskWords, exact_sum

# ruff: noqa: S608 - all words of these questions are our own

_LONGEST_LIST = 100_000
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)
_NAMED_WHEN_AMBIGUOUS = 5
_MOST_IDLE = 5  # connections that are kept for the next questions

_NEWEST_FIRST = "ORDER BY closed_at DESC, id DESC"
_ALL_OF_THEM = Condition("1 = 1")
_GROUPS = f"SELECT kind, name, {', '.join((*GROUP_COUNTS, *MONEY_COLUMNS))}, first_at, last_at FROM group_totals"


class Reader:
    """Safe to use from many threads. What goes wrong is a LedgerError."""

    def __init__(self, database: Database, *, patience_s: float) -> None:
        self._database = database
        self._patience_s = patience_s
        self._idle: list[Asking] = []  # the last one first: who asks again finds what the database remembers of it
        self._using = threading.Lock()
        self._closed = False

    def newest(
        self, limit: int, before: str | None, *, since: datetime | None, until: datetime | None
    ) -> list[Receipt]:
        """See `Ledger.receipts`."""
        conditions: list[Condition] = []
        if since is not None:  # what is closed was received before
            then = rows.stored_instant(since)
            conditions.append(Condition("closed_at >= ? AND received_at >= ?", (then, then)))
        if until is not None:
            conditions.append(Condition("received_at < ?", (rows.stored_instant(until),)))
        with self._snapshot() as asking:
            if before is not None:
                conditions.append(_behind(_place_of(asking, before)))
            elif until is not None:
                newest = hours.newest_hour_of(asking, until)
                if newest is None:
                    return []
                conditions.append(Condition("closed_at < ?", (rows.stored_instant(newest + hours.HOUR),)))
            which = all_of(conditions or [_ALL_OF_THEM])
            question = f"SELECT number FROM current_receipts WHERE {which.text} {_NEWEST_FIRST} LIMIT {_bounded(limit)}"
            return _whole(asking, [number for (number,) in asking.ask(question, *which.values)])

    def find(self, name: str) -> Receipt | None:
        """The receipt with this id, or the newest of the request with this id, or the only one whose id or request's
        id begins so. Raises LedgerError when several do."""
        with self._snapshot() as asking:
            receipt_id = _resolve(asking, name)
            if receipt_id is None:
                return None
            numbers = asking.ask("SELECT number FROM receipts WHERE id = ?", receipt_id)
            return _whole(asking, numbers[0])[0]

    def total_cost(self) -> Decimal:
        """The exact sum of all costs that are known, in dollars, over the receipts that nothing corrects."""
        with self._snapshot() as asking:
            return _total_cost(asking)

    def usage_by_hour(self, start: datetime, until: datetime) -> list[UsageTotals]:
        """See `Ledger.usage_by_hour`."""
        with self._snapshot() as asking:
            return hours.usage_in(asking, start, until)

    def group(self, kind: str, name: str, words: TaskWords) -> GroupTotals | None:
        """See `Ledger.group`."""
        if _is_said(kind, words):
            with self._snapshot() as asking:
                names = [rows.stored_name(name)]
                return next(iter(of_tasks.totals_of(asking, names, words, _span(asking)[1])), None)
        question = f"{_GROUPS} WHERE kind = ? AND name = ?"
        with self._snapshot() as asking:
            found = asking.ask(question, rows.stored_kind(kind), rows.stored_name(name))
        return _group_totals(found[0]) if found else None

    def usage_of(self, kind: str, name: str, words: TaskWords) -> list[UsageTotals]:
        """See `Ledger.usage_of`."""
        with self._snapshot() as asking:
            if _is_said(kind, words):
                return of_tasks.usage_of(asking, rows.stored_name(name), words, _span(asking)[1])
            return hours.usage_of(asking, kind, name)

    def slices(
        self, by: str | None, edges: Sequence[datetime], *, only: Groups, percentiles: bool, words: TaskWords
    ) -> list[Slice]:
        """See `Ledger.slices`."""
        with self._snapshot() as asking:
            return Slices(by, only, words).answer(asking, [*enumerate(pairwise(edges))], percentiles=percentiles)

    def with_whole(
        self, by: str | None, edges: Sequence[datetime], *, only: Groups, percentiles: bool, words: TaskWords
    ) -> tuple[list[Slice], Slice | None]:
        """See `Ledger.slices_and_whole`."""
        with self._snapshot() as asking:
            spans = [*enumerate(pairwise(edges))]
            return Slices(by, only, words).with_whole(asking, spans, percentiles=percentiles)

    def dearest(
        self, by: str, edges: tuple[datetime, datetime, datetime], *, only: Groups, most: int, words: TaskWords
    ) -> Dearest:
        """See `Ledger.dearest`."""
        with self._snapshot() as asking:
            return Slices(by, only, words).dearest(asking, edges[:2], edges[1:], most)

    def costs(self, by: str | None, edges: Sequence[datetime], *, only: Groups, words: TaskWords) -> list[CostTotals]:
        """See `Ledger.costs`."""
        with self._snapshot() as asking:
            return Slices(by, only, words).costs(asking, [*enumerate(pairwise(edges))])

    def task_costs(
        self, names: Collection[str], until: datetime, *, only: Groups, words: TaskWords
    ) -> list[CostTotals]:
        """See `Ledger.task_costs`."""
        with self._snapshot() as asking:
            known = _kept_costs(asking, names, until) if words.is_empty and not only else {}
            others = set(names) - known.keys()
            if others:
                spans = [(0, span) for span in hours_of_tasks(asking, others, words, until)]
                known |= {part.name: part for part in Slices("task", only, words).costs(asking, spans, others)}
            return [*known.values()]

    def active_hours(self, since: datetime, until: datetime) -> list[datetime]:
        """See `Ledger.active_hours`."""
        with self._snapshot() as asking:
            return hours.active_hours(asking, since, until)

    def groups(self, kind: str, since: datetime | None, limit: int, words: TaskWords) -> list[GroupTotals]:
        """See `Ledger.groups`."""
        if _is_said(kind, words):
            with self._snapshot() as asking:
                first, until = _span(asking)
                span = (first if since is None else max(first, since), until)
                return of_tasks.newest(asking, words, span, _bounded(limit)) if span[0] < until else []
        which = Condition("kind = ?", (rows.stored_kind(kind),))
        if since is not None:
            which = all_of([which, Condition("last_at >= ?", (rows.stored_instant(since),))])
        question = f"{_GROUPS} WHERE {which.text} ORDER BY last_at DESC, name DESC LIMIT {_bounded(limit)}"
        with self._snapshot() as asking:
            return [*map(_group_totals, asking.ask(question, *which.values))]

    def members(self, kind: str, name: str, limit: int, before: str | None, words: TaskWords) -> list[Receipt]:
        """See `Ledger.receipts_of`."""
        with self._snapshot() as asking:
            place = None if before is None else _place_of(asking, before)
            if _is_said(kind, words):
                behind = None if place is None else _behind(place)
                until = _span(asking)[1]
                numbers = of_tasks.members(asking, rows.stored_name(name), words, until, behind)
                return _whole(asking, islice(numbers, _bounded(limit)))
            return _whole(asking, _members(asking, kind, name, _bounded(limit), place))

    def task_words(self, name: str) -> list[Task]:
        """See `Ledger.task_words`."""
        question = "SELECT document FROM task_ends WHERE name = ? ORDER BY number"
        with self._snapshot() as asking:
            return [record_from(document, Task) for (document,) in asking.ask(question, rows.stored_name(name))]

    def task_rules(self) -> TaskWords:
        """See `Ledger.task_rules`."""
        with self._snapshot() as asking:
            return task_words.rules(asking)

    def finished_tasks(self, since: datetime, until: datetime) -> list[Task]:
        """See `Ledger.finished_tasks`."""
        with self._snapshot() as asking:
            return task_words.finished(asking, since, until)

    def tasks_named(self, names: Collection[str]) -> dict[str, Task]:
        """See `Ledger.tasks_named`."""
        with self._snapshot() as asking:
            return task_words.standing(asking, names)

    def close(self) -> None:
        """Let go of the database, when the last question is answered."""
        with self._using:
            self._closed = True
            idle, self._idle = self._idle, []
        for asking in idle:
            asking.close()

    @contextmanager
    def _snapshot(self) -> Generator[Asking]:
        asking = self._one()
        try:
            with asking.snapshot():
                yield asking
        except BaseException:
            asking.close()  # whatever state it is in
            raise
        with self._using:
            is_kept = not self._closed and len(self._idle) < _MOST_IDLE
            if is_kept:
                self._idle.append(asking)
        if not is_kept:
            asking.close()

    def _one(self) -> Asking:
        """A connection for this thread."""
        while True:
            with self._using:
                asking = self._idle.pop() if self._idle else None
            if asking is None:
                return self._database.asking(patience_s=self._patience_s)
            if asking.usable:
                return asking
            asking.close()


def _is_said(kind: str, words: TaskWords) -> bool:
    """Whether people's words say what belongs to groups of this kind."""
    return kind == "task" and not words.is_empty


def _span(asking: Asking) -> Span:
    """From the first receipt on, and before all that come after the last one; empty in an empty ledger."""
    found = asking.ask("SELECT first_at, last_at FROM group_totals WHERE kind = ? AND name = ?", *ALL)
    if not found or found[0][1] is None:
        return _NEVER, _NEVER
    first, last = map(instant, found[0])
    return first, last + timedelta(microseconds=1)


def _whole(asking: Asking, of: Iterable[int]) -> list[Receipt]:
    """The receipts with these numbers, in their order."""
    numbers = list(of)
    found: dict[int, Receipt] = {}
    for some in batches(numbers):
        which = one_of("number", some)
        documented = asking.ask(f"SELECT number, document FROM documents WHERE {which.text}", *which.values)
        found |= {number: record_from(text, Receipt) for number, text in documented}
        derived = [number for number in some if number not in found]
        if derived:
            found |= _derived(asking, derived)
    return [found[number] for number in numbers]


_NUMBERED = ("number", *RECEIPT_COLUMNS)


def _derived(asking: Asking, numbers: Sequence[int]) -> dict[int, Receipt]:
    """Those that have no document of their own."""
    which = one_of("number", numbers)
    question = f"SELECT {', '.join(_NUMBERED)} FROM receipts WHERE {which.text}"
    found = [dict(zip(_NUMBERED, row, strict=True)) for row in asking.ask(question, *which.values)]
    forms = one_of("number", sorted({row["form"] for row in found}))
    documented = asking.ask(f"SELECT number, document FROM forms WHERE {forms.text}", *forms.values)
    prototypes = {number: record_from(text, Receipt) for number, text in documented}
    return {row["number"]: derive(prototypes[row["form"]], row) for row in found}


def _members(asking: Asking, kind: str, name: str, limit: int, before: tuple[datetime, str] | None) -> list[int]:
    """The numbers of a group's receipts, newest first. They are looked for in the hours in which there are some."""
    found: list[int] = []
    belongs = hours.Belongs([(kind, name)])
    asked = f"SELECT {', '.join(['number', *belongs.columns])} FROM current_receipts"
    for hour in reversed(hours.hours_of(asking, kind, [name])):
        if before is not None and hour > before[0]:
            continue
        conditions = [hours.OF_RECEIPTS.within((hour, hour + hours.HOUR)), *belongs.conditions]
        if before is not None:
            conditions.append(_behind(before))
        which = all_of(conditions)
        at_most = "" if belongs.columns else f" LIMIT {limit - len(found)}"
        answer = asking.ask(f"{asked} WHERE {which.text} {_NEWEST_FIRST}{at_most}", *which.values)
        found += [number for number, *rest in answer if belongs.accepts(rest)]
        if len(found) >= limit:
            break
    return found[:limit]


def _kept_costs(asking: Asking, names: Collection[str], until: datetime) -> dict[str | None, CostTotals]:
    """What tasks cost by the sums that are kept of groups, of those whose last receipt was closed before `until`."""
    found: dict[str | None, CostTotals] = {}
    stored = {rows.stored_name(name): name for name in names}
    of_tasks_until = Condition("kind = 'task' AND last_at < ?", (rows.stored_instant(until),))
    for some in batches([*stored]):
        which = all_of([of_tasks_until, one_of("name", some)])
        for each in map(_group_totals, asking.ask(f"{_GROUPS} WHERE {which.text}", *which.values)):
            name = stored[each.name]
            found[name] = CostTotals(
                interval=0,
                name=name,
                receipts=each.receipts,
                unpriced=each.unpriced,
                cost=each.cost,
                last_at=each.last_at,
            )
    return found


def _bounded(limit: int) -> int:
    return max(0, min(limit, _LONGEST_LIST))


def _place_of(asking: Asking, name: str) -> tuple[datetime, str]:
    """Where in a list the receipt called `name` stands. Raises LedgerError when there is none."""
    receipt_id = _resolve(asking, name)
    if receipt_id is None:
        raise LedgerError(f"no receipt {name}", hint="`before` is the last receipt of the page before")
    closed_at, id_ = asking.ask("SELECT closed_at, id FROM receipts WHERE id = ?", receipt_id)[0]
    return instant(closed_at), id_


def _behind(place: tuple[datetime, str]) -> Condition:
    """That a receipt comes after this place in a list of the newest."""
    return Condition("(closed_at, id) < (?, ?)", (rows.stored_instant(place[0]), place[1]))


def _resolve(asking: Asking, name: str) -> str | None:
    """The id of the receipt that people mean by `name`."""
    name = rows.stored_text(name)
    exact = _id_of(asking, "SELECT id FROM receipts WHERE id = ?", name) or _newest_of(asking, name)
    if exact is not None or not name:
        return exact
    candidates = _beginning(asking, name)
    if len(candidates) > 1:
        named = ", ".join(candidates[:_NAMED_WHEN_AMBIGUOUS])
        more = ", ..." if len(candidates) > _NAMED_WHEN_AMBIGUOUS else ""
        raise LedgerError(f"several receipts begin with {name}: {named}{more}", hint="give more of the id")
    return candidates[0] if candidates else None


def _id_of(asking: Asking, question: str, *values: str) -> str | None:
    """The id that a question finds."""
    return next((id_ for (id_,) in asking.ask(question, *values)), None)


def _newest_of(asking: Asking, request_id: str) -> str | None:
    """The id of the request's receipt that nothing corrects."""
    question, values = first_of(request_id)
    first = _id_of(asking, question, *values)
    if first is None:  # its first may correct what a log has: see `same_calls`
        first = _id_of(asking, FIRST_CORRECTION, request_id)
    return _newest_after(asking, first)


def _newest_after(asking: Asking, receipt_id: str | None) -> str | None:
    """The end of the receipt's chain of corrections. They are few; an index of receipts by request would be read for
    nobody else."""
    newest = receipt_id
    while receipt_id is not None:
        newest = receipt_id
        receipt_id = _id_of(asking, "SELECT id FROM receipts WHERE supersedes = ?", receipt_id)
    return newest


def _beginning(asking: Asking, prefix: str) -> list[str]:
    """Ids of receipts whose own id or whose request's id begins with `prefix`; enough of them to see that it is not
    one."""
    past = prefix + "\U0010ffff"  # a range, so that an index serves
    at_most = f"LIMIT {_NAMED_WHEN_AMBIGUOUS + 1}"
    found = asking.ask(f"SELECT id FROM receipts WHERE id >= ? AND id < ? ORDER BY id {at_most}", prefix, past)
    of_requests = "SELECT id FROM receipts WHERE request_id >= ? AND request_id < ? AND supersedes IS NOT NULL"
    questions = [
        *firsts_beginning(prefix, _NAMED_WHEN_AMBIGUOUS + 1),
        (f"{of_requests} ORDER BY request_id {at_most}", (prefix, past)),
    ]
    firsts = [first for question, values in questions for first in asking.ask(question, *values)]
    newest = (_newest_after(asking, first) for (first,) in firsts)
    return list(dict.fromkeys(id_ for id_ in (*(id_ for (id_,) in found), *newest) if id_ is not None))


def _total_cost(asking: Asking) -> Decimal:
    """See `Reader.total_cost`. What is too large for a sum is added from its document."""
    everything = asking.ask(f"{_GROUPS} WHERE kind = ? AND name = ?", *ALL)
    off_scale = asking.ask(
        "SELECT document FROM documents JOIN current_receipts AS this ON this.number = documents.number"
        " WHERE this.off_scale > 0 AND this.cost_dollars IS NULL"
    )
    known = _group_totals(everything[0]).cost if everything else Decimal(0)
    return exact_sum([known, *(rows.cost_from(document) for (document,) in off_scale)])


def _group_totals(found: Sequence[Any]) -> GroupTotals:
    """From a row of `_GROUPS`. Postgres has decimals here."""
    kind, name, *numbers, first_at, last_at = found
    receipts, failures, unpriced, off_scale, inputs, outputs, uncounted, dollars, picodollars = map(int, numbers)
    return GroupTotals(
        kind=kind,
        name=name,
        receipts=receipts,
        failures=failures,
        input_tokens=inputs,
        output_tokens=outputs,
        uncounted=uncounted,
        cost=rows.join_money(dollars * PICODOLLARS_PER_DOLLAR + picodollars),
        unpriced=unpriced,
        off_scale=off_scale,
        first_at=instant(first_at),
        last_at=instant(last_at),
    )
