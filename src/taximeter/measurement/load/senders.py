"""Who sends a level: one client, or as many as it takes.

Owns: how many client processes there are, and when there are more. Refuses to know: what they send, and how processes
are made.

Where nobody said how many, a level that kept a client busy all the time is sent again by twice as many, up to one for
each processor, and so are all later ones. A client that is late because the machine is full is not helped by more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

from taximeter.measurement.load.level import Level
from taximeter.measurement.load.run import LoadRun

Send = Callable[[Level], Awaitable[LoadRun]]
"""Sends one level, whole."""


class Senders:
    """A context manager, since several clients are processes. `here` sends from this process, `fleet_of` gives so many
    others. `most` is how many there may be where `clients` does not say it; 1 where sending a level again has a price.
    `on_more` is told of each level that is sent again, and of how many do it then."""

    def __init__(
        self,
        here: Send,
        fleet_of: Callable[[int], AbstractAsyncContextManager[Send]],
        *,
        clients: int | None,
        most: int,
        on_more: Callable[[Level, int], object] = lambda _level, _clients: None,
    ) -> None:
        self.clients = clients or 1
        self._most = self.clients if clients is not None else most
        self._here = here
        self._fleet_of = fleet_of
        self._on_more = on_more
        self._fleet: Send | None = None
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def send(self, level: Level) -> LoadRun:
        """Send the level; the figures are those of the last time it was sent."""
        run = await self._sent(level)
        while self.clients < self._most and not run.was_stopped and any(client.is_busy for client in run.clients):
            await self._stack.aclose()
            self._fleet, self.clients = None, min(2 * self.clients, self._most)
            self._on_more(level, self.clients)
            run = await self._sent(level)
        return run

    async def _sent(self, level: Level) -> LoadRun:
        if self.clients == 1:
            return await self._here(level)
        if self._fleet is None:
            self._fleet = await self._stack.enter_async_context(self._fleet_of(self.clients))
        return await self._fleet(level)
