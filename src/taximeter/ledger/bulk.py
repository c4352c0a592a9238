"""Many receipts at once: what importers hand over.

A hundred thousand calls a second have ten microseconds each, so nothing here is done once for each call that can be
done once for a batch: rows are tuples, forms are looked up once, sums are made of whole columns, and what is there
already is found by what is missing afterwards. Owns: that transaction. Refuses to know: whose log it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import field
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any

import numpy as np

from taximeter.dataclass import dataclass
from taximeter.errors import LedgerError
from taximeter.ledger import rows, same_calls
from taximeter.ledger.call_columns import CallColumns, Part, Segment
from taximeter.ledger.calls import Calls, Counts, stored_instants, texts_of
from taximeter.ledger.columns import BELONGING_COLUMNS, PHASE_COLUMNS, RECEIPT_COLUMNS, REPORTED_COLUMN, TOKEN_COLUMNS
from taximeter.ledger.database import Away, Refused, Session
from taximeter.ledger.file_marks import FileMark, remember
from taximeter.ledger.forms import Call, Form, derive
from taximeter.ledger.rollups import Rollup
from taximeter.ledger.sparse import Pattern
from taximeter.ledger.transactions import NewReceipt, is_there, next_number, write, write_one
from taximeter.records import Receipt

# ruff: noqa: S608 - all words of these statements are our own


@dataclass(slots=True, kw_only=True)
class Appended:
    """What became of many: how many are `written`, the ids of those that were `present` and of those that a gateway of
    ours has a receipt of (`through_gateway`: see `same_calls`), and what is neither.

    `different` are calls whose receipt is there with other tokens or another time: the call, the id of the newest
    receipt in its place, and the tokens which that one has of the call's leaves. `refused` are ids and reasons.
    """

    written: int = 0
    present: list[str] = field(default_factory=list[str])
    through_gateway: list[str] = field(default_factory=list[str])
    different: list[tuple[Call, str, tuple[int | None, ...]]] = field(
        default_factory=list[tuple[Call, str, tuple[int | None, ...]]]
    )
    refused: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])


class _NotKept(Exception):
    """Ends a transaction of which nothing is to stay."""


def append_many(
    session: Session,
    entries: Iterable[Call | Calls | Receipt],
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
    calls: list[Calls] = []
    single: defaultdict[Form, list[Call]] = defaultdict(list)
    others: list[Receipt] = []
    for entry in entries:
        if isinstance(entry, Receipt):
            others.append(entry)
        elif isinstance(entry, Calls):
            calls.append(entry)
        elif entry.supersedes is None:
            single[entry.form].append(entry)
        else:
            others.append(_receipt_of(entry))
    appended = Appended()
    for form, some in single.items():
        calls += _together(form, some, appended)
    try:
        with session.transaction(durable=durable):
            _leave_to_the_gateway(session, calls, others, appended)
            if calls:
                lifted = None if guard is None else session.ask(_SQL_OF, guard)[0][0]
                if lifted is not None:
                    session.tell(f"DROP TRIGGER {guard}", [()])
                _append_calls(session, calls, appended)
                if lifted is not None:
                    session.tell(lifted, [()])
            if others:
                _append_receipts(session, others, appended)
            remember(session, marks)
            if dry_run:
                raise _NotKept
    except _NotKept:
        pass
    appended.refused.sort()
    return appended


def _leave_to_the_gateway(session: Session, calls: list[Calls], others: list[Receipt], appended: Appended) -> None:
    """Take out of both what has its receipt already, for it came through the gateway."""
    told: dict[str, str] = {}
    if same_calls.may_be_any(session, calls):
        for some in calls:
            at = texts_of(stored_instants(some.received_at))
            told.update((name, when) for name, when in zip(some.upstream_request_ids, at, strict=True) if name)
    logged = [(each, each.upstream_request_id) for each in others if each.source is not None]
    told.update((name, rows.stored_instant(each.request.received_at)) for each, name in logged if name)
    there = same_calls.through_gateway(session, told.items()) if told else set[str]()
    if not there:
        return
    left: list[Calls] = []
    for some in calls:
        names = some.upstream_request_ids
        appended.through_gateway += [id_ for id_, name in zip(texts_of(some.ids), names, strict=True) if name in there]
        places = [place for place, name in enumerate(names) if name not in there]
        left += [some.part(places)] if places else []
    calls[:] = left
    gone = {each.id for each, name in logged if name in there}
    appended.through_gateway += [each.id for each in others if each.id in gone]
    others[:] = [each for each in others if each.id not in gone]


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


def _of_one_statement(
    session: Session, calls: Iterable[Calls]
) -> Iterable[list[tuple[CallColumns, Calls, list[Segment]]]]:
    """Calls whose rows one statement writes: those of forms with one document joined, and which of them belong to the
    same."""
    together: defaultdict[tuple[object, ...], list[Calls]] = defaultdict(list)
    for some in calls:
        nothings = tuple([name is None for name in some.form.belongings])
        together[some.form.digest, len(some.tokens), nothings].append(some)
    columns: dict[str, CallColumns] = {}
    alike: defaultdict[tuple[object, ...], list[tuple[CallColumns, Calls, list[Segment]]]] = defaultdict(list)
    for (_, *shape), each in together.items():
        form = each[0].form
        mine = columns.get(form.digest)
        if mine is None:
            mine = columns[form.digest] = CallColumns(form, _form_number(session, form))
        ends = accumulate(map(len, each))
        segments = [(some.form, end - len(some), end) for some, end in zip(each, ends, strict=True)]
        alike[mine.shape, *shape].append((mine, Calls.joined(each), segments))
    return alike.values()


def _together(form: Form, calls: Sequence[Call], appended: Appended) -> list[Calls]:
    """By columns, those that these can hold; the others are refused."""
    try:
        return [Calls.of(form, calls)]
    except ValueError:
        if len(calls) > 1:
            return list(chain.from_iterable(_together(form, [call], appended) for call in calls))
        appended.refused.append((calls[0].id, _CANNOT_HOLD))
        return []


def _append_calls(session: Session, calls: Sequence[Calls], appended: Appended) -> None:
    """Write what is not there; what is, is found by the numbers that are missing then. Rows of one statement have
    numbers in a row, in the order of their ids, so that tables and indexes are gone through in one direction."""
    first = next_number(session)
    told = 0
    parts: list[tuple[CallColumns, Part]] = []
    numbered: list[tuple[Counts, Calls, list[Segment]]] = []
    refused: list[int] = []
    for alike in _of_one_statement(session, calls):
        ids = np.concatenate([some.ids for _, some, _ in alike])
        numbers = np.empty(len(ids), dtype=np.int64)
        numbers[np.argsort(ids, kind="stable")] = np.arange(first + told, first + told + len(ids))
        told += len(ids)
        begin = 0
        made_of: list[tuple[CallColumns, Part]] = []
        for mine, some, segments in alike:
            theirs = numbers[begin : (begin := begin + len(some))]
            numbered.append((theirs, some, segments))
            made_of += ((mine, part) for part in mine.parts(theirs, some, segments, refused))
        parts += made_of
        _insert(session, made_of, whole=not refused)
    appended.refused += [(call.id, _CANNOT_HOLD) for call in _called(refused, numbered)]
    missing = _missing(session, first, told - len(refused), parts)
    appended.written += told - len(refused) - len(missing)
    _compare(session, _called(missing.tolist(), numbered), appended)
    rollup = Rollup()
    for mine, part in parts:
        for key, sums in mine.sums(part, missing):
            rollup.add_sums(key, sums)
    rollup.write(session)


def _called(numbers: Sequence[int], numbered: Sequence[tuple[Counts, Calls, list[Segment]]]) -> list[Call]:
    """The calls that go by these numbers, by their ids. Each has the form of its own segment: those that were joined
    have the first one's, and would belong to its session."""
    found: list[Call] = []
    for theirs, some, segments in numbered if numbers else ():
        for place in np.flatnonzero(np.isin(theirs, numbers)).tolist():
            form = segments[bisect_right(segments, place, key=_begin_of) - 1][0]
            found.append(some.call(place)._replace(form=form))
    return sorted(found, key=_id_of)


def _insert(session: Session, parts: Sequence[tuple[CallColumns, Part]], *, whole: bool) -> None:
    """Rows of one shape, in the order of their numbers; `whole` says that none of these is left out."""
    if not parts:
        return
    all_alike = parts[0][0]
    if whole and session.tell_columns(all_alike.insertion(parts)):
        return
    told: defaultdict[Pattern | None, list[rows.Row]] = defaultdict(list)
    for mine, part in parts:
        pattern, made = mine.rows(part)
        told[pattern] += made
    for pattern, made in told.items():
        made.sort(key=_number_of)
        all_alike.insert(session, pattern, made)


_number_of = itemgetter(0)
_begin_of = itemgetter(1)
_id_of = itemgetter(Call._fields.index("id"))
_CANNOT_HOLD = "its names, times or numbers are none that a row can hold"


def _missing(session: Session, first: int, count: int, parts: Iterable[tuple[CallColumns, Part]]) -> Counts:
    """Which of the `count` numbers, all from `first` on, no receipt got."""
    if session.ask("SELECT count(*) FROM receipts WHERE number >= ?", first)[0][0] == count:
        return np.empty(0, dtype=np.int64)
    there = [number for (number,) in session.ask("SELECT number FROM receipts WHERE number >= ?", first)]
    return np.setdiff1d(np.concatenate([part.numbers for _, part in parts]), there)


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


def _receipt_of(call: Call) -> Receipt:
    """What a call stands for, as a receipt of its own."""
    row: dict[str, Any] = dict.fromkeys(RECEIPT_COLUMNS) | dict(zip(call.form.leaves, call.tokens, strict=True))
    row |= dict.fromkeys(PHASE_COLUMNS, 0) | dict(zip(BELONGING_COLUMNS, call.form.belongings, strict=True))
    row |= {name: getattr(call, name) for name in _OF_A_CALL}
    row |= {"total_ns": call.total_ns, "upstream_ns": call.total_ns, "first_token_ns": call.first_token_ns}
    return derive(call.form.prototype, row | {REPORTED_COLUMN: rows.picodollars_of(call.reported)})


_OF_A_CALL = ("id", "request_id", "received_at", "closed_at", "supersedes", "upstream_request_id")
