"""What a provider's chat stream means, also where it keeps to the dialect less than it should."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.errors import UpstreamError
from taximeter.providers.openai import CHAT, ChatReader
from taximeter.providers.reading import AnswerReader
from taximeter.records import (
    ChoiceFinished,
    Dialect,
    Event,
    FinishReason,
    PositionLogprobs,
    Request,
    TokenLogprob,
    TokensGenerated,
    ToolCallDelta,
)
from tests.gateway_harness import a_call


def chunk(finish: str | None = None, *, index: int = 0, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def call(**fields: Any) -> dict[str, Any]:
    """A piece of a call: `name` and `arguments` are inside of its function."""
    function = {name: fields.pop(name) for name in ("name", "arguments") if name in fields}
    return {"tool_calls": [fields | {"function": function}]}


def read(*chunks: dict[str, Any] | bytes, choices: int = 1, is_whole: bool = True) -> list[Event]:
    reader: AnswerReader = ChatReader(choices)
    events: list[Event] = []
    for at_ns, data in enumerate([*chunks, *([b"[DONE]"] if is_whole else [])]):
        events += reader.event(b"", data if isinstance(data, bytes) else json.dumps(data).encode(), at_ns)
    return [*events, *reader.end(99)]


def tokens(events: list[Event]) -> list[TokensGenerated]:
    return [event for event in events if isinstance(event, TokensGenerated)]


def pieces(events: list[Event]) -> list[ToolCallDelta]:
    return [piece for event in tokens(events) for piece in event.calls]


def reason(events: list[Event]) -> FinishReason:
    (finished,) = (event for event in events if isinstance(event, ChoiceFinished))
    return finished.reason


def test_a_plain_answer():
    """A role is no token, and neither are an empty delta and the chunk with the usage; each is stamped as it came."""
    events = read(
        chunk(role="assistant", content=""),
        chunk(content="Hel"),
        chunk(content="lo"),
        chunk("stop"),
        {"choices": [], "usage": {"prompt_tokens": 1}},
    )
    assert events == [
        TokensGenerated(at_ns=1, choice=0, new_tokens=1, text="Hel"),
        TokensGenerated(at_ns=2, choice=0, new_tokens=1, text="lo"),
        ChoiceFinished(at_ns=3, choice=0, reason=FinishReason.STOP),
    ]


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"reasoning": "hm", "reasoning_content": "hm"},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]},
        {"content": [{"type": "thinking", "thinking": "hm"}]},
    ],
)
def test_reasoning_under_every_name_it_has(delta: dict[str, Any]):
    """Once, also where a provider sends it under two."""
    (event,) = tokens(read(chunk(**delta)))
    assert (event.reasoning, event.text, event.new_tokens) == ("hm", "", 1)


def test_content_in_parts():
    """As one text."""
    (event,) = tokens(read(chunk(content=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])))
    assert event.text == "ab"


def test_a_call_in_pieces():
    """First its id and name, then its arguments."""
    events = read(
        chunk(**call(index=0, id="c1", type="function", name="now", arguments="")),
        chunk(**call(index=0, arguments='{"a"')),
        chunk(**call(index=0, arguments=":1}")),
        chunk("tool_calls"),
    )
    assert pieces(events) == [
        ToolCallDelta(index=0, id="c1", name="now"),
        ToolCallDelta(index=0, arguments='{"a"'),
        ToolCallDelta(index=0, arguments=":1}"),
    ]
    assert [event.new_tokens for event in tokens(events)] == [1, 1, 1]
    assert reason(events) is FinishReason.TOOL_CALLS


ONE_AND_TWO = [
    ToolCallDelta(index=0, id="c1", name="one"),
    ToolCallDelta(index=0, arguments="{}"),
    ToolCallDelta(index=1, id="c2", name="two"),
    ToolCallDelta(index=1, arguments="[]"),
]


@pytest.mark.parametrize(
    "chunks",
    [
        [call(index=0, id="c1", name="one", arguments="{}"), call(index=1, id="c2", name="two", arguments="[]")],
        [call(index=3, id="c1", name="one", arguments="{}"), call(index=7, id="c2", name="two", arguments="[]")],
        [call(index=0, id="c1", name="one", arguments="{}"), call(index=0, id="c2", name="two", arguments="[]")],
        [call(id="c1", name="one", arguments="{}"), call(id="c2", name="two", arguments="[]")],
        [
            call(index=0, id="c1", name="one", arguments="{"),
            call(index=0, id="c1", name="one", arguments="}"),
            call(index=1, id="c2", name="two", arguments="[]"),
        ],
        [
            call(index=0, id="c1", arguments="{"),
            call(index=0, name="one", arguments="}"),
            call(index=1, id="c2", name="two", arguments="[]"),
        ],
    ],
    ids=["as it should be", "numbers with gaps", "all numbered 0", "not numbered", "named again", "named late"],
)
def test_two_calls_however_they_are_numbered(chunks: list[dict[str, Any]]):
    """Providers differ; the calls are the same."""
    joined: list[ToolCallDelta] = []
    for piece in pieces(read(*(chunk(**delta) for delta in chunks))):
        if joined and piece.name is None and joined[-1].name is None:
            whole = joined[-1].arguments + piece.arguments
            joined[-1] = ToolCallDelta(index=piece.index, arguments=whole)
        else:
            joined.append(piece)
    assert joined == ONE_AND_TWO


def test_two_calls_with_neither_numbers_nor_ids():
    """A name begins a call; each gets an id of its own, so that results can be told apart."""
    sent = [call(name="one", arguments="{}"), call(name="two"), call(arguments="[]")]
    found = pieces(read(*(chunk(**delta) for delta in sent)))
    assert [(piece.index, piece.name, piece.arguments) for piece in found] == [
        (0, "one", ""),
        (0, None, "{}"),
        (1, "two", ""),
        (1, None, "[]"),
    ]
    assert found[0].id
    assert found[2].id
    assert found[0].id != found[2].id


def test_a_call_whose_name_never_comes_is_none():
    """However long it goes on."""
    events = read(*[json.dumps(chunk(**call(index=0, arguments="x" * 1000))).encode()] * 20_000, chunk("tool_calls"))
    assert events == [ChoiceFinished(at_ns=20_000, choice=0, reason=FinishReason.STOP)]


@pytest.mark.parametrize(
    ("said", "delta", "meant"),
    [
        ("stop", {"content": "a"}, FinishReason.STOP),
        ("length", {"content": "a"}, FinishReason.LENGTH),
        ("content_filter", {}, FinishReason.REFUSAL),
        ("stop", {"refusal": "no"}, FinishReason.REFUSAL),
        ("stop", call(index=0, id="c", name="now"), FinishReason.TOOL_CALLS),
        ("length", call(index=0, id="c", name="now"), FinishReason.LENGTH),
        ("a word of tomorrow", {"content": "a"}, FinishReason.STOP),
        ("abort", {"content": "a"}, FinishReason.CANCELLED),
    ],
)
def test_why_an_answer_ended(said: str, delta: dict[str, Any], meant: FinishReason):
    """OpenAI says `stop` after a call of a tool that was named by the caller, and after a refusal."""
    assert reason(read(chunk(**delta), chunk(said))) is meant


@pytest.mark.parametrize(
    ("said", "meant"),
    [({"stop_reason": "\n"}, "\n"), ({"matched_stop": "\n"}, "\n"), ({"stop_reason": 151645}, None), ({}, None)],
)
def test_which_stop_string_it_was(said: dict[str, Any], meant: str | None):
    """Where an engine says it; a token that ends a turn is none."""
    finished = read({"choices": [{"delta": {}, "finish_reason": "stop"} | said]})[-1]
    assert isinstance(finished, ChoiceFinished)
    assert finished.stop == meant


def test_a_refusal_is_text():
    """It is what the client is to read."""
    assert tokens(read(chunk(refusal="No.")))[0].text == "No."


def test_a_stream_that_ended_without_a_reason_stopped_and_one_that_broke_off_did_not():
    """[DONE] is the difference."""
    assert reason(read(chunk(content="a"))) is FinishReason.STOP
    assert reason(read(chunk(content="a"), is_whole=False)) is FinishReason.CANCELLED
    assert read(is_whole=False, choices=2) == [
        ChoiceFinished(at_ns=99, choice=choice, reason=FinishReason.CANCELLED) for choice in (0, 1)
    ]


def test_choices_are_kept_apart():
    """And one that nobody asked for is nobody's."""
    events = read(
        chunk(content="a", index=1), chunk("stop", index=1), chunk(content="x", index=1), chunk(content="y", index=2),
        chunk(content="y", index=-1), chunk("length", content="b", index=0), choices=2,
    )  # fmt: skip
    assert [(event.choice, event.text) for event in tokens(events)] == [(1, "a"), (0, "b")]
    assert [(event.choice, event.reason) for event in events if isinstance(event, ChoiceFinished)] == [
        (1, FinishReason.STOP),
        (0, FinishReason.LENGTH),
    ]


def test_logprobs_count_the_tokens():
    """Their ids are not on the wire."""
    content = [
        {
            "token": "a",
            "logprob": -0.5,
            "bytes": [97],
            "top_logprobs": [{"token": "b", "logprob": -1.5, "bytes": None}],
        },
        {"token": "é", "logprob": -1, "top_logprobs": []},
    ]
    (event,) = tokens(read({"choices": [{"delta": {"content": "aé"}, "logprobs": {"content": content}}]}))
    assert event.new_tokens == 2
    assert event.logprobs == (
        PositionLogprobs(
            picked=TokenLogprob(token_id=None, text="a", utf8=b"a", logprob=-0.5),
            top=(TokenLogprob(token_id=None, text="b", utf8=b"b", logprob=-1.5),),
        ),
        PositionLogprobs(picked=TokenLogprob(token_id=None, text="é", utf8="é".encode(), logprob=-1.0), top=()),
    )


@pytest.mark.parametrize(
    ("name", "data"),
    [
        (b"", b'{"error": {"message": "overloaded", "type": "server_error"}}'),
        (b"", b'{"error": "overloaded"}'),
        (b"", b'{"object": "error", "message": "overloaded", "code": 500}'),
        (b"error", b"overloaded"),
        (b"", b'{"choices": [{"index": 0, "delta": {}, "finish_reason": "error"}]}'),
        (b"", b'{"choices": [{"index": 0, "delta": {"content": "overl'),
        (b"", b'{"choices": [{"index": 0, "delta": {"content": 3}}]}'),
        (b"", b"[" * 100_000),
        (b"", b"\xff"),
    ],
)
def test_an_error_and_a_part_that_cannot_be_read_break_the_answer(name: bytes, data: bytes):
    """An answer with a hole in it must not look whole. What the provider said is kept apart from the message."""
    with pytest.raises(UpstreamError) as caught:
        ChatReader().event(name, data, 0)
    assert "overl" not in caught.value.message
    if b"overloaded" in data:
        assert caught.value.body is not None
        assert "overloaded" in caught.value.body


@pytest.mark.parametrize(
    ("name", "data"),
    [
        (b"", b""),
        (b"", b" "),
        (b"ping", b"{}"),
        (b"status.of.tomorrow", b"nonsense"),
        (b"", b"{}"),
        (b"", b'{"choices": null}'),
        (b"", b'{"choices": [{"index": 0, "delta": null}]}'),
        (b"", b'{"type": "heartbeat"}'),
        (b"message", b'{"choices": []}'),
    ],
)
def test_what_says_nothing_means_nothing(name: bytes, data: bytes):
    """Pings, and events that nobody here knows."""
    assert list(ChatReader().event(name, data, 0)) == []


@given(st.lists(st.binary(max_size=60) | st.builds(json.dumps, st.dictionaries(st.text(), st.text())).map(str.encode)))
def test_any_bytes_are_events_or_an_upstream_error(lines: list[bytes]):
    """Nothing else comes out, and every choice ends once."""
    reader = ChatReader()
    for line in lines:
        with contextlib.suppress(UpstreamError):
            reader.event(b"", line, 0)
    assert len(reader.end(1)) == 1


TEXT = st.text(max_size=6)


@st.composite
def answers(draw: st.DrawFn) -> list[TokensGenerated]:
    """Events of one choice as a backend gives them: thoughts, texts, then calls in pieces."""
    said = [
        TokensGenerated(at_ns=0, choice=0, new_tokens=1, text=text, reasoning=reasoning)
        for text, reasoning in draw(st.lists(st.tuples(TEXT, TEXT), max_size=5))
    ]
    for index, arguments in enumerate(draw(st.lists(st.lists(TEXT, max_size=3), max_size=3))):
        begin = ToolCallDelta(index=index, id=f"c{index}", name=f"n{index}")
        parts = (begin, *(ToolCallDelta(index=index, arguments=part) for part in arguments))
        said.append(TokensGenerated(at_ns=0, choice=0, new_tokens=1, text="", calls=parts))
    return said


def story(events: list[Event] | list[TokensGenerated]) -> list[tuple[str, object]]:
    """What the events say, however it is cut into pieces."""
    told: list[tuple[str, object]] = []

    def tell(kind: str, what: str) -> None:
        if told and told[-1][0] == kind:
            what = f"{told.pop()[1]}{what}"
        if what:
            told.append((kind, what))

    for event in tokens(list(events)):
        tell("reasoning", event.reasoning)
        tell("text", event.text)
        for piece in event.calls:
            if piece.name is not None:
                told.append((f"call {piece.index}", (piece.id, piece.name)))
            tell(f"arguments {piece.index}", piece.arguments)
    return told


@given(answers(), st.sampled_from([reason for reason in FinishReason if reason is not FinishReason.CANCELLED]), TEXT)
def test_what_our_own_writer_streams_is_read_back(said: list[TokensGenerated], why: FinishReason, tail: str):
    """Both directions of the dialect agree on every thought, text, call and reason."""
    asked = Request(
        id="req_1",
        received_at=datetime.fromtimestamp(0, UTC),
        received_ns=0,
        dialect=Dialect.OPENAI_CHAT,
        model="m",
    )
    has_calls = any(event.calls for event in said)
    if why in (FinishReason.STOP, FinishReason.TOOL_CALLS):
        why = FinishReason.TOOL_CALLS if has_calls else FinishReason.STOP
    writer = CHAT.writer(asked, a_call(include_usage=True))
    stream = b"".join(writer.tokens(event) for event in said)
    stream += writer.finished(ChoiceFinished(at_ns=0, choice=0, reason=why, text=tail)) + writer.end(None)
    events = read(*(block.removeprefix(b"data: ") for block in stream.split(b"\n\n")), is_whole=False)
    expected = [*said, TokensGenerated(at_ns=0, choice=0, new_tokens=1, text=tail)]
    assert story(events) == story(expected)
    assert reason(events) is why
