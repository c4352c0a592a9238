"""Conversations as Anthropic writes them: turns of blocks, read as messages.

Owns: the blocks, and the sentence for each that cannot be served. Refuses to know: who is to read the conversation.

One turn may become several messages: results of tools are turns of their own in the records. Turns of one role that
follow each other are one turn, as at Anthropic.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from taximeter.errors import RequestError
from taximeter.providers.bodies import unsupported
from taximeter.providers.schemas import check_depth
from taximeter.providers.toolboxes import check_tool_name
from taximeter.records import Image, Message, ToolCall

_SAYS_SO = re.compile(r"\W*(?:tool_use_)?(?:error|exception|traceback|fail)", re.IGNORECASE)


class _Source(msgspec.Struct):
    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


class _Inner(msgspec.Struct):
    """A block inside of a tool's result. `source` and `content` are something else in blocks of other types."""

    type: str
    text: str | None = None
    source: object = None


class _Block(msgspec.Struct):
    type: str
    text: str | None = None
    source: object = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: object = None
    is_error: bool | None = None


class Turn(msgspec.Struct):
    """One entry of `messages`."""

    role: str
    content: str | list[_Block]


class SystemBlock(msgspec.Struct):
    """One entry of `system`."""

    type: str
    text: str | None = None


_Parts = list[str | Image]
_T = TypeVar("_T")


def messages_of(system: str | Sequence[SystemBlock] | None, turns: Sequence[Turn]) -> tuple[Message, ...]:
    """The conversation, instructions first. Raises RequestError."""
    if not turns:
        raise RequestError("`messages` is empty", param="messages")
    messages: list[Message] = []
    if system:
        parts: _Parts = [system] if isinstance(system, str) else _system_parts(system)
        messages.append(Message(role="system", content=_content(parts)))
    for index, turn in enumerate(turns):
        messages += _turn(turn, f"messages[{index}]")
    neighbours: list[list[Message]] = []
    for message in messages:
        if neighbours and neighbours[-1][0].role == message.role != "tool":
            neighbours[-1].append(message)
        else:
            neighbours.append([message])
    return tuple(_joined(of_one_role) for of_one_role in neighbours)


def _system_parts(blocks: Sequence[SystemBlock]) -> _Parts:
    for index, block in enumerate(blocks):
        if block.type != "text":
            raise unsupported(f"system[{index}]", "instructions are text")
    return [_given(block.text, f"system[{index}].text") for index, block in enumerate(blocks)]


def _turn(turn: Turn, at: str) -> list[Message]:
    if turn.role not in ("user", "assistant", "system"):
        raise RequestError(f"`{at}.role` must be user, assistant or system", param=f"{at}.role")
    if isinstance(turn.content, str):
        return [Message(role=turn.role, content=turn.content)]
    if not turn.content:
        raise RequestError(f"`{at}.content` is empty", param=f"{at}.content")
    if turn.role == "assistant":
        return [_assistant(turn.content, f"{at}.content")]
    messages: list[Message] = []
    parts: _Parts = []
    for index, block in enumerate(turn.content):
        block_at = f"{at}.content[{index}]"
        if block.type == "tool_result" and turn.role == "user":
            messages += _said(turn.role, parts)
            messages.append(_result(block, block_at))
            parts = []
        else:
            parts.append(_part(block, block_at))
    return messages + _said(turn.role, parts)


def _said(role: str, parts: _Parts) -> list[Message]:
    return [Message(role=role, content=_content(parts))] if parts else []


def _assistant(blocks: Sequence[_Block], at: str) -> Message:
    parts: _Parts = []
    calls: list[ToolCall] = []
    for index, block in enumerate(blocks):
        match block.type:
            case "thinking" | "redacted_thinking":  # signed for who thought it, and of no use to anybody else
                pass
            case "tool_use":
                calls.append(_call(block, f"{at}[{index}]"))
            case _:
                parts.append(_part(block, f"{at}[{index}]"))
    return Message(role="assistant", content=_content(parts), tool_calls=tuple(calls))


def _call(block: _Block, at: str) -> ToolCall:
    name = _given(block.name, f"{at}.name")
    check_tool_name(name, f"{at}.name")
    if block.input is None:
        raise RequestError(f"`{at}.input` is missing", param=f"{at}.input")
    check_depth(block.input, f"{at}.input")
    arguments = msgspec.json.encode(block.input).decode()
    return ToolCall(id=_given(block.id, f"{at}.id"), name=name, arguments=arguments)


def _result(block: _Block, at: str) -> Message:
    parts: _Parts = []
    if isinstance(block.content, str):
        parts = [block.content]
    elif block.content is not None:
        inner = _converted(block.content, list[_Inner], f"{at}.content")
        parts = [_part(part, f"{at}.content[{index}]") for index, part in enumerate(inner)]
    if block.is_error:
        parts = _failed(parts)
    return Message(role="tool", content=_content(parts), tool_call_id=_given(block.tool_use_id, f"{at}.tool_use_id"))


def _failed(parts: _Parts) -> _Parts:
    """The same result, which says that it is a failure. Neither OpenAI's dialect nor a chat template has a mark for
    that beside the text, and a model that is not told takes the text for what it asked for. Where it says so itself, as
    agents' tools mostly do, it stays as it is."""
    first = parts[0] if parts and isinstance(parts[0], str) else ""
    if _SAYS_SO.match(first):
        return parts
    rest = parts[1:] if first or (parts and isinstance(parts[0], str)) else parts
    return [f"Error: {first}" if first else "Error", *rest]


def _part(block: _Block | _Inner, at: str) -> str | Image:
    match block.type:
        case "text":
            return _given(block.text, f"{at}.text")
        case "image":
            return _image(block.source, f"{at}.source")
        case other:
            raise unsupported(at, f"blocks of type `{other[:64]}` cannot be read here; text and images can")


def _image(source: object, at: str) -> Image:
    if source is None:
        raise RequestError(f"`{at}` is missing", param=at)
    match source := _converted(source, _Source, at):
        case _Source(type="base64"):
            return Image(
                data=_given(source.data, f"{at}.data"), media_type=_given(source.media_type, f"{at}.media_type")
            )
        case _Source(type="url"):
            return Image(url=_given(source.url, f"{at}.url"))
        case _:
            raise unsupported(at, "images come as base64 or url")


def _converted(value: object, wanted: type[_T], at: str) -> _T:
    try:
        return msgspec.convert(value, wanted)
    except (msgspec.ValidationError, RecursionError) as error:
        raise RequestError(f"`{at}` is not what it has to be in a block of this type", param=at) from error


def _given(text: str | None, at: str) -> str:
    if text is None:
        raise RequestError(f"`{at}` is missing", param=at)
    return text


def _content(parts: _Parts) -> str | tuple[str | Image, ...]:
    """A single text is just that."""
    if not parts:
        return ""
    first = parts[0]
    return first if len(parts) == 1 and isinstance(first, str) else tuple(parts)


def _joined(messages: Sequence[Message]) -> Message:
    """Messages of one role, at least one, as one."""
    first = messages[0]
    if len(messages) == 1:
        return first
    parts: _Parts = []
    for message in messages:
        parts += [message.content] if isinstance(message.content, str) else message.content
    calls = tuple(call for message in messages for call in message.tool_calls)
    return replace(first, content=_content([part for part in parts if part != ""]), tool_calls=calls)
