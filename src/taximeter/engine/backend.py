"""The embedded engine as a `Backend`: one engine thread beside the event loop.

Owns: the thread, the queue of requests, and the crossing between the two worlds. Requests and cancellations go to the
thread as commands that it runs between steps; events come back through `call_soon_threadsafe` into a queue per
answer, so a slow reader holds nobody up. Refuses to know: what a step does (`core`), HTTP, money.

Several models take turns on the one thread, a step each: a machine has one bill.
"""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from taximeter.clock import SYSTEM_CLOCK, Clock
from taximeter.engine import kernels
from taximeter.engine.chat_template import ChatTemplate
from taximeter.engine.core import BACKEND_NAME, EngineCore, EngineOptions
from taximeter.engine.models import load_model
from taximeter.engine.tokenizer import Tokenizer
from taximeter.engine.weights import open_checkpoint
from taximeter.errors import CapacityError, InvariantBroken, ModelFileError, ModelNotFound, TaximeterError
from taximeter.records import Event, MachineTime, ModelInfo, Phase, PhaseEntered, Prompt, Request, Served

_log = logging.getLogger(__name__)


def kernel_level() -> tuple[str, str | None]:
    """Which arithmetic runs here, and for the slow reference path the reason, as a sentence for people."""
    return kernels.level(), kernels.reason()


class _Queued:
    """How many requests wait, and for how long the next one would: the door's only knowledge of the engine's load."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._waiting = 0
        self._served = 0
        self._served_ns = 0

    def enter(self) -> None:
        """One more waits. Raises CapacityError when that is one too many."""
        with self._lock:
            if self._waiting >= self._limit:
                mean_s = self._served_ns / self._served / 1e9 if self._served else 1.0
                raise CapacityError(
                    f"the queue is full: {self._waiting} requests are waiting",
                    retry_after_s=float(max(1, math.ceil(mean_s))),
                )
            self._waiting += 1

    def leave(self) -> None:
        """One was taken up, or went away."""
        with self._lock:
            self._waiting -= 1

    def note_served(self, compute_ns: int) -> None:
        with self._lock:
            self._served += 1
            self._served_ns += compute_ns


class EmbeddedAnswer:
    """An answer that the engine thread is making. See `records.Answer`."""

    def __init__(self, request_id: str, queued: _Queued, cancel: Callable[[str], None]) -> None:
        self._request_id = request_id
        self._queued = queued
        self._cancel = cancel
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[Event | TaximeterError] = asyncio.Queue()
        self._served: asyncio.Future[Served] = self._loop.create_future()
        self._is_waiting = True

    def deliver(self, events: Sequence[Event]) -> None:
        """Called on the engine thread."""
        if self._is_waiting and any(
            isinstance(event, Served) or (isinstance(event, PhaseEntered) and event.phase is not Phase.QUEUE)
            for event in events
        ):
            self._is_waiting = False
            self._queued.leave()
        self._call(self._arrive, events)

    def fail(self, error: TaximeterError, served: Served) -> None:
        """Called on the engine thread: the answer is broken, having taken what `served` says."""
        if self._is_waiting:
            self._is_waiting = False
            self._queued.leave()
        self._call(self._break, error, served)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed: nobody is left to read
            _log.debug("request %s: its reader is gone", self._request_id)

    def _arrive(self, events: Sequence[Event]) -> None:
        for event in events:
            self._arrived.put_nowait(event)
            if isinstance(event, Served):
                if event.work is not None:
                    self._queued.note_served(event.work.compute_ns)
                if not self._served.done():
                    self._served.set_result(event)

    def _break(self, error: TaximeterError, served: Served) -> None:
        if not self._served.done():
            self._served.set_result(served)
        self._arrived.put_nowait(error)

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            event = await self._arrived.get()
            if isinstance(event, TaximeterError):
                raise event
            yield event
            if isinstance(event, Served):
                return

    async def cancel(self) -> Served:
        """See `records.Answer.cancel`."""
        if not self._served.done():
            self._cancel(self._request_id)
        return await asyncio.shield(self._served)


class EmbeddedBackend:
    """Serves models on this machine. Make one with `load`; stop it with `aclose`."""

    def __init__(self, cores: Mapping[str, EngineCore], *, max_queued_requests: int, clock: Clock) -> None:
        self._cores = dict(cores)
        self._clock = clock
        self._queued = _Queued(max_queued_requests)
        self._answers: dict[str, EmbeddedAnswer] = {}
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._started_ns = clock.monotonic_ns()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="taximeter-engine", daemon=True)
        self._thread.start()

    @classmethod
    def load(
        cls, models: Mapping[str, Path], *, options: EngineOptions | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> Self:
        """Load each model (serving name → file or folder) and start the engine. Raises ModelFileError."""
        options = options or EngineOptions()
        if options.threads is not None:
            kernels.set_threads(options.threads)
        cores: dict[str, EngineCore] = {}
        for name, path in models.items():
            checkpoint = open_checkpoint(path)
            vocabulary = checkpoint.vocabulary()
            tokenizer = Tokenizer.from_vocabulary(vocabulary)
            if tokenizer.vocab_size > checkpoint.config.vocab_size:
                raise ModelFileError(
                    f"the tokenizer of {path.name} knows {tokenizer.vocab_size} tokens, its weights only "
                    f"{checkpoint.config.vocab_size}",
                    hint="tokenizer and weights do not belong together; fetch the model again",
                )
            template = vocabulary.chat_template
            cores[name] = EngineCore(
                name=name,
                model=load_model(checkpoint),
                tokenizer=tokenizer,
                chat_template=None if template is None else ChatTemplate(template, tokenizer),
                options=options,
                clock=clock,
            )
        return cls(cores, max_queued_requests=options.max_queued_requests, clock=clock)

    @property
    def name(self) -> str:
        return BACKEND_NAME

    def models(self) -> Sequence[ModelInfo]:
        return [
            ModelInfo(id=name, context_length_tokens=core.limit_tokens, chat=core.chat_template is not None)
            for name, core in self._cores.items()
        ]

    async def submit(self, request: Request, prompt: Prompt) -> EmbeddedAnswer:
        """See `records.Backend.submit`. Tokenizing runs on a helper thread: a long prompt stops nobody."""
        core = self._cores.get(request.model)
        if core is None:
            raise ModelNotFound(
                f"no model {request.model!r} is served here", param="model", hint=f"served: {', '.join(self._cores)}"
            )
        self._queued.enter()
        try:
            token_ids = await asyncio.to_thread(core.encode, prompt)
            limit = core.answer_limit(request, len(token_ids))
            if self._closed:
                raise CapacityError("the engine is shutting down", retry_after_s=1.0)
        except BaseException:
            self._queued.leave()
            raise
        answer = EmbeddedAnswer(request.id, self._queued, self._cancel)
        answer.deliver([PhaseEntered(at_ns=self._clock.monotonic_ns(), phase=Phase.QUEUE)])
        self._commands.put(lambda: self._add(core, request, token_ids, limit, answer))
        return answer

    def machine_time(self) -> MachineTime:
        """Up to the end of the last step."""
        busy_ns = sum(core.busy_ns for core in self._cores.values())
        return MachineTime(wall_ns=self._clock.monotonic_ns() - self._started_ns, busy_ns=busy_ns)

    async def aclose(self) -> None:
        """Cancel what is in flight, whose answers end with `Served`, and stop the thread."""
        if not self._closed:
            self._closed = True
            self._commands.put(None)
        await asyncio.to_thread(self._thread.join)

    # Everything below runs on the engine thread.

    def _run(self) -> None:
        while True:
            while not (self._commands.empty() and any(core.has_work for core in self._cores.values())):
                command = self._commands.get()
                if command is None:
                    self._cancel_all()
                    return
                command()
            for core in self._cores.values():
                if core.has_work:
                    self._step(core)

    def _step(self, core: EngineCore) -> None:
        try:
            core.step()
        except Exception:  # noqa: BLE001 - one bad step must not end the thread: later requests deserve an answer
            _log.exception("a step of %s broke; its requests in flight fail", core.name)
            error = InvariantBroken("the engine broke while computing this answer", hint="the server's log says how")
            for request_id, served in core.fail_all():
                self._answers.pop(request_id).fail(error, served)

    def _add(
        self, core: EngineCore, request: Request, token_ids: tuple[int, ...], limit: int, answer: EmbeddedAnswer
    ) -> None:
        self._answers[request.id] = answer

        def deliver(events: Sequence[Event]) -> None:
            if any(isinstance(event, Served) for event in events):
                self._answers.pop(request.id, None)
            answer.deliver(events)

        core.add(request, token_ids, limit, deliver)

    def _cancel(self, request_id: str) -> None:
        def command() -> None:
            for core in self._cores.values():
                core.cancel(request_id)

        self._commands.put(command)

    def _cancel_all(self) -> None:
        # A request may have been submitted between the last command and the closing one; none may hang.
        while not self._commands.empty():
            command = self._commands.get()
            if command is not None:
                command()
        for request_id in list(self._answers):
            for core in self._cores.values():
                core.cancel(request_id)
