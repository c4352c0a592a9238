"""What a client gets back in OpenAI's dialect, chunk by chunk."""

import json
from datetime import UTC, datetime

from taximeter.providers.door import AnswerWriter, Endpoint
from taximeter.providers.openai import CHAT, COMPLETIONS
from taximeter.records import (
    ChoiceFinished,
    Dialect,
    FinishReason,
    PositionLogprobs,
    Request,
    Sampling,
    TokenLogprob,
    TokensGenerated,
    ToolCallDelta,
    Usage,
)
from tests.gateway_harness import a_call

USAGE = Usage(input_fresh_tokens=7, input_cache_read_tokens=5, output_text_tokens=3)


def writer(endpoint: Endpoint, *, choices: int = 1, include_usage: bool = False) -> AnswerWriter:
    request = Request(
        id="req_0123456789abc",
        received_at=datetime.fromtimestamp(1_793_000_000, UTC),
        received_ns=0,
        dialect=Dialect.OPENAI_CHAT,
        model="m",
        sampling=Sampling(choices=choices),
    )
    return endpoint.writer(request, a_call(include_usage=include_usage))


def token(text: str, *, choice: int = 0, logprobs: tuple[PositionLogprobs, ...] = ()) -> TokensGenerated:
    return TokensGenerated(at_ns=0, choice=choice, new_tokens=1, text=text, logprobs=logprobs)


def end(reason: FinishReason = FinishReason.STOP, *, choice: int = 0, text: str = "") -> ChoiceFinished:
    return ChoiceFinished(at_ns=0, choice=choice, reason=reason, text=text)


def position(utf8: bytes, logprob: float, *others: tuple[str, float]) -> PositionLogprobs:
    def candidate(text: str, raw: bytes, value: float) -> TokenLogprob:
        return TokenLogprob(token_id=0, text=text, utf8=raw, logprob=value)

    picked = candidate(utf8.decode("utf-8", "replace"), utf8, logprob)
    return PositionLogprobs(picked=picked, top=tuple(candidate(text, text.encode(), value) for text, value in others))


def events(stream: bytes) -> list[dict]:
    """The stream's events; each is one `data` line and an empty one."""
    lines = stream.decode().split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    return [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]


def choices(stream: bytes) -> list[dict]:
    return [event["choices"][0] for event in events(stream)]


def test_a_chat_stream_begins_with_the_role_and_ends_with_the_reason():
    """Role with empty content, one chunk for each text, an empty delta with the reason, [DONE]."""
    chat = writer(CHAT)
    stream = chat.tokens(token("Hel")) + chat.tokens(token("lo")) + chat.finished(end(text="!")) + chat.end(USAGE)
    assert [(choice["delta"], choice["finish_reason"]) for choice in choices(stream)] == [
        ({"role": "assistant", "content": ""}, None),
        ({"content": "Hel"}, None),
        ({"content": "lo"}, None),
        ({"content": "!"}, None),
        ({}, "stop"),
    ]
    assert stream.endswith(b"data: [DONE]\n\n")
    first = events(stream)[0]
    assert first | {"choices": []} == {
        "id": "chatcmpl-0123456789abc",
        "object": "chat.completion.chunk",
        "created": 1_793_000_000,
        "model": "m",
        "choices": [],
    }


def test_text_that_is_held_back_makes_no_chunk():
    """A token inside a character has nothing to show; the role still comes first, once."""
    chat = writer(CHAT)
    assert [choice["delta"] for choice in choices(chat.tokens(token("")))] == [{"role": "assistant", "content": ""}]
    assert chat.tokens(token("")) == b""
    assert writer(COMPLETIONS).tokens(token("")) == b""


def test_an_answer_without_a_token_still_has_role_and_reason():
    """A model may have nothing to say."""
    assert [choice["delta"] for choice in choices(writer(CHAT).finished(end()))] == [
        {"role": "assistant", "content": ""},
        {},
    ]


def test_usage_comes_in_one_chunk_without_choices_and_only_when_asked_for():
    """With `include_usage` every other chunk says null; without it no chunk has the field."""
    asked = writer(CHAT, include_usage=True)
    stream = events(asked.tokens(token("a")) + asked.finished(end()) + asked.end(USAGE))
    assert [event["usage"] for event in stream[:-1]] == [None] * 3
    assert stream[-1]["choices"] == []
    assert stream[-1]["usage"] == {
        "prompt_tokens": 7 + 5,
        "completion_tokens": 3,
        "total_tokens": 7 + 5 + 3,
        "prompt_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    silent = writer(CHAT)
    assert all("usage" not in event for event in events(silent.tokens(token("a")) + silent.end(USAGE)))


def test_choices_are_told_apart_by_their_index():
    """With n = 2 the chunks of both may come in any order; each choice has its own role and reason."""
    chat = writer(CHAT, choices=2)
    stream = chat.tokens(token("b", choice=1)) + chat.tokens(token("a", choice=0))
    stream += chat.finished(end(choice=1)) + chat.finished(end(FinishReason.LENGTH, choice=0))
    by_index = {
        index: [
            choice["delta"] | {"end": choice["finish_reason"]} for choice in choices(stream) if choice["index"] == index
        ]
        for index in (0, 1)
    }
    assert [delta.get("content") for delta in by_index[0]] == ["", "a", None]
    assert [delta.get("content") for delta in by_index[1]] == ["", "b", None]
    assert (by_index[0][-1]["end"], by_index[1][-1]["end"]) == ("length", "stop")


def test_a_whole_chat_is_its_stream_put_together():
    """Texts joined, choices in order, the reason and the usage."""
    chat = writer(CHAT, choices=2)
    for event in (token("b", choice=1), token("a"), end(text="!"), end(FinishReason.LENGTH, choice=1)):
        chat.keep(event)
    body = json.loads(chat.whole(USAGE))
    assert body["object"] == "chat.completion"
    assert [choice["message"]["content"] for choice in body["choices"]] == ["a!", "b"]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["stop", "length"]
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "a!", "refusal": None}
    assert body["usage"]["total_tokens"] == 15


def test_an_unknown_total_is_null():
    """OpenAI's usage has no word for "not known"; zero would be a lie."""
    unknown = Usage(
        input_fresh_tokens=None,
        input_cache_read_tokens=0,
        output_text_tokens=3,
        unknown_reasons={"input_fresh_tokens": "the provider did not say"},
    )
    assert json.loads(writer(CHAT).whole(unknown))["usage"] is None


def test_chat_logprobs_have_bytes_and_alternatives():
    """In a stream they travel with the chunk of their token, also when its text is held back."""
    chat = writer(CHAT)
    stream = chat.tokens(token("", logprobs=(position(b"\xe2\x82", -0.5, ("a", -1.0)),)))
    assert choices(stream)[1]["logprobs"] == {
        "content": [
            {
                "token": "\ufffd",
                "logprob": -0.5,
                "bytes": [0xE2, 0x82],
                "top_logprobs": [{"token": "a", "logprob": -1.0, "bytes": [97]}],
            }
        ],
        "refusal": None,
    }


def test_an_impossible_token_has_openais_least_logprob():
    """JSON has no infinity."""
    chat = writer(CHAT)
    chat.keep(token("a", logprobs=(position(b"a", float("-inf")),)))
    assert json.loads(chat.whole(USAGE))["choices"][0]["logprobs"]["content"][0]["logprob"] == -9999.0


def test_a_completion_stream_has_text_and_ends_with_the_reason():
    """Legacy chunks carry `text`, and the last the reason with what was held back."""
    completion = writer(COMPLETIONS)
    stream = completion.tokens(token("a")) + completion.finished(end(FinishReason.LENGTH, text="b"))
    assert [(choice["text"], choice["finish_reason"]) for choice in choices(stream)] == [("a", None), ("b", "length")]
    assert events(stream)[0]["object"] == "text_completion"
    assert events(stream)[0]["id"] == "cmpl-0123456789abc"


def test_completion_logprobs_say_where_each_token_begins():
    """Offsets count characters; the two halves of one character begin at the same place; the pick is always listed."""
    tokens = [position(b"a", -0.1, ("b", -2.0)), position(b"\xc3", -0.2), position(b"\xa9", -0.3), position(b"z", -0.4)]
    whole = writer(COMPLETIONS)
    for each in tokens:
        whole.keep(token("", logprobs=(each,)))
    logprobs = json.loads(whole.whole(USAGE))["choices"][0]["logprobs"]
    assert logprobs["text_offset"] == [0, 1, 1, 2]
    assert logprobs["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xa9", "z"]
    assert logprobs["token_logprobs"] == [-0.1, -0.2, -0.3, -0.4]
    assert logprobs["top_logprobs"][0] == {"b": -2.0, "a": -0.1}
    stream = writer(COMPLETIONS)
    streamed = [choices(stream.tokens(token("", logprobs=(each,))))[0]["logprobs"] for each in tokens]
    assert [each["text_offset"][0] for each in streamed] == [0, 1, 1, 2]


def test_a_cancelled_choice_has_no_reason():
    """OpenAI has no word for it: whoever cancelled is told by other means, or is gone."""
    assert choices(writer(COMPLETIONS).finished(end(FinishReason.CANCELLED, text="x")))[0]["finish_reason"] is None
    assert [choice["finish_reason"] for choice in choices(writer(CHAT).finished(end(FinishReason.CANCELLED)))] == [None]


CALLED = [
    token("Let me see."),
    TokensGenerated(
        at_ns=0,
        choice=0,
        new_tokens=2,
        text="",
        calls=(ToolCallDelta(index=0, id="call_a", name="add"), ToolCallDelta(index=0, arguments='{"a":')),
    ),
    TokensGenerated(at_ns=0, choice=0, new_tokens=1, text="", calls=(ToolCallDelta(index=0, arguments=" 1}"),)),
    TokensGenerated(
        at_ns=0,
        choice=0,
        new_tokens=1,
        text="",
        calls=(ToolCallDelta(index=1, id="call_b", name="now"), ToolCallDelta(index=1, arguments="{}")),
    ),
]


def test_calls_are_streamed_name_first():
    """One chunk for each piece; id, type and name come with the first of a call only, arguments are to be joined."""
    chat = writer(CHAT)
    stream = b"".join(map(chat.tokens, CALLED)) + chat.finished(end(FinishReason.TOOL_CALLS))
    deltas = [choice["delta"] for choice in choices(stream)]
    assert deltas[:2] == [{"role": "assistant", "content": ""}, {"content": "Let me see."}]
    assert [delta["tool_calls"] for delta in deltas[2:-1]] == [
        [{"index": 0, "id": "call_a", "type": "function", "function": {"name": "add", "arguments": ""}}],
        [{"index": 0, "function": {"arguments": '{"a":'}}],
        [{"index": 0, "function": {"arguments": " 1}"}}],
        [{"index": 1, "id": "call_b", "type": "function", "function": {"name": "now", "arguments": ""}}],
        [{"index": 1, "function": {"arguments": "{}"}}],
    ]
    assert (deltas[-1], choices(stream)[-1]["finish_reason"]) == ({}, "tool_calls")


def test_a_whole_answer_has_its_calls_in_one_list():
    """With the text beside them, or null where there is none."""
    for kept, content in ((CALLED, "Let me see."), (CALLED[1:], None)):
        chat = writer(CHAT)
        for event in (*kept, end(FinishReason.TOOL_CALLS)):
            chat.keep(event)
        (choice,) = json.loads(chat.whole(USAGE))["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] == content
        assert choice["message"]["tool_calls"] == [
            {"id": "call_a", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
            {"id": "call_b", "type": "function", "function": {"name": "now", "arguments": "{}"}},
        ]


def test_an_answer_without_calls_says_nothing_of_them():
    """Clients look whether the key is there."""
    chat = writer(CHAT)
    chat.keep(token(""))
    assert "tool_calls" not in json.loads(chat.whole(USAGE))["choices"][0]["message"]
    assert b"tool_calls" not in chat.tokens(token("x"))


def test_reasoning_is_written_where_the_open_engines_write_it():
    """Before the text, in a field of its own; streamed and whole."""
    event = TokensGenerated(at_ns=0, choice=0, new_tokens=2, text="Yes", reasoning="hm")
    stream = writer(CHAT).tokens(event)
    assert [choice["delta"] for choice in choices(stream)][1:] == [{"reasoning_content": "hm"}, {"content": "Yes"}]
    chat = writer(CHAT)
    chat.keep(event)
    chat.keep(end())
    message = json.loads(chat.whole(USAGE))["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "Yes")


def test_usage_has_the_parts_of_its_totals():
    """All writes to a cache are one number here, and reasoning is a part of the answer."""
    usage = Usage(
        input_fresh_tokens=1,
        input_cache_read_tokens=20,
        input_cache_write_5m_tokens=300,
        input_cache_write_1h_tokens=4000,
        output_text_tokens=5,
        output_reasoning_tokens=60,
    )
    written = json.loads(writer(CHAT).whole(usage))["usage"]
    assert written["prompt_tokens"] == 1 + 20 + 300 + 4000
    assert written["prompt_tokens_details"] == {"cached_tokens": 20, "cache_write_tokens": 300 + 4000}
    assert (written["completion_tokens"], written["completion_tokens_details"]["reasoning_tokens"]) == (65, 60)
