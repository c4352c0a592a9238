"""Usual spans are read as any other objects of JSON are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taximeter.importers import otlp, otlp_attributes, usual_spans
from taximeter.importers.logged import LogFile, LoggedCall

START = 1_790_000_000_000_000_000
NAMES = [
    *usual_spans.WANTED,
    *sorted(otlp_attributes.OF_A_SPAN),
    "gen_ai.usage.total_tokens",
    "gen_ai.usage.cost",
    "gen_ai.usage.other",
    "gen_ai.input.messages",
    "http.route",
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces") / "a.jsonl"


def read(path: Path, content: bytes) -> tuple[list[LoggedCall], dict[str, int]]:
    """What a file of messages says: calls, and notes."""
    path.write_bytes(content)
    with path.open("rb", buffering=0) as file:
        log = LogFile(path=path, file=file, size=len(content))
        return list(otlp.read(log)), dict(log.notes)


def encoded(*messages: object) -> bytes:
    return b"".join(json.dumps(message).encode("utf-8", "surrogatepass") + b"\n" for message in messages)


def assert_read_alike(path: Path, content: bytes) -> list[LoggedCall]:
    usual = read(path, content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(otlp, "message_in", msgspec.json.Decoder(dict[str, Any]).decode)
        assert usual == read(path, content)
    return usual[0]


_odd: st.SearchStrategy[Any] = st.sampled_from(
    [None, -1, 0, 1.5, 10**13, 10**30, "3", "-3", " 7 ", "x", True, [], {}, ["a"], "", " ", "ü\n", [{"key": "a"}]]
)
_texts = st.sampled_from(["chat", "execute_tool", "openai", "opus-card", "a", " a ", "stop", "AGENT", "priority", ""])
_numbers = st.sampled_from(["0", "3", "40", 3, 0, 7])
_values = st.one_of(
    st.builds(lambda text: {"stringValue": text}, _texts),
    st.builds(lambda number: {"intValue": number}, _numbers),
    st.builds(
        lambda texts: {"arrayValue": {"values": [{"stringValue": text} for text in texts]}},
        st.lists(_texts, max_size=2),
    ),
    st.dictionaries(
        st.sampled_from(
            [
                "stringValue",
                "intValue",
                "doubleValue",
                "boolValue",
                "arrayValue",
                "kvlistValue",
                "string_value",
                "int_value",
                "another",
            ]
        ),
        _odd | _numbers | st.just({"values": [{"intValue": "3"}, {"stringValue": "a"}]}),
        max_size=2,
    ),
)
_attribute = st.builds(lambda key, value: {"key": key, "value": value}, st.sampled_from(NAMES), _values)
_usual_attribute = st.one_of(
    st.builds(
        lambda key, number: {"key": key, "value": {"intValue": number}},
        st.sampled_from(usual_spans.COUNTS),
        _numbers,
    ),
    st.builds(
        lambda key, text: {"key": key, "value": {"stringValue": text}},
        st.sampled_from(usual_spans.TEXTS),
        _texts,
    ),
)
_attributes = (
    st.lists(_usual_attribute, max_size=8)
    | st.lists(_usual_attribute, min_size=2, max_size=8)
    | st.lists(_usual_attribute | _usual_attribute | _attribute, max_size=8)
    | st.lists(_attribute | _odd, max_size=3)
    | _odd
)
_ids = st.sampled_from(["a", "b", "c", "d"])
_when = st.sampled_from([str(START), str(START + 10**9), START, "", "0", None, 1.79e18])
_spans = st.fixed_dictionaries(
    {"spanId": _ids, "traceId": st.sampled_from(["t", "u", " t"]), "startTimeUnixNano": _when | st.just(str(START))},
    optional={
        "endTimeUnixNano": _when,
        "parentSpanId": _ids | st.just(""),
        "attributes": _attributes,
        "status": st.sampled_from([{}, {"code": 2, "message": "no"}, {"code": "STATUS_CODE_ERROR"}, {"code": 1}]),
        "name": st.just("chat"),
    },
)
_odd_spans = st.builds(
    lambda span, more: span | more,
    _spans,
    st.dictionaries(
        st.sampled_from(
            ["spanId", "traceId", "parentSpanId", "endTimeUnixNano", "status", "span_id", "trace_id", "parent_span_id"]
        ),
        _odd | _ids,
        max_size=1,
    ),
)
_resources = st.sampled_from(
    [
        {},
        {"resource": {}},
        {"resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]}},
        {"resource": {"attributes": [{"key": "service.name", "value": {"intValue": 1}}]}},
        {"resource": None},
        {"resource": "odd"},
    ]
)
_messages = st.builds(
    lambda spans, resource, more: {"resourceSpans": [resource | {"scopeSpans": [{"spans": spans}]}], **more},
    st.lists(_spans, max_size=4) | st.lists(_spans | _odd_spans, max_size=4),
    _resources,
    st.just({}) | st.just({}) | st.just({"resourceMetrics": []}),
)


def a_span(**said: Any) -> dict[str, Any]:
    attributes = [{"key": key.replace("__", "."), "value": value} for key, value in said.items()]
    return {
        "traceId": "t",
        "spanId": "a",
        "startTimeUnixNano": str(START),
        "endTimeUnixNano": str(START + 10**9),
        "attributes": attributes,
    }


def a_message(*spans: object) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


CALL: dict[str, Any] = {
    "gen_ai__request__model": {"stringValue": "opus-card"},
    "gen_ai__usage__input_tokens": {"intValue": "100"},
    "gen_ai__usage__output_tokens": {"intValue": "3"},
    "gen_ai__response__finish_reasons": {"arrayValue": {"values": [{"stringValue": "stop"}]}},
    "gen_ai__system": {"stringValue": "anthropic"},
}


@settings(deadline=None, max_examples=200)
@given(messages=st.lists(_messages, min_size=1, max_size=3))
@example(messages=[a_message(a_span(**CALL))])
@example(messages=[a_message(a_span(**CALL) | {"parentSpanId": "a"})])
@example(messages=[a_message(a_span(**CALL)), a_message(a_span())])
@example(messages=[a_message(a_span(**CALL, gen_ai__usage__total_tokens={"intValue": "900"}))])
@example(messages=[a_message(a_span(**CALL | {"gen_ai__system": {"intValue": 1, "stringValue": "openai"}}))])
def test_messages_are_read_as_any_objects_are(path: Path, messages: list[dict[str, Any]]) -> None:
    """Calls and notes: whatever stands in them."""
    assert_read_alike(path, encoded(*messages))


def test_what_most_spans_say_is_usual(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it is read quickly."""
    monkeypatch.setattr(otlp, "_span_call", None)
    other = a_span(http__route={"stringValue": "/"}) | {"spanId": "b"}
    (call,), notes = read(path, encoded(a_message(a_span(**CALL) | {"parentSpanId": "b"}, other)))
    assert call.leaves == (100, 0, 0, 0, 0, 3, 0)
    assert (call.model, call.finish_reason, call.identity, call.origin.provider) == (
        "opus-card",
        "stop",
        "t a",
        "anthropic",
    )
    assert notes == {}
