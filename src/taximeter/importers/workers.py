"""Reading logs in processes beside this one: to find the calls in a gigabyte takes longer than to book them.

Owns: the processes, what goes between them, and that calls come in the order of the files. Refuses to know: formats,
prices, the ledger.
"""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import threading
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import cast

import msgspec

from taximeter.errors import CapacityError
from taximeter.importers.alike import Alike, sorted_out
from taximeter.importers.files import FileState, digest, reading_offset, why
from taximeter.importers.logged import LogFile, LoggedCall
from taximeter.importers.packed import opened
from taximeter.importers.sources import source_named

_PIECE_CALLS = 2_000
_PIPE_BYTES = 1 << 20  # as much as Linux lets anybody have
_AHEAD_BYTES = 8 << 20  # of what is read and not yet booked: some three batches


@dataclass(slots=True)
class Task:
    """One file to read: where, what is remembered of it, and the map of its columns where it has one."""

    source: str
    path: Path
    state: FileState | None
    columns: Path | None = None


class Piece(msgspec.Struct):
    """Some calls of a file, and how far it was read since the piece before. The last piece of a file has its new
    `state`, None where it could not be read; `resumed` is whether it was read on where it was left."""

    alike: list[Alike] = msgspec.field(default_factory=list[Alike])
    others: list[LoggedCall] = msgspec.field(default_factory=list[LoggedCall])
    read_bytes: int = 0
    is_last: bool = False
    resumed: bool = False
    state: FileState | None = None
    notes: Counter[str] = msgspec.field(default_factory=Counter[str])


def read_pieces(task: Task) -> Iterator[Piece]:
    """The calls of one file, in pieces. Never raises for what is wrong with the file: it is noted."""
    source = source_named(task.source, task.columns)
    try:
        file, size, status, damage = opened(task.path)
    except OSError as error:
        yield Piece(is_last=True, notes=Counter({f"a file cannot be read: {why(error)}": 1}))
        return
    with closing(file):
        read_bytes = 0

        def count(more: int) -> None:
            nonlocal read_bytes
            read_bytes += more

        log = LogFile(path=task.path, file=file, size=size, on_bytes=count)
        if damage is not None:
            log.note(damage)
        calls: list[LoggedCall] = []
        state = None
        try:
            if source.in_pieces:
                log.offset = reading_offset(task.state, file, size, source.edition)
            resumed = log.offset > 0
            log.memory = task.state.memory if task.state is not None and resumed else ""
            for call in source.read(log):
                calls.append(call)
                if len(calls) >= _PIECE_CALLS:
                    yield Piece(*sorted_out(calls), read_bytes)
                    calls, read_bytes = [], 0
            state = FileState(
                device=status.st_dev,
                inode=status.st_ino,
                size=status.st_size,
                modified_ns=status.st_mtime_ns,
                offset=log.offset,
                digest=digest(file, log.offset),
                edition=source.edition,
                memory=log.memory,
            )
        except OSError as error:
            log.note(f"a file cannot be read: {why(error)}")
            resumed = False
        yield Piece(*sorted_out(calls), read_bytes, is_last=True, resumed=resumed, state=state, notes=log.notes)


@contextmanager
def reading(tasks: Sequence[Task], *, processes: int) -> Generator[Iterator[tuple[Task, Piece]]]:
    """Every piece of every task, in their order; with `processes` above 0, read by that many beside this one."""
    if processes < 1 or len(tasks) < 2:
        yield ((task, piece) for task in tasks for piece in read_pieces(task))
        return
    # Not forked: this process may have threads, and what they hold would be held for ever in there.
    context = multiprocessing.get_context("spawn")
    readers: list[_Inbox] = []
    children: list[BaseProcess] = []
    try:
        for number in range(min(processes, len(tasks))):
            ours, theirs = context.Pipe(duplex=False)
            their_tasks, our_tasks = context.Pipe(duplex=False)
            child = context.Process(target=_work, args=(theirs, their_tasks), daemon=True)
            child.start()
            theirs.close()
            their_tasks.close()
            children.append(child)
            readers.append(_Inbox(ours))
            # Not with what starts it: to that one would wait for ever if the process ended before it took all of it.
            with our_tasks, suppress(OSError):  # the inbox says so
                our_tasks.send_bytes(pickle.dumps(tasks[number::processes], pickle.HIGHEST_PROTOCOL))
        yield _merged(tasks, readers)
    finally:
        for child in children:
            child.terminate()
            child.join()
        for inbox in readers:
            inbox.close()


class _Inbox:
    """What a process has sent, until it is taken. It comes in while a batch is written, for otherwise the other process
    would wait until that is done, and this one for the next batch then."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._messages: deque[bytes] = deque()
        self._size = 0
        self._is_over = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._receive, name="taximeter-import", daemon=True)
        self._thread.start()

    def take(self) -> bytes:
        """The next message. Raises CapacityError where none will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._messages or self._is_over)
            if not self._messages:
                raise CapacityError(
                    "a process that read logs was ended before it was done",
                    retry_after_s=0,
                    hint="import again: what was appended stays, and is not read twice",
                )
            message = self._messages.popleft()
            self._size -= len(message)
            self._changed.notify()
            return message

    def close(self) -> None:
        """Once the process has ended."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._thread.join()
        self._connection.close()

    def _receive(self) -> None:
        try:
            while True:
                message = self._connection.recv_bytes()
                with self._changed:
                    self._changed.wait_for(lambda: self._size < _AHEAD_BYTES or self._is_over)
                    if self._is_over:
                        return
                    self._messages.append(message)
                    self._size += len(message)
                    self._changed.notify()
        except (EOFError, OSError):
            with self._changed:
                self._is_over = True
                self._changed.notify()


def _merged(tasks: Sequence[Task], readers: Sequence[_Inbox]) -> Iterator[tuple[Task, Piece]]:
    for number, task in enumerate(tasks):
        reader = readers[number % len(readers)]
        while True:
            piece = cast("Piece", pickle.loads(reader.take()))  # noqa: S301 - from a process of our own
            yield task, piece
            if piece.is_last:
                break


def _work(out: Connection, their_tasks: Connection) -> None:
    """What a process beside does. It has no thread to hand over: that would take turns with who reads, and both twice
    the time."""
    gc.disable()  # nothing here refers to itself
    _make_room(out)
    with suppress(KeyboardInterrupt, EOFError, BrokenPipeError):  # or nobody takes them any more
        for task in cast("Sequence[Task]", pickle.loads(their_tasks.recv_bytes())):  # noqa: S301 - as in `_merged`
            for piece in read_pieces(task):
                out.send_bytes(pickle.dumps(piece, pickle.HIGHEST_PROTOCOL))


def _make_room(out: Connection) -> None:
    """Some systems let a pipe hold what comes until the other process is awake."""
    with suppress(ImportError, AttributeError, OSError):
        from fcntl import F_SETPIPE_SZ, fcntl  # noqa: PLC0415 - not everywhere

        fcntl(out.fileno(), F_SETPIPE_SZ, _PIPE_BYTES)
