"""Who is writing: one lock file per process in the ledger's folder, held for as long as the process lives.

The operating system frees a lock when its holder dies, however it dies; so a lock that can be taken belongs to nobody
who could still finish what it began. In the file stands how many receipts its holder has lost, and which requests it
has taken up that nothing durable speaks of yet: room for that is made while there is some. What was written there
outlives the process, though not a power cut. Owns: the lock files. Refuses to know: the database.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
import weakref
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from taximeter.errors import LedgerError

_OPENING = "opening"
_SUFFIX = ".lock"
_PATIENCE_S = 60.0
_PAUSE_S = 0.01
_LOST_DIGITS = 20
_ID_BYTES = 64  # of a request; ours have 26
_IDS_AT_FIRST = 256


class WriterLock:
    """A lock on a file, which it makes where there is none. It is held by the process, not by the children it forks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._places: dict[str, int] = {}  # where the requests that are in doubt stand
        self._free: list[int] = []
        self._changing = threading.Lock()

    def take(self) -> bool:
        """Whether it is ours from now on: not if somebody has it, in this process or another."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return False
            raise
        self._descriptor = descriptor
        _held.add(self)
        return True

    @property
    def lost(self) -> int:
        """How many receipts whoever had this lock has lost. Only while it is ours."""
        told = b"" if self._descriptor is None else os.pread(self._descriptor, _LOST_DIGITS, 0)
        return int(told) if told.isdigit() else 0

    def tell_lost(self, receipts: int) -> None:
        """Leave for the next one how many receipts we have lost. As well as can be: the disk may be the reason."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.pwrite(self._descriptor, b"%0*d" % (_LOST_DIGITS, receipts), 0)

    @property
    def in_doubt(self) -> list[str]:
        """The requests that whoever had this lock has left in doubt. Only while it is ours."""
        if self._descriptor is None:
            return []
        told = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
        ids = (told[at : at + _ID_BYTES].rstrip(b"\0") for at in range(_ID_BYTES, len(told), _ID_BYTES))
        return [each.decode("utf-8", "replace") for each in ids if each]

    def doubt(self, request_id: str) -> None:
        """Should this process die now, nobody would know of the request but for this. As well as can be."""
        with self._changing:
            if request_id in self._places:
                return
            if not self._free:
                known = len(self._places)
                self._free = list(range(known + _IDS_AT_FIRST, known, -1))
            place = self._places[request_id] = self._free.pop()
            self._put(place, request_id.encode()[:_ID_BYTES])

    def doubts(self, request_id: str) -> bool:
        """Whether it is in doubt still."""
        return request_id in self._places

    def believe(self, request_id: str) -> None:
        """Now somebody would, or its loss is told of otherwise."""
        with self._changing:
            if (place := self._places.pop(request_id, None)) is not None:
                self._free.append(place)
                self._put(place, b"")

    def make_room(self) -> None:
        """So that there is some when the disk is full."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.pwrite(self._descriptor, bytes(_IDS_AT_FIRST * _ID_BYTES), _ID_BYTES)

    def _put(self, place: int, request_id: bytes) -> None:
        if self._descriptor is not None:
            with suppress(OSError):
                os.pwrite(self._descriptor, request_id.ljust(_ID_BYTES, b"\0"), place * _ID_BYTES)

    def let_go(self) -> None:
        """Give it back; nothing happens if it was given back already."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            _held.discard(self)


_held: weakref.WeakSet[WriterLock] = weakref.WeakSet()


def _let_go_of_the_parents() -> None:
    # A forked child has the descriptors too, and would keep its parent alive here for as long as it lives itself. That
    # it closes them frees nothing as long as the parent has them.
    for lock in list(_held):
        lock.let_go()


os.register_at_fork(after_in_child=_let_go_of_the_parents)


class WriterLocks:
    """The locks in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def opening(self) -> Generator[None]:
        """One process at a time on this machine: to migrate, to clear up after the dead, and to join the living."""
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = self._lock(_OPENING)
        gives_up_s = time.monotonic() + _PATIENCE_S
        while not lock.take():
            if time.monotonic() > gives_up_s:
                raise LedgerError(
                    f"another process has been opening the ledger for {_PATIENCE_S:.0f} s", hint=f"see {self._folder}"
                )
            time.sleep(_PAUSE_S)
        try:
            yield
        finally:
            lock.let_go()

    def join(self, writer_id: str) -> WriterLock:
        """Be alive as `writer_id`. Only while `opening`."""
        lock = self._lock(writer_id)
        lock.take()
        lock.tell_lost(0)
        lock.make_room()
        return lock

    def leave(self, lock: WriterLock) -> None:
        """Be alive no longer. The file goes first: who finds one without a lock may take it."""
        with suppress(OSError):
            lock.path.unlink()
        lock.let_go()

    def known(self) -> set[str]:
        """Every writer that has a lock file here, living or dead."""
        return {file.stem for file in self._folder.glob(f"*{_SUFFIX}")} - {_OPENING}

    def claim(self, writer_id: str) -> WriterLock | None:
        """The lock of a dead writer, to be left when its things are in order; None while it lives. Only while
        `opening`."""
        lock = self._lock(writer_id)
        return lock if lock.take() else None

    @contextmanager
    def take_over(self, writer_id: str) -> Generator[bool]:
        """See `database.Living`. Only while `opening`."""
        lock = self.claim(writer_id)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                self.leave(lock)

    def _lock(self, name: str) -> WriterLock:
        return WriterLock(self._folder / f"{name}{_SUFFIX}")
