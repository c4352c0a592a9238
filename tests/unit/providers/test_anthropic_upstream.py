"""Anthropic behind us: what it is asked, and what its answer comes to."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.errors import RequestError, UpstreamError
from taximeter.providers import anthropic
from taximeter.providers.anthropic.render import DEFAULT_MAX_TOKENS
from taximeter.records import (
    ChoiceFinished,
    Dialect,
    Event,
    FinishReason,
    Form,
    FormKind,
    Image,
    Message,
    Prompt,
    Request,
    Sampling,
    TokensGenerated,
    Tool,
    Toolbox,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from tests.gateway_harness import a_call

ASKED = Request(
    id="req_0123456789abc",
    received_at=datetime.fromtimestamp(1_793_000_000, UTC),
    received_ns=0,
    dialect=Dialect.OPENAI_CHAT,
    model="claude",
)
HELLO = Message(role="user", content="hello")
ADD = Tool(name="add", description="Adds.", parameters={"properties": {"a": {}}}, strict=True)
NOW = Tool(name="now", parameters={"type": "object"})
CALLED = Message(
    role="assistant", content="I look.", tool_calls=(ToolCall(id="call/1", name="add", arguments='{"a": 1.0}'),)
)


def rendered(*messages: Message, request: Request = ASKED, **prompt: Any) -> dict[str, Any]:
    return json.loads(anthropic.render(request, Prompt(messages=messages or (HELLO,), **prompt)))


def refused(*messages: Message, request: Request = ASKED, **prompt: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        rendered(*messages, request=request, **prompt)
    return caught.value


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def test_the_smallest_question():
    """What has to be said is said, and nothing that is neutral."""
    assert rendered() == {
        "model": "claude",
        "max_tokens": DEFAULT_MAX_TOKENS,
        "messages": [{"role": "user", "content": [text("hello")]}],
        "stream": True,
    }


def test_sampling_limit_and_tier():
    """Under Anthropic's names."""
    sampling = Sampling(temperature=0.0, top_p=0.5, top_k=3, stop=("a",))
    body = rendered(request=replace(ASKED, sampling=sampling, max_output_tokens=7, tier="default"))
    assert body | {"messages": []} == {
        "model": "claude",
        "max_tokens": 7,
        "messages": [],
        "stream": True,
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 3,
        "stop_sequences": ["a"],
        "service_tier": "standard_only",
    }


def test_a_conversation():
    """Instructions apart, calls and results as blocks, results and the user's words in one turn, images in place."""
    body = rendered(
        Message(role="system", content=("be", "brief")),
        Message(
            role="user", content=("see", Image(url="https://x.test/a.png"), Image(data="aGk=", media_type="image/png"))
        ),
        CALLED,
        Message(role="tool", content="two", tool_call_id="call/1"),
        Message(role="tool", content="", tool_call_id="call_2"),
        Message(role="user", content="and?"),
        Message(role="assistant", content=""),
        Message(role="user", content="well?"),
    )
    assert body["system"] == [text("be"), text("brief")]
    assert body["messages"] == [
        {
            "role": "user",
            "content": [
                text("see"),
                {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
            ],
        },
        {
            "role": "assistant",
            "content": [text("I look."), {"type": "tool_use", "id": "call_1", "name": "add", "input": {"a": 1.0}}],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": [text("two")]},
                {"type": "tool_result", "tool_use_id": "call_2", "content": []},
                text("and?"),
                text("well?"),
            ],
        },
    ]


@pytest.mark.parametrize(
    ("toolbox", "choice"),
    [
        (Toolbox(tools=(ADD, NOW)), {"type": "auto"}),
        (Toolbox(tools=(ADD, NOW), parallel=False), {"type": "auto", "disable_parallel_tool_use": True}),
        (Toolbox(tools=(ADD, NOW), must_call=True), {"type": "any"}),
        (Toolbox(tools=(ADD, NOW), must_call=True, only="now"), {"type": "tool", "name": "now"}),
    ],
)
def test_tools(toolbox: Toolbox, choice: dict[str, Any]):
    """With their schemas, which always say that they are objects."""
    body = rendered(toolbox=toolbox)
    assert body["tools"] == [
        {
            "name": "add",
            "description": "Adds.",
            "input_schema": {"type": "object", "properties": {"a": {}}},
            "strict": True,
        },
        {"name": "now", "input_schema": {"type": "object"}},
    ]
    assert body["tool_choice"] == choice


def test_a_schema_for_the_answer():
    """Is asked for as it is written."""
    form = Form(kind=FormKind.JSON_SCHEMA, text='{"type": "object"}', field="response_format")
    assert rendered(form=form)["output_config"] == {"format": {"type": "json_schema", "schema": {"type": "object"}}}


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        (Sampling(temperature=1.5), "temperature"),
        (Sampling(choices=2), "n"),
        (Sampling(logprobs=0), "logprobs"),
        (Sampling(seed=0), "seed"),
        (Sampling(min_p=0.1), "min_p"),
        (Sampling(repetition_penalty=1.1), "repetition_penalty"),
        (Sampling(presence_penalty=0.1), "presence_penalty"),
        (Sampling(frequency_penalty=-0.1), "frequency_penalty"),
        (Sampling(logit_bias={1: 1}), "logit_bias"),
        (Sampling(min_tokens=1), "min_tokens"),
        (Sampling(ignore_eos=True), "ignore_eos"),
    ],
)
def test_wishes_that_anthropic_cannot_fulfil_are_refused(sampling: Sampling, param: str):
    """By the caller's name for them: without them it would be another answer."""
    error = refused(request=replace(ASKED, sampling=sampling))
    assert error.param == param
    assert param in error.message


def test_prompts_that_anthropic_cannot_read_are_refused():
    """Plain texts, other forms, what is broken."""
    for prompt in (Prompt(text="Once"), Prompt(token_ids=(1, 2))):
        with pytest.raises(RequestError) as caught:
            anthropic.render(ASKED, prompt)
        assert caught.value.param == "prompt"
    for kind in (FormKind.REGEX, FormKind.CHOICE, FormKind.GRAMMAR):
        assert refused(form=Form(kind=kind, text="[]", field="guided")).param == "guided"
    assert refused(form=Form(kind=FormKind.JSON_SCHEMA, text="{", field="json_schema")).param == "json_schema"
    assert refused(Message(role="user", content="")).param == "messages"
    assert refused(HELLO, Message(role="tool", content="x")).param == "messages"
    broken = replace(CALLED, tool_calls=(ToolCall(id="1", name="add", arguments="[1]"),))
    assert refused(HELLO, broken).param == "messages"
    assert refused(Message(role="system", content=(Image(url="x"),)), HELLO).param == "messages"
    assert refused(request=replace(ASKED, tier="flex")).param == "service_tier"


def test_what_a_client_asked_comes_out_as_it_went_in():
    """Through our own door and on to Anthropic: the same question."""
    asked = {
        "model": "claude",
        "max_tokens": 5,
        "system": [text("be brief")],
        "messages": [
            {
                "role": "user",
                "content": [text("see"), {"type": "image", "source": {"type": "url", "url": "https://x"}}],
            },
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "now", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [text("12")]}]},
        ],
        "tools": [{"name": "now", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto"},
        "temperature": 0.5,
        "stop_sequences": ["x"],
        "service_tier": "auto",
        "stream": True,
    }
    call = anthropic.MESSAGES.parse(json.dumps(asked).encode())
    request = replace(
        ASKED,
        dialect=Dialect.ANTHROPIC_MESSAGES,
        model=call.model,
        sampling=call.sampling,
        max_output_tokens=call.max_output_tokens,
        tier=call.tier,
    )
    assert json.loads(anthropic.render(request, call.prompt)) == asked


def sse(kind: str, **fields: object) -> tuple[bytes, bytes]:
    return kind.encode(), json.dumps({"type": kind, **fields}).encode()


def start(index: int, **block: object) -> tuple[bytes, bytes]:
    return sse("content_block_start", index=index, content_block=block)


def delta(index: int, **fields: object) -> tuple[bytes, bytes]:
    return sse("content_block_delta", index=index, delta=fields)


def stop(reason: str | None = "end_turn", sequence: str | None = None) -> tuple[bytes, bytes]:
    return sse("message_delta", delta={"stop_reason": reason, "stop_sequence": sequence}, usage={"output_tokens": 3})


END = sse("message_stop")


def read(*told: tuple[bytes, bytes], is_over: bool = True) -> list[Event]:
    reader = anthropic.MessagesReader()
    events = [event for at_ns, (name, data) in enumerate(told) for event in reader.event(name, data, at_ns)]
    return [*events, *reader.end(len(told))] if is_over else events


def finished(events: Sequence[Event]) -> tuple[FinishReason, str | None]:
    last = events[-1]
    assert isinstance(last, ChoiceFinished)
    assert not any(isinstance(event, ChoiceFinished) for event in events[:-1])
    return last.reason, last.stop


def test_an_answer_is_read():
    """Thinking, text and a call with its arguments, each stamped; what is no token makes no event."""
    events = read(
        sse("message_start", message={"id": "msg_1", "usage": {"input_tokens": 25, "output_tokens": 1}}),
        start(0, type="thinking", thinking="", signature=""),
        sse("ping"),
        delta(0, type="thinking_delta", thinking="hm"),
        delta(0, type="signature_delta", signature="s"),
        sse("content_block_stop", index=0),
        start(1, type="text", text=""),
        delta(1, type="text_delta", text=""),
        delta(1, type="text_delta", text="Hi"),
        delta(1, type="citations_delta", citation={}),
        sse("content_block_stop", index=1),
        start(2, type="tool_use", id="toolu_1", name="add", input={}),
        delta(2, type="input_json_delta", partial_json=""),
        delta(2, type="input_json_delta", partial_json='{"a":'),
        delta(2, type="input_json_delta", partial_json=" 1}"),
        sse("content_block_stop", index=2),
        stop("tool_use"),
        END,
    )
    begun = ToolCallDelta(index=0, id="toolu_1", name="add")
    assert events == [
        TokensGenerated(at_ns=3, choice=0, new_tokens=1, text="", reasoning="hm"),
        TokensGenerated(at_ns=8, choice=0, new_tokens=1, text="Hi"),
        TokensGenerated(
            at_ns=13, choice=0, new_tokens=1, text="", calls=(begun, ToolCallDelta(index=0, arguments='{"a":'))
        ),
        TokensGenerated(at_ns=14, choice=0, new_tokens=1, text="", calls=(ToolCallDelta(index=0, arguments=" 1}"),)),
        ChoiceFinished(at_ns=17, choice=0, reason=FinishReason.TOOL_CALLS),
    ]


@pytest.mark.parametrize(
    ("given", "arguments"),
    [({"input": {}}, "{}"), ({}, "{}"), ({"input": {"a": 1}}, '{"a":1}')],
)
@pytest.mark.parametrize("is_closed", [True, False])
def test_a_call_without_pieces(given: dict[str, object], arguments: str, is_closed: bool):
    """Without arguments, or with all of them in its beginning, also where a server forgets its end."""
    closing = [sse("content_block_stop", index=0)] if is_closed else []
    events = read(start(0, type="tool_use", id="t", name="now", **given), *closing, stop("tool_use"), END)
    told = [event for event in events if isinstance(event, TokensGenerated)]
    assert [event.calls for event in told] == [
        (ToolCallDelta(index=0, id="t", name="now"), ToolCallDelta(index=0, arguments=arguments))
    ]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("end_turn", FinishReason.STOP),
        ("max_tokens", FinishReason.LENGTH),
        ("model_context_window_exceeded", FinishReason.LENGTH),
        ("tool_use", FinishReason.TOOL_CALLS),
        ("refusal", FinishReason.REFUSAL),
        ("pause_turn", FinishReason.STOP),
        ("a_word_from_next_year", FinishReason.STOP),
        (None, FinishReason.STOP),
    ],
)
def test_why_it_ended(said: str | None, reason: FinishReason):
    """Also for words that are new, and for an end without one."""
    assert finished(read(stop(said), END)) == (reason, None)


def test_the_last_reason_counts_and_a_stop_sequence_is_told():
    """Later deltas may have none."""
    assert finished(read(stop("max_tokens"), stop("stop_sequence", "\n"), stop(None), END)) == (
        FinishReason.STOP,
        "\n",
    )


def test_a_stream_that_breaks_off():
    """Is cancelled where nothing said why it ends; else it has ended, though its last event is missing."""
    assert finished(read(start(0, type="text", text="Hi"))) == (FinishReason.CANCELLED, None)
    assert finished(read(stop("max_tokens"))) == (FinishReason.LENGTH, None)
    assert finished(read()) == (FinishReason.CANCELLED, None)


def test_nothing_comes_after_the_end():
    """An answer ends once."""
    assert read(END, END, start(0, type="text", text="Hi"), sse("error"), (b"", b"{")) == read(END)


@pytest.mark.parametrize(
    "event",
    [sse("ping"), sse("from_next_year", delta=3), (b"odd", b""), (b"", b"[DONE]"), (b"", b"{}"), (b"x", b"\xff")],
)
def test_events_that_nobody_knows_are_nothing(event: tuple[bytes, bytes]):
    """There will be new ones. So will there be blocks and deltas."""
    assert read(event, is_over=False) == []
    assert read(start(0, type="server_tool_use", id="s", name="n", input={"a": 1}), is_over=False) == []
    assert (
        read(delta(7, type="x_delta", x=1), delta(7, type="input_json_delta", partial_json="{}"), is_over=False) == []
    )


@pytest.mark.parametrize(("kind", "status"), [("overloaded_error", 529), ("api_error", 500), ("odd_error", None)])
def test_an_error_inside_a_stream(kind: str, status: int | None):
    """Says which, and keeps the provider's own words apart: they may quote the prompt."""
    with pytest.raises(UpstreamError) as caught:
        read(start(0, type="text", text="Hi"), sse("error", error={"type": kind, "message": "secret"}))
    assert kind in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.status == status
    assert "secret" in (caught.value.body or "")


@pytest.mark.parametrize(
    "event",
    [
        (b"content_block_delta", b""),
        (b"content_block_delta", b"{"),
        (b"content_block_delta", b'{"type": "content_block_delta"}'),
        (b"", b'{"type": 3}'),
        (b"", b'{"type": "message_delta", "delta": []}'),
        (b"", b'{"type": "error", "error": 3}'),
        (b"error", b"overloaded"),
        (b"", b'{"type": "content_block_start", "index": 0, "content_block": ' + b"[" * 100_000),
    ],
)
def test_what_cannot_be_read_is_the_providers_fault(event: tuple[bytes, bytes]):
    """Whatever it sends, it is an UpstreamError."""
    with pytest.raises(UpstreamError):
        read(event)


@given(st.lists(st.tuples(st.sampled_from([b"", b"error", b"message_delta"]), st.binary(max_size=40)), max_size=4))
def test_any_bytes_are_events_or_the_providers_fault(told: list[tuple[bytes, bytes]]):
    """Nothing else comes out."""
    with contextlib.suppress(UpstreamError):
        assert isinstance(read(*told)[-1], ChoiceFinished)


class Heard:
    """What some events come to, whoever cut them."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.text = self.reasoning = ""
        self.calls: dict[int, list[str]] = {}
        self.ends: list[tuple[FinishReason, str | None]] = []
        for event in events:
            match event:
                case TokensGenerated():
                    self.text += event.text
                    self.reasoning += event.reasoning
                    for piece in event.calls:
                        if piece.name is not None:
                            self.calls[piece.index] = [piece.id or "", piece.name, ""]
                        self.calls[piece.index][2] += piece.arguments
                case ChoiceFinished():
                    self.text += event.text
                    self.ends.append((event.reason, event.stop))
                case _:
                    raise AssertionError(event)


ARGUMENTS = st.dictionaries(st.text(max_size=3), st.text('{}[]",\\a', max_size=4) | st.integers(), max_size=2)
ENDS = st.sampled_from([reason for reason in FinishReason if reason is not FinishReason.CANCELLED])


@st.composite
def answers(draw: st.DrawFn) -> list[TokensGenerated | ChoiceFinished]:
    """Thinking, texts and calls, in pieces that may be mixed; calls begin in their order."""
    queues: list[list[dict[str, Any]]] = [
        [{"text": piece} for piece in draw(st.lists(st.text(max_size=3), max_size=3))],
        [{"text": "", "reasoning": piece} for piece in draw(st.lists(st.text(max_size=3), max_size=3))],
    ]
    openings: list[dict[str, Any]] = []
    for index, arguments in enumerate(draw(st.lists(ARGUMENTS, max_size=3))):
        written = json.dumps(arguments)
        at = draw(st.integers(0, len(written)))
        openings.append({"text": "", "calls": (ToolCallDelta(index=index, id=f"c{index}", name=f"f{index}"),)})
        pieces = [written[:at], written[at:]]
        queues.append([{"text": "", "calls": (ToolCallDelta(index=index, arguments=piece),)} for piece in pieces])
    told: list[dict[str, Any]] = []
    is_mixed = draw(st.booleans())
    if is_mixed:
        told += openings
    else:
        queues[2:] = [[opening, *pieces] for opening, pieces in zip(openings, queues[2:], strict=True)]
    while any(queues):
        filled = [queue for queue in queues if queue]
        told.append((draw(st.sampled_from(filled)) if is_mixed else filled[0]).pop(0))
    events: list[TokensGenerated | ChoiceFinished] = [
        TokensGenerated(at_ns=0, choice=0, new_tokens=1, **fields) for fields in told
    ]
    reason = draw(ENDS)
    sequence = draw(st.none() | st.just("\n")) if reason is FinishReason.STOP else None
    return [*events, ChoiceFinished(at_ns=0, choice=0, reason=reason, text=draw(st.text(max_size=2)), stop=sequence)]


def frames(stream: bytes) -> list[tuple[bytes, bytes]]:
    parts = [part.split(b"\n") for part in stream.split(b"\n\n") if part]
    return [(name.removeprefix(b"event: "), data.removeprefix(b"data: ")) for name, data in parts]


@given(answers())
def test_what_is_written_is_read_back(answer: list[TokensGenerated | ChoiceFinished]):
    """A stream that our writer made, read by our reader: the same texts, thoughts, calls and end."""
    writer = anthropic.MESSAGES.writer(ASKED, a_call())
    stream = b"".join(
        writer.tokens(event) if isinstance(event, TokensGenerated) else writer.finished(event) for event in answer
    )
    stream += writer.end(Usage(input_fresh_tokens=1, input_cache_read_tokens=0, output_text_tokens=1))
    assert vars(Heard(read(*frames(stream)))) == vars(Heard(answer))
