"""Records as rows, and back.

Owns: which column a number of a receipt goes to, and the document that a record is rebuilt from. Refuses to know: SQL.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import TypeVar

import msgspec

from taximeter.errors import LedgerError
from taximeter.ledger import columns
from taximeter.records import PICODOLLARS_PER_DOLLAR, Receipt, Request, to_json

_LARGEST = 2**63 - 1

Row = dict[str, object]

_Record = TypeVar("_Record", Receipt, Request)


def receipt_row(receipt: Receipt) -> Row:
    """The row of table `receipts`."""
    numbers = {name: getattr(receipt.usage, name, None) for name in columns.TOKEN_COLUMNS}
    numbers |= {name: getattr(receipt.timing, name, None) for name in columns.TIME_COLUMNS}
    numbers |= {name: getattr(receipt.work, name, None) for name in columns.WORK_COLUMNS}
    off_scale = [name for name, number in numbers.items() if number is not None and abs(number) > _LARGEST]
    numbers |= dict.fromkeys(off_scale)
    money = None if receipt.cost is None else split_money(receipt.cost.total)
    numbers |= dict(zip(columns.MONEY_COLUMNS, money or (None, None), strict=True))
    return {
        "id": stored_text(receipt.id),
        "request_id": stored_text(receipt.request.id),
        "supersedes": _stored(receipt.supersedes),
        "received_at": stored_instant(receipt.request.received_at),
        "closed_at": stored_instant(receipt.closed_at),
        "outcome": receipt.outcome.value,
        "model": stored_text(receipt.request.model),
        "served_by": _stored(receipt.served_by),
        "stream": receipt.request.stream,
        "task": _stored(receipt.request.task),
        "run": _stored(receipt.request.run),
        "session": _stored(receipt.request.session),
        **numbers,
        "off_scale": len(off_scale) + (receipt.cost is not None and money is None),
    }


def request_row(request: Request, receipt_id: str, writer_id: str) -> Row:
    """The row of table `in_flight`. Raises LedgerError when the request could not be read back."""
    return {
        "request_id": stored_text(request.id),
        "receipt_id": stored_text(receipt_id),
        "writer_id": writer_id,
        "received_at": stored_instant(request.received_at),
        "document": request_document(request),
    }


def stored_text(text: str) -> str:
    """Text from strangers. Half a surrogate pair, which no database takes, is stored as its escape sequence."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _stored(text: str | None) -> str | None:
    return None if text is None else stored_text(text)


def stored_instant(instant: datetime) -> str:
    """An aware instant as SQLite has it: in UTC, as `2026-10-29 12:00:00.000000`, where text sorts by time."""
    if instant.tzinfo is None:
        raise ValueError("an instant without a time zone")
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


def split_money(amount: Decimal) -> tuple[int, int] | None:
    """Whole dollars, rounded down, and the picodollars above them; None when two 64-bit columns cannot hold it."""
    numerator, denominator = amount.as_integer_ratio()
    picodollars, finer = divmod(numerator * PICODOLLARS_PER_DOLLAR, denominator)
    dollars, picodollars = divmod(picodollars, PICODOLLARS_PER_DOLLAR)
    return None if finer or abs(dollars) > _LARGEST else (dollars, picodollars)


def join_money(picodollars: int) -> Decimal:
    """Picodollars as dollars, every digit of them."""
    return Decimal((int(picodollars < 0), tuple(map(int, str(abs(picodollars)))), -12))


def receipt_document(receipt: Receipt) -> str:
    """The receipt as JSON text. Raises LedgerError when it could not be read back."""
    text = _dump(receipt)
    receipt_from(text)  # one receipt that nobody can read would spoil every list that it is in
    return text


def request_document(request: Request) -> str:
    """The request as JSON text. Raises LedgerError when it could not be read back."""
    text = _dump(request)
    request_from(text)
    return text


def receipt_from(document: str) -> Receipt:
    """The receipt that `document` was made from. Raises LedgerError when it is not one."""
    return _load(document, Receipt)


def request_from(document: str) -> Request:
    """The request that `document` was made from. Raises LedgerError when it is not one."""
    return _load(document, Request)


def cost_from(document: str) -> Decimal:
    """The total of the receipt's cost, as it stands in the document."""
    cost = receipt_from(document).cost
    return Decimal(0) if cost is None else cost.total


def _dump(record: Receipt | Request) -> str:
    # The standard library's codec, both ways: integers may have any length, and a float may be infinite.
    try:
        return json.dumps(to_json(record), separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise LedgerError(f"{record.id} cannot be written as JSON: {error}") from error


def _load(document: str, kind: type[_Record]) -> _Record:
    try:
        return msgspec.convert(json.loads(document), kind, str_keys=True)
    except (ValueError, OverflowError, msgspec.ValidationError) as error:
        named = re.search(r'"id":"([^"]{1,80})"', document)
        raise LedgerError(
            f"{kind.__name__.lower()} {named[1] if named else '?'} cannot be read: {error}",
            hint="a newer Taximeter may have written it",
        ) from error
