"""An answer that passes through: a request to an upstream of its own dialect, and its bytes on their way back.

Owns: the stopwatch of such a request, what is held back until its receipt is durable, and what becomes of failures and
hang-ups. Refuses to know: HTTP towards the client, dialects (a `Tap` looks), who is tried (the dispatcher).

Like an `Exchange` it runs to its receipt by itself, and whoever reads it only watches: a reader that is slow or gone
changes neither times nor outcome. Bytes are not changed; of a stream the last event waits for the receipt, of a body
its last byte, and events that the client did not ask for are left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from taximeter.errors import InvariantBroken, TaximeterError, UpstreamError
from taximeter.gateway.books import done_in_time, when_done
from taximeter.gateway.relay import Relay, ShuttingDown, described, outcome_of_error
from taximeter.gateway.reply import head_of_body
from taximeter.providers.sighting import Found, Seen, Tap
from taximeter.providers.sse import Framer, looks_like_events
from taximeter.records import Outcome, Phase, Receipt, Request, Served, Stopwatch
from taximeter.upstreams.config import Route
from taximeter.upstreams.dispatch import AFTER_THE_END_S, Dispatcher, Outgoing, Trail, phases_of
from taximeter.upstreams.headers import Headers
from taximeter.upstreams.secrets import concealed, keys_shown
from taximeter.upstreams.served import served, why_no_answer

if TYPE_CHECKING:
    from taximeter.gateway.ahead import Ahead
    from taximeter.upstreams.incoming import Incoming, Read

_log = logging.getLogger(__name__)

_LARGEST_BODY_BYTES: Final = 64 * 1024 * 1024  # what is longer passes unread
_TELLING_BYTES: Final = 16  # at the beginning of a body: whether it is events shows in fewer
_MOST_UNREAD_BYTES: Final = 8 * 1024 * 1024  # of a stream whose client is slow; then its upstream waits too
# As plain integers: to ask a flag four questions takes as long as to read the event.
_TOKENS, _ANSWER, _ERROR = Seen.TOKENS.value, Seen.ANSWER.value, Seen.ERROR.value
_END, _USAGE_ONLY = Seen.END.value, Seen.USAGE_ONLY.value
_BODILESS: Final = frozenset({204, 304})
# A note takes as long as asking does, so it is written while the upstream is at work; an answer that is there sooner
# goes first. Until then the ledger expects the request: of a process that was killed it would be counted as lost.
_NOTE_AFTER_S: Final = 0.003


@dataclass(frozen=True, slots=True)
class Head:
    """How an answer begins."""

    status: int
    headers: Headers


Piece = Head | bytes


@dataclass(frozen=True, slots=True)
class _End:
    """What a passage came to. `error` is for the receipt; its reader is told it too unless it `was_passed_on`: then the
    reader has the provider's own words."""

    outcome: Outcome
    error: TaximeterError | None = None
    was_passed_on: bool = False


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
        ahead: Ahead | None = None,
    ) -> None:
        """`tap` makes what looks at the answer, once it is known whether that is a stream. `ahead` is there when it was
        asked before this."""
        self.request = request
        self.receipt_id = receipt_id
        self._relay = relay
        self._dispatcher = dispatcher
        self._route = route
        self._outgoing = outgoing
        self._make_tap = tap
        self._tap: Tap | None = None
        self._found: Found | None = None
        self._strips_usage = strips_usage
        self._watch = Stopwatch(request.received_ns)
        self._ahead = ahead
        if ahead is None:
            relay.expect(request.id)
        self._is_noted = False
        self._noting: asyncio.TimerHandle | None = None
        self._begun: Future[None] | None = None  # the note that it began, where there is one
        self._trail = Trail()
        self._incoming: Incoming | None = None
        self._last_arrival_ns = request.received_ns

        # Towards the reader. `None` is the end.
        self._pieces: deque[Piece | TaximeterError | None] = deque()
        self._has_pieces = asyncio.Event()
        self._unread_bytes = 0
        self._was_read = asyncio.Event()
        self._head: Head | None = None  # of a stream, until the ledger has noted that it began
        self._held: list[Piece] = []  # until the receipt is durable

        self._end: _End | None = None  # known before anybody let go
        self._is_let_go = False
        self._is_whole = False  # every choice had ended before that
        self._told: TaximeterError | None = None
        self._stop: asyncio.TimerHandle | None = None
        self._is_under_way = False
        self._may_stop = True
        self._was_cut = False
        self._receipt: Receipt | None = None
        self._run = asyncio.create_task(self._to_the_end(), name=f"passage {request.id}")
        relay.follow(self)

    @property
    def receipt(self) -> Receipt:
        """The receipt. Raises InvariantBroken before the passage has ended."""
        if self._receipt is None:
            raise InvariantBroken(f"request {self.request.id} has no receipt")
        return self._receipt

    @property
    def is_over(self) -> bool:
        """Whether nothing follows what was read last, as far as is known."""
        return bool(self._pieces) and self._pieces[0] is None

    @property
    def was_cut(self) -> bool:
        """Whether what was given is not all of the answer, and nobody was told so: it must not look whole."""
        return self._was_cut

    async def __aiter__(self) -> AsyncIterator[Piece]:
        while True:
            while not self._pieces:
                self._has_pieces.clear()
                await self._has_pieces.wait()
            piece = self._pieces.popleft()
            if piece is None:
                return
            if isinstance(piece, TaximeterError):
                raise piece
            if isinstance(piece, bytes):
                self._unread_bytes -= len(piece)
                self._was_read.set()
            yield piece

    def let_go(self, error: TaximeterError | None = None) -> None:
        """Nobody wants the rest. Whoever reads gets `error`, if there is one and something was left to generate. An
        answer that has ended keeps its outcome, and so does one of which every choice has: all that may follow is what
        it took. For that an upstream may be let run on for a while."""
        if self._is_let_go or self._run.done() or self._was_shown_ahead():
            return
        self._note_that_nobody_waits(error)
        self._trail.is_wanted = False
        self._was_read.set()
        drain_s = AFTER_THE_END_S if self._is_whole else 0.0
        if error is None and self._end is None:
            tried = self._route.upstreams if self._incoming is None else (self._incoming.upstream,)
            drain_s = max(drain_s, *(upstream.drain_s for upstream in tried))
        self._stop_reading_in(drain_s)

    async def abort(self, error: TaximeterError | None = None, *, patience_s: float | None = None) -> None:
        """Stop, and return when the receipt is durable, or after `patience_s`."""
        self.let_go(error)
        self._stop_reading_in(AFTER_THE_END_S if self._is_whole else 0.0)
        await asyncio.wait([self._run], timeout=patience_s)

    def _was_shown_ahead(self) -> bool:
        """Whether the client has all but the last byte, from before this read any. If not, it is this that shows it."""
        return self._ahead is not None and self._ahead.hold_back()

    def _note_that_nobody_waits(self, error: TaximeterError | None) -> None:
        self._is_let_go, self._told = True, error
        if self._end is None and self._tap is not None:
            found = self._tap.found()
            self._is_whole = found.error is None and self._has_ends(found)

    def _has_ends(self, found: Found) -> bool:
        """Whether every choice has ended for a reason of its own."""
        return len(found.finish_reasons) >= self.request.sampling.choices

    def _stop_reading_in(self, pause_s: float) -> None:
        if self._stop is not None:
            self._stop.cancel()
        self._stop = asyncio.get_running_loop().call_later(pause_s, self._stop_reading)

    def _stop_reading(self) -> None:
        if not self._is_under_way:  # a task that is cancelled before it has begun never begins: then who writes it up?
            asyncio.get_running_loop().call_soon(self._stop_reading)
        elif self._may_stop and not (self._run.done() or self._was_shown_ahead()):
            self._run.cancel()

    async def _to_the_end(self) -> None:
        self._is_under_way = True
        self._noting = asyncio.get_running_loop().call_later(_NOTE_AFTER_S, self._note)
        try:
            end = await self._to_an_end()
            self._may_stop = False
            is_short = end.outcome is Outcome.ABORTED or (self._is_whole and not self._held)
            self._was_cut = is_short and end.error is None
            try:
                await self._record(end)
            except Exception:  # noqa: BLE001 - whatever it is, it has a receipt
                _log.exception("request %s is LOST: it could not be brought to its receipt", self.request.id)
                self._relay.receipts_lost += 1
            finally:
                self._relay.forget(self)
                self._give(*self._held, *([] if end.error is None or end.was_passed_on else [end.error]))
            await self._see_off()
        finally:
            self._close()
            self._give(None)

    def _note(self) -> None:
        """Have the ledger note that it began: at the latest before anybody sees anything of a stream."""
        if not self._is_noted:
            self._is_noted = True
            if self._noting is not None:
                self._noting.cancel()
            self._begun = self._relay.begin(self.request, self.receipt_id)

    async def _to_an_end(self) -> _End:
        try:
            end = await self._pass()
        except asyncio.CancelledError:
            if not self._is_let_go:  # the event loop is going down
                self._note_that_nobody_waits(ShuttingDown())
            end = self._end or self._left_off()
        except TaximeterError as broken:
            end = _End(outcome_of_error(broken), broken)
        except Exception:  # noqa: BLE001 - whatever it is, it has a receipt
            _log.exception("request %s broke the gateway", self.request.id)
            end = _End(Outcome.FAILED, InvariantBroken("the gateway broke", hint="the server's log says how"))
        self._head = None  # what has not begun by now has its own status for what became of it
        return self._left_off() if self._is_let_go and self._end is None else end

    def _left_off(self) -> _End:
        """What it came to if nobody waited for its end."""
        return _End(Outcome.COMPLETED) if self._is_whole else _End(Outcome.ABORTED, self._told)

    async def _pass(self) -> _End:
        try:
            incoming = await self._dispatcher.reach(
                self._route.upstreams, self._outgoing, self._trail, None if self._ahead is None else self._ahead.asked
            )
            self._incoming = incoming
        finally:
            is_answered = self._incoming is not None
            for phase, at_ns in phases_of(self._trail.tries, self.request.received_ns, is_answered=is_answered):
                self._watch.enter(phase, at_ns)
        self._note_arrival(incoming.begun)
        media_type = (incoming.header("content-type") or "").partition(";")[0].strip().lower()
        if incoming.packed_as is not None:
            return await self._unread(incoming, b"")
        if media_type == "text/event-stream" and incoming.status == 200:
            return await self._stream(incoming)
        return await self._whole(incoming)

    async def _stream(self, incoming: Incoming, begun: Read | None = None) -> _End:
        """An answer event by event; what was read of it already has `begun` it."""
        tap = self._tap = self._make_tap(True)
        framer = Framer()
        self._head = Head(incoming.status, incoming.headers)
        self._note()
        if self._begun is None:
            self._show_head()
        else:
            when_done(self._begun, self._show_head)
        failed = False
        while (read := begun or await incoming.read()) is not None:
            begun = None
            self._note_arrival(read)
            passed: list[bytes] = []
            for frame in framer.feed(read.data):
                if self._held:  # behind the end nothing counts, however the bytes were cut
                    self._held.append(frame.raw)
                    continue
                self._watch.chunk(read.arrived_ns)
                seen = tap.event(frame.name, frame.data).value
                if seen & _TOKENS:
                    self._relay.note_tokens(self.request)
                    self._watch.tokens(read.arrived_ns, answer=bool(seen & _ANSWER))
                failed = failed or bool(seen & _ERROR)
                if seen & _END:
                    self._held.append(frame.raw)
                elif not (self._strips_usage and seen & _USAGE_ONLY):
                    passed.append(self._without_keys(frame.raw) if seen & _ERROR else frame.raw)
            await self._forward(b"".join(passed))
            if self._held:
                break
        else:
            await self._forward(b"")
        if (rest := framer.rest()) is not None:  # some streams lack their last empty line
            if not self._held:
                tap.event(rest.name, rest.data)
            self._held.append(rest.raw)
        found = self._found = tap.found()
        if failed or found.error is not None:
            return self._ended(_End(Outcome.FAILED))
        # Some streams end without their last event; that every choice ended for a reason of its own is enough.
        if not (found.is_whole or self._has_ends(found)):
            raise UpstreamError(f"{incoming.upstream.name} ended before its answer did")
        return self._ended(_End(Outcome.COMPLETED))

    async def _whole(self, incoming: Incoming) -> _End:
        pieces: list[bytes] = []
        received_bytes = 0
        while (read := await incoming.read()) is not None:
            if received_bytes < _TELLING_BYTES and self.request.stream and incoming.status == 200:
                begun = b"".join((*pieces, read.data))
                if looks_like_events(begun):  # whatever it says that it is
                    return await self._stream(incoming, replace(read, data=begun))
            self._note_arrival(read)
            pieces.append(read.data)
            received_bytes += len(read.data)
            if received_bytes > _LARGEST_BODY_BYTES:
                return await self._unread(incoming, b"".join(pieces))
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        # From here on nobody comes in time to change the outcome.
        in_time, self._may_stop = not self._is_let_go, False
        await self._show_all_but_the_last_byte(incoming, body)
        tap = self._tap = self._make_tap(False)
        tap.whole(body)
        outcome = _outcome_of_status(incoming.status)
        found = self._found = tap.found()
        if outcome is not Outcome.COMPLETED or found.error is not None:
            end = _End(outcome if incoming.status >= 300 else Outcome.FAILED)
        elif not found.is_whole:
            what = "nothing" if not body else "no JSON"
            error = UpstreamError(f"{incoming.upstream.name} answered with status {incoming.status} and {what}")
            end = _End(Outcome.FAILED, error, was_passed_on=True)
        else:
            end = _End(outcome)
        return self._ended(end, in_time=in_time)

    async def _show_all_but_the_last_byte(self, incoming: Incoming, body: bytes) -> None:
        """A body that is here as a whole. Only its last byte waits for the receipt: what is made of the answer takes no
        time from its beginning."""
        if self._was_shown_ahead():
            self._held.append(body[-1:])
            return
        if incoming.status >= 300:
            body = self._without_keys(body)
        bodiless = incoming.status in _BODILESS
        head = Head(incoming.status, incoming.headers if bodiless else head_of_body(incoming.headers, body))
        if not body or self._is_let_go:  # without a byte a head is all of an answer
            self._held += [head, body]
            return
        self._held.append(body[-1:])
        self._give(head, body[:-1])
        for _ in range(2):  # whoever reads is woken, and then the event loop writes what it was given
            await asyncio.sleep(0)

    async def _unread(self, incoming: Incoming, begun: bytes) -> _End:
        self._tap = None
        self._note()
        if self._begun is not None:
            await done_in_time(self._begun)
        self._give(Head(incoming.status, incoming.headers))
        await self._forward(begun)
        async for read in incoming:
            self._note_arrival(read)
            await self._forward(read.data)
        return self._ended(_End(_outcome_of_status(incoming.status)))

    def _ended(self, end: _End, *, in_time: bool = False) -> _End:
        """It is known what the answer came to: who lets go now, does so too late to change that. `in_time` is whether
        that was so before."""
        if in_time or not self._is_let_go:
            self._end = end
        return end

    def _show_head(self) -> None:
        """Nobody sees anything of a stream that the ledger would forget if the process died now."""
        if self._head is not None:
            self._give(self._head)
            self._head = None

    async def _forward(self, data: bytes) -> None:
        if self._head is not None and self._begun is not None:
            await done_in_time(self._begun)
            self._show_head()
        if not data or (self._is_let_go and self._told is None):
            return
        self._unread_bytes += len(data)
        self._give(data)
        while self._unread_bytes > _MOST_UNREAD_BYTES and not self._is_let_go:
            self._was_read.clear()
            await self._was_read.wait()

    def _give(self, *pieces: Piece | TaximeterError | None) -> None:
        self._pieces.extend(pieces)
        self._has_pieces.set()

    async def _see_off(self) -> None:
        """Let the answer end after its last event, with what may come yet, so that its connection serves again."""
        incoming = self._incoming
        if incoming is None or self._end is None or incoming.is_over or self._is_let_go:
            return
        self._may_stop = True
        try:
            async with asyncio.timeout(AFTER_THE_END_S):
                while (read := await incoming.read()) is not None:
                    self._give(read.data)
        except (TimeoutError, UpstreamError, asyncio.CancelledError):
            pass  # the answer is whole all the same

    def _close(self) -> None:
        if self._stop is not None:
            self._stop.cancel()
        if self._incoming is not None:
            self._incoming.close()
        elif self._ahead is not None:
            self._ahead.asked.close()

    def _note_arrival(self, read: Read) -> None:
        """What waited for us to read it, waited in the gateway."""
        self._last_arrival_ns = read.arrived_ns
        if read.arrived_ns < read.read_ns:
            self._watch.enter(Phase.GATEWAY, read.arrived_ns)
            self._watch.enter(Phase.UPSTREAM, read.read_ns)

    async def _record(self, end: _End) -> None:
        self._note()
        if self._end is not None:  # else it was waited for until now
            self._watch.enter(Phase.GATEWAY, self._last_arrival_ns)
        found = self._found
        if found is None and self._tap is not None:  # it broke off
            found = self._tap.found()
        told = described(end.error) if end.error is not None else None if found is None else found.error
        self._receipt = await self._relay.record(
            self.request,
            self.receipt_id,
            self._watch,
            end.outcome,
            served=self._served(found, end.outcome),
            finish_reasons=() if found is None else found.finish_reasons,
            error=None if told is None else self._without_keys(told.encode()).decode(),
            unmeasured_reason=self._why_unmeasured(end),
        )

    def _served(self, found: Found | None, outcome: Outcome) -> Served:
        has_usage = found is not None and self._incoming is not None and self._incoming.status < 300
        return served(
            self._route,
            self.request,
            self._trail,
            self._incoming,
            found,
            at_ns=self._last_arrival_ns,
            usage=found.usage if found is not None and has_usage else None,
            spent_ns=found.spent_ns if found is not None and outcome is Outcome.COMPLETED else {},
        )

    def _why_unmeasured(self, end: _End) -> str | None:
        incoming = self._incoming
        if incoming is None or incoming.status >= 300:
            return why_no_answer(incoming)
        if self._tap is not None:
            return None
        if incoming.packed_as is not None:
            return f"the answer was not looked at: it is packed as {incoming.packed_as!r}, which was not asked for"
        return "the answer was not looked at: it was too long" if end is self._end else "it broke off"

    def _without_keys(self, data: bytes) -> bytes:
        if self._incoming is None:
            return data
        return concealed(data, keys_shown(self._incoming.upstream.key, self._outgoing.headers))


def _outcome_of_status(status: int) -> Outcome:
    if status < 300:
        return Outcome.COMPLETED
    return Outcome.REFUSED if 400 <= status < 500 else Outcome.FAILED
