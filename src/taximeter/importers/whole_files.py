"""Files that native code goes through by itself, in threads: it needs no Python while it reads.

Owns: how far is read ahead of who books, and what becomes of files that native code cannot do alone: they are read line
by line, as those of other sources. Refuses to know: formats, prices, the ledger.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from io import FileIO
from typing import TYPE_CHECKING, NamedTuple

from taximeter.importers import lines
from taximeter.importers.files import FileState, digest, reading_offset
from taximeter.importers.packed import is_plain
from taximeter.importers.pieces import Piece, Task, read_pieces
from taximeter.importers.sources import source_named
from taximeter.importers.usual_lines import usage_calls

if TYPE_CHECKING:
    from taximeter._native import FoundFile

_MOST_BYTES = 64 << 20  # of a file that is kept as one piece
_AT_ONCE_BYTES = 4 << 20  # for which a thread takes Python's lock once
_AT_ONCE_FILES = 32  # which are open together
_AHEAD_BYTES = 256 << 20  # of logs, whose calls are kept: more than is read while a batch is written


class _Gone(NamedTuple):
    """A file that was gone through, its state as far as that is known by then, and whether it was read on."""

    found: FoundFile
    state: FileState
    resumed: bool


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
        if some and (size_bytes + task.size_bytes > _AT_ONCE_BYTES or len(some) >= _AT_ONCE_FILES):
            yield some
            some, size_bytes = [], 0
        some.append(task)
        size_bytes += task.size_bytes
    if some:
        yield some


_Result = Callable[[], Sequence[_Gone | None]]


def _ahead(together: Sequence[list[Task]], executor: ThreadPoolExecutor) -> Iterator[tuple[list[Task], _Result]]:
    """Each with what gives its result, when that is there. The first are begun at once, not when somebody asks."""
    waiting: deque[tuple[list[Task], Future[list[_Gone | None]]]] = deque()
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
        for task, gone in zip(some, result(), strict=True):
            whole = source_named(task.source, None).whole
            if gone is None or whole is None:
                # Here, for Python that runs in a thread beside takes turns with this one, and both twice the time.
                yield from ((task, piece) for piece in read_pieces(task))
                continue
            found, state, resumed = gone
            memory = task.state.memory if task.state is not None and resumed else ""
            alike, state.memory = whole(task.path, memory, found)
            yield task, Piece(alike=alike, read_bytes=found.read_bytes, is_last=True, resumed=resumed, state=state)


def _gone_through(tasks: Sequence[Task]) -> list[_Gone | None]:
    """What stands in each file; None for one that cannot be read, or not as it lies."""
    assert usage_calls is not None  # noqa: S101 - or there are no such sources
    with ExitStack() as closing:
        opened = [_opened(task, closing) for task in tasks]
        where = [(each.file.fileno(), each.offset, each.status.st_size) for each in opened if each is not None]
        found = iter(usage_calls(where, lines.BLOCK_BYTES, lines.MOST_LINE_BYTES))
        return [None if each is None else _gone(each, next(found)) for each in opened]


class _Opened(NamedTuple):
    file: FileIO
    status: os.stat_result
    edition: str
    offset: int


def _opened(task: Task, closing: ExitStack) -> _Opened | None:
    edition = source_named(task.source, None).edition
    try:
        file = closing.enter_context(task.path.open("rb", buffering=0))
        status = os.fstat(file.fileno())
        if not is_plain(os.pread(file.fileno(), 2, 0)):
            return None
        return _Opened(file, status, edition, reading_offset(task.state, file, status.st_size, edition))
    except OSError:
        return None


def _gone(opened: _Opened, found: FoundFile) -> _Gone | None:
    if not found.is_plain:
        return None
    # The last answer may be going on: the next time it is read whole, from its first line.
    offset = found.last_begin
    try:
        state = FileState(
            device=opened.status.st_dev,
            inode=opened.status.st_ino,
            size=opened.status.st_size,
            modified_ns=opened.status.st_mtime_ns,
            offset=offset,
            digest=digest(opened.file, offset),
            edition=opened.edition,
        )
    except OSError:
        return None
    return _Gone(found, state, opened.offset > 0)
