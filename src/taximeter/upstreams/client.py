"""The only HTTP client: one request to one upstream, until its answer begins.

Owns: connections and their reuse, proxies, what headers cross the gateway, and how long a beginning may take. Refuses
to know: dialects, tries, receipts. Bodies cross untouched.
"""

from __future__ import annotations

import asyncio
import io
import urllib.request
import weakref
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from taximeter.clock import SYSTEM_CLOCK, Clock
from taximeter.errors import UpstreamError
from taximeter.upstreams.config import Family, Upstream
from taximeter.upstreams.dispatch import Stale
from taximeter.upstreams.headers import KEY_HEADERS, crosses, named_hops
from taximeter.upstreams.incoming import ABROAD, MOST_READ_BYTES, Incoming, Response, said

_LONG_BODY_BYTES: Final = 1024 * 1024  # sent in pieces, so that other answers go on meanwhile
_MOST_HEADER_BYTES: Final = 64 * 1024  # of one header of an answer
_MOST_HEADERS: Final = 256


class Client:
    """Connections to upstreams, shared by all requests of a process. Make it where the event loop runs."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._proxies: dict[str, str | None] = {}

    async def send(
        self, upstream: Upstream, method: str, path: str, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> Incoming:
        """Ask, and return when the answer's head is there. `path` begins with a slash and may have a query.

        Raises UpstreamError without a status when nobody answers, or not in time; Stale when that proves nothing.
        """
        session = self._session or self._open()
        sent_ns = self._clock.monotonic_ns()
        try:
            async with asyncio.timeout(upstream.first_byte_timeout_s):
                response = await session.request(
                    method,
                    URL(upstream.url + path, encoded=True),
                    data=(body if len(body) < _LONG_BODY_BYTES else io.BytesIO(body)) or None,
                    headers=outgoing_headers(upstream, headers),
                    proxy=self._proxy(upstream),
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=upstream.connect_timeout_s),
                    allow_redirects=False,
                    skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
                )
        except aiohttp.ServerTimeoutError as error:
            raise UpstreamError(f"{upstream.name} took no connection in {upstream.connect_timeout_s:g} s") from error
        except TimeoutError as error:
            raise UpstreamError(
                f"{upstream.name} did not begin to answer in {upstream.first_byte_timeout_s:g} s",
                hint="first_byte_timeout_s of the upstream allows more",
            ) from error
        except _ClosedWhenReused as error:
            raise Stale(f"{upstream.name} had closed a connection that was kept for reuse") from error
        except ABROAD as error:
            raise UpstreamError(f"{upstream.name} gave no answer: {said(error)}") from error
        assert isinstance(response, Response)  # noqa: S101 - the session makes no others
        if not 200 <= response.status < 600:
            response.close()
            raise UpstreamError(f"{upstream.name} answered with status {response.status}, which is none")
        return Incoming(response, upstream, self._clock, sent_ns)

    async def aclose(self) -> None:
        """Close all connections. Idempotent."""
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=0, limit_per_host=0, ttl_dns_cache=60, keepalive_timeout=55)
        self._session = aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=MOST_READ_BYTES,
            requote_redirect_url=False,
            max_line_size=_MOST_HEADER_BYTES,
            max_field_size=_MOST_HEADER_BYTES,
            max_headers=_MOST_HEADERS,
            response_class=_stamping(self._clock),
        )
        return self._session

    def _proxy(self, upstream: Upstream) -> str | None:
        """Its own, or that of the environment (`HTTPS_PROXY` and its like), which is looked up once: the library would
        look for each request, on a thread, and for passwords in `~/.netrc` too."""
        if upstream.proxy is not None:
            return upstream.proxy
        if upstream.name not in self._proxies:
            parts = urlsplit(upstream.url)
            is_direct = urllib.request.proxy_bypass(parts.hostname or "")
            proxy = None if is_direct else urllib.request.getproxies().get(parts.scheme)
            self._proxies[upstream.name] = proxy if proxy is None or "://" in proxy else f"http://{proxy}"
        return self._proxies[upstream.name]


class _ClosedWhenReused(aiohttp.ClientConnectionError):
    """See `Stale`."""


def _stamping(clock: Clock) -> type[Response]:
    """The class of a session's responses. It also tells a connection's first answer from later ones."""
    used: weakref.WeakSet[asyncio.BaseProtocol] = weakref.WeakSet()

    class Stamping(Response):
        async def start(self, connection: aiohttp.connector.Connection) -> Response:
            self.clock = clock
            protocol = connection.protocol
            is_reused = protocol in used
            if protocol is not None and not is_reused:
                used.add(protocol)
            try:
                return await super().start(connection)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                if is_reused:
                    raise _ClosedWhenReused from error
                raise

    return Stamping


def outgoing_headers(upstream: Upstream, headers: Iterable[tuple[bytes, bytes]]) -> CIMultiDict[str]:
    """What the upstream gets of the headers that a client sent: all but the connection's and ours, with the upstream's
    own key instead of the client's where it has one."""
    headers = list(headers)
    hops = named_hops(headers)
    sent: CIMultiDict[str] = CIMultiDict()
    for name, value in headers:
        if name in hops or not crosses(name):
            continue
        if name in KEY_HEADERS and upstream.key is not None:
            continue
        sent.add(name.decode("latin-1"), _text(value))
    for name, value in upstream.headers.items():
        sent[name] = value
    if upstream.key is not None:
        sent.update(_key_headers(upstream.speaks, upstream.key.reveal()))
    sent["accept-encoding"] = "identity"
    return sent


def _text(value: bytes) -> str:
    """The value as the library, which writes UTF-8, sends it byte for byte where that can be."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _key_headers(family: Family, key: str) -> Mapping[str, str]:
    match family:
        case Family.ANTHROPIC:
            return {"x-api-key": key}
        case Family.OPENAI:
            return {"authorization": f"Bearer {key}"}
