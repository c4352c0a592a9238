"""An upstream of another dialect, as a `Backend`: asked in its own words, and read as events.

Owns: which words each family has, and what its refusals are called here. Refuses to know: who asked, and in which
dialect. Where both ends speak the same, nothing is translated: that is the gateway's passage.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from taximeter.clock import Clock
from taximeter.errors import TaximeterError, UpstreamError, UpstreamRefused
from taximeter.providers import anthropic, openai
from taximeter.providers.metering import tap_for
from taximeter.providers.reading import AnswerReader
from taximeter.providers.sighting import Seen, Tap
from taximeter.providers.sse import Framer
from taximeter.records import (
    ChoiceFinished,
    Dialect,
    Event,
    FinishReason,
    Phase,
    PhaseEntered,
    Prompt,
    PromptRead,
    Request,
    Served,
    TokensGenerated,
    Usage,
)
from taximeter.upstreams.config import Family, Route
from taximeter.upstreams.dispatch import (
    AFTER_THE_END_S,
    Dispatcher,
    Outgoing,
    Trail,
    phases_of,
    retry_after_s,
)
from taximeter.upstreams.headers import Headers
from taximeter.upstreams.secrets import concealed, keys_shown
from taximeter.upstreams.served import served, why_no_answer

if TYPE_CHECKING:
    from taximeter.upstreams.incoming import Incoming

_ANTHROPIC_VERSION: Final = b"2023-06-01"
_JSON: Final[Headers] = [(b"content-type", b"application/json"), (b"accept", b"text/event-stream")]
_MOST_BODY_BYTES: Final = 64 * 1024 * 1024
_MOST_REFUSAL_BYTES: Final = 64 * 1024
_LONGEST_DRAIN_S: Final = 5.0  # less than what a relay that closes waits for


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    """How a family is asked for an answer to a conversation, and how its answers are read."""

    dialect: Dialect
    path: str
    headers: Headers
    render: Callable[[Request, Prompt], bytes]
    reader: Callable[[], AnswerReader]
    unstreamed: Callable[[bytes], Sequence[tuple[bytes, bytes]]]


_WORDS: Final[Mapping[Family, _Words]] = {
    Family.ANTHROPIC: _Words(
        dialect=Dialect.ANTHROPIC_MESSAGES,
        path="/v1/messages",
        headers=[*_JSON, (b"anthropic-version", _ANTHROPIC_VERSION)],
        render=anthropic.render,
        reader=anthropic.MessagesReader,
        unstreamed=anthropic.unstreamed,
    ),
    Family.OPENAI: _Words(
        dialect=Dialect.OPENAI_CHAT,
        path="/v1/chat/completions",
        headers=_JSON,
        render=openai.render,
        reader=openai.ChatReader,
        unstreamed=openai.unstreamed,
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
        self._words = words
        self._tap: Tap = tap_for(words.dialect, streamed=True)
        self._reader = words.reader()
        self._trail = Trail()
        self._has_tokens = False
        self._reaching: asyncio.Task[Incoming] | None = None
        self._incoming: Incoming | None = None
        self._is_cancelled = False
        self._was_said = False  # its end, before that: what may follow is what it took
        self._stop: asyncio.TimerHandle | None = None

    async def __aiter__(self) -> AsyncIterator[Event]:
        try:
            async for event in self._events():
                yield event
        finally:
            if self._stop is not None:
                self._stop.cancel()
            if self._incoming is not None:
                self._incoming.close()

    async def cancel(self) -> Served:
        """Stop, and say what is known of what it took. An upstream that is to run on a while is read to see that, and
        so is one that has nothing else left to say."""
        if not self._is_cancelled:
            self._is_cancelled = True
            self._trail.is_wanted = False
            drain_s = max(upstream.drain_s for upstream in self._route.upstreams)
            self._was_said = bool(self._tap.found().finish_reasons)
            drain_s = max(drain_s, AFTER_THE_END_S) if self._was_said else drain_s
            if drain_s:
                self._stop = asyncio.get_running_loop().call_later(min(drain_s, _LONGEST_DRAIN_S), self._give_up)
            else:
                self._give_up()
        return self._served(self._clock.monotonic_ns())

    def _give_up(self) -> None:
        if self._reaching is not None:
            self._reaching.cancel()
        if self._incoming is not None:
            self._incoming.close()

    async def _events(self) -> AsyncIterator[Event]:
        if not self._is_cancelled:
            self._reaching = asyncio.create_task(
                self._dispatcher.reach(self._route.upstreams, self._outgoing, self._trail)
            )
            unreached: UpstreamError | None = None
            try:
                self._incoming = await self._reaching
            except UpstreamError as error:
                unreached = error
            except asyncio.CancelledError:
                if not self._is_cancelled:
                    raise
            tries, is_answered = self._trail.tries, self._incoming is not None
            for phase, at_ns in phases_of(tries, self._request.received_ns, is_answered=is_answered):
                yield PhaseEntered(at_ns=at_ns, phase=phase)
            if unreached is not None:
                raise unreached
        if self._incoming is None:
            yield self._served(self._clock.monotonic_ns())
            return
        if self._incoming.status != 200:
            raise await self._refusal(self._incoming)
        at_ns = self._incoming.begun.arrived_ns
        async for at_ns, read_ns, events in self._read(self._incoming):
            if self._is_cancelled and not self._was_said:
                continue  # nobody waits for them, and a finished choice would look as if somebody had
            if at_ns < read_ns:  # it waited for us
                yield PhaseEntered(at_ns=at_ns, phase=Phase.GATEWAY)
                yield PhaseEntered(at_ns=read_ns, phase=Phase.UPSTREAM)
            for event in events:
                if isinstance(event, TokensGenerated) and not self._has_tokens:
                    self._has_tokens = True
                    # Most say it at the end only.
                    if (usage := self._tap.found().usage).input_tokens is not None:
                        yield PromptRead(at_ns=event.at_ns, usage=usage.of_prompt())
                yield event
        yield self._served(at_ns)

    async def _read(self, incoming: Incoming) -> AsyncIterator[tuple[int, int, Sequence[Event]]]:
        """What each read comes to, with when it came and when we saw it. The last brings what only the end of the
        stream says."""
        framer = Framer()
        read = incoming.begun
        body = bytearray()  # of an answer that came whole, though a stream was asked for
        has_begun = has_ended = has_finished = False
        try:
            while not has_ended and (later := await incoming.read()) is not None:
                read = later
                if body or (not has_begun and read.data.lstrip().startswith(b"{")):
                    body += read.data
                    if len(body) > _MOST_BODY_BYTES:
                        raise UpstreamError(f"{incoming.upstream.name} answered with more than can be read")
                    continue
                has_begun = has_begun or bool(read.data)
                events: list[Event] = []
                broken: UpstreamError | None = None
                for frame in framer.feed(read.data):
                    if has_ended:  # behind the end nothing counts, however the bytes were cut
                        break
                    seen = self._tap.event(frame.name, frame.data)
                    has_ended = has_ended or bool(seen & Seen.END)
                    try:
                        events += self._reader.event(frame.name, frame.data, read.arrived_ns)
                    except UpstreamError as error:
                        broken = error  # what came before it in the same piece was an answer all the same
                        break
                has_finished = has_finished or _have_finished(events)
                yield read.arrived_ns, read.read_ns, events
                if broken is not None:
                    raise broken
            if body:
                events = self._unstreamed(bytes(body), read.arrived_ns)
                has_finished = _have_finished(events)
                yield read.arrived_ns, read.read_ns, events
        except UpstreamError as error:
            if self._is_cancelled and not self._was_said:
                return
            if not self._is_cancelled:
                if error.status is not None and error.status >= 400:
                    raise UpstreamRefused(f"{incoming.upstream.name}: {error.message}", status=error.status) from error
                raise
        incoming.finish()
        last: list[Event] = []
        if not has_ended and (rest := framer.rest()) is not None:  # some streams lack their last empty line
            self._tap.event(rest.name, rest.data)
            last += self._reader.event(rest.name, rest.data, read.arrived_ns)
        last += self._reader.end(read.arrived_ns)
        # And some end without their last event.
        if not (has_finished or self._is_cancelled or self._tap.found().is_whole or _have_finished(last)):
            raise UpstreamError(f"{incoming.upstream.name} ended before its answer did")
        yield read.arrived_ns, read.arrived_ns, last

    def _unstreamed(self, body: bytes, at_ns: int) -> list[Event]:
        """What an answer that came whole comes to. When each of its tokens was generated is not known then."""
        self._tap = tap_for(self._words.dialect, streamed=False)
        self._tap.whole(body)
        said: list[Event] = []
        for name, data in self._words.unstreamed(body):
            said += self._reader.event(name, data, at_ns)
        return [replace(event, new_tokens=0) if isinstance(event, TokensGenerated) else event for event in said]

    async def _refusal(self, incoming: Incoming) -> TaximeterError:
        body = bytearray()
        async for read in incoming:
            body += read.data
            if len(body) > _MOST_REFUSAL_BYTES:
                break
        self._tap.whole(concealed(bytes(body), keys_shown(incoming.upstream.key, ())))
        said = self._tap.found().error or f"status {incoming.status}"
        message = f"{incoming.upstream.name} refused: {said}"
        if incoming.status < 400:
            return UpstreamError(f"{incoming.upstream.name} answered with status {incoming.status}")
        return UpstreamRefused(message, status=incoming.status, retry_after_s=retry_after_s(incoming))

    def _served(self, at_ns: int) -> Served:
        found = self._tap.found()
        is_answered = self._incoming is not None and self._incoming.status == 200
        return served(
            self._route,
            self._request,
            self._trail,
            self._incoming,
            found,
            at_ns=at_ns,
            usage=found.usage if is_answered else Usage.unknown(why_no_answer(self._incoming)),
            spent_ns=found.spent_ns if found.is_whole else {},
        )


def translated(
    dispatcher: Dispatcher, route: Route, request: Request, prompt: Prompt, clock: Clock
) -> TranslatedAnswer:
    """The answer of the upstreams of `route` to a request of another dialect. Raises RequestError for what cannot be
    said in theirs."""
    asked = request if route.send_as is None else replace(request, model=route.send_as)
    body = _WORDS[route.speaks].render(asked, prompt)
    return TranslatedAnswer(dispatcher, route, request, body, clock)


def _have_finished(events: Sequence[Event]) -> bool:
    """Whether some choice ended for a reason of its own: a stream may lack its last event."""
    return any(isinstance(event, ChoiceFinished) and event.reason is not FinishReason.CANCELLED for event in events)
