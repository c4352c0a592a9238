"""A log from its beginning to where it ended when it was opened, telling how much of it was read. Owns: that end, and
the count. Refuses to know: what is read."""

from __future__ import annotations

import io
from typing import Any

from taximeter.importers.logged import LogFile

_BUFFER_BYTES = 1 << 20


class Counted(io.RawIOBase):
    """The whole of a log, to be read once. `left_bytes` are still to be read, and of those that were `are_ascii` is
    whether they are nothing else."""

    def __init__(self, log: LogFile) -> None:
        self._log = log
        self.left_bytes = log.size
        self.are_ascii = True
        log.file.seek(0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        block = self._log.file.read(min(len(buffer), self.left_bytes))
        buffer[: len(block)] = block
        self.left_bytes -= len(block)
        self.are_ascii = self.are_ascii and block.isascii()
        self._log.on_bytes(len(block))
        return len(block)

    def buffered(self) -> io.BufferedReader:
        """The same, block by block."""
        return io.BufferedReader(self, _BUFFER_BYTES)
