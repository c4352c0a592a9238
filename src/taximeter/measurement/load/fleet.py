"""Several client processes that send one load together, where one would be too slow.

Owns: the processes, their shares of a level, the moment when all of them begin, and their results put together. Refuses
to know: what is measured. The ledger and the prices stay with the process that began it: the others give it what they
sent when a level is over, since writing receipts meanwhile would take the time that they are there to have.

All stamps are of the machine's one monotonic clock. That it is one is looked at when a process starts.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast

from taximeter.clock import SYSTEM_CLOCK
from taximeter.errors import TaximeterError, UpstreamError
from taximeter.measurement.asking.asker import Bookkeeper
from taximeter.measurement.asking.later import Later, Note, tell
from taximeter.measurement.asking.prompts import Prompts, question_as_it_is
from taximeter.measurement.asking.target import Target
from taximeter.measurement.asking.wire import Question
from taximeter.measurement.load.level import Level, divided, drive
from taximeter.measurement.load.punctual import punctual_loop
from taximeter.measurement.load.run import LoadRun, merged
from taximeter.measurement.load.workload import Ask
from taximeter.upstreams.client import Client
from taximeter.upstreams.secrets import read_secret

_HEAD_START_NS: Final = 100_000_000  # from the word to begin until the run does, so that everybody has heard it
_START_PATIENCE_S: Final = 60.0
_STOP: Final = "stop"
_DIED: Final = "a client process of this measurement has died"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How a client makes and sends its questions. `prompts` is None where all prompts are given as they are."""

    target: Target
    run: str
    prompts: Prompts | None
    shared_seed: int = 0

    def question(self, shape: str, ask: Ask) -> Question:
        """The request of one `Ask`. Raises RequestError for messages to a door that takes none."""
        if ask.is_literal:
            return question_as_it_is(
                self.target, shape, text=ask.text, messages=ask.messages or (), output_tokens=ask.output_tokens
            )
        assert self.prompts is not None  # noqa: S101 - there are lengths, so there was a calibration
        assert ask.prompt_tokens is not None  # noqa: S101 - what is not literal has lengths
        assert ask.output_tokens is not None  # noqa: S101
        return self.prompts.question(
            shape,
            prompt_tokens=ask.prompt_tokens,
            output_tokens=ask.output_tokens,
            shared_tokens=ask.shared_tokens,
            shared_seed=self.shared_seed,
        )

    def at(self, target: Target, seed: int) -> Asking:
        """The same for another client, whose prompts are others."""
        prompts = None if self.prompts is None else self.prompts.again(target, seed)
        return replace(self, target=target, prompts=prompts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What a client is told: its share of a level, and how it asks. Keys do not travel: each reads its own."""

    level: Level
    asking: Asking
    key_from: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done:
    run: LoadRun
    notes: tuple[Note, ...]


class Fleet:
    """So many client processes, which live from level to level. Use it as a context manager."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self._clients: list[tuple[BaseProcess, Connection]] = []

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._end)

    async def run(
        self, level: Level, asking: Asking, *, books: Bookkeeper | None = None, stop: asyncio.Event | None = None
    ) -> LoadRun:
        """Drive the level with all clients. Stamps count from one moment. `books` gets all requests at the end, in the
        order in which they began and ended. Raises UpstreamError when a client has died."""
        upstream = asking.target.upstream
        key_from = None if upstream.key is None else upstream.key.origin
        target = replace(asking.target, upstream=replace(upstream, key=None))
        parts = divided(level, self.clients)
        working = self._clients[: len(parts)]
        for part, (_, pipe) in zip(parts, working, strict=True):
            seed = int.from_bytes(os.urandom(6), "big")  # no two clients, and no two levels, have prompts in common
            _say(pipe, _Job(level=part, asking=asking.at(target, seed), key_from=key_from))
        await self._all(working)  # each has made ready
        began_ns = SYSTEM_CLOCK.monotonic_ns() + _HEAD_START_NS
        for _, pipe in working:
            _say(pipe, began_ns)
        waiting = asyncio.ensure_future(self._all(working))
        if stop is not None:
            stopping = asyncio.ensure_future(stop.wait())
            await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if not waiting.done():
                for _, pipe in working:
                    with suppress(OSError):  # of one that has died, `waiting` tells
                        pipe.send(_STOP)
        done = cast("list[_Done]", await waiting)
        if books is not None:
            tell(books, (note for one in done for note in one.notes))
        return merged([one.run for one in done])

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        for _ in range(self.clients):
            ours, theirs = context.Pipe()
            process = context.Process(target=_client, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._clients.append((process, ours))
        for _, pipe in self._clients:
            before_ns = SYSTEM_CLOCK.monotonic_ns()
            _say(pipe, "what time is it")
            now_ns = _answer(pipe)
            if not before_ns <= now_ns <= SYSTEM_CLOCK.monotonic_ns():
                raise UpstreamError("the clocks of two processes differ here", hint="--clients 1")

    def _end(self) -> None:
        for _, pipe in self._clients:
            pipe.close()  # whoever waits at the other end, or works, ends
        for process, _ in self._clients:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        self._clients.clear()

    async def _all(self, clients: Sequence[tuple[BaseProcess, Connection]]) -> list[Any]:
        return list(await asyncio.gather(*(asyncio.to_thread(_answer, pipe) for _, pipe in clients)))


def _say(pipe: Connection, what: object) -> None:
    """Say it to a client. Raises UpstreamError where it has died."""
    try:
        pipe.send(what)
    except OSError as error:
        raise UpstreamError(_DIED) from error


def _answer(pipe: Connection) -> Any:
    """What a client says next. Raises its error, or UpstreamError where it has died."""
    try:
        answer = pipe.recv()
    except (EOFError, OSError) as error:
        raise UpstreamError(_DIED) from error
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _client(pipe: Connection) -> None:
    """A client process: it works until its pipe is closed. Ctrl-C is its parent's to deal with."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        pipe.recv()
        pipe.send(SYSTEM_CLOCK.monotonic_ns())
        with asyncio.Runner(loop_factory=punctual_loop) as runner:
            runner.run(_work(pipe))
    except (EOFError, OSError):
        pass  # the parent is gone, or has had enough


async def _work(pipe: Connection) -> None:
    client = Client()
    try:
        while True:
            job = cast("_Job", await asyncio.to_thread(pipe.recv))
            try:
                done: object = await _level(pipe, job, client)
            except TaximeterError as error:
                done = UpstreamError(f"a client process failed: {error.message}")
            pipe.send(done)
    finally:
        await client.aclose()


async def _level(pipe: Connection, job: _Job, client: Client) -> _Done:
    asking = job.asking
    if job.key_from is not None:
        key = read_secret(job.key_from, os.environ, base=Path.cwd())
        asking = replace(asking, target=replace(asking.target, upstream=replace(asking.target.upstream, key=key)))
    pipe.send("ready")
    began_ns = cast("int", await asyncio.to_thread(pipe.recv))
    later, stop = Later(), asyncio.Event()
    asker = asking.target.asker(client, asking.run, books=later, began_ns=began_ns)
    with _Listener(pipe, asyncio.get_running_loop(), stop):
        run = await drive(job.level, asker, asking.question, stop=stop)
    return _Done(run=run, notes=tuple(later.notes))


class _Listener:
    """Hears, on a thread, whether the parent wants a level to stop, or is gone."""

    def __init__(self, pipe: Connection, loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
        self._pipe, self._loop, self._stop = pipe, loop, stop
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _listen(self) -> None:
        while not self._is_over.is_set():
            try:
                if not self._pipe.poll(0.1):
                    continue
                self._pipe.recv()
            except (EOFError, OSError):
                self._is_over.set()
            self._loop.call_soon_threadsafe(self._stop.set)
            return
