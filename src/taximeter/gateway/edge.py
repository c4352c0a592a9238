"""The server's edge of the door: when the first byte of a request came to this machine, and requests that can go on
before an application is begun for them.

Owns: that stamp, the client's side of a request that is asked ahead, and what of uvicorn's is used for both. Refuses to
know: HTTP, which is uvicorn's, and what is asked.

A stamp that is taken where a request is handled is blind to what it waited for before: an event loop that was busy for
a second would show as nothing. The system knows when the bytes came, so it is asked for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from taximeter.clock import SYSTEM_CLOCK, Clock, Socket, arrived_ns, socket_of
from taximeter.gateway.arrival import ARRIVED_NS
from taximeter.upstreams.headers import Headers

if TYPE_CHECKING:
    from starlette.types import Scope
    from uvicorn._types import ASGI3Application

    from taximeter.gateway.app import Door


def protocol_for(door: Door, clock: Clock) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol, which also leaves in each request's scope when its first byte came, and asks `door`
    whether it can go on at once. A `clock` other than the system's cannot be asked for the first."""
    if clock is not SYSTEM_CLOCK:
        return HttpToolsProtocol

    class EdgeProtocol(HttpToolsProtocol):
        _read_ns = 0
        _socket: Socket | None = None
        _is_reading = False
        _client: _Client | None = None  # of the latest request that came whole
        _begun: tuple[RequestResponseCycle, ASGI3Application] | None = None  # its body may come with its head

        def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            super().connection_made(transport)
            self._socket = socket_of(transport)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self._client is not None:
                self._client.is_gone()

        def data_received(self, data: bytes) -> None:
            self._read_ns = 0
            self._is_reading = True
            try:
                super().data_received(data)
            finally:
                self._is_reading = False
            if (begun := self._take_begun()) is not None:
                super()._start_asgi_task(*begun)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            if not self._read_ns:  # once for all requests that came in one piece
                self._read_ns = arrived_ns(clock.monotonic_ns(), self._socket)
            self.scope[ARRIVED_NS] = self._read_ns  # pyright: ignore[reportGeneralTypeIssues]  # a scope may have more

        def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
            if self._is_reading and app is door and not cycle.waiting_for_100_continue:
                self._begun = cycle, app
            else:
                super()._start_asgi_task(cycle, app)

        def on_message_complete(self) -> None:
            super().on_message_complete()
            if (begun := self._take_begun()) is None:
                return
            cycle, _ = begun
            scope: Scope = cycle.scope  # pyright: ignore[reportAssignmentType]  # as Starlette calls it
            client = self._client = _Client(cycle, lambda: HttpToolsProtocol._start_asgi_task(self, *begun))  # noqa: SLF001
            if not door.ask_ahead(scope, bytes(cycle.body), client):
                client.carry_on()

        def _take_begun(self) -> tuple[RequestResponseCycle, ASGI3Application] | None:
            begun, self._begun = self._begun, None
            return begun

    return EdgeProtocol


class _Client:
    """See `Caller`. It writes the beginning of a response where uvicorn does, and leaves it as uvicorn would have."""

    def __init__(self, cycle: RequestResponseCycle, carry_on: Callable[[], None]) -> None:
        self._cycle = cycle
        self.carry_on = carry_on
        self._tell: Callable[[], object] | None = None

    def when_gone(self, tell: Callable[[], object]) -> None:
        self._tell = tell
        if self._cycle.disconnected:
            self.is_gone()

    def is_gone(self) -> None:
        """The connection is."""
        if self._tell is not None and not self._cycle.response_complete:
            self._tell()

    @property
    def takes_more(self) -> bool:
        cycle = self._cycle
        return not (cycle.disconnected or cycle.flow.write_paused or cycle.transport.is_closing())

    def show(self, status: int, headers: Headers, data: bytes, *, left_bytes: int) -> None:
        """`headers` have a length and are fit to be sent."""
        cycle = self._cycle
        lines = [STATUS_LINE[status]]
        for name, value in (*cycle.default_headers, *headers):
            lines += (name, b": ", value, b"\r\n")
        lines += (b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n", data)
        cycle.response_started = True
        cycle.chunked_encoding = False
        cycle.expected_content_length = left_bytes
        cycle.transport.write(b"".join(lines))
