"""What is written together: a request taken up, a receipt with its document, an interruption.

Owns: every INSERT and DELETE of the ledger, and the sentence for each one that is refused. Refuses to know: threads,
files and commits. Each function works inside the caller's transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import exc

from taximeter.errors import LedgerError
from taximeter.ledger import rows
from taximeter.ledger.schema import documents, in_flight, receipts
from taximeter.records import Outcome, Receipt, Request

_log = logging.getLogger(__name__)

_PROCESS_ENDED = "the process ended before the answer did"


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request ready to be noted as in flight."""

    row: rows.Row

    @classmethod
    def of(cls, request: Request, receipt_id: str, writer_id: str) -> NewRequest:
        return cls(
            {
                "request_id": request.id,
                "receipt_id": receipt_id,
                "writer_id": writer_id,
                "received_at": request.received_at,
                "document": rows.request_document(request),
            }
        )


@dataclass(frozen=True, slots=True)
class NewReceipt:
    """A receipt ready to be written. It clears its request's note."""

    row: rows.Row
    document: str

    @classmethod
    def of(cls, receipt: Receipt) -> NewReceipt:
        return cls(rows.receipt_row(receipt), rows.receipt_document(receipt))


Entry = NewRequest | NewReceipt


def write(connection: sa.Connection, entries: Sequence[Entry]) -> None:
    """All of `entries`, in as few statements as there are tables. Raises exc.IntegrityError when one is refused."""
    begun = [entry.row for entry in entries if isinstance(entry, NewRequest)]
    ended = [entry for entry in entries if isinstance(entry, NewReceipt)]
    if begun:
        connection.execute(sa.insert(in_flight), begun)
    if ended:
        connection.execute(sa.insert(receipts), [entry.row for entry in ended])
        connection.execute(
            sa.insert(documents),
            [{"receipt_id": entry.row["id"], "document": entry.document} for entry in ended],
        )
        connection.execute(
            sa.delete(in_flight).where(in_flight.c.request_id == sa.bindparam("ended")),
            [{"ended": entry.row["request_id"]} for entry in ended],
        )


def write_one(connection: sa.Connection, entry: Entry) -> None:
    """One entry, undone when it fails. Writing again what is there already is no error. Raises LedgerError when the
    ledger's own rules refuse it."""
    if _is_there(connection, entry):
        return
    try:
        with connection.begin_nested():
            write(connection, [entry])
    except exc.IntegrityError as error:
        raise LedgerError(_refusal(connection, entry.row), hint="a correction names what it `supersedes`") from error


def _is_there(connection: sa.Connection, entry: Entry) -> bool:
    match entry:
        case NewRequest(row):
            there = sa.select(in_flight.c.document).where(
                in_flight.c.request_id == row["request_id"], in_flight.c.writer_id == row["writer_id"]
            )
            return connection.scalar(there) == row["document"]
        case NewReceipt(row, document):
            there = sa.select(documents.c.document).where(documents.c.receipt_id == row["id"])
            return connection.scalar(there) == document


def _refusal(connection: sa.Connection, row: rows.Row) -> str:
    """Why the database would not have `row`."""
    if "id" not in row:
        return f"request {row['request_id']} is in flight already, with other contents or in another process"
    if connection.scalar(sa.select(receipts.c.id).where(receipts.c.id == row["id"])):
        return f"there is a receipt {row['id']} already, and it says something else"
    if row["supersedes"] is None:
        first = connection.scalar(sa.select(receipts.c.id).where(receipts.c.request_id == row["request_id"]))
        return f"request {row['request_id']} has a receipt already: {first}"
    corrected = sa.select(receipts.c.request_id).where(receipts.c.id == row["supersedes"])
    if connection.scalar(corrected) != row["request_id"]:
        return f"{row['id']} supersedes {row['supersedes']}, which is no receipt of the same request"
    correction = connection.scalar(sa.select(receipts.c.id).where(receipts.c.supersedes == row["supersedes"]))
    return f"{row['supersedes']} is corrected already, by {correction}"


def interrupt(connection: sa.Connection, writer_id: str, at: datetime) -> None:
    """Close what `writer_id` left in flight: each request gets a receipt that says so.

    A note that this version cannot read stays, for one that can.
    """
    left = sa.select(in_flight.c.request_id, in_flight.c.receipt_id, in_flight.c.document)
    left = left.where(in_flight.c.writer_id == writer_id)
    for request_id, receipt_id, document in connection.execute(left).all():
        if connection.scalar(sa.select(receipts.c.id).where(receipts.c.request_id == request_id)) is not None:
            connection.execute(sa.delete(in_flight).where(in_flight.c.request_id == request_id))
            continue
        try:
            request = rows.request_from(document)
        except LedgerError as error:
            _log.warning("left in flight: %s", error)
            continue
        write(connection, [NewReceipt.of(_interrupted(request, receipt_id, at))])


def _interrupted(request: Request, receipt_id: str, at: datetime) -> Receipt:
    return Receipt(
        id=receipt_id,
        request=request,
        closed_at=at,
        outcome=Outcome.INTERRUPTED,
        timing=None,
        usage=None,
        unmeasured_reason=_PROCESS_ENDED,
        uncosted_reason=_PROCESS_ENDED,
    )
