"""What a client of `/v1/responses` gets back: one response of items, whole or as a stream of named, numbered events.

Owns: the shapes of responses, items and parts, and the order of a stream's events. Refuses to know: sockets, status
codes, when to write.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from taximeter.providers import sse
from taximeter.providers.door import AnswerWriter, Call, Fault, FaultKind
from taximeter.providers.openai.answer import Position, cache_writes, positions_of
from taximeter.records import ChoiceFinished, FinishReason, Request, TokensGenerated, ToolCallDelta, Usage

_encode = msgspec.json.Encoder().encode
_Change = tuple[str, dict[str, Any]]  # the type of an event, and its fields but for the number

_INCOMPLETE = {FinishReason.LENGTH: "max_output_tokens", FinishReason.REFUSAL: "content_filter"}


class _Part(msgspec.Struct, omit_defaults=True):
    type: str
    text: str
    annotations: list[Any] | UnsetType = UNSET
    logprobs: list[Position] | UnsetType = UNSET


class _Message(msgspec.Struct, tag_field="type", tag="message"):
    id: str
    status: str
    content: list[_Part]
    role: str = "assistant"


class _Reasoning(msgspec.Struct, tag_field="type", tag="reasoning"):
    id: str
    status: str
    content: list[_Part]
    summary: list[Any] = []
    encrypted_content: None = None


class _FunctionCall(msgspec.Struct, tag_field="type", tag="function_call"):
    id: str
    status: str
    call_id: str
    name: str
    arguments: str


_Shape = _Message | _Reasoning | _FunctionCall


class _InputTokens(msgspec.Struct):
    cached_tokens: int | None
    cache_write_tokens: int | None


class _OutputTokens(msgspec.Struct):
    reasoning_tokens: int | None


class _Usage(msgspec.Struct):
    input_tokens: int
    input_tokens_details: _InputTokens
    output_tokens: int
    output_tokens_details: _OutputTokens
    total_tokens: int


class _Incomplete(msgspec.Struct):
    reason: str


class _Error(msgspec.Struct):
    code: str
    message: str


class _Response(msgspec.Struct):
    id: str
    created_at: int
    status: str
    error: _Error | None
    incomplete_details: _Incomplete | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, Any]
    model: str
    output: list[_Shape]
    parallel_tool_calls: bool
    reasoning: dict[str, Any]
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[Any]
    top_logprobs: int
    top_p: float
    truncation: str
    usage: _Usage | None
    object: str = "response"
    background: bool = False
    previous_response_id: None = None
    service_tier: None = None
    store: bool = False


class _Item(ABC):
    """One item of the output while it is written. `index` is its place, `is_whole` that nothing can be missing."""

    def __init__(self, item_id: str, index: int) -> None:
        self._id = item_id
        self._at = {"item_id": item_id, "output_index": index}
        self._written: list[str] = []
        self.index = index
        self.is_open = False
        self.is_whole = True

    @property
    def status(self) -> str:
        if self.is_open:
            return "in_progress"
        return "completed" if self.is_whole else "incomplete"

    @property
    def written(self) -> str:
        return "".join(self._written)

    def open(self) -> Iterator[_Change]:
        self.is_open = True
        yield "response.output_item.added", {"output_index": self.index, "item": self.shape()}

    def close(self) -> Iterator[_Change]:
        self.is_open = False
        yield "response.output_item.done", {"output_index": self.index, "item": self.shape()}

    @abstractmethod
    def shape(self) -> _Shape:
        """The item as it stands."""


class _TextItem(_Item):
    """A message or reasoning: both have one part."""

    part_type: str
    stem: str  # of the names of its own events
    has_logprobs = False

    def __init__(self, item_id: str, index: int) -> None:
        super().__init__(item_id, index)
        self._in = self._at | {"content_index": 0}

    def open(self) -> Iterator[_Change]:
        yield from super().open()
        yield "response.content_part.added", self._in | {"part": self.part()}

    def write(self, text: str, logprobs: list[Position]) -> Iterator[_Change]:
        self._written.append(text)
        yield f"{self.stem}.delta", self._in | {"delta": text} | self._beside(logprobs)

    def close(self) -> Iterator[_Change]:
        part = self.part()
        yield f"{self.stem}.done", self._in | {"text": part.text} | self._beside(part.logprobs or [])
        yield "response.content_part.done", self._in | {"part": part}
        yield from super().close()

    def part(self) -> _Part:
        return _Part(type=self.part_type, text=self.written)

    def _beside(self, logprobs: list[Position]) -> dict[str, Any]:
        return {"logprobs": logprobs} if self.has_logprobs else {}

    def _parts(self) -> list[_Part]:
        """An item is announced before its part is."""
        return [] if self.is_open and not self._written else [self.part()]


class _MessageItem(_TextItem):
    part_type = "output_text"
    stem = "response.output_text"
    has_logprobs = True

    def __init__(self, item_id: str, index: int) -> None:
        super().__init__(item_id, index)
        self._logprobs: list[Position] = []

    def write(self, text: str, logprobs: list[Position]) -> Iterator[_Change]:
        self._logprobs += logprobs
        return super().write(text, logprobs)

    def part(self) -> _Part:
        return _Part(type=self.part_type, text=self.written, annotations=[], logprobs=list(self._logprobs))

    def shape(self) -> _Message:
        return _Message(id=self._id, status=self.status, content=self._parts())


class _ReasoningItem(_TextItem):
    part_type = "reasoning_text"
    stem = "response.reasoning_text"

    def shape(self) -> _Reasoning:
        return _Reasoning(id=self._id, status=self.status, content=self._parts())


class _CallItem(_Item):
    def __init__(self, item_id: str, index: int, piece: ToolCallDelta) -> None:
        super().__init__(item_id, index)
        self._call_id = piece.id or item_id
        self._name = piece.name or ""

    def write(self, arguments: str) -> Iterator[_Change]:
        self._written.append(arguments)
        yield "response.function_call_arguments.delta", self._at | {"delta": arguments}

    def close(self) -> Iterator[_Change]:
        done = self._at | {"name": self._name, "arguments": self.written}
        yield "response.function_call_arguments.done", done
        yield from super().close()

    def shape(self) -> _FunctionCall:
        return _FunctionCall(
            id=self._id, status=self.status, call_id=self._call_id, name=self._name, arguments=self.written
        )


class _ResponsesWriter(AnswerWriter):
    """Items come in the order of their first tokens. A call stays open until the answer ends: several may be written by
    turns."""

    def __init__(self, request: Request, call: Call) -> None:
        super().__init__(request)
        self._suffix = request.id.rpartition("_")[2]
        self._request = request
        self._echoed = call.echoed
        self._items: list[_Item] = []
        self._text: _TextItem | None = None  # the one that is open
        self._calls: dict[int, _CallItem] = {}
        self._reason: FinishReason | None = None
        self._is_begun = False
        self._number = 0

    def tokens(self, event: TokensGenerated) -> bytes:
        return self._begin() + self._write(self._made(event))

    def finished(self, event: ChoiceFinished) -> bytes:
        return self._begin() + self._write(self._ended(event))

    def keep(self, event: TokensGenerated | ChoiceFinished) -> None:
        for _ in self._made(event) if isinstance(event, TokensGenerated) else self._ended(event):
            pass

    def end(self, usage: Usage | None) -> bytes:
        status = self._status()
        return self._write(iter([(f"response.{status}", {"response": self._response(status, usage)})]))

    def whole(self, usage: Usage | None) -> bytes:
        return _encode(self._response(self._status(), usage))

    def broken(self, fault: Fault) -> bytes:
        code = "rate_limit_exceeded" if fault.kind is FaultKind.RATE_LIMIT else "server_error"
        error = _Error(code=code, message=fault.message)
        return self._write(iter([("response.failed", {"response": self._response("failed", None, error)})]))

    def _begin(self) -> bytes:
        if self._is_begun:
            return b""
        self._is_begun = True
        response = {"response": self._response("in_progress", None)}
        return self._write(iter([("response.created", response), ("response.in_progress", response)]))

    def _write(self, changes: Iterator[_Change]) -> bytes:
        written = bytearray()
        for kind, fields in changes:
            data = _encode({"type": kind, "sequence_number": self._number, **fields})
            written += sse.event(data, name=kind.encode())
            self._number += 1
        return bytes(written)

    def _made(self, event: TokensGenerated) -> Iterator[_Change]:
        if event.reasoning:
            yield from self._say(_ReasoningItem, "rs", event.reasoning, [])
        if event.text or event.logprobs:
            yield from self._say(_MessageItem, "msg", event.text, positions_of(event.logprobs))
        for piece in event.calls:
            yield from self._call(piece)

    def _ended(self, event: ChoiceFinished) -> Iterator[_Change]:
        self._reason = event.reason
        if event.text or not self._items:  # an answer of nothing is an empty message
            yield from self._say(_MessageItem, "msg", event.text, [])
        for item in self._items:
            if item.is_open:
                item.is_whole = event.reason in (FinishReason.STOP, FinishReason.TOOL_CALLS)
                yield from item.close()

    def _say(self, kind: type[_TextItem], stem: str, text: str, logprobs: list[Position]) -> Iterator[_Change]:
        if not isinstance(self._text, kind):
            yield from self._close_text()
            self._text = kind(self._id(stem), len(self._items))
            yield from self._add(self._text)
        yield from self._text.write(text, logprobs)

    def _call(self, piece: ToolCallDelta) -> Iterator[_Change]:
        item = self._calls.get(piece.index)
        if item is None:
            yield from self._close_text()
            item = self._calls[piece.index] = _CallItem(self._id("fc"), len(self._items), piece)
            yield from self._add(item)
        if piece.arguments:
            yield from item.write(piece.arguments)

    def _add(self, item: _Item) -> Iterator[_Change]:
        self._items.append(item)
        yield from item.open()

    def _close_text(self) -> Iterator[_Change]:
        if self._text is not None:
            yield from self._text.close()
            self._text = None

    def _id(self, stem: str) -> str:
        return f"{stem}_{self._suffix}_{len(self._items)}"

    def _status(self) -> str:
        return "incomplete" if self._reason in _INCOMPLETE else "completed"

    def _response(self, status: str, usage: Usage | None, error: _Error | None = None) -> _Response:
        incomplete = _INCOMPLETE.get(self._reason) if self._reason is not None else None
        sampling, echoed = self._request.sampling, self._echoed
        return _Response(
            id=f"resp_{self._suffix}",
            created_at=int(self._request.received_at.timestamp()),
            status=status,
            error=error,
            incomplete_details=None if incomplete is None else _Incomplete(reason=incomplete),
            instructions=echoed.get("instructions"),
            max_output_tokens=self._request.max_output_tokens,
            metadata=echoed.get("metadata") or {},
            model=self._request.model,
            output=[item.shape() for item in self._items],
            parallel_tool_calls=echoed.get("parallel_tool_calls") is not False,
            reasoning=echoed.get("reasoning") or {"effort": None, "summary": None},
            temperature=sampling.temperature,
            text=echoed.get("text") or {"format": {"type": "text"}},
            tool_choice=echoed.get("tool_choice") or "auto",
            tools=echoed.get("tools") or [],
            top_logprobs=sampling.logprobs or 0,
            top_p=sampling.top_p,
            truncation=echoed.get("truncation") or "disabled",
            usage=_usage(usage),
        )


def responses_writer(request: Request, call: Call) -> AnswerWriter:
    """Writes the answer to a request of `/v1/responses`. It is not stored, and says so."""
    return _ResponsesWriter(request, call)


def _usage(usage: Usage | None) -> _Usage | None:
    """Totals include their parts. None when a total is not known: its fields have no other word for that."""
    if usage is None or usage.input_tokens is None or usage.output_tokens is None:
        return None
    return _Usage(
        input_tokens=usage.input_tokens,
        input_tokens_details=_InputTokens(
            cached_tokens=usage.input_cache_read_tokens, cache_write_tokens=cache_writes(usage)
        ),
        output_tokens=usage.output_tokens,
        output_tokens_details=_OutputTokens(reasoning_tokens=usage.output_reasoning_tokens),
        total_tokens=usage.input_tokens + usage.output_tokens,
    )
