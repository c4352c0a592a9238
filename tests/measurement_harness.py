"""A server that answers by script, and an event loop whose clock jumps: measurements without waiting, exact to the
nanosecond.

The bytes are real server-sent events and go through the real reading; only the sockets and the time are not real.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import selectors
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import uvicorn
from starlette.types import ASGIApp

from taximeter.errors import UpstreamError
from taximeter.measurement.asking.wire import Question
from taximeter.records import Dialect
from taximeter.upstreams.incoming import Read

T = TypeVar("T")
MS = 1_000_000


class VirtualClock:
    """A `Clock` that the loop moves."""

    def __init__(self) -> None:
        self.ns = 0
        self._start = datetime(2026, 10, 29, 12, 0, tzinfo=UTC)

    def monotonic_ns(self) -> int:
        return self.ns

    def utc_now(self) -> datetime:
        return self._start + timedelta(microseconds=self.ns / 1_000)


class _Jumping(selectors.DefaultSelector):
    """Where a loop would wait, the clock jumps to when something is due."""

    clock: VirtualClock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise AssertionError("everybody waits, and nothing is due: this would hang for ever")
        self.clock.ns += max(1, round(timeout * 1e9))
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time is the virtual clock's."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        selector = _Jumping()
        selector.clock = self.clock
        super().__init__(selector)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self.clock.ns * 1e-9


def virtually(work: Callable[[VirtualClock], Coroutine[Any, Any, T]]) -> T:
    """Run `work` on a virtual clock that begins at 0."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work(loop.clock))
    finally:
        loop.close()


@dataclass(frozen=True, kw_only=True)
class Script:
    """One answer: `chunks` are bytes with the milliseconds when they come, counted from when the server begins with it.
    `breaks` ends it with a broken connection; `busy_ms` is how long it holds its place, None until its last chunk."""

    chunks: Sequence[tuple[float, bytes]]
    head_ms: float = 0.0
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})
    breaks: bool = False
    busy_ms: float | None = None


class _ScriptedReply:
    def __init__(self, script: Script, begun_ns: int, clock: VirtualClock, leave: Callable[[], None]) -> None:
        self.status = script.status
        self.begun = Read(b"", clock.ns, clock.ns)
        self._script = script
        self._begun_ns = begun_ns
        self._clock = clock
        self._leave = leave
        self._next = 0

    def header(self, name: str) -> str | None:
        return self._script.headers.get(name)

    async def read(self) -> Read | None:
        if self._next == len(self._script.chunks):
            if self._script.breaks:
                raise UpstreamError("the server broke off: it closed the connection", status=self.status)
            return None
        at_ms, data = self._script.chunks[self._next]
        self._next += 1
        await until(self._begun_ns + round(at_ms * MS), self._clock)
        return Read(data, self._clock.ns, self._clock.ns)

    def close(self) -> None:
        self._leave()


async def until(at_ns: int, clock: VirtualClock) -> None:
    """Sleep until the clock shows `at_ns`, to the nanosecond."""
    while clock.ns < at_ns:  # noqa: ASYNC110 - the clock is what is waited for
        await asyncio.sleep((at_ns - clock.ns) * 1e-9)


class ScriptedServer:
    """A `Wire` to a server that has `slots` places (None: any number) and serves in the order of arrival.

    `answer` is asked for each question, with how many came before, and may wait or raise like a real wire. `asked` has
    every question with the time when it came."""

    def __init__(
        self,
        clock: VirtualClock,
        answer: Callable[[Question, int], Script | Awaitable[Script]],
        *,
        slots: int | None = None,
    ) -> None:
        self.asked: list[tuple[int, Question]] = []
        self._clock = clock
        self._answer = answer
        self._slots = None if slots is None else asyncio.Semaphore(slots)

    async def send(self, question: Question) -> _ScriptedReply:
        number = len(self.asked)
        self.asked.append((self._clock.ns, question))
        script = self._answer(question, number)
        if not isinstance(script, Script):
            script = await script
        if self._slots is not None:
            await self._slots.acquire()
        begun_ns = self._clock.ns
        has_left = False

        def leave() -> None:
            nonlocal has_left
            if self._slots is not None and not has_left:
                has_left = True
                self._slots.release()

        if self._slots is not None:
            busy_ms = max((at for at, _ in script.chunks), default=0.0) if script.busy_ms is None else script.busy_ms
            asyncio.get_running_loop().call_later(busy_ms / 1e3, leave)
        await until(begun_ns + round(script.head_ms * MS), self._clock)
        return _ScriptedReply(script, begun_ns, self._clock, leave if self._slots is None else lambda: None)

    async def aclose(self) -> None:
        pass


@contextlib.asynccontextmanager
async def serving_app(app: ASGIApp) -> AsyncGenerator[str]:
    """A real HTTP server on this loop, for what needs real sockets; gives its address."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve(sockets=[listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
        listening.close()


def event(**fields: Any) -> bytes:
    """One server-sent event of a chat completion."""
    body = {"id": "c1", "object": "chat.completion.chunk", "model": "scripted", **fields}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def text_chunk(text: str = " a", **fields: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": None}], **fields)


def usage(prompt: int, output: int, *, cached: int | None = None) -> dict[str, Any]:
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output, **details}


def chat(
    arrivals_ms: Sequence[float],
    *,
    prompt_tokens: int = 64,
    output_tokens: int | None = None,
    cached_tokens: int | None = None,
    role_ms: float | None = None,
    head_ms: float | None = None,
    end_ms: float | None = None,
    with_usage: bool = True,
    headers: Mapping[str, str] | None = None,
    **last: Any,
) -> Script:
    """A whole streamed answer with one chunk of text at each of `arrivals_ms`; as many tokens as chunks, unless
    `output_tokens` says otherwise. `last` are fields of the last chunk, beside its usage."""
    end_ms = (arrivals_ms[-1] if arrivals_ms else 0.0) if end_ms is None else end_ms
    chunks: list[tuple[float, bytes]] = []
    if role_ms is not None:
        chunks.append((role_ms, event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])))
    chunks += [(at, text_chunk()) for at in arrivals_ms]
    chunks.append((end_ms, event(choices=[{"index": 0, "delta": {}, "finish_reason": "length"}])))
    if with_usage:
        counted = usage(
            prompt_tokens, len(arrivals_ms) if output_tokens is None else output_tokens, cached=cached_tokens
        )
        chunks.append((end_ms, event(choices=[], usage=counted, **last)))
    chunks.append((end_ms, b"data: [DONE]\n\n"))
    first_ms = chunks[0][0]
    return Script(
        chunks=chunks,
        head_ms=first_ms if head_ms is None else head_ms,
        headers={"content-type": "text/event-stream", **(headers or {})},
    )


def refusal(status: int = 429, message: str = "too many requests") -> Script:
    body = json.dumps({"error": {"message": message, "type": "rate_limit"}}).encode()
    return Script(chunks=[(0.0, body)], status=status, headers={"content-type": "application/json"})


def question(shape: str = "s", *, prompt_tokens: int | None = 64, output_tokens: int | None = None) -> Question:
    """What is asked where it does not matter."""
    return Question(
        shape=shape,
        dialect=Dialect.OPENAI_CHAT,
        model="scripted",
        path="/v1/chat/completions",
        body=b"{}",
        asked_prompt_tokens=prompt_tokens,
        asked_output_tokens=output_tokens,
    )
