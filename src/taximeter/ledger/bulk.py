"""Many receipts at once: what importers hand over.

A hundred thousand calls a second have ten microseconds each, so nothing here is done once for each call that can be
done once for a batch: rows are tuples, forms are looked up once, sums are made of whole columns, and what is there
already is found by what is missing afterwards. Owns: that transaction, and how far files have been read, a part of it.
Refuses to know: whose log it is, and what the importer's own documents say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from taximeter.errors import LedgerError
from taximeter.ledger import rows
from taximeter.ledger.columns import (
    BELONGING_COLUMNS,
    BUCKET_COLUMNS,
    HOUR_KEYS,
    MONEY_COLUMNS,
    PHASE_COLUMNS,
    RECEIPT_COLUMNS,
    REPORTED_COLUMN,
    TOKEN_COLUMNS,
    UNKNOWN_COLUMNS,
)
from taximeter.ledger.database import Away, Refused, Session
from taximeter.ledger.forms import Call, Form, derive
from taximeter.ledger.rollups import Key, Rollup, Sums, hour_of
from taximeter.ledger.sparse import insert
from taximeter.ledger.transactions import NewReceipt, is_there, next_number, write, write_one
from taximeter.records import PICODOLLARS_PER_DOLLAR, Basis, Receipt, Usage, gap_ns

# ruff: noqa: S608 - all words of these statements are our own

_INSTANT = "0000-00-00 00:00:00.000000"
_TO_ZEROS = str.maketrans(dict.fromkeys("123456789", "0"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMark:
    """How far the file at `path` has been read for `source`: the `document` is the importer's own."""

    source: str
    path: str
    document: str


@dataclass(slots=True, kw_only=True)
class Appended:
    """What became of many: how many are `written`, the ids of those that were `present`, and what is neither.

    `different` are calls whose receipt is there with other tokens or another time: the call, the id of the newest
    receipt in its place, and the tokens which that one has of the call's leaves. `refused` are ids and reasons.
    """

    written: int = 0
    present: list[str] = field(default_factory=list[str])
    different: list[tuple[Call, str, tuple[int | None, ...]]] = field(
        default_factory=list[tuple[Call, str, tuple[int | None, ...]]]
    )
    refused: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])


class _NotKept(Exception):
    """Ends a transaction of which nothing is to stay."""


def append_many(
    session: Session,
    entries: Iterable[Call | Receipt],
    marks: Iterable[FileMark] = (),
    *,
    guard: str | None = None,
    dry_run: bool = False,
) -> Appended:
    """All of it in one transaction, durable on return; with `dry_run`, nothing of it, and the same answer. What is
    there already is not written again. `guard` is a trigger that looks at each new receipt, and need not at these: it
    is away until the end of the transaction. Raises LedgerError when the database takes nothing."""
    calls: list[Call] = []
    others: list[Receipt] = []
    for entry in entries:
        if isinstance(entry, Receipt):
            others.append(entry)
        elif entry.supersedes is None:
            calls.append(entry)
        else:
            others.append(_receipt_of(entry))
    appended = Appended()
    try:
        with session.transaction():
            if calls:
                lifted = None if guard is None else session.ask(_SQL_OF, guard)[0][0]
                if lifted is not None:
                    session.tell(f"DROP TRIGGER {guard}", [()])
                _append_calls(session, calls, appended)
                if lifted is not None:
                    session.tell(lifted, [()])
            if others:
                _append_receipts(session, others, appended)
            session.tell(
                _MARK, [tuple(map(rows.stored_text, (mark.source, mark.path, mark.document))) for mark in marks]
            )
            if dry_run:
                raise _NotKept
    except _NotKept:
        pass
    return appended


_SQL_OF = "SELECT sql FROM sqlite_master WHERE type = 'trigger' AND name = ?"
_MARK = (
    "INSERT INTO file_marks (source, path, document) VALUES (?, ?, ?)"
    " ON CONFLICT (source, path) DO UPDATE SET document = excluded.document"
)


def _append_receipts(session: Session, receipts: Sequence[Receipt], appended: Appended) -> None:
    """Whole receipts: together if nothing speaks against it, else one by one."""
    entries: list[NewReceipt] = []
    for receipt in receipts:
        try:
            entries.append(NewReceipt.of(receipt))
        except LedgerError as error:
            appended.refused.append((receipt.id, str(error)))
    try:
        with session.savepoint():
            write(session, entries)
    except Refused:
        pass
    else:
        appended.written += len(entries)
        return
    for entry in entries:
        if is_there(session, entry):
            appended.present.append(str(entry.id))
            continue
        try:
            write_one(session, entry)
        except Away:
            raise
        except LedgerError as error:
            appended.refused.append((str(entry.id), str(error)))
        else:
            appended.written += 1


def _append_calls(session: Session, calls: Sequence[Call], appended: Appended) -> None:
    """Write what is not there; what is, is found by the numbers that are missing then."""
    first = next_number(session)
    columns: dict[str, _Columns] = {}
    told: defaultdict[_Columns, list[rows.Row]] = defaultdict(list)
    for number, call in enumerate(calls, first):
        form = call.form
        mine = columns.get(form.digest)
        if mine is None:
            mine = columns[form.digest] = _Columns(form, _form_number(session, form))
        told[mine].append(mine.row(number, call))
    rollup, numbers = Rollup(), list[int]()
    for mine, made in told.items():
        if not mine.can_hold(made):
            fitting = [row for row in made if mine.can_hold([row])]
            refused: set[int] = {row[0] for row in made} - {row[0] for row in fitting}
            appended.refused += [(calls[number - first].id, _CANNOT_HOLD) for number in sorted(refused)]
            made[:] = fitting
        mine.insert(session, made)
        numbers += [row[0] for row in made]
    missing = _missing(session, first, numbers)
    appended.written += len(numbers) - len(missing)
    for number in sorted(missing):
        _compare(session, calls[number - first], appended)
    for mine, made in told.items():
        parts: defaultdict[tuple[str, Form], list[rows.Row]] = defaultdict(list)
        for row in made:
            number = int(row[0])
            if number not in missing:
                parts[row[4][:13], calls[number - first].form].append(row)
        for (_, form), rows_of_part in parts.items():
            rollup.add_sums(*mine.sums(form.belongings, rows_of_part))
    rollup.write(session)


_CANNOT_HOLD = "its names, times or numbers are none that a row can hold"


def _missing(session: Session, first: int, numbers: Sequence[int]) -> frozenset[int]:
    """Which of the numbers, all from `first` on, no receipt got."""
    if session.ask("SELECT count(*) FROM receipts WHERE number >= ?", first)[0][0] == len(numbers):
        return frozenset()
    there = {number for (number,) in session.ask("SELECT number FROM receipts WHERE number >= ?", first)}
    return frozenset(numbers) - there


def _compare(session: Session, call: Call, appended: Appended) -> None:
    """A call that is there already, or another receipt of its request."""
    newest = session.ask(_OF_ID, call.id)
    if not newest:
        appended.refused.append((call.id, f"request {call.request_id} has a receipt already, by another id"))
        return
    while correction := session.ask(_CORRECTION, newest[0][0]):
        newest = correction
    found = dict(zip(RECEIPT_COLUMNS, newest[0], strict=True))
    tokens = tuple(found[leaf] for leaf in call.form.leaves)
    if tokens == call.tokens and found["total_ns"] == call.total_ns:
        appended.present.append(found["id"])
    else:
        appended.different.append((call, found["id"], tokens))


_OF_ID = f"SELECT {', '.join(RECEIPT_COLUMNS)} FROM receipts WHERE id = ?"
_CORRECTION = f"SELECT {', '.join(RECEIPT_COLUMNS)} FROM receipts WHERE supersedes = ?"


def _form_number(session: Session, form: Form) -> int:
    """By which number the form goes here; it is written when it is new."""
    found = session.ask("SELECT number FROM forms WHERE digest = ?", form.digest)
    if found:
        return int(found[0][0])
    number = int(session.ask("SELECT coalesce(max(number), 0) + 1 FROM forms")[0][0])
    session.tell(
        "INSERT INTO forms (number, digest, document) VALUES (?, ?, ?)", [(number, form.digest, form.document)]
    )
    return number


def _receipt_of(call: Call) -> Receipt:
    """What a call stands for, as a receipt of its own."""
    row: dict[str, Any] = dict.fromkeys(RECEIPT_COLUMNS) | dict(zip(call.form.leaves, call.tokens, strict=True))
    row |= dict.fromkeys(PHASE_COLUMNS, 0) | dict(zip(BELONGING_COLUMNS, call.form.belongings, strict=True))
    row |= {name: getattr(call, name) for name in _OF_A_CALL}
    row |= {"total_ns": call.total_ns, "upstream_ns": call.total_ns, "first_token_ns": call.first_token_ns}
    return derive(call.form.prototype, row | {REPORTED_COLUMN: rows.picodollars_of(call.reported)})


_OF_A_CALL = ("id", "request_id", "received_at", "closed_at", "supersedes", "upstream_request_id")
_OF_A_FORM = ("outcome", "model", "served_by", "usage_basis", "cost_basis", "form")
_OF_A_TIMING = ("total_ns", "upstream_ns", "first_token_ns", "itl_ns")
_TOO_FINE = -(10**30)  # in the place of what a log says, and what no column can hold
_LARGEST_DOLLARS = rows.LARGEST_PICODOLLARS // PICODOLLARS_PER_DOLLAR
_DOLLARS = -len(BELONGING_COLUMNS) - len(_OF_A_FORM) - 2
_FIRST_TOKENS = 7  # in a row, behind the names, times and what the log says that it cost


def _stored_amount(reported: Decimal | None) -> int | None:
    """In picodollars; `_TOO_FINE` where it is finer than that."""
    if reported is None:
        return None
    picodollars = rows.picodollars_of(reported)
    return _TOO_FINE if picodollars is None else picodollars


class _Columns:
    """Which columns the calls of forms with one document fill, and how.

    A row is: number, id, request_id, received_at, closed_at, upstream_request_id, reported; then the tokens; the times,
    where there are any; the amounts and the cost, where there are prices; what it belongs to, and what is the form's.
    """

    def __init__(self, form: Form, number: int) -> None:
        usage, timing = form.prototype.usage, form.prototype.timing
        assert usage is not None  # noqa: S101 - see `Form.of`
        constants: dict[str, Any] = dict(zip(RECEIPT_COLUMNS, rows.receipt_row(form.prototype), strict=True))
        constants["form"] = number
        self._constants = tuple(constants[name] for name in _OF_A_FORM)
        self._key = {name: constants[name] for name in HOUR_KEYS}
        self._leaves = form.leaves
        self._rates = form.rates
        self._timed = timing is not None
        unknown = tuple(name for name, count in usage.leaves().items() if count is None)
        self._unknown = tuple(UNKNOWN_COLUMNS[name] for name in unknown)
        divisible = usage.basis is not Basis.DERIVED and not set(unknown) & set(Usage.OUTPUT_LEAVES)
        outputs = [form.leaves.index(name) for name in Usage.OUTPUT_LEAVES if name in form.leaves]
        self._outputs = outputs if divisible else None
        names = ["number", "id", "request_id", "received_at", "closed_at", "upstream_request_id", REPORTED_COLUMN]
        names += form.leaves
        zeros = [name for name in TOKEN_COLUMNS if name not in form.leaves and name not in unknown]
        if self._timed:
            names += _OF_A_TIMING
            zeros += [name for name in PHASE_COLUMNS if name not in _OF_A_TIMING]
        if form.rates is not None:
            names += [*(BUCKET_COLUMNS[leaf] for leaf in form.leaves), *MONEY_COLUMNS]
            zeros += [column for unit, column in BUCKET_COLUMNS.items() if unit not in form.leaves]
        self._names = (*names, *BELONGING_COLUMNS, *_OF_A_FORM)
        self._also = ", ".join([*zeros, "off_scale", "stream"])
        self._values = ", ".join([*("0" for _ in zeros), "0", "TRUE" if constants["stream"] else "FALSE"])

    def insert(self, session: Session, made: Sequence[rows.Row]) -> None:
        """What is 0 for all of them is a part of the statement. What is there already stays."""
        insert(
            session,
            "receipts",
            self._names,
            made,
            also=self._also,
            values=self._values,
            behind=" ON CONFLICT DO NOTHING",
        )

    def row(self, number: int, call: Call) -> rows.Row:
        """Of any call; whether a database can hold it is found out for all together."""
        form, id_, request_id, received_at, closed_at, tokens, total_ns, first_ns, reported, theirs, _ = call
        times: rows.Row = ()
        if self._timed:
            itl_ns = None
            if self._outputs is not None:
                itl_ns = gap_ns(total_ns, first_ns, sum([tokens[place] for place in self._outputs]))
            times = (total_ns, total_ns, first_ns, itl_ns)
        elif total_ns is not None or first_ns is not None:
            times = (total_ns,)  # makes the row too long, and it is refused
        amounts: Sequence[int] = ()
        if self._rates is not None:
            amounts = [count * rate for count, rate in zip(tokens, self._rates, strict=False)]
            amounts += divmod(sum(amounts), PICODOLLARS_PER_DOLLAR)
        said = (number, id_, request_id, received_at, closed_at, theirs, _stored_amount(reported))
        return (*said, *tokens, *times, *amounts, *form.belongings, *self._constants)

    def can_hold(self, made: Sequence[rows.Row]) -> bool:
        """Whether the database can hold all of these."""
        try:
            columns = list(zip(*made, strict=True))
        except ValueError:  # one says other tokens or times than the form's
            return False
        _, ids, request_ids, received_at, closed_at, _, reported, *numbers = columns
        tokens = numbers[: len(self._leaves)]
        times = "".join((*received_at, *closed_at)).translate(_TO_ZEROS)
        if len(columns) != len(self._names) or times != 2 * len(made) * _INSTANT:
            return False
        if not ("".join(ids).isascii() and "".join(request_ids).isascii()) or _TOO_FINE in reported:
            return False
        if min(map(min, tokens)) < 0 or max(map(max, tokens)) > rows.LARGEST:
            return False
        if self._timed:
            total_ns, _, first_ns, _ = numbers[len(self._leaves) : len(self._leaves) + 4]
            if None in total_ns or min(total_ns) < 0 or max(total_ns) > rows.LARGEST:
                return False
            if not all(first is None or 0 <= first <= total for first, total in zip(first_ns, total_ns, strict=True)):
                return False
        return self._rates is None or max(numbers[_DOLLARS]) < _LARGEST_DOLLARS

    def sums(self, belongings: rows.Row, written: Sequence[rows.Row]) -> tuple[Key, Sums]:
        """The key and the sums of rows that were closed within an hour, and belong to the same."""
        columns = list(zip(*written, strict=True))
        sums = Sums({"receipts": len(written)}, {}, 0, min(columns[3]), max(columns[4]))
        place = _FIRST_TOKENS
        for leaf in self._leaves:
            sums.counts[leaf] = sum(columns[place])
            place += 1
        if self._unknown:
            sums.uncounted = len(written)
            sums.counts |= dict.fromkeys(self._unknown, len(written))
        if self._timed:
            total, _, first, itl = columns[place : place + 4]
            sums.counts |= {"total_ns": sum(total), "upstream_ns": sum(total), "timed": len(written)}
            sums.counts |= {"first_token_ns": sum(filter(None, first)), "first_tokens": len(first) - first.count(None)}
            sums.counts["itls"] = len(itl) - itl.count(None)
            place += 4
        if self._rates is None:
            sums.counts["unpriced"] = len(written)
        else:
            for leaf in self._leaves:
                sums.picodollars[leaf] = sum(columns[place])
                place += 1
            sums.picodollars["cost"] = sum(sums.picodollars.values())
        reported = [picodollars for picodollars in columns[6] if picodollars is not None]
        if reported:
            sums.counts["reported"], sums.picodollars["reported"] = len(reported), sum(reported)
        sums.counts = {name: count for name, count in sums.counts.items() if count}
        sums.picodollars = {name: amount for name, amount in sums.picodollars.items() if amount}
        key = self._key | dict(zip(BELONGING_COLUMNS, belongings, strict=True))
        return (hour_of(written[0][4]), *key.values()), sums
