"""SQLite's log, copied into the file beside who writes it.

What a transaction changes goes to a log, and from there into the file once there is much of it: that takes the disk
longer than the transaction took, and whoever commits would wait for it. Once all of the log is in the file it is
written from its beginning again. While somebody writes on and on that never comes about by itself, and each piece of a
log that only grows is new to the system, which has to find room for it in memory and on the disk: that costs more than
to write where something was. Owns: that thread, and when it is waited for. Refuses to know: what is written.
"""

from __future__ import annotations

import sqlite3
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

_ENOUGH_BYTES = 64 << 20
_MOST_BYTES = 256 << 20  # of a log that is written on without a look back


class LogCopying:
    """Copies the log of one file, by a connection of its own for each time. Used by the thread that writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = path.with_name(f"{path.name}-wal")
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="ledger-log")
        self._going_on: Future[None] | None = None
        self._takes_all = True

    def make_way(self) -> None:
        """Before a transaction: where the log has become long, wait until all of it is in the file. Then it begins
        anew, in the place it has."""
        if self._size_bytes() >= _MOST_BYTES:
            if self._going_on is not None:
                self._going_on.result()
            if not self._takes_all:
                self._copy()
                self._takes_all = True

    def begin(self) -> None:
        """Something was committed: copy it, if that is not going on already."""
        if self._going_on is not None and not self._going_on.done():
            self._takes_all = False
        elif self._size_bytes() >= _ENOUGH_BYTES:
            self._takes_all = True
            self._going_on = self._executor.submit(self._copy)

    def close(self) -> None:
        """Wait for what is going on."""
        self._executor.shutdown(wait=True)

    def _size_bytes(self) -> int:
        try:
            return self._log.stat().st_size
        except OSError:
            return 0

    def _copy(self) -> None:
        # Whatever it is, the next one who writes to the file meets it too.
        with suppress(sqlite3.Error), closing(sqlite3.connect(self._path, timeout=0)) as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
