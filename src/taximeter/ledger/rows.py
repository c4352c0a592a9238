"""Records as rows.

Owns: which column a number of a receipt goes to, and what a column can hold. Refuses to know: SQL, and the document
beside the row, which has everything whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from hashlib import sha256
from operator import attrgetter
from typing import Any, cast

import msgspec

from taximeter.ledger import columns
from taximeter.ledger.documents import record_from
from taximeter.records import (
    EXACT,
    LABEL_KIND,
    PICODOLLARS_PER_DOLLAR,
    Cost,
    Receipt,
    Request,
    Timing,
    Usage,
    Work,
)

LARGEST = 10**14
"""More than the tokens or the nanoseconds (28 hours) of any request: what is larger is nonsense, and has its place in
the document only. Ninety thousand of the largest still add up within 64 bits."""

LARGEST_PICODOLLARS = 9 * 10**18
"""Nine million dollars, for a part of a request; that is 64 bits."""

_LONGEST_NAME_BYTES = 400  # Postgres indexes no more than 2,700 bytes, and a name of a model may be anybody's

Row = tuple[Any, ...]

_encode = msgspec.json.Encoder().encode
_tokens_of = cast("Callable[[Usage], Row]", attrgetter(*columns.TOKEN_COLUMNS))
_times_of = cast("Callable[[Timing], Row]", attrgetter(*columns.TIME_COLUMNS[:-1]))
_work_of = cast("Callable[[Work], Row]", attrgetter(*columns.WORK_COLUMNS))
_NO_TOKENS = (None,) * len(columns.TOKEN_COLUMNS)
_NO_TIMES = (None,) * (len(columns.TIME_COLUMNS) - 1)
_NO_WORK = (None,) * len(columns.WORK_COLUMNS)
_NO_MONEY = (None,) * (len(columns.MONEY_COLUMNS) + len(columns.MONEY_UNITS))
_MONEY_PLACES = {unit: place for place, unit in enumerate(columns.MONEY_UNITS)}
_OTHER = _MONEY_PLACES["other"]


def receipt_row(receipt: Receipt) -> Row:
    """The row of table `receipts`, in the order of `RECEIPT_COLUMNS`."""
    request, usage, timing, work, cost = receipt.request, receipt.usage, receipt.timing, receipt.work, receipt.cost
    numbers: list[int | None] = [
        *(_NO_TOKENS if usage is None else _tokens_of(usage)),
        *(_NO_TIMES if timing is None else _times_of(timing)),
        receipt.inter_token_ns,
        *(_NO_WORK if work is None else _work_of(work)),
    ]
    off_scale = 0
    for place, number in enumerate(numbers):
        if number is not None and not -LARGEST <= number <= LARGEST:
            numbers[place] = None
            off_scale += 1
    money, reported = None if cost is None else split_cost(cost), picodollars_of(receipt.cost_reported)
    off_scale += (cost is not None and money is None) + (receipt.cost_reported is not None and reported is None)
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
        *belongings(receipt),
        None if usage is None else usage.basis.value,
        None if cost is None else cost.basis.value,
        None if receipt.upstream_request_id is None else stored_text(receipt.upstream_request_id),
        *numbers,
        *(_NO_MONEY if money is None else money),
        reported,
        off_scale,
        None,
    )


def belongings(receipt: Receipt) -> Row:
    """What a receipt belongs to, in the order of `BELONGING_COLUMNS`."""
    request = receipt.request
    return stored_belongings(request.task, request.run, request.session, request.key, receipt.source, request.labels)


def stored_belongings(
    task: str | None,
    run: str | None,
    session: str | None,
    key: str | None,
    source: str | None,
    labels: Mapping[str, str],
) -> Row:
    """The same, of what has no receipt."""
    stored = (_stored(task), _stored(run), _stored(session), _stored(key), _stored(source))
    return (*stored, labels_text(labels) if labels else None)


def labels_text(labels: Mapping[str, str]) -> str:
    """Labels as a JSON object, the same text for the same labels. Their names are in small letters, as headers have
    them; those that are alike then, or cut alike, are one."""
    return _labels_text(tuple(labels.items()))


@lru_cache(maxsize=4_096)
def _labels_text(labels: tuple[tuple[str, str], ...]) -> str:
    stored = {stored_label(name): stored_name(value) for name, value in labels}
    return _encode(dict(sorted(stored.items()))).decode()


@lru_cache(maxsize=4_096)
def labels_from(text: str | None) -> Mapping[str, str]:
    """What `labels_text` was made of. Rows of older versions have names in the letters that came."""
    found = {} if text is None else msgspec.json.decode(text, type=dict[str, str])
    return {name.lower(): value for name, value in found.items()}


def stored_kind(kind: str) -> str:
    """A kind of groups, to be asked for: of labels, the name as `labels_text` has it."""
    return (
        LABEL_KIND + stored_label(kind.removeprefix(LABEL_KIND)) if kind.startswith(LABEL_KIND) else stored_name(kind)
    )


def stored_label(name: str) -> str:
    """The name of a label as `labels_text` has it."""
    return stored_name(name.lower())


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


def split_cost(cost: Cost) -> Row | None:
    """The columns of money: whole dollars, rounded down, and the picodollars above them; then the picodollars of each
    of `MONEY_UNITS`, which sum to the same. None when they cannot hold it: more than nine million dollars for one unit,
    or something finer than a picodollar."""
    amounts = [0] * len(columns.MONEY_UNITS)
    for line in cost.lines:
        amount = picodollars_of(line.amount)
        if amount is None:
            return None
        amounts[_MONEY_PLACES.get(line.unit, _OTHER)] += amount
    if not -LARGEST_PICODOLLARS <= min(amounts) <= max(amounts) <= LARGEST_PICODOLLARS:
        return None
    return (*divmod(sum(amounts), PICODOLLARS_PER_DOLLAR), *amounts)


def picodollars_of(dollars: Decimal | None) -> int | None:
    """The amount in picodollars; None when a column cannot hold it, or there is none."""
    if dollars is None:
        return None
    numerator, denominator = dollars.as_integer_ratio()
    picodollars, finer = divmod(numerator * PICODOLLARS_PER_DOLLAR, denominator)
    return None if finer or abs(picodollars) > LARGEST_PICODOLLARS else picodollars


def join_money(picodollars: int) -> Decimal:
    """Picodollars as dollars, every digit of them."""
    return Decimal(picodollars).scaleb(-12, EXACT)


def cost_from(document: str) -> Decimal:
    """The total of the receipt's cost, as it stands in the document."""
    cost = record_from(document, Receipt).cost
    return Decimal(0) if cost is None else cost.total
