"""Waiting on the event loop for a write of the ledger, which is done on another thread.

Owns: how long an answer waits for the books. Refuses to know: what is written.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

_LEDGER_PATIENCE_S: Final = 5.0  # a ledger that hangs delays an answer by this much at most


async def done_in_time(writing: Future[None]) -> bool:
    """Wait for a write of the ledger, but not for ever: False when it has not been done, well or badly, by then."""
    if not writing.done():
        loop = asyncio.get_running_loop()
        told = loop.create_future()

        def tell() -> None:
            if not told.done():
                told.set_result(None)

        when_done(writing, tell)
        patience = loop.call_later(_LEDGER_PATIENCE_S, tell)
        try:
            await told
        finally:
            patience.cancel()
    return writing.done()


def when_done(writing: Future[None], tell: Callable[[], object]) -> None:
    """Call `tell` on this event loop once the write is done, well or badly. A loop that has ended is told nothing."""
    loop = asyncio.get_running_loop()

    def done(_: Future[None]) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(tell)

    writing.add_done_callback(done)
