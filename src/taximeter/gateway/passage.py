"""An answer that passes through: a request to an upstream of its own dialect, and its bytes on their way back.

Owns: the stopwatch of such a request, what is held back until its receipt is durable, and what becomes of failures and
hang-ups. Refuses to know: HTTP towards the client, dialects (a `Tap` looks), who is tried (the dispatcher).

Like an `Exchange` it runs to its receipt by itself, and whoever reads it only watches: a reader that is slow or gone
changes neither times nor outcome. Bytes are not changed; of a stream the last event waits for the receipt, and events
that the client did not ask for are left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from taximeter.errors import CapacityError, InvariantBroken, RequestError, TaximeterError, UpstreamError
from taximeter.gateway.relay import Relay, ShuttingDown, described, done_in_time
from taximeter.providers.sighting import Found, Seen, Tap
from taximeter.providers.sse import Framer
from taximeter.records import Attempt, Outcome, Phase, Receipt, Request, Served, Stopwatch
from taximeter.upstreams.config import Route
from taximeter.upstreams.dispatch import Dispatcher, NobodyAnswers, Outgoing
from taximeter.upstreams.headers import Headers

if TYPE_CHECKING:
    from taximeter.upstreams.client import Incoming, Read

_log = logging.getLogger(__name__)

_LARGEST_BODY_BYTES: Final = 64 * 1024 * 1024  # what is longer passes unread
_MOST_UNREAD_BYTES: Final = 8 * 1024 * 1024  # of a stream whose client is slow; then its upstream waits too
_AFTER_THE_END_S: Final = 0.25  # how long a connection may take to end once its stream has
_REQUEST_ID_HEADERS: Final = ("request-id", "x-request-id")


@dataclass(frozen=True, slots=True)
class Head:
    """How an answer begins."""

    status: int
    headers: Headers


Piece = Head | bytes


class Passage:
    """One request and its answer. Read it once, with `async for`: a `Head`, then bytes. It ends when the receipt is
    durable. Reading raises a `TaximeterError` when nobody answered or the answer broke; that has a receipt too."""

    def __init__(
        self,
        relay: Relay,
        dispatcher: Dispatcher,
        route: Route,
        outgoing: Outgoing,
        request: Request,
        receipt_id: str,
        *,
        tap: Callable[[bool], Tap],
        strips_usage: bool,
    ) -> None:
        """`tap` makes what looks at the answer, once it is known whether that is a stream."""
        self.request = request
        self.receipt_id = receipt_id
        self._relay = relay
        self._dispatcher = dispatcher
        self._route = route
        self._outgoing = outgoing
        self._make_tap = tap
        self._tap: Tap | None = None
        self._strips_usage = strips_usage
        self._watch = Stopwatch(request.received_ns)
        self._begun = relay.begin(request, receipt_id)
        self._pieces: asyncio.Queue[Piece | TaximeterError | None] = asyncio.Queue()
        self._held: list[Piece] = []
        self._unread_bytes = 0
        self._was_read = asyncio.Event()
        self._incoming: Incoming | None = None
        self._tries: tuple[Attempt, ...] = ()
        self._is_let_go = False
        self._is_whole = False  # and was so before anybody let go
        self._is_recording = False
        self._told: TaximeterError | None = None
        self._receipt: Receipt | None = None
        self._last_arrival_ns = request.received_ns
        self._run = asyncio.create_task(self._to_the_end(), name=f"passage {request.id}")
        relay.follow(self)

    @property
    def receipt(self) -> Receipt:
        """The receipt. Raises InvariantBroken before the passage has ended."""
        if self._receipt is None:
            raise InvariantBroken(f"request {self.request.id} has no receipt")
        return self._receipt

    async def __aiter__(self) -> AsyncIterator[Piece]:
        while (piece := await self._pieces.get()) is not None:
            if isinstance(piece, TaximeterError):
                raise piece
            if isinstance(piece, bytes):
                self._unread_bytes -= len(piece)
                self._was_read.set()
            yield piece

    def let_go(self, error: TaximeterError | None = None) -> None:
        """Nobody wants the rest. Whoever reads gets `error`, if there is one. An answer that has ended keeps its
        outcome; an upstream may be let run on for a while, to say what it took."""
        if self._is_let_go or self._run.done():
            return
        self._is_let_go = True
        self._told = error
        self._was_read.set()
        drain_s = 0.0 if error is not None or self._incoming is None else self._incoming.upstream.drain_s
        asyncio.get_running_loop().call_later(drain_s, self._stop_reading)

    async def abort(self, error: TaximeterError | None = None, *, patience_s: float | None = None) -> None:
        """Stop, and return when the receipt is durable, or after `patience_s`."""
        self.let_go(error)
        self._stop_reading()
        await asyncio.wait([self._run], timeout=patience_s)

    def _stop_reading(self) -> None:
        if not self._is_recording:
            self._run.cancel()

    async def _to_the_end(self) -> None:
        outcome: Outcome
        error: TaximeterError | None = None
        try:
            outcome, error = await self._pass()
        except asyncio.CancelledError:
            outcome = Outcome.COMPLETED
            if not self._is_let_go:  # the event loop is going down
                self._is_let_go, self._told = True, ShuttingDown()
        except TaximeterError as broken:
            outcome, error = _outcome_of(broken), broken
        except Exception:  # noqa: BLE001 - whatever it is, it has a receipt
            _log.exception("request %s broke the gateway", self.request.id)
            outcome, error = Outcome.FAILED, InvariantBroken("the gateway broke", hint="the server's log says how")
        finally:
            if self._incoming is not None:
                self._incoming.close()
        if self._is_let_go and not self._is_whole:
            outcome, error = Outcome.ABORTED, self._told
        self._is_recording = True
        try:
            await self._record(outcome, error)
        except Exception:  # noqa: BLE001 - whatever it is, it has a receipt
            _log.exception("request %s is LOST: it could not be brought to its receipt", self.request.id)
            self._relay.receipts_lost += 1
        finally:
            self._relay.forget(self)
            for piece in (*self._held, *([error] if error else []), None):
                self._pieces.put_nowait(piece)

    async def _pass(self) -> tuple[Outcome, TaximeterError | None]:
        try:
            reached = await self._dispatcher.reach(self._route.upstreams, self._outgoing)
        except NobodyAnswers as error:
            self._tries = error.tries
            self._stamp_tries(is_answered=False)
            raise
        self._incoming = incoming = reached.incoming
        self._tries = reached.tries
        self._stamp_tries(is_answered=True)
        self._note_arrival(incoming.begun)
        media_type = (incoming.header("content-type") or "").partition(";")[0].strip().lower()
        if media_type == "text/event-stream" and incoming.status == 200:
            return await self._stream(incoming)
        return await self._whole(incoming)

    async def _stream(self, incoming: Incoming) -> tuple[Outcome, TaximeterError | None]:
        tap = self._tap = self._make_tap(True)
        framer = Framer()
        if self._begun is not None:
            # Nobody sees a token of a request that the ledger would forget if the process died now.
            await done_in_time(self._begun)
        self._pieces.put_nowait(Head(incoming.status, incoming.headers))
        ended = failed = False
        while not ended and (read := await incoming.read()) is not None:
            self._note_arrival(read)
            passed = bytearray()
            for frame in framer.feed(read.data):
                seen = tap.event(frame.name, frame.data)
                if seen & Seen.TOKENS:
                    self._relay.note_tokens(self.request)
                    self._watch.tokens(read.arrived_ns, answer=bool(seen & Seen.ANSWER))
                failed |= bool(seen & Seen.ERROR)
                if ended or seen & Seen.END:
                    self._is_whole = self._is_whole or not self._is_let_go
                    ended = True
                    self._held.append(frame.raw)
                elif not (self._strips_usage and seen & Seen.USAGE_ONLY):
                    passed += frame.raw
            await self._forward(bytes(passed))
        if ended:
            await self._see_off(incoming)
        if (rest := framer.rest()) is not None:
            tap.event(rest.name, rest.data)  # some streams lack their last empty line
            self._held.append(rest.raw)
        found = tap.found()
        if failed or found.error is not None:
            return Outcome.FAILED, None  # the client has read it in the provider's own words
        if not ended and not found.is_whole:  # some streams end without saying so
            return Outcome.FAILED, UpstreamError(f"{incoming.upstream.name} ended before its answer did")
        return Outcome.COMPLETED, None

    async def _whole(self, incoming: Incoming) -> tuple[Outcome, TaximeterError | None]:
        body = bytearray()
        async for read in incoming:
            self._note_arrival(read)
            body += read.data
            if len(body) > _LARGEST_BODY_BYTES:
                return await self._unread(incoming, bytes(body))
        tap = self._tap = self._make_tap(False)
        tap.whole(bytes(body))
        self._is_whole = not self._is_let_go
        self._held += [Head(incoming.status, incoming.headers), bytes(body)]
        return _outcome_of_status(incoming.status), None

    async def _unread(self, incoming: Incoming, begun: bytes) -> tuple[Outcome, TaximeterError | None]:
        self._pieces.put_nowait(Head(incoming.status, incoming.headers))
        await self._forward(begun)
        async for read in incoming:
            self._note_arrival(read)
            await self._forward(read.data)
        return _outcome_of_status(incoming.status), None

    async def _forward(self, data: bytes) -> None:
        if not data or self._is_let_go:
            return
        self._unread_bytes += len(data)
        self._pieces.put_nowait(data)
        while self._unread_bytes > _MOST_UNREAD_BYTES and not self._is_let_go:
            self._was_read.clear()
            await self._was_read.wait()

    async def _see_off(self, incoming: Incoming) -> None:
        """Let the connection end, so that it can serve the next request."""
        try:
            async with asyncio.timeout(_AFTER_THE_END_S):
                while (read := await incoming.read()) is not None:
                    self._held.append(read.data)
        except (TimeoutError, UpstreamError):
            pass  # the answer is whole all the same

    def _note_arrival(self, read: Read) -> None:
        """What waited for us to read it, waited in the gateway."""
        self._last_arrival_ns = read.arrived_ns
        if read.arrived_ns < read.read_ns:
            self._watch.enter(Phase.GATEWAY, read.arrived_ns)
            self._watch.enter(Phase.UPSTREAM, read.read_ns)

    def _stamp_tries(self, *, is_answered: bool) -> None:
        for attempt in self._tries:
            started_ns = self.request.received_ns + attempt.started_ns
            self._watch.enter(Phase.UPSTREAM, started_ns)
            if attempt is not self._tries[-1] or not is_answered:
                self._watch.enter(Phase.GATEWAY, started_ns + attempt.duration_ns)

    async def _record(self, outcome: Outcome, error: TaximeterError | None) -> None:
        if self._is_whole:  # else it was waited for until now
            self._watch.enter(Phase.GATEWAY, self._last_arrival_ns)
        found = None if self._tap is None else self._tap.found()
        told = described(error) if error is not None else None if found is None else found.error
        self._receipt = await self._relay.record(
            self.request,
            self.receipt_id,
            self._watch,
            outcome,
            served=self._served(found, outcome),
            finish_reasons=() if found is None else found.finish_reasons,
            error=told,
            unmeasured_reason=self._why_unmeasured(found, outcome),
        )

    def _served(self, found: Found | None, outcome: Outcome) -> Served:
        incoming = self._incoming
        upstream = None if incoming is None else incoming.upstream
        has_usage = found is not None and (incoming is None or incoming.status < 300)
        ids = [incoming.header(name) for name in _REQUEST_ID_HEADERS] if incoming is not None else []
        return Served(
            at_ns=self._last_arrival_ns,
            usage=found.usage if found is not None and has_usage else None,
            work=None,
            served_by=upstream.name if upstream is not None else self._route.upstreams[0].name,
            model=(found.model if found else None) or self._route.send_as or self.request.model,
            terms=found.terms if found else None,
            upstream_request_id=next((each[:200] for each in ids if each), None),
            tries=self._tries,
            spent_ns=found.spent_ns if found and outcome is Outcome.COMPLETED else {},
        )

    def _why_unmeasured(self, found: Found | None, outcome: Outcome) -> str | None:
        if self._incoming is None:
            return "no upstream began to answer"
        if self._incoming.status >= 300:
            return f"{self._incoming.upstream.name} answered with status {self._incoming.status}"
        if found is None:
            return "the answer was not looked at: it was too long" if outcome is Outcome.COMPLETED else "it broke off"
        return None


def _outcome_of_status(status: int) -> Outcome:
    if status < 400:
        return Outcome.COMPLETED
    return Outcome.FAILED if status >= 500 or status in (408, 429) else Outcome.REFUSED


def _outcome_of(error: TaximeterError) -> Outcome:
    return Outcome.REFUSED if isinstance(error, (RequestError, CapacityError)) else Outcome.FAILED
