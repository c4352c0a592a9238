"""What a client gets back: answers, whole or streamed, model lists and errors as OpenAI writes them.

Owns: the shapes, and the order of a stream's chunks. Refuses to know: sockets, status codes, when to write.
"""

from __future__ import annotations

import codecs
from abc import abstractmethod
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from taximeter.providers import sse
from taximeter.providers.door import AnswerWriter, Call, Fault, FaultKind
from taximeter.records import (
    ChoiceFinished,
    FinishReason,
    ModelInfo,
    PositionLogprobs,
    Request,
    TokenLogprob,
    TokensGenerated,
    ToolCallDelta,
    Usage,
)

_LEAST_LOGPROB = -9999.0  # JSON has no infinity; OpenAI writes this for a token that cannot come
_encode = msgspec.json.Encoder().encode


class _PromptTokens(msgspec.Struct):
    cached_tokens: int | None
    cache_write_tokens: int | None


class _CompletionTokens(msgspec.Struct):
    reasoning_tokens: int | None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: _PromptTokens
    completion_tokens_details: _CompletionTokens


class Top(msgspec.Struct):
    """A token that could have come."""

    token: str
    logprob: float
    bytes: list[int]


class Position(msgspec.Struct):
    """The token that came, and those that could have."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[Top]


class _ChatLogprobs(msgspec.Struct):
    content: list[Position]
    refusal: None = None


class _TextLogprobs(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class _Function(msgspec.Struct, omit_defaults=True):
    arguments: str
    name: str | UnsetType = UNSET


class _Call(msgspec.Struct):
    """A call, or a piece of one: then it has an index, and all but the first piece have nothing else but arguments."""

    function: _Function
    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class _Message(msgspec.Struct):
    role: str
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: Sequence[_Call] | UnsetType = UNSET


class _Delta(msgspec.Struct, omit_defaults=True):
    role: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: Sequence[_Call] | UnsetType = UNSET


class _ChatChoice(msgspec.Struct):
    index: int
    message: _Message
    logprobs: _ChatLogprobs | None
    finish_reason: str | None


class _ChatChunkChoice(msgspec.Struct):
    index: int
    delta: _Delta
    logprobs: _ChatLogprobs | None = None
    finish_reason: str | None = None


class _TextChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: _TextLogprobs | None = None
    finish_reason: str | None = None


_Choice = _ChatChoice | _ChatChunkChoice | _TextChoice


class _Envelope(msgspec.Struct):
    id: str
    object: str
    created: int
    model: str
    choices: Sequence[_Choice]
    usage: _Usage | UnsetType | None = UNSET


class _Writer(AnswerWriter):
    """In a stream every choice begins with a chunk that names its role (chat only), and ends with one that has its
    finish reason."""

    def __init__(self, request: Request, include_usage: bool, *, id_prefix: str, whole: str, chunk: str) -> None:
        super().__init__(request)
        self._id = id_prefix + request.id.rpartition("_")[2]
        self._created = int(request.received_at.timestamp())
        self._model = request.model
        self._whole_object = whole
        self._chunk_object = chunk
        self._include_usage = include_usage

    def whole(self, usage: Usage | None) -> bytes:
        choices = [self._whole_choice(index, events) for index, events in self._kept.items()]
        return self._envelope(self._whole_object, choices, _usage(usage))

    @abstractmethod
    def _whole_choice(self, index: int, events: Sequence[TokensGenerated | ChoiceFinished]) -> _Choice: ...

    def end(self, usage: Usage | None) -> bytes:
        if not self._include_usage:
            return sse.DONE
        return sse.event(self._envelope(self._chunk_object, [], _usage(usage))) + sse.DONE

    def _chunk(self, choice: _Choice) -> bytes:
        usage = None if self._include_usage else UNSET
        return sse.event(self._envelope(self._chunk_object, [choice], usage))

    def _envelope(self, kind: str, choices: Sequence[_Choice], usage: _Usage | UnsetType | None) -> bytes:
        return _encode(
            _Envelope(id=self._id, object=kind, created=self._created, model=self._model, choices=choices, usage=usage)
        )


class _ChatWriter(_Writer):
    def __init__(self, request: Request, include_usage: bool) -> None:
        super().__init__(
            request, include_usage, id_prefix="chatcmpl-", whole="chat.completion", chunk="chat.completion.chunk"
        )
        self._opened: set[int] = set()

    def tokens(self, event: TokensGenerated) -> bytes:
        chunks = self._opening(event.choice)
        if event.reasoning:
            delta = _Delta(reasoning_content=event.reasoning)
            chunks += self._chunk(_ChatChunkChoice(index=event.choice, delta=delta))
        if event.text or event.logprobs:
            delta, logprobs = _Delta(content=event.text), _chat_logprobs(event.logprobs)
            chunks += self._chunk(_ChatChunkChoice(index=event.choice, delta=delta, logprobs=logprobs))
        for piece in event.calls:
            delta = _Delta(tool_calls=[_call_piece(piece)])
            chunks += self._chunk(_ChatChunkChoice(index=event.choice, delta=delta))
        return chunks

    def finished(self, event: ChoiceFinished) -> bytes:
        chunks = self._opening(event.choice)
        if event.text:
            chunks += self._chunk(_ChatChunkChoice(index=event.choice, delta=_Delta(content=event.text)))
        if event.reason is not FinishReason.CANCELLED:
            choice = _ChatChunkChoice(index=event.choice, delta=_Delta(), finish_reason=event.reason.value)
            chunks += self._chunk(choice)
        return chunks

    def _opening(self, index: int) -> bytes:
        if index in self._opened:
            return b""
        self._opened.add(index)
        return self._chunk(_ChatChunkChoice(index=index, delta=_Delta(role="assistant", content="")))

    def _whole_choice(self, index: int, events: Sequence[TokensGenerated | ChoiceFinished]) -> _ChatChoice:
        calls = _whole_calls(events)
        text = "".join(event.text for event in events)
        reasoning = "".join(event.reasoning for event in events if isinstance(event, TokensGenerated))
        return _ChatChoice(
            index=index,
            message=_Message(
                role="assistant",
                content=text if text or not calls else None,
                reasoning_content=reasoning or UNSET,
                tool_calls=calls or UNSET,
            ),
            logprobs=_chat_logprobs(_all_logprobs(events)),
            finish_reason=_finish_reason(events),
        )


class _CompletionWriter(_Writer):
    def __init__(self, request: Request, include_usage: bool) -> None:
        super().__init__(request, include_usage, id_prefix="cmpl-", whole="text_completion", chunk="text_completion")
        self._offsets: dict[int, _TextOffsets] = {}

    def tokens(self, event: TokensGenerated) -> bytes:
        if not (event.text or event.logprobs):
            return b""
        choice = _TextChoice(index=event.choice, text=event.text, logprobs=self._logprobs(event.choice, event.logprobs))
        return self._chunk(choice)

    def finished(self, event: ChoiceFinished) -> bytes:
        if event.reason is not FinishReason.CANCELLED:
            choice = _TextChoice(index=event.choice, text=event.text, finish_reason=event.reason.value)
            return self._chunk(choice)
        return self._chunk(_TextChoice(index=event.choice, text=event.text)) if event.text else b""

    def _whole_choice(self, index: int, events: Sequence[TokensGenerated | ChoiceFinished]) -> _TextChoice:
        return _TextChoice(
            index=index,
            text="".join(event.text for event in events),
            logprobs=self._logprobs(index, _all_logprobs(events)),
            finish_reason=_finish_reason(events),
        )

    def _logprobs(self, index: int, positions: Sequence[PositionLogprobs]) -> _TextLogprobs | None:
        if not positions:
            return None
        offsets = self._offsets.setdefault(index, _TextOffsets())
        return _TextLogprobs(
            tokens=[_legacy_name(position.picked) for position in positions],
            token_logprobs=[_finite(position.picked) for position in positions],
            # The picked token is always among them: OpenAI gives "up to logprobs + 1" entries.
            top_logprobs=[
                {_legacy_name(token): _finite(token) for token in (*position.top, position.picked)}
                for position in positions
            ],
            text_offset=[offsets.advance(position.picked.utf8) for position in positions],
        )


class _TextOffsets:
    """Where each token begins in the text, in characters. A token that ends inside a character counts for none."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._characters = 0

    def advance(self, utf8: bytes) -> int:
        """The offset of the token that adds `utf8`."""
        start = self._characters
        self._characters += len(self._decoder.decode(utf8))
        return start


def chat_writer(request: Request, call: Call) -> AnswerWriter:
    """Writes the answer to a chat completion. Reasoning goes where the open engines put it."""
    return _ChatWriter(request, call.include_usage)


def completion_writer(request: Request, call: Call) -> AnswerWriter:
    """Writes the answer to a legacy completion, which has no place for reasoning."""
    return _CompletionWriter(request, call.include_usage)


def _usage(usage: Usage | None) -> _Usage | None:
    """OpenAI's totals include their parts. None when a total is not known: its fields have no other word for that."""
    if usage is None or usage.input_tokens is None or usage.output_tokens is None:
        return None
    return _Usage(
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        total_tokens=usage.input_tokens + usage.output_tokens,
        prompt_tokens_details=_PromptTokens(
            cached_tokens=usage.input_cache_read_tokens, cache_write_tokens=cache_writes(usage)
        ),
        completion_tokens_details=_CompletionTokens(reasoning_tokens=usage.output_reasoning_tokens),
    )


def cache_writes(usage: Usage) -> int | None:
    """The tokens written to a cache, for however long; None when one of the buckets is not known."""
    buckets = [tokens for name, tokens in usage.leaves().items() if name.startswith("input_cache_write_")]
    return None if None in buckets else sum(tokens for tokens in buckets if tokens is not None)


def _legacy_name(token: TokenLogprob) -> str:
    r"""The token's text; for bytes that are no text OpenAI writes `bytes:\xe2\x82`, so that no two share a name."""
    try:
        return token.utf8.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.utf8)


def _finite(token: TokenLogprob) -> float:
    return max(token.logprob, _LEAST_LOGPROB)


def _chat_logprobs(positions: Sequence[PositionLogprobs]) -> _ChatLogprobs | None:
    return _ChatLogprobs(content=positions_of(positions)) if positions else None


def positions_of(positions: Sequence[PositionLogprobs]) -> list[Position]:
    """Log-probabilities as the newer endpoints write them."""
    return [
        Position(
            token=position.picked.text,
            logprob=_finite(position.picked),
            bytes=list(position.picked.utf8),
            top_logprobs=[
                Top(token=token.text, logprob=_finite(token), bytes=list(token.utf8)) for token in position.top
            ],
        )
        for position in positions
    ]


def _all_logprobs(events: Sequence[TokensGenerated | ChoiceFinished]) -> list[PositionLogprobs]:
    return [position for event in events if isinstance(event, TokensGenerated) for position in event.logprobs]


def _call_piece(piece: ToolCallDelta) -> _Call:
    if piece.name is None:
        return _Call(index=piece.index, function=_Function(arguments=piece.arguments))
    return _Call(
        index=piece.index,
        id=piece.id or "",
        type="function",
        function=_Function(name=piece.name, arguments=piece.arguments),
    )


def _whole_calls(events: Sequence[TokensGenerated | ChoiceFinished]) -> list[_Call]:
    """The calls whose pieces are in some events."""
    calls: list[_Call] = []
    arguments: list[list[str]] = []
    for event in events:
        for piece in event.calls if isinstance(event, TokensGenerated) else ():
            if piece.name is not None:
                function = _Function(name=piece.name, arguments="")
                calls.append(_Call(id=piece.id or "", type="function", function=function))
                arguments.append([])
            arguments[piece.index].append(piece.arguments)
    for call, pieces in zip(calls, arguments, strict=True):
        call.function.arguments = "".join(pieces)
    return calls


def _finish_reason(events: Sequence[TokensGenerated | ChoiceFinished]) -> str | None:
    return next((event.reason.value for event in events if isinstance(event, ChoiceFinished)), None)


class _Model(msgspec.Struct):
    id: str
    created: int
    owned_by: str
    context_length_tokens: int | None
    chat: bool
    object: str = "model"


class _Models(msgspec.Struct):
    data: list[_Model]
    object: str = "list"


def _model(info: ModelInfo, created: int) -> _Model:
    return _Model(
        id=info.id,
        created=created,
        owned_by=info.owned_by,
        context_length_tokens=info.context_length_tokens,
        chat=info.chat,
    )


def model_body(info: ModelInfo, *, created: int) -> bytes:
    """One model. `created` is a Unix time in seconds: when it came into service here."""
    return _encode(_model(info, created))


def models_body(infos: Sequence[ModelInfo], *, created: int) -> bytes:
    """The list of models."""
    return _encode(_Models(data=[_model(info, created) for info in infos]))


class _Error(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


# OpenAI has few types of its own, and says the rest with codes.
_ERROR_TYPES = {
    FaultKind.RATE_LIMIT: "rate_limit_error",
    FaultKind.OVERLOADED: "server_error",
    FaultKind.SERVER: "server_error",
}


def error_body(fault: Fault) -> bytes:
    """An error as a body."""
    kind = _ERROR_TYPES.get(fault.kind, "invalid_request_error")
    return _encode({"error": _Error(message=fault.message, type=kind, param=fault.param, code=fault.code)})


def error_event(fault: Fault) -> bytes:
    """An error as the last event of a stream."""
    return sse.event(error_body(fault))
