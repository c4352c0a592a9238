"""What cannot be written to the database, on this machine's disk until it can.

One line for each entry: eight hexadecimal digits of its checksum, then the entry. What a process that was killed left
half of has a checksum that is not right, and nobody was told that it was safe. Lines are in segments of a few
megabytes, `WRITER.000001.spool` and so on, so that what has been drained makes room.

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

_SUFFIX = ".spool"
_SEGMENT_BYTES = 4 << 20
_CHECKSUM_DIGITS = 8


@dataclass(slots=True)
class _Segment:
    """A file. Up to `safe_bytes` it is whole; up to `drained_bytes` it is in the database."""

    path: Path
    safe_bytes: int = 0
    drained_bytes: int = 0


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

    def __init__(self, folder: Path, writer_id: str, *, most_bytes: int) -> None:
        """Of a writer that has left some before, if it has."""
        self._folder = folder
        self._writer_id = writer_id
        self._most_bytes = most_bytes
        self._using = threading.Lock()
        self._descriptor: int | None = None
        self._segments: deque[_Segment] = deque()
        for path in sorted(folder.glob(f"{writer_id}.*{_SUFFIX}")):
            self._segments.append(_Segment(path, safe_bytes=path.stat().st_size))
        self._next_number = int(self._segments[-1].path.name.split(".")[-2]) + 1 if self._segments else 1

    @property
    def is_empty(self) -> bool:
        """Whether everything that it ever held is drained."""
        with self._using:
            return not self._segments

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
                line = b"%08x%s\n" % (crc32(text), text)
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
                text = line[_CHECKSUM_DIGITS:-1]
                if not line.endswith(b"\n") or line[:_CHECKSUM_DIGITS] != b"%08x" % crc32(text):
                    damaged += 1
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

    def close(self) -> None:
        """Let go of the files. What is in them stays, for whoever opens the ledger next."""
        with self._using:
            self._close_file()

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
        path = self._folder / f"{self._writer_id}.{self._next_number:06}{_SUFFIX}"
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
    return {path.name.partition(".")[0] for path in folder.glob(f"*{_SUFFIX}")}
