"""The way to an upstream: names, addresses, TLS and proxies.

Owns: where an upstream is, and opening a connection to it. Refuses to know: requests, and which connection is used.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

import aiohappyeyeballs

from taximeter.upstreams.connection import Broken, Connection, Late, system_said

_PORTS: Final = {"http": 80, "https": 443}
_NEXT_ADDRESS_S: Final = 0.25  # one that has not answered by then has a rival (RFC 8305)
_NAMES_LAST_S: Final = 60.0
_UNSAFE: Final = "no secure connection could be made: is its certificate one that this machine trusts?"

_Address = tuple[int, int, int, str, tuple[str | int | bytes, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One end of a connection. `is_safe` is whether it is spoken to over TLS."""

    name: str
    port: int
    is_safe: bool

    @staticmethod
    def of(parts: SplitResult) -> Host:
        return Host(
            name=parts.hostname or "", port=parts.port or _PORTS.get(parts.scheme, 80), is_safe=parts.scheme == "https"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an upstream is. `authority` is what it is called in requests, `prefix` what stands in front of paths there:
    for a proxy that passes requests on that is all of the address. `proxy_headers` are for it alone."""

    host: Host
    authority: bytes
    prefix: str
    proxy: Host | None = None
    proxy_headers: bytes = field(default=b"", repr=False)  # it may have a password in it

    @staticmethod
    def of(url: str, proxy: str | None) -> Place:
        """Raises Broken for a proxy that is none of HTTP."""
        parts = urlsplit(url)
        authority = parts.netloc.rpartition("@")[2]
        if parts.port == _PORTS.get(parts.scheme):
            authority = authority.removesuffix(f":{parts.port}")
        if proxy is None:
            return Place(host=Host.of(parts), authority=authority.encode(), prefix=parts.path)
        through = urlsplit(proxy)
        if through.scheme not in _PORTS or not through.hostname:
            raise Broken("its proxy is no HTTP proxy")
        password = b""
        if through.username is not None:
            both = f"{unquote(through.username)}:{unquote(through.password or '')}".encode()
            password = b"proxy-authorization: Basic %b\r\n" % base64.b64encode(both)
        is_passed_on = parts.scheme == "http"
        return Place(
            host=Host.of(parts),
            authority=authority.encode(),
            prefix=f"http://{authority}{parts.path}" if is_passed_on else parts.path,
            proxy=Host.of(through),
            proxy_headers=password,
        )

    @property
    def passes_on(self) -> bool:
        """Whether requests go to a proxy that reads them; else it only carries bytes."""
        return self.proxy is not None and not self.host.is_safe


class Opener:
    """Opens connections. Names are remembered for a minute, and so is whom this machine trusts."""

    def __init__(self) -> None:
        self._addresses: dict[tuple[str, int], tuple[float, Sequence[_Address]]] = {}
        self._trust: ssl.SSLContext | None = None

    async def open(self, place: Place, connection: Connection, *, patience_s: float) -> None:
        """Connect `connection` to the place, through its proxy where it has one. Raises Broken, and Late after
        `patience_s`; nothing stays open then, nor when it is cancelled."""
        try:
            async with asyncio.timeout(patience_s):
                if place.proxy is None:
                    await self._connect(place.host, connection)
                    return
                try:
                    await self._connect(place.proxy, connection)
                except OSError as error:
                    raise Broken(f"the proxy cannot be reached: {_said(error)}") from error
                if not place.passes_on:
                    await self._go_through(place, connection, patience_s)
        except TimeoutError as error:
            connection.close()
            if not error.errno:  # ours, not the system's
                raise Late("it is late") from error
            raise Broken(_said(error)) from error
        except OSError as error:
            connection.close()
            raise Broken(_said(error)) from error
        except BaseException:
            connection.close()
            raise

    async def _connect(self, host: Host, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        safely = await self._trusted() if host.is_safe else None
        name = host.name if host.is_safe else None
        if _is_address(host.name):
            await loop.create_connection(lambda: connection, host.name, host.port, ssl=safely, server_hostname=name)
            return
        found = await self._lookup(host)
        connect = aiohappyeyeballs.start_connection  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        try:
            sock = await connect(found, happy_eyeballs_delay=_NEXT_ADDRESS_S, interleave=1, loop=loop)
        except OSError:
            self._addresses.pop((host.name, host.port), None)  # it may have moved
            raise
        try:
            await loop.create_connection(lambda: connection, sock=sock, ssl=safely, server_hostname=name)
        except BaseException:
            sock.close()
            raise

    async def _lookup(self, host: Host) -> Sequence[_Address]:
        loop = asyncio.get_running_loop()
        key, now_s = (host.name, host.port), loop.time()
        known = self._addresses.get(key)
        if known is not None and now_s < known[0]:
            return known[1]
        found = await loop.getaddrinfo(host.name, host.port, type=socket.SOCK_STREAM)
        self._addresses[key] = now_s + _NAMES_LAST_S, found
        return found

    async def _go_through(self, place: Place, connection: Connection, patience_s: float) -> None:
        """Ask a proxy to carry bytes, and begin TLS with whoever is behind it."""
        to = _bracketed(place.host.name) + b":%d" % place.host.port
        head = b"CONNECT %b HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (to, to, place.proxy_headers)
        answer = await connection.ask(head, b"", patience_s=patience_s)
        if answer.status != 200:
            raise Broken(f"the proxy answered with status {answer.status}")
        carrier = connection.transport
        if carrier is None:
            raise Broken("it closed the connection")
        loop = asyncio.get_running_loop()
        safe = await loop.start_tls(carrier, connection, await self._trusted(), server_hostname=place.host.name)
        if safe is None:
            raise Broken(_UNSAFE)
        connection.transport = safe

    async def _trusted(self) -> ssl.SSLContext:
        if self._trust is None:
            self._trust = await asyncio.to_thread(ssl.create_default_context)  # it reads a long list
            self._trust.set_alpn_protocols(["http/1.1"])
        return self._trust


def _said(error: OSError) -> str:
    """In words, without addresses, paths and headers: those may hold more than a log should."""
    match error:
        case socket.gaierror():
            return "its name is not known"
        case ssl.SSLError():
            return _UNSAFE
        case _:
            return system_said(error)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _bracketed(name: str) -> bytes:
    return b"[%b]" % name.encode() if ":" in name else name.encode()
