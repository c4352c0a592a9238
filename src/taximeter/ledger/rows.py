"""Records as rows.

Owns: which column a number of a receipt goes to, and what a column can hold. Refuses to know: SQL, and the document
beside the row, which has everything whole.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any

from taximeter.ledger import columns
from taximeter.ledger.documents import record_from
from taximeter.records import EXACT, PICODOLLARS_PER_DOLLAR, Receipt, Request

LARGEST = 10**14
"""More than the tokens, the dollars or the nanoseconds (28 hours) of any request: what is larger is nonsense, and has
its place in the document only. Ninety thousand of the largest still add up within 64 bits."""

_LONGEST_NAME_BYTES = 400  # Postgres indexes no more than 2,700 bytes, and a name of a model may be anybody's

Row = tuple[Any, ...]


def receipt_row(receipt: Receipt) -> Row:
    """The row of table `receipts`, in the order of `RECEIPT_COLUMNS`."""
    request, usage, timing, work = receipt.request, receipt.usage, receipt.timing, receipt.work
    numbers: list[int | None] = []
    for record, names in (
        (usage, columns.TOKEN_COLUMNS),
        (timing, columns.TIME_COLUMNS),
        (work, columns.WORK_COLUMNS),
    ):
        numbers += [None] * len(names) if record is None else [getattr(record, name) for name in names]
    off_scale = 0
    for place, number in enumerate(numbers):
        if number is not None and abs(number) > LARGEST:
            numbers[place] = None
            off_scale += 1
    money = None if receipt.cost is None else split_money(receipt.cost.total)
    return (
        stored_text(receipt.id),
        stored_text(request.id),
        None if receipt.supersedes is None else stored_text(receipt.supersedes),
        stored_instant(request.received_at),
        stored_instant(receipt.closed_at),
        receipt.outcome.value,
        stored_name(request.model),
        _stored(receipt.served_by),
        request.stream,
        _stored(request.task),
        _stored(request.run),
        _stored(request.session),
        *numbers,
        *(money or (None, None)),
        off_scale + (receipt.cost is not None and money is None),
    )


def request_row(request: Request, receipt_id: str, writer_id: str, document: str) -> Row:
    """The row of table `in_flight`, in the order of `NOTE_COLUMNS`."""
    return (
        stored_text(request.id),
        stored_text(receipt_id),
        writer_id,
        stored_instant(request.received_at),
        document,
    )


def stored_text(text: str) -> str:
    """Text from strangers. Half a surrogate pair and NUL, which not every database takes, are stored as their escape
    sequences."""
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def stored_name(text: str) -> str:
    """A name from strangers, to be asked for: one that is too long for an index is cut, and its hash set behind it."""
    stored = stored_text(text)
    if len(stored) * 4 <= _LONGEST_NAME_BYTES:
        return stored
    encoded = stored.encode()
    if len(encoded) <= _LONGEST_NAME_BYTES:
        return stored
    return f"{encoded[:_LONGEST_NAME_BYTES].decode(errors='ignore')}… sha256:{sha256(encoded).hexdigest()[:16]}"


def _stored(text: str | None) -> str | None:
    return None if text is None else stored_name(text)


def stored_instant(instant: datetime) -> str:
    """An aware instant as SQLite has it: in UTC, as `2026-10-29 12:00:00.000000`, where text sorts by time."""
    if instant.tzinfo is None:
        raise ValueError("an instant without a time zone")
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


def split_money(amount: Decimal) -> tuple[int, int] | None:
    """Whole dollars, rounded down, and the picodollars above them; None when two columns cannot hold it."""
    numerator, denominator = amount.as_integer_ratio()
    picodollars, finer = divmod(numerator * PICODOLLARS_PER_DOLLAR, denominator)
    dollars, picodollars = divmod(picodollars, PICODOLLARS_PER_DOLLAR)
    return None if finer or abs(dollars) > LARGEST else (dollars, picodollars)


def join_money(picodollars: int) -> Decimal:
    """Picodollars as dollars, every digit of them."""
    return Decimal(picodollars).scaleb(-12, EXACT)


def cost_from(document: str) -> Decimal:
    """The total of the receipt's cost, as it stands in the document."""
    cost = record_from(document, Receipt).cost
    return Decimal(0) if cost is None else cost.total
