"""One log file's calls, piece by piece, and what to remember of it.

Owns: opening it, reading on where it was left, and that nothing about a file ends an import. Refuses to know: formats,
prices, the ledger, and who reads beside whom.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec

from taximeter.importers.alike import Alike, sorted_out
from taximeter.importers.files import FileState, digest, reading_offset, why
from taximeter.importers.logged import LogFile, LoggedCall
from taximeter.importers.packed import opened
from taximeter.importers.sources import source_named

_PIECE_CALLS = 10_000


@dataclass(slots=True)
class Task:
    """One file to read: where, how large it was when it was found, what is remembered of it, and the map of its columns
    where it has one."""

    source: str
    path: Path
    state: FileState | None
    columns: Path | None = None
    size_bytes: int = 0


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
        alike: list[Alike] = []
        calls: list[LoggedCall] = []
        waiting = 0
        state = None
        try:
            if source.in_pieces:
                log.offset = reading_offset(task.state, file, size, source.edition)
            resumed = log.offset > 0
            log.memory = task.state.memory if task.state is not None and resumed else ""
            for read in source.read(log):
                if isinstance(read, Alike):
                    alike.append(read)
                    waiting += len(read)
                else:
                    calls.append(read)
                    waiting += 1
                if waiting >= _PIECE_CALLS:
                    yield _piece(alike, calls, read_bytes)
                    alike, calls, waiting, read_bytes = [], [], 0, 0
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
        piece = _piece(alike, calls, read_bytes)
        piece.is_last, piece.resumed, piece.state, piece.notes = True, resumed, state, log.notes
        yield piece


def _piece(alike: list[Alike], calls: list[LoggedCall], read_bytes: int) -> Piece:
    more, others = sorted_out(calls)
    return Piece([*alike, *more], others, read_bytes)
