"""The one thread that writes, and what it owes to those who wait.

Owns: the queue, the batch (everything queued becomes one transaction, so that many share one sync to disk), the
futures, the counts. Refuses to know: what a receipt says, and where it is kept.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from taximeter.clock import SYSTEM_CLOCK
from taximeter.errors import LedgerError
from taximeter.ledger.database import as_ledger_error
from taximeter.ledger.keeper import Fate, Keeper, Kept
from taximeter.ledger.transactions import Entry, NewReceipt, NewRequest, TaskEnd
from taximeter.records import Receipt, Request, Task

# Bounds memory should even the disk hang (about 200 MB), and the length of one transaction.
_MAX_WAITING = 50_000
_MAX_BATCH = 500


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
        """Those that nobody has been told about yet."""
        return self.accepted - self.written - self.spooled - self.lost


@dataclass(slots=True)
class _Item:
    make: Callable[[], Entry]
    is_receipt: bool
    done: Future[None] = field(default_factory=Future[None])
    fate: Fate | None = None

    def __post_init__(self) -> None:
        # Running from the start: whoever waits may be cancelled, what was accepted is written all the same.
        self.done.set_running_or_notify_cancel()


class Writer:
    """Takes records from any thread and answers with a future each, resolved once the record is durable.

    `on_lost` is called with the number of all receipts that were lost, whenever there are more.
    """

    def __init__(self, name: str, writer_id: str, on_lost: Callable[[int], None]) -> None:
        self._name = name
        self._writer_id = writer_id
        self._on_lost = on_lost
        self._changed = threading.Condition()
        self._waiting: deque[_Item] = deque()
        self._closed = False
        self._gives_up_ns: int | None = None
        self._accepted = self._written = self._spooled = self._lost = 0
        self._thread: threading.Thread | None = None

    def start(self, keeper: Keeper) -> None:
        """From now on `keeper` is given what comes."""
        self._thread = threading.Thread(target=self._run, args=(keeper,), name="ledger-writer", daemon=True)
        self._thread.start()

    def begin(self, request: Request, receipt_id: str) -> Future[None]:
        return self._submit(_Item(lambda: NewRequest.of(request, receipt_id, self._writer_id), is_receipt=False))

    def append(self, receipt: Receipt) -> Future[None]:
        return self._submit(_Item(lambda: NewReceipt.of(receipt), is_receipt=True))

    def finish_task(self, task: Task) -> Future[None]:
        return self._submit(_Item(lambda: TaskEnd.of(task), is_receipt=False))

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
        is lost: a disk that hangs must not hold up the end of the program for ever."""
        with self._changed:
            self._closed = True
            self._gives_up_ns = SYSTEM_CLOCK.monotonic_ns() + round(patience_s * 1e9)
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _submit(self, item: _Item) -> Future[None]:
        with self._changed:
            if self._closed:
                raise LedgerError(f"the ledger {self._name} is closed")
            self._accepted += item.is_receipt
            full = len(self._waiting) >= _MAX_WAITING
            if not full:
                self._waiting.append(item)
                self._changed.notify()
        if full:
            item.fate = LedgerError(
                f"the ledger {self._name} is {_MAX_WAITING:,} entries behind", hint="its disk is too slow or gone"
            )
            self._settle([item])
        return item.done

    def _run(self, keeper: Keeper) -> None:
        while batch := self._next_batch():
            try:
                self._keep(keeper, batch)
            except Exception as error:  # noqa: BLE001 - whatever it is, nobody may wait for ever
                for item in batch:
                    item.fate = item.fate or as_ledger_error(error, self._name)
            self._settle(batch)

    def _next_batch(self) -> list[_Item]:
        """All that is waiting, up to a limit; nothing once the writer is closed and the queue empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), _MAX_BATCH))]

    def _keep(self, keeper: Keeper, batch: Sequence[_Item]) -> None:
        if self._gives_up_ns is not None and SYSTEM_CLOCK.monotonic_ns() > self._gives_up_ns:
            raise LedgerError(f"the ledger {self._name} was closed before this could be written")
        ready: list[tuple[_Item, Entry]] = []
        for item in batch:
            try:
                ready.append((item, item.make()))
            except Exception as error:  # noqa: BLE001 - its batch mates must not suffer for it
                item.fate = as_ledger_error(error, self._name)
        fates = keeper.keep([entry for _, entry in ready])
        for (item, _), fate in zip(ready, fates, strict=True):
            item.fate = fate

    def _settle(self, batch: Sequence[_Item]) -> None:
        fates = [item.fate for item in batch if item.is_receipt]
        lost = sum(isinstance(fate, LedgerError) for fate in fates)
        with self._changed:
            self._lost += lost
            self._written += fates.count(Kept.WRITTEN)
            self._spooled += fates.count(Kept.SPOOLED)
            if lost:
                self._on_lost(self._lost)
        for item in batch:
            if isinstance(item.fate, LedgerError):
                item.done.set_exception(item.fate)
            else:
                item.done.set_result(None)
