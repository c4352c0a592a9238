"""Tools as Anthropic writes them: definitions, and choices among them.

Owns: the shapes, and the sentence for each that cannot be served. Refuses to know: calls and results, which are blocks
of a conversation; how models write calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from taximeter.errors import RequestError
from taximeter.providers.bodies import unsupported
from taximeter.providers.schemas import check_depth
from taximeter.providers.toolboxes import check_tool_name, toolbox_of_tools
from taximeter.records import Tool, Toolbox


class ToolBody(msgspec.Struct):
    """One entry of `tools`: with no type, or `custom`, a tool of the caller's own."""

    type: str | None = None
    name: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ChoiceBody(msgspec.Struct):
    """`tool_choice`."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


def toolbox_of(tools: Sequence[ToolBody] | None, choice: ChoiceBody | None) -> Toolbox | None:
    """What a call may use; None when that is no tool at all. Raises RequestError."""
    choice = choice or ChoiceBody("auto")
    if choice.type not in ("auto", "any", "tool", "none"):
        raise RequestError("`tool_choice.type` must be auto, any, tool or none", param="tool_choice.type")
    if choice.type == "tool" and choice.name is None:
        raise RequestError("`tool_choice.name` is missing", param="tool_choice.name")
    return toolbox_of_tools(
        [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools or ())],
        are_hidden=choice.type == "none",
        must_call=choice.type in ("any", "tool"),
        only=choice.name if choice.type == "tool" else None,
        parallel=not choice.disable_parallel_tool_use,
    )


def _tool(tool: ToolBody, at: str) -> Tool:
    if tool.type not in (None, "custom"):
        raise unsupported(
            f"{at}.type",
            f"tools of type `{tool.type[:64]}` are Anthropic's own",
            hint="give it as a custom tool, with a name and an input_schema",
        )
    if tool.name is None:
        raise RequestError(f"`{at}.name` is missing", param=f"{at}.name")
    check_tool_name(tool.name, f"{at}.name")
    if tool.input_schema is None:
        raise RequestError(f"`{at}.input_schema` is missing", param=f"{at}.input_schema")
    check_depth(tool.input_schema, f"{at}.input_schema")
    return Tool(name=tool.name, description=tool.description, parameters=tool.input_schema, strict=bool(tool.strict))
