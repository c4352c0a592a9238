"""The one thread that writes, and what it owes to those who wait.

Owns: the queue, the batch (everything queued becomes one transaction, so that many share one sync to disk), the
futures, the counts. Refuses to know: what a receipt says.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from taximeter.clock import SYSTEM_CLOCK
from taximeter.errors import LedgerError
from taximeter.ledger.database import as_ledger_error, transaction
from taximeter.ledger.transactions import Entry, NewReceipt, NewRequest, write, write_one
from taximeter.records import Receipt, Request

# Bounds memory while the disk is away (about 200 MB), and the length of one transaction.
_MAX_WAITING = 50_000
_MAX_BATCH = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerCounts:
    """What became of the receipts this process appended: accepted = written + lost + waiting."""

    accepted: int
    written: int
    lost: int

    @property
    def waiting(self) -> int:
        return self.accepted - self.written - self.lost


@dataclass(slots=True)
class _Item:
    make: Callable[[], Entry]
    is_receipt: bool
    done: Future[None] = field(default_factory=Future[None])
    error: LedgerError | None = None

    def __post_init__(self) -> None:
        # Running from the start: whoever waits may be cancelled, what was accepted is written all the same.
        self.done.set_running_or_notify_cancel()


class Writer:
    """Takes records from any thread and answers with a future each, resolved once the record is durable. The connection
    is the writer's alone."""

    def __init__(self, connection: sqlite3.Connection, path: Path, writer_id: str) -> None:
        self._connection = connection
        self._path = path
        self._writer_id = writer_id
        self._changed = threading.Condition()
        self._waiting: deque[_Item] = deque()
        self._closed = False
        self._gives_up_ns: int | None = None
        self._accepted = self._written = self._lost = 0
        self._thread = threading.Thread(target=self._run, name="ledger-writer", daemon=True)
        self._thread.start()

    def begin(self, request: Request, receipt_id: str) -> Future[None]:
        return self._submit(_Item(lambda: NewRequest.of(request, receipt_id, self._writer_id), is_receipt=False))

    def append(self, receipt: Receipt) -> Future[None]:
        return self._submit(_Item(lambda: NewReceipt.of(receipt), is_receipt=True))

    def counts(self) -> LedgerCounts:
        with self._changed:
            return LedgerCounts(accepted=self._accepted, written=self._written, lost=self._lost)

    def close(self, *, patience_s: float) -> None:
        """Write what is waiting, then stop. Idempotent; returns when it is done. What no transaction was begun for
        within `patience_s` is lost: a database that stays locked must not hold up the end of the program for ever."""
        with self._changed:
            self._closed = True
            self._gives_up_ns = SYSTEM_CLOCK.monotonic_ns() + round(patience_s * 1e9)
            self._changed.notify()
        self._thread.join()

    def _submit(self, item: _Item) -> Future[None]:
        with self._changed:
            if self._closed:
                raise LedgerError(f"the ledger {self._path} is closed")
            self._accepted += item.is_receipt
            full = len(self._waiting) >= _MAX_WAITING
            if not full:
                self._waiting.append(item)
                self._changed.notify()
        if full:
            item.error = LedgerError(
                f"the ledger {self._path} is {_MAX_WAITING:,} entries behind", hint="its disk is too slow or gone"
            )
            self._settle([item])
        return item.done

    def _run(self) -> None:
        while batch := self._next_batch():
            try:
                self._write(batch)
            except Exception as error:  # noqa: BLE001 - whatever it is, nobody may wait for ever
                for item in batch:
                    item.error = as_ledger_error(error, self._path)
            self._settle(batch)

    def _next_batch(self) -> list[_Item]:
        """All that is waiting, up to a limit; nothing once the writer is closed and the queue empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), _MAX_BATCH))]

    def _write(self, batch: Sequence[_Item]) -> None:
        if self._gives_up_ns is not None and SYSTEM_CLOCK.monotonic_ns() > self._gives_up_ns:
            raise LedgerError(f"the ledger {self._path} was closed before this could be written")
        ready: list[tuple[_Item, Entry]] = []
        for item in batch:
            try:
                ready.append((item, item.make()))
            except Exception as error:  # noqa: BLE001 - its batch mates must not suffer for it
                item.error = as_ledger_error(error, self._path)
        try:
            with transaction(self._connection):
                write(self._connection, [entry for _, entry in ready])
        except sqlite3.OperationalError:
            raise  # the database as a whole: locked, full, gone
        except sqlite3.Error:
            self._write_apart(ready)  # some entry of it: find out which, and write the others

    def _write_apart(self, ready: Sequence[tuple[_Item, Entry]]) -> None:
        with transaction(self._connection):
            for item, entry in ready:
                try:
                    write_one(self._connection, entry)
                except sqlite3.OperationalError:
                    raise
                except (LedgerError, sqlite3.Error) as error:
                    item.error = as_ledger_error(error, self._path)

    def _settle(self, batch: Sequence[_Item]) -> None:
        receipts = [item for item in batch if item.is_receipt]
        lost = sum(item.error is not None for item in receipts)
        with self._changed:
            self._lost += lost
            self._written += len(receipts) - lost
        for item in batch:
            if item.error is None:
                item.done.set_result(None)
            else:
                item.done.set_exception(item.error)
