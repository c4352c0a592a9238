"""A conversation and its tools as chat templates expect them: transformers' convention, which all templates follow.

Owns: names and nesting of the values, and which of them are prose and which are data. Refuses to know: templates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from taximeter.errors import RequestError
from taximeter.records import Json, Message, Tool, ToolCall

Change = Callable[[str], str]


def template_values(
    messages: Sequence[Message], tools: Sequence[Tool], *, prose: Change, data: Change
) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """(messages, tools or None): every text that the caller wrote goes through one of two functions: what messages
    say through `prose`; names, ids, and what is inside of schemas and arguments through `data`. Raises RequestError
    for arguments that are no JSON object."""
    try:
        return [_message(message, prose, data) for message in messages], [_tool(tool, data) for tool in tools] or None
    except RecursionError as error:
        raise RequestError("messages or tools are nested too deeply", param="messages") from error


def text_of(message: Message) -> str:
    """What a message says; its parts are paragraphs. Raises RequestError for one with images."""
    if isinstance(message.content, str):
        return message.content
    if any(not isinstance(part, str) for part in message.content):
        raise RequestError("this model reads text only, and the messages have an image", param="messages")
    return "\n".join(part for part in message.content if isinstance(part, str))


def _message(message: Message, prose: Change, data: Change) -> dict[str, Any]:
    values: dict[str, Any] = {"role": message.role, "content": prose(text_of(message))}
    if message.tool_calls:
        values["tool_calls"] = [_call(call, data) for call in message.tool_calls]
    if message.tool_call_id is not None:
        values["tool_call_id"] = data(message.tool_call_id)
    if message.name is not None:
        values["name"] = data(message.name)
    return values


def _call(call: ToolCall, data: Change) -> dict[str, Any]:
    try:
        arguments: Json = json.loads(call.arguments or "{}", parse_constant=_no_number)
    except ValueError as error:
        raise _no_object() from error
    if not isinstance(arguments, dict):
        raise _no_object()
    function = {"name": data(call.name), "arguments": _changed(arguments, data)}
    return {"type": "function", "id": data(call.id), "function": function}


def _tool(tool: Tool, data: Change) -> dict[str, Any]:
    function: dict[str, Any] = {"name": data(tool.name)}
    if tool.description is not None:
        function["description"] = data(tool.description)
    function["parameters"] = _changed(dict(tool.parameters), data)
    return {"type": "function", "function": function}


def _changed(value: Json, data: Change) -> Json:
    match value:
        case str():
            return data(value)
        case dict():
            return {data(key): _changed(item, data) for key, item in value.items()}
        case list():
            return [_changed(item, data) for item in value]
        case _:
            return value


def _no_number(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")


def _no_object() -> RequestError:
    return RequestError("the arguments of a tool call in the messages are not a JSON object", param="messages")
