"""The socket's edge of the door: when the first byte of a request came to this machine.

Owns: that stamp. Refuses to know: HTTP, which is uvicorn's, and what is asked.

A stamp that is taken where a request is handled is blind to what it waited for before: an event loop that was busy for
a second would show as nothing. The system knows when the bytes came, so it is asked for that.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from taximeter.clock import SYSTEM_CLOCK, Clock, Socket, arrived_ns
from taximeter.gateway.arrival import ARRIVED_NS


def stamping(clock: Clock) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol, which also leaves in each request's scope when its first byte came. A `clock` other than
    the system's cannot be asked that."""
    if clock is not SYSTEM_CLOCK:
        return HttpToolsProtocol

    class StampingProtocol(HttpToolsProtocol):
        _read_ns = 0
        _socket: Socket | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            super().connection_made(transport)
            self._socket = transport.get_extra_info("socket")  # each call makes another one

        def data_received(self, data: bytes) -> None:
            self._read_ns = 0
            super().data_received(data)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            if not self._read_ns:  # once for all requests that came in one piece
                self._read_ns = arrived_ns(clock.monotonic_ns(), self._socket)
            self.scope[ARRIVED_NS] = self._read_ns  # pyright: ignore[reportGeneralTypeIssues]  # a scope may have more

    return StampingProtocol
