"""A request as a provider that speaks chat completions is asked it, or why it cannot be."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from taximeter.errors import RequestError
from taximeter.providers.openai import CHAT, render
from taximeter.records import (
    Dialect,
    Form,
    FormKind,
    Image,
    Message,
    Prompt,
    Request,
    Sampling,
    Tool,
    Toolbox,
    ToolCall,
)

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}}
HELLO = Message(role="user", content="hello")
ADD = Tool(name="add", description="Adds.", parameters=SCHEMA, strict=True)
NOW = Tool(name="now", parameters=SCHEMA)


def request(sampling: Sampling | None = None, **fields: Any) -> Request:
    defaults: dict[str, Any] = {"dialect": Dialect.ANTHROPIC_MESSAGES, "model": "m"}
    return Request(
        id="req_1",
        received_at=datetime.fromtimestamp(0, UTC),
        received_ns=0,
        sampling=sampling or Sampling(),
        **(defaults | fields),
    )


def rendered(*messages: Message, asked: Request | None = None, **prompt: Any) -> dict[str, Any]:
    return json.loads(render(asked or request(), Prompt(messages=messages or (HELLO,), **prompt)))


def refused(asked: Request | None = None, prompt: Prompt | None = None) -> RequestError:
    with pytest.raises(RequestError) as caught:
        render(asked or request(), prompt or Prompt(messages=(HELLO,)))
    return caught.value


def test_a_bare_request_has_nothing_that_was_not_asked():
    """It is streamed, and says at its end what it took."""
    assert rendered() == {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_turns_of_every_kind():
    """Texts in parts are paragraphs, as at our own door; images are parts, held in a URL where they have none."""
    call = ToolCall(id="c1", name="now", arguments='{"a": 1}')
    bare = ToolCall(id="c2", name="now", arguments="")
    assert rendered(
        Message(role="system", content="be brief"),
        Message(role="user", content=("a", Image(url="https://x/y"), Image(data="aGk=", media_type="image/png"))),
        Message(role="user", content=("a", "b")),
        Message(role="assistant", content="well", tool_calls=(call,)),
        Message(role="assistant", content="", tool_calls=(bare,)),
        Message(role="tool", content="noon", tool_call_id="c1", name="now"),
        Message(role="assistant", content=""),
    )["messages"] == [
        {"role": "system", "content": "be brief"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {"url": "https://x/y"}},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
            ],
        },
        {"role": "user", "content": "a\nb"},
        {
            "role": "assistant",
            "content": "well",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "now", "arguments": '{"a": 1}'}}],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c2", "type": "function", "function": {"name": "now", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
        {"role": "assistant", "content": ""},
    ]


@pytest.mark.parametrize(
    ("toolbox", "fields"),
    [
        (Toolbox(tools=(NOW,)), {}),
        (Toolbox(tools=(NOW,), must_call=True), {"tool_choice": "required"}),
        (
            Toolbox(tools=(NOW,), must_call=True, only="now", parallel=False),
            {"tool_choice": {"type": "function", "function": {"name": "now"}}, "parallel_tool_calls": False},
        ),
    ],
)
def test_tools_and_the_choice_among_them(toolbox: Toolbox, fields: dict[str, Any]):
    """What is neutral is left out."""
    body = rendered(toolbox=toolbox)
    assert body["tools"] == [{"type": "function", "function": {"name": "now", "parameters": SCHEMA}}]
    assert {name: body[name] for name in ("tool_choice", "parallel_tool_calls") if name in body} == fields


def test_a_tool_with_all_it_has():
    """Its description, and that it is strict."""
    function = rendered(toolbox=Toolbox(tools=(ADD,)))["tools"][0]["function"]
    assert function == {"name": "add", "description": "Adds.", "parameters": SCHEMA, "strict": True}


def test_every_field_that_this_dialect_has():
    """Limits, sampling and tier."""
    sampling = Sampling(
        temperature=0.5,
        top_p=0.9,
        presence_penalty=-0.5,
        frequency_penalty=0.25,
        seed=0,
        stop=("a",),
        choices=2,
        logit_bias={7: -100.0},
        logprobs=3,
    )
    asked = request(sampling, dialect=Dialect.OPENAI_RESPONSES, max_output_tokens=9, tier="flex")
    assert rendered(asked=asked) == rendered() | {
        "temperature": 0.5,
        "top_p": 0.9,
        "presence_penalty": -0.5,
        "frequency_penalty": 0.25,
        "seed": 0,
        "stop": ["a"],
        "n": 2,
        "logit_bias": {"7": -100.0},
        "logprobs": True,
        "top_logprobs": 3,
        "max_completion_tokens": 9,
        "service_tier": "flex",
    }
    greedy = rendered(asked=request(Sampling(temperature=0, logprobs=0)))
    assert (greedy["temperature"], greedy["logprobs"], "top_logprobs" in greedy) == (0, True, False)


@pytest.mark.parametrize(("asked", "written"), [("auto", None), ("standard_only", "default"), ("priority", "priority")])
def test_anthropics_words_for_tiers_are_translated(asked: str, written: str | None):
    """Its `auto` is the default here."""
    assert rendered(asked=request(tier=asked)).get("service_tier") == written


@pytest.mark.parametrize(
    ("text", "response_format"),
    [
        ('{"type":"object"}', {"type": "json_object"}),
        (
            json.dumps(SCHEMA),
            {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}},
        ),
    ],
)
def test_the_form_of_the_answer(text: str, response_format: dict[str, Any]):
    """Schemas are to be followed, not only known."""
    form = Form(kind=FormKind.JSON_SCHEMA, text=text, field="text.format")
    assert rendered(form=form)["response_format"] == response_format


@pytest.mark.parametrize(
    "form",
    [
        Form(kind=FormKind.REGEX, text="a+", field="f"),
        Form(kind=FormKind.CHOICE, text='["a"]', field="f"),
        Form(kind=FormKind.GRAMMAR, text="root ::= a", field="f"),
        Form(kind=FormKind.JSON_SCHEMA, text="{", field="f"),
        Form(kind=FormKind.JSON_SCHEMA, text="true", field="f"),
        Form(kind=FormKind.JSON_SCHEMA, text='{"a":' * 200 + "1" + "}" * 200, field="f"),
        Form(kind=FormKind.JSON_SCHEMA, text='{"a":' * 99_999 + "1" + "}" * 99_999, field="f"),
    ],
)
def test_a_form_that_this_dialect_has_no_word_for_is_refused(form: Form):
    """By the name that the caller has for it."""
    assert refused(prompt=Prompt(messages=(HELLO,), form=form)).param == "f"


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        (Sampling(top_k=5), "top_k"),
        (Sampling(min_p=0.1), "min_p"),
        (Sampling(repetition_penalty=1.1), "repetition_penalty"),
        (Sampling(min_tokens=3), "min_tokens"),
        (Sampling(ignore_eos=True), "ignore_eos"),
    ],
)
def test_a_field_that_this_dialect_has_no_word_for_is_refused(sampling: Sampling, param: str):
    """Leaving it out would give the answer to another question."""
    error = refused(request(sampling))
    assert error.param == param
    assert f"`{param}`" in error.message


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (Prompt(text="hello"), "prompt"),
        (Prompt(token_ids=(1,)), "prompt"),
        (Prompt(messages=(Message(role="tool", content="noon"),)), "messages"),
        (Prompt(messages=(Message(role="tool", content=(Image(url="x"),), tool_call_id="c"),)), "messages"),
        (Prompt(messages=(Message(role="system", content=("a", Image(url="x"))),)), "messages"),
    ],
)
def test_a_prompt_that_cannot_be_sent_is_refused(prompt: Prompt, param: str):
    """Only users show images, and only conversations are answered."""
    assert refused(prompt=prompt).param == param


def test_what_our_own_door_reads_from_it_is_what_was_asked():
    """Both directions of the dialect agree."""
    prompt = Prompt(
        messages=(
            Message(role="system", content="be brief"),
            Message(role="user", content=("a", Image(data="aGk=", media_type="image/png"))),
            Message(role="assistant", content="b", tool_calls=(ToolCall(id="c", name="add", arguments="{}"),)),
            Message(role="tool", content="3", tool_call_id="c"),
        ),
        toolbox=Toolbox(tools=(ADD, NOW), must_call=True, only="add", parallel=False),
        form=Form(kind=FormKind.JSON_SCHEMA, text=json.dumps(SCHEMA, separators=(",", ":")), field="response_format"),
    )
    sampling = Sampling(temperature=0.5, top_p=0.1, seed=7, stop=("a", "b"), choices=2, logprobs=3)
    asked = request(sampling, max_output_tokens=9, tier="flex")
    call = CHAT.parse(render(asked, prompt))
    assert (call.prompt, call.sampling) == (prompt, sampling)
    assert (call.model, call.max_output_tokens, call.tier, call.stream) == ("m", 9, "flex", True)
