"""Reading logs beside booking them: native code in threads where it reads a source's files, else other processes.

Owns: the processes, what goes between them, and that calls come in the order of the files. Refuses to know:
formats, prices, the ledger.
"""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import cast

from taximeter.errors import CapacityError
from taximeter.importers.packed import SUFFIXES
from taximeter.importers.pieces import Piece, Task, read_pieces
from taximeter.importers.whole_files import is_read_whole, pieces_of_whole_files

# Below, they would be done before others have started. One that reads is no faster than this process would be: only
# booking is beside it then.
_WORTH_BYTES = 24 << 20
_WORTH_BYTES_OF_ONE = 64 << 20
_IN_A_PACKED_BYTE = 8  # of what exports hold
_PIPE_BYTES = 1 << 20  # as much as Linux lets anybody have
_AHEAD_BYTES = 8 << 20  # of what is read and not yet booked: some three batches


@contextmanager
def reading(tasks: Sequence[Task], *, processes: int) -> Generator[Iterator[tuple[Task, Piece]]]:
    """Every piece of every task, in their order; with `processes` above 0, read by that many beside this one, or by as
    many threads, where there is as much to read as makes them worth their start."""
    whole = [is_read_whole(task) for task in tasks]
    by_native_code = [task for task, is_whole in zip(tasks, whole, strict=True) if is_whole]
    by_python = [task for task, is_whole in zip(tasks, whole, strict=True) if not is_whole]
    threads = processes if sum(task.size_bytes for task in tasks) >= _WORTH_BYTES else 0
    with (
        pieces_of_whole_files(by_native_code, threads=threads) as of_whole,
        _by_processes(by_python, _worth_of(by_python, processes)) as of_others,
    ):
        yield _one_by_one(of_whole if is_whole else of_others for is_whole in whole)


def _worth_of(tasks: Sequence[Task], processes: int) -> int:
    """How many of so many processes are worth their start."""
    if all(task.columns is not None for task in tasks):
        processes -= 1  # by columns, rows are read in less time than they are booked: SQLite needs the core more
    size_bytes = sum(task.size_bytes * (_IN_A_PACKED_BYTE if task.path.suffix in SUFFIXES else 1) for task in tasks)
    many = min(processes, len(tasks))
    return many if size_bytes >= (_WORTH_BYTES if many > 1 else _WORTH_BYTES_OF_ONE) else 0


def _one_by_one(readers: Iterable[Iterator[tuple[Task, Piece]]]) -> Iterator[tuple[Task, Piece]]:
    """The pieces of one file from each."""
    for reader in readers:
        for task, piece in reader:
            yield task, piece
            if piece.is_last:
                break


@contextmanager
def _by_processes(tasks: Sequence[Task], processes: int) -> Generator[Iterator[tuple[Task, Piece]]]:
    if processes < 1:
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
