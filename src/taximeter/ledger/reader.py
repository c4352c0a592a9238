"""Questions to the ledger. Each is one snapshot on a connection of its own, and never waits for the writer.

Owns: every SELECT that people ask for. Refuses to know: how anything came to be written.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import islice, pairwise
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy import exc

from taximeter.errors import LedgerError
from taximeter.ledger import hours, of_tasks, rows, task_words
from taximeter.ledger.columns import MONEY_COLUMNS
from taximeter.ledger.database import Database, as_ledger_error, batches
from taximeter.ledger.documents import record_from
from taximeter.ledger.forms import derive
from taximeter.ledger.hours import Span
from taximeter.ledger.rollups import ALL
from taximeter.ledger.schema import current_receipts, documents, forms, group_totals, receipts, task_ends
from taximeter.ledger.slices import Groups, Slices, hours_of_tasks
from taximeter.ledger.totals import CostTotals, GroupTotals, Slice, UsageTotals
from taximeter.records import PICODOLLARS_PER_DOLLAR, Receipt, Task, TaskWords, exact_sum

_LONGEST_LIST = 100_000
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)
_NAMED_WHEN_AMBIGUOUS = 5


class Reader:
    """Safe to use from many threads. What goes wrong is a LedgerError."""

    def __init__(self, database: Database, *, patience_s: float) -> None:
        self._name = database.name
        self._engine = database.engine(patience_s=patience_s)

    def newest(
        self, limit: int, before: str | None, *, since: datetime | None, until: datetime | None
    ) -> list[Receipt]:
        """See `Ledger.receipts`."""
        this = current_receipts.c
        question = sa.select(this.number).order_by(this.closed_at.desc(), this.id.desc()).limit(_bounded(limit))
        if since is not None:  # what is closed was received before
            question = question.where(this.closed_at >= since, this.received_at >= since)
        if until is not None:
            question = question.where(this.received_at < until)
        with self._snapshot() as connection:
            if before is not None:
                question = question.where(sa.tuple_(this.closed_at, this.id) < _as_tuple(_place_of(connection, before)))
            elif until is not None:
                newest = hours.newest_hour_of(connection, until)
                if newest is None:
                    return []
                question = question.where(this.closed_at < newest + hours.HOUR)
            return _whole(connection, connection.scalars(question))

    def find(self, name: str) -> Receipt | None:
        """The receipt with this id, or the newest of the request with this id, or the only one whose id or request's
        id begins so. Raises LedgerError when several do."""
        with self._snapshot() as connection:
            receipt_id = _resolve(connection, name)
            if receipt_id is None:
                return None
            return _whole(
                connection, connection.scalars(sa.select(receipts.c.number).where(receipts.c.id == receipt_id))
            )[0]

    def total_cost(self) -> Decimal:
        """The exact sum of all costs that are known, in dollars, over the receipts that nothing corrects."""
        with self._snapshot() as connection:
            return _total_cost(connection)

    def usage_by_hour(self, start: datetime, until: datetime) -> list[UsageTotals]:
        """See `Ledger.usage_by_hour`."""
        with self._snapshot() as connection:
            return hours.usage_in(connection, start, until)

    def group(self, kind: str, name: str, words: TaskWords) -> GroupTotals | None:
        """See `Ledger.group`."""
        if _is_said(kind, words):
            with self._snapshot() as connection:
                names = [rows.stored_name(name)]
                return next(iter(of_tasks.totals_of(connection, names, words, _span(connection)[1])), None)
        this = group_totals.c
        question = sa.select(group_totals).where(
            this.kind == rows.stored_kind(kind), this.name == rows.stored_name(name)
        )
        with self._snapshot() as connection:
            found = connection.execute(question).mappings().one_or_none()
        return None if found is None else _group_totals(found)

    def usage_of(self, kind: str, name: str, words: TaskWords) -> list[UsageTotals]:
        """See `Ledger.usage_of`."""
        with self._snapshot() as connection:
            if _is_said(kind, words):
                return of_tasks.usage_of(connection, rows.stored_name(name), words, _span(connection)[1])
            return hours.usage_of(connection, kind, name)

    def slices(
        self, by: str | None, edges: Sequence[datetime], *, only: Groups, percentiles: bool, words: TaskWords
    ) -> list[Slice]:
        """See `Ledger.slices`."""
        with self._snapshot() as connection:
            return Slices(by, only, words).answer(connection, [*enumerate(pairwise(edges))], percentiles=percentiles)

    def with_whole(
        self, by: str | None, edges: Sequence[datetime], *, only: Groups, percentiles: bool, words: TaskWords
    ) -> tuple[list[Slice], Slice | None]:
        """See `Ledger.slices_and_whole`."""
        with self._snapshot() as connection:
            spans = [*enumerate(pairwise(edges))]
            return Slices(by, only, words).with_whole(connection, spans, percentiles=percentiles)

    def costs(self, by: str | None, edges: Sequence[datetime], *, only: Groups, words: TaskWords) -> list[CostTotals]:
        """See `Ledger.costs`."""
        with self._snapshot() as connection:
            return Slices(by, only, words).costs(connection, [*enumerate(pairwise(edges))])

    def task_costs(
        self, names: Collection[str], until: datetime, *, only: Groups, words: TaskWords
    ) -> list[CostTotals]:
        """See `Ledger.task_costs`."""
        with self._snapshot() as connection:
            known = _kept_costs(connection, names, until) if words.is_empty and not only else {}
            others = set(names) - known.keys()
            if others:
                spans = [(0, span) for span in hours_of_tasks(connection, others, words, until)]
                known |= {part.name: part for part in Slices("task", only, words).costs(connection, spans, others)}
            return [*known.values()]

    def active_hours(self, since: datetime, until: datetime) -> list[datetime]:
        """See `Ledger.active_hours`."""
        with self._snapshot() as connection:
            return hours.active_hours(connection, since, until)

    def groups(self, kind: str, since: datetime | None, limit: int, words: TaskWords) -> list[GroupTotals]:
        """See `Ledger.groups`."""
        if _is_said(kind, words):
            with self._snapshot() as connection:
                first, until = _span(connection)
                span = (first if since is None else max(first, since), until)
                return of_tasks.newest(connection, words, span, _bounded(limit)) if span[0] < until else []
        this = group_totals.c
        question = sa.select(group_totals).where(this.kind == rows.stored_kind(kind))
        if since is not None:
            question = question.where(this.last_at >= since)
        question = question.order_by(this.last_at.desc(), this.name.desc()).limit(_bounded(limit))
        with self._snapshot() as connection:
            return [_group_totals(found) for found in connection.execute(question).mappings()]

    def members(self, kind: str, name: str, limit: int, before: str | None, words: TaskWords) -> list[Receipt]:
        """See `Ledger.receipts_of`."""
        this = current_receipts.c
        with self._snapshot() as connection:
            place = None if before is None else _place_of(connection, before)
            if _is_said(kind, words):
                behind = None if place is None else sa.tuple_(this.closed_at, this.id) < _as_tuple(place)
                until = _span(connection)[1]
                numbers = of_tasks.members(connection, rows.stored_name(name), words, until, behind)
                return _whole(connection, islice(numbers, _bounded(limit)))
            return _whole(connection, _members(connection, kind, name, _bounded(limit), place))

    def task_words(self, name: str) -> list[Task]:
        """See `Ledger.task_words`."""
        this = task_ends.c
        question = sa.select(this.document).where(this.name == rows.stored_name(name)).order_by(this.number)
        with self._snapshot() as connection:
            return [record_from(document, Task) for document in connection.scalars(question)]

    def task_rules(self) -> TaskWords:
        """See `Ledger.task_rules`."""
        with self._snapshot() as connection:
            return task_words.rules(connection)

    def finished_tasks(self, since: datetime, until: datetime) -> list[Task]:
        """See `Ledger.finished_tasks`."""
        with self._snapshot() as connection:
            return task_words.finished(connection, since, until)

    def tasks_named(self, names: Collection[str]) -> dict[str, Task]:
        """See `Ledger.tasks_named`."""
        with self._snapshot() as connection:
            return task_words.standing(connection, names)

    def close(self) -> None:
        """Let go of the file."""
        self._engine.dispose()

    @contextmanager
    def _snapshot(self) -> Generator[sa.Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except exc.SQLAlchemyError as error:
            cause = error.orig if isinstance(error, exc.StatementError) else None
            raise as_ledger_error(cause if isinstance(cause, Exception) else error, self._name) from error


def _is_said(kind: str, words: TaskWords) -> bool:
    """Whether people's words say what belongs to groups of this kind."""
    return kind == "task" and not words.is_empty


def _span(connection: sa.Connection) -> Span:
    """From the first receipt on, and before all that come after the last one; empty in an empty ledger."""
    this = group_totals.c
    kind, name = ALL
    row = connection.execute(sa.select(this.first_at, this.last_at).where(this.kind == kind, this.name == name)).first()
    first, last = (_NEVER, None) if row is None else (row[0], row[1])
    return first, first if last is None else last + timedelta(microseconds=1)


def _whole(connection: sa.Connection, of: Iterable[int]) -> list[Receipt]:
    """The receipts with these numbers, in their order."""
    numbers = list(of)
    found: dict[int, Receipt] = {}
    for some in batches(numbers):
        documented = sa.select(documents.c.number, documents.c.document).where(documents.c.number.in_(some))
        found |= {number: record_from(text, Receipt) for number, text in connection.execute(documented)}
        derived = [number for number in some if number not in found]
        if derived:
            found |= _derived(connection, derived)
    return [found[number] for number in numbers]


def _derived(connection: sa.Connection, numbers: Sequence[int]) -> dict[int, Receipt]:
    """Those that have no document of their own."""
    prototypes: dict[int, Receipt] = {}
    question = sa.select(receipts).where(receipts.c.number.in_(numbers))
    receipt_rows = connection.execute(question).mappings().all()
    of_forms = sa.select(forms.c.number, forms.c.document).where(
        forms.c.number.in_({row["form"] for row in receipt_rows})
    )
    for number, text in connection.execute(of_forms):
        prototypes[number] = record_from(text, Receipt)
    return {row["number"]: derive(prototypes[row["form"]], cast("Mapping[str, Any]", row)) for row in receipt_rows}


def _members(
    connection: sa.Connection, kind: str, name: str, limit: int, before: tuple[datetime, str] | None
) -> list[int]:
    """The numbers of a group's receipts, newest first. They are looked for in the hours in which there are some."""
    this, found = current_receipts.c, list[int]()
    belongs = hours.Belongs(hours.OF_RECEIPTS.keys, [(kind, name)])
    for hour in reversed(hours.hours_of(connection, kind, [name])):
        if before is not None and hour > before[0]:
            continue
        question = (
            sa.select(this.number, *belongs.columns)
            .where(this.closed_at >= hour, this.closed_at < hour + hours.HOUR, *belongs.conditions)
            .order_by(this.closed_at.desc(), this.id.desc())
        )
        if before is not None:
            question = question.where(sa.tuple_(this.closed_at, this.id) < _as_tuple(before))
        if not belongs.columns:
            question = question.limit(limit - len(found))
        found += [number for number, *rest in connection.execute(question) if belongs.accepts(rest)]
        if len(found) >= limit:
            break
    return found[:limit]


def _kept_costs(connection: sa.Connection, names: Collection[str], until: datetime) -> dict[str | None, CostTotals]:
    """What tasks cost by the sums that are kept of groups, of those whose last receipt was closed before `until`."""
    found: dict[str | None, CostTotals] = {}
    stored = {rows.stored_name(name): name for name in names}
    this = group_totals.c
    for some in batches([*stored]):
        question = sa.select(group_totals).where(this.kind == "task", this.name.in_(some), this.last_at < until)
        for each in map(_group_totals, connection.execute(question).mappings()):
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


def _place_of(connection: sa.Connection, name: str) -> tuple[datetime, str]:
    """Where in a list the receipt called `name` stands. Raises LedgerError when there is none."""
    receipt_id = _resolve(connection, name)
    if receipt_id is None:
        raise LedgerError(f"no receipt {name}", hint="`before` is the last receipt of the page before")
    place = sa.select(receipts.c.closed_at, receipts.c.id).where(receipts.c.id == receipt_id)
    closed_at, id_ = connection.execute(place).one()
    return closed_at, id_


def _as_tuple(place: tuple[datetime, str]) -> sa.Tuple:
    return sa.tuple_(sa.literal(place[0], receipts.c.closed_at.type), sa.literal(place[1], receipts.c.id.type))


def _resolve(connection: sa.Connection, name: str) -> str | None:
    """The id of the receipt that people mean by `name`."""
    exact = connection.scalar(sa.select(receipts.c.id).where(receipts.c.id == name)) or _newest_of(connection, name)
    if exact is not None or not name:
        return exact
    candidates = _beginning(connection, name)
    if len(candidates) > 1:
        named = ", ".join(candidates[:_NAMED_WHEN_AMBIGUOUS])
        more = ", ..." if len(candidates) > _NAMED_WHEN_AMBIGUOUS else ""
        raise LedgerError(f"several receipts begin with {name}: {named}{more}", hint="give more of the id")
    return candidates[0] if candidates else None


def _newest_of(connection: sa.Connection, request_id: str) -> str | None:
    """The id of the request's receipt that nothing corrects."""
    first = sa.select(receipts.c.id).where(receipts.c.request_id == request_id, receipts.c.supersedes.is_(None))
    return _newest_after(connection, connection.scalar(first))


def _newest_after(connection: sa.Connection, receipt_id: str | None) -> str | None:
    """The end of the receipt's chain of corrections. They are few; an index of receipts by request would be read for
    nobody else."""
    newest = receipt_id
    while receipt_id is not None:
        newest = receipt_id
        receipt_id = connection.scalar(sa.select(receipts.c.id).where(receipts.c.supersedes == receipt_id))
    return newest


def _beginning(connection: sa.Connection, prefix: str) -> list[str]:
    """Ids of receipts whose own id or whose request's id begins with `prefix`; enough of them to see that it is not
    one."""
    past = prefix + "\U0010ffff"  # a range, so that an index serves
    this = receipts.c
    of_receipts = sa.select(this.id).where(this.id >= prefix, this.id < past).order_by(this.id)
    of_requests = (
        sa.select(this.id)
        .where(this.request_id >= prefix, this.request_id < past, this.supersedes.is_(None))
        .order_by(this.request_id)
    )
    found = connection.scalars(of_receipts.limit(_NAMED_WHEN_AMBIGUOUS + 1)).all()
    firsts = connection.scalars(of_requests.limit(_NAMED_WHEN_AMBIGUOUS + 1)).all()
    newest = (_newest_after(connection, first) for first in firsts)
    return list(dict.fromkeys(id_ for id_ in (*found, *newest) if id_ is not None))


def _total_cost(connection: sa.Connection) -> Decimal:
    """See `Reader.total_cost`. What is too large for a sum is added from its document."""
    this = current_receipts.c
    kind, name = ALL
    everything = sa.select(group_totals).where(group_totals.c.kind == kind, group_totals.c.name == name)
    found = connection.execute(everything).mappings().one_or_none()
    off_scale = connection.scalars(
        sa.select(documents.c.document)
        .join(current_receipts, this.number == documents.c.number)
        .where(this.off_scale > 0, this.cost_dollars.is_(None))
    )
    known = Decimal(0) if found is None else _money(found)
    return exact_sum([known, *map(rows.cost_from, off_scale)])


def _money(found: Mapping[Any, Any]) -> Decimal:
    dollars, picodollars = (int(found[name]) for name in MONEY_COLUMNS)
    return rows.join_money(dollars * PICODOLLARS_PER_DOLLAR + picodollars)


def _group_totals(found: Mapping[Any, Any]) -> GroupTotals:
    return GroupTotals(
        kind=found["kind"],
        name=found["name"],
        receipts=int(found["receipts"]),
        failures=int(found["failures"]),
        input_tokens=int(found["input_tokens"]),
        output_tokens=int(found["output_tokens"]),
        uncounted=int(found["uncounted"]),
        cost=_money(found),
        unpriced=int(found["unpriced"]),
        off_scale=int(found["off_scale"]),
        first_at=found["first_at"],
        last_at=found["last_at"],
    )
