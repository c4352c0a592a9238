"""An answer of an upstream as it arrives.

Owns: how long an upstream may say nothing, what crosses the gateway of its headers, and taking off a packing that was
not asked for. Refuses to know: connections, dialects, tries, receipts.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from typing import Final

from taximeter.errors import UpstreamError
from taximeter.upstreams.config import Upstream
from taximeter.upstreams.connection import MOST_READ_BYTES, Answer, Broken, Read
from taximeter.upstreams.dispatch import AFTER_THE_END_S
from taximeter.upstreams.headers import Headers, crossing_back

_GZIP_OR_DEFLATE: Final = 32 + zlib.MAX_WBITS


class Incoming:
    """An answer that has begun: its status and headers are here. Read it once; close it always.

    `packed_as` is how the body is compressed where that could not be undone: None almost always.
    """

    def __init__(self, answer: Answer, upstream: Upstream, sent_ns: int) -> None:
        self.status = answer.status
        self.upstream = upstream
        head = answer.head or Read(b"", sent_ns, sent_ns)
        self.begun = Read(b"", max(sent_ns, head.arrived_ns), head.read_ns)
        self._answer = answer
        self._last_ns = head.arrived_ns, head.read_ns
        self._waits_since_s: float | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._was_silent = False
        packing = (self.header("content-encoding") or "identity").strip().lower()
        self._unpacker = _Unpacker() if packing in ("gzip", "x-gzip", "deflate") else None
        self.packed_as = None if packing in ("", "identity") or self._unpacker is not None else packing[:40]

    @property
    def headers(self) -> Headers:
        """Those that cross the gateway."""
        return crossing_back(self._answer.headers, without=() if self._unpacker is None else (b"content-encoding",))

    @property
    def is_over(self) -> bool:
        """Whether all of it has been read."""
        return self._answer.is_over

    def header(self, name: str) -> str | None:
        """One of them, by its name in small letters."""
        wanted = name.encode()
        return next((value.decode("utf-8", "replace") for key, value in self._answer.headers if key == wanted), None)

    async def read(self) -> Read | None:
        """The next bytes, as they come; None at the end. Raises UpstreamError when they stop coming before it."""
        unpacker = self._unpacker
        if unpacker is not None and unpacker.has_more:
            return Read(self._unpacked(unpacker, b""), *self._last_ns)
        read = await self._next()
        if unpacker is None:
            return read
        if read is None:
            if not unpacker.is_whole:
                raise self._broken("its answer ended before it was whole")
            return None
        self._last_ns = read.arrived_ns, read.read_ns
        return Read(self._unpacked(unpacker, read.data), *self._last_ns)

    async def _next(self) -> Read | None:
        answer = self._answer
        if not answer.has_some and self._watchdog is None:
            # One timer for all reads: to make and cancel one for each costs more than the rest of reading.
            loop = asyncio.get_running_loop()
            self._watchdog = loop.call_later(self.upstream.idle_timeout_s, self._look_after_it)
        if not answer.has_some:
            self._waits_since_s = asyncio.get_running_loop().time()
        try:
            return await answer.read()
        except Broken as error:
            raise self._broken(str(error)) from error
        finally:
            self._waits_since_s = None

    async def __aiter__(self) -> AsyncIterator[Read]:
        while (read := await self.read()) is not None:
            yield read

    def close(self) -> None:
        """Let go of it. An answer that has not come to its end takes its connection along."""
        if self._watchdog is not None:
            self._watchdog.cancel()
        self._answer.close()

    def finish(self) -> None:
        """Let go of an answer whose last word has been read. Its connection serves again if it ends in a moment."""
        if self._watchdog is not None:
            self._watchdog.cancel()
        if not self._answer.is_whole:
            self._watchdog = asyncio.get_running_loop().call_later(AFTER_THE_END_S, self.close)

    def _unpacked(self, unpacker: _Unpacker, data: bytes) -> bytes:
        try:
            return unpacker.feed(data)
        except zlib.error as error:
            raise self._broken("its answer is not packed as it says") from error

    def _look_after_it(self) -> None:
        loop = asyncio.get_running_loop()
        waited_s = 0.0 if self._waits_since_s is None else loop.time() - self._waits_since_s
        left_s = self.upstream.idle_timeout_s - waited_s
        if left_s <= 0:
            self._was_silent = True
            self._answer.close()  # wakes up whoever reads
        else:
            self._watchdog = loop.call_later(left_s, self._look_after_it)

    def _broken(self, why: str) -> UpstreamError:
        name, silence_s = self.upstream.name, self.upstream.idle_timeout_s
        said = f"{name} sent nothing for {silence_s:g} s" if self._was_silent else f"{name} broke off: {why}"
        return UpstreamError(said, status=self.status)


class _Unpacker:
    """Undoes gzip and deflate, a bounded piece at a time: a few packed bytes may be gigabytes."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_GZIP_OR_DEFLATE)
        self._packed = b""
        self.is_whole = True  # nothing is begun and not ended

    @property
    def has_more(self) -> bool:
        return bool(self._packed)

    def feed(self, data: bytes) -> bytes:
        """What `data` and what was left of the last ones holds, in part. Raises zlib.error."""
        if self._stream.eof:
            self._stream = zlib.decompressobj(_GZIP_OR_DEFLATE)  # a second member follows the first
        unpacked = self._stream.decompress(self._packed + data, MOST_READ_BYTES)
        self._packed = self._stream.unconsumed_tail or self._stream.unused_data
        self.is_whole = self._stream.eof and not self._packed
        return unpacked
