"""The ledger: append, correct by appending, and ask.

Owns: opening (migrations, and a receipt for every request whose process died), and the public face of writing and
reading. Refuses to know: prices, backends, doors.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sqlite3
import threading
from concurrent.futures import Future
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import TYPE_CHECKING, Self

from taximeter.clock import SYSTEM_CLOCK, Clock
from taximeter.errors import LedgerError
from taximeter.ledger import migrations
from taximeter.ledger.database import border, connect, ledger_path, transaction
from taximeter.ledger.liveness import WriterLocks
from taximeter.ledger.transactions import interrupt, writers_with_notes
from taximeter.ledger.writer import LedgerCounts, Writer
from taximeter.records import Receipt, Request, new_id

if TYPE_CHECKING:
    from taximeter.ledger.reader import Reader


class Ledger:
    """A file of receipts. Safe to use from many threads, and to have open in many processes at once."""

    def __init__(self, path: Path, writer: Writer, on_close: ExitStack, *, busy_timeout_s: float) -> None:
        """For `open` only."""
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._writer = writer
        self._on_close = on_close
        self._reader: Reader | None = None
        self._making_reader = threading.Lock()
        self._closed = False
        self._process_id = os.getpid()
        atexit.register(self.close)  # a program that forgets to close loses nothing that it appended

    @classmethod
    def open(cls, url: str, *, clock: Clock = SYSTEM_CLOCK, busy_timeout_s: float = 30.0) -> Self:
        """Open the ledger at `url`, making it and its folders when they are missing.

        `url` is `sqlite:///path` or a plain path; `sqlite://` is a ledger that is gone when closed. Requests that were
        in flight in a process that has died get their `interrupted` receipts here. `busy_timeout_s` is how long a
        write waits for another process, and how long `close` goes on trying. Raises ConfigError for another kind of
        URL, LedgerError when the file cannot be used, is not a ledger, or is a newer Taximeter's.
        """
        with ExitStack() as undo:
            path = ledger_path(url)
            if path is None:
                # Not a TemporaryDirectory: that one a forked child would remove at its own end.
                path = Path(mkdtemp(prefix="taximeter-")) / "ledger.db"
                undo.callback(shutil.rmtree, path.parent, ignore_errors=True)
            with border(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                locks = WriterLocks(path)
                writer_id = new_id("writer", clock.utc_now())
                with locks.opening():
                    # One after the other: of two that make a new file's log at once, one is told that it is locked.
                    connection = connect(path, busy_timeout_s=busy_timeout_s, writes=True)
                    undo.callback(connection.close)
                    if not migrations.is_current(connection, path):
                        migrations.upgrade(connection)
                    _bury_the_dead(locks, connection, clock)
                    undo.callback(locks.leave, locks.join(writer_id))
            writer = Writer(connection, path, writer_id)
            undo.callback(writer.close, patience_s=busy_timeout_s)
            return cls(path, writer, undo.pop_all(), busy_timeout_s=busy_timeout_s)

    def begin(self, request: Request, receipt_id: str) -> Future[None]:
        """Note that `request` is in flight; should this process die, the next one writes its receipt, under
        `receipt_id`, which the client may have been told.

        The future resolves when the note is durable, or holds a LedgerError. Raises LedgerError after `close`.
        """
        return self._writer.begin(request, receipt_id)

    def append(self, receipt: Receipt) -> Future[None]:
        """Write `receipt` and clear its request's note, both or neither.

        The future resolves when it is durable, or holds a LedgerError: the receipt is then counted as lost. The same
        receipt twice is written once. A request's second receipt must name the newest one in `supersedes`. Raises
        LedgerError after `close`.
        """
        return self._writer.append(receipt)

    def counts(self) -> LedgerCounts:
        """What became of the receipts that were appended here."""
        return self._writer.counts()

    def receipts(self, limit: int = 50, before: str | None = None) -> list[Receipt]:
        """The newest receipts by the time they were closed, without those that another one corrects.

        `before` names the last receipt of the page before, as for `receipt`. Raises LedgerError when there is none.
        """
        return self._reading().newest(limit, before)

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

    def close(self) -> None:
        """Write what was appended, then let go of the file. Idempotent.

        In a forked child it does nothing: thread, file and locks are the parent's.
        """
        if os.getpid() != self._process_id:
            return
        atexit.unregister(self.close)
        with self._making_reader:
            self._closed = True
        if self._reader is not None:
            self._reader.close()
        self._on_close.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _reading(self) -> Reader:
        """Made when somebody asks, for what it imports takes a tenth of a second: a server that only writes has its
        first answer sooner, and holds less."""
        from taximeter.ledger.reader import Reader  # noqa: PLC0415

        with self._making_reader:
            if self._closed:
                raise LedgerError(f"the ledger {self._path} is closed")
            if self._reader is None:
                self._reader = Reader(self._path, busy_timeout_s=self._busy_timeout_s)
            return self._reader


def _bury_the_dead(locks: WriterLocks, connection: sqlite3.Connection, clock: Clock) -> None:
    """Write the receipts that dead processes left open, and remove their locks."""
    begun = writers_with_notes(connection)
    for writer_id in begun | locks.known():
        lock = locks.take_over(writer_id)
        if lock is None:
            continue
        try:
            if writer_id in begun:
                with transaction(connection):
                    interrupt(connection, writer_id, clock.utc_now())
        finally:
            locks.leave(lock)
