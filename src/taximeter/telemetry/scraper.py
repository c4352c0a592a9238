"""Engines' own pages, read again and again.

Owns: when pages are fetched, how long one may take and be, and that a page that fails harms nobody. Refuses to know:
what pages say.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final

from taximeter.clock import SYSTEM_CLOCK, Clock
from taximeter.telemetry.engines import EngineState, nothing_known, read_page

if TYPE_CHECKING:
    import aiohttp

_log = logging.getLogger(__name__)

_EVERY_S: Final = 5.0
_PATIENCE_S: Final = 4.0
_LARGEST_PAGE_BYTES: Final = 8 * 1024 * 1024


class _UnreadableError(Exception):
    """There is a page, and it is of no use."""


@dataclass(slots=True)
class Watched:
    """One upstream's page: what it said at `read_at`, the last time it was fetched, well or badly."""

    url: str
    state: EngineState = field(default_factory=lambda: nothing_known("its page was not read yet"))
    read_at: datetime | None = None
    results: Counter[str] = field(default_factory=Counter[str])  # ok, failed


class Scraper:
    """Reads the pages of upstreams that have any. For one event loop."""

    def __init__(self, pages: Mapping[str, str], *, every_s: float = _EVERY_S, clock: Clock = SYSTEM_CLOCK) -> None:
        """`pages` are URLs by the upstreams' names."""
        self.watched = {name: Watched(url) for name, url in pages.items()}
        self._every_s = every_s
        self._clock = clock
        self._run: asyncio.Task[None] | None = None
        self._session: aiohttp.ClientSession | None = None

    def start(self) -> None:
        """Begin, where there is anything to read."""
        if self.watched and self._run is None:
            self._run = asyncio.create_task(self._forever(), name="scraper")

    async def aclose(self) -> None:
        """Stop. Idempotent."""
        if self._run is not None:
            self._run.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._run
        if self._session is not None:
            await self._session.close()

    async def read(self) -> None:
        """Read every page once. Never raises."""
        if self._session is None:
            self._session = self._open()
        session = self._session
        await asyncio.gather(*(self._read(session, name, page) for name, page in self.watched.items()))

    async def _forever(self) -> None:
        while True:
            await self.read()
            await asyncio.sleep(self._every_s)

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp  # noqa: PLC0415  # for those who have something to read

        timeout = aiohttp.ClientTimeout(total=_PATIENCE_S)
        return aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), trust_env=True)

    async def _read(self, session: aiohttp.ClientSession, name: str, page: Watched) -> None:
        try:
            text = await _fetch(session, page.url)
            page.state = await asyncio.to_thread(_understood, text)
            page.results["ok"] += 1
        except Exception as error:  # noqa: BLE001 - a page is a courtesy
            if page.results["failed"] == 0:  # once: the count says the rest
                _log.warning("the page of %s cannot be read: %s", name, _said(error))
            page.results["failed"] += 1
            page.state = nothing_known(f"its page cannot be read: {_said(error)}", page.state.engine)
        page.read_at = self._clock.utc_now()


async def _fetch(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(url, allow_redirects=False) as response:
        if response.status != 200:
            raise _UnreadableError(f"status {response.status}")
        body = bytearray()
        async for piece in response.content.iter_any():
            body += piece
            if len(body) > _LARGEST_PAGE_BYTES:
                raise _UnreadableError(f"longer than {_LARGEST_PAGE_BYTES} bytes")
        return body.decode("utf-8", "replace")


def _understood(text: str) -> EngineState:
    try:
        return read_page(text)
    except ValueError as error:
        raise _UnreadableError("it is not in Prometheus' text format") from error


def _said(error: Exception) -> str:
    """What went wrong, without addresses and pages: those may hold more than a log should."""
    return str(error) if isinstance(error, _UnreadableError) else type(error).__name__
