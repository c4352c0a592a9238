"""One connection to an upstream: HTTP/1.1 from the asking side, one request after the other.

Owns: the bytes of a request on the socket, an answer taken apart as it comes (httptools does that), when its bytes came
to this machine, and slowing down an upstream that is faster than whoever reads. Refuses to know: addresses and TLS, who
may use a connection next, what headers mean.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

import httptools

from taximeter.clock import SYSTEM_CLOCK, Clock, Socket, arrived_ns, socket_of
from taximeter.upstreams.headers import Headers

MOST_READ_BYTES: Final = 256 * 1024
"""How much of an answer waits here for whoever reads it; then the upstream waits too."""

LONG_BODY_BYTES: Final = 256 * 1024
"""What is longer is sent in pieces, so that other answers go on meanwhile."""

_MOST_HEAD_BYTES: Final = 128 * 1024
_CONTINUE, _SWITCHES = 100, 101
_NO_HTTP: Final = "what it sent is not HTTP as we read it"


class Broken(Exception):
    """It came to nothing. Its text says why in words that may be shown to anybody. `came_before_all` is whether not
    one byte of the answer came before."""

    came_before_all = False


class Late(Broken):
    """The answer did not begin in time."""


@dataclass(frozen=True, slots=True)
class Read:
    """Bytes of an answer: `arrived_ns` at this machine, `read_ns` by us. There may be none in one."""

    data: bytes
    arrived_ns: int
    read_ns: int


class Answer:
    """What comes back for one request. `headers` have small letters. Its last bytes may be read when its connection
    serves somebody else already."""

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self.status = 0  # until its head is here
        self.headers: Headers = []
        self.head: Read | None = None
        self.is_whole = False  # all of it is here, read or not
        self.keeps_connection = False
        self.on_news: Callable[[], object] | None = None  # called when more of it is here, or nothing more comes
        self._has_begun = False  # any byte of it came
        self._was_read = False
        self._connection = connection
        self._clock = clock
        self._parser = httptools.HttpResponseParser(self)
        # As lenient as other clients are: what some servers send is not quite HTTP.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._is_interim = False  # a head before the head: 100, 103
        self._ends_by_itself = False  # by its length or its last chunk, else with its connection
        self._head_bytes = 0
        self._fresh: list[bytes] = []
        self._pieces: deque[tuple[bytes, int]] = deque()
        self._unread_bytes = 0
        self._failure: Broken | None = None
        self._waiting: asyncio.Future[None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether all of it has been read."""
        return self.is_whole and not self._pieces

    @property
    def has_some(self) -> bool:
        """Whether reading need not wait."""
        return bool(self._pieces) or self.is_whole or self._failure is not None

    @property
    def is_ahead(self) -> bool:
        """Whether more than enough of it waits to be read."""
        return self._unread_bytes > MOST_READ_BYTES

    @property
    def body(self) -> bytes | None:
        """All of it, once it is here; None before that, and when some of it has been read. It stays to be read."""
        if not self.is_whole or self._was_read:
            return None
        return self._pieces[0][0] if len(self._pieces) == 1 else b"".join(data for data, _ in self._pieces)

    async def begun(self, patience_s: float) -> None:
        """Wait for its head. Raises Broken, Late."""
        if not self.status and self._failure is None:
            timer = asyncio.get_running_loop().call_later(patience_s, self.fail, Late("it is late"))
            try:
                while not self.status and self._failure is None:
                    await self._something()
            finally:
                timer.cancel()
        if not self.status and self._failure is not None:
            raise self._failure

    async def read(self) -> Read | None:
        """The next bytes, as they came; None at the end. Raises Broken when they stop coming before it."""
        while not self._pieces:
            if self._failure is not None:
                raise self._failure
            if self.is_whole:
                return None
            await self._something()
        self._was_read = True
        data, arrived = self._pieces.popleft()
        was_ahead = self.is_ahead
        self._unread_bytes -= len(data)
        if was_ahead and not self.is_ahead:
            self._connection.go_on(self)
        return Read(data, arrived, self._clock.monotonic_ns())

    def fail(self, why: Broken) -> None:
        """Nothing more comes. What came before can still be read."""
        if not self.is_whole and self._failure is None:
            self._failure = why
        self._wake()

    def close(self) -> None:
        """Nobody reads the rest: where there is one, its connection goes."""
        if not self.is_whole:
            self.fail(Broken("it was given up"))
            self._connection.give_up(self)

    def feed(self, data: bytes, arrived: int, read_ns: int) -> None:
        """From its connection, with when they came and were read."""
        self._has_begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.keeps_connection = False
        except httptools.HttpParserError:
            self.is_whole = False  # what is longer than it says is as wrong as what is shorter
            self.fail(Broken(_NO_HTTP))
        if self._fresh:
            piece = self._fresh[0] if len(self._fresh) == 1 else b"".join(self._fresh)
            self._fresh.clear()
            self._unread_bytes += len(piece)
            self._pieces.append((piece, arrived))
        if self.head is None:
            if self.status:
                self.head = Read(b"", arrived, read_ns)
            else:
                self._head_bytes += len(data)
                if self._head_bytes > _MOST_HEAD_BYTES:
                    self.fail(Broken(_NO_HTTP))
        self._wake()

    def lost(self, error: Exception | None) -> None:
        """From its connection: that is gone."""
        if self.status and not self._ends_by_itself and error is None:
            self.is_whole = True  # some answers end with their connection
        if self.status:
            self.fail(Broken("its answer ended before it was whole"))
        else:
            why = Broken(system_said(error) if isinstance(error, OSError) else "it closed the connection")
            why.came_before_all = not self._has_begun
            self.fail(why)

    @property
    def is_broken(self) -> bool:
        """Whether nothing more comes of it."""
        return self._failure is not None

    # What httptools calls.

    def on_message_begin(self) -> None:
        if self.is_whole:
            self.keeps_connection = False  # what follows was not asked for

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:  # else it is behind the body
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.is_whole:
            return
        status = self._parser.get_status_code()
        if _CONTINUE <= status < 200 and status != _SWITCHES:
            self._is_interim = True
            self.headers = []
            return
        self.status = status
        for name, value in self.headers:
            if name == b"content-length" or (name == b"transfer-encoding" and b"chunked" in value.lower()):
                self._ends_by_itself = True

    def on_body(self, data: bytes) -> None:
        if not self.is_whole:
            self._fresh.append(data)

    def on_message_complete(self) -> None:
        if self._is_interim:
            self._is_interim = False
        elif not self.is_whole:
            self.is_whole = True
            self.keeps_connection = self._parser.should_keep_alive()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
        if self.on_news is not None:
            self.on_news()

    async def _something(self) -> None:
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None


class Connection(asyncio.Protocol):
    """For one request at a time. `on_free` is called when another one may be sent, `on_gone` when none can be any more,
    each with the connection."""

    def __init__(
        self, clock: Clock, *, on_free: Callable[[Connection], object], on_gone: Callable[[Connection], object]
    ) -> None:
        self.was_used = False  # an answer came over it before
        self._clock = clock
        self._on_free = on_free
        self._on_gone = on_gone
        self._transport: asyncio.Transport | None = None
        self._socket: Socket | None = None
        self._answer: Answer | None = None
        self._is_paused = False
        self._is_sending = False
        self._may_write: asyncio.Future[None] | None = None  # while the other end takes nothing

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent, as far as is known."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def transport(self) -> asyncio.Transport | None:
        """What it runs over. Another one may be put in its place between requests: one that is safe."""
        return self._transport

    @transport.setter
    def transport(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        # A clock other than the system's cannot be compared with what the socket tells.
        self._socket = socket_of(transport) if self._clock is SYSTEM_CLOCK else None
        self._answer = None
        self.was_used = False

    async def ask(self, head: bytes, body: bytes, *, patience_s: float) -> Answer:
        """Send a request, and return when the head of its answer is here. Raises Broken, and Late after `patience_s`.
        Whoever is cancelled here closes the connection."""
        if len(body) <= LONG_BODY_BYTES:
            answer = self.begin(head + body)
        else:
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            answer = self.begin(head)
            await self._send(body, answer, patience_s)
            patience_s -= loop.time() - began_s
        await answer.begun(patience_s)
        return answer

    def begin(self, data: bytes) -> Answer:
        """Send a request, or its beginning, and wait for nothing. Raises Broken."""
        if self._transport is None:
            gone = Broken("it closed the connection")
            gone.came_before_all = True
            raise gone
        self._transport.write(data)
        answer = self._answer = Answer(self, self._clock)  # while the other end reads
        return answer

    async def _send(self, body: bytes, answer: Answer, patience_s: float) -> None:
        """A long body, as fast as the other end takes it. One that answers before that gets no more of it."""
        self._is_sending = True
        view = memoryview(body)
        try:
            async with asyncio.timeout(patience_s):
                for start in range(0, len(view), LONG_BODY_BYTES):
                    if self._may_write is not None:
                        await self._may_write
                    if answer.status or answer.is_broken or self._transport is None:
                        return
                    self._transport.write(view[start : start + LONG_BODY_BYTES])
                    await asyncio.sleep(0)
        except TimeoutError as error:
            raise Late("it is late") from error
        self._is_sending = False

    def close(self) -> None:
        """End it, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()

    def give_up(self, answer: Answer) -> None:
        """Nobody reads the rest of `answer`."""
        if answer is self._answer:
            self.close()

    def go_on(self, answer: Answer) -> None:
        """What waited of `answer` was read."""
        if answer is self._answer:
            self._resume()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # of a stream

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:
            self.close()  # nobody asked for it
            return
        read_ns = self._clock.monotonic_ns()
        answer.feed(data, min(read_ns, arrived_ns(read_ns, self._socket)), read_ns)
        if answer.is_broken:
            self.close()
        elif answer.is_whole:
            self._finish(answer)
        elif answer.is_ahead and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def _finish(self, answer: Answer) -> None:
        self._answer = None
        if answer.keeps_connection and not self._is_sending and self.is_open:
            self.was_used = True
            self._resume()
            self._on_free(self)
        else:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.resume_writing()
        answer, self._answer, self._transport = self._answer, None, None
        if answer is not None:
            answer.lost(exc)
        self._on_gone(self)

    def pause_writing(self) -> None:
        self._may_write = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        may_write, self._may_write = self._may_write, None
        if may_write is not None and not may_write.done():
            may_write.set_result(None)

    def _resume(self) -> None:
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()


def system_said(error: OSError) -> str:
    """What the system says of an error. Its own text may hold an address; that of its number does not."""
    return os.strerror(error.errno).lower() if error.errno else "the connection broke"
