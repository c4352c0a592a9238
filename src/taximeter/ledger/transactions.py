"""What is written together: a request taken up, a receipt with its document and its place in the sums, a task's end,
an interruption.

Owns: every INSERT and DELETE of the ledger, and the sentence for each one that is refused. Refuses to know: threads,
files and commits. Each function works inside the caller's transaction.

In plain SQL: before its first answer a server writes, and asks nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import ClassVar

from taximeter.errors import LedgerError
from taximeter.ledger import rows
from taximeter.ledger.columns import NOTE_COLUMNS, RECEIPT_COLUMNS, TASK_END_COLUMNS
from taximeter.ledger.database import Refused, Session
from taximeter.ledger.documents import document, line, record_from
from taximeter.ledger.firsts import first_of
from taximeter.ledger.forms import derive
from taximeter.ledger.rollups import Rollup
from taximeter.ledger.same_calls import of_a_log
from taximeter.ledger.sparse import insert
from taximeter.records import Outcome, Receipt, Request, Task

_log = logging.getLogger(__name__)

_PROCESS_ENDED = "the process ended before the answer did"
_LATE = "_late"


@dataclass(frozen=True)
class NewRequest:
    """A request ready to be noted as in flight. `line` is what a spool gets of it; its row is made when the database is
    told, which for most is never: their receipts come first."""

    request: Request
    receipt_id: str
    writer_id: str
    line: str = field(compare=False)
    durable: ClassVar[bool] = False  # past a power cut its client is gone, and so is its answer
    is_receipt: ClassVar[bool] = False

    @classmethod
    def of(cls, request: Request, receipt_id: str, writer_id: str) -> NewRequest:
        return cls(request, receipt_id, writer_id, line(request))

    @property
    def request_id(self) -> str:
        return rows.stored_text(self.request.id)

    @cached_property
    def row(self) -> rows.Row:
        return rows.request_row(self.request, self.receipt_id, self.writer_id, document(self.request))


@dataclass(frozen=True)
class NewReceipt:
    """A receipt ready to be written. It clears its request's note. `line` is what a spool gets of it."""

    receipt: Receipt
    line: str = field(compare=False)
    durable: ClassVar[bool] = True
    is_receipt: ClassVar[bool] = True

    @classmethod
    def of(cls, receipt: Receipt) -> NewReceipt:
        return cls(receipt, line(receipt))

    @cached_property
    def row(self) -> rows.Row:
        return rows.receipt_row(self.receipt)

    @cached_property
    def document(self) -> str:
        return document(self.receipt)

    @property
    def id(self) -> object:
        return self.row[0]

    @property
    def request_id(self) -> object:
        return self.row[1]

    @property
    def supersedes(self) -> object:
        return self.row[2]


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """That somebody said how a task ended."""

    finished_at: str
    task: Task
    document: str
    durable: ClassVar[bool] = True
    is_receipt: ClassVar[bool] = False

    @classmethod
    def of(cls, task: Task) -> TaskEnd:
        if task.finished_at is None:
            raise ValueError(f"task {task.name} has not ended")
        return cls(rows.stored_instant(task.finished_at), task, document(task))


Entry = NewRequest | NewReceipt | TaskEnd


def packed(entry: Entry) -> str:
    """The entry as one line of text, for `unpacked`. It has no line break in it."""
    match entry:
        case NewRequest():
            return f"B {json.dumps([entry.receipt_id, entry.writer_id])}\t{entry.line}"
        case NewReceipt():
            return f"R \t{entry.line}"
        case TaskEnd():
            return f"T \t{entry.document}"
        case _:
            raise TypeError(type(entry))


def unpacked(line: str) -> Entry:
    """The entry that `line` was made from. Raises LedgerError for what this version does not know."""
    kind, _, rest = line.partition(" ")
    head, _, text = rest.partition("\t")
    match kind:
        case "B":
            receipt_id, writer_id = json.loads(head)
            return NewRequest(record_from(text, Request), receipt_id, writer_id, text)
        case "R":
            return NewReceipt(record_from(text, Receipt), text)
        case "T":
            return TaskEnd.of(record_from(text, Task))
        case _:
            raise LedgerError(f"an entry of kind {kind[:8]!r} cannot be read", hint="a newer Taximeter wrote it")


def write(session: Session, entries: Sequence[Entry]) -> None:
    """All of `entries`, in as few statements as there are tables. Raises Refused when one is refused."""
    ended = [_for_its_call(session, entry) for entry in entries if isinstance(entry, NewReceipt)]
    over = {entry.request_id for entry in ended}
    began = (entry for entry in entries if isinstance(entry, NewRequest))
    # A note that is cleared in the same breath need not be written.
    session.tell(_INSERT_NOTE, [entry.row for entry in began if entry.request_id not in over])
    if ended:
        number = next_number(session)
        insert(session, "receipts", _RECEIPT, [(number + place, *entry.row) for place, entry in enumerate(ended)])
        session.tell(_INSERT_DOCUMENT, [(number + place, entry.document) for place, entry in enumerate(ended)])
        session.tell("DELETE FROM in_flight WHERE request_id = ?", [(entry.request_id,) for entry in ended])
        rollup = Rollup()
        for entry in ended:
            rollup.add(entry.row)
            if entry.supersedes is not None:
                rollup.take(session.ask(_CORRECTED, entry.supersedes)[0])
        rollup.write(session)
    for entry in entries:
        if isinstance(entry, TaskEnd):
            _write_task_end(session, entry)


def _for_its_call(session: Session, entry: NewReceipt) -> NewReceipt:
    """The receipt; where a log has given its call one already, as the correction of that."""
    logged = of_a_log(session, entry.receipt)
    return entry if logged is None else NewReceipt.of(replace(entry.receipt, supersedes=logged))


def _inserting(table: str, names: Sequence[str]) -> str:
    """Table and columns are our own words, never a stranger's."""
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608 - see above


_RECEIPT = ("number", *RECEIPT_COLUMNS)
_INSERT_DOCUMENT = _inserting("documents", ("number", "document"))
_INSERT_NOTE = _inserting("in_flight", NOTE_COLUMNS)
_INSERT_TASK_END = _inserting("task_ends", TASK_END_COLUMNS)
_CORRECTED = f"SELECT {', '.join(RECEIPT_COLUMNS)} FROM receipts WHERE id = ?"  # noqa: S608 - as above


def next_number(session: Session) -> int:
    """The number of the next receipt. Only whoever may write now, asks."""
    return int(session.ask("SELECT coalesce(max(number), 0) + 1 FROM receipts")[0][0])


def write_one(session: Session, entry: Entry) -> None:
    """One entry, undone when it fails. Writing again what is there already is no error. Raises LedgerError when the
    ledger's own rules refuse it."""
    if is_there(session, entry):
        return
    try:
        with session.savepoint():
            write(session, [entry])
    except Refused as refused:
        late = _late(session, entry) if isinstance(entry, NewReceipt) else None
        if late is not None:
            write_one(session, late)
            return
        said = _refusal(session, entry)
        if said is None:  # no rule of the ledger's
            raise
        raise LedgerError(said, hint="a correction names what it `supersedes`") from refused


def is_there(session: Session, entry: Entry) -> bool:
    match entry:
        case NewRequest():
            request_id, _, writer_id, _, text = entry.row
            there = "SELECT document FROM in_flight WHERE request_id = ? AND writer_id = ?"
            return _scalar(session, there, request_id, writer_id) == text
        case NewReceipt():
            there, meant = _receipt(session, entry.id), record_from(entry.document, Receipt)
            # What `_for_its_call` made of it is the same.
            return there is not None and there == replace(meant, supersedes=meant.supersedes or there.supersedes)
        case _:
            return False  # see `_write_task_end`


def _late(session: Session, entry: NewReceipt) -> NewReceipt | None:
    """The receipt as a correction of the one that was written in its place, by somebody who took us for dead; None when
    none was."""
    instead = _receipt(session, entry.id)
    if instead is None or entry.supersedes is not None:
        return None
    if instead.outcome is not Outcome.INTERRUPTED or instead.unmeasured_reason != _PROCESS_ENDED:
        return None
    receipt = record_from(entry.document, Receipt)
    return NewReceipt.of(replace(receipt, id=f"{receipt.id}{_LATE}", supersedes=receipt.id))


def _refusal(session: Session, entry: Entry) -> str | None:
    """Which rule of the ledger's `entry` breaks, None when it is none."""
    match entry:
        case NewRequest():
            return f"request {entry.request_id} is in flight already, with other contents or in another process"
        case NewReceipt():
            return _refused_receipt(session, entry)
        case _:
            return None


def _refused_receipt(session: Session, entry: NewReceipt) -> str | None:
    if _scalar(session, "SELECT id FROM receipts WHERE id = ?", entry.id):
        return f"there is a receipt {entry.id} already, and it says something else"
    if entry.supersedes is None:
        first = _first_receipt(session, entry.request_id)
        return None if first is None else f"request {entry.request_id} has a receipt already: {first}"
    corrected = _scalar(session, "SELECT request_id FROM receipts WHERE id = ?", entry.supersedes)
    if corrected != entry.request_id and entry.supersedes != of_a_log(session, replace(entry.receipt, supersedes=None)):
        return f"{entry.id} supersedes {entry.supersedes}, which is no receipt of the same request"
    correction = _scalar(session, "SELECT id FROM receipts WHERE supersedes = ?", entry.supersedes)
    return None if correction is None else f"{entry.supersedes} is corrected already, by {correction}"


def _first_receipt(session: Session, request_id: object) -> object:
    """Of a request; it may correct what a log has (`_for_its_call`)."""
    question, values = first_of(str(request_id))
    return _scalar(session, question, *values) or _scalar(session, FIRST_CORRECTION, request_id)


FIRST_CORRECTION = "SELECT id FROM receipts WHERE request_id = ? AND supersedes IS NOT NULL ORDER BY number LIMIT 1"


def _receipt(session: Session, receipt_id: object) -> Receipt | None:
    """The receipt with that id; None where there is none, or none that this version can read."""
    found = session.ask(_WHOLE, receipt_id)
    if not found:
        return None
    *row, document, form = found[0]
    try:
        if document is not None:
            return record_from(document, Receipt)
        return derive(record_from(form, Receipt), dict(zip(RECEIPT_COLUMNS, row, strict=True)))
    except LedgerError:
        return None


_WHOLE = (
    f"SELECT {', '.join(f'receipts.{name}' for name in RECEIPT_COLUMNS)}, documents.document, forms.document"  # noqa: S608 - as above
    " FROM receipts LEFT JOIN documents ON documents.number = receipts.number"
    " LEFT JOIN forms ON forms.number = receipts.form WHERE receipts.id = ?"
)


def _scalar(session: Session, question: str, *values: object) -> object:
    """The first column of the first row, None where there is no row."""
    found = session.ask(question, *values)
    return found[0][0] if found else None


def _write_task_end(session: Session, entry: TaskEnd) -> None:
    """What was said before stays. The same word again is no news, unless the task has started anew since; and neither
    is one that comes twice because nobody knew whether it had been written."""
    name, succeeded = rows.stored_name(entry.task.name), entry.task.succeeded
    said = session.ask("SELECT number, succeeded, document FROM task_ends WHERE name = ? ORDER BY number", name)
    if any(text == entry.document for _, _, text in said):
        return
    if said and bool(said[-1][1]) == succeeded and not session.ask(_STARTED_SINCE, name, name):
        return
    number = said[-1][0] + 1 if said else 1
    session.tell(_INSERT_TASK_END, [(name, number, entry.finished_at, succeeded, entry.document)])


_STARTED_SINCE = (
    "SELECT 1 FROM task_rules WHERE word = 'start' AND task = ? AND said_at >="
    " (SELECT finished_at FROM task_ends WHERE name = ? ORDER BY number DESC LIMIT 1) LIMIT 1"
)


def tell_loss(session: Session, writer_id: str, receipts: int, at: datetime) -> None:
    """That `writer_id` lost so many receipts, as it counted them itself."""
    session.tell(
        "INSERT INTO losses (writer_id, told_at, receipts) VALUES (?, ?, ?)"
        " ON CONFLICT (writer_id) DO UPDATE SET receipts = excluded.receipts",
        [(writer_id, rows.stored_instant(at), receipts)],
    )


def losses(session: Session) -> int:
    """All receipts that were lost by processes that have ended."""
    return int(session.ask("SELECT coalesce(sum(receipts), 0) FROM losses")[0][0])


def unheard_of(session: Session, request_ids: Iterable[str]) -> int:
    """How many of these requests have neither a receipt nor a note."""
    noted = "SELECT 1 FROM in_flight WHERE request_id = ?"
    return sum(_first_receipt(session, each) is None and not session.ask(noted, each) for each in request_ids)


def writers_with_notes(session: Session) -> set[str]:
    """Everybody, living or dead, who left a request in flight."""
    return {writer_id for (writer_id,) in session.ask("SELECT DISTINCT writer_id FROM in_flight")}


def interrupt(session: Session, writer_id: str, at: datetime) -> None:
    """Close what `writer_id` left in flight: each request gets a receipt that says so.

    A note that this version cannot read stays, for one that can.
    """
    left = "SELECT request_id, receipt_id, document FROM in_flight WHERE writer_id = ?"
    for request_id, receipt_id, text in session.ask(left, writer_id):
        if _first_receipt(session, request_id) is not None:
            session.tell("DELETE FROM in_flight WHERE request_id = ?", [(request_id,)])
            continue
        try:
            request = record_from(text, Request)
        except LedgerError as error:
            _log.warning("left in flight: %s", error)
            continue
        write(session, [NewReceipt.of(_interrupted(request, receipt_id, at))])


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
