"""From a request to its receipt, whatever happens between.

Owns: the stopwatch of each request, the moment its receipt is durable, and what becomes of failures and hang-ups.
Refuses to know: HTTP, dialects, how answers are made.

An `Exchange` runs to its receipt by itself: a task of its own reads the backend's events as they come, and whoever
reads the exchange only watches. A reader that is slow, stuck or gone therefore changes neither times nor outcome of
what was served, and a receipt never waits for a client.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from taximeter.clock import SYSTEM_CLOCK, Clock
from taximeter.errors import CapacityError, InvariantBroken, RequestError, TaximeterError, UpstreamRefused
from taximeter.gateway.books import done_in_time
from taximeter.ledger import Ledger
from taximeter.pricing import Settler
from taximeter.pricing.shared_machine import Machines
from taximeter.records import (
    Answer,
    Backend,
    ChoiceFinished,
    Event,
    FinishReason,
    Outcome,
    Phase,
    PhaseEntered,
    Prompt,
    PromptRead,
    Receipt,
    Request,
    Served,
    Stopwatch,
    TokensGenerated,
    Work,
    new_id,
)

_log = logging.getLogger(__name__)

# At the end of the server, or of an answer that broke, a backend that does not decide or does not let go is left alone
# after this. At other times nobody waits but the receipt, and it waits for what the answer took: a backend lets go
# between two steps, and of a large model one may take a minute.
_BACKEND_PATIENCE_S = 10.0
_SHOWN_WITHIN_S = 0.01
# Whoever raises these wants all of the process. Any other BaseException is a failure like the rest: Rust libraries, the
# tokenizer's for one, raise their own when they panic.
_ENDS_THE_PROCESS = (KeyboardInterrupt, SystemExit, GeneratorExit)


class ShuttingDown(CapacityError):
    """The server is going away; another one, or the next, may answer."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down", retry_after_s=5.0)


class Running(Protocol):
    """A request on its way to its receipt."""

    def let_go(self, error: TaximeterError | None = None) -> None:
        """Nobody wants the answer; it need not wait."""
        ...

    async def abort(self, error: TaximeterError | None = None, *, patience_s: float | None = None) -> None:
        """The same, and return when the receipt is durable, or after `patience_s`."""
        ...


class Relay:
    """Opens exchanges, and knows those that are under way. `machines` are those of upstreams that are paid by the hour.

    Each of `observers` is called on the event loop with each receipt soon after it is on the books (or known not to get
    there), see `show_due`; they may not block, and what one raises is logged.
    """

    def __init__(
        self,
        *,
        backend: Backend,
        ledger: Ledger,
        settler: Settler,
        machines: Machines | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.backend = backend
        self.machines = machines
        self.clock = clock
        self.observers: list[Callable[[Receipt], object]] = []
        self.receipts_lost = 0  # before the ledger had them; it counts the others
        self._ledger = ledger
        self._settler = settler
        self._unshown: list[Receipt] = []
        self._showing: asyncio.TimerHandle | None = None
        self._running: set[Running] = set()
        self._undecided: set[asyncio.Future[None]] = set()  # one for each request that is neither running nor refused
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether no new requests are taken."""
        return self._closed

    @property
    def in_flight(self) -> int:
        """Exchanges that have no receipt yet."""
        return len(self._running)

    async def open(self, request: Request, prompt: Prompt, *, receipt_id: str | None = None) -> Exchange:
        """Hand the request to the backend.

        Raises what the backend raises when it does not take it up; the refused (or failed) receipt is durable by
        then, under `receipt_id` where one is given.
        """
        receipt_id = receipt_id or new_id("rcpt", request.received_at)
        with self._deciding():
            exchange = await self._open(request, prompt, receipt_id)
        if self._closed:
            exchange.let_go(ShuttingDown())
        return exchange

    async def _open(self, request: Request, prompt: Prompt, receipt_id: str) -> Exchange:
        watch = Stopwatch(request.received_ns)
        begun = self.begin(request, receipt_id)
        try:
            if self._closed:
                raise ShuttingDown
            answer = await self.backend.submit(request, prompt)
        except asyncio.CancelledError:
            await self._record_unserved(request, receipt_id, watch, Outcome.ABORTED, "the caller went away")
            raise
        except _ENDS_THE_PROCESS:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, it has a receipt
            # A backend that is closing has no room, and will not have any later.
            told = ShuttingDown() if self._closed and isinstance(error, CapacityError) else _as_our_own(error)
            await self._record_unserved(request, receipt_id, watch, outcome_of_error(told), described(told))
            raise told from told.__cause__
        exchange = Exchange(self, request, receipt_id, answer, watch, begun)
        self._running.add(exchange)
        return exchange

    async def refuse(self, request: Request, error: TaximeterError, *, receipt_id: str) -> Receipt:
        """Write the receipt of a request that never reached a backend, because of `error`."""
        watch = Stopwatch(request.received_ns)
        self.begin(request, receipt_id)
        with self._deciding():
            return await self._record_unserved(request, receipt_id, watch, Outcome.REFUSED, described(error))

    async def aclose(self) -> None:
        """Take no new requests; end those in flight, each with its receipt. Idempotent."""
        self._closed = True
        await self._abort_running()
        if self._undecided:
            await asyncio.wait(self._undecided, timeout=_BACKEND_PATIENCE_S)
            await self._abort_running()
        self.show_due()

    async def _abort_running(self) -> None:
        aborting = (exchange.abort(ShuttingDown(), patience_s=_BACKEND_PATIENCE_S) for exchange in list(self._running))
        await asyncio.gather(*aborting)

    @contextlib.contextmanager
    def _deciding(self) -> Generator[None]:
        """Closing waits for what is done in here."""
        decided = asyncio.get_running_loop().create_future()
        self._undecided.add(decided)
        try:
            yield
        finally:
            self._undecided.discard(decided)
            decided.set_result(None)

    async def record(
        self,
        request: Request,
        receipt_id: str,
        watch: Stopwatch,
        outcome: Outcome,
        *,
        served: Served | None,
        finish_reasons: tuple[str, ...] = (),
        error: str | None = None,
        unmeasured_reason: str | None = None,
    ) -> Receipt:
        """Settle and append; the total time ends here, right before settling.

        A ledger that fails or hangs is logged and counted, and never raises: the answer matters more than the books.
        """
        timing = watch.stop(self.clock.monotonic_ns())
        if served is not None:
            timing = timing.divided(served.spent_ns)
        closed_at = self.clock.utc_now()

        def settle(work: Work | None) -> Receipt:
            return self._settler.settle(
                receipt_id=receipt_id,
                request=request,
                closed_at=closed_at,
                outcome=outcome,
                timing=timing,
                usage=served.usage if served else None,
                work=work,
                served_by=served.served_by if served else None,
                model_served=served.model if served else None,
                finish_reasons=finish_reasons,
                error=error,
                unmeasured_reason=unmeasured_reason,
                terms=served.terms if served else None,
                tries=served.tries if served else (),
                upstream_request_id=served.upstream_request_id if served else None,
            )

        if self.machines is not None:
            who, usage, spent_ns = (served.served_by, served.usage, served.spent_ns) if served else (None, None, None)
            now_ns = self.clock.monotonic_ns()
            self.machines.ended(request.id, now_ns, served_by=who, usage=usage, spent_ns=spent_ns)
        try:
            receipt = settle(served.work if served else None)
        except Exception:  # noqa: BLE001 - a bug in pricing must not lose it
            _log.exception("receipt %s could not be settled: it is written without its work and cost", receipt_id)
            receipt = settle(None)
        await self._append(receipt)
        # Spectators come after the client, and after what the client asks next.
        self._unshown.append(receipt)
        if self._showing is None:
            self._showing = asyncio.get_running_loop().call_later(_SHOWN_WITHIN_S, self._show_late)
        return receipt

    def note_tokens(self, request: Request, tokens: int = 1) -> None:
        """So many more generated tokens of it were seen."""
        if self.machines is not None:
            self.machines.progress(request.id, tokens)

    def follow(self, exchange: Running) -> None:
        """It has begun: closing waits for it."""
        self._running.add(exchange)

    def forget(self, exchange: Running) -> None:
        """It has ended."""
        self._running.discard(exchange)

    async def _record_unserved(
        self, request: Request, receipt_id: str, watch: Stopwatch, outcome: Outcome, error: str
    ) -> Receipt:
        return await self.record(
            request,
            receipt_id,
            watch,
            outcome,
            served=None,
            error=error,
            unmeasured_reason=f"{outcome.value} before anything was computed",
        )

    def show_due(self) -> None:
        """Show observers what they have not seen yet. That is done while nobody waits: while the ledger writes the next
        receipt, or a moment later if there is none; and before somebody asks for what observers know."""
        receipts, self._unshown = self._unshown, []
        for receipt in receipts:
            for observe in self.observers:
                try:
                    observe(receipt)
                except Exception:  # noqa: BLE001 - a spectator
                    _log.exception("receipt %s was written, but could not be shown", receipt.id)

    def _show_late(self) -> None:
        self._showing = None
        self.show_due()

    def expect(self, request_id: str) -> None:
        """Have the ledger count the request as lost should this process die before `begin`, which follows."""
        try:
            self._ledger.expect(request_id)
        except Exception:  # noqa: BLE001 - the answer goes on
            _log.exception("the ledger was not told to expect request %s", request_id)

    def begin(self, request: Request, receipt_id: str) -> Future[None] | None:
        """Have the ledger note that the request is in flight. Most who ask for that wait for the receipt only: whoever
        waits for the note has it told to the event loop, see `done_in_time`."""
        try:
            begun = self._ledger.begin(request, receipt_id, journaled=True)
        except Exception:  # noqa: BLE001 - the answer goes on
            _log.exception("the ledger did not note that request %s began", request.id)
            return None
        begun.add_done_callback(lambda done: _log_failure(done, f"noting that request {request.id} began"))
        return begun

    async def _append(self, receipt: Receipt) -> None:
        try:
            appended = self._ledger.append(receipt, journaled=True)
        except Exception:  # noqa: BLE001 - the answer goes on
            _log.exception("receipt %s is LOST: the ledger did not take it", receipt.id)
            self.receipts_lost += 1
            return
        appended.add_done_callback(lambda done: _log_failure(done, f"receipt {receipt.id} is LOST: writing it"))
        self.show_due()  # of those before it
        if not await done_in_time(appended):
            _log.error("receipt %s is not durable yet: the ledger does not answer, the answer goes on", receipt.id)


@dataclass(frozen=True, slots=True)
class _Abort:
    """That an exchange was aborted, and what its reader is to be told, if anything."""

    error: TaximeterError | None


class Exchange:
    """One request and its answer. Read it once, with `async for`; it ends when the receipt is durable.

    The end of the last choice and `Served` are handed out only then, so that a client with a finished answer can
    find its receipt. Reading raises a `TaximeterError` when the answer broke; that has a receipt too.
    """

    def __init__(
        self,
        relay: Relay,
        request: Request,
        receipt_id: str,
        answer: Answer,
        watch: Stopwatch,
        begun: Future[None] | None,
    ) -> None:
        self.request = request
        self.receipt_id = receipt_id
        self._relay = relay
        self._answer = answer
        self._watch = watch
        self._begun = begun
        self._arrived: asyncio.Queue[Event | TaximeterError | None] = asyncio.Queue()
        self._held: list[Event] = []
        self._served: Served | None = None
        self._finish_reasons: dict[int, FinishReason] = {}
        self._abort: _Abort | None = None
        self._cancelling: asyncio.Task[None] | None = None
        self._receipt: Receipt | None = None
        self._run = asyncio.create_task(self._to_the_end(), name=f"exchange {request.id}")

    @property
    def receipt(self) -> Receipt:
        """The receipt. Raises InvariantBroken before the exchange has ended."""
        if self._receipt is None:
            raise InvariantBroken(f"request {self.request.id} has no receipt")
        return self._receipt

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self._arrived.get()) is not None:
            if isinstance(event, TaximeterError):
                raise event
            yield event

    async def abort(self, error: TaximeterError | None = None, *, patience_s: float | None = None) -> None:
        """Stop the answer, and return when its receipt is durable. See `let_go`. A backend that has not let go after
        `patience_s` is left alone, and the receipt says that."""
        self.let_go(error)
        await asyncio.wait([self._run], timeout=patience_s)
        if self._cancelling is not None and not (self._cancelling.done() or self._run.done()):
            _log.error("the backend does not let go of request %s", self.request.id)
            self._cancelling.cancel()
            self._run.cancel()
        await asyncio.wait([self._run])

    def let_go(self, error: TaximeterError | None = None) -> None:
        """Stop the answer without waiting for that. Whoever reads the exchange gets `error`, if there is one.

        A request that has been served already keeps its outcome.
        """
        if self._abort is None and not self._run.done():
            self._abort = _Abort(error)
            self._cancelling = asyncio.create_task(self._cancel_answer(), name=f"cancel {self.request.id}")

    async def _cancel_answer(self) -> None:
        try:
            await self._answer.cancel()
        except Exception:  # noqa: BLE001 - a receipt must not wait for it
            _log.exception("the backend did not cancel request %s", self.request.id)
            self._run.cancel()

    async def _to_the_end(self) -> None:
        """Read the answer, make its receipt durable, and only then let readers have the end."""
        told: TaximeterError | None
        try:
            told = await self._record(*await self._read())
        except Exception:  # noqa: BLE001 - a reader must not hang
            _log.exception("request %s is LOST: it could not be brought to its receipt", self.request.id)
            self._relay.receipts_lost += 1
            told = InvariantBroken("the gateway broke", hint="the server's log says how")
        finally:
            self._relay.forget(self)
        for event in (*self._held, *([told] if told else []), None):
            self._arrived.put_nowait(event)

    async def _read(self) -> tuple[TaximeterError | None, str | None]:
        """Follow the answer until it ends: (what broke it, why it is not known what it took), where it did or is."""
        error: TaximeterError | None = None
        try:
            async for event in self._answer:
                self._note(event)
                if self._served is not None or len(self._finish_reasons) == self.request.sampling.choices:
                    self._held.append(event)
                    continue
                if self._begun is not None:
                    # Nobody sees a token of a request that the ledger would forget if this process died now.
                    await done_in_time(self._begun)
                    self._begun = None
                self._arrived.put_nowait(event)
            if self._served is None:
                error = InvariantBroken("the answer ended without saying what it took")
        except asyncio.CancelledError:
            # The event loop is going down, or the backend would not let go of the answer.
            self._abort = self._abort or _Abort(ShuttingDown())
            return None, "the server stopped before the backend said what the answer took"
        except _ENDS_THE_PROCESS:
            raise
        except BaseException as broken:  # noqa: BLE001 - whatever it is, it has a receipt
            error = _as_our_own(broken)
        if self._served is not None:
            return error, None
        try:
            self._note(await asyncio.wait_for(self._answer.cancel(), _BACKEND_PATIENCE_S))
        except Exception:  # noqa: BLE001 - then that is what the receipt says
            _log.exception("the backend did not say what broken request %s took", self.request.id)
            return error, "the backend broke and did not say what the answer took"
        return error, None

    def _note(self, event: Event) -> None:
        match event:
            case TokensGenerated():
                self._relay.note_tokens(self.request, event.new_tokens)
                if event.new_tokens:
                    self._watch.tokens(event.at_ns, answer=bool(event.text or event.calls or not event.reasoning))
            case PhaseEntered():
                self._watch.enter(event.phase, event.at_ns)
            case ChoiceFinished():
                self._finish_reasons[event.choice] = event.reason
            case Served():
                self._watch.enter(Phase.GATEWAY, event.at_ns)
                self._served = event
            case PromptRead():
                pass  # `Served` has it too

    async def _record(self, error: TaximeterError | None, unmeasured_reason: str | None) -> TaximeterError | None:
        """Make the receipt. Gives what the reader is to be told."""
        reasons = dict(self._finish_reasons)
        choices = range(self.request.sampling.choices)
        # A hang-up that came after every choice's own end came too late to matter.
        is_whole = len(reasons) == len(choices) and FinishReason.CANCELLED not in reasons.values()
        outcome = Outcome.COMPLETED if error is None else outcome_of_error(error)
        if self._abort is not None and not is_whole:
            outcome, error = Outcome.ABORTED, self._abort.error or error
            reasons = {choice: reasons.get(choice, FinishReason.CANCELLED) for choice in choices}
        self._receipt = await self._relay.record(
            self.request,
            self.receipt_id,
            self._watch,
            outcome,
            served=self._served,
            finish_reasons=tuple(reasons[choice].value for choice in choices if choice in reasons),
            error=None if error is None else described(error),
            unmeasured_reason=unmeasured_reason,
        )
        return error


def _log_failure(done: Future[None], what: str) -> None:
    """On the writer's thread."""
    error = done.exception()
    if error is not None:
        _log.error("%s failed", what, exc_info=error)


def _as_our_own(error: BaseException) -> TaximeterError:
    """The error itself, or for a foreign one our own word, which tells a caller nothing of the inside."""
    if isinstance(error, TaximeterError):
        return error
    _log.error("the backend broke", exc_info=error)
    broken = InvariantBroken("the backend broke", hint="the server's log says how")
    broken.__cause__ = error
    return broken


def outcome_of_error(error: TaximeterError) -> Outcome:
    """Whether it was refused or failed, by what became of it."""
    if isinstance(error, UpstreamRefused):
        return Outcome.REFUSED if error.status is not None and error.status < 500 else Outcome.FAILED
    return Outcome.REFUSED if isinstance(error, (RequestError, CapacityError)) else Outcome.FAILED


def described(error: TaximeterError) -> str:
    """An error as receipts have it."""
    return f"{type(error).__name__}: {error.message}"
