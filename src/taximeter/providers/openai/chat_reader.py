"""What a provider that speaks chat completions answers: the chunks of its stream as events.

Owns: which field of a chunk is what, and what providers do differently: reasoning under two names, calls in pieces or
whole, with and without ids, indices or the right reason. Refuses to know: sockets, framing, usage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from taximeter.errors import UpstreamError
from taximeter.records import (
    ChoiceFinished,
    Event,
    FinishReason,
    PositionLogprobs,
    TokenLogprob,
    TokensGenerated,
    ToolCallDelta,
)

_MOST_BODY_CHARACTERS = 2000
_DONE = b"[DONE]"
_REASONS = {
    "stop": FinishReason.STOP,
    "eos": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "model_length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "content_filter": FinishReason.REFUSAL,
    "abort": FinishReason.CANCELLED,
}


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Piece(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Part(msgspec.Struct):
    """Mistral's models that think give their content in parts, and those of a thought in parts again."""

    type: str
    text: str | None = None
    thinking: str | list[_Part] | None = None


class _Delta(msgspec.Struct):
    content: str | list[_Part] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: object = None  # some send a structure under this name
    tool_calls: list[_Piece] | None = None


class _Candidate(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None = None


class _Position(_Candidate):
    top_logprobs: list[_Candidate] | None = None


class _Logprobs(msgspec.Struct):
    content: list[_Position] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: object = None  # vLLM's, the stop string or the id of a token
    matched_stop: object = None  # SGLang's


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    error: Any = None
    object: Any = None


class _WholeChoice(msgspec.Struct):
    index: int = 0
    message: _Delta | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Whole(msgspec.Struct):
    choices: list[_WholeChoice] | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


@dataclass(slots=True)
class _Call:
    """A call while it is read. It begins once its name is known; what it had before is kept back until then."""

    number: int
    id: str | None = None
    is_begun: bool = False
    kept: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class _State:
    """One choice while it is read. A piece of a call belongs to the one that was last seen at its index."""

    calls: dict[int, _Call] = field(default_factory=dict[int, _Call])
    last: _Call | None = None
    begun_calls: int = 0
    is_refused: bool = False
    is_finished: bool = False


def unstreamed(body: bytes) -> Sequence[tuple[bytes, bytes]]:
    """The events, each a name and its data, of a stream that would have said the same as `body`: some servers answer
    whole whatever they are asked for. Raises UpstreamError for a body that is no answer."""
    try:
        whole = msgspec.json.decode(body, type=_Whole)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UpstreamError("the provider sent an answer that cannot be read") from error
    if whole.error or not whole.choices:
        raise _broken(body)
    choices = [
        {
            "index": choice.index,
            "delta": choice.message,
            "logprobs": choice.logprobs,
            "finish_reason": choice.finish_reason,
        }
        for choice in whole.choices
    ]
    return [(b"", msgspec.json.encode({"choices": choices})), (b"", _DONE)]


class ChatReader:
    """An `AnswerReader` for an answer of so many choices."""

    def __init__(self, choices: int = 1) -> None:
        self._states = [_State() for _ in range(choices)]
        self._is_done = False

    def event(self, name: bytes, data: bytes, at_ns: int) -> Sequence[Event]:
        """See `AnswerReader`."""
        data = data.strip()
        if name == b"error":
            raise _broken(data)
        if name not in (b"", b"message") or not data:
            return ()
        if data == _DONE:
            self._is_done = True
            return ()
        try:
            chunk = _decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise UpstreamError("the provider sent a part of an answer that cannot be read") from error
        if chunk.error or chunk.object == "error":
            raise _broken(data)
        return [event for choice in chunk.choices or () for event in self._choice(choice, at_ns)]

    def end(self, at_ns: int) -> Sequence[Event]:
        """See `AnswerReader`."""
        reason = "stop" if self._is_done else "abort"
        open_ones = [number for number, state in enumerate(self._states) if not state.is_finished]
        return [self._finish(number, reason, at_ns) for number in open_ones]

    def _choice(self, choice: _Choice, at_ns: int) -> list[Event]:
        if not 0 <= choice.index < len(self._states) or self._states[choice.index].is_finished:
            return []
        events: list[Event] = []
        delta = choice.delta or _Delta()
        state = self._states[choice.index]
        state.is_refused |= bool(delta.refusal)
        text, reasoning = _said(delta)
        calls = [change for piece in delta.tool_calls or () for change in _call(state, piece, at_ns)]
        logprobs = _logprobs(choice.logprobs)
        if text or reasoning or calls or logprobs:
            events.append(
                TokensGenerated(
                    at_ns=at_ns,
                    choice=choice.index,
                    new_tokens=len(logprobs) or 1,  # a provider does not say how many a delta is, except by these
                    text=text,
                    reasoning=reasoning,
                    calls=tuple(calls),
                    logprobs=logprobs,
                )
            )
        if choice.finish_reason:
            stops = [stop for stop in (choice.stop_reason, choice.matched_stop) if isinstance(stop, str)]
            events.append(self._finish(choice.index, choice.finish_reason, at_ns, stop=next(iter(stops), None)))
        return events

    def _finish(self, number: int, said: str, at_ns: int, *, stop: str | None = None) -> ChoiceFinished:
        if said == "error":
            raise UpstreamError("the provider broke off its answer")
        state = self._states[number]
        state.is_finished = True
        reason = _REASONS.get(said, FinishReason.STOP)
        if reason is FinishReason.STOP and state.is_refused:
            reason = FinishReason.REFUSAL
        elif reason in (FinishReason.STOP, FinishReason.TOOL_CALLS):
            # OpenAI itself says `stop` where the caller named the tool.
            reason = FinishReason.TOOL_CALLS if state.begun_calls else FinishReason.STOP
        return ChoiceFinished(at_ns=at_ns, choice=number, reason=reason, stop=stop)


def _said(delta: _Delta) -> tuple[str, str]:
    """(text, reasoning)"""
    reasoning = delta.reasoning_content or (delta.reasoning if isinstance(delta.reasoning, str) else "")
    if isinstance(delta.content, list):
        text = "".join(part.text or "" for part in delta.content)
        reasoning += "".join(_thought(part.thinking) for part in delta.content)
    else:
        text = delta.content or ""
    return text + (delta.refusal or ""), reasoning


def _thought(thinking: str | list[_Part] | None) -> str:
    return "".join(part.text or "" for part in thinking) if isinstance(thinking, list) else thinking or ""


def _call(state: _State, piece: _Piece, at_ns: int) -> list[ToolCallDelta]:
    """What a piece adds: first of all a call's id and name, then its arguments."""
    call = _call_of(state, piece)
    function = piece.function or _Function()
    call.id = call.id or piece.id
    changes: list[ToolCallDelta] = []
    if function.name and not call.is_begun:
        call.is_begun = True
        call.number = state.begun_calls
        state.begun_calls += 1
        # Without an id its result could not be sent: a name of our own does as well, as nobody else looks at it.
        call_id = call.id or f"call_{at_ns:x}_{call.number}"
        changes.append(ToolCallDelta(index=call.number, id=call_id, name=function.name))
    if function.arguments:
        call.kept.append(function.arguments)
    if call.is_begun and call.kept:
        changes.append(ToolCallDelta(index=call.number, arguments="".join(call.kept)))
        call.kept = []
    return changes


def _call_of(state: _State, piece: _Piece) -> _Call:
    """The call that a piece belongs to. Some providers number none of their calls, or all of them 0: then another id
    is another call, and so is another name where there are neither numbers nor ids."""
    index = piece.index
    known = state.last if index is None else state.calls.get(index)
    is_other = known is not None and bool(piece.id and known.id and piece.id != known.id)
    if index is None and piece.id is None and known is not None and known.is_begun:
        is_other = bool(piece.function and piece.function.name)
    if known is None or is_other:
        known = _Call(number=-1)
        state.calls[len(state.calls) if index is None else index] = known
    state.last = known
    return known


def _logprobs(read: _Logprobs | None) -> tuple[PositionLogprobs, ...]:
    return tuple(
        PositionLogprobs(picked=_candidate(position), top=tuple(map(_candidate, position.top_logprobs or ())))
        for position in (read and read.content) or ()
    )


def _candidate(read: _Candidate) -> TokenLogprob:
    utf8 = read.token.encode() if read.bytes is None else bytes(byte & 0xFF for byte in read.bytes)
    return TokenLogprob(token_id=None, text=read.token, utf8=utf8, logprob=read.logprob)


def _broken(data: bytes) -> UpstreamError:
    body = data.decode("utf-8", "replace")[:_MOST_BODY_CHARACTERS]
    return UpstreamError("the provider broke off its answer with an error", body=body)
