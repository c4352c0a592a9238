"""The embedded engine as a `Backend`: one engine thread beside the event loop.

Owns: the thread, the queue of requests, and the crossing between the two worlds. Requests and cancellations go to the
thread as commands that it runs between steps; events come back through `call_soon_threadsafe` into a queue per
answer, so a slow reader holds nobody up. Refuses to know: what a step does (`core`), HTTP, money.

Several models take turns on the one thread, a step each: a machine has one bill.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import queue
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from taximeter.clock import SYSTEM_CLOCK, Clock
from taximeter.engine import kernels
from taximeter.engine.core import BACKEND_NAME, Deliver, EngineCore, EngineOptions
from taximeter.engine.kv_cache import PoolCensus
from taximeter.engine.loading import Loadings
from taximeter.errors import CapacityError, ConfigError, InvariantBroken, ModelFileError, ModelNotFound, TaximeterError
from taximeter.records import (
    EngineLoad,
    Event,
    MachineTime,
    ModelInfo,
    ModelLoad,
    Phase,
    PhaseEntered,
    Prompt,
    Request,
    Served,
)

if TYPE_CHECKING:
    from taximeter.engine.chat_template import ChatTemplate
    from taximeter.engine.tokenizer import Tokenizer

_log = logging.getLogger(__name__)


def _compiled(template: str, tokenizer: Tokenizer) -> ChatTemplate:
    from taximeter.engine.chat_template import ChatTemplate  # noqa: PLC0415  # Jinja: a model without goes without

    return ChatTemplate(template, tokenizer)


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
                # What the machine took for a request until now, for each of those that wait.
                mean_s = self._served_ns / self._served / 1e9 if self._served else 1.0
                raise CapacityError(
                    f"the queue is full, with {self._waiting} waiting",
                    retry_after_s=float(max(1, math.ceil(self._waiting * mean_s))),
                )
            self._waiting += 1

    @property
    def waiting(self) -> int:
        """How many wait now."""
        return self._waiting

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


@dataclass(frozen=True, slots=True)
class _Command:
    """Something for the engine thread to do to one core, between two steps."""

    core: EngineCore
    run: Callable[[], None]


class EmbeddedBackend:
    """Serves models on this machine. Make one with `load`; stop it with `aclose`."""

    def __init__(self, cores: Mapping[str, EngineCore], *, max_queued_requests: int, clock: Clock) -> None:
        self._cores = dict(cores)
        self._clock = clock
        self._queued = _Queued(max_queued_requests)
        self._answers: dict[str, tuple[EngineCore, EmbeddedAnswer]] = {}
        self._commands: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()
        # Threads of its own: whatever a prompt does to its template or tokenizer, nobody else's threads are taken.
        self._encoders = ThreadPoolExecutor(max_workers=2, thread_name_prefix="taximeter-encode")
        self._started_ns = clock.monotonic_ns()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="taximeter-engine", daemon=True)
        self._thread.start()

    @classmethod
    def load(
        cls, models: Mapping[str, Path], *, options: EngineOptions | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> Self:
        """Load each model (serving name → file or folder) and start the engine. Raises ConfigError, of which
        ModelFileError is one."""
        options = options or EngineOptions()
        loadings = Loadings.begin(models, threads=options.threads, weights=options.weights, profile=options.profile)
        with contextlib.closing(loadings):
            return cls.of(loadings, options=options, clock=clock)

    @classmethod
    def of(cls, loadings: Loadings, *, options: EngineOptions, clock: Clock = SYSTEM_CLOCK) -> Self:
        """Wait for models that are being loaded, and start the engine. Of `options`, those about loading say nothing
        any more. Raises ModelFileError."""
        cores: dict[str, EngineCore] = {}
        for name, loading in loadings.by_name.items():
            checkpoint = loading.checkpoint
            tokenizer = loading.tokenizer()
            if tokenizer.vocab_size > checkpoint.config.vocab_size:
                raise ModelFileError(
                    f"the tokenizer of {checkpoint.path.name} knows {tokenizer.vocab_size} tokens, its weights only "
                    f"{checkpoint.config.vocab_size}",
                    hint="tokenizer and weights do not belong together; fetch the model again",
                )
            template = checkpoint.vocabulary().chat_template
            cores[name] = EngineCore(
                name=name,
                model=loading.model(),
                tokenizer=tokenizer,
                chat_template=None if template is None else _compiled(template, tokenizer),
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
        core = self._core(request.model)
        self._refuse_when_closed()
        core.check(request.sampling)
        self._queued.enter()
        try:
            loop = asyncio.get_running_loop()
            token_ids, rules = await loop.run_in_executor(
                self._encoders, lambda: (core.encode(prompt), core.rules(prompt))
            )
            limit = core.answer_limit(request, len(token_ids))
            self._refuse_when_closed()  # tokenizing took a while
        except BaseException:
            self._queued.leave()
            raise
        answer = EmbeddedAnswer(request.id, self._queued, self._cancel)
        answer.deliver([PhaseEntered(at_ns=self._clock.monotonic_ns(), phase=Phase.QUEUE)])
        add = functools.partial(core.add, request, token_ids, limit, rules=rules)
        self._commands.put(_Command(core, lambda: self._add(core, request, add, answer)))
        return answer

    async def count_tokens(self, model: str, prompt: Prompt) -> int:
        """See `records.Backend.count_tokens`. It takes a place in the queue: tokenizing is work too."""
        core = self._core(model)
        self._refuse_when_closed()
        self._queued.enter()
        try:
            return len(await asyncio.get_running_loop().run_in_executor(self._encoders, core.encode, prompt))
        finally:
            self._queued.leave()

    def _core(self, model: str) -> EngineCore:
        core = self._cores.get(model)
        if core is None:
            raise ModelNotFound(
                f"no model {model!r} is served here", param="model", hint=f"served: {', '.join(self._cores)}"
            )
        return core

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise CapacityError("the engine is shutting down", retry_after_s=1.0)

    def machine_time(self) -> MachineTime:
        """Up to the end of the last step."""
        busy_ns = sum(core.busy_ns for core in self._cores.values())
        return MachineTime(wall_ns=self._clock.monotonic_ns() - self._started_ns, busy_ns=busy_ns)

    def load_now(self) -> EngineLoad:
        """What it is doing now, at a glance from outside: nothing waits for it."""
        models: dict[str, ModelLoad] = {}
        for name, core in self._cores.items():
            census = sum((pool.census() for pool in core.kv.pools), start=PoolCensus(free=0, cached=0, used=0))
            models[name] = ModelLoad(
                running_sequences=len(core.scheduler.running),
                free_kv_blocks=census.free,
                cached_kv_blocks=census.cached,
                used_kv_blocks=census.used,
            )
        return EngineLoad(waiting_requests=self._queued.waiting, models=models)

    def profile_ns(self) -> Mapping[str, int]:
        """Nanoseconds of all passes by kind of work, if `EngineOptions.profile` asked for them; else nothing."""
        total: Counter[str] = Counter()
        for core in self._cores.values():
            total.update(core.profile_ns())
        return total

    async def audit(self) -> PoolCensus:
        """Check all KV memory, between two steps, against everybody who holds some; the census of all models together.
        Raises InvariantBroken."""
        audited: list[Future[PoolCensus]] = []
        for core in self._cores.values():
            self._refuse_when_closed()
            audited.append(census := Future[PoolCensus]())
            self._commands.put(_Command(core, functools.partial(_audit, core, census)))
        return sum(await asyncio.gather(*map(asyncio.wrap_future, audited)), start=PoolCensus(free=0, cached=0, used=0))

    async def aclose(self) -> None:
        """Cancel what is in flight, whose answers end with `Served`, and stop the thread."""
        if not self._closed:
            self._closed = True
            self._commands.put(None)
            self._encoders.shutdown(wait=False)
        await asyncio.to_thread(self._thread.join)

    # Everything below runs on the engine thread.

    def _run(self) -> None:
        while True:
            while not (self._commands.empty() and any(core.has_work for core in self._cores.values())):
                command = self._next_command()
                if command is None:
                    self._cancel_all()
                    return
                self._guarded(command.core, command.run)
            for core in self._cores.values():
                if core.has_work:
                    self._guarded(core, core.step)

    def _next_command(self) -> _Command | None:
        """Wait for one. Meanwhile, until one comes, memory is taken for those that follow."""
        while self._commands.empty() and any(core.take_memory_ahead() for core in self._cores.values()):
            pass
        return self._commands.get()

    def _guarded(self, core: EngineCore, run: Callable[[], None]) -> None:
        """Run something that, if it breaks, breaks the requests of one core and not this thread: later requests
        deserve an answer."""
        try:
            run()
        except BaseException as what:  # noqa: BLE001 - also what native code throws; the thread goes on
            if isinstance(what, ConfigError):  # not the engine broke but the model is, and that is all there is to say
                _log.error("%s: %s; its requests in flight fail", core.name, what)
                error: TaximeterError = what
            else:
                _log.exception("%s broke; its requests in flight fail", core.name)
                error = InvariantBroken(
                    "the engine broke while computing this answer", hint="the server's log says how"
                )
            took = core.abandon()
            for request_id, (owner, answer) in list(self._answers.items()):
                if owner is core:
                    del self._answers[request_id]
                    answer.fail(error, took.get(request_id) or core.nothing_taken())

    def _add(self, core: EngineCore, request: Request, add: Callable[[Deliver], None], answer: EmbeddedAnswer) -> None:
        self._answers[request.id] = core, answer

        def deliver(events: Sequence[Event]) -> None:
            if any(isinstance(event, Served) for event in events):
                self._answers.pop(request.id, None)
            answer.deliver(events)

        add(deliver)

    def _cancel(self, request_id: str) -> None:
        for core in self._cores.values():
            self._commands.put(_Command(core, functools.partial(core.cancel, request_id)))

    def _cancel_all(self) -> None:
        # Nothing is put after the closing command but cancellations, which all are now.
        for request_id, (core, _answer) in list(self._answers.items()):
            self._guarded(core, functools.partial(core.cancel, request_id))


def _audit(core: EngineCore, census: Future[PoolCensus]) -> None:
    """What it finds is told to who asked; requests in flight go on."""
    try:
        census.set_result(core.audit())
    except InvariantBroken as error:
        census.set_exception(error)
