"""The only HTTP client: one request to one upstream, until its answer begins.

Owns: which connection a request takes and how long it is kept for the next, what headers cross the gateway, which proxy
is asked, and how long a beginning may take. Refuses to know: dialects, tries, receipts. Bodies cross untouched.
"""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from taximeter.clock import SYSTEM_CLOCK, Clock
from taximeter.errors import UpstreamError
from taximeter.upstreams.config import Family, Upstream
from taximeter.upstreams.connection import LONG_BODY_BYTES, Answer, Broken, Connection, Late
from taximeter.upstreams.dispatch import Stale
from taximeter.upstreams.headers import KEY_HEADERS, Headers, crosses, named_hops
from taximeter.upstreams.incoming import Incoming
from taximeter.upstreams.reaching import Opener, Place

_KEPT_S: Final = 55.0  # most servers close what is idle for a minute
_WITH_BODIES: Final = frozenset({"POST", "PUT", "PATCH"})


@dataclass(slots=True)
class _Site:
    """A place, and the connections to it that nobody uses, each with when it was used last, the latest at the end."""

    place: Place
    idle: list[tuple[float, Connection]] = field(default_factory=list[tuple[float, Connection]])


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was sent over a connection that was kept, while its answer is on its way."""

    connection: Connection
    answer: Answer
    sent_ns: int
    late_at_s: float

    def close(self) -> None:
        """Nobody waits for it."""
        self.answer.close()


class Client:
    """Connections to upstreams, shared by all requests of a process. Make it where the event loop runs."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._opener = Opener()
        self._sites: dict[tuple[str, str | None], _Site] = {}
        self._site_of: dict[Connection, _Site] = {}
        self._proxies: dict[str, str | None] = {}
        self._sweeping: asyncio.TimerHandle | None = None

    def ask_at_once(
        self,
        upstream: Upstream,
        method: str,
        path: str,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        *,
        before: Callable[[], object],
    ) -> Asked | None:
        """Ask over a connection that was kept, and wait for nothing; None where there is none, or the body is long.
        `before` is called right before anything is sent. Whoever gets it has it awaited by `send`, or closes it."""
        site = self._site(upstream)
        if len(body) > LONG_BODY_BYTES or not site.idle:
            return None
        try:
            head = _head(site.place, method, path, outgoing_headers(upstream, headers), len(body))
        except Broken:
            return None
        connection = self._idle_one(site)
        if connection is None:
            return None
        before()
        late_at_s = asyncio.get_running_loop().time() + upstream.first_byte_timeout_s
        sent_ns = self._clock.monotonic_ns()
        return Asked(connection, connection.begin(head + body), sent_ns, late_at_s)

    async def send(
        self,
        upstream: Upstream,
        method: str,
        path: str,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        *,
        asked: Asked | None = None,
    ) -> Incoming:
        """Ask, and return when the answer's head is there. `path` begins with a slash and may have a query. What was
        `asked` already is waited for only.

        Raises UpstreamError without a status when nobody answers, or not in time; Stale when that proves nothing.
        """
        loop = asyncio.get_running_loop()
        sent_ns = self._clock.monotonic_ns()
        late_at_s = loop.time() + upstream.first_byte_timeout_s
        try:
            if asked is not None:
                sent_ns = asked.sent_ns
                answer = await self._answer(asked.connection, _begun(asked, loop.time()), was_used=True)
            else:
                site = self._site(upstream)
                head = _head(site.place, method, path, outgoing_headers(upstream, headers), len(body))
                connection = self._idle_one(site) or await self._another(site, upstream)
                asking = connection.ask(head, body, patience_s=late_at_s - loop.time())
                answer = await self._answer(connection, asking, was_used=connection.was_used)
        except Late as error:
            raise UpstreamError(
                f"{upstream.name} did not begin to answer in {upstream.first_byte_timeout_s:g} s",
                hint="first_byte_timeout_s of the upstream allows more",
            ) from error
        except _ClosedWhenReused as error:
            raise Stale(f"{upstream.name} had closed a connection that was kept for reuse") from error
        except Broken as error:
            raise UpstreamError(f"{upstream.name} gave no answer: {error}") from error
        if not 200 <= answer.status < 600:
            answer.close()
            raise UpstreamError(f"{upstream.name} answered with status {answer.status}, which is none")
        return Incoming(answer, upstream, sent_ns)

    async def aclose(self) -> None:
        """Close all connections. Idempotent."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in list(self._site_of):
            connection.close()
        await asyncio.sleep(0)  # the event loop closes them in its next turn

    async def _answer(self, connection: Connection, asking: Awaitable[Answer], *, was_used: bool) -> Answer:
        try:
            return await asking
        except Late:
            connection.close()
            raise
        except Broken as error:
            connection.close()
            if was_used and error.came_before_all:
                raise _ClosedWhenReused(str(error)) from error
            raise
        except BaseException:
            connection.close()
            raise

    async def _another(self, site: _Site, upstream: Upstream) -> Connection:
        """A new connection. Raises Broken, and UpstreamError when it takes too long."""
        connection = Connection(self._clock, on_free=self._keep, on_gone=self._forget)
        patience_s = min(upstream.connect_timeout_s, upstream.first_byte_timeout_s)
        try:
            await self._opener.open(site.place, connection, patience_s=patience_s)
        except Late as error:
            raise UpstreamError(f"{upstream.name} took no connection in {patience_s:g} s") from error
        if not connection.is_open:  # closed as soon as it was there
            raise Broken("it closed the connection")
        self._site_of[connection] = site
        return connection

    def _idle_one(self, site: _Site) -> Connection | None:
        """The one that was used last, if that is not too long ago."""
        while site.idle:
            since_s, connection = site.idle.pop()
            if not connection.is_open:
                continue
            if asyncio.get_running_loop().time() - since_s < _KEPT_S:
                return connection
            connection.close()
        return None

    def _keep(self, connection: Connection) -> None:
        site = self._site_of.get(connection)
        if site is None:  # what a proxy said was no answer to anybody
            return
        loop = asyncio.get_running_loop()
        site.idle.append((loop.time(), connection))
        if self._sweeping is None:  # one timer for all of them
            self._sweeping = loop.call_later(_KEPT_S, self._sweep)

    def _sweep(self) -> None:
        """Close what nobody has used for long."""
        loop = asyncio.get_running_loop()
        old_s = loop.time() - _KEPT_S
        for site in self._sites.values():
            kept = [each for each in site.idle if each[0] > old_s]
            for _, connection in site.idle[: len(site.idle) - len(kept)]:
                connection.close()
            site.idle[:] = kept
        is_needed = any(site.idle for site in self._sites.values())
        self._sweeping = loop.call_later(_KEPT_S / 2, self._sweep) if is_needed else None

    def _forget(self, connection: Connection) -> None:
        site = self._site_of.pop(connection, None)
        if site is not None:
            site.idle[:] = [each for each in site.idle if each[1] is not connection]

    def _site(self, upstream: Upstream) -> _Site:
        proxy = self._proxy(upstream)
        site = self._sites.get((upstream.url, proxy))
        if site is None:
            site = self._sites[upstream.url, proxy] = _Site(Place.of(upstream.url, proxy))
        return site

    def _proxy(self, upstream: Upstream) -> str | None:
        """Its own, or that of the environment (`HTTPS_PROXY` and its like), which is looked up once."""
        if upstream.proxy is not None:
            return upstream.proxy
        if upstream.name not in self._proxies:
            parts = urlsplit(upstream.url)
            is_direct = urllib.request.proxy_bypass(parts.hostname or "")
            proxy = None if is_direct else urllib.request.getproxies().get(parts.scheme)
            self._proxies[upstream.name] = proxy if proxy is None or "://" in proxy else f"http://{proxy}"
        return self._proxies[upstream.name]


class _ClosedWhenReused(Exception):
    """See `Stale`."""


async def _begun(asked: Asked, now_s: float) -> Answer:
    await asked.answer.begun(asked.late_at_s - now_s)
    return asked.answer


def _head(place: Place, method: str, path: str, headers: Headers, body_bytes: int) -> bytes:
    """The head of a request. Raises Broken when something in it would end a line."""
    lines = [f"{method} {place.prefix}{path} HTTP/1.1".encode("latin-1"), b"host: " + place.authority]
    lines += [name + b": " + value for name, value in headers]
    if body_bytes or method in _WITH_BODIES:
        lines.append(b"content-length: %d" % body_bytes)
    head = b"\r\n".join(lines) + b"\r\n"
    if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines) or b"\0" in head:
        raise Broken("a header to be sent has a line end in it")
    return head + (place.proxy_headers if place.passes_on else b"") + b"\r\n"


def outgoing_headers(upstream: Upstream, headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """What the upstream gets of the headers that a client sent: all but the connection's and ours, with the upstream's
    own key instead of the client's where it has one. Names are in small letters."""
    headers = list(headers)
    hops = named_hops(headers)
    own = _own_headers(upstream)
    has_key = upstream.key is not None
    sent = [
        (name, value)
        for name, value in headers
        if crosses(name) and name not in own and name not in hops and not (has_key and name in KEY_HEADERS)
    ]
    return [*sent, *own.items()]


def _own_headers(upstream: Upstream) -> dict[bytes, bytes]:
    """What it gets from us."""
    own = {name.lower().encode(): value.encode() for name, value in upstream.headers.items()}
    if upstream.key is not None:
        own |= _key_header(upstream.speaks, upstream.key.reveal())
    return own | {b"accept-encoding": b"identity"}


def _key_header(family: Family, key: str) -> dict[bytes, bytes]:
    match family:
        case Family.ANTHROPIC:
            return {b"x-api-key": key.encode()}
        case Family.OPENAI:
            return {b"authorization": b"Bearer " + key.encode()}
