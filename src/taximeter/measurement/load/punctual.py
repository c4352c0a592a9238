"""An event loop that wakes up when it was told to.

Owns: the loop that load is driven from. Refuses to know: what runs in it. Linux' epoll waits in whole milliseconds,
which the usual loops round up to: a request that is due would leave half a millisecond late on average, and the loop
would look late to whoever watches it, when nothing keeps it busy. Here the waiting is left to `select`, which counts in
microseconds, with the epoll object as its only file.
"""

from __future__ import annotations

import asyncio
import select
import selectors
import sys


def punctual_loop() -> asyncio.AbstractEventLoop:
    """A new loop. Other systems than Linux get their usual one, which is punctual."""
    if sys.platform == "linux":
        return asyncio.SelectorEventLoop(_Punctual())
    return asyncio.new_event_loop()


if sys.platform == "linux":

    class _Punctual(selectors.EpollSelector):
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout is not None and timeout > 0:
                select.select([self.fileno()], [], [], timeout)
                timeout = 0
            return super().select(timeout)
