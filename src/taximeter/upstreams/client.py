"""The only HTTP client: one request to one upstream, and its answer as it arrives.

Owns: connections and their reuse, what headers cross the gateway, time-outs, and the stamp of each read at the socket's
edge. Refuses to know: dialects, tries, receipts. Bodies cross untouched.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from taximeter.clock import SYSTEM_CLOCK, Clock, Socket, arrived_ns
from taximeter.errors import UpstreamError
from taximeter.upstreams.config import Family, Upstream
from taximeter.upstreams.headers import HOP_BY_HOP, KEY_HEADERS, Headers, crosses

_LARGEST_READ_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Read:
    """Bytes of an answer: `arrived_ns` at this machine, `read_ns` by us."""

    data: bytes
    arrived_ns: int
    read_ns: int


class Incoming:
    """An answer that has begun: its status and headers are here. Read it once; close it always."""

    def __init__(self, response: aiohttp.ClientResponse, upstream: Upstream, clock: Clock, begun: Read) -> None:
        self.status = response.status
        self.upstream = upstream
        self.begun = begun
        self._response = response
        self._clock = clock
        self._socket = _socket_of(response)

    @property
    def headers(self) -> Headers:
        """Those that cross the gateway."""
        return [(name.lower(), value) for name, value in self._response.raw_headers if name.lower() not in HOP_BY_HOP]

    def header(self, name: str) -> str | None:
        """One of them, by name."""
        return self._response.headers.get(name)

    async def read(self) -> Read | None:
        """The next bytes, as they come; None at the end. Raises UpstreamError when they stop coming before it."""
        try:
            async with asyncio.timeout(self.upstream.idle_timeout_s):
                data = await self._response.content.readany()
        except TimeoutError as error:
            raise UpstreamError(
                f"{self.upstream.name} sent nothing for {self.upstream.idle_timeout_s:g} s", status=self.status
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamError(f"{self.upstream.name} broke off: {_said(error)}", status=self.status) from error
        if not data:
            return None
        read_ns = self._clock.monotonic_ns()
        return Read(data, min(read_ns, arrived_ns(read_ns, self._socket)), read_ns)

    async def __aiter__(self) -> AsyncIterator[Read]:
        while (read := await self.read()) is not None:
            yield read

    def close(self) -> None:
        """Let go of it. An answer that was not read to its end takes its connection along."""
        self._response.close() if not self._response.content.at_eof() else self._response.release()


class Client:
    """Connections to upstreams, shared by all requests of a process. Make it where the event loop runs."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self, upstream: Upstream, method: str, path: str, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> Incoming:
        """Ask, and return when the answer's head is there. `path` begins with a slash and may have a query.

        Raises UpstreamError without a status when nobody answers, or not in time.
        """
        session = self._session or self._open()
        try:
            async with asyncio.timeout(upstream.first_byte_timeout_s):
                response = await session.request(
                    method,
                    URL(upstream.url + path, encoded=True),
                    data=body or None,
                    headers=outgoing_headers(upstream, headers),
                    proxy=upstream.proxy,
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
        except (aiohttp.ClientError, OSError, ssl.SSLError, ValueError) as error:
            raise UpstreamError(f"{upstream.name} cannot be reached: {_said(error)}") from error
        read_ns = self._clock.monotonic_ns()
        return Incoming(response, upstream, self._clock, Read(b"", arrived_ns(read_ns, _socket_of(response)), read_ns))

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
            read_bufsize=_LARGEST_READ_BYTES,
            requote_redirect_url=False,
            trust_env=True,  # HTTPS_PROXY and its like
        )
        return self._session


def outgoing_headers(upstream: Upstream, headers: Iterable[tuple[bytes, bytes]]) -> CIMultiDict[str]:
    """What the upstream gets of the headers that a client sent: all but the connection's and ours, with the upstream's
    own key instead of the client's where it has one."""
    sent: CIMultiDict[str] = CIMultiDict()
    for name, value in headers:
        if not crosses(name):
            continue
        if name in KEY_HEADERS and upstream.key is not None:
            continue
        sent.add(name.decode("latin-1"), value.decode("latin-1"))
    for name, value in upstream.headers.items():
        sent[name] = value
    if upstream.key is not None:
        sent.update(_key_headers(upstream.speaks, upstream.key.reveal()))
    sent["accept-encoding"] = "identity"
    return sent


def _key_headers(family: Family, key: str) -> Mapping[str, str]:
    match family:
        case Family.ANTHROPIC:
            return {"x-api-key": key}
        case Family.OPENAI:
            return {"authorization": f"Bearer {key}"}


def _socket_of(response: aiohttp.ClientResponse) -> Socket | None:
    """Its connection's; None once that has gone back to the others, which happens as soon as an answer is whole."""
    connection = response.connection
    transport = None if connection is None else connection.transport
    return None if transport is None else transport.get_extra_info("socket")


def _said(error: BaseException) -> str:
    """What went wrong, without addresses and paths: those may hold more than a log should."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its name is not known"
    if isinstance(error, aiohttp.ClientConnectorError):
        return (error.os_error.strerror or type(error.os_error).__name__).lower()
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "it closed the connection"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "its answer ended before it was whole"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return type(error).__name__
