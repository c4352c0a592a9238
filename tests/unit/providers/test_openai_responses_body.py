"""What a client may ask of the Responses endpoint, and how it is told that it may not."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.errors import RequestError
from taximeter.providers.door import Call
from taximeter.providers.openai import RESPONSES
from taximeter.providers.openai.responses_body import _ResponsesBody
from taximeter.records import Dialect, Form, FormKind, Image, Message, Prompt, Sampling, Tool, Toolbox, ToolCall

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}
ADD = {"type": "function", "name": "add", "description": "Adds.", "parameters": SCHEMA, "strict": True}
NOW = {"type": "function", "name": "now"}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "now", "arguments": "{}", "status": "completed"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "noon"}


def parse(given: object = "hello", **fields: object) -> Call:
    return RESPONSES.parse(json.dumps({"model": "m", "input": given, **fields}).encode())


def refused(given: object = "hello", **fields: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(given, **fields)
    return caught.value


def messages(given: object, **fields: object) -> tuple[Message, ...] | None:
    return parse(given, **fields).prompt.messages


def test_a_bare_request_gets_the_defaults():
    """Temperature 1, one choice, no limit of its own, not streamed."""
    call = parse()
    assert RESPONSES.dialect is Dialect.OPENAI_RESPONSES
    assert call.sampling == Sampling()
    assert call.prompt == Prompt(messages=(Message(role="user", content="hello"),))
    assert (call.max_output_tokens, call.stream, call.tier) == (None, False, None)


def test_instructions_come_first():
    """They are what other dialects call the system's message."""
    assert messages("hello", instructions="be brief") == (
        Message(role="system", content="be brief"),
        Message(role="user", content="hello"),
    )


def test_items_of_every_kind_become_turns():
    """With and without a type, in either form of content; a thought is not shown again."""
    items = [
        {"role": "developer", "content": "be brief"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "b", "annotations": []}, {"type": "refusal", "refusal": "c"}],
        },
        CALL,
        RESULT,
    ]
    assert messages(items) == (
        Message(role="system", content="be brief"),
        Message(role="user", content="a"),
        Message(role="assistant", content="b\nc", tool_calls=(ToolCall(id="c1", name="now", arguments="{}"),)),
        Message(role="tool", content="noon", tool_call_id="c1"),
    )


def test_calls_in_a_row_are_one_turn():
    """Also where the assistant said nothing; and after a result a new turn begins."""
    one, two = (ToolCall(id=name, name="now", arguments="{}") for name in ("c1", "c2"))
    other = CALL | {"call_id": "c2"}
    assert messages([CALL, other, RESULT, other]) == (
        Message(role="assistant", content="", tool_calls=(one, two)),
        Message(role="tool", content="noon", tool_call_id="c1"),
        Message(role="assistant", content="", tool_calls=(two,)),
    )


def test_a_conversation_of_many_calls_is_read_in_time():
    """A body may have a hundred thousand in a row; what is done for each must not grow with them."""
    (turn,) = messages([CALL] * 100_000) or ()
    assert len(turn.tool_calls) == 100_000


def test_images_arrive():
    """In messages and in what a tool gives back."""
    shown = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "https://x/y", "detail": "auto"}]
    content = ("a", Image(url="https://x/y"))
    assert messages([{"role": "user", "content": shown}]) == (Message(role="user", content=content),)
    assert messages([RESULT | {"output": shown}]) == (Message(role="tool", content=content, tool_call_id="c1"),)


@pytest.mark.parametrize(
    ("fields", "toolbox"),
    [
        ({}, Toolbox(tools=(Tool(name="add", description="Adds.", parameters=SCHEMA, strict=True),))),
        ({"tool_choice": "none"}, None),
        ({"tools": []}, None),
        (
            {"tools": [NOW | {"strict": None}], "tool_choice": "required", "parallel_tool_calls": False},
            Toolbox(
                tools=(Tool(name="now", parameters={"type": "object", "properties": {}}),),
                must_call=True,
                parallel=False,
            ),
        ),
        (
            {"tools": [NOW], "tool_choice": {"type": "function", "name": "now"}},
            Toolbox(
                tools=(Tool(name="now", parameters={"type": "object", "properties": {}}),), must_call=True, only="now"
            ),
        ),
    ],
)
def test_tools_and_the_choice_among_them(fields: dict[str, Any], toolbox: Toolbox | None):
    """Flat, as this endpoint has them."""
    assert parse(**({"tools": [ADD]} | fields)).prompt.toolbox == toolbox


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (None, None),
        ({"verbosity": "low"}, None),
        ({"format": {"type": "text"}}, None),
        ({"format": {"type": "json_object"}}, '{"type":"object"}'),
        ({"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}, SCHEMA),
    ],
)
def test_the_form_of_the_text(text: object, form: object):
    """`text.format` is what `response_format` is elsewhere."""
    written = form if isinstance(form, str | None) else msgspec.json.encode(form).decode()
    expected = None if written is None else Form(kind=FormKind.JSON_SCHEMA, text=written, field="text.format")
    assert parse(text=text).prompt.form == expected


def test_every_other_field_that_counts_arrives():
    """This endpoint's own and those of the others."""
    call = parse(
        max_output_tokens=9,
        temperature=0.5,
        top_p=0.9,
        stream=True,
        service_tier="flex",
        top_logprobs=3,
        seed=7,
        top_k=5,
        stop="x",
    )
    assert (call.max_output_tokens, call.stream, call.tier) == (9, True, "flex")
    assert call.sampling == Sampling(temperature=0.5, top_p=0.9, logprobs=3, seed=7, top_k=5, stop=("x",))
    assert parse(include=["message.output_text.logprobs"]).sampling.logprobs == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"store": True},
        {"store": False},
        {"metadata": {"a": "b"}},
        {"reasoning": {"effort": "high", "summary": "auto"}},
        {"include": ["reasoning.encrypted_content"]},
        {"truncation": "auto"},
        {"stream": True, "stream_options": {"include_obfuscation": False}},
        {"previous_response_id": None, "background": False, "conversation": None},
        {"prompt_cache_key": "k", "safety_identifier": "s", "user": "u", "max_tool_calls": 3},
        {"n": 1},
    ],
)
def test_what_changes_no_answer_is_accepted(fields: dict[str, object]):
    """Clients send what they always send."""
    assert parse(**fields).sampling == Sampling()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [NOW | {"name": "a b"}]}, "tools[0].name"),
        ({"tools": [NOW], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": "maybe"}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"n": 2}, "n"),
        ({"truncation": "some"}, "truncation"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"temperature": "hot"}, "temperature"),
        ({"metadata": 3}, "metadata"),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(fields: dict[str, object], param: str):
    """An answer to another question would be worse than none."""
    error = refused(**fields)
    assert error.param == param
    assert f"`{param}`" in error.message


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ([], "input"),
        ([{"type": "reasoning", "summary": []}], "input"),
        (3, "input"),
        ([3], "input[0]"),
        ([{"role": "wizard", "content": "x"}], "input[0].role"),
        ([{"role": "tool", "content": "x"}], "input[0].role"),
        ([{"role": "user"}], "input[0].content"),
        ([{"role": "user", "content": 3}], "input[0].content"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "refusal"}]}], "input[0].content[0].refusal"),
        ([{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}], "input[0].content[0]"),
        ([{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}], "input[0].content[0]"),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}], "input[0].content[0].image_url"),
        ([RESULT, {"type": "item_reference", "id": "msg_1"}], "input[1]"),
        (
            [{"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot"}}],
            "input[0].type",
        ),
        ([CALL | {"name": ""}], "input[0].name"),
        ([{"type": "function_call", "call_id": "c", "name": "now"}], "input[0].arguments"),
        ([{"type": "function_call_output", "output": "x"}], "input[0].call_id"),
        ([RESULT | {"output": {"a": 1}}], "input[0].output"),
    ],
)
def test_an_item_that_cannot_be_read_is_refused_by_its_place(given: object, param: str):
    """Files, references and the calls of built-in tools are said to be so, not dropped."""
    assert refused(given).param == param


def test_a_body_without_input_is_refused():
    """There is nothing to answer."""
    with pytest.raises(RequestError) as caught:
        RESPONSES.parse(b'{"model": "m"}')
    assert caught.value.param == "input"


@pytest.mark.parametrize("field", ["tools", "metadata", "text", "reasoning", "tool_choice"])
def test_depth_is_refused(field: str):
    """Whatever is repeated in the answer has to be written again."""
    deep = b"[" * 300 + b"]" * 300
    inside = {"tools": b'[{"type":"function","name":"a","x":%s}]', "tool_choice": b'{"type":"function","name":%s}'}
    value = inside.get(field, b'{"a":%s}') % deep
    with pytest.raises(RequestError):
        RESPONSES.parse(b'{"model": "m", "input": "x", "%s": %s}' % (field.encode(), value))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
KINDS = st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "item_reference", "x", None])
ITEM = st.fixed_dictionaries(
    {},
    optional={
        "type": KINDS,
        "role": st.sampled_from(["user", "assistant", "developer"]) | JSON,
        "content": JSON | st.lists(st.fixed_dictionaries({"type": st.just("input_text"), "text": st.text()})),
        "call_id": st.text() | JSON,
        "name": st.sampled_from(["now", "a b"]) | JSON,
        "arguments": st.text() | JSON,
        "output": st.text() | JSON,
    },
)
FIELDS = st.sampled_from([field.name for field in msgspec.structs.fields(_ResponsesBody)])


@given(st.lists(ITEM, max_size=5) | JSON, st.dictionaries(FIELDS, JSON, max_size=3))
def test_any_json_is_either_a_call_or_a_request_error(given: object, fields: dict[str, object]):
    """Whatever arrives, nothing but RequestError comes out."""
    with contextlib.suppress(RequestError):
        body = json.dumps({"model": "m", "input": given} | fields).encode()
        assert RESPONSES.parse(body).prompt.messages


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_error(body: bytes):
    """The same for bytes that are no JSON at all."""
    with pytest.raises(RequestError):
        RESPONSES.parse(body)


def test_every_field_is_documented():
    """docs/api.md says of each field of this endpoint whether it is accepted or refused."""
    page = (Path(__file__).parents[3] / "docs" / "api.md").read_text("utf-8")
    section = page[page.index("\n## Responses\n") :]
    own = {field.name for field in msgspec.structs.fields(_ResponsesBody)} & set(_ResponsesBody.__annotations__)
    assert {name for name in own if f"`{name}" not in section} == set()
