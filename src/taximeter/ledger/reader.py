"""Questions to the ledger. Each is one snapshot on a connection of its own, and never waits for the writer.

Owns: every SELECT that people ask for. Refuses to know: how anything came to be written.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from decimal import Decimal
from itertools import chain
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import event, exc

from taximeter.errors import LedgerError
from taximeter.ledger import rows
from taximeter.ledger.database import as_ledger_error, border, connect
from taximeter.ledger.schema import current_receipts, documents, receipts
from taximeter.records import PICODOLLARS_PER_DOLLAR, Receipt, exact_sum

_LONGEST_LIST = 100_000
_NAMED_WHEN_AMBIGUOUS = 5
_HALF = 10**9


class Reader:
    """Safe to use from many threads. What goes wrong is a LedgerError."""

    def __init__(self, path: Path, *, busy_timeout_s: float) -> None:
        self._path = path
        # By its URL the library knows how to share connections to a file; they are made as everywhere here.
        self._engine = sa.create_engine(
            sa.URL.create("sqlite", database=str(path)),
            creator=lambda: connect(path, busy_timeout_s=busy_timeout_s, writes=False),
        )
        event.listen(self._engine, "begin", _begin)

    def newest(self, limit: int, before: str | None) -> list[Receipt]:
        """Receipts that nothing corrects, newest first, from behind the one named `before` on."""
        with self._snapshot() as connection:
            return _newest(connection, limit, before)

    def find(self, name: str) -> Receipt | None:
        """The receipt with this id, or the newest of the request with this id, or the only one whose id or request's
        id begins so. Raises LedgerError when several do."""
        with self._snapshot() as connection:
            named = sa.select(documents.c.document).where(documents.c.receipt_id == _resolve(connection, name))
            document = connection.scalar(named)
            return None if document is None else rows.receipt_from(document)

    def total_cost(self) -> Decimal:
        """The exact sum of all costs that are known, in dollars, over the receipts that nothing corrects."""
        with self._snapshot() as connection:
            return _total_cost(connection)

    def close(self) -> None:
        """Let go of the file."""
        self._engine.dispose()

    @contextmanager
    def _snapshot(self) -> Generator[sa.Connection]:
        try:
            with border(self._path), self._engine.begin() as connection:
                yield connection
        except exc.SQLAlchemyError as error:
            cause = error.orig if isinstance(error, exc.StatementError) else None
            raise as_ledger_error(cause if isinstance(cause, Exception) else error, self._path) from error


def _begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _newest(connection: sa.Connection, limit: int, before: str | None) -> list[Receipt]:
    this = current_receipts.c
    question = (
        sa.select(documents.c.document)
        .join(current_receipts, this.id == documents.c.receipt_id)
        .order_by(this.closed_at.desc(), this.id.desc())
        .limit(max(0, min(limit, _LONGEST_LIST)))
    )
    if before is not None:
        place = sa.select(receipts.c.closed_at, receipts.c.id).where(receipts.c.id == _resolve(connection, before))
        found = connection.execute(place).one_or_none()
        if found is None:
            raise LedgerError(f"no receipt {before}", hint="`before` is the last receipt of the page before")
        question = question.where(sa.tuple_(this.closed_at, this.id) < sa.tuple_(*found))
    return [rows.receipt_from(document) for document in connection.scalars(question)]


def _resolve(connection: sa.Connection, name: str) -> str | None:
    """The id of the receipt that people mean by `name`."""
    exact = connection.scalar(sa.select(receipts.c.id).where(receipts.c.id == name)) or connection.scalar(
        sa.select(current_receipts.c.id).where(current_receipts.c.request_id == name)
    )
    if exact is not None or not name:
        return exact
    candidates = _beginning(connection, name)
    if len(candidates) > 1:
        named = ", ".join(candidates[:_NAMED_WHEN_AMBIGUOUS])
        more = ", ..." if len(candidates) > _NAMED_WHEN_AMBIGUOUS else ""
        raise LedgerError(f"several receipts begin with {name}: {named}{more}", hint="give more of the id")
    return candidates[0] if candidates else None


def _beginning(connection: sa.Connection, prefix: str) -> list[str]:
    """Ids of receipts whose own id or whose request's id begins with `prefix`; enough of them to see that it is not
    one."""
    past = prefix + "\U0010ffff"  # a range, so that an index serves
    this = current_receipts.c
    questions = (
        sa.select(receipts.c.id).where(receipts.c.id >= prefix, receipts.c.id < past).order_by(receipts.c.id),
        sa.select(this.id).where(this.request_id >= prefix, this.request_id < past).order_by(this.request_id),
    )
    found = (connection.scalars(question.limit(_NAMED_WHEN_AMBIGUOUS + 1)) for question in questions)
    return list(dict.fromkeys(chain.from_iterable(found)))


def _total_cost(connection: sa.Connection) -> Decimal:
    """See `Reader.total_cost`.

    SQLite's sum() raises past 2^63, and ten million receipts of half a dollar are past it in picodollars: each column
    is summed in two halves, joined here, where integers have no end.
    """
    this = current_receipts.c
    halves = (
        (PICODOLLARS_PER_DOLLAR * _HALF, this.cost_dollars // _HALF),
        (PICODOLLARS_PER_DOLLAR, this.cost_dollars % _HALF),
        (_HALF, this.cost_picodollars // _HALF),
        (1, this.cost_picodollars % _HALF),
    )
    sums = connection.execute(sa.select(*(sa.func.sum(half) for _, half in halves))).one()
    picodollars = sum(weight * (part or 0) for (weight, _), part in zip(halves, sums, strict=True))
    off_scale = connection.scalars(
        sa.select(documents.c.document)
        .join(current_receipts, this.id == documents.c.receipt_id)
        .where(this.off_scale > 0, this.cost_dollars.is_(None))
    )
    return exact_sum([rows.join_money(picodollars), *map(rows.cost_from, off_scale)])
