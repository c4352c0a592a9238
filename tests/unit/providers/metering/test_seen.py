"""What each event of a stream is: the first token on any channel, the end, an error, or nothing."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.clock import FakeClock
from taximeter.providers.metering import tap_for
from taximeter.providers.sighting import Seen
from taximeter.records import Dialect, Phase, Stopwatch, inter_token_ns
from tests import wire
from tests.wire import DONE, chunk, message_delta, message_start, response, text_delta

CHAT, COMPLETIONS = Dialect.OPENAI_CHAT, Dialect.OPENAI_COMPLETIONS
MESSAGES, RESPONSES = Dialect.ANTHROPIC_MESSAGES, Dialect.OPENAI_RESPONSES
ANSWER, REASONING = Seen.TOKENS | Seen.ANSWER, Seen.TOKENS
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def delta(**fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": fields}]}


def call(**function: object) -> dict[str, object]:
    return delta(tool_calls=[{"index": 0, "id": "c", "type": "function", "function": function}])


def block(kind: str, **payload: object) -> dict[str, object]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": kind, **payload}}


def piece(kind: str, **fields: object) -> dict[str, object]:
    return {"type": f"response.{kind}", "sequence_number": 1, **fields}


@pytest.mark.parametrize(
    ("dialect", "event", "seen"),
    [
        (CHAT, delta(role="assistant", content=""), Seen.NOTHING),
        (CHAT, delta(role="assistant", content=None), Seen.NOTHING),
        (CHAT, delta(), Seen.NOTHING),
        (CHAT, delta(content="a"), ANSWER),
        (CHAT, delta(reasoning_content="a"), REASONING),
        (CHAT, delta(reasoning="a", content=""), REASONING),
        (CHAT, delta(reasoning="a", content="b"), ANSWER),
        (CHAT, delta(refusal="no"), ANSWER),
        (CHAT, delta(audio={"id": "a"}), Seen.NOTHING),
        (CHAT, delta(audio={"data": "AAAA"}), ANSWER),
        (CHAT, call(name="f", arguments=""), ANSWER),
        (CHAT, call(arguments="{"), ANSWER),
        (CHAT, call(arguments=""), Seen.NOTHING),
        (CHAT, delta(function_call={"arguments": "{"}), ANSWER),
        (CHAT, delta(tool_calls=[{"index": 0, "type": "custom", "custom": {"input": "a"}}]), ANSWER),
        (CHAT, delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}]), REASONING),
        (CHAT, delta(content=[{"type": "text", "text": "a"}]), ANSWER),
        (CHAT, {"choices": [], "prompt_filter_results": [{}]}, Seen.NOTHING),
        (CHAT, {"choices": [], "usage": None}, Seen.NOTHING),
        (CHAT, {"choices": [], "usage": USAGE}, Seen.USAGE_ONLY),
        (CHAT, {"choices": [], "timings": {"prompt_n": 1}}, Seen.USAGE_ONLY),
        (CHAT, {**delta(content="a"), "usage": USAGE}, ANSWER),
        (CHAT, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": USAGE}, Seen.NOTHING),
        (CHAT, DONE, Seen.END),
        (CHAT, b" [DONE] ", Seen.END),
        (CHAT, {"error": {"message": "overloaded"}}, Seen.ERROR),
        (CHAT, {"error": None, **delta(content="a")}, ANSWER),
        (CHAT, b"", Seen.NOTHING),
        (CHAT, b"{", Seen.NOTHING),
        (CHAT, b"[1]", Seen.NOTHING),
        (COMPLETIONS, {"choices": [{"index": 0, "text": "a"}]}, ANSWER),
        (COMPLETIONS, {"choices": [{"index": 0, "text": ""}]}, Seen.NOTHING),
        (MESSAGES, message_start({"input_tokens": 1, "output_tokens": 1}), Seen.NOTHING),
        (
            MESSAGES,
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            Seen.NOTHING,
        ),
        (MESSAGES, {"type": "ping"}, Seen.NOTHING),
        (MESSAGES, text_delta("a"), ANSWER),
        (MESSAGES, text_delta(""), Seen.NOTHING),
        (MESSAGES, block("thinking_delta", thinking="a"), REASONING),
        (MESSAGES, block("thinking_delta", thinking=""), Seen.NOTHING),
        (MESSAGES, block("input_json_delta", partial_json='{"'), ANSWER),
        (MESSAGES, block("input_json_delta", partial_json=""), Seen.NOTHING),
        (MESSAGES, block("signature_delta", signature="abc"), Seen.NOTHING),
        (MESSAGES, block("citations_delta", citation={"cited_text": "a"}), Seen.NOTHING),
        (MESSAGES, message_delta({"output_tokens": 1}), Seen.NOTHING),
        (MESSAGES, {"type": "content_block_stop", "index": 0}, Seen.NOTHING),
        (MESSAGES, {"type": "message_stop"}, Seen.END),
        (MESSAGES, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, Seen.ERROR),
        (MESSAGES, {"type": "something_new", "delta": {"text": "a"}}, Seen.NOTHING),
        (RESPONSES, piece("created", response=response(None, status="in_progress")), Seen.NOTHING),
        (RESPONSES, piece("output_item.added", item={"type": "message"}), Seen.NOTHING),
        (RESPONSES, piece("content_part.added", part={"text": ""}), Seen.NOTHING),
        (RESPONSES, piece("output_text.delta", delta="a"), ANSWER),
        (RESPONSES, piece("output_text.delta", delta=""), Seen.NOTHING),
        (RESPONSES, piece("reasoning_text.delta", delta="a"), REASONING),
        (RESPONSES, piece("reasoning_summary_text.delta", delta="a"), REASONING),
        (RESPONSES, piece("function_call_arguments.delta", delta="{"), ANSWER),
        (RESPONSES, piece("custom_tool_call_input.delta", delta="a"), ANSWER),
        (RESPONSES, piece("refusal.delta", delta="no"), ANSWER),
        (RESPONSES, piece("audio.delta", delta="AAAA"), ANSWER),
        (RESPONSES, piece("mcp_call_arguments.delta", delta="{"), ANSWER),
        (RESPONSES, piece("code_interpreter_call_code.delta", delta="1"), ANSWER),
        (RESPONSES, piece("output_text.done", text="a"), Seen.NOTHING),
        (RESPONSES, piece("completed", response=response({"input_tokens": 1, "output_tokens": 1})), Seen.END),
        (RESPONSES, piece("incomplete", response=response(None, status="incomplete")), Seen.END),
        (RESPONSES, piece("failed", response=response(None, status="failed")), Seen.END | Seen.ERROR),
        (RESPONSES, {"type": "error", "code": "server_error", "message": "broken"}, Seen.ERROR),
    ],
)
def test_what_an_event_is(dialect: Dialect, event: dict[str, object] | bytes, seen: Seen):
    """One event alone."""
    assert wire.watched(dialect, wire.sse(event))[1] == [seen]


def test_an_events_name_may_be_missing():
    """Anthropic's and Responses' events say in their data what they are."""
    for dialect, event, seen in (
        (MESSAGES, text_delta("a"), ANSWER),
        (RESPONSES, piece("output_text.delta", delta="a"), ANSWER),
    ):
        assert tap_for(dialect, streamed=True).event(b"", json.dumps(event).encode()) == seen


@given(st.sampled_from(list(Dialect)[:5]), st.sampled_from([b"", b"error", b"message_delta"]), st.binary(max_size=60))
def test_the_whole_of_seen_is_of_its_kinds(dialect: Dialect, name: bytes, data: bytes):
    """Whatever an event is, it has a kind."""
    assert tap_for(dialect, streamed=True).event(name, data) in [Seen(bits) for bits in range(32)]


def timed(*events: tuple[int, dict[str, object]]) -> Stopwatch:
    """A stopwatch that a relay would keep by what the tap sees, at milliseconds."""
    clock, tap, watch = FakeClock(), tap_for(CHAT, streamed=True), Stopwatch(0, Phase.UPSTREAM)
    now_ms = 0
    for at_ms, event in events:
        clock.advance(ms=at_ms - now_ms)
        now_ms = at_ms
        seen = tap.event(b"", json.dumps(event).encode())
        if Seen.TOKENS in seen:
            watch.tokens(clock.monotonic_ns(), answer=Seen.ANSWER in seen)
    return watch


def test_a_role_is_no_token_and_reasoning_is_one():
    """Role at 5 ms, reasoning at 1,175, answer at 183,581, end at 192,851 with 13,228 tokens (api7/aisix PR 869)."""
    watch = timed(
        (5, delta(role="assistant", content="")), (1_175, delta(reasoning_content="a")), (183_581, chunk("b"))
    )
    timing = watch.stop(192_851 * 10**6)
    assert timing.first_token_ns == 1_175 * 10**6
    assert timing.first_answer_ns == 183_581 * 10**6
    assert inter_token_ns(timing, 13_228) == round((192_851 - 1_175) * 10**6 / (13_228 - 1))


def test_the_first_token_is_not_the_last_chunk():
    """Tokens at 500, 600 ... 1,500 ms: the first came at 500 (BerriAI/litellm PR 31404)."""
    timing = timed(*((at_ms, chunk("a")) for at_ms in range(500, 1_501, 100))).stop(1_500 * 10**6)
    assert timing.first_token_ns == 500 * 10**6
    assert inter_token_ns(timing, 1) is None
