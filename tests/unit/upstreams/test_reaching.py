"""The way to an upstream."""

from __future__ import annotations

import asyncio
import socket
from urllib.parse import urlsplit

import pytest

from taximeter.clock import SYSTEM_CLOCK
from taximeter.upstreams.connection import Broken, Connection
from taximeter.upstreams.reaching import Opener, Place
from tests.fakes import WAIT_S
from tests.upstream_harness import ScriptedUpstream, whole


def a_connection() -> Connection:
    return Connection(SYSTEM_CLOCK, on_free=lambda _: None, on_gone=lambda _: None)


async def test_an_upstream_that_moved_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody answers at the addresses of a name, they are not remembered."""
    with socket.socket() as nobody, ScriptedUpstream(whole(b"{}")).listening() as up:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        places = [nobody.getsockname()[1], urlsplit(up.url).port]

        async def looked_up(*_: object, **__: object) -> list[tuple[object, ...]]:
            return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", places.pop(0)))]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", looked_up)
        opener, place = Opener(), Place.of("http://moving.example:8000", None)
        with pytest.raises(Broken):
            await opener.open(place, a_connection(), patience_s=WAIT_S)
        connection = a_connection()
        await opener.open(place, connection, patience_s=WAIT_S)
        answer = await connection.ask(b"GET / HTTP/1.1\r\nhost: moving.example\r\n\r\n", b"", patience_s=WAIT_S)
        while await answer.read() is not None:
            pass
        connection.close()
    assert answer.status == 200
    assert places == []
