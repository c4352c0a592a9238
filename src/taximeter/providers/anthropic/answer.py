"""What a client gets back: messages, whole or streamed, counts, model lists and errors as Anthropic writes them.

Owns: the shapes, and the order of a stream's events. Refuses to know: sockets, status codes, when to write.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from msgspec import UNSET, UnsetType

from taximeter.providers import sse
from taximeter.providers.anthropic.blocks import Block, BlockEvent, BlockSequence, whole_blocks
from taximeter.providers.door import AnswerWriter, Call, Fault, FaultKind
from taximeter.records import ChoiceFinished, FinishReason, ModelInfo, Request, TokensGenerated, Usage

_encode = msgspec.json.Encoder().encode

_STOP_REASONS = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TOOL_CALLS: "tool_use",
    FinishReason.REFUSAL: "refusal",
}


class _CacheCreation(msgspec.Struct):
    ephemeral_5m_input_tokens: int
    ephemeral_1h_input_tokens: int


class _OutputDetails(msgspec.Struct):
    thinking_tokens: int


class _Usage(msgspec.Struct, kw_only=True):
    """A count that is not known is null: the field's clients have no other word for that."""

    input_tokens: int | None
    cache_creation_input_tokens: int | None
    cache_read_input_tokens: int | None
    output_tokens: int | None
    cache_creation: _CacheCreation | UnsetType = UNSET
    output_tokens_details: _OutputDetails | UnsetType = UNSET


class _Message(msgspec.Struct, kw_only=True):
    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: Sequence[Block]
    stop_reason: str | None
    stop_sequence: str | None
    usage: _Usage


class _MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    message: _Message


class _Stop(msgspec.Struct):
    stop_reason: str | None
    stop_sequence: str | None


class _MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    delta: _Stop
    usage: _Usage


class _MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    pass


_Event = _MessageStart | BlockEvent | _MessageDelta | _MessageStop

# The counts of a stream are of what was counted until then: at its start the prompt, if that, and none of the answer.
# Whatever is not known by then comes with the end.
_NOTHING_COUNTED = _Usage(input_tokens=0, cache_creation_input_tokens=0, cache_read_input_tokens=0, output_tokens=0)


def messages_writer(request: Request, _call: Call) -> AnswerWriter:
    """Writes the answer to a messages request."""
    return _MessagesWriter(request)


class _MessagesWriter(AnswerWriter):
    """A message has one choice. In a stream its blocks come one after the other, each with its start and its stop."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._id = "msg_" + request.id.rpartition("_")[2]
        self._model = request.model
        self._blocks = BlockSequence()
        self._is_open = False
        self._stop = _Stop(None, None)
        self._counted = _NOTHING_COUNTED

    def whole(self, usage: Usage | None) -> bytes:
        (events,) = self._kept.values()
        stop = next((_stop(event) for event in events if isinstance(event, ChoiceFinished)), self._stop)
        written: list[BlockEvent] = []
        for event in events:
            if isinstance(event, TokensGenerated):
                written += self._blocks.take(event.reasoning, event.text, event.calls)
            else:
                written += self._blocks.take("", event.text, ())
        blocks = whole_blocks([*written, *self._blocks.close()])
        return _encode(self._message(blocks, stop, _usage(usage)))

    def prompt_read(self, usage: Usage) -> None:
        self._counted = _usage(usage)

    def tokens(self, event: TokensGenerated) -> bytes:
        return self._opening() + _framed(self._blocks.take(event.reasoning, event.text, event.calls))

    def finished(self, event: ChoiceFinished) -> bytes:
        self._stop = _stop(event)
        return self._opening() + _framed([*self._blocks.take("", event.text, ()), *self._blocks.close()])

    def end(self, usage: Usage | None) -> bytes:
        return _framed([_MessageDelta(delta=self._stop, usage=_usage(usage)), _MessageStop()])

    def _opening(self) -> bytes:
        if self._is_open:
            return b""
        self._is_open = True
        return _framed([_MessageStart(self._message((), _Stop(None, None), self._counted))])

    def _message(self, content: Sequence[Block], stop: _Stop, usage: _Usage) -> _Message:
        return _Message(
            id=self._id,
            model=self._model,
            content=content,
            stop_reason=stop.stop_reason,
            stop_sequence=stop.stop_sequence,
            usage=usage,
        )


def _framed(events: Sequence[_Event]) -> bytes:
    return b"".join(sse.event(_encode(event), str(type(event).__struct_config__.tag).encode()) for event in events)


def _stop(event: ChoiceFinished) -> _Stop:
    """A cancelled answer has no reason in this dialect."""
    if event.reason is FinishReason.STOP and event.stop is not None:
        return _Stop("stop_sequence", event.stop)
    return _Stop(_STOP_REASONS.get(event.reason), None)


def _usage(usage: Usage | None) -> _Usage:
    """Anthropic's input counts are exclusive as ours are, and its output is all of it. How long cache writes last is
    told where it can be: it has words for five minutes and for an hour."""
    usage = usage or Usage.unknown("the answer did not say")
    written = _total(
        usage.input_cache_write_5m_tokens,
        usage.input_cache_write_30m_tokens,
        usage.input_cache_write_1h_tokens,
        usage.input_cache_write_12h_tokens,
        usage.input_cache_write_unknown_tokens,
    )
    written_5m, written_1h = usage.input_cache_write_5m_tokens, usage.input_cache_write_1h_tokens
    reasoning = usage.output_reasoning_tokens
    creation: _CacheCreation | UnsetType = UNSET
    if written is not None and written_5m is not None and written_1h is not None and written_5m + written_1h == written:
        creation = _CacheCreation(ephemeral_5m_input_tokens=written_5m, ephemeral_1h_input_tokens=written_1h)
    return _Usage(
        input_tokens=_total(usage.input_fresh_tokens, usage.input_image_tokens, usage.input_audio_tokens),
        cache_creation_input_tokens=written,
        cache_read_input_tokens=_total(usage.input_cache_read_tokens, usage.input_audio_cache_read_tokens),
        output_tokens=usage.output_tokens,
        cache_creation=creation,
        output_tokens_details=UNSET if reasoning is None else _OutputDetails(reasoning),
    )


def _total(*leaves: int | None) -> int | None:
    return None if None in leaves else sum(leaf for leaf in leaves if leaf is not None)


def count_body(tokens: int) -> bytes:
    """How many tokens a prompt has."""
    return _encode({"input_tokens": tokens})


class _Model(msgspec.Struct, tag_field="type", tag="model"):
    id: str
    display_name: str
    created_at: datetime
    max_input_tokens: int | None
    lifecycle: str = "active"


class _Models(msgspec.Struct):
    """All there are, as one page."""

    data: list[_Model]
    first_id: str | None
    last_id: str | None
    has_more: bool = False


def _model(info: ModelInfo, created_at: datetime) -> _Model:
    return _Model(id=info.id, display_name=info.id, created_at=created_at, max_input_tokens=info.context_length_tokens)


def model_body(info: ModelInfo, *, created_at: datetime) -> bytes:
    """One model. `created_at` is when it came into service here."""
    return _encode(_model(info, created_at))


def models_body(infos: Sequence[ModelInfo], *, created_at: datetime) -> bytes:
    """The list of models."""
    models = [_model(info, created_at) for info in infos]
    return _encode(
        _Models(data=models, first_id=models[0].id if models else None, last_id=models[-1].id if models else None)
    )


_ERROR_TYPES = {
    FaultKind.INVALID_REQUEST: "invalid_request_error",
    FaultKind.AUTHENTICATION: "authentication_error",
    FaultKind.PERMISSION: "permission_error",
    FaultKind.NOT_FOUND: "not_found_error",
    FaultKind.TOO_LARGE: "request_too_large",
    FaultKind.RATE_LIMIT: "rate_limit_error",
    FaultKind.OVERLOADED: "overloaded_error",
    FaultKind.SERVER: "api_error",
}


class _ErrorWords(msgspec.Struct):
    type: str
    message: str


class _Error(msgspec.Struct, tag_field="type", tag="error"):
    error: _ErrorWords
    request_id: str | None


def error_body(fault: Fault) -> bytes:
    """An error as a body. It has no fields for `code` and `param`: what they say is in the message. Agents shorten
    their history when they read Anthropic's own words for that."""
    is_too_long = fault.code == "context_length_exceeded"
    message = f"prompt is too long: {fault.message}" if is_too_long else fault.message
    return _encode(_Error(_ErrorWords(_ERROR_TYPES[fault.kind], message), fault.request_id))


def error_event(fault: Fault) -> bytes:
    """An error as the last event of a stream."""
    return sse.event(error_body(fault), b"error")
