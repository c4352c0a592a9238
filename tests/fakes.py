"""Stand-ins for the two rooms behind the gateway: a backend that plays a script, and a ledger in memory.

Nothing here sleeps: a script may hold its answer at a token until the test releases it, and tests wait for what they
want to have happened. Both are safe to steer from another thread than the one that serves.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from taximeter.clock import SYSTEM_CLOCK, Clock, FakeClock
from taximeter.errors import ModelNotFound, RequestError
from taximeter.ledger import LedgerCounts
from taximeter.records import (
    Basis,
    ChoiceFinished,
    Event,
    FinishReason,
    Image,
    MachineTime,
    ModelInfo,
    Phase,
    PhaseEntered,
    PositionLogprobs,
    Prompt,
    PromptRead,
    Receipt,
    Request,
    Served,
    TokenLogprob,
    TokensGenerated,
    ToolCallDelta,
    Usage,
    Work,
)

WAIT_S = 20.0  # far beyond anything that is not a hang


@dataclass(frozen=True, kw_only=True)
class Script:
    """One answer. Durations move a `FakeClock` and are ignored on a real one.

    `reasoning` comes before the tokens and `calls` after them, whatever the limit.

    `hold_at` keeps the answer back before its token of that number (0 is the first; one beyond the last is between the
    end of the choices and `Served`) until `FakeBackend.release`; `fail_at` raises `error` there instead. `refuse` is
    raised by `submit`. `closing_ms` pass after `Served`.
    """

    tokens: tuple[str, ...] = ("Hello", ",", " world")
    reasoning: tuple[str, ...] = ()
    calls: tuple[ToolCallDelta, ...] = ()
    finish: FinishReason = FinishReason.STOP
    tail: str = ""
    cached_tokens: int = 0
    compute_ns: int = 1_000
    hold_at: int | None = None
    fail_at: int | None = None
    error: BaseException = field(default_factory=lambda: RuntimeError("the script says so: secret"))
    refuse: BaseException | None = None
    queue_ms: int = 0
    prefill_ms: int = 0
    token_ms: int = 0
    closing_ms: int = 0


class FakeBackend:
    """Answers every request from `script`, which a test may change between requests."""

    def __init__(self, script: Script | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.script = script or Script()
        self.submitted: list[tuple[Request, Prompt]] = []
        self.cancelled = threading.Semaphore(0)  # released once for every answer that is cancelled
        self.held = threading.Semaphore(0)  # released once for every answer that begins to wait
        self.closed = False
        self.counts_tokens = True
        self._clock = clock
        self._gates: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    @property
    def name(self) -> str:
        return "fake"

    def models(self) -> Sequence[ModelInfo]:
        return [
            ModelInfo(id="fake", context_length_tokens=64, chat=True),
            ModelInfo(id="fake/base", context_length_tokens=64, chat=False),
        ]

    async def submit(self, request: Request, prompt: Prompt) -> FakeAnswer:
        self._check(request.model, prompt)
        if self.script.refuse is not None:
            raise self.script.refuse
        self.submitted.append((request, prompt))
        gate = asyncio.Event()
        self._gates.append((asyncio.get_running_loop(), gate))
        return FakeAnswer(self, request, prompt, self.script, gate, self._clock)

    def release(self) -> None:
        """Let every answer that is held go on."""
        gates, self._gates = self._gates, []
        for loop, gate in gates:
            loop.call_soon_threadsafe(gate.set)

    async def count_tokens(self, model: str, prompt: Prompt) -> int | None:
        self._check(model, prompt)
        return _count(prompt) if self.counts_tokens else None

    def _check(self, model: str, prompt: Prompt) -> None:
        if model not in {info.id for info in self.models()}:
            raise ModelNotFound(f"no model {model!r} is served here", param="model")
        if prompt.messages is not None and model == "fake/base":
            raise RequestError("fake/base has no chat template", param="messages")

    def machine_time(self) -> MachineTime:
        return MachineTime(wall_ns=3_600_000_000_000, busy_ns=1_000_000 * len(self.submitted))

    async def aclose(self) -> None:
        self.closed = True


class FakeAnswer:
    def __init__(
        self,
        backend: FakeBackend,
        request: Request,
        prompt: Prompt,
        script: Script,
        gate: asyncio.Event,
        clock: Clock,
    ) -> None:
        self._backend = backend
        self._request = request
        self._script = script
        self._gate = gate
        self._clock = clock
        self._input_tokens = _count(prompt)
        self._made = 0
        self._is_cancelled = False
        self._served: Served | None = None

    async def __aiter__(self) -> AsyncIterator[Event]:
        script = self._script
        yield self._enter(Phase.QUEUE)
        self._pass(script.queue_ms)
        yield self._enter(Phase.PREFILL)
        self._pass(script.prefill_ms)
        yield self._enter(Phase.DECODE)
        yield PromptRead(at_ns=self._clock.monotonic_ns(), usage=self._usage().of_prompt())
        limit = self._request.max_output_tokens or len(script.tokens)
        for thought in script.reasoning:
            for event in self._beside(reasoning=thought):
                yield event
        for number, text in enumerate(script.tokens[:limit]):
            await self._hold(number)
            if number == script.fail_at:
                raise script.error
            if self._is_cancelled:
                break
            if number:
                self._pass(script.token_ms)
            for choice in range(self._request.sampling.choices):
                self._made += 1
                yield self._token(choice, number, text)
        for piece in script.calls:
            for event in self._beside(calls=(piece,)):
                yield event
        reason = FinishReason.LENGTH if limit < len(script.tokens) else script.finish
        reason = FinishReason.CANCELLED if self._is_cancelled else reason
        for choice in range(self._request.sampling.choices):
            yield ChoiceFinished(at_ns=self._clock.monotonic_ns(), choice=choice, reason=reason, text=script.tail)
        await self._hold(len(script.tokens))
        yield self._what_it_took()
        self._pass(script.closing_ms)

    async def _hold(self, number: int) -> None:
        if number == self._script.hold_at:
            self._backend.held.release()
            await self._gate.wait()

    async def cancel(self) -> Served:
        if not self._is_cancelled:
            self._is_cancelled = True
            self._gate.set()
            self._backend.cancelled.release()
        return self._what_it_took()

    def _enter(self, phase: Phase) -> PhaseEntered:
        return PhaseEntered(at_ns=self._clock.monotonic_ns(), phase=phase)

    def _pass(self, ms: int) -> None:
        if isinstance(self._clock, FakeClock):
            self._clock.advance(ms=ms)

    def _token(self, choice: int, number: int, text: str) -> TokensGenerated:
        wanted = self._request.sampling.logprobs
        others = [TokenLogprob(token_id=n, text=f"t{n}", utf8=b"t%d" % n, logprob=-float(n)) for n in range(5)]
        picked = TokenLogprob(token_id=number, text=text, utf8=text.encode(), logprob=-0.5)
        position = PositionLogprobs(picked=picked, top=tuple(others[: wanted or 0]))
        return TokensGenerated(
            at_ns=self._clock.monotonic_ns(),
            choice=choice,
            new_tokens=1,
            text=text,
            token_ids=(number,),
            logprobs=() if wanted is None else (position,),
        )

    def _beside(self, *, reasoning: str = "", calls: tuple[ToolCallDelta, ...] = ()) -> Iterator[TokensGenerated]:
        for choice in range(self._request.sampling.choices):
            self._made += 1
            at_ns = self._clock.monotonic_ns()
            yield TokensGenerated(at_ns=at_ns, choice=choice, new_tokens=1, text="", reasoning=reasoning, calls=calls)

    def _usage(self) -> Usage:
        cached = min(self._script.cached_tokens, self._input_tokens)
        return Usage(
            input_fresh_tokens=self._input_tokens - cached,
            input_cache_read_tokens=cached,
            output_text_tokens=self._made,
            basis=Basis.MEASURED,
        )

    def _what_it_took(self) -> Served:
        if self._served is None:
            usage = self._usage()
            self._served = Served(
                at_ns=self._clock.monotonic_ns(),
                usage=usage,
                work=Work(
                    prefill_passes=1,
                    decode_passes=max(0, self._made - 1),
                    computed_tokens=(usage.input_fresh_tokens or 0) + self._made,
                    reused_tokens=usage.input_cache_read_tokens or 0,
                    compute_ns=self._script.compute_ns,
                ),
                served_by="fake",
                model=self._request.model,
            )
        return self._served


def _count(prompt: Prompt) -> int:
    """A fake's tokens are words."""
    if prompt.token_ids is not None:
        return len(prompt.token_ids)
    if prompt.messages is None:
        return len((prompt.text or "").split())
    parts = [part for message in prompt.messages for part in _parts(message.content)]
    return sum(len(part.split()) for part in parts if isinstance(part, str))


def _parts(content: str | tuple[str | Image, ...]) -> tuple[str | Image, ...]:
    return (content,) if isinstance(content, str) else content


class MemoryLedger:
    """Keeps receipts in a list. `broken` makes every write fail; `stuck` leaves writes unanswered until `answer`,
    `stuck_receipts` those of receipts."""

    def __init__(self) -> None:
        self.expected: list[str] = []
        self.begun: list[Request] = []
        self.kept: list[Receipt] = []
        self.broken: Exception | None = None
        self.away: str | None = None
        self.lost_before: int | None = 0
        self.stuck = False
        self.stuck_receipts = False
        self.closed = False
        self.accepted = 0
        self.lost = 0
        self._unanswered: list[tuple[Callable[[], None], Future[None]]] = []
        self._changed = threading.Condition()

    def expect(self, request_id: str) -> None:
        self.expected.append(request_id)

    def begin(self, request: Request, receipt_id: str, *, journaled: bool) -> Future[None]:
        return self._write(lambda: self.begun.append(request), is_stuck=self.stuck)

    def append(self, receipt: Receipt, *, journaled: bool) -> Future[None]:
        self.accepted += 1
        self.lost += self.broken is not None
        return self._write(lambda: self.kept.append(receipt), is_stuck=self.stuck or self.stuck_receipts)

    def counts(self) -> LedgerCounts:
        return LedgerCounts(accepted=self.accepted, written=len(self.kept), lost=self.lost)

    def _write(self, write: Callable[[], None], *, is_stuck: bool) -> Future[None]:
        future: Future[None] = Future()
        with self._changed:
            if is_stuck:
                self._unanswered.append((write, future))
            elif self.broken is not None:
                future.set_exception(self.broken)
            else:
                write()
                future.set_result(None)
            self._changed.notify_all()
        return future

    def answer(self) -> None:
        """Wait for an unanswered write, and answer it."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._unanswered, WAIT_S)
            write, future = self._unanswered.pop(0)
            write()
        future.set_result(None)

    def wait_until_asked(self) -> None:
        """Wait until a write is unanswered."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._unanswered, WAIT_S)

    def receipts(self, limit: int = 50, before: str | None = None) -> list[Receipt]:
        newest_first = sorted(self.kept, key=lambda receipt: receipt.id, reverse=True)
        return [receipt for receipt in newest_first if before is None or receipt.id < before][:limit]

    def receipt(self, receipt_id: str) -> Receipt | None:
        return next((kept for kept in self.kept if receipt_id in (kept.id, kept.request.id)), None)

    def wait_for(self, receipt_id: str) -> Receipt:
        """The receipt, as soon as it is kept."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.receipt(receipt_id) is not None, WAIT_S)
        receipt = self.receipt(receipt_id)
        assert receipt is not None
        return receipt

    def close(self) -> None:
        self.closed = True
