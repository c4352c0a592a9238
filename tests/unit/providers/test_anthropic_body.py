"""What an Anthropic client asks arrives as records, or is refused by the name of its field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.errors import RequestError
from taximeter.providers import anthropic
from taximeter.providers.door import Call
from taximeter.records import Form, FormKind, Image, Message, Prompt, Sampling, Tool, Toolbox, ToolCall

USER = {"role": "user", "content": "hello"}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"b": {}, "a": {}}}
ADD = {"name": "add", "description": "Adds.", "input_schema": SCHEMA, "strict": True, "cache_control": {"type": "x"}}
NOW = {"type": "custom", "name": "now", "input_schema": {"type": "object"}}
TOOLS = (
    Tool(name="add", description="Adds.", parameters=SCHEMA, strict=True),
    Tool(name="now", parameters={"type": "object"}),
)
PIXEL = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}


def body(**fields: object) -> bytes:
    return json.dumps({"model": "m", "max_tokens": 9, "messages": [USER], **fields}).encode()


def parse(**fields: object) -> Call:
    return anthropic.MESSAGES.parse(body(**fields))


def messages(*turns: object, **fields: object) -> tuple[Message, ...]:
    """What some turns come to; they need not end with a user's."""
    _, prompt = anthropic.parse_count(body(messages=turns, **fields))
    assert prompt.messages is not None
    return prompt.messages


def said(*blocks: object, role: str = "user") -> dict[str, object]:
    return {"role": role, "content": list(blocks)}


def text(words: str, **fields: object) -> dict[str, object]:
    return {"type": "text", "text": words, **fields}


def refused(**fields: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(**fields)
    return caught.value


def test_the_smallest_body():
    """Everything that is left out has its neutral value."""
    assert parse() == Call(
        model="m",
        prompt=Prompt(messages=(Message(role="user", content="hello"),)),
        sampling=Sampling(),
        max_output_tokens=9,
        stream=False,
        include_usage=True,
    )


def test_sampling_limits_and_tier():
    """Each under the name that the records have for it."""
    call = parse(
        temperature=0, top_p=0.5, top_k=3, stop_sequences=["a", "b"], stream=True, service_tier="standard_only"
    )
    assert call.sampling == Sampling(temperature=0, top_p=0.5, top_k=3, stop=("a", "b"))
    assert (call.stream, call.tier) == (True, "standard_only")


def test_what_changes_no_answer_is_ignored():
    """Marks for caches, budgets, wishes about speed, and what nobody here knows."""
    ignored = {
        "metadata": {"user_id": "u"},
        "thinking": {"type": "enabled", "budget_tokens": 2048},
        "cache_control": {"type": "ephemeral"},
        "context_management": {"edits": []},
        "output_config": {"effort": "low"},
        "speed": "fast",
        "container": None,
        "mcp_servers": [],
        "from_next_year": 1,
    }
    assert parse(**ignored) == parse()


@pytest.mark.parametrize(
    ("given", "content"),
    [
        ("be brief", "be brief"),
        ([text("be brief", cache_control={"type": "ephemeral"})], "be brief"),
        ([text("be"), text("brief")], ("be", "brief")),
    ],
)
def test_instructions_come_first(given: object, content: object):
    """As one message, in its parts."""
    assert messages(USER, system=given)[0] == Message(role="system", content=content)
    assert [message.role for message in messages(USER, system=given)] == ["system", "user"]


@pytest.mark.parametrize("given", ["", [], None])
def test_no_instructions(given: object):
    """Nothing is made of nothing."""
    assert messages(USER, system=given) == messages(USER)


def test_images_keep_their_place():
    """Data and addresses, between texts."""
    by_url = {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}}
    (message,) = messages(said(text("this"), PIXEL, by_url, text("what?")))
    assert message.content == (
        "this",
        Image(data="aGk=", media_type="image/png"),
        Image(url="https://x.test/a.png"),
        "what?",
    )


def test_calls_and_their_results():
    """Arguments as they are, results as turns of their own, what the user says beside them behind them."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"b": 1.0, "a": [1]}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("two"), PIXEL]}
    failed = {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no such file", "is_error": True}
    silent = {"type": "tool_result", "tool_use_id": "toolu_3"}
    assert messages(USER, said(text("I add"), call, role="assistant"), said(result, failed, silent, text("go on"))) == (
        Message(role="user", content="hello"),
        Message(
            role="assistant",
            content="I add",
            tool_calls=(ToolCall(id="toolu_1", name="add", arguments='{"b":1.0,"a":[1]}'),),
        ),
        Message(role="tool", content=("two", Image(data="aGk=", media_type="image/png")), tool_call_id="toolu_1"),
        Message(role="tool", content="Error: no such file", tool_call_id="toolu_2"),
        Message(role="tool", content="", tool_call_id="toolu_3"),
        Message(role="user", content="go on"),
    )


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("no such file", "Error: no such file"),
        ("Error: no such file", "Error: no such file"),
        ("<tool_use_error>No such file</tool_use_error>", "<tool_use_error>No such file</tool_use_error>"),
        ("FAILED tests/a.py", "FAILED tests/a.py"),
        ("Terror in the theatre: not found", "Error: Terror in the theatre: not found"),
        ("", "Error"),
        (None, "Error"),
        ([], "Error"),
        ([text("no"), text("more")], ("Error: no", "more")),
        ([PIXEL], ("Error", Image(data="aGk=", media_type="image/png"))),
    ],
)
def test_a_tool_that_failed_says_so_once(content: object, told: object):
    """In words, because whoever reads it has no other mark for that; where it says so itself nothing is added."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, "is_error": True}
    read = messages(USER, said(call, role="assistant"), said(result))[2]
    assert read.content == told


def test_thinking_is_dropped_from_the_history():
    """It is signed for who thought it. What is left of the turn stays, and so does the order of turns."""
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    hidden = {"type": "redacted_thinking", "data": "x"}
    assert messages(USER, said(thought, hidden, text("yes"), role="assistant"), USER)[1].content == "yes"
    assert messages(USER, said(thought, role="assistant"), USER)[1] == Message(role="assistant", content="")


def test_turns_of_one_role_are_one():
    """As Anthropic has it; results of tools stay apart."""
    first, second = said(text("a")), said(text("b"), text("c"))
    assert messages(first, second, USER) == (Message(role="user", content=("a", "b", "c", "hello")),)
    assert messages({"role": "system", "content": "x"}, USER, system="y")[0].content == ("y", "x")


def test_very_many_turns_are_read_in_no_time():
    """A body of the length that the door lets in, made of nothing but turns: work that grew with the square of their
    number would not end before the test's time is up."""
    (message,) = messages(*[{"role": "user", "content": "a"}] * 250_000)
    assert len(message.content) == 250_000


@pytest.mark.parametrize(
    ("choice", "toolbox"),
    [
        (None, Toolbox(tools=TOOLS)),
        ({"type": "auto"}, Toolbox(tools=TOOLS)),
        ({"type": "none"}, None),
        ({"type": "any", "disable_parallel_tool_use": True}, Toolbox(tools=TOOLS, must_call=True, parallel=False)),
        ({"type": "tool", "name": "now"}, Toolbox(tools=TOOLS, must_call=True, only="now")),
    ],
)
def test_tools_and_the_choice_among_them(choice: object, toolbox: Toolbox | None):
    """In their order, with the order of their schemas' parts."""
    arrived = parse(tools=[ADD, NOW], tool_choice=choice).prompt.toolbox
    assert arrived == toolbox
    if arrived is not None:
        assert list(arrived.tools[0].parameters["properties"]) == ["b", "a"]


@pytest.mark.parametrize("field", ["output_config.format", "output_format"])
def test_the_form_of_the_answer(field: str):
    """A JSON schema, under its name and under its older one."""
    given: dict[str, Any] = {"type": "json_schema", "schema": SCHEMA}
    fields = {"output_format": given} if field == "output_format" else {"output_config": {"format": given}}
    form = Form(kind=FormKind.JSON_SCHEMA, text='{"type":"object","properties":{"b":{},"a":{}}}', field=field)
    assert parse(**fields).prompt.form == form


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": ""}, "model"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"top_p": -1}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [said()]}, "messages[0].content"),
        ({"messages": [USER, {"role": "assistant", "content": "It is"}]}, "messages[1]"),
        ({"messages": [said(text("a"), {"type": "text"})]}, "messages[0].content[1].text"),
        ({"messages": [said({"type": "image"})]}, "messages[0].content[0].source"),
        ({"messages": [said({"type": "image", "source": "x"})]}, "messages[0].content[0].source"),
        ({"messages": [said({"type": "image", "source": {"type": "file"}})]}, "messages[0].content[0].source"),
        ({"messages": [said({"type": "image", "source": {"type": "url"}})]}, "messages[0].content[0].source.url"),
        ({"messages": [said({"type": "document", "source": {"type": "text"}})]}, "messages[0].content[0]"),
        ({"messages": [said({"type": "search_result", "source": "https://x.test"})]}, "messages[0].content[0]"),
        ({"messages": [said({"type": "tool_use", "id": "1", "name": "a", "input": {}})]}, "messages[0].content[0]"),
        ({"messages": [said({"type": "tool_result"})]}, "messages[0].content[0].tool_use_id"),
        (
            {"messages": [said({"type": "tool_result", "tool_use_id": "1", "content": 3})]},
            "messages[0].content[0].content",
        ),
        (
            {"messages": [said({"type": "tool_result", "tool_use_id": "1", "content": [{"type": "document"}]})]},
            "messages[0].content[0].content[0]",
        ),
        (
            {"messages": [said({"type": "tool_use", "id": "1", "name": "a b", "input": {}}, role="assistant")]},
            "messages[0].content[0].name",
        ),
        (
            {"messages": [said({"type": "tool_use", "id": "1", "name": "a"}, role="assistant")]},
            "messages[0].content[0].input",
        ),
        ({"messages": [said({"type": "server_tool_use"}, role="assistant")]}, "messages[0].content[0]"),
        ({"system": [PIXEL]}, "system[0]"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [NOW, NOW]}, "tools"),
        ({"tools": [NOW], "tool_choice": {"type": "tool", "name": "add"}}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [NOW], "tool_choice": {"type": "all"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"output_format": {"type": "xml"}}, "output_format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"container": "c"}, "container"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"compaction": {"type": "compaction"}}, "compaction"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    ],
)
def test_what_cannot_be_served_is_refused_and_named(fields: dict[str, object], param: str):
    """The field, as the client wrote it, and a sentence with it."""
    error = refused(**fields)
    assert error.param == param
    assert param.rpartition(".")[2].partition("[")[0] in str(error)


def test_a_count_needs_no_limit_and_may_end_anywhere():
    """It is asked about parts of conversations."""
    model, prompt = anthropic.parse_count(
        json.dumps({"model": "m", "messages": [USER, {"role": "assistant", "content": "It is"}]}).encode()
    )
    assert model == "m"
    assert [message.role for message in prompt.messages or ()] == ["user", "assistant"]


@pytest.mark.parametrize("bad", [b"", b"[]", b"{", b'"x"', b"[" * 100_000, b'{"model": "m", "max_tokens": 1}'])
def test_what_is_no_messages_body_is_refused(bad: bytes):
    """By both endpoints, without a crash."""
    for read in (anthropic.MESSAGES.parse, anthropic.parse_count):
        with pytest.raises(RequestError):
            read(bad)


def test_depth_is_bounded():
    """Whoever walks through it later does not fall."""
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"a": deep}
    call = {"type": "tool_use", "id": "1", "name": "a", "input": deep}
    assert refused(tools=[{"name": "a", "input_schema": deep}]).param == "tools[0].input_schema"
    assert refused(messages=[said(call, role="assistant"), USER]).param == "messages[0].content[0].input"
    assert refused(output_format={"type": "json_schema", "schema": deep}).param == "output_format"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
BLOCK = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image", "tool_use", "tool_result", "thinking", "document", ""])},
    optional=dict.fromkeys(("text", "source", "id", "name", "input", "tool_use_id", "content", "is_error"), JSON),
)
TURN = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool"]), "content": JSON | st.lists(BLOCK, max_size=3)}
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "model": JSON,
        "max_tokens": JSON,
        "messages": JSON | st.lists(TURN, max_size=3),
        "system": JSON | st.lists(BLOCK, max_size=2),
        "tools": JSON | st.lists(JSON, max_size=2),
        "tool_choice": JSON,
        "stop_sequences": JSON,
        "output_config": JSON,
        "temperature": JSON,
    },
)


@given(FIELDS)
def test_any_json_is_either_a_call_or_a_request_error(fields: dict[str, object]):
    """Nothing else comes out, whatever goes in."""
    try:
        call = parse(**fields)
    except RequestError:
        return
    assert call.prompt.messages
