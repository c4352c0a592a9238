"""An answer of an upstream as it arrives.

Owns: the stamp of each read at the socket's edge, how long an upstream may say nothing, what crosses the gateway of its
headers, and taking off a packing that was not asked for. Refuses to know: connections, dialects, tries, receipts.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from taximeter.clock import Clock, Socket, arrived_ns
from taximeter.errors import UpstreamError
from taximeter.upstreams.config import Upstream
from taximeter.upstreams.dispatch import AFTER_THE_END_S
from taximeter.upstreams.headers import Headers, crosses_back, named_hops

MOST_READ_BYTES: Final = 256 * 1024
ABROAD: Final = (aiohttp.ClientError, HttpProcessingError, OSError, ValueError)
"""What the HTTP library raises when the other end does not keep to the protocol, or is not there."""

_GZIP_OR_DEFLATE: Final = 32 + zlib.MAX_WBITS


@dataclass(frozen=True, slots=True)
class Read:
    """Bytes of an answer: `arrived_ns` at this machine, `read_ns` by us. There may be none in one."""

    data: bytes
    arrived_ns: int
    read_ns: int


class Response(aiohttp.ClientResponse):
    """The library's own, which also knows when its head came. Its connection is taken from it as soon as it is whole,
    so what is to be asked of the socket must be held on to from the start."""

    transport: asyncio.Transport | None = None
    head: Read | None = None
    clock: Clock | None = None

    async def start(self, connection: aiohttp.connector.Connection) -> Response:
        self.transport = connection.transport
        await super().start(connection)
        if self.clock is not None:
            self.head = self.stamped(b"", self.clock)
        return self

    def stamped(self, data: bytes, clock: Clock) -> Read:
        """What was just read, and when it came."""
        read_ns = clock.monotonic_ns()
        transport = self.transport
        # The number of a closed socket may be another's by now.
        open_now = transport is not None and not transport.is_closing()
        sock: Socket | None = transport.get_extra_info("socket") if transport is not None and open_now else None
        return Read(data, min(read_ns, arrived_ns(read_ns, sock)), read_ns)


class Incoming:
    """An answer that has begun: its status and headers are here. Read it once; close it always.

    `packed_as` is how the body is compressed where that could not be undone: None almost always.
    """

    def __init__(self, response: Response, upstream: Upstream, clock: Clock, sent_ns: int) -> None:
        self.status = response.status
        self.upstream = upstream
        head = response.head or response.stamped(b"", clock)
        self.begun = Read(b"", max(sent_ns, head.arrived_ns), head.read_ns)
        self._response = response
        self._clock = clock
        self._waits_since_s: float | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._was_silent = False
        packing = response.headers.get("content-encoding", "identity").strip().lower()
        self._unpacker = _Unpacker() if packing in ("gzip", "x-gzip", "deflate") else None
        self.packed_as = None if packing in ("", "identity") or self._unpacker is not None else packing[:40]

    @property
    def headers(self) -> Headers:
        """Those that cross the gateway."""
        raw = [(name.lower(), value) for name, value in self._response.raw_headers]
        hops = named_hops(raw)
        if self._unpacker is not None:
            hops = {*hops, b"content-encoding"}
        return [(name, value) for name, value in raw if name not in hops and crosses_back(name, value)]

    @property
    def is_over(self) -> bool:
        """Whether all of it has been read."""
        return self._response.content.at_eof()

    def header(self, name: str) -> str | None:
        """One of them, by name."""
        return self._response.headers.get(name)

    async def read(self) -> Read | None:
        """The next bytes, as they come; None at the end. Raises UpstreamError when they stop coming before it."""
        unpacker = self._unpacker
        if unpacker is not None and unpacker.has_more:
            return self._response.stamped(self._unpacked(unpacker, b""), self._clock)
        loop = asyncio.get_running_loop()
        self._waits_since_s = loop.time()
        if self._watchdog is None:
            # One timer for all reads: to make and cancel one for each costs more than the rest of reading.
            self._watchdog = loop.call_later(self.upstream.idle_timeout_s, self._look_after_it)
        try:
            data = await self._response.content.readany()
        except ABROAD as error:
            raise self._broken(said(error)) from error
        finally:
            self._waits_since_s = None
        if unpacker is None:
            return self._response.stamped(data, self._clock) if data else None
        if not data and not unpacker.is_whole:
            raise self._broken("its answer ended before it was whole")
        return self._response.stamped(self._unpacked(unpacker, data), self._clock) if data else None

    async def __aiter__(self) -> AsyncIterator[Read]:
        while (read := await self.read()) is not None:
            yield read

    def close(self) -> None:
        """Let go of it. An answer that has not come to its end takes its connection along."""
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._response.content.is_eof():
            self._response.release()
        else:
            self._response.close()

    def finish(self) -> None:
        """Let go of an answer whose last word has been read. Its connection serves again if it ends in a moment."""
        if self._watchdog is not None:
            self._watchdog.cancel()
        if not self._response.content.is_eof():
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
            self._response.close()  # wakes up whoever reads
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


def said(error: BaseException) -> str:
    """What went wrong, without addresses, paths and headers: those may hold more than a log should."""
    match error:
        case aiohttp.ClientConnectorDNSError():
            return "its name is not known"
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError():
            return "no secure connection could be made: is its certificate one that this machine trusts?"
        case aiohttp.ClientHttpProxyError():
            return f"the proxy answered with status {error.status}"
        case aiohttp.ClientProxyConnectionError():
            return f"the proxy cannot be reached: {_system_said(error.os_error)}"
        case aiohttp.ClientConnectorError():
            return _system_said(error.os_error)
        case aiohttp.ServerDisconnectedError():
            return "it closed the connection"
        case aiohttp.ClientPayloadError():
            return "its answer ended before it was whole"
        case aiohttp.ClientResponseError() | HttpProcessingError():
            return "what it sent is not HTTP as we read it"
        case OSError():
            return _system_said(error)
        case _:
            return type(error).__name__


def _system_said(error: OSError) -> str:
    # Its own text may hold an address; that of its number does not.
    return os.strerror(error.errno).lower() if error.errno else "the connection broke"
