"""What is not in the database, on this machine's disk until it is.

One line for each entry: eight hexadecimal digits of its checksum, then the entry. What a process that was killed left
half of has a checksum that is not right, and nobody was told that it was safe. Lines are in segments of a few
megabytes, `WRITER.000001.spool` and so on, so that what has been drained makes room. The journal's files
(`WRITER.000001.journal`) are the same; they are kept while they are in use, and have lines that say up to where they
have been drained.

Owns: the files, their bounds, and what is safe in them. Refuses to know: who drains them, and where to.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from taximeter.errors import LedgerError
from taximeter.ledger.database import hint_for
from taximeter.ledger.transactions import Entry, packed, unpacked

_log = logging.getLogger(__name__)

SPOOL, JOURNAL = ".spool", ".journal"
_SEGMENT_BYTES = 4 << 20
_CHECKSUM_DIGITS = 8
_RELEASED = b"released "  # no entry begins so


@dataclass(slots=True)
class _Segment:
    """A file. Up to `safe_bytes` it is whole; up to `drained_bytes` it is in the database. The last entry ends at
    `entries_bytes`, as far as this process appended it."""

    path: Path
    safe_bytes: int = 0
    drained_bytes: int = 0
    entries_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """An end of a line: all that lies before it."""

    segment: _Segment
    end_bytes: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Entries from the front of a spool, and where in it they end. `damaged` lines between them are nobody's;
    `unreadable` ones another version's."""

    entries: tuple[Entry, ...]
    segment: _Segment
    end_bytes: int
    damaged: int
    unreadable: int


class Spool:
    """The entries of one writer, in their order. Two threads may use it: one that appends, one that drains."""

    def __init__(self, folder: Path, writer_id: str, *, most_bytes: int, suffix: str = SPOOL) -> None:
        """Of a writer that has left some before, if it has."""
        self._folder = folder
        self._writer_id = writer_id
        self._suffix = suffix
        self._most_bytes = most_bytes
        self._using = threading.Lock()
        self._descriptor: int | None = None
        self._segments: deque[_Segment] = deque()
        for path in sorted(folder.glob(f"{writer_id}.*{suffix}")):
            released_bytes = _released(path) if suffix == JOURNAL else 0
            self._segments.append(_Segment(path, safe_bytes=path.stat().st_size, drained_bytes=released_bytes))
        self._next_number = int(self._segments[-1].path.name.split(".")[-2]) + 1 if self._segments else 1

    @property
    def is_empty(self) -> bool:
        """Whether everything that it ever held is drained."""
        with self._using:
            return all(segment.drained_bytes >= segment.safe_bytes for segment in self._segments)

    @property
    def end(self) -> Place:
        """Behind everything that was appended. Only after something was."""
        with self._using:
            return Place(self._segments[-1], self._segments[-1].entries_bytes)

    def append(self, entries: Sequence[Entry]) -> list[LedgerError | None]:
        """Keep `entries`, as far as there is room; what became of each. Receipts are on the disk when this returns.

        What is not kept here is nowhere.
        """
        kept: list[LedgerError | None] = []
        lines: list[bytes] = []
        with self._using:
            used_bytes = sum(segment.safe_bytes for segment in self._segments)
            for entry in entries:
                text = packed(entry).encode("utf-8", "surrogatepass")
                line = _line_of(text)
                used_bytes += len(line)
                if used_bytes > self._most_bytes:
                    used_bytes -= len(line)
                    kept.append(LedgerError(f"the spool in {self._folder} is full", hint="see why it is not drained"))
                else:
                    lines.append(line)
                    kept.append(None)
            try:
                if lines:
                    self._write(b"".join(lines), durable=any(entry.durable for entry in entries))
                    self._segments[-1].entries_bytes = self._segments[-1].safe_bytes
            except OSError as error:
                said = LedgerError(f"the spool in {self._folder} failed: {error.strerror}", hint=hint_for(error))
                return [said] * len(entries)
        return kept

    def front(self, most: int) -> Chunk | None:
        """The oldest entries, at most so many; None when all are drained. They stay until `drop`."""
        with self._using:
            if not self._segments:
                return None
            segment = self._segments[0]
            start_bytes, safe_bytes = segment.drained_bytes, segment.safe_bytes
        entries: list[Entry] = []
        damaged = unreadable = 0
        end_bytes = start_bytes
        with segment.path.open("rb") as file:
            file.seek(start_bytes)
            while len(entries) < most and end_bytes < safe_bytes:
                line = file.readline(safe_bytes - end_bytes)
                if not line:
                    end_bytes = safe_bytes
                    break
                end_bytes += len(line)
                text = _text_of(line)
                if text is None:
                    damaged += 1
                    continue
                if text.startswith(_RELEASED):
                    continue
                try:
                    entries.append(unpacked(text.decode("utf-8", "surrogatepass")))
                except (LedgerError, ValueError) as error:
                    _log.warning("left in the spool %s: %s", segment.path, error)
                    unreadable += 1
        return Chunk(tuple(entries), segment, end_bytes, damaged, unreadable)

    def drop(self, chunk: Chunk) -> None:
        """What is in `chunk` is in the database. A segment that is drained to its end is removed, unless it has
        something that only another version can read; then it is set aside under another name."""
        with self._using:
            segment = chunk.segment
            segment.drained_bytes = chunk.end_bytes
            if chunk.unreadable:
                with suppress(OSError):
                    os.link(segment.path, segment.path.with_suffix(".unreadable"))
            if segment.drained_bytes < segment.safe_bytes:
                return
            self._segments.popleft()
            if not self._segments:
                self._close_file()  # the next one begins a new segment
            segment.path.unlink(missing_ok=True)

    def release(self, place: Place) -> None:
        """Everything up to `place` is in the database. The file stays for what follows, and has a line that says so:
        whoever comes after a kill need not write it all again. The line is not worth a sync."""
        with self._using:
            while self._segments and self._segments[0] is not place.segment:
                self._segments.popleft().path.unlink(missing_ok=True)
            if not self._segments:
                return
            segment = place.segment
            is_in_use = self._descriptor is not None and segment is self._segments[-1]
            if is_in_use and segment.safe_bytes < _SEGMENT_BYTES:  # it speaks of the file that it is in
                with suppress(OSError):
                    self._write(_line_of(_RELEASED + b"%d" % place.end_bytes), durable=False)
            # Lines such as this one are nothing to drain.
            is_all = place.end_bytes == segment.entries_bytes
            segment.drained_bytes = segment.safe_bytes if is_all else place.end_bytes

    def close(self) -> None:
        """Let go of the files. What is in them stays, for whoever opens the ledger next; a file of nothing does not."""
        with self._using:
            self._close_file()
            while self._segments and self._segments[0].drained_bytes >= self._segments[0].safe_bytes:
                self._segments.popleft().path.unlink(missing_ok=True)

    def _write(self, lines: bytes, *, durable: bool) -> None:
        segment, descriptor = self._segment()
        try:
            left = memoryview(lines)
            while left:
                left = left[os.write(descriptor, left) :]
            if durable:
                os.fdatasync(descriptor)
        except OSError:
            # Nothing may follow half a line, and nothing be found later that was said to be lost.
            with suppress(OSError):
                os.ftruncate(descriptor, segment.safe_bytes)
            self._close_file()
            if not segment.safe_bytes:
                self._segments.remove(segment)
                segment.path.unlink(missing_ok=True)
            raise
        segment.safe_bytes += len(lines)

    def _segment(self) -> tuple[_Segment, int]:
        """The last one, open; a new one where there is none or it is long enough."""
        if self._descriptor is not None and self._segments[-1].safe_bytes < _SEGMENT_BYTES:
            return self._segments[-1], self._descriptor
        self._close_file()
        path = self._folder / f"{self._writer_id}.{self._next_number:06}{self._suffix}"
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._next_number += 1
        self._segments.append(_Segment(path))
        folder = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)  # or a power cut takes the file's name, and the file with it
        finally:
            os.close(folder)
        return self._segments[-1], self._descriptor

    def _close_file(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def writers_with_spools(folder: Path) -> set[str]:
    """Everybody, living or dead, who has left something in `folder`."""
    return {path.name.partition(".")[0] for suffix in (JOURNAL, SPOOL) for path in folder.glob(f"*{suffix}")}


def _line_of(text: bytes) -> bytes:
    return b"%08x%s\n" % (crc32(text), text)


def _text_of(line: bytes) -> bytes | None:
    """What the line was made from; None when it is damaged."""
    text = line[_CHECKSUM_DIGITS:-1]
    return text if line.endswith(b"\n") and line[:_CHECKSUM_DIGITS] == b"%08x" % crc32(text) else None


def _released(path: Path) -> int:
    """Up to where the file says that it has been drained."""
    data = path.read_bytes()
    end = len(data)
    while (found := data.rfind(_RELEASED, 0, end)) >= 0:
        text = _text_of(data[max(0, found - _CHECKSUM_DIGITS) : data.find(b"\n", found) + 1])
        if text is not None and text[len(_RELEASED) :].isdigit():
            return int(text[len(_RELEASED) :])
        end = found
    return 0
