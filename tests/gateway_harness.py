"""A gateway for tests: the real door and relay, on the fakes or on what else fits, with or without a socket."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Self, TypeVar

from starlette.types import ASGIApp, Message
from uvicorn.loops.auto import auto_loop_factory

from taximeter.clock import SYSTEM_CLOCK, Clock
from taximeter.gateway import Relay, Ways, build_app
from taximeter.pricing import MachineMeter, Settler
from taximeter.providers.door import Call
from taximeter.records import Backend, Dialect, MachineRate, Prompt, Receipt, Request, Sampling, new_id
from taximeter.serve import House, serve
from taximeter.settings import Settings
from tests.fakes import WAIT_S, FakeBackend, MemoryLedger, Script

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = "/v1/messages"


def a_house(backend: Backend, ledger: MemoryLedger, *, clock: Clock = SYSTEM_CLOCK, rate: str | None = "3.6") -> House:
    """A house on a free loopback port. It touches no file."""
    machine = None if rate is None else MachineMeter(MachineRate(amount_per_hour=Decimal(rate)))
    nowhere = Path("/nonexistent")
    settings = Settings(
        home=nowhere,
        config_path=nowhere / "taximeter.toml",
        models_dir=nowhere,
        ledger_url="sqlite://",
        spool_dir=nowhere,
        prices_overlay=nowhere / "prices.toml",
        limits_path=nowhere / "machine.json",
        port=0,
    )
    relay = Relay(backend=backend, ledger=ledger, settler=Settler(machine=machine), clock=clock)
    return House(settings=settings, backend=backend, ledger=ledger, relay=relay, machine=machine)


def fake_house(script: Script | None = None, *, clock: Clock = SYSTEM_CLOCK) -> tuple[House, FakeBackend, MemoryLedger]:
    """A house on the fakes, and the fakes."""
    backend, ledger = FakeBackend(script, clock=clock), MemoryLedger()
    return a_house(backend, ledger, clock=clock), backend, ledger


def app_of(house: House) -> ASGIApp:
    return build_app(
        ways=Ways(relay=house.relay, dispatcher=house.dispatcher, network=house.network),
        ledger=house.ledger,
        machine=house.machine,
    )


@contextmanager
def listening(house: House) -> Generator[str]:
    """Serve the house on a thread of its own; gives its URL. At the end it has stopped and closed."""
    ready: list[str] = []
    is_ready = threading.Event()
    stop: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    failed: list[BaseException] = []

    def on_ready(url: str) -> None:
        ready.append(url)
        is_ready.set()

    async def main() -> None:
        event = asyncio.Event()
        stop.append((asyncio.get_running_loop(), event))
        await serve(house, on_ready, stop=event)

    def body() -> None:
        try:
            with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
                runner.run(main())
        except BaseException as error:  # noqa: BLE001 - handed over to the test
            failed.append(error)
        finally:
            is_ready.set()

    thread = threading.Thread(target=body, name="test-server")
    thread.start()
    try:
        assert is_ready.wait(WAIT_S)
        if failed:
            raise failed[0]
        yield ready[0]
    finally:
        loop, event = stop[0]
        if not loop.is_closed():
            loop.call_soon_threadsafe(event.set)
        thread.join(WAIT_S)
        assert not thread.is_alive()


def a_request(clock: Clock, *, model: str = "fake", choices: int = 1, stream: bool = False) -> Request:
    """A request that came in just now."""
    return Request(
        id=new_id("req", clock.utc_now()),
        received_at=clock.utc_now(),
        received_ns=clock.monotonic_ns(),
        dialect=Dialect.OPENAI_CHAT,
        model=model,
        sampling=Sampling(choices=choices),
        stream=stream,
    )


def a_call(*, include_usage: bool = False) -> Call:
    """A call that asks for nothing in particular, for those who write answers."""
    return Call(
        model="fake",
        prompt=Prompt(text=""),
        sampling=Sampling(),
        max_output_tokens=None,
        stream=True,
        include_usage=include_usage,
    )


@dataclass
class Reply:
    """What an ASGI application answered."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    chunks: list[bytes] = field(default_factory=list)
    is_ended: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    def json(self) -> dict[str, object]:
        return json.loads(self.body)

    def events(self) -> list[dict[str, object]]:
        """The events of a stream that has to end with [DONE] or an error, without the [DONE]."""
        data = [part.removeprefix("data: ") for part in self.body.decode().split("\n\n") if part]
        return [json.loads(text) for text in data if text != "[DONE]"]


class Caller:
    """One HTTP request, given to an ASGI application by hand: what a socket would do, under the test's control."""

    def __init__(
        self,
        app: ASGIApp,
        path: str,
        body: bytes | dict[str, object] = b"",
        *,
        method: str = "POST",
        headers: dict[str, str] | None = None,
        query: str = "",
    ) -> None:
        self.reply = Reply()
        self.gone = asyncio.Event()
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.wrote = asyncio.Condition()
        self._app = app
        self._body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._is_sent = False
        all_headers = {"content-type": "application/json"} | (headers or {})
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in all_headers.items()],
            "server": ("127.0.0.1", 80),
            "client": ("127.0.0.1", 1),
        }

    def leave_before_the_body(self) -> None:
        """Go away with the request half sent."""
        self._is_sent = True
        self.gone.set()

    async def call(self) -> Reply:
        async with asyncio.timeout(WAIT_S):
            await self._app(self._scope, self._receive, self._send)
        return self.reply

    async def until(self, text: bytes) -> None:
        """Wait until the reply has `text`."""
        async with asyncio.timeout(WAIT_S), self.wrote:
            await self.wrote.wait_for(lambda: text in self.reply.body)

    async def _receive(self) -> Message:
        if not self._is_sent:
            self._is_sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await self.may_write.wait()
        if message["type"] == "http.response.start":
            assert not self.reply.status, "a response began twice"
            self.reply.status = message["status"]
            self.reply.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            assert not self.reply.is_ended, "a response ended twice"
            self.reply.chunks.append(message["body"])
            self.reply.is_ended = not message.get("more_body", False)
        async with self.wrote:
            self.wrote.notify_all()


async def post(app: ASGIApp, path: str, body: bytes | dict[str, object], **headers: str) -> Reply:
    """One POST, to its end."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await Caller(app, path, body, headers=named).call()


async def get(app: ASGIApp, path: str, query: str = "") -> Reply:
    """One GET, to its end."""
    return await Caller(app, path, method="GET", query=query).call()


def a_chat(**more: object) -> dict[str, object]:
    """A chat body of five words for the fake."""
    return {"model": "fake", "messages": [{"role": "user", "content": "one two three four five"}], **more}


@dataclass
class FakeWorld:
    """A server on fakes, and what closes with it: its clients, mostly."""

    url: str
    house: House
    backend: FakeBackend
    ledger: MemoryLedger
    closing: ExitStack = field(default_factory=ExitStack)

    def receipt(self, response: Any) -> Receipt:
        """The receipt that a raw response's header names, once it is written."""
        return self.ledger.wait_for(response.headers["x-taximeter-receipt"])

    def as_new(self) -> Self:
        """Itself, for the next test: what an earlier one left in it is no news."""
        self.backend.script = Script()
        self.backend.held = threading.Semaphore(0)
        self.backend.cancelled = threading.Semaphore(0)
        return self


_World = TypeVar("_World", bound=FakeWorld)


@contextmanager
def a_world(kind: type[_World]) -> Generator[_World]:
    """One that is served until the end."""
    house, backend, ledger = fake_house()
    with listening(house) as url:
        world = kind(url, house, backend, ledger)
        with world.closing:
            yield world
