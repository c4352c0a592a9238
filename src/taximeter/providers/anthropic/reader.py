"""What Anthropic answers, read as events.

Owns: which events of a stream are tokens, and which words end an answer. Refuses to know: usage and terms, which a tap
finds; the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from taximeter.errors import UpstreamError
from taximeter.records import ChoiceFinished, Event, FinishReason, TokensGenerated, ToolCallDelta

_MOST_BODY_CHARACTERS = 4096
_MOST_WORD_CHARACTERS = 64

_FINISH_REASONS = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "pause_turn": FinishReason.STOP,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "tool_use": FinishReason.TOOL_CALLS,
    "refusal": FinishReason.REFUSAL,
}
# What the status would have been, had the error come before the answer.
_STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


class _Named(msgspec.Struct):
    type: str = ""


class _Block(msgspec.Struct):
    type: str
    id: str = ""
    name: str = ""
    text: str = ""
    thinking: str = ""
    input: object = None


class _BlockStart(msgspec.Struct):
    index: int
    content_block: _Block


class _Delta(msgspec.Struct):
    type: str
    text: str = ""
    thinking: str = ""
    partial_json: str = ""


class _BlockDelta(msgspec.Struct):
    index: int
    delta: _Delta


class _BlockStop(msgspec.Struct):
    index: int


class _Stop(msgspec.Struct):
    stop_reason: str | None = None
    stop_sequence: str | None = None


class _MessageDelta(msgspec.Struct):
    delta: _Stop


class _Whole(_Stop):
    type: str = "message"
    content: list[msgspec.Raw] | None = None


class _ErrorWords(msgspec.Struct):
    type: str = "error"


class _Error(msgspec.Struct):
    error: _ErrorWords


class _OpenCall:
    """A call that has begun. It is told with the first piece of its arguments: only that is surely generated."""

    def __init__(self, index: int, block: _Block) -> None:
        self.index = index
        self.is_told = False
        self._block = block

    def told(self, arguments: str) -> tuple[ToolCallDelta, ...]:
        """The pieces that tell of these arguments."""
        piece = ToolCallDelta(index=self.index, arguments=arguments)
        if self.is_told:
            return (piece,)
        self.is_told = True
        return ToolCallDelta(index=self.index, id=self._block.id, name=self._block.name), piece

    @property
    def whole_input(self) -> str:
        """The arguments of a block that came in one piece, as some servers send them."""
        return msgspec.json.encode(self._block.input or {}).decode()


_decode_name = msgspec.json.Decoder(_Named).decode
_S = TypeVar("_S", bound=msgspec.Struct)


class MessagesReader:
    """Reads one streamed message. See `AnswerReader`. A delta with something in it counts as one token: how many there
    were is in the usage."""

    def __init__(self) -> None:
        self._calls: dict[int, _OpenCall] = {}  # by the index of their blocks
        self._begun = 0
        self._stop = _Stop()
        self._is_finished = False

    def event(self, name: bytes, data: bytes, at_ns: int) -> Sequence[Event]:
        if self._is_finished:
            return ()
        match _kind(name, data):
            case "content_block_start":
                return self._block_start(_read(_BlockStart, data), at_ns)
            case "content_block_delta":
                return self._block_delta(_read(_BlockDelta, data), at_ns)
            case "content_block_stop":
                return self._block_stop(_read(_BlockStop, data).index, at_ns)
            case "message_delta":
                stop = _read(_MessageDelta, data).delta
                self._stop = self._stop if stop.stop_reason is None else stop
                return ()
            case "message_stop":
                open_blocks = list(self._calls)
                unclosed = [event for index in open_blocks for event in self._block_stop(index, at_ns)]
                return (*unclosed, self._finish(at_ns, FinishReason.STOP))
            case "error":
                raise _broke_off(data)
            case _:
                return ()

    def end(self, at_ns: int) -> Sequence[Event]:
        return () if self._is_finished else (self._finish(at_ns, FinishReason.CANCELLED),)

    def _finish(self, at_ns: int, unsaid: FinishReason) -> ChoiceFinished:
        self._is_finished = True
        said = self._stop.stop_reason
        # A word that is new here ended the answer all the same.
        reason = unsaid if said is None else _FINISH_REASONS.get(said, FinishReason.STOP)
        return ChoiceFinished(at_ns=at_ns, choice=0, reason=reason, stop=self._stop.stop_sequence)

    def _block_start(self, event: _BlockStart, at_ns: int) -> Sequence[Event]:
        block = event.content_block
        match block.type:
            case "tool_use":
                self._calls[event.index] = _OpenCall(self._begun, block)
                self._begun += 1
                return ()
            case "text":
                return _tokens(at_ns, text=block.text)
            case "thinking":
                return _tokens(at_ns, reasoning=block.thinking)
            case _:
                return ()

    def _block_delta(self, event: _BlockDelta, at_ns: int) -> Sequence[Event]:
        delta = event.delta
        match delta.type:
            case "text_delta":
                return _tokens(at_ns, text=delta.text)
            case "thinking_delta":
                return _tokens(at_ns, reasoning=delta.thinking)
            case "input_json_delta":
                call = self._calls.get(event.index)
                return () if call is None or not delta.partial_json else _called(at_ns, call, delta.partial_json)
            case _:
                return ()

    def _block_stop(self, index: int, at_ns: int) -> Sequence[Event]:
        call = self._calls.pop(index, None)
        return () if call is None or call.is_told else _called(at_ns, call, call.whole_input)


def unstreamed(body: bytes) -> Sequence[tuple[bytes, bytes]]:
    """The events, each a name and its data, of a stream that would have said the same as `body`: some servers answer
    whole whatever they are asked for. Raises UpstreamError for a body that is no answer."""
    message = _read(_Whole, body)
    if message.type == "error" or message.content is None:
        raise _broke_off(body)
    events: list[dict[str, object]] = []
    for index, block in enumerate(message.content):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events.append({"type": "content_block_stop", "index": index})
    stop: object = {"stop_reason": message.stop_reason or "end_turn", "stop_sequence": message.stop_sequence}
    events.append({"type": "message_delta", "delta": stop})
    events.append({"type": "message_stop"})
    return [(b"", msgspec.json.encode(event)) for event in events]


def _tokens(at_ns: int, *, text: str = "", reasoning: str = "") -> Sequence[Event]:
    if not (text or reasoning):
        return ()
    return (TokensGenerated(at_ns=at_ns, choice=0, new_tokens=1, text=text, reasoning=reasoning),)


def _called(at_ns: int, call: _OpenCall, arguments: str) -> Sequence[Event]:
    return (TokensGenerated(at_ns=at_ns, choice=0, new_tokens=1, text="", calls=call.told(arguments)),)


def _kind(name: bytes, data: bytes) -> str:
    """What sort of event it is: its data says so, its name only where they do not."""
    if not data.lstrip().startswith(b"{"):
        return name.decode("utf-8", "replace")
    try:
        return _decode_name(data).type or name.decode("utf-8", "replace")
    except (msgspec.DecodeError, RecursionError) as error:
        raise _unreadable(data) from error


def _read(wanted: type[_S], data: bytes) -> _S:
    try:
        return msgspec.json.decode(data, type=wanted)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _unreadable(data) from error


def _broke_off(data: bytes) -> UpstreamError:
    try:
        kind = msgspec.json.decode(data, type=_Error).error.type[:_MOST_WORD_CHARACTERS]
    except (msgspec.DecodeError, RecursionError):
        kind = "error"
    return UpstreamError(f"the provider broke off: {kind}", status=_STATUSES.get(kind), body=_text(data))


def _unreadable(data: bytes) -> UpstreamError:
    return UpstreamError("the provider sent an event that cannot be read", body=_text(data))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")[:_MOST_BODY_CHARACTERS]
