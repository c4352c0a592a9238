"""An upstream of another dialect, as a `Backend`: asked in its own words, and read as events.

Owns: which words each family has, and what its refusals are called here. Refuses to know: who asked, and in which
dialect. Where both ends speak the same, nothing is translated: that is the gateway's passage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from taximeter.clock import Clock
from taximeter.errors import CapacityError, RequestError, TaximeterError, UpstreamError
from taximeter.providers import anthropic, openai
from taximeter.providers.metering import tap_for
from taximeter.providers.reading import AnswerReader
from taximeter.providers.sighting import Tap
from taximeter.providers.sse import Framer
from taximeter.records import (
    Attempt,
    ChoiceFinished,
    Dialect,
    Event,
    Phase,
    PhaseEntered,
    Prompt,
    Request,
    Served,
    Usage,
)
from taximeter.upstreams.config import Family, Route
from taximeter.upstreams.dispatch import Dispatcher, NobodyAnswers, Outgoing
from taximeter.upstreams.headers import Headers

if TYPE_CHECKING:
    from taximeter.upstreams.client import Incoming

_ANTHROPIC_VERSION: Final = b"2023-06-01"
_JSON: Final[Headers] = [(b"content-type", b"application/json"), (b"accept", b"text/event-stream")]
_MOST_REFUSAL_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    """How a family is asked for an answer to a conversation, and how its answers are read."""

    dialect: Dialect
    path: str
    headers: Headers
    render: Callable[[Request, Prompt], bytes]
    reader: Callable[[], AnswerReader]


_WORDS: Final[Mapping[Family, _Words]] = {
    Family.ANTHROPIC: _Words(
        dialect=Dialect.ANTHROPIC_MESSAGES,
        path="/v1/messages",
        headers=[*_JSON, (b"anthropic-version", _ANTHROPIC_VERSION)],
        render=anthropic.render,
        reader=anthropic.MessagesReader,
    ),
    Family.OPENAI: _Words(
        dialect=Dialect.OPENAI_CHAT,
        path="/v1/chat/completions",
        headers=_JSON,
        render=openai.render,
        reader=openai.ChatReader,
    ),
}


class TranslatedAnswer:
    """An `Answer` from an upstream. Nobody is asked before it is read."""

    def __init__(self, dispatcher: Dispatcher, route: Route, request: Request, body: bytes, clock: Clock) -> None:
        words = _WORDS[route.speaks]
        self._dispatcher = dispatcher
        self._route = route
        self._request = request
        self._clock = clock
        self._outgoing = Outgoing(
            method="POST",
            path=words.path,
            headers=words.headers,
            body=body,
            request_id=request.id,
            received_ns=request.received_ns,
        )
        self._tap: Tap = tap_for(words.dialect, streamed=True)
        self._reader = words.reader()
        self._incoming: Incoming | None = None
        self._tries: tuple[Attempt, ...] = ()
        self._is_cancelled = False

    async def __aiter__(self) -> AsyncIterator[Event]:
        try:
            async for event in self._events():
                yield event
        finally:
            self._close()

    async def cancel(self) -> Served:
        """Stop, and say what is known of what it took."""
        self._is_cancelled = True
        self._close()
        return self._served(self._clock.monotonic_ns())

    async def _events(self) -> AsyncIterator[Event]:
        yield PhaseEntered(at_ns=self._clock.monotonic_ns(), phase=Phase.UPSTREAM)
        try:
            reached = await self._dispatcher.reach(self._route.upstreams, self._outgoing)
        except NobodyAnswers as error:
            self._tries = error.tries
            raise
        self._incoming, self._tries = reached.incoming, reached.tries
        if self._incoming.status != 200:
            raise await self._refusal(self._incoming)
        framer = Framer()
        waiting: deque[Event] = deque()
        at_ns = self._incoming.begun.arrived_ns
        try:
            while not self._is_cancelled and (read := await self._incoming.read()) is not None:
                at_ns = read.arrived_ns
                for frame in framer.feed(read.data):
                    self._tap.event(frame.name, frame.data)
                    waiting.extend(self._reader.event(frame.name, frame.data, at_ns))
                while waiting:
                    yield waiting.popleft()
        except UpstreamError:
            if not self._is_cancelled:
                raise
        if (rest := framer.rest()) is not None:
            self._tap.event(rest.name, rest.data)
            waiting.extend(self._reader.event(rest.name, rest.data, at_ns))
        waiting.extend(self._reader.end(at_ns))
        found = self._tap.found()
        if not (self._is_cancelled or found.is_whole or _have_ended(waiting)):
            raise UpstreamError(f"{self._incoming.upstream.name} ended before its answer did")
        while waiting:
            yield waiting.popleft()
        yield self._served(at_ns)

    async def _refusal(self, incoming: Incoming) -> TaximeterError:
        body = bytearray()
        async for read in incoming:
            body += read.data
            if len(body) > _MOST_REFUSAL_BYTES:
                break
        self._tap.whole(bytes(body))
        said = self._tap.found().error or f"status {incoming.status}"
        message = f"{incoming.upstream.name} refused: {said}"
        if incoming.status in (400, 404, 413, 422):
            return RequestError(message)
        if incoming.status in (429, 503, 529):
            return CapacityError(message, retry_after_s=1.0)
        return UpstreamError(message, status=incoming.status)

    def _served(self, at_ns: int) -> Served:
        found = self._tap.found()
        incoming = self._incoming
        is_answered = incoming is not None and incoming.status == 200
        upstream = self._route.upstreams[0] if incoming is None else incoming.upstream
        request_id = None if incoming is None else incoming.header("request-id") or incoming.header("x-request-id")
        return Served(
            at_ns=at_ns,
            usage=found.usage if is_answered else Usage.unknown("no upstream began to answer"),
            work=None,
            served_by=upstream.name,
            model=found.model or self._route.send_as or self._request.model,
            terms=found.terms,
            upstream_request_id=None if request_id is None else request_id[:200],
            tries=self._tries,
            spent_ns=found.spent_ns if found.is_whole else {},
        )

    def _close(self) -> None:
        if self._incoming is not None:
            self._incoming.close()


def translated(
    dispatcher: Dispatcher, route: Route, request: Request, prompt: Prompt, clock: Clock
) -> TranslatedAnswer:
    """The answer of the upstreams of `route` to a request of another dialect. Raises RequestError for what cannot be
    said in theirs."""
    asked = request if route.send_as is None else replace(request, model=route.send_as)
    body = _WORDS[route.speaks].render(asked, prompt)
    return TranslatedAnswer(dispatcher, route, request, body, clock)


def _have_ended(events: deque[Event]) -> bool:
    """Whether some choice ended for a reason of its own: a stream may lack its last event."""
    return any(isinstance(event, ChoiceFinished) and event.reason.value != "cancelled" for event in events)
