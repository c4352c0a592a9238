"""What a client gets back in Anthropic's dialect, event by event."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from taximeter.providers import anthropic
from taximeter.providers.door import AnswerWriter, Fault, FaultKind
from taximeter.records import (
    ChoiceFinished,
    Dialect,
    FinishReason,
    ModelInfo,
    Request,
    TokensGenerated,
    ToolCallDelta,
    Usage,
)
from tests.gateway_harness import a_call

USAGE = Usage(input_fresh_tokens=7, input_cache_read_tokens=5, output_text_tokens=3)
FOUND = {
    "input_tokens": 7,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 5,
    "output_tokens": 3,
    "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
    "output_tokens_details": {"thinking_tokens": 0},
}


def writer() -> AnswerWriter:
    request = Request(
        id="req_0123456789abc",
        received_at=datetime.fromtimestamp(1_793_000_000, UTC),
        received_ns=0,
        dialect=Dialect.ANTHROPIC_MESSAGES,
        model="m",
    )
    return anthropic.MESSAGES.writer(request, a_call())


def token(text: str = "", *calls: ToolCallDelta, reasoning: str = "") -> TokensGenerated:
    return TokensGenerated(at_ns=0, choice=0, new_tokens=1, text=text, reasoning=reasoning, calls=calls)


def begun(index: int) -> ToolCallDelta:
    return ToolCallDelta(index=index, id=f"call_{index}", name=f"f{index}")


def piece(index: int, arguments: str) -> ToolCallDelta:
    return ToolCallDelta(index=index, arguments=arguments)


def end(reason: FinishReason = FinishReason.STOP, *, text: str = "", stop: str | None = None) -> ChoiceFinished:
    return ChoiceFinished(at_ns=0, choice=0, reason=reason, text=text, stop=stop)


def events(stream: bytes) -> list[dict[str, Any]]:
    """The stream's events; each is named after its type."""
    found: list[dict[str, Any]] = []
    parts = stream.decode().split("\n\n")
    assert parts.pop() == ""
    for part in parts:
        name, data = part.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def streamed(*told: TokensGenerated | ChoiceFinished, usage: Usage | None = USAGE) -> list[dict[str, Any]]:
    stream = writer()
    written = b"".join(
        stream.tokens(event) if isinstance(event, TokensGenerated) else stream.finished(event) for event in told
    )
    return events(written + stream.end(usage))


def whole(*told: TokensGenerated | ChoiceFinished, usage: Usage | None = USAGE) -> dict[str, Any]:
    kept = writer()
    for event in told:
        kept.keep(event)
    return json.loads(kept.whole(usage))


def put_together(stream: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks of a stream, as a client collects them; one is open at a time, and they are numbered."""
    blocks: list[dict[str, Any]] = []
    is_open = False
    for event in stream:
        match event["type"]:
            case "content_block_start":
                assert (event["index"], is_open) == (len(blocks), False)
                blocks.append(event["content_block"])
                is_open = True
            case "content_block_delta":
                assert (event["index"], is_open) == (len(blocks) - 1, True)
                delta = event["delta"]
                key = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
                name = key[delta["type"]]
                blocks[-1][name] = blocks[-1].get(name, "") + delta[name]
            case "content_block_stop":
                assert (event["index"], is_open) == (len(blocks) - 1, True)
                is_open = False
            case _:
                assert not is_open
    return blocks


def test_a_stream_from_start_to_stop():
    """The message without its content, a block and its pieces, the reason with the usage, the end."""
    stream = streamed(token("Hel"), token("lo"), end(text="!"))
    assert stream == [
        {
            "type": "message_start",
            "message": {
                "id": "msg_0123456789abc",
                "type": "message",
                "role": "assistant",
                "model": "m",
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": dict.fromkeys(list(FOUND)[:4], 0),
            },
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "!"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": FOUND},
        {"type": "message_stop"},
    ]


def test_a_whole_message():
    """The same, put together."""
    assert whole(token("Hel"), token("lo"), end(text="!")) == {
        "id": "msg_0123456789abc",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "Hello!"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": FOUND,
    }


def test_text_that_is_held_back_begins_the_message_and_no_block():
    """A token inside a character has nothing to show; that the answer has begun is told once."""
    stream = writer()
    assert [event["type"] for event in events(stream.tokens(token()))] == ["message_start"]
    assert stream.tokens(token()) == b""


def test_an_answer_without_a_token():
    """A model may have nothing to say: then there is no block."""
    assert [event["type"] for event in streamed(end())] == ["message_start", "message_delta", "message_stop"]
    assert whole(end())["content"] == []


def test_thinking_text_and_calls_are_blocks_one_after_the_other():
    """Each kind in its own, arguments as they are generated."""
    told = (
        token(reasoning="hm"),
        token(reasoning="..."),
        token("I look"),
        token(" it up.", begun(0)),
        token("", piece(0, '{"a"')),
        token("", piece(0, ": 1.0}"), begun(1)),
        end(FinishReason.TOOL_CALLS),
    )
    blocks = put_together(streamed(*told))
    assert blocks == [
        {"type": "thinking", "thinking": "hm...", "signature": ""},
        {"type": "text", "text": "I look it up."},
        {"type": "tool_use", "id": "call_0", "name": "f0", "input": {}, "partial_json": '{"a": 1.0}'},
        {"type": "tool_use", "id": "call_1", "name": "f1", "input": {}},
    ]
    message = whole(*told)
    assert message["content"] == [
        *blocks[:2],
        {"type": "tool_use", "id": "call_0", "name": "f0", "input": {"a": 1.0}},
        {"type": "tool_use", "id": "call_1", "name": "f1", "input": {}},
    ]
    assert message["stop_reason"] == "tool_use"


def test_calls_that_are_written_side_by_side_are_told_one_after_the_other():
    """As another provider may write them: what belongs to another block waits until the open one is complete."""
    told = (
        token("", begun(0), begun(1), begun(2)),
        token("", piece(2, '{"c'), piece(1, '{"b"'), piece(0, '{"a": {}')),
        token("late", piece(2, '":3}'), piece(0, "}"), piece(1, ":2}")),
        end(FinishReason.TOOL_CALLS),
    )
    stream = streamed(*told)
    blocks = put_together(stream)
    assert [(block.get("name"), block.get("partial_json")) for block in blocks] == [
        ("f0", '{"a": {}}'),
        ("f1", '{"b":2}'),
        ("f2", '{"c":3}'),
        (None, None),
    ]
    assert blocks[3]["text"] == "late"
    assert [block.get("input") for block in whole(*told)["content"]] == [{"a": {}}, {"b": 2}, {"c": 3}, None]


def test_a_call_is_complete_also_with_white_space_behind_it():
    """Some models end a line there; the next call then begins at once."""
    stream = writer()
    stream.tokens(token("", begun(0), piece(0, '{"a": {}}'), piece(0, "\n")))
    assert [event["type"] for event in events(stream.tokens(token("", begun(1))))] == [
        "content_block_stop",
        "content_block_start",
    ]


def test_a_call_that_was_broken_off_holds_nothing_back_for_ever():
    """At the end everything is there; what is no object is told as what it is."""
    told = (token("", begun(0), piece(0, '{"a": ')), token("and then", begun(1)), end(FinishReason.LENGTH))
    assert [block["type"] for block in put_together(streamed(*told))] == ["tool_use", "text", "tool_use"]
    message = whole(*told)
    assert message["content"][0]["input"] == {"INVALID_JSON": '{"a": '}
    assert message["content"][1:] == [
        {"type": "text", "text": "and then"},
        {"type": "tool_use", "id": "call_1", "name": "f1", "input": {}},
    ]


@pytest.mark.parametrize(
    ("finished", "stop_reason", "stop_sequence"),
    [
        (end(), "end_turn", None),
        (end(stop="\n"), "stop_sequence", "\n"),
        (end(FinishReason.LENGTH), "max_tokens", None),
        (end(FinishReason.TOOL_CALLS, stop="\n"), "tool_use", None),
        (end(FinishReason.REFUSAL), "refusal", None),
        (end(FinishReason.CANCELLED), None, None),
    ],
)
def test_why_it_ended(finished: ChoiceFinished, stop_reason: str | None, stop_sequence: str | None):
    """In Anthropic's words, streamed and whole."""
    message = whole(token("a"), finished)
    assert (message["stop_reason"], message["stop_sequence"]) == (stop_reason, stop_sequence)
    assert streamed(token("a"), finished)[-2]["delta"] == {"stop_reason": stop_reason, "stop_sequence": stop_sequence}


def test_every_bucket_is_in_one_count():
    """Input without what the cache had or took, all output in one; the prompt is the sum of the three."""
    usage = Usage(
        input_fresh_tokens=1,
        input_image_tokens=2,
        input_audio_tokens=4,
        input_cache_read_tokens=8,
        input_audio_cache_read_tokens=16,
        input_cache_write_5m_tokens=32,
        input_cache_write_1h_tokens=64,
        output_text_tokens=128,
        output_reasoning_tokens=256,
    )
    told = whole(end(), usage=usage)["usage"]
    assert told == {
        "input_tokens": 1 + 2 + 4,
        "cache_read_input_tokens": 8 + 16,
        "cache_creation_input_tokens": 32 + 64,
        "cache_creation": {"ephemeral_5m_input_tokens": 32, "ephemeral_1h_input_tokens": 64},
        "output_tokens": 128 + 256,
        "output_tokens_details": {"thinking_tokens": 256},
    }
    counts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert sum(told[name] for name in counts) == usage.input_tokens


def test_writes_that_last_otherwise_are_in_the_total_only():
    """Anthropic has words for five minutes and for an hour; a split that left some out would be wrong."""
    usage = Usage(
        input_fresh_tokens=1,
        input_cache_read_tokens=0,
        input_cache_write_5m_tokens=2,
        input_cache_write_30m_tokens=3,
        output_text_tokens=1,
    )
    told = whole(end(), usage=usage)["usage"]
    assert told["cache_creation_input_tokens"] == 2 + 3
    assert "cache_creation" not in told


def test_what_is_not_known_is_null_and_not_zero():
    """Leaf by leaf, and when nothing is known at all."""
    partly = Usage(
        input_fresh_tokens=None,
        input_cache_read_tokens=2,
        output_text_tokens=3,
        unknown_reasons={"input_fresh_tokens": "the engine does not say"},
    )
    told = whole(end(), usage=partly)["usage"]
    assert (told["input_tokens"], told["cache_read_input_tokens"], told["output_tokens"]) == (None, 2, 3)
    for usage in (whole(end(), usage=None)["usage"], streamed(end(), usage=None)[-2]["usage"]):
        assert usage == dict.fromkeys(list(FOUND)[:4])


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (FaultKind.INVALID_REQUEST, "invalid_request_error"),
        (FaultKind.PERMISSION, "permission_error"),
        (FaultKind.NOT_FOUND, "not_found_error"),
        (FaultKind.TOO_LARGE, "request_too_large"),
        (FaultKind.RATE_LIMIT, "rate_limit_error"),
        (FaultKind.OVERLOADED, "overloaded_error"),
        (FaultKind.SERVER, "api_error"),
    ],
)
def test_errors(kind: FaultKind, word: str):
    """Every kind has a word; in a stream it is an event of that name."""
    fault = Fault(kind=kind, message="no", request_id="req_1")
    error = {"type": "error", "error": {"type": word, "message": "no"}, "request_id": "req_1"}
    assert json.loads(anthropic.error_body(fault)) == error
    assert events(anthropic.error_event(fault)) == [error]


def test_a_prompt_that_is_too_long_is_told_in_the_words_that_agents_look_for():
    """They shorten their history on them."""
    fault = Fault(kind=FaultKind.INVALID_REQUEST, message="9 do not fit", code="context_length_exceeded")
    assert json.loads(anthropic.error_body(fault))["error"]["message"] == "prompt is too long: 9 do not fit"


def test_models_are_one_page():
    """With a date that clients can read, and no next page."""
    at = datetime(2026, 11, 1, tzinfo=UTC)
    infos = [ModelInfo(id=name, context_length_tokens=64, chat=True) for name in ("a", "b")]
    page = json.loads(anthropic.models_body(infos, created_at=at))
    model = {
        "type": "model",
        "id": "a",
        "display_name": "a",
        "created_at": "2026-11-01T00:00:00Z",
        "max_input_tokens": 64,
        "lifecycle": "active",
    }
    assert page == {"data": [model, model | {"id": "b", "display_name": "b"}], "first_id": "a", "last_id": "b"} | {
        "has_more": False
    }
    assert json.loads(anthropic.model_body(infos[0], created_at=at)) == model
    assert json.loads(anthropic.models_body([], created_at=at))["first_id"] is None
