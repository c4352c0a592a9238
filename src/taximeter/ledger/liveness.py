"""Who is writing: one lock file per process beside the database, held for as long as the process lives.

The operating system frees a lock when its holder dies, however it dies; so a lock that can be taken belongs to nobody
who could still finish what it began. Owns: the files in `LEDGER-writers/`. Refuses to know: the database.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from taximeter.errors import LedgerError

_OPENING = "opening"
_SUFFIX = ".lock"
_PATIENCE_S = 60.0


class WriterLocks:
    """The locks around one database."""

    def __init__(self, database: Path) -> None:
        self._folder = database.with_name(f"{database.name}-writers")

    @contextmanager
    def opening(self) -> Generator[None]:
        """One process at a time: to migrate, to clear up after the dead, and to join the living."""
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            with self._lock(_OPENING).acquire(timeout=_PATIENCE_S):
                yield
        except Timeout as error:
            raise LedgerError(
                f"another process has been opening the ledger for {_PATIENCE_S:.0f} s", hint=f"see {self._folder}"
            ) from error

    def join(self, writer_id: str) -> FileLock:
        """Be alive as `writer_id`. Only while `opening`."""
        lock = self._lock(writer_id)
        lock.acquire(blocking=False)
        return lock

    def leave(self, lock: FileLock) -> None:
        """Be alive no longer. The file goes first: who finds one without a lock may take it."""
        with suppress(OSError):
            Path(lock.lock_file).unlink()
        lock.release()

    def known(self) -> set[str]:
        """Every writer that has a file here, living or dead."""
        return {file.stem for file in self._folder.glob(f"*{_SUFFIX}")} - {_OPENING}

    def take_over(self, writer_id: str) -> FileLock | None:
        """The lock of a dead writer, to be left when its things are in order; None while it lives. Only while
        `opening`."""
        lock = self._lock(writer_id)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            return None
        return lock

    def _lock(self, name: str) -> FileLock:
        # Not of one thread: whoever closes the ledger need not be who opened it.
        return FileLock(self._folder / f"{name}{_SUFFIX}", thread_local=False)
