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


class FlatToolBody(msgspec.Struct):
    """One entry of the Responses endpoint's `tools`: there is no `function` around what describes it."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolBody(msgspec.Struct):
    """One entry of `tools`."""

    type: str
    function: _Function | None = None


class _Named(msgspec.Struct):
    name: str


class FlatChoiceBody(msgspec.Struct):
    """The Responses endpoint's `tool_choice` where it names a tool."""

    type: str
    name: str | None = None


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
    return _toolbox(offered, choice, only=_only(choice), parallel=parallel)


def flat_toolbox_of(
    tools: Sequence[FlatToolBody] | None, choice: str | FlatChoiceBody | None, *, parallel: bool
) -> Toolbox | None:
    """The same as the Responses endpoint has it. Raises RequestError."""
    offered = [_flat_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools or ())]
    return _toolbox(offered, choice, only=_flat_only(choice), parallel=parallel)


def _toolbox(offered: Sequence[Tool], choice: object, *, only: str | None, parallel: bool) -> Toolbox | None:
    return toolbox_of_tools(
        offered,
        are_hidden=choice == "none",
        must_call=choice not in (None, "auto", "none"),
        only=only,
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
    if tool.function is None:
        raise RequestError(f"`{at}.function` is missing", param=f"{at}.function")
    return _function(tool.function, f"{at}.function")


def _flat_tool(tool: FlatToolBody, at: str) -> Tool:
    if tool.type != "function":
        raise _only_functions(f"{at}.type")
    if tool.name is None:
        raise RequestError(f"`{at}.name` is missing", param=f"{at}.name")
    return _function(
        _Function(name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict), at
    )


def _function(function: _Function, at: str) -> Tool:
    check_tool_name(function.name, f"{at}.name")
    parameters = _NO_PARAMETERS if function.parameters is None else function.parameters
    check_depth(parameters, f"{at}.parameters")
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
            raise _no_choice('{"type": "function", "function": {"name": …}}')


def _flat_only(choice: str | FlatChoiceBody | None) -> str | None:
    match choice:
        case None | "auto" | "none" | "required":
            return None
        case FlatChoiceBody(type="function", name=str(name)):
            return name
        case _:
            raise _no_choice('{"type": "function", "name": …}')


def _no_choice(hint: str) -> RequestError:
    return RequestError(
        '`tool_choice` must be "auto", "none", "required", or name a function', param="tool_choice", hint=hint
    )


def _only_functions(at: str) -> RequestError:
    return RequestError(f"`{at}` is not supported yet: tools are functions", param=at)
