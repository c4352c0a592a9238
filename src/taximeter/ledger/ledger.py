"""The ledger: append, correct by appending, and ask.

Owns: opening and closing, and the public face of writing and reading. Refuses to know: prices, backends, doors.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import threading
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import TYPE_CHECKING, Self

from taximeter.clock import SYSTEM_CLOCK, Clock
from taximeter.errors import LedgerError
from taximeter.ledger.arrival import Arrival
from taximeter.ledger.database import Away, Database, Session, as_ledger_error, database_at
from taximeter.ledger.file_marks import FileMark, file_marks
from taximeter.ledger.forms import Call
from taximeter.ledger.journal import Journal
from taximeter.ledger.keeper import Keeper
from taximeter.ledger.late import NoSession, may_come_back
from taximeter.ledger.liveness import WriterLock, WriterLocks
from taximeter.ledger.rows import stored_name
from taximeter.ledger.spool import JOURNAL, Spool
from taximeter.ledger.sqlite import Sqlite
from taximeter.ledger.totals import CostTotals, Dearest, GroupTotals, Slice, UsageTotals
from taximeter.ledger.transactions import tell_loss
from taximeter.ledger.writer import LedgerCounts, Writer
from taximeter.records import Receipt, Request, Task, TaskWord, TaskWords, new_id

if TYPE_CHECKING:
    from taximeter.ledger.batch import Batch
    from taximeter.ledger.bulk import Appended
    from taximeter.ledger.calls import Calls
    from taximeter.ledger.reader import Reader

_log = logging.getLogger(__name__)

_SPOOL_BYTES = 256 << 20  # some 80,000 receipts


class Ledger:
    """A database of receipts. Safe to use from many threads, and to have open in many processes at once.

    `lost_before` is how many receipts were lost by processes that have ended, as far as they could tell; None until the
    database, which may be away, has been seen.
    """

    def __init__(
        self,
        database: Database,
        writer: Writer,
        keeper: Keeper,
        arrival: Arrival,
        lock: WriterLock,
        on_close: ExitStack,
        *,
        busy_timeout_s: float,
    ) -> None:
        """For `open` only."""
        self._database = database
        self._busy_timeout_s = busy_timeout_s
        self._writer = writer
        self._keeper = keeper
        self._arrival = arrival
        self._lock = lock
        self._on_close = on_close
        self._reader: Reader | None = None
        self._making_reader = threading.Lock()
        self._appending = threading.Lock()
        self._bulk: Session | None = None
        self._closed = False
        self._process_id = os.getpid()
        atexit.register(self.close)  # a program that forgets to close loses nothing that it appended

    @classmethod
    def open_to_ask(cls, url: str, *, spool: Path | None = None) -> Self:
        """The same for who only asks: a file that may be read and not written is asked in a copy, which is gone when
        closed. Raises as `open` does."""
        try:
            return cls.open(url, spool=spool)
        except LedgerError as error:
            from taximeter.ledger.read_only import copied, is_for_reading  # noqa: PLC0415  # hardly ever

            database = database_at(url, spool=spool)
            if not isinstance(database, Sqlite) or not is_for_reading(database, error):
                raise
            with ExitStack() as undo:
                folder = Path(mkdtemp(prefix="taximeter-"))
                undo.callback(shutil.rmtree, folder, ignore_errors=True)
                try:
                    copy = copied(database, folder)
                except OSError as failed:
                    raise as_ledger_error(failed, database.name) from failed
                ledger = cls.open(str(copy))
                undo.callback(ledger._on_close.close)  # noqa: SLF001 - of our own kind
                ledger._on_close = undo.pop_all()  # noqa: SLF001
                return ledger

    @classmethod
    def open(
        cls,
        url: str,
        *,
        spool: Path | None = None,
        clock: Clock = SYSTEM_CLOCK,
        patience_s: float = 1.0,
        busy_timeout_s: float = 30.0,
        spool_bytes: int = _SPOOL_BYTES,
        may_be_away: bool = False,
    ) -> Self:
        """Open the ledger at `url`, making it and its folders when they are missing.

        `url` is `sqlite:///path`, a plain path, or `postgresql://…`; `sqlite://` is a ledger that is gone when closed.
        What processes that have died left in spools is written here, and requests that they had in flight get their
        `interrupted` receipts. `patience_s` is how long a write waits for the database before it goes to a spool of at
        most `spool_bytes`: beside a file, and in the folder `spool` for Postgres. `busy_timeout_s` is how long opening
        and reading wait, and how long `close` goes on trying. With `may_be_away` a database that does not answer just
        now keeps nobody waiting: writing goes to the spool until it does, and asking raises. Raises ConfigError for
        another kind of URL, LedgerError when the database cannot be used, is not a ledger, or is a newer Taximeter's.
        """
        with ExitStack() as undo:
            database = database_at(url, spool=spool)
            if database is None:
                # Not a TemporaryDirectory: that one a forked child would remove at its own end.
                folder = Path(mkdtemp(prefix="taximeter-"))
                undo.callback(shutil.rmtree, folder, ignore_errors=True)
                database = Sqlite(folder / "ledger.db")
            writer_id = new_id("writer", clock.utc_now())
            own_spool = Spool(database.folder, writer_id, most_bytes=spool_bytes)
            journal = _journal(database, writer_id, spool_bytes) if database.is_on_this_disk else None
            locks = WriterLocks(database.folder)
            arrival = Arrival(database, locks, writer_id, clock)
            away: Away | None = None
            try:
                # Whose URL names a file names its folder too.
                database.folder.parent.mkdir(parents=True, exist_ok=True)
                with locks.opening():
                    # One after the other: of two that make a new file's log at once, one is told that it is locked.
                    lock = locks.join(writer_id)
                    undo.callback(_leave, locks, lock, own_spool, journal)
                    undo.callback(arrival.leave)
                    try:
                        session, seen = arrival.first_session(patience_s=busy_timeout_s), database
                    except Away as error:
                        if not (may_be_away and may_come_back(error)):
                            raise
                        session, seen, away = NoSession(error), arrival.awaited(), error
                    undo.callback(session.close)
            except OSError as error:
                raise as_ledger_error(error, database.name) from error
            writer = Writer(database.name, writer_id, lock.tell_lost, journal=journal)
            keeper = Keeper(seen, session, own_spool, patience_s=patience_s, on_drained=writer.drained)
            undo.callback(_end_writing, keeper, journal, lock, writer_id, clock)
            if away is not None:
                keeper.keep([])  # so that it looks for the database before there is anything to write
            writer.start(keeper)
            undo.callback(writer.close, patience_s=busy_timeout_s)
            return cls(database, writer, keeper, arrival, lock, undo.pop_all(), busy_timeout_s=busy_timeout_s)

    @property
    def lost_before(self) -> int | None:
        """See the class."""
        return self._arrival.lost_before

    def expect(self, request_id: str) -> None:
        """`begin` follows, a moment later. Should this process die between the two, the next one counts the request as
        lost. It takes a fraction of a note's time, and is for who has something to do that must not wait for one."""
        self._lock.doubt(request_id)

    def begin(self, request: Request, receipt_id: str, *, journaled: bool = False) -> Future[None]:
        """Note that `request` is in flight; should this process die, the next one writes its receipt, under
        `receipt_id`, which the client may have been told.

        The future resolves when the note outlives this process (a power cut it may not), or holds a LedgerError. Should
        the process die before that, the next one counts the request as lost. `journaled` is as for `append`. Raises
        LedgerError after `close`.
        """
        begun = self._writer.begin(request, receipt_id, journaled=journaled)
        if not begun.done() or begun.exception() is not None:  # most are in the journal by now
            self._lock.doubt(request.id)
            begun.add_done_callback(lambda done: None if done.exception() else self._lock.believe(request.id))
        elif self._lock.doubts(request.id):
            self._lock.believe(request.id)
        return begun

    def append(self, receipt: Receipt, *, journaled: bool = False) -> Future[None]:
        """Write `receipt` and clear its request's note, both or neither.

        The future resolves when it is durable, in the database or in the spool, or holds a LedgerError: the receipt is
        then counted as lost. The same receipt twice is written once. A request's second receipt must name the newest
        one in `supersedes`. Raises LedgerError after `close`.

        Who asks for `journaled` is content with the journal, where the database is on the same disk: the future
        resolves once the receipt is durable there, and the database has it a moment later. Readers in this process do
        not notice; others see it a tenth of a second later. Only for a request's first receipt: what breaks the
        ledger's rules is known to the database alone, and then counted as lost, and logged.
        """
        appended = self._writer.append(receipt, journaled=journaled)
        if self._lock.doubts(receipt.request.id):  # its note is not there yet, or could not be written
            appended.add_done_callback(lambda _: self._lock.believe(receipt.request.id))
        return appended

    def finish_task(
        self, name: str, succeeded: bool, at: datetime, *, labels: Mapping[str, str] | None = None
    ) -> Future[None]:
        """Write down how the task ended. The same word again changes nothing; another one counts from then on, and the
        earlier ones stay (`task_words`). The future is as for `append`."""
        return self._writer.finish_task(
            Task(name=name, finished_at=at, succeeded=succeeded, labels={} if labels is None else labels)
        )

    def append_many(
        self,
        entries: Batch | Iterable[Call | Calls | Receipt],
        files: Iterable[FileMark] = (),
        *,
        dry_run: bool = False,
        durable: bool = True,
    ) -> Appended:
        """Write what was read from somebody's log, and how far its files have been read, all in one transaction.

        Durable on return; if it need not be `durable`, it survives the end of any process here, and a power cut once
        something durable follows: until then a file is as unread as its calls are unwritten. Nobody else writes
        meanwhile, so give some ten thousand at a time. What is there already is
        not written again: a receipt that is the same, a call whose newest receipt has the same tokens and total time.
        With `dry_run` the answer is the same, and nothing is kept. Raises LedgerError when the database takes nothing:
        the spool is for what cannot be read again.
        """
        from taximeter.ledger.batch import Batch  # noqa: PLC0415  # arrays, which who only asks needs not
        from taximeter.ledger.bulk import append_many  # noqa: PLC0415

        batch = entries if isinstance(entries, Batch) else Batch(entries)

        guard = "receipts_no_replace" if isinstance(self._database, Sqlite) else None
        with self._for_many() as session:
            return append_many(session, batch, files, guard=guard, dry_run=dry_run, durable=durable)

    def file_marks(self, source: str) -> dict[str, str]:
        """How far files have been read for `source`: what `append_many` was last given for each path."""
        with self._for_many() as session:
            return file_marks(session, source)

    @contextmanager
    def _for_many(self) -> Generator[Session]:
        """The session for imports, to one thread at a time. Made when there is one."""
        with self._appending:
            if self._closed:
                raise LedgerError(f"the ledger {self._database.name} is closed")
            if self._bulk is None or not self._bulk.usable:
                self._bulk = self._database.session(patience_s=self._busy_timeout_s, for_many=True)
            yield self._bulk

    def counts(self) -> LedgerCounts:
        """What became of the receipts that were appended here."""
        return self._writer.counts()

    @property
    def away(self) -> str | None:
        """Why the database takes nothing just now, and receipts go to the spool; None while it does."""
        error = self._keeper.away
        return None if error is None else str(error)

    def receipts(
        self,
        limit: int = 50,
        before: str | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[Receipt]:
        """The newest receipts by the time they were closed, without those that another one corrects; those of requests
        that were received from `since` on and before `until`.

        `before` names the last receipt of the page before, as for `receipt`. Raises LedgerError when there is none.
        """
        return self._reading().newest(limit, before, since=since, until=until)

    def receipts_of(self, kind: str, name: str, limit: int = 50, before: str | None = None) -> list[Receipt]:
        """As `receipts`, those that belong to one `task`, `run`, `session`, or that have the label `label:NAME`. A
        task's are those that people's words come to, here and in all that follows."""
        return self._reading().members(kind, name, limit, before, self.task_rules())

    def receipt(self, name: str) -> Receipt | None:
        """One receipt, by its id, by its request's id (then the newest), or by the beginning of either; None when
        nothing begins so. Raises LedgerError when several do, and names them."""
        return self._reading().find(name)

    def latest(self) -> Receipt | None:
        """The receipt closed last, None in an empty ledger."""
        return next(iter(self.receipts(limit=1)), None)

    def total_cost(self) -> Decimal:
        """Every known cost, corrections counted and what they correct not, in dollars to the last picodollar."""
        return self._reading().total_cost()

    def usage_by_hour(self, start: datetime, until: datetime) -> list[UsageTotals]:
        """What was closed from `start` and before `until`, by hour of UTC, model, backend and outcome, in this order.

        The bounds may lie within an hour, as the days of some time zones do; of that hour they get their part.
        """
        return self._reading().usage_by_hour(start, until)

    def group(self, kind: str, name: str) -> GroupTotals | None:
        """The sums of one group (kinds are those of `receipts_of`); None when no receipt belongs to it."""
        return self._reading().group(kind, name, self.task_rules())

    def usage_of(self, kind: str, name: str) -> list[UsageTotals]:
        """The same by model, backend and outcome, and by bucket; added up on the spot from the group's receipts."""
        return self._reading().usage_of(kind, name, self.task_rules())

    def slices(
        self,
        by: str | None,
        edges: Sequence[datetime],
        *,
        only: Sequence[tuple[str, str]] = (),
        percentiles: bool = True,
    ) -> list[Slice]:
        """What was closed from each of `edges` on and before the next, summed by kind `by`: `task`, `run`, `session`,
        `model`, `served_by`, `key`, `source`, `outcome`, `label:NAME`, or None for all of it together.

        `only` are kinds and names, all of which must hold. Tasks are those of people's words. What has no receipts has
        no slice. Without `percentiles` they are left empty, which is quicker. Raises ValueError for another kind.
        """
        words = self.task_rules()
        return self._reading().slices(by, edges, only=only, percentiles=percentiles, words=words)

    def slices_and_whole(
        self,
        by: str | None,
        edges: Sequence[datetime],
        *,
        only: Sequence[tuple[str, str]] = (),
        percentiles: bool = True,
    ) -> tuple[list[Slice], Slice | None]:
        """The same, and all of them together, None where there are none. Without `percentiles` only that one has
        them."""
        words = self.task_rules()
        return self._reading().with_whole(by, edges, only=only, percentiles=percentiles, words=words)

    def dearest(
        self,
        by: str,
        edges: tuple[datetime, datetime, datetime],
        *,
        only: Sequence[tuple[str, str]] = (),
        most: int,
    ) -> Dearest:
        """What costs most from the second of `edges` on and before the third, in at most so many slices (two at least):
        the last of them is of all other names together. And what those cost from the first edge on and before the
        second."""
        return self._reading().dearest(by, edges, only=only, most=most, words=self.task_rules())

    def costs(
        self, by: str | None, edges: Sequence[datetime], *, only: Sequence[tuple[str, str]] = ()
    ) -> list[CostTotals]:
        """What each of the slices cost, and no more, which is quicker."""
        return self._reading().costs(by, edges, only=only, words=self.task_rules())

    def task_costs(
        self, names: Collection[str], until: datetime, *, only: Sequence[tuple[str, str]] = ()
    ) -> list[CostTotals]:
        """What some tasks cost in all, from their first receipt on and before `until`. What has no receipts is not in
        it."""
        return self._reading().task_costs(names, until, only=only, words=self.task_rules())

    def active_hours(self, since: datetime, until: datetime) -> list[datetime]:
        """The hours of UTC in which something was closed from `since` and before `until`."""
        return self._reading().active_hours(since, until)

    def say(self, word: TaskWord) -> None:
        """Write down whose requests are a task's. Receipts stay as they are; what was said before does too, and the
        last word on each thing counts. Durable when it returns."""
        from taximeter.ledger import task_words  # noqa: PLC0415  # as in `_reading`

        session = self._database.session(patience_s=self._busy_timeout_s)
        try:
            with session.transaction():
                task_words.say(session, word)
        finally:
            session.close()

    def task_rules(self) -> TaskWords:
        """What those words come to."""
        return self._reading().task_rules()

    def finished_tasks(self, since: datetime, until: datetime) -> list[Task]:
        """Tasks whose end, by the last word on it, was from `since` and before `until`, and which did not start
        again; in the order of their ends."""
        return self._reading().finished_tasks(since, until)

    def tasks_named(self, names: Collection[str]) -> dict[str, Task]:
        """How these tasks stand, by name; those that nobody said anything of are not in it."""
        return self._reading().tasks_named(names)

    def groups(self, kind: str, since: datetime | None = None, limit: int = 50) -> list[GroupTotals]:
        """The groups of one kind that had a receipt since then, those with the newest first."""
        return self._reading().groups(kind, since, limit, self.task_rules())

    def task(self, name: str) -> Task | None:
        """The task as it stands: unfinished when only receipts speak of it, None when nothing does."""
        stored = stored_name(name)
        standing = self.tasks_named([stored]).get(stored)
        if standing is not None:
            return replace(standing, name=name)
        return None if self.group("task", name) is None else Task(name=name)

    def task_words(self, name: str) -> list[Task]:
        """Everything that was said about how the task ended, oldest first. The last word counts."""
        return self._reading().task_words(name)

    def close(self) -> None:
        """Write what was appended, then let go of the database. Idempotent.

        In a forked child it does nothing: threads, files and locks are the parent's.
        """
        if os.getpid() != self._process_id:
            return
        atexit.unregister(self.close)
        with self._making_reader:
            self._closed = True
        if self._reader is not None:
            self._reader.close()
        with self._appending:
            if self._bulk is not None:
                self._bulk.close()
        self._on_close.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _reading(self) -> Reader:
        """Of all that was appended until now. Made when somebody asks, for what it imports takes a tenth of a second: a
        server that only writes has its first answer sooner, and holds less."""
        from taximeter.ledger.reader import Reader  # noqa: PLC0415

        with self._making_reader:
            if self._closed:
                raise LedgerError(f"the ledger {self._database.name} is closed")
        self._writer.settle(self._busy_timeout_s)
        with self._making_reader:
            if self._reader is None:
                self._reader = Reader(self._database, patience_s=self._busy_timeout_s)
            return self._reader


def _journal(database: Database, writer_id: str, most_bytes: int) -> Journal:
    return Journal(database.name, Spool(database.folder, writer_id, most_bytes=most_bytes, suffix=JOURNAL))


def _end_writing(keeper: Keeper, journal: Journal | None, lock: WriterLock, writer_id: str, clock: Clock) -> None:
    """Drain what can be drained; say in the database what was lost, or else leave it for the next one to say."""
    try:
        session = keeper.stop()
        if lock.lost and session is not None:
            with session.transaction():
                tell_loss(session, writer_id, lock.lost, clock.utc_now())
            lock.tell_lost(0)
    except LedgerError as error:
        _log.warning("that %d receipts were lost is told at the next opening: %s", lock.lost, error)
    finally:
        keeper.close()
        if journal is not None:
            journal.close()


def _leave(locks: WriterLocks, lock: WriterLock, spool: Spool, journal: Journal | None) -> None:
    """Be alive no longer; the lock stays, for anybody, where something is left to do."""
    if spool.is_empty and (journal is None or journal.is_empty) and not lock.lost:
        locks.leave(lock)
    else:
        lock.let_go()
