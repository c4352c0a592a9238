"""Many receipts at once: what importers hand over.

A hundred thousand calls a second have ten microseconds each, so nothing here is done once for each call that can be
done once for a batch: rows are tuples, forms are looked up once, sums are made of whole columns, and what is there
already is found by what is missing afterwards. Owns: that transaction. Refuses to know: whose log it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np

from taximeter.errors import LedgerError
from taximeter.ledger import rows, same_calls
from taximeter.ledger.batch import Batch, Statement
from taximeter.ledger.calls import Counts, stored_instants, texts_of
from taximeter.ledger.columns import TOKEN_COLUMNS
from taximeter.ledger.database import Away, Refused, Session
from taximeter.ledger.file_marks import FileMark, remember
from taximeter.ledger.firsts import LEAVE_OUT_SECOND_ONES, SECOND_ONES, are_named_after, has_others
from taximeter.ledger.forms import Call, Form
from taximeter.ledger.native_rows import Piece
from taximeter.ledger.sparse import Pattern
from taximeter.ledger.transactions import NewReceipt, is_there, next_number, write, write_one
from taximeter.records import Receipt

# ruff: noqa: S608 - all words of these statements are our own

MOST_AT_ONCE = 50_000
"""So many calls are appended together, unless the ledger is large."""

_MOST_IN_A_LARGE_ONE = 400_000  # some hundred bytes each, and two seconds in which nobody else writes
_PART_OF_A_LARGE_ONE = 10


@dataclass(slots=True, kw_only=True)
class Appended:
    """What became of many: how many are `written`, the ids of those that were `present` and of those that a gateway of
    ours has a receipt of (`through_gateway`: see `same_calls`), and what is neither.

    `different` are calls whose receipt is there with other tokens or another time: the call, the id of the newest
    receipt in its place, and the tokens which that one has of the call's leaves. `refused` are ids and reasons.
    `most_at_once` is how many calls are best appended together from now on, where as many are waiting.
    """

    written: int = 0
    present: list[str] = field(default_factory=list[str])
    through_gateway: list[str] = field(default_factory=list[str])
    different: list[tuple[Call, str, tuple[int | None, ...]]] = field(
        default_factory=list[tuple[Call, str, tuple[int | None, ...]]]
    )
    refused: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    most_at_once: int = MOST_AT_ONCE


class _NotKept(Exception):
    """Ends a transaction of which nothing is to stay."""


def append_many(
    session: Session,
    batch: Batch,
    marks: Iterable[FileMark] = (),
    *,
    guard: str | None = None,
    dry_run: bool = False,
    durable: bool = True,
) -> Appended:
    """All of it in one transaction, `durable` on return (see `Session.transaction`); with `dry_run`, nothing of it, and
    the same answer. What is there already is not written again. `guard` is a trigger that looks at each new receipt,
    and need not at these: it is away until the end of the transaction. Raises LedgerError when the database takes
    nothing."""
    appended = Appended()
    try:
        with session.transaction(durable=durable):
            receipts = _without_the_gateways(session, batch, appended)
            appended.refused += batch.refused
            if batch.calls:
                may_be_second = False
                lifted = None if guard is None else session.ask(_SQL_OF, guard)[0][0]
                if lifted is not None:
                    session.tell(f"DROP TRIGGER {guard}", [()])
                    may_be_second = not all(map(are_named_after, batch.joined)) or has_others(session)
                    if may_be_second:
                        session.tell(LEAVE_OUT_SECOND_ONES, [()])
                _append_calls(session, batch, appended)
                if lifted is not None:
                    if may_be_second:
                        session.tell(f"DROP TRIGGER {SECOND_ONES}", [()])
                    session.tell(lifted, [()])
            if receipts:
                _append_receipts(session, receipts, appended)
            remember(session, marks)
            if dry_run:
                raise _NotKept
    except _NotKept:
        pass
    appended.refused.sort()
    return appended


def _without_the_gateways(session: Session, batch: Batch, appended: Appended) -> list[Receipt]:
    """The receipts that are to be appended whole, and are of nothing that came through the gateway and has its receipt;
    nor are the calls then."""
    told: dict[str, str] = {}
    if same_calls.may_be_any(session, batch.calls):
        for some in batch.calls:
            at = texts_of(stored_instants(some.received_at))
            told.update((name, when) for name, when in zip(some.upstream_request_ids, at, strict=True) if name)
    logged = [(each, each.upstream_request_id) for each in batch.receipts if each.source is not None]
    told.update((name, rows.stored_instant(each.request.received_at)) for each, name in logged if name)
    there = same_calls.through_gateway(session, told.items()) if told else set[str]()
    if not there:
        return batch.receipts
    gone = [each.id for each, name in logged if name in there]
    appended.through_gateway += [*batch.leave_out(there), *gone]
    return [each for each in batch.receipts if each.id not in gone]


_SQL_OF = "SELECT sql FROM sqlite_master WHERE type = 'trigger' AND name = ?"


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


def _append_calls(session: Session, batch: Batch, appended: Appended) -> None:
    """Write what is not there; what is, is found by the numbers that are missing then."""
    first = next_number(session)
    batch.number_from(first)
    forms: dict[str, int] = {}
    for statement in batch.statements:
        for mine, _ in statement.parts:
            if mine.form.digest not in forms:
                forms[mine.form.digest] = _form_number(session, mine.form)
        if _insert(session, statement, forms):
            appended.most_at_once = _most_at_once(first)
    told = batch.numbers()
    missing = _missing(session, first, told)
    appended.written += len(told) - len(missing)
    _compare(session, batch.of_numbers(missing.tolist()), appended)
    for telling in batch.tellings(missing):
        session.tell(*telling)


def _most_at_once(there: int) -> int:
    """How many calls to append to so many. Their ids come in no order, so that each batch changes most pages of the
    index by id: the larger that is, the more calls have to share a page for each of them to cost as little."""
    return min(max(MOST_AT_ONCE, there // _PART_OF_A_LARGE_ONE), _MOST_IN_A_LARGE_ONE)


def _insert(session: Session, statement: Statement, forms: Mapping[str, int]) -> bool:
    """Rows of one shape, in the order of their numbers. Whether it was by columns."""
    if statement.insertion is not None:
        numbered: list[Piece] = [(forms[mine.form.digest], len(part.numbers)) for mine, part in statement.parts]
        if session.tell_columns(statement.insertion, numbered):
            return True
    told: defaultdict[Pattern | None, list[rows.Row]] = defaultdict(list)
    for mine, part in statement.parts:
        pattern, made = mine.rows(part, forms[mine.form.digest])
        told[pattern] += made
    for pattern, made in told.items():
        made.sort(key=_number_of)
        statement.parts[0][0].insert(session, pattern, made)
    return False


_number_of = itemgetter(0)


def _missing(session: Session, first: int, told: Counts) -> Counts:
    """Which of the numbers, all from `first` on, no receipt got."""
    if session.ask("SELECT count(*) FROM receipts WHERE number >= ?", first)[0][0] == len(told):
        return np.empty(0, dtype=np.int64)
    return np.setdiff1d(
        told, [number for (number,) in session.ask("SELECT number FROM receipts WHERE number >= ?", first)]
    )


def _compare(session: Session, calls: Sequence[Call], appended: Appended) -> None:
    """Calls that are there already, or other receipts of their requests."""
    for begin in range(0, len(calls), _AT_ONCE):
        some = calls[begin : begin + _AT_ONCE]
        newest: dict[str, rows.Row] = {row[0]: row for row in _asked(session, _OF_IDS, [call.id for call in some])}
        ends: dict[str, str] = {id_: id_ for id_ in newest}  # which call's chain of corrections it is that ends there
        while ends and (corrections := _asked(session, _CORRECTIONS, list(ends))):
            ends = {row[0]: ends[row[1]] for row in corrections}
            newest |= {ends[row[0]]: row for row in corrections}
        for call in some:
            row = newest.get(call.id)
            if row is None:
                reason = f"request {call.request_id} has a receipt already, by another id"
                appended.refused.append((call.id, reason))
                continue
            found = dict(zip(_COMPARED, row, strict=True))
            tokens = tuple(found[leaf] for leaf in call.form.leaves)
            if tokens == call.tokens and found["total_ns"] == call.total_ns:
                appended.present.append(found["id"])
            else:
                appended.different.append((call, found["id"], tokens))


_AT_ONCE = 100
_COMPARED = ("id", "supersedes", "total_ns", *TOKEN_COLUMNS)
_OF_IDS = f"SELECT {', '.join(_COMPARED)} FROM receipts WHERE id IN ({', '.join('?' * _AT_ONCE)})"
_CORRECTIONS = f"SELECT {', '.join(_COMPARED)} FROM receipts WHERE supersedes IN ({', '.join('?' * _AT_ONCE)})"


def _asked(session: Session, question: str, ids: Sequence[str]) -> list[rows.Row]:
    """What is there of at most `_AT_ONCE` ids. One statement for any number of them: the last one fills it up."""
    return session.ask(question, *ids, *[ids[-1]] * (_AT_ONCE - len(ids)))


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
