"""From a question to what was seen of its answer, whatever happens between.

Owns: the stamps of one request, what in its stream is a token, and that every question ends in an observation: refused,
broken and cut answers too. Refuses to know: why it is asked, and what is concluded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from taximeter.clock import SYSTEM_CLOCK, Clock
from taximeter.errors import TaximeterError, UpstreamError
from taximeter.measurement.asking.observation import Observation
from taximeter.measurement.asking.wire import Question, Reply, Stale, Wire
from taximeter.providers.metering import tap_for
from taximeter.providers.sighting import Found, Seen, Tap
from taximeter.providers.sse import Framer
from taximeter.records import Attempt, Basis, Outcome, Phase, Request, Stopwatch, Usage, new_id
from taximeter.upstreams.secrets import concealed

_MOST_ATTEMPTS: Final = 3  # connections that had died while they were kept
_MOST_BODY_BYTES: Final = 16 * 1024 * 1024
_TOKENS, _END, _ERROR = Seen.TOKENS.value, Seen.END.value, Seen.ERROR.value
# Where a stream has its usage in every chunk, each chunk says how many tokens there were by then.
_COUNTS: Final = (b'"completion_tokens"', b'"output_tokens"')
RECEIPT_HEADER: Final = "x-taximeter-receipt"
_REQUEST_ID_HEADERS: Final = ("request-id", "x-request-id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One request that is over, for the books: `watch` has its phases, by the client's stamps."""

    request: Request
    observation: Observation
    watch: Stopwatch
    ended_ns: int
    found: Found | None
    tries: tuple[Attempt, ...]
    upstream_request_id: str | None


class Bookkeeper(Protocol):
    """Who writes requests down. Both calls return at once: no write may stand between two stamps."""

    def begun(self, request: Request, question: Question) -> None:
        """It is being sent."""
        ...

    def keep(self, sent: Sent) -> str | None:
        """It is over; called once for each. Gives the id of its receipt."""
        ...


@dataclass(slots=True)
class _Seen:
    """What was seen of an answer so far; stamps on the clock's own scale."""

    headers_ns: int | None = None
    first_event_ns: int | None = None
    last_ns: int = 0
    arrivals_ns: list[int] = field(default_factory=list[int])
    counts: list[int | None] = field(default_factory=list[int | None])  # tokens by then, as the server said
    status: int | None = None
    found: Found | None = None
    receipt_id: str | None = None
    upstream_request_id: str | None = None


class Asker:
    """Asks one server. `began_ns` is when the run began: observations count from it.

    `name` is what receipts call the server, `run` the run they belong to, `books` writes them. With
    `on_progress` each arrival is told as it comes (the stamp, since the run began). `keys` are what the server is shown
    and may repeat in its complaints: they are in no observation.
    """

    def __init__(
        self,
        wire: Wire,
        *,
        name: str,
        run: str,
        books: Bookkeeper | None = None,
        labels: Mapping[str, str] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        began_ns: int | None = None,
        on_progress: Callable[[int], object] | None = None,
        keys: Sequence[bytes] = (),
    ) -> None:
        self.began_ns = clock.monotonic_ns() if began_ns is None else began_ns
        self.run = run
        self._wire = wire
        self._name = name
        self._books = books
        self._labels = labels or {}
        self._clock = clock
        self._on_progress = on_progress
        self._keys = keys

    def now_ns(self) -> int:
        """Nanoseconds since the run began."""
        return self._clock.monotonic_ns() - self.began_ns

    async def ask(
        self,
        question: Question,
        *,
        scheduled_ns: int | None = None,
        on_end: Callable[[Observation], object] | None = None,
    ) -> Observation:
        """Send it now, and read the answer to its end. `scheduled_ns` is when it was due; None is now.

        Never raises for what the server does. Cancelling it hangs up; the request is on the books as aborted, and the
        cancellation goes on: `on_end` is given the observation then too.
        """
        request = self._request(question)
        watch = Stopwatch(request.received_ns)
        watch.enter(Phase.UPSTREAM, request.received_ns)
        if self._books is not None:
            self._books.begun(request, question)
        seen, tries = _Seen(last_ns=request.received_ns), list[Attempt]()
        outcome, error = Outcome.ABORTED, "the measurement was given up"
        try:
            outcome, error = await self._asked(question, request, seen, watch, tries)
            error = None if error is None else concealed(error.encode(), self._keys).decode("utf-8", "replace")
        finally:
            observation = self._observation(question, request, seen, outcome, error, scheduled_ns, len(tries))
            observation = self._kept(request, observation, watch, seen, tries)
            if on_end is not None:
                on_end(observation)
        return observation

    async def _asked(
        self, question: Question, request: Request, seen: _Seen, watch: Stopwatch, tries: list[Attempt]
    ) -> tuple[Outcome, str | None]:
        try:
            reply = await self._reply(question, request, tries)
            try:
                return await self._read(question, reply, seen, watch)
            finally:
                reply.close()
        except TaximeterError as broken:
            return Outcome.FAILED, broken.message

    async def _reply(self, question: Question, request: Request, tries: list[Attempt]) -> Reply:
        """A question is sent again only where a kept connection had died; its time counts from the first attempt."""
        while True:
            started_ns = self._clock.monotonic_ns()
            status: int | None = None
            error: str | None = "given up"
            try:
                reply = await self._wire.send(question)
                status, error = reply.status, None
            except UpstreamError as broken:
                error = broken.message
                if not isinstance(broken, Stale) or len(tries) + 1 >= _MOST_ATTEMPTS:
                    raise
            else:
                return reply
            finally:
                tries.append(
                    Attempt(
                        upstream=self._name,
                        started_ns=started_ns - request.received_ns,
                        duration_ns=self._clock.monotonic_ns() - started_ns,
                        status=status,
                        error=error,
                    )
                )

    async def _read(
        self, question: Question, reply: Reply, seen: _Seen, watch: Stopwatch
    ) -> tuple[Outcome, str | None]:
        seen.status, seen.headers_ns = reply.status, reply.begun.arrived_ns
        seen.last_ns = max(seen.last_ns, reply.begun.arrived_ns)
        seen.receipt_id = reply.header(RECEIPT_HEADER)
        seen.upstream_request_id = next((id_ for name in _REQUEST_ID_HEADERS if (id_ := reply.header(name))), None)
        media_type = (reply.header("content-type") or "").partition(";")[0].strip().lower()
        is_stream = reply.status == 200 and media_type == "text/event-stream"
        tap = tap_for(question.dialect, streamed=is_stream)
        try:
            if is_stream:
                await self._read_stream(reply, tap, seen, watch)
            else:
                await self._read_whole(reply, tap, seen)
        finally:
            seen.found = tap.found()
        found = seen.found
        if reply.status >= 400:
            refused = Outcome.REFUSED if reply.status < 500 else Outcome.FAILED
            return refused, found.error or f"status {reply.status}"
        if reply.status >= 300:
            return Outcome.FAILED, f"status {reply.status}"
        if found.error is not None:
            return Outcome.FAILED, found.error
        if not is_stream:
            return Outcome.FAILED, "the answer did not come as a stream of events: nothing can be timed"
        if not (found.is_whole or found.finish_reasons):
            return Outcome.FAILED, "the answer broke off before its end"
        return Outcome.COMPLETED, None

    async def _read_stream(self, reply: Reply, tap: Tap, seen: _Seen, watch: Stopwatch) -> None:
        framer = Framer()
        has_ended = False
        said = 0
        while not has_ended and (read := await reply.read()) is not None:
            at_ns = seen.last_ns = max(seen.last_ns, read.arrived_ns)
            for frame in framer.feed(read.data):
                if not frame.data:
                    continue
                kind = tap.event(frame.name, frame.data).value
                if seen.first_event_ns is None:
                    seen.first_event_ns = at_ns
                    watch.chunk(at_ns)
                has_ended = has_ended or bool(kind & (_END | _ERROR))
                by_now = tap.found().usage.output_tokens if any(count in frame.data for count in _COUNTS) else None
                # A count that grew is a token that came, even where a parser holds its text back.
                has_grown = by_now is not None and by_now > said and not kind & Seen.USAGE_ONLY.value
                if kind & _TOKENS or (has_grown and not has_ended and self._is_held_back(tap, seen)):
                    seen.arrivals_ns.append(at_ns)
                    seen.counts.append(by_now)
                    watch.tokens(at_ns, answer=bool(kind & Seen.ANSWER.value))
                    if self._on_progress is not None:
                        self._on_progress(at_ns - self.began_ns)
                said = max(said, by_now or 0)
        if (rest := framer.rest()) is not None:  # some streams lack their last empty line
            tap.event(rest.name, rest.data)

    async def _read_whole(self, reply: Reply, tap: Tap, seen: _Seen) -> None:
        body = bytearray()
        while (read := await reply.read()) is not None:
            seen.last_ns = max(seen.last_ns, read.arrived_ns)
            body += read.data
            if len(body) > _MOST_BODY_BYTES:
                raise UpstreamError("the answer is not a stream, and longer than any answer that could be measured")
        tap.whole(bytes(body))

    @staticmethod
    def _is_held_back(tap: Tap, seen: _Seen) -> bool:
        """Whether a count that grew without any text stands for a token now. In the last chunk, which has a finish
        reason, it stands for those that were seen before."""
        return not tap.found().finish_reasons or not seen.arrivals_ns

    def _observation(
        self,
        question: Question,
        request: Request,
        seen: _Seen,
        outcome: Outcome,
        error: str | None,
        scheduled_ns: int | None,
        attempts: int,
    ) -> Observation:
        began_ns = self.began_ns
        usage = Usage.unknown(error or "nobody said") if seen.found is None else seen.found.usage
        is_counted = outcome is Outcome.COMPLETED and usage.basis is not Basis.DERIVED
        sent_ns = request.received_ns - began_ns
        return Observation(
            id=request.id,
            shape=question.shape,
            scheduled_ns=sent_ns if scheduled_ns is None else scheduled_ns,
            sent_ns=sent_ns,
            headers_ns=None if seen.headers_ns is None else seen.headers_ns - began_ns,
            first_event_ns=None if seen.first_event_ns is None else seen.first_event_ns - began_ns,
            arrivals_ns=tuple(at_ns - began_ns for at_ns in seen.arrivals_ns),
            arrival_tokens=_by_arrival(seen.counts, usage.output_tokens if is_counted else None),
            ended_ns=self._clock.monotonic_ns() - began_ns,
            outcome=outcome,
            status=seen.status,
            error=error,
            attempts=max(1, attempts),
            usage=usage,
            asked_prompt_tokens=question.asked_prompt_tokens,
            asked_output_tokens=question.asked_output_tokens,
            counted_prompt_tokens=question.counted_prompt_tokens,
            finish_reasons=() if seen.found is None else seen.found.finish_reasons,
            reported_ns={} if seen.found is None else seen.found.spent_ns,
            receipt_id=seen.receipt_id,
        )

    def _kept(
        self, request: Request, observation: Observation, watch: Stopwatch, seen: _Seen, tries: list[Attempt]
    ) -> Observation:
        if self._books is None:
            return observation
        sent = Sent(
            request=request,
            observation=observation,
            watch=watch,
            ended_ns=observation.ended_ns + self.began_ns,
            found=seen.found,
            tries=tuple(tries),
            upstream_request_id=seen.upstream_request_id,
        )
        receipt_id = self._books.keep(sent)
        return observation if receipt_id is None else replace(observation, receipt_id=receipt_id)

    def _request(self, question: Question) -> Request:
        received_at = self._clock.utc_now()
        return Request(
            id=new_id("req", received_at),
            received_at=received_at,
            received_ns=self._clock.monotonic_ns(),
            dialect=question.dialect,
            model=question.model,
            max_output_tokens=question.asked_output_tokens,
            stream=True,
            prompt_fingerprint=question.prompt_fingerprint,
            run=self.run,
            labels={**self._labels, "shape": question.shape},
        )


def _by_arrival(counts: list[int | None], output_tokens: int | None) -> tuple[int, ...] | None:
    """How many tokens each event brought: by the server's running count where it has one, else one each where there
    are as many events as tokens. None where that is not known."""
    if counts and None not in counts:
        known = [count for count in counts if count is not None]
        brought = [later - earlier for earlier, later in zip([0, *known], known, strict=False)]
        return tuple(brought) if min(brought) >= 0 else None
    if output_tokens is not None and output_tokens == len(counts):
        return (1,) * len(counts)
    return None
