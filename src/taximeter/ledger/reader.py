"""Questions to the ledger. Each is one snapshot on a connection of its own, and never waits for the writer.

Owns: every SELECT that people ask for. Refuses to know: how anything came to be written.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from taximeter.errors import LedgerError
from taximeter.ledger import rows
from taximeter.ledger.columns import HOUR_COUNTS, HOUR_KEYS, MONEY_COLUMNS, TOKEN_COLUMNS, UNKNOWN_COLUMNS
from taximeter.ledger.database import Database, as_ledger_error
from taximeter.ledger.documents import record_from
from taximeter.ledger.rollups import ALL
from taximeter.ledger.schema import (
    current_receipts,
    documents,
    group_totals,
    members,
    receipts,
    task_ends,
    usage_by_hour,
)
from taximeter.ledger.totals import GroupTotals, UsageTotals
from taximeter.records import PICODOLLARS_PER_DOLLAR, Outcome, Receipt, Task, exact_sum

_LONGEST_LIST = 100_000
_NAMED_WHEN_AMBIGUOUS = 5
_HOUR = timedelta(hours=1)


class Reader:
    """Safe to use from many threads. What goes wrong is a LedgerError."""

    def __init__(self, database: Database, *, patience_s: float) -> None:
        self._name = database.name
        self._engine = database.engine(patience_s=patience_s)

    def newest(self, limit: int, before: str | None) -> list[Receipt]:
        """Receipts that nothing corrects, newest first, from behind the one named `before` on."""
        with self._snapshot() as connection:
            return _newest(connection, limit, before)

    def find(self, name: str) -> Receipt | None:
        """The receipt with this id, or the newest of the request with this id, or the only one whose id or request's
        id begins so. Raises LedgerError when several do."""
        with self._snapshot() as connection:
            receipt_id = _resolve(connection, name)
            if receipt_id is None:
                return None
            named = sa.select(documents.c.document).where(documents.c.receipt_id == receipt_id)
            return record_from(connection.scalars(named).one(), Receipt)

    def total_cost(self) -> Decimal:
        """The exact sum of all costs that are known, in dollars, over the receipts that nothing corrects."""
        with self._snapshot() as connection:
            return _total_cost(connection)

    def usage_by_hour(self, start: datetime, until: datetime) -> list[UsageTotals]:
        """See `Ledger.usage_by_hour`."""
        # In UTC, whose hours are what is kept: in India they begin at half past.
        start, until = start.astimezone(UTC), until.astimezone(UTC)
        first, last = _hour_from(start), _hour_of(until)
        with self._snapshot() as connection:
            if first > last:  # all within one hour
                return _part_of_an_hour(connection, start, until)
            return [
                *_part_of_an_hour(connection, start, first),
                *_kept(connection, first, last),
                *_part_of_an_hour(connection, last, until),
            ]

    def group(self, kind: str, name: str) -> GroupTotals | None:
        """See `Ledger.group`."""
        this = group_totals.c
        question = sa.select(group_totals).where(
            this.kind == rows.stored_name(kind), this.name == rows.stored_name(name)
        )
        with self._snapshot() as connection:
            found = connection.execute(question).mappings().one_or_none()
        return None if found is None else _group_totals(found)

    def usage_of(self, kind: str, name: str) -> list[UsageTotals]:
        """See `Ledger.usage_of`."""
        member = members.c
        theirs = sa.select(member.receipt_id).where(
            member.kind == rows.stored_name(kind), member.name == rows.stored_name(name)
        )
        with self._snapshot() as connection:
            return _added_up(connection, current_receipts.c.id.in_(theirs))

    def groups(self, kind: str, since: datetime | None, limit: int) -> list[GroupTotals]:
        """See `Ledger.groups`."""
        this = group_totals.c
        question = sa.select(group_totals).where(this.kind == rows.stored_name(kind))
        if since is not None:
            question = question.where(this.last_at >= since)
        question = question.order_by(this.last_at.desc(), this.name.desc()).limit(_bounded(limit))
        with self._snapshot() as connection:
            return [_group_totals(found) for found in connection.execute(question).mappings()]

    def members(self, kind: str, name: str, limit: int, before: str | None) -> list[Receipt]:
        """See `Ledger.receipts_of`."""
        member = members.c
        question = (
            sa.select(documents.c.document)
            .join(members, member.receipt_id == documents.c.receipt_id)
            .where(member.kind == rows.stored_name(kind), member.name == rows.stored_name(name))
            .where(_is_current(member.receipt_id))
            .order_by(member.closed_at.desc(), member.receipt_id.desc())
            .limit(_bounded(limit))
        )
        with self._snapshot() as connection:
            if before is not None:
                place = sa.tuple_(member.closed_at, member.receipt_id)
                question = question.where(place < _place_of(connection, before))
            return [record_from(document, Receipt) for document in connection.scalars(question)]

    def task_words(self, name: str) -> list[Task]:
        """See `Ledger.task_words`."""
        this = task_ends.c
        question = sa.select(this.document).where(this.name == rows.stored_name(name)).order_by(this.number)
        with self._snapshot() as connection:
            return [record_from(document, Task) for document in connection.scalars(question)]

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


def _newest(connection: sa.Connection, limit: int, before: str | None) -> list[Receipt]:
    this = current_receipts.c
    question = (
        sa.select(documents.c.document)
        .join(current_receipts, this.id == documents.c.receipt_id)
        .order_by(this.closed_at.desc(), this.id.desc())
        .limit(_bounded(limit))
    )
    if before is not None:
        question = question.where(sa.tuple_(this.closed_at, this.id) < _place_of(connection, before))
    return [record_from(document, Receipt) for document in connection.scalars(question)]


def _bounded(limit: int) -> int:
    return max(0, min(limit, _LONGEST_LIST))


def _place_of(connection: sa.Connection, name: str) -> sa.Tuple:
    """Where in a list the receipt called `name` stands. Raises LedgerError when there is none."""
    receipt_id = _resolve(connection, name)
    if receipt_id is None:
        raise LedgerError(f"no receipt {name}", hint="`before` is the last receipt of the page before")
    place = sa.select(receipts.c.closed_at, receipts.c.id).where(receipts.c.id == receipt_id)
    found = connection.execute(place).one()
    return sa.tuple_(sa.literal(found[0], receipts.c.closed_at.type), sa.literal(found[1], receipts.c.id.type))


def _is_current(receipt_id: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    later = receipts.alias("later")
    return ~sa.exists().where(later.c.supersedes == receipt_id)


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
        .join(current_receipts, this.id == documents.c.receipt_id)
        .where(this.off_scale > 0, this.cost_dollars.is_(None))
    )
    known = Decimal(0) if found is None else _money(found)
    return exact_sum([known, *map(rows.cost_from, off_scale)])


def _money(found: Mapping[Any, Any]) -> Decimal:
    dollars, picodollars = (int(found[name]) for name in MONEY_COLUMNS)
    return rows.join_money(dollars * PICODOLLARS_PER_DOLLAR + picodollars)


def _hour_from(at: datetime) -> datetime:
    """`at`, or the first whole hour after it."""
    hour = _hour_of(at)
    return hour if hour == at else hour + _HOUR


def _hour_of(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def _kept(connection: sa.Connection, start: datetime, until: datetime) -> list[UsageTotals]:
    """The sums of whole hours."""
    this = usage_by_hour.c
    question = (
        sa.select(*(this[name] for name in (*HOUR_KEYS, *HOUR_COUNTS, *MONEY_COLUMNS)))
        .where(this.hour >= start, this.hour < until, this.receipts != 0)
        .order_by(this.hour, this.model, this.served_by, this.outcome)
    )
    return [_usage_totals(row) for row in connection.execute(question)]


def _part_of_an_hour(connection: sa.Connection, start: datetime, until: datetime) -> list[UsageTotals]:
    if start >= until:
        return []
    closed_at = current_receipts.c.closed_at
    return _added_up(connection, sa.and_(closed_at >= start, closed_at < until), hour=_hour_of(start))


def _added_up(
    connection: sa.Connection, which: sa.ColumnElement[bool], *, hour: datetime | None = None
) -> list[UsageTotals]:
    """The sums of some receipts, made on the spot."""
    this = current_receipts.c
    is_unknown = {name: sa.case((this[name].is_(None), 1), else_=0) for name in (*TOKEN_COLUMNS, "cost_dollars")}
    sums: dict[str, sa.ColumnElement[Any]] = {
        "receipts": sa.func.count(),
        "unpriced": sa.func.sum(is_unknown["cost_dollars"]),
        "timed": sa.func.count(this.total_ns),
        "first_tokens": sa.func.count(this.first_token_ns),
    }
    sums |= {UNKNOWN_COLUMNS[name]: sa.func.sum(is_unknown[name]) for name in TOKEN_COLUMNS}
    counts = [
        sums[name] if name in sums else sa.func.coalesce(sa.func.sum(this[name]), 0)
        for name in (*HOUR_COUNTS, *MONEY_COLUMNS)
    ]
    keys = (this.model, sa.func.coalesce(this.served_by, ""), this.outcome)
    question = sa.select(*keys, *counts).where(which).group_by(*keys).order_by(*keys)
    return [_usage_totals((hour, *row)) for row in connection.execute(question)]


_PAIRS = slice(3, 3 + 2 * len(TOKEN_COLUMNS), 2)  # in HOUR_COUNTS: a bucket's sum, and how often it was unknown
_UNKNOWN_PAIRS = slice(4, _PAIRS.stop, 2)
_NONE_UNKNOWN = MappingProxyType(dict.fromkeys(TOKEN_COLUMNS, 0))
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}


def _usage_totals(row: Sequence[Any]) -> UsageTotals:
    """From `HOUR_KEYS`, `HOUR_COUNTS` and `MONEY_COLUMNS`. A week has ten thousand of them."""
    hour, model, served_by, outcome, *sums = row
    numbers: list[int] = sums if type(sums[0]) is int else list(map(int, sums))  # Postgres has decimals here
    total_ns, timed, first_token_ns, first_tokens, compute_ns, dollars, picodollars = numbers[_PAIRS.stop :]
    unknown = numbers[_UNKNOWN_PAIRS]
    return UsageTotals(
        hour=hour,
        model=model,
        served_by=served_by or None,
        outcome=_OUTCOMES[outcome],
        receipts=numbers[0],
        unpriced=numbers[1],
        off_scale=numbers[2],
        tokens=dict(zip(TOKEN_COLUMNS, numbers[_PAIRS], strict=True)),
        unknown=dict(zip(TOKEN_COLUMNS, unknown, strict=True)) if any(unknown) else _NONE_UNKNOWN,
        total_ns=total_ns,
        timed=timed,
        first_token_ns=first_token_ns,
        first_tokens=first_tokens,
        compute_ns=compute_ns,
        cost=rows.join_money(dollars * PICODOLLARS_PER_DOLLAR + picodollars),
    )


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
