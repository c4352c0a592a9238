"""What a client gets back from the Responses endpoint, event by event."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.providers.door import AnswerWriter, Fault, FaultKind
from taximeter.providers.metering import tap_for
from taximeter.providers.openai import RESPONSES
from taximeter.providers.sighting import Seen
from taximeter.records import (
    ChoiceFinished,
    Dialect,
    FinishReason,
    PositionLogprobs,
    Request,
    TokenLogprob,
    TokensGenerated,
    ToolCallDelta,
    Usage,
)

USAGE = Usage(input_fresh_tokens=7, input_cache_read_tokens=5, output_text_tokens=3, output_reasoning_tokens=2)
TOOL = {"type": "function", "name": "now", "parameters": {"type": "object"}, "strict": False, "x": [1]}


def writer(**fields: object) -> AnswerWriter:
    call = RESPONSES.parse(json.dumps({"model": "m", "input": "x", **fields}).encode())
    request = Request(
        id="req_0123456789abc",
        received_at=datetime.fromtimestamp(1_793_000_000, UTC),
        received_ns=0,
        dialect=Dialect.OPENAI_RESPONSES,
        model="m",
        sampling=call.sampling,
        max_output_tokens=call.max_output_tokens,
    )
    return RESPONSES.writer(request, call)


def token(text: str = "", *, reasoning: str = "", calls: tuple[ToolCallDelta, ...] = ()) -> TokensGenerated:
    return TokensGenerated(at_ns=0, choice=0, new_tokens=1, text=text, reasoning=reasoning, calls=calls)


def end(reason: FinishReason = FinishReason.STOP, *, text: str = "") -> ChoiceFinished:
    return ChoiceFinished(at_ns=0, choice=0, reason=reason, text=text)


def events(stream: bytes) -> list[dict[str, Any]]:
    """The stream's events; each has its name twice, and its number."""
    read: list[dict[str, Any]] = []
    *blocks, rest = stream.decode().split("\n\n")
    assert rest == ""
    for block in blocks:
        name, data = block.split("\n")
        read.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {read[-1]['type']}"
    assert [event["sequence_number"] for event in read] == list(range(len(read)))
    return read


def streamed(answer: list[TokensGenerated], finish: ChoiceFinished, **fields: object) -> list[dict[str, Any]]:
    responses = writer(**fields)
    stream = b"".join(responses.tokens(event) for event in answer) + responses.finished(finish) + responses.end(USAGE)
    return events(stream)


def whole(answer: list[TokensGenerated], finish: ChoiceFinished, **fields: object) -> dict[str, Any]:
    responses = writer(**fields)
    for event in (*answer, finish):
        responses.keep(event)
    return json.loads(responses.whole(USAGE))


def test_a_text_is_announced_written_and_closed():
    """Response, item, part, deltas, and everything in reverse; the last event has the whole response."""
    read = streamed([token("Hel"), token(""), token("lo")], end(text="!"))
    assert [event["type"].removeprefix("response.") for event in read] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    item = {"id": "msg_0123456789abc_0", "type": "message", "role": "assistant"}
    part = {"type": "output_text", "annotations": [], "logprobs": []}
    assert read[2]["item"] == item | {"status": "in_progress", "content": []}
    assert read[3]["part"] == part | {"text": ""}
    assert [event["delta"] for event in read[4:7]] == ["Hel", "lo", "!"]
    assert all(event["item_id"] == item["id"] and event["content_index"] == 0 for event in read[3:9])
    assert read[7]["text"] == "Hello!"
    assert read[8]["part"] == part | {"text": "Hello!"}
    done = item | {"status": "completed", "content": [part | {"text": "Hello!"}]}
    assert read[9]["item"] == done
    assert read[-1]["response"]["output"] == [done]


def test_the_whole_is_the_last_event_of_the_stream():
    """Not one field differs."""
    answer = [token(reasoning="hm"), token("Yes"), token(calls=(ToolCallDelta(index=0, id="c", name="now"),))]
    assert whole(answer, end()) == streamed(answer, end())[-1]["response"]


def test_the_response_says_what_was_asked_and_what_it_took():
    """The fields that clients require, repeated as they came; usage with parts inside of totals."""
    asked: dict[str, Any] = {
        "instructions": "be brief",
        "tools": [TOOL],
        "tool_choice": {"type": "function", "name": "now"},
        "parallel_tool_calls": False,
        "metadata": {"a": "b"},
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
        "truncation": "auto",
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 9,
    }
    response = whole([token("a")], end(), **asked)
    assert {name: response[name] for name in asked} == asked
    assert (response["id"], response["object"], response["created_at"]) == (
        "resp_0123456789abc",
        "response",
        1_793_000_000,
    )
    assert response["status"] == "completed"
    assert response["store"] is False
    assert response["usage"] == {
        "input_tokens": 7 + 5,
        "input_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 0},
        "output_tokens": 3 + 2,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 12 + 5,
    }


def test_what_was_not_asked_has_its_default():
    """A client's types require these."""
    response = whole([token("a")], end())
    assert (response["tools"], response["tool_choice"], response["parallel_tool_calls"]) == ([], "auto", True)
    assert (response["instructions"], response["metadata"]) == (None, {})


def test_usage_that_is_not_known_is_null():
    """Not zero."""
    responses = writer()
    responses.keep(end())
    assert json.loads(responses.whole(Usage.unknown("it was not said")))["usage"] is None


def test_reasoning_text_and_calls_are_items_of_their_own():
    """In the order of their first tokens; two calls by turns stay two."""
    answer = [
        token(reasoning="h"),
        token("Yes", reasoning="m"),
        token(calls=(ToolCallDelta(index=0, id="c0", name="now"),)),
        token(calls=(ToolCallDelta(index=1, id="c1", name="add"), ToolCallDelta(index=0, arguments='{"a"'))),
        token(calls=(ToolCallDelta(index=1, arguments="{}"), ToolCallDelta(index=0, arguments=":1}"))),
    ]
    read = streamed(answer, end(FinishReason.TOOL_CALLS))
    response = read[-1]["response"]
    assert response["status"] == "completed"
    reasoning, message, first, second = response["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert message["content"][0]["text"] == "Yes"
    assert (first["call_id"], first["name"], first["arguments"]) == ("c0", "now", '{"a":1}')
    assert (second["call_id"], second["name"], second["arguments"]) == ("c1", "add", "{}")
    assert [item["output_index"] for item in read if item["type"] == "response.output_item.added"] == [0, 1, 2, 3]
    dones = [event for event in read if event["type"] == "response.function_call_arguments.done"]
    assert [(done["output_index"], done["arguments"]) for done in dones] == [(2, '{"a":1}'), (3, "{}")]


@pytest.mark.parametrize(
    ("reason", "why"), [(FinishReason.LENGTH, "max_output_tokens"), (FinishReason.REFUSAL, "content_filter")]
)
def test_an_answer_that_was_cut_is_incomplete(reason: FinishReason, why: str):
    """The response, its last event and its last item say so."""
    last = streamed([token("a")], end(reason))[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": why}
    assert (last["response"]["status"], last["response"]["output"][0]["status"]) == ("incomplete", "incomplete")


def test_an_answer_of_nothing_is_an_empty_message():
    """Clients take the first item's text."""
    output = streamed([], end())[-1]["response"]["output"]
    assert [(item["type"], item["content"][0]["text"]) for item in output] == [("message", "")]


def test_a_cancelled_answer_has_no_last_event():
    """Nobody is there to read it."""
    responses = writer()
    read = events(responses.tokens(token("a")) + responses.finished(end(FinishReason.CANCELLED)))
    assert read[-1]["item"]["status"] == "incomplete"


@pytest.mark.parametrize(
    ("kind", "code"), [(FaultKind.SERVER, "server_error"), (FaultKind.RATE_LIMIT, "rate_limit_exceeded")]
)
def test_an_answer_that_broke_says_so_in_its_last_event(kind: FaultKind, code: str):
    """With its number, and what there was until then."""
    responses = writer()
    stream = responses.tokens(token("a")) + (responses.broken(Fault(kind=kind, message="it broke")) or b"")
    last = events(stream)[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"] == {"code": code, "message": "it broke"}
    assert last["response"]["output"][0]["content"][0]["text"] == "a"


def test_logprobs_are_beside_their_text():
    """In deltas, and all of them in the part."""

    def position(text: str) -> PositionLogprobs:
        picked = TokenLogprob(token_id=None, text=text, utf8=text.encode(), logprob=-0.5)
        return PositionLogprobs(picked=picked, top=(picked,))

    answer = [TokensGenerated(at_ns=0, choice=0, new_tokens=1, text=text, logprobs=(position(text),)) for text in "ab"]
    read = streamed(answer, end())
    written = [{"token": text, "logprob": -0.5, "bytes": list(text.encode())} for text in "ab"]
    written = [one | {"top_logprobs": [one]} for one in written]
    deltas = [event for event in read if event["type"] == "response.output_text.delta"]
    assert [delta["logprobs"] for delta in deltas] == [written[:1], written[1:]]
    assert read[-1]["response"]["output"][0]["content"][0]["logprobs"] == written


CALLS = st.lists(st.text(max_size=3), max_size=4)
PIECES = st.one_of(
    st.builds(token, st.text(max_size=4)),
    st.builds(lambda text: token(reasoning=text), st.text(min_size=1, max_size=4)),
)


@given(st.lists(PIECES, max_size=8), CALLS, st.sampled_from(FinishReason), st.text(max_size=3))
def test_what_is_streamed_adds_up_to_the_response(
    said: list[TokensGenerated], calls: list[str], reason: FinishReason, tail: str
):
    """Whatever comes: deltas add up to their item, every item is opened and closed once, and the whole is the same."""
    begun = [ToolCallDelta(index=index, id=f"c{index}", name="n") for index in range(len(calls))]
    written = [ToolCallDelta(index=index, arguments=arguments) for index, arguments in enumerate(calls)]
    answer = [*said, token(calls=(*begun, *written))]
    read = streamed(answer, end(reason, text=tail))
    response = read[-1]["response"]
    assert response == whole(answer, end(reason, text=tail))
    deltas: dict[int, str] = {}
    for event in read:
        if event["type"].endswith(".delta"):
            deltas[event["output_index"]] = deltas.get(event["output_index"], "") + event["delta"]
    for index, item in enumerate(response["output"]):
        text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert deltas.get(index, "") == text
    for kind in ("added", "done"):
        indices = [event["output_index"] for event in read if event["type"] == f"response.output_item.{kind}"]
        assert sorted(indices) == list(range(len(response["output"])))
    texts = [item["content"][0]["text"] for item in response["output"] if item["type"] == "message"]
    assert "".join(texts) == "".join(event.text for event in answer) + tail
    assert [item["arguments"] for item in response["output"] if item["type"] == "function_call"] == calls


def test_a_tap_finds_in_the_stream_what_the_writer_put_there():
    """Both directions of the dialect agree on usage, reason, and which events have tokens."""
    responses = writer()
    pieces = (ToolCallDelta(index=0, id="c", name="now"), ToolCallDelta(index=0, arguments="{}"))
    stream = responses.tokens(token(reasoning="hm")) + responses.tokens(token("Yes"))
    stream += (
        responses.tokens(token(calls=pieces)) + responses.finished(end(FinishReason.LENGTH)) + responses.end(USAGE)
    )
    tap = tap_for(Dialect.OPENAI_RESPONSES, streamed=True)
    seen = [tap.event(event["type"].encode(), json.dumps(event).encode()) for event in events(stream)]
    found = tap.found()
    assert found.usage.leaves() == USAGE.leaves()
    assert found.is_whole
    assert found.model == "m"
    assert sum(Seen.TOKENS in one for one in seen) == 3
    assert sum(Seen.ANSWER in one for one in seen) == 2
