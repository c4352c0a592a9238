"""SQLite's log, copied into the file beside who writes it.

What a transaction changes goes to a log, and from there into the file once there is much of it: that takes the disk
longer than the transaction took, and whoever commits would wait for it. Owns: that thread, and when it is too late for
it. Refuses to know: what is written.
"""

from __future__ import annotations

import sqlite3
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

_ENOUGH_BYTES = 64 << 20
_MOST_BYTES = 1 << 30  # of a log whose writer is faster than the disk


class LogCopying:
    """Copies the log of one file, by a connection of its own for each time. Used by the thread that writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = path.with_name(f"{path.name}-wal")
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="ledger-log")
        self._going_on: Future[None] | None = None

    def begin(self) -> bool:
        """Something was committed: copy it, if that is not going on already. False where there is so much that the one
        who writes has to do it, or the log would grow without an end."""
        try:
            size_bytes = self._log.stat().st_size
        except OSError:
            return True
        if self._going_on is None or self._going_on.done():
            if size_bytes >= _ENOUGH_BYTES:
                self._going_on = self._executor.submit(self._copy)
        elif size_bytes > _MOST_BYTES:
            self._going_on.result()
            return False
        return True

    def close(self) -> None:
        """Wait for what is going on."""
        self._executor.shutdown(wait=True)

    def _copy(self) -> None:
        # Whatever it is, the next one who writes to the file meets it too.
        with suppress(sqlite3.Error), closing(sqlite3.connect(self._path, timeout=0)) as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
