"""Tools as OpenAI writes them: definitions, choices, and calls in a conversation.

Owns: the shapes, and the sentence for each that cannot be served. Refuses to know: how models write calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from taximeter.errors import RequestError
from taximeter.providers.schemas import check_depth
from taximeter.providers.toolboxes import check_tool_name, toolbox_of_tools
from taximeter.records import Tool, Toolbox, ToolCall

_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


class _Function(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(msgspec.Struct):
    """One entry of `tools`."""

    type: str
    function: _Function | None = None


class _Named(msgspec.Struct):
    name: str


class ChoiceBody(msgspec.Struct):
    """`tool_choice` where it names a tool."""

    type: str
    function: _Named | None = None


class _Called(msgspec.Struct):
    name: str
    arguments: str


class CallBody(msgspec.Struct):
    """One entry of an assistant message's `tool_calls`."""

    id: str
    function: _Called
    type: str = "function"


def toolbox_of(tools: Sequence[ToolBody] | None, choice: str | ChoiceBody | None, *, parallel: bool) -> Toolbox | None:
    """What a call may use; None when that is no tool at all. Raises RequestError."""
    offered = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools or ())]
    return toolbox_of_tools(
        offered,
        are_hidden=choice == "none",
        must_call=choice not in (None, "auto", "none"),
        only=_only(choice),
        parallel=parallel,
    )


def calls_of(calls: Sequence[CallBody], at: str) -> tuple[ToolCall, ...]:
    """The calls of one message. Raises RequestError."""
    for index, call in enumerate(calls):
        if call.type != "function":
            raise _only_functions(f"{at}[{index}].type")
        check_tool_name(call.function.name, f"{at}[{index}].function.name")
    return tuple(ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments) for call in calls)


def _tool(tool: ToolBody, at: str) -> Tool:
    if tool.type != "function":
        raise _only_functions(f"{at}.type")
    function = tool.function
    if function is None:
        raise RequestError(f"`{at}.function` is missing", param=f"{at}.function")
    check_tool_name(function.name, f"{at}.function.name")
    parameters = _NO_PARAMETERS if function.parameters is None else function.parameters
    check_depth(parameters, f"{at}.function.parameters")
    return Tool(
        name=function.name,
        description=function.description,
        parameters=parameters,
        strict=bool(function.strict),
    )


def _only(choice: str | ChoiceBody | None) -> str | None:
    """The name of the one tool that must be called."""
    match choice:
        case None | "auto" | "none" | "required":
            return None
        case ChoiceBody(type="function", function=_Named(name=name)):
            return name
        case _:
            raise RequestError(
                '`tool_choice` must be "auto", "none", "required", or name a function',
                param="tool_choice",
                hint='{"type": "function", "function": {"name": …}}',
            )


def _only_functions(at: str) -> RequestError:
    return RequestError(f"`{at}` is not supported yet: tools are functions", param=at)
