"""Tools, choices and calls of a conversation arrive as records, or are refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from taximeter.errors import RequestError
from taximeter.providers.openai import CHAT
from taximeter.records import Message, Prompt, Tool, Toolbox, ToolCall

HELLO = [{"role": "user", "content": "hello"}]
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"b": {}, "a": {}}}
ADD = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA, "strict": True}}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = (
    Tool(name="add", description="Adds.", parameters=SCHEMA, strict=True),
    Tool(name="now", parameters={"type": "object", "properties": {}}),
)


def prompt(messages: object = HELLO, **fields: object) -> Prompt:
    return CHAT.parse(json.dumps({"model": "m", "messages": messages, **fields}).encode()).prompt


def refused(**fields: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        prompt(**fields)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "toolbox"),
    [
        ({}, Toolbox(tools=TOOLS)),
        ({"tool_choice": "auto"}, Toolbox(tools=TOOLS)),
        ({"tool_choice": None, "parallel_tool_calls": None}, Toolbox(tools=TOOLS)),
        ({"tool_choice": "none"}, None),
        ({"tool_choice": "required"}, Toolbox(tools=TOOLS, must_call=True)),
        (
            {"tool_choice": {"type": "function", "function": {"name": "now"}}, "parallel_tool_calls": False},
            Toolbox(tools=TOOLS, must_call=True, only="now", parallel=False),
        ),
    ],
)
def test_tools_and_the_choice_among_them(fields: dict[str, object], toolbox: Toolbox | None):
    """A choice of none is as if there were no tools: the model is not shown any."""
    arrived = prompt(tools=[ADD, NOW], **fields).toolbox
    assert arrived == toolbox
    if arrived is not None:
        assert list(arrived.tools[0].parameters["properties"]) == ["b", "a"]


@pytest.mark.parametrize("fields", [{}, {"tools": []}, {"tool_choice": "none"}, {"tool_choice": "auto", "tools": None}])
def test_no_tools(fields: dict[str, object]):
    """Clients send a choice without anything to choose from."""
    assert prompt(**fields).toolbox is None


def named(name: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [NOW, NOW]}, "tools"),
        ({"tools": [named(f"f{n}") for n in range(129)]}, "tools"),
        ({"tools": [NOW, {"type": "web_search"}]}, "tools[1].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [named("")]}, "tools[0].function.name"),
        ({"tools": [named("a b")]}, "tools[0].function.name"),
        ({"tools": [named("<|im_end|>")]}, "tools[0].function.name"),
        ({"tools": [named("x" * 129)]}, "tools[0].function.name"),
        ({"tools": [named(3)]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": "add"}, "tools"),
        ({"tools": [NOW], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": named("add")}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": named("add")}, "tool_choice"),
        ({"tools": [NOW], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(fields: dict[str, object], param: str):
    """Names that no grammar or template could hold, tools that are no functions, choices of nothing."""
    assert refused(**fields).param == param


def test_parameters_without_a_bottom_are_refused():
    """Templates and grammars walk through them."""
    deep = '{"items":' * 200 + "{}" + "}" * 200
    tool = '{"type": "function", "function": {"name": "f", "parameters": ' + deep + "}}"
    body = '{"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [' + tool + "]}"
    with pytest.raises(RequestError, match="levels deep"):
        CHAT.parse(body.encode())


def test_a_conversation_with_calls():
    """An assistant's turn needs no text where it has calls; results say which call they are of."""
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call, call | {"id": "c2"}]},
        {"role": "tool", "tool_call_id": "c1", "name": "add", "content": "2"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "2"}]},
        {"role": "assistant", "content": "2", "tool_calls": []},
    ]
    calls = tuple(ToolCall(id=name, name="add", arguments='{"a": 1}') for name in ("c1", "c2"))
    assert prompt(messages).messages == (
        Message(role="user", content="hello"),
        Message(role="assistant", content="", tool_calls=calls),
        Message(role="tool", content="2", tool_call_id="c1", name="add"),
        Message(role="tool", content="2", tool_call_id="c2"),
        Message(role="assistant", content="2"),
    )


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": "x", "tool_calls": [{"id": "1", **NOW}]}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": []}, "messages[0].content"),
        (
            {
                "role": "assistant",
                "tool_calls": [{"id": "1", "type": "custom", "function": {"name": "f", "arguments": ""}}],
            },
            "messages[0].tool_calls[0].type",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "a b", "arguments": "{}"}}]},
            "messages[0].tool_calls[0].function.name",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {}}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_calls_that_cannot_be_represented_are_refused_by_name(message: dict[str, object], param: str):
    """Half calls, calls of users, calls of other things than functions."""
    if param == "messages[0].tool_calls":
        message["tool_calls"] = [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]
    assert refused(messages=[message]).param == param
