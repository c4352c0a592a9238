"""The one thread that writes to the database, and what it owes to those who wait.

Owns: the queue, the batch (everything queued becomes one transaction, so that many share one sync to disk), the
futures, the counts. Refuses to know: what a receipt says, and where it is kept.

Where there is a journal, who can do with that is told as soon as the journal has it; such items linger here for a
moment, so that a transaction has some. Everybody else is told when the transaction is done, and hurries it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from taximeter.clock import SYSTEM_CLOCK
from taximeter.errors import LedgerError
from taximeter.ledger.database import as_ledger_error
from taximeter.ledger.item import Item
from taximeter.ledger.journal import Journal
from taximeter.ledger.keeper import Keeper, Kept
from taximeter.ledger.transactions import Entry, NewReceipt, NewRequest, TaskEnd
from taximeter.records import Receipt, Request, Task

# Bounds memory should even the disk hang (about 200 MB), and the length of one transaction.
_MAX_WAITING = 50_000
_MAX_BATCH = 500
_LINGER_S = 0.1  # how long the database may lag behind the journal


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerCounts:
    """What became of the receipts this process appended: accepted = written + spooled + lost + waiting.

    `written` are in the database. `spooled` are durable too, on this machine's disk, until the database takes them.
    """

    accepted: int
    written: int
    spooled: int = 0
    lost: int

    @property
    def waiting(self) -> int:
        """Those on their way to one or the other; the journal may have them already."""
        return self.accepted - self.written - self.spooled - self.lost


class Writer:
    """Takes records from any thread and answers with a future each, resolved once the record is durable.

    `on_lost` is called with the number of all receipts that were lost, whenever there are more. Without a `journal`
    everything is as if nobody asked for it.
    """

    def __init__(
        self, name: str, writer_id: str, on_lost: Callable[[int], None], *, journal: Journal | None = None
    ) -> None:
        self._name = name
        self._writer_id = writer_id
        self._on_lost = on_lost
        self._journal = journal
        self._changed = threading.Condition()
        self._waiting: deque[Item] = deque()
        # Of all items that ever waited here: how many there were, are settled, and are not to linger.
        self._came = self._went = self._hurried = 0
        self._closed = False  # for who hands in; the journal goes on until
        self._is_last = False
        self._gives_up_ns: int | None = None
        self._accepted = self._written = self._spooled = self._lost = 0
        self._thread: threading.Thread | None = None

    def start(self, keeper: Keeper) -> None:
        """From now on `keeper` is given what comes."""
        self._thread = threading.Thread(target=self._run, args=(keeper,), name="ledger-writer", daemon=True)
        self._thread.start()
        if self._journal is not None:
            self._journal.start(self._take_over)

    def begin(self, request: Request, receipt_id: str, *, journaled: bool = False) -> Future[None]:
        item = Item(
            lambda: NewRequest.of(request, receipt_id, self._writer_id), is_receipt=False, is_journaled=journaled
        )
        # A caller who must not be held up never waits here for a database that is far behind.
        at_once = journaled and not self._closed and len(self._waiting) < _MAX_BATCH
        if at_once and self._journal is not None and self._journal.add_at_once(item):
            return item.done
        return self._submit(item)

    def append(self, receipt: Receipt, *, journaled: bool = False) -> Future[None]:
        return self._submit(Item(lambda: NewReceipt.of(receipt), is_receipt=True, is_journaled=journaled))

    def finish_task(self, task: Task) -> Future[None]:
        return self._submit(Item(lambda: TaskEnd.of(task), is_receipt=False, is_journaled=False))

    def settle(self, timeout_s: float) -> None:
        """Return when all that was handed in until now is where it is kept, or after `timeout_s`."""
        if self._journal is not None and not self._closed:
            self._journal.settle(timeout_s)
        with self._changed:
            wanted = self._came
            if self._went < wanted:
                self._hurried = max(self._hurried, wanted)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._went >= wanted, timeout_s)

    def counts(self) -> LedgerCounts:
        with self._changed:
            # Below zero for a moment, when the drainer is faster than who tells of the spooling.
            spooled = max(0, self._spooled)
            return LedgerCounts(accepted=self._accepted, written=self._written, spooled=spooled, lost=self._lost)

    def drained(self, written: int, refused: int) -> None:
        """So many of the spooled receipts are in the database now, and so many will never be."""
        with self._changed:
            self._spooled -= written + refused
            self._written += written
            self._lost += refused
            if refused:
                self._on_lost(self._lost)

    def close(self, *, patience_s: float) -> None:
        """Write what is waiting, then stop. Idempotent; returns when it is done. What is not begun within `patience_s`
        is lost, or stays in the journal for the next one: a disk that hangs must not hold up the end of the program for
        ever."""
        with self._changed:
            is_first, self._closed = not self._closed, True
        if self._journal is not None and is_first:
            self._journal.stop(patience_s=patience_s)
        with self._changed:
            self._gives_up_ns = SYSTEM_CLOCK.monotonic_ns() + round(patience_s * 1e9)
            self._is_last = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _submit(self, item: Item) -> Future[None]:
        journal = self._journal
        with self._changed:
            if self._closed:
                raise LedgerError(f"the ledger {self._name} is closed")
            self._accepted += item.is_receipt
            full = len(self._waiting) + (0 if journal is None else journal.waiting) >= _MAX_WAITING
            if full:
                item.fate = LedgerError(
                    f"the ledger {self._name} is {_MAX_WAITING:,} entries behind", hint="its disk is too slow or gone"
                )
                self._count([item])
            elif journal is not None:
                journal.add(item)
            else:
                self._enqueue([item])
        if full:
            item.tell()
        return item.done

    def _take_over(self, items: Sequence[Item]) -> None:
        """From the journal. It waits here when the database is far behind."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < _MAX_WAITING or self._is_last)
            self._enqueue(items)

    def _enqueue(self, items: Sequence[Item]) -> None:
        was_empty = not self._waiting
        self._waiting += items
        self._came += len(items)
        if any(item.place is None for item in items):
            self._hurried = self._came
        # A writer that lingers need not be woken for each.
        if was_empty or self._hurried == self._came or len(self._waiting) >= _MAX_BATCH:
            self._changed.notify_all()

    def _run(self, keeper: Keeper) -> None:
        while batch := self._next_batch():
            try:
                self._keep(keeper, batch)
            except Exception as error:  # noqa: BLE001 - whatever it is, nobody may wait for ever
                for item in batch:
                    item.fate = item.fate or as_ledger_error(error, self._name)
            self._settle(batch)

    def _next_batch(self) -> list[Item]:
        """All that is waiting, up to a limit; nothing once the writer is closed and the queue empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_last)
            self._changed.wait_for(self._is_enough, _LINGER_S)
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), _MAX_BATCH))]

    def _is_enough(self) -> bool:
        return self._hurried > self._went or len(self._waiting) >= _MAX_BATCH or self._closed

    def _keep(self, keeper: Keeper, batch: Sequence[Item]) -> None:
        if self._gives_up_ns is not None and SYSTEM_CLOCK.monotonic_ns() > self._gives_up_ns:
            for item in batch:
                if item.place is not None:
                    item.fate = Kept.SPOOLED  # in the journal, for whoever opens the ledger next
            raise LedgerError(f"the ledger {self._name} was closed before this could be written")
        ready: list[Item] = []
        entries: list[Entry] = []
        for item in batch:
            entry = item.made(self._name)
            if entry is not None:
                ready.append(item)
                entries.append(entry)
        for item, fate in zip(ready, keeper.keep(entries), strict=True):
            item.fate = fate
        if self._journal is not None:
            self._journal.release(batch)

    def _settle(self, batch: Sequence[Item]) -> None:
        with self._changed:
            self._count(batch)
        for item in batch:
            item.tell()
        with self._changed:
            self._went += len(batch)
            self._changed.notify_all()

    def _count(self, batch: Sequence[Item]) -> None:
        fates = [item.fate for item in batch if item.is_receipt]
        lost = sum(isinstance(fate, LedgerError) for fate in fates)
        self._lost += lost
        self._written += fates.count(Kept.WRITTEN)
        self._spooled += fates.count(Kept.SPOOLED)
        if lost:
            self._on_lost(self._lost)
