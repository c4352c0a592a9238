"""Which HTTP client and which HTTP server to build a gateway on: processor time per request and per event.

    python bench/gateway_lab/libraries.py [--granian PROGRAM] [--rounds 5]

Each client asks the mock for whole answers on one connection, and for eight streams at a time, as a gateway's side
towards providers does; its own process's time is counted. Each server runs an application that does nothing, asked by
the client of `bench/gateway.py`; the server's processes are counted. Whoever is not installed is named.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1]))  # for its neighbours, however it is started

import aiohttp
import httpx2
import uvloop
from engines_lab.processes import processor_s
from gateway_lab.contestants import Launch, Places
from gateway_lab.questions import Question
from gateway_lab.rounds import Seat, ask, client, mock, running, until_it_answers
from rich.console import Console
from rich.table import Table

from taximeter.upstreams.client import Client
from taximeter.upstreams.config import Family, Upstream

_REQUESTS: Final = 400
_STREAMS: Final = 8
_WHOLE: Final = Question(key="whole", title="1 kB, 8 connections", connections=8, seconds=2.0, is_load=True)
_STREAM: Final = Question(
    key="stream", title="8 streams, events every 2 ms", events=100, pause_ms=2, connections=_STREAMS, requests=_STREAMS
)
_PATH: Final = "/v1/chat/completions"
_JSON: Final = {"content-type": "application/json"}

_Ask = Callable[[str, str], Awaitable[int]]
"""Asks a URL with a body and reads the answer piece by piece: how many pieces."""


async def _with_aiohttp(measure: Callable[[_Ask], Awaitable[list[float]]]) -> list[float]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def one(url: str, body: str) -> int:
            async with session.post(url, data=body.encode(), headers=_JSON) as response:
                pieces = 0
                while await response.content.readany():
                    pieces += 1
                return pieces

        return await measure(one)


async def _with_httpx2(measure: Callable[[_Ask], Awaitable[list[float]]]) -> list[float]:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(limits=limits, timeout=None, trust_env=False) as session:

        async def one(url: str, body: str) -> int:
            async with session.stream("POST", url, content=body.encode(), headers=_JSON) as response:
                return sum([1 async for _ in response.aiter_raw()])

        return await measure(one)


async def _with_ours(measure: Callable[[_Ask], Awaitable[list[float]]]) -> list[float]:
    client = Client()

    async def one(url: str, body: str) -> int:
        upstream = Upstream(name="mock", url=url.removesuffix(_PATH), speaks=Family.OPENAI)
        incoming = await client.send(upstream, "POST", _PATH, [(b"content-type", b"application/json")], body.encode())
        try:
            return sum([1 async for _ in incoming])
        finally:
            incoming.close()

    try:
        return await measure(one)
    finally:
        await client.aclose()


_CLIENTS: Final = {
    "ours": _with_ours,
    f"aiohttp {aiohttp.__version__}": _with_aiohttp,
    f"httpx2 {httpx2.__version__}": _with_httpx2,
}


async def _client_figures(port: int, one: _Ask) -> list[float]:
    """Microseconds of this process for a request, and for an event."""
    url = f"http://127.0.0.1:{port}{_PATH}"
    for _ in range(20):
        await one(url, _WHOLE.body)
    began_s = time.process_time()
    for _ in range(_REQUESTS):
        await one(url, _WHOLE.body)
    per_request = (time.process_time() - began_s) / _REQUESTS
    began_s = time.process_time()
    await asyncio.gather(*(one(url, _STREAM.body) for _ in range(_STREAMS)))
    per_event = (time.process_time() - began_s) / (_STREAMS * _STREAM.events)
    return [per_request * 1e6, per_event * 1e6]


async def _server_figures(process: asyncio.subprocess.Process, seat: Seat) -> list[float]:
    """Microseconds of the server for a request, and for an event."""
    figures: list[float] = []
    for question in (_WHOLE, _STREAM):
        before_s = processor_s(seat.process.pid)
        result = await ask(process, seat, question)
        took_s = processor_s(seat.process.pid) - before_s
        figures.append(took_s / (len(result.event_ns) or len(result.last_byte_ns)) * 1e6)
    return figures


def _servers(granian: Path | None, port: Callable[[], int]) -> dict[str, tuple[int, Launch]]:
    app, folder = "gateway_lab.echo:answer", str(Path(__file__).parents[1])
    at = port()
    uvicorn = [sys.executable, "-m", "uvicorn", app, "--app-dir", folder, "--port", str(at), "--loop", "uvloop"]
    uvicorn += ["--http", "httptools", "--lifespan", "off", "--no-access-log", "--log-level", "warning"]
    servers = {"uvicorn, httptools, uvloop": (at, Launch(command=[*uvicorn, "--no-proxy-headers"]))}
    if granian is not None:
        at = port()
        command = [str(granian), app, "--interface", "asginl", "--port", str(at), "--loop", "uvloop"]
        command += ["--workers", "1", "--no-log", "--working-dir", folder]
        servers["granian, uvloop"] = (at, Launch(command=command))
    return servers


async def _measure(granian: Path | None, rounds: int) -> dict[str, list[list[float]]]:
    from engines_lab.processes import free_port  # noqa: PLC0415

    figures: dict[str, list[list[float]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        places = Places(scratch=Path(scratch), ledger=Path(scratch), litellm_python=None, portkey=None)
        async with client() as process, mock(places) as upstream:
            await until_it_answers(process, upstream)
            for _ in range(rounds):
                for name, using in _CLIENTS.items():
                    measured = await using(lambda one: _client_figures(upstream.port, one))
                    figures.setdefault(f"client: {name}", []).append(measured)
            for name, (port, launch) in _servers(granian, free_port).items():
                async with running(launch, places.scratch / "server.log", folder=places.scratch) as server:
                    seat = Seat(label=name, port=port, process=server)
                    await until_it_answers(process, seat)
                    await _server_figures(process, seat)
                    for _ in range(rounds):
                        figures.setdefault(f"server: {name}", []).append(await _server_figures(process, seat))
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--granian", type=Path, metavar="PROGRAM", help="of an environment with granian and uvloop")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    figures = uvloop.run(_measure(options.granian, options.rounds))
    table = Table(title="processor time, medians of rounds (lowest to highest)")
    for heading in ("", "a request, us", "an event of a stream, us"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, measured in figures.items():
        cells = [
            f"{statistics.median(each):.0f} ({min(each):.0f} to {max(each):.0f})"
            for each in zip(*measured, strict=True)
        ]
        table.add_row(name, *cells)
    Console(width=100).print(table)
    if options.granian is None:
        print("granian did not take part: install it in an environment of its own and say --granian PROGRAM")


if __name__ == "__main__":
    main()
