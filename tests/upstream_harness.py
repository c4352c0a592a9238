"""A scripted upstream with every byte under the test's control, and a house with a way to it.

It is a plain socket server on a thread of its own, so that it shares neither event loop nor HTTP library with what is
tested. It keeps books: what it was asked, what it sent, and whether that was all of it.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from taximeter.clock import SYSTEM_CLOCK, Clock
from taximeter.gateway import Relay
from taximeter.pricing import Settler
from taximeter.pricing.settle import Tariff
from taximeter.records import Backend
from taximeter.serve import House
from taximeter.upstreams.client import Client
from taximeter.upstreams.config import Family, Network, Route, Upstream
from taximeter.upstreams.dispatch import Dispatcher, Listener
from taximeter.upstreams.switchboard import Switchboard
from tests.fakes import WAIT_S, MemoryLedger
from tests.gateway_harness import a_house


class Do(Enum):
    """What an upstream does besides sending."""

    HOLD = auto()  # wait until the test says `release`
    CLOSE = auto()  # end the connection
    RESET = auto()  # and rudely
    SILENCE = auto()  # nothing more, until the other end gives up


Step = bytes | Do
Steps = Sequence[Step]


@dataclass
class Asked:
    """One request as it came, and what was sent for it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    sent: bytes = b""
    is_done: bool = False  # every step was taken

    def json(self) -> dict[str, object]:
        return json.loads(self.body)


class ScriptedUpstream:
    """Answers each request with the next of `answers`; the last one is for all that follow. An answer may be a function
    of the request. `held` is released when an answer begins to wait, `left` when a client goes away during one."""

    def __init__(self, *answers: Steps | Callable[[Asked], Steps]) -> None:
        self.answers = list(answers)
        self.books: list[Asked] = []
        self.connections = 0
        self.open_connections = 0
        self.held = threading.Semaphore(0)
        self.left = threading.Semaphore(0)
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._gates: list[asyncio.Event] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = threading.Condition()

    @contextmanager
    def listening(self) -> Generator[ScriptedUpstream]:
        ready = threading.Event()
        stop = asyncio.Event()

        async def main() -> None:
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            self.url = f"http://127.0.0.1:{port}"
            ready.set()
            await stop.wait()
            server.close()
            for _ in range(3):  # a connection that was taken just now has yet to begin, and then to be closed
                await asyncio.sleep(0)
                tasks = list(self._tasks)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)

        def body() -> None:
            asyncio.set_event_loop(self._loop)
            self._loop.run_until_complete(main())
            self._loop.close()

        thread = threading.Thread(target=body, name="test-upstream")
        thread.start()
        assert ready.wait(WAIT_S)
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(stop.set)
            thread.join(WAIT_S)
            assert not thread.is_alive()

    def release(self) -> None:
        """Let every answer that is held go on."""
        gates, self._gates = self._gates, []
        for gate in gates:
            self._loop.call_soon_threadsafe(gate.set)

    def wait_for_connections(self, count: int) -> None:
        """Wait until so many are open."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.open_connections == count, WAIT_S), self.open_connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._count(1)
        connection = self.connections
        self.connections += 1
        try:
            while (asked := await _read_request(reader, connection)) is not None:
                self.books.append(asked)
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                await self._play(answer(asked) if callable(answer) else answer, asked, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the last is the test's end
        finally:
            writer.close()
            self._tasks.discard(task)
            self._loop.call_soon(self._count, -1)  # behind what closes the socket, which the loop does next

    async def _play(
        self, steps: Steps, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        for step in steps:
            match step:
                case bytes():
                    writer.write(step)
                    asked.sent += step
                    await writer.drain()
                case Do.HOLD:
                    gate = asyncio.Event()
                    self._gates.append(gate)
                    self.held.release()
                    await self._unless_left(gate.wait(), reader)
                case Do.SILENCE:
                    self.held.release()
                    await self._unless_left(asyncio.Event().wait(), reader)
                case Do.CLOSE:
                    raise ConnectionError
                case Do.RESET:
                    sock: socket.socket = writer.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    writer.transport.abort()
                    raise ConnectionError
        asked.is_done = True

    async def _unless_left(self, waiting: Coroutine[object, object, object], reader: asyncio.StreamReader) -> None:
        """Wait, but notice that the other end goes away. It sends nothing while it waits for an answer."""
        wait = asyncio.ensure_future(waiting)
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait([wait, gone], return_when=asyncio.FIRST_COMPLETED)
            if gone.done() and not wait.done():
                self.left.release()
                raise ConnectionError
        finally:
            wait.cancel()
            gone.cancel()
            await asyncio.gather(wait, gone, return_exceptions=True)

    def _count(self, by: int) -> None:
        with self._changed:
            self.open_connections += by
            self._changed.notify_all()


async def _read_request(reader: asyncio.StreamReader, connection: int) -> Asked | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while length := int(await reader.readline(), 16):
            body += (await reader.readexactly(length + 2))[:-2]
        await reader.readline()
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(method=method, path=path, headers=headers, body=body, connection=connection)


def head(status: int = 200, media_type: str = "application/json", **headers: str) -> bytes:
    """The head of an answer; underscores in names of `headers` are dashes."""
    lines = [f"HTTP/1.1 {status} Said", f"content-type: {media_type}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def whole(body: Mapping[str, object] | bytes, status: int = 200, **headers: str) -> Steps:
    """A whole answer with its length."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    media_type = headers.pop("media_type", "application/json")
    return [head(status, media_type, content_length=str(len(data)), **headers) + data]


def chunked(data: bytes) -> bytes:
    """One chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data) if data else b""


LAST_CHUNK = b"0\r\n\r\n"


def streamed(*pieces: bytes | Do, status: int = 200, ends: bool = True, **headers: str) -> Steps:
    """A stream of events in chunks, each piece one write."""
    media_type = headers.pop("media_type", "text/event-stream; charset=utf-8")
    steps: list[Step] = [head(status, media_type, transfer_encoding="chunked", **headers)]
    steps += [chunked(piece) if isinstance(piece, bytes) else piece for piece in pieces]
    return [*steps, LAST_CHUNK] if ends else steps


@dataclass
class Pauses:
    """In place of waiting: what would have been waited for, in seconds."""

    taken_s: list[float] = field(default_factory=list)

    async def __call__(self, pause_s: float) -> None:
        self.taken_s.append(pause_s)
        await asyncio.sleep(0)


def an_upstream(url: str, speaks: Family = Family.OPENAI, *, name: str = "up", **more: object) -> Upstream:
    """One at `url`; tried once unless `retries` says more."""
    return replace(Upstream(name=name, url=url, speaks=speaks, retries=0), **more)


def passing_house(
    *upstreams: Upstream,
    model: str = "*",
    send_as: str | None = None,
    ledger: MemoryLedger | None = None,
    engine: Backend | None = None,
    tariffs: Mapping[str, Tariff] | None = None,
    listener: Listener | None = None,
    pauses: Pauses | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> tuple[House, MemoryLedger]:
    """A house whose route for `model` leads to `upstreams`, in that order, and its ledger."""
    ledger = ledger or MemoryLedger()
    route = Route(model=model, upstreams=upstreams, send_as=send_as)
    network = Network(upstreams={each.name: each for each in upstreams}, routes=(route,))
    client = Client(clock=clock)
    dispatcher = Dispatcher(client, clock=clock, pause=pauses or Pauses(), listener=listener)
    switchboard = Switchboard(engine, network, dispatcher, client, clock=clock)
    relay = Relay(backend=switchboard, ledger=ledger, settler=Settler(tariffs=tariffs), clock=clock)
    house = a_house(switchboard, ledger, clock=clock)
    return replace(house, relay=relay, network=network, dispatcher=dispatcher, machine=None), ledger
