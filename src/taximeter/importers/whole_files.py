"""Files that native code goes through by itself, in threads: it needs no Python while it reads.

Owns: how far is read ahead of who books, and what becomes of files that native code cannot do alone: they are read line
by line, as those of other sources. Refuses to know: formats, prices, the ledger.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from taximeter.importers import lines
from taximeter.importers.files import BEGINNING_BYTES, END_BYTES, FileState, digest_of, reading_offset
from taximeter.importers.packed import is_plain
from taximeter.importers.pieces import Piece, Task, read_pieces
from taximeter.importers.sources import source_named
from taximeter.importers.usual_lines import usage_calls

if TYPE_CHECKING:
    from taximeter._native import FoundFile

_MOST_BYTES = 64 << 20  # of a file that is kept as one piece
_AT_ONCE_BYTES = 16 << 20  # for which a thread takes Python's lock once: it may have to wait for that
_AT_ONCE_FILES = 128
_AHEAD_BYTES = 128 << 20  # of logs, whose calls are kept: more than is read while a batch is written


def is_read_whole(task: Task) -> bool:
    """Whether native code goes through files like this one."""
    return task.columns is None and task.size_bytes <= _MOST_BYTES and source_named(task.source, None).whole is not None


@contextmanager
def pieces_of_whole_files(tasks: Sequence[Task], *, threads: int) -> Generator[Iterator[tuple[Task, Piece]]]:
    """Every piece of files that `is_read_whole`, in their order; with `threads` above 0, read ahead by that many."""
    together = list(_together(tasks))
    if threads < 1 or len(together) < 2:
        yield _pieces((some, lambda some=some: _gone_through(some)) for some in together)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="taximeter-import") as executor:
        try:
            yield _pieces(_ahead(together, executor))
        finally:
            executor.shutdown(wait=True, cancel_futures=True)


def _together(tasks: Sequence[Task]) -> Iterator[list[Task]]:
    some: list[Task] = []
    size_bytes = 0
    for task in tasks:
        is_full = size_bytes + task.size_bytes > _AT_ONCE_BYTES or len(some) >= _AT_ONCE_FILES
        if some and (is_full or task.source != some[0].source):
            yield some
            some, size_bytes = [], 0
        some.append(task)
        size_bytes += task.size_bytes
    if some:
        yield some


_Result = Callable[[], "Sequence[FoundFile | None]"]


def _ahead(together: Sequence[list[Task]], executor: ThreadPoolExecutor) -> Iterator[tuple[list[Task], _Result]]:
    """Each with what gives its result, when that is there. The first are begun at once, not when somebody asks."""
    waiting: deque[tuple[list[Task], Future[list[FoundFile | None]]]] = deque()
    rest = iter(together)
    ahead_bytes = 0

    def begin_more() -> None:
        nonlocal ahead_bytes
        while ahead_bytes <= _AHEAD_BYTES and (some := next(rest, None)) is not None:
            waiting.append((some, executor.submit(_gone_through, some)))
            ahead_bytes += _size_bytes(some)

    def results() -> Iterator[tuple[list[Task], _Result]]:
        nonlocal ahead_bytes
        while waiting:
            some, future = waiting.popleft()
            yield some, future.result
            ahead_bytes -= _size_bytes(some)
            begin_more()

    begin_more()
    return results()


def _size_bytes(tasks: Sequence[Task]) -> int:
    return sum(task.size_bytes for task in tasks)


def _pieces(results: Iterator[tuple[list[Task], _Result]]) -> Iterator[tuple[Task, Piece]]:
    for some, result in results:
        for task, found in zip(some, result(), strict=True):
            source = source_named(task.source, None)
            if found is None or source.whole is None:
                # Here, for Python that runs in a thread beside takes turns with this one, and both twice the time.
                yield from ((task, piece) for piece in read_pieces(task))
                continue
            resumed = found.begin > 0
            memory = task.state.memory if task.state is not None and resumed else ""
            alike, memory = source.whole(task.path, memory, found)
            # The last answer may be going on: the next time it is read whole, from its first line.
            offset = found.last_begin
            state = FileState(
                device=found.device,
                inode=found.inode,
                size=found.size,
                modified_ns=found.modified_ns,
                offset=offset,
                digest=digest_of(found.began, found.before_last, offset),
                edition=source.edition,
                memory=memory,
            )
            yield task, Piece(alike=alike, read_bytes=found.read_bytes, is_last=True, resumed=resumed, state=state)


def _gone_through(tasks: Sequence[Task]) -> list[FoundFile | None]:
    """What stands in each file; None for one that cannot be read, or not as it lies. Little of this is Python's: each
    time that a thread comes back to that, it waits for its lock."""
    assert usage_calls is not None  # noqa: S101 - or there are no such sources
    known = [_known(task) for task in tasks]
    where = [(os.fsencode(task.path), each.offset) for task, each in zip(tasks, known, strict=True)]
    sizes = (lines.BLOCK_BYTES, lines.MOST_LINE_BYTES, BEGINNING_BYTES, END_BYTES)
    found = usage_calls(tasks[0].source, where, *sizes)
    return [
        one if one.is_plain and is_plain(one.began) and each.is_same(one) else None
        for one, each in zip(found, known, strict=True)
    ]


class _Known(NamedTuple):
    """Where to read a file on, and which one that is."""

    offset: int
    device: int = 0
    inode: int = 0

    def is_same(self, found: FoundFile) -> bool:
        """Whether it was read on in the file that it is known to go on in."""
        return not self.offset or (self.device, self.inode) == (found.device, found.inode)


_FROM_THE_BEGINNING = _Known(0)


def _known(task: Task) -> _Known:
    if task.state is None:
        return _FROM_THE_BEGINNING
    edition = source_named(task.source, None).edition
    try:
        with task.path.open("rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            offset = reading_offset(task.state, file, status.st_size, edition)
    except OSError:
        return _FROM_THE_BEGINNING
    return _Known(offset, status.st_dev, status.st_ino)
