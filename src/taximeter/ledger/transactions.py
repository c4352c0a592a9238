"""What is written together: a request taken up, a receipt with its document, an interruption.

Owns: every INSERT and DELETE of the ledger, and the sentence for each one that is refused. Refuses to know: threads,
files and commits. Each function works inside the caller's transaction.

In plain SQL, on the standard library's connection: before its first answer a server writes, and asks nothing.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from taximeter.errors import LedgerError
from taximeter.ledger import rows
from taximeter.records import Outcome, Receipt, Request

_log = logging.getLogger(__name__)

_PROCESS_ENDED = "the process ended before the answer did"


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request ready to be noted as in flight."""

    row: rows.Row

    @classmethod
    def of(cls, request: Request, receipt_id: str, writer_id: str) -> NewRequest:
        return cls(rows.request_row(request, receipt_id, writer_id))


@dataclass(frozen=True, slots=True)
class NewReceipt:
    """A receipt ready to be written. It clears its request's note."""

    row: rows.Row
    document: str

    @classmethod
    def of(cls, receipt: Receipt) -> NewReceipt:
        return cls(rows.receipt_row(receipt), rows.receipt_document(receipt))


Entry = NewRequest | NewReceipt


def write(connection: sqlite3.Connection, entries: Sequence[Entry]) -> None:
    """All of `entries`, in as few statements as there are tables. Raises sqlite3.IntegrityError when one is refused."""
    begun = [entry.row for entry in entries if isinstance(entry, NewRequest)]
    ended = [entry for entry in entries if isinstance(entry, NewReceipt)]
    _insert(connection, "in_flight", begun)
    _insert(connection, "receipts", [entry.row for entry in ended])
    _insert(connection, "documents", [{"receipt_id": entry.row["id"], "document": entry.document} for entry in ended])
    connection.executemany(
        "DELETE FROM in_flight WHERE request_id = ?", [(entry.row["request_id"],) for entry in ended]
    )


def _insert(connection: sqlite3.Connection, table: str, new: Sequence[rows.Row]) -> None:
    """Rows of one table, all with the same columns. Table and columns are our own words, never a stranger's."""
    if new:
        names = ", ".join(new[0])
        places = ", ".join(f":{name}" for name in new[0])
        connection.executemany(f"INSERT INTO {table} ({names}) VALUES ({places})", new)  # noqa: S608 - see above


def write_one(connection: sqlite3.Connection, entry: Entry) -> None:
    """One entry, undone when it fails. Writing again what is there already is no error. Raises LedgerError when the
    ledger's own rules refuse it."""
    if _is_there(connection, entry):
        return
    connection.execute("SAVEPOINT entry")
    try:
        write(connection, [entry])
    except sqlite3.IntegrityError as error:
        connection.execute("ROLLBACK TO entry")
        raise LedgerError(_refusal(connection, entry.row), hint="a correction names what it `supersedes`") from error
    finally:
        if connection.in_transaction:  # a full disk ends all of it by itself
            connection.execute("RELEASE entry")


def _is_there(connection: sqlite3.Connection, entry: Entry) -> bool:
    match entry:
        case NewRequest(row):
            there = "SELECT document FROM in_flight WHERE request_id = ? AND writer_id = ?"
            return _scalar(connection, there, row["request_id"], row["writer_id"]) == row["document"]
        case NewReceipt(row, document):
            return _scalar(connection, "SELECT document FROM documents WHERE receipt_id = ?", row["id"]) == document


def _refusal(connection: sqlite3.Connection, row: rows.Row) -> str:
    """Why the database would not have `row`."""
    if "id" not in row:
        return f"request {row['request_id']} is in flight already, with other contents or in another process"
    if _scalar(connection, "SELECT id FROM receipts WHERE id = ?", row["id"]):
        return f"there is a receipt {row['id']} already, and it says something else"
    if row["supersedes"] is None:
        return f"request {row['request_id']} has a receipt already: {_first_receipt(connection, row['request_id'])}"
    corrected = _scalar(connection, "SELECT request_id FROM receipts WHERE id = ?", row["supersedes"])
    if corrected != row["request_id"]:
        return f"{row['id']} supersedes {row['supersedes']}, which is no receipt of the same request"
    correction = _scalar(connection, "SELECT id FROM receipts WHERE supersedes = ?", row["supersedes"])
    return f"{row['supersedes']} is corrected already, by {correction}"


def _first_receipt(connection: sqlite3.Connection, request_id: object) -> object:
    return _scalar(connection, "SELECT id FROM receipts WHERE request_id = ?", request_id)


def _scalar(connection: sqlite3.Connection, question: str, *values: object) -> object:
    """The first column of the first row, None where there is no row."""
    found: tuple[object, ...] | None = connection.execute(question, values).fetchone()
    return None if found is None else found[0]


def writers_with_notes(connection: sqlite3.Connection) -> set[str]:
    """Everybody, living or dead, who left a request in flight."""
    return {writer_id for (writer_id,) in connection.execute("SELECT DISTINCT writer_id FROM in_flight")}


def interrupt(connection: sqlite3.Connection, writer_id: str, at: datetime) -> None:
    """Close what `writer_id` left in flight: each request gets a receipt that says so.

    A note that this version cannot read stays, for one that can.
    """
    left = "SELECT request_id, receipt_id, document FROM in_flight WHERE writer_id = ?"
    for request_id, receipt_id, document in connection.execute(left, (writer_id,)).fetchall():
        if _first_receipt(connection, request_id) is not None:
            connection.execute("DELETE FROM in_flight WHERE request_id = ?", (request_id,))
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
