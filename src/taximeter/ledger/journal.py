"""The journal: what is on this machine's disk a moment before it is in the database.

A request that is alone would wait for a transaction of its own, and pay for it: indexes and sums are some forty small
writes. One line at the end of a file is one write and one sync; the transaction comes a moment later, and is shared by
all that came in between. Only for a database on the same disk, where a line is as safe as a row.

Owns: its thread, and that nothing in its file is forgotten before it is kept elsewhere. Refuses to know: the database.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from taximeter.clock import SYSTEM_CLOCK
from taximeter.ledger.item import Item
from taximeter.ledger.spool import Spool
from taximeter.ledger.transactions import Entry

_log = logging.getLogger(__name__)

_MAX_BATCH = 500
_CALM_NS = 1_000_000_000  # a disk that took a sync so lately will take a write without one


class Journal:
    """Writes items to `spool` as they come, tells whoever waits for them, and hands them over, in order. Those that are
    not to be journaled are handed over only: what comes later must not overtake."""

    def __init__(self, name: str, spool: Spool) -> None:
        self._name = name
        self._spool = spool
        self._queue = SimpleQueue[Item | threading.Event | None]()
        self._busy = threading.Lock()  # what is in the file is handed over in the file's order
        self._is_calm_until_ns = 0
        self._hand_over: Callable[[Sequence[Item]], None] | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_empty(self) -> bool:
        """Whether all that it ever held is kept elsewhere."""
        return self._spool.is_empty

    @property
    def waiting(self) -> int:
        """About how many items are not in the file yet."""
        return self._queue.qsize()

    def start(self, hand_over: Callable[[Sequence[Item]], None]) -> None:
        """`hand_over` is given what is in the file, and what could not be, before anybody is told."""
        self._hand_over = hand_over
        self._thread = threading.Thread(target=self._run, name="ledger-journal", daemon=True)
        self._thread.start()

    def add(self, item: Item) -> None:
        """From any thread."""
        self._queue.put(item)

    def add_at_once(self, item: Item) -> bool:
        """Whether the item, which needs no sync, is in the file and its future answered: on the caller's thread, which
        saves waking another one. Only while nobody else is at it, and the disk has just shown that it does not hang."""
        is_calm = SYSTEM_CLOCK.monotonic_ns() <= self._is_calm_until_ns
        if not is_calm or not self._queue.empty() or not self._busy.acquire(blocking=False):
            return False
        try:
            self._keep([item])
        finally:
            self._busy.release()
        return True

    def settle(self, timeout_s: float) -> None:
        """Return when all that was added until now has been handed over, or after `timeout_s`."""
        handed_over = threading.Event()
        self._queue.put(handed_over)
        handed_over.wait(timeout_s)

    def stop(self, *, patience_s: float) -> None:
        """Hand over what is waiting. A disk that hangs is not waited for longer than `patience_s`."""
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(patience_s)

    def release(self, items: Sequence[Item]) -> None:
        """These, and all before them, are kept elsewhere."""
        for item in reversed(items):
            if item.place is not None:
                self._spool.release(item.place)
                return

    def close(self) -> None:
        """Let go of the file; it is gone if it is empty."""
        self._spool.close()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            batch, follows = self._next_batch()
            with self._busy:
                self._keep(batch)
            if isinstance(follows, threading.Event):
                follows.set()
            is_last = follows is None

    def _keep(self, batch: Sequence[Item]) -> None:
        if not batch:
            return
        written: list[Item] = []
        try:
            written = self._write(batch)
        except Exception:  # noqa: BLE001 - whatever it is: who is not in the file waits for the database
            _log.exception("the journal failed; the database is asked instead")
        if self._hand_over is not None:
            self._hand_over(batch)
        for item in written:
            item.tell()

    def _next_batch(self) -> tuple[list[Item], Item | threading.Event | None]:
        """All that is waiting, up to a limit, and what came behind it; the last item itself where nothing did."""
        batch: list[Item] = []
        item = self._queue.get()
        while isinstance(item, Item):
            batch.append(item)
            if len(batch) == _MAX_BATCH:
                break
            try:
                item = self._queue.get_nowait()
            except Empty:
                break
        return batch, item

    def _write(self, batch: Sequence[Item]) -> list[Item]:
        """Those that are in the file now."""
        entries: list[Entry] = []
        made: list[Item] = []
        for item in batch:
            entry = item.made(self._name) if item.is_journaled else None
            if entry is not None:
                entries.append(entry)
                made.append(item)
        if not entries:
            return []
        errors = self._spool.append(entries)
        written = [item for item, error in zip(made, errors, strict=True) if error is None]
        if written:
            place = self._spool.end
            for item in written:
                item.place = place
            if any(entry.durable for entry in entries):
                self._is_calm_until_ns = SYSTEM_CLOCK.monotonic_ns() + _CALM_NS
        return written
