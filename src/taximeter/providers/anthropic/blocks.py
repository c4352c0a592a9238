"""An answer as blocks of content: its texts, its thinking and its calls, one after the other.

Owns: the shapes of blocks and of the events that tell them, and where one ends and the next begins. Refuses to know:
the message around them, bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from taximeter.providers.bodies import json_object
from taximeter.records import ToolCallDelta

_NO_INPUT = msgspec.Raw(b"{}")
_INVALID = "INVALID_JSON"  # the key that Anthropic proposes for an input that is no object


class Text(msgspec.Struct, tag_field="type", tag="text"):
    """What the model says."""

    text: str


class Thinking(msgspec.Struct, tag_field="type", tag="thinking"):
    """What the model thinks before it says something. Nobody here can sign it."""

    thinking: str
    signature: str = ""


class ToolUse(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call."""

    id: str
    name: str
    input: msgspec.Raw


Block = Text | Thinking | ToolUse


class TextDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    thinking: str


class InputDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    partial_json: str


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    """The beginning of a block, which is empty."""

    index: int
    content_block: Block


class BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    """A piece of a block."""

    index: int
    delta: TextDelta | ThinkingDelta | InputDelta


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    """The end of a block."""

    index: int


BlockEvent = BlockStart | BlockDelta | BlockStop
_Piece = Text | Thinking | ToolCallDelta


class BlockSequence:
    """Cuts what is generated into blocks.

    Calls may be generated side by side, and blocks cannot be: while the call that is open has no complete arguments,
    what belongs to other blocks waits, until the end of the answer if it must.
    """

    def __init__(self) -> None:
        self._index = -1  # of the latest block
        self._open: type[Text | Thinking] | int | None = None  # a call's is its number
        self._arguments: list[str] = []  # of the call that is open, all that is more than white space
        self._is_whole: bool | None = None  # whether they are; None where nobody has looked since the last piece
        self._begun: set[int] = set()  # calls
        self._waiting: deque[_Piece] = deque()

    def take(self, thinking: str, text: str, calls: Iterable[ToolCallDelta]) -> list[BlockEvent]:
        """What was generated now, as events."""
        pieces: list[_Piece] = [Thinking(thinking)] if thinking else []
        pieces += [Text(text)] if text else []
        events: list[BlockEvent] = []
        for piece in (*pieces, *calls):
            if isinstance(piece, ToolCallDelta) and piece.index in self._begun:
                # Behind a complete object there is nothing that its block could have.
                events += self._go_on(piece) if piece.index == self._open else ()
            else:
                self._waiting.append(piece)
                events += self._let_through()
        return events + self._let_through()

    def close(self) -> list[BlockEvent]:
        """The end of the answer."""
        events = self._stop()
        while self._waiting:
            events += self._let_through()
            events += self._stop()
        return events

    def _let_through(self) -> list[BlockEvent]:
        """Everything that waits, up to what still has to."""
        events: list[BlockEvent] = []
        while self._waiting and (self._is_of_open(self._waiting[0]) or not self._is_in_a_call):
            piece = self._waiting.popleft()
            if self._is_of_open(piece):
                events += self._go_on(piece)
                continue
            events += [*self._stop(), self._start(piece), *self._go_on(piece)]
            if isinstance(piece, ToolCallDelta):
                waiting, self._waiting = self._waiting, deque()
                for other in waiting:
                    if self._is_of_open(other):
                        events += self._go_on(other)
                    else:
                        self._waiting.append(other)
        return events

    @property
    def _is_in_a_call(self) -> bool:
        """Whether a call is open, and its arguments go on."""
        if not isinstance(self._open, int):
            return False
        if self._is_whole is None:
            may_be = bool(self._arguments) and self._arguments[-1].rstrip().endswith("}")
            self._is_whole = may_be and json_object("".join(self._arguments)) is not None
        return not self._is_whole

    def _is_of_open(self, piece: _Piece) -> bool:
        return self._open == (piece.index if isinstance(piece, ToolCallDelta) else type(piece))

    def _start(self, piece: _Piece) -> BlockStart:
        self._index += 1
        match piece:
            case ToolCallDelta():
                self._open, self._arguments, self._is_whole = piece.index, [], None
                self._begun.add(piece.index)
                block: Block = ToolUse(id=piece.id or "", name=piece.name or "", input=_NO_INPUT)
            case Text():
                self._open, block = Text, Text("")
            case Thinking():
                self._open, block = Thinking, Thinking("")
        return BlockStart(self._index, block)

    def _go_on(self, piece: _Piece) -> list[BlockEvent]:
        match piece:
            case ToolCallDelta(arguments=""):
                return []
            case ToolCallDelta():
                if piece.arguments.strip():  # white space makes no object whole, and breaks none
                    self._arguments.append(piece.arguments)
                    self._is_whole = None
                return [BlockDelta(self._index, InputDelta(piece.arguments))]
            case Text():
                return [BlockDelta(self._index, TextDelta(piece.text))]
            case Thinking():
                return [BlockDelta(self._index, ThinkingDelta(piece.thinking))]

    def _stop(self) -> list[BlockEvent]:
        if self._open is None:
            return []
        self._open = None
        return [BlockStop(self._index)]


def whole_blocks(events: Iterable[BlockEvent]) -> list[Block]:
    """The blocks that some events tell of, from the first to the last."""
    blocks: list[Block] = []
    pieces: list[list[str]] = []
    for event in events:
        match event:
            case BlockStart():
                blocks.append(event.content_block)
                pieces.append([])
            case BlockDelta(
                delta=TextDelta(text=piece) | ThinkingDelta(thinking=piece) | InputDelta(partial_json=piece)
            ):
                pieces[event.index].append(piece)
            case _:
                pass
    return [_filled(block, "".join(texts)) for block, texts in zip(blocks, pieces, strict=True)]


def _filled(block: Block, text: str) -> Block:
    match block:
        case Text():
            return Text(text)
        case Thinking():
            return Thinking(text)
        case ToolUse():
            return ToolUse(id=block.id, name=block.name, input=_input(text))


def _input(arguments: str) -> msgspec.Raw:
    """Arguments as the object that an input has to be. Those that are none are told, not guessed at."""
    if not arguments.strip():
        return _NO_INPUT
    return json_object(arguments) or msgspec.Raw(msgspec.json.encode({_INVALID: arguments}))
