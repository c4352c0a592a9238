"""The only reader of time.

Intervals come from a monotonic clock in nanoseconds; UTC is for people and for prices. Owns: both readings, when data
came to this machine that is read only now, and a clock for tests that moves only when told. Refuses to know: what the
times are for.
"""

from __future__ import annotations

import socket
import struct
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import asyncio


class Clock(Protocol):
    """Two readings of now."""

    def monotonic_ns(self) -> int:
        """Nanoseconds since an arbitrary start; never goes back; comparable within one process only."""
        ...

    def utc_now(self) -> datetime:
        """Wall time, aware, UTC. May jump; never subtract two of these to get a duration."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def monotonic_ns(self) -> int:
        return time.perf_counter_ns()

    def utc_now(self) -> datetime:
        return datetime.now(UTC)


class FakeClock:
    """A clock that stands still until `advance` is called. Wall time may be set apart from it."""

    def __init__(self, start: datetime | None = None) -> None:
        self._ns = 0
        self._wall = start or datetime(2026, 10, 29, 12, 0, tzinfo=UTC)

    def monotonic_ns(self) -> int:
        return self._ns

    def utc_now(self) -> datetime:
        return self._wall

    def advance(self, *, ns: int = 0, ms: int = 0, s: int = 0) -> None:
        """Move both clocks forward together."""
        step_ns = ns + ms * 1_000_000 + s * 1_000_000_000
        if step_ns < 0:
            raise ValueError("a monotonic clock does not go back")
        self._ns += step_ns
        self._wall += timedelta(microseconds=step_ns / 1_000)

    def set_wall(self, at: datetime) -> None:
        """Set wall time alone, as an administrator or NTP would."""
        self._wall = at


SYSTEM_CLOCK: Clock = SystemClock()

_TCP_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None)  # Linux
_TCP_INFO_BYTES: Final = 104
_LAST_DATA_RECEIVED: Final = struct.Struct("=I")
_LAST_DATA_RECEIVED_AT: Final = 52  # of struct tcp_info: milliseconds since data last arrived
# The kernel counts in ticks of up to 10 ms: a shorter wait cannot be told from none.
_LEAST_WAIT_NS: Final = 20_000_000


class Lent(Protocol):
    """As much of a socket as event loops let others have."""

    def fileno(self) -> int: ...


class Socket(Protocol):
    """What can be asked."""

    def getsockopt(self, level: int, name: int, size: int, /) -> bytes: ...


class _Borrowed(socket.socket):
    """A socket that somebody else closes."""

    def __del__(self) -> None:
        self.detach()


def socket_of(transport: asyncio.BaseTransport) -> Socket | None:
    """For `arrived_ns`, as long as the connection lives. What uvloop lends is made anew for each question, with four
    more of its own to the system."""
    lent: Lent | None = transport.get_extra_info("socket")
    descriptor = -1 if lent is None else lent.fileno()
    return None if descriptor < 0 else _Borrowed(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)


def arrived_ns(now_ns: int, sock: Socket | None) -> int:
    """When what was just read from `sock` came to this machine: earlier than `now_ns` if it had to wait for a busy
    event loop. Where the system does not tell, it is `now_ns`."""
    try:
        if sock is None or _TCP_INFO is None:
            return now_ns
        info = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _TCP_INFO_BYTES)
        waited_ns = _LAST_DATA_RECEIVED.unpack_from(info, _LAST_DATA_RECEIVED_AT)[0] * 1_000_000
    except (OSError, ValueError, struct.error):  # ValueError: closed meanwhile, and its number is gone
        return now_ns
    return now_ns if waited_ns < _LEAST_WAIT_NS else now_ns - waited_ns
