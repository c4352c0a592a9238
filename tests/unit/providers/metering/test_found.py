"""What a tap finds in an answer beside its counts, and in answers that nobody should have written."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from taximeter.providers.metering import tap_for
from taximeter.providers.metering.leaves import read_usage
from taximeter.providers.metering.words import CHAT as CHAT_WORDS
from taximeter.providers.metering.words import EMBEDDINGS, Words
from taximeter.providers.metering.words import MESSAGES as MESSAGES_WORDS
from taximeter.providers.metering.words import RESPONSES as RESPONSES_WORDS
from taximeter.providers.sighting import Found, Seen
from taximeter.records import Basis, Dialect, Phase, Terms, Usage, to_json
from tests import wire
from tests.wire import DONE, MESSAGE_STOP, chat, chunk, message_delta, message_start, messages, response, text_delta

WIRES = [dialect for dialect in Dialect if dialect not in (Dialect.COMMAND_LINE, Dialect.UNSAID)]
CHAT, MESSAGES, RESPONSES = Dialect.OPENAI_CHAT, Dialect.ANTHROPIC_MESSAGES, Dialect.OPENAI_RESPONSES
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}

numbers = st.one_of(st.integers(), st.integers(0, 2_000), st.floats(), st.sampled_from([1e300, 10**400, 2**63, True]))
words = st.sampled_from(
    [
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
        "input_tokens",
        "output_tokens",
        "prompt_tokens_details",
        "cached_tokens",
        "usage",
        "completion_tokens_details",
        "input_tokens_details",
        "output_tokens_details",
        "reasoning_tokens",
        "audio_tokens",
        "image_tokens",
        "type",
        "cache_creation",
        "cache_creation_input_tokens",
        "cache_read_input_tokens",
        "ephemeral_5m_input_tokens",
        "iterations",
        "compaction",
        "ephemeral_1h_input_tokens",
        "cache_write_tokens",
        "cache_write_tokens_details",
        "ttl_30m_tokens",
        "ttl_12h_tokens",
        "message",
        "delta",
        "server_tool_use",
        "web_search_requests",
        "service_tier",
        "speed",
        "inference_geo",
        "thinking_tokens",
        "choices",
        "response",
        "error",
        "text",
        "model",
        "content",
        "index",
        "finish_reason",
        "stop_reason",
        "tool_calls",
        "function",
        "arguments",
        "timings",
        "cache_n",
        "prompt_n",
        "predicted_n",
        "metrics",
        "queue_time_ms",
        "meta_info",
        "queue_time",
        "output",
        "status",
        "action",
        "message_start",
        "message_delta",
        "message_stop",
        "content_block_delta",
        "response.completed",
        "response.output_text.delta",
        "advisor_message",
        "fallback_credit",
        "redeemed",
    ]
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, words, st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(words, st.text(max_size=3)), inner, max_size=6)
    ),
    max_leaves=25,
)
usages = st.dictionaries(words, st.one_of(numbers, st.dictionaries(words, numbers, max_size=4), values), max_size=8)


def check(found: Found) -> None:
    """What must hold of anything that was found: it can be written down, and nothing is unknown without a reason."""
    json.dumps(to_json(found.usage))
    for name, count in found.usage.leaves().items():
        assert count is not None or found.usage.unknown_reasons[name]
    assert all(ns >= 0 for ns in found.spent_ns.values())
    assert found.error is None or (0 < len(found.error) <= 200 and found.error.isprintable())


@given(st.sampled_from(WIRES), st.booleans(), st.lists(st.tuples(words, values), max_size=6))
def test_no_event_breaks_a_tap(dialect: Dialect, ends: bool, events: list[tuple[str, Any]]):
    """Any JSON, in any order, under any name."""
    tap = tap_for(dialect, streamed=True)
    for name, value in events:
        assert isinstance(tap.event(name.encode(), json.dumps(value).encode()), Seen)
        check(tap.found())
    if ends:
        tap.event(b"", DONE)
    check(tap.found())


@given(st.sampled_from(WIRES), st.one_of(values.map(lambda value: json.dumps(value).encode()), st.binary(max_size=200)))
@example(MESSAGES, b"[" * 100_000)
@example(CHAT, b'{"usage":' * 50_000)
@example(RESPONSES, b'{"usage": {"input_tokens": ' + b"9" * 6_000 + b"}}")
@example(CHAT, b'{"usage": {"prompt_tokens": NaN}}')
@example(CHAT, b'{"model": "\\ud800", "usage": {"\\ud800": 1}}')
@example(CHAT, b"\xff\xfe{}")
def test_no_body_breaks_a_tap(dialect: Dialect, body: bytes):
    """Any JSON, and bytes that are none."""
    tap = tap_for(dialect, streamed=False)
    tap.whole(body)
    check(tap.found())


@given(st.sampled_from([CHAT_WORDS, EMBEDDINGS, RESPONSES_WORDS, MESSAGES_WORDS]), usages)
@example(RESPONSES_WORDS, {"input_tokens": float("nan")})
@example(RESPONSES_WORDS, {"input_tokens": 10**400})
@example(EMBEDDINGS, {"total_tokens": 0})
def test_no_usage_object_breaks_the_sum(table: Words, said: dict[str, Any]):
    """Either the buckets of both sides sum to what the object says, or they are unknown; and it is kept as it came."""
    usage = read_usage(table, said)
    assert usage.reported == said
    if usage.input_tokens is not None and table.input_has_parts:
        assert usage.input_tokens == said[table.input[0]]
    if usage.total_tokens is not None and table.total is not None and said.get("total_tokens") is not None:
        assert usage.total_tokens == said["total_tokens"]


counts = st.integers(0, 10**6)


@given(counts, counts, counts, counts, counts, counts)
def test_leaves_sum_to_the_total_in_every_dialect(
    fresh: int, read: int, short: int, long: int, text: int, thought: int
):
    """The same answer in the words of each dialect lands in the same buckets."""
    prompt, out = fresh + read + short + long, text + thought
    split = {"ttl_30m_tokens": short, "ttl_12h_tokens": long}
    details = {"cached_tokens": read, "cache_write_tokens": short + long, "cache_write_tokens_details": split}
    chat_usage = read_usage(
        CHAT_WORDS,
        {
            "prompt_tokens": prompt,
            "completion_tokens": out,
            "total_tokens": prompt + out,
            "prompt_tokens_details": details,
            "completion_tokens_details": {"reasoning_tokens": thought},
        },
    )
    responses_usage = read_usage(
        RESPONSES_WORDS,
        {
            "input_tokens": prompt,
            "output_tokens": out,
            "total_tokens": prompt + out,
            "input_tokens_details": details,
            "output_tokens_details": {"reasoning_tokens": thought},
        },
    )
    messages_usage = read_usage(
        MESSAGES_WORDS,
        {
            "input_tokens": fresh,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": short + long,
            "cache_creation": {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": long},
            "output_tokens": out,
            "output_tokens_details": {"thinking_tokens": thought},
        },
    )
    assert chat_usage.leaves() == responses_usage.leaves()
    assert chat_usage.input_cache_write_12h_tokens == messages_usage.input_cache_write_1h_tokens == long
    for usage in (chat_usage, messages_usage):
        assert (usage.input_tokens, usage.output_tokens) == (prompt, out)
        assert (usage.input_fresh_tokens, usage.output_reasoning_tokens) == (fresh, thought)


@pytest.mark.parametrize(
    ("usage", "reason"),
    [
        ({}, "has neither prompt_tokens nor completion_tokens"),
        ({"prompt_tokens": "12", "completion_tokens": 1}, "prompt_tokens is text, no number"),
        ({"prompt_tokens": True, "completion_tokens": 1}, "prompt_tokens is a truth value"),
        ({"prompt_tokens": -1, "completion_tokens": 1}, "prompt_tokens is negative"),
        ({"prompt_tokens": 1e300, "completion_tokens": 1}, "prompt_tokens is larger than any count"),
        ({"prompt_tokens": 2**64, "completion_tokens": 1}, "prompt_tokens is larger than any count"),
        ({"prompt_tokens": 1.5, "completion_tokens": 1}, "prompt_tokens is no whole number"),
        (
            {"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": 5},
            "prompt_tokens_details is no object",
        ),
        ({"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 9}, "total_tokens is 9, and its parts sum to 6"),
        (
            {"prompt_tokens": 5, "completion_tokens": 1, "completion_tokens_details": {"reasoning_tokens": 2}},
            "completion_tokens is 1, and its parts are more: output_reasoning 2",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(usage: dict[str, object], reason: str):
    """The whole of the usage is unknown, and what was said is kept."""
    used = wire.whole(CHAT, chat(usage)).usage
    assert set(used.leaves().values()) == {None}
    assert all(reason in why for why in used.unknown_reasons.values())
    assert used.reported == usage


def test_one_side_may_be_known():
    """A usage without its answer's tokens still has its prompt's."""
    used = wire.whole(CHAT, chat({"prompt_tokens": 12.0})).usage
    assert (used.input_tokens, used.output_tokens) == (12, None)
    assert "no completion_tokens" in used.unknown_reasons["output_text_tokens"]


def test_reasoning_beside_the_answer_is_told_by_the_total():
    """Where prompt, answer and reasoning make the total, reasoning is not inside the answer: 100 + 50 are 150."""
    usage = {"prompt_tokens": 10, "completion_tokens": 100, "total_tokens": 160}
    used = wire.whole(CHAT, chat({**usage, "completion_tokens_details": {"reasoning_tokens": 50}})).usage
    assert (used.output_text_tokens, used.output_reasoning_tokens, used.output_tokens) == (100, 50, 150)


def test_images_in_a_cached_prompt_are_assumed_to_come_after_its_text():
    """How much of the cache is of images is not said; the totals are right either way."""
    usage = {"prompt_tokens": 1_000, "completion_tokens": 0, "prompt_tokens_details": {"image_tokens": 700}}
    used = wire.whole(CHAT, chat(usage)).usage
    assert (used.input_fresh_tokens, used.input_image_tokens, used.basis) == (300, 700, Basis.REPORTED)
    usage["prompt_tokens_details"] = {"image_tokens": 700, "cached_tokens": 400}
    used = wire.whole(CHAT, chat(usage)).usage
    assert (used.input_fresh_tokens, used.input_image_tokens, used.input_cache_read_tokens) == (0, 600, 400)
    assert used.basis is Basis.ASSUMED


def test_a_redeemed_credit_hides_the_prompts_buckets():
    """Its prompt is billed as if another model had cached it: what was read is no guide to what is charged."""
    usage = {"input_tokens": 5, "cache_creation_input_tokens": 100, "output_tokens": 7}
    credit = {"fallback_credit": {"status": {"type": "redeemed"}}}
    used = wire.whole(MESSAGES, messages({**usage, **credit})).usage
    assert (used.input_tokens, used.output_tokens) == (None, 7)
    not_applied = {"fallback_credit": {"status": {"type": "not_applied", "reason": "expired"}}}
    assert wire.whole(MESSAGES, messages({**usage, **not_applied})).usage.input_tokens == 105


def test_a_list_of_calls_that_lacks_some_is_refused():
    """The calls within a request are at least what its totals say."""
    calls = [{"type": "message", "input_tokens": 1, "output_tokens": 1}]
    used = wire.whole(MESSAGES, messages({"input_tokens": 1, "output_tokens": 9, "iterations": calls})).usage
    assert used.output_tokens is None
    assert "sum to 1" in used.unknown_reasons["output_text_tokens"]


def test_a_compaction_alone_stands_beside_the_totals():
    """A list that has no call of the answer's own leaves the totals what they are."""
    calls = [{"type": "compaction", "input_tokens": 100, "output_tokens": 10}]
    used = wire.whole(MESSAGES, messages({"input_tokens": 7, "output_tokens": 3, "iterations": calls})).usage
    assert (used.input_tokens, used.output_tokens, used.prompts_tokens) == (107, 13, (7, 100))


def test_terms_and_names_are_the_providers():
    """Tier, speed and place, the model, and how each choice ended."""
    start = message_start(
        {"input_tokens": 1, "service_tier": "priority", "speed": "fast", "inference_geo": "us"}, model="claude-x"
    )
    found = wire.streamed(
        MESSAGES, start, text_delta("a"), message_delta({"output_tokens": 3}, stop_reason="tool_use"), MESSAGE_STOP
    )
    assert found.terms == Terms(tier="priority", speed="fast", geography="us")
    assert (found.model, found.finish_reasons, found.is_whole) == ("claude-x", ("tool_use",), True)
    two = {
        "choices": [{"index": n, "delta": {}, "finish_reason": reason} for n, reason in ((1, "length"), (0, "stop"))]
    }
    found = wire.streamed(CHAT, {**two, "model": "gpt-x", "service_tier": "flex"}, DONE)
    assert (found.terms, found.model, found.finish_reasons) == (Terms(tier="flex"), "gpt-x", ("stop", "length"))
    cut = response(
        None, status="incomplete", incomplete_details={"reason": "max_output_tokens"}, service_tier="default"
    )
    found = wire.streamed(RESPONSES, {"type": "response.incomplete", "response": cut})
    assert (found.finish_reasons, found.terms, found.is_whole) == (("max_output_tokens",), Terms(tier="default"), True)
    assert wire.whole(CHAT, chat(USAGE)).terms is None


@pytest.mark.parametrize(
    ("events", "dialect"),
    [
        ([chunk("a")], CHAT),
        ([message_start({"input_tokens": 1}), text_delta("a")], MESSAGES),
        ([{"type": "response.output_text.delta", "delta": "a"}], RESPONSES),
    ],
)
def test_a_stream_that_breaks_off_is_not_whole(dialect: Dialect, events: list[dict[str, object]]):
    """Its tokens are counted by what was seen, and the reasons say why the rest is unknown."""
    found = wire.streamed(dialect, *events)
    assert not found.is_whole
    assert (found.usage.output_tokens, found.usage.basis) == (1, Basis.DERIVED)
    assert all("broke off" in why for why in found.usage.unknown_reasons.values())


def test_a_stream_without_a_usage_has_a_lower_bound():
    """It ended well and nobody asked for the usage: at least so many tokens were written, on each channel."""
    thought = {"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}]}
    used = wire.streamed(CHAT, thought, chunk("a"), chunk("b"), DONE).usage
    assert (used.output_reasoning_tokens, used.output_text_tokens, used.basis) == (1, 2, Basis.DERIVED)
    assert "ended without a usage" in used.unknown_reasons["input_fresh_tokens"]


def test_usage_is_found_where_each_provider_has_it():
    """Groq's streams have it in an object of theirs, Moonshot's within a choice; LiteLLM and Mistral have words
    of their own for what came from a cache."""
    end: dict[str, object] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    groq = {**end, "x_groq": {"id": "req_1", "usage": {**USAGE, "queue_time": 0.01}}}
    used = wire.streamed(CHAT, {"x_groq": {"id": "req_1"}, "choices": []}, chunk("a"), groq, DONE).usage
    assert (used.total_tokens, used.basis) == (USAGE["total_tokens"], Basis.REPORTED)
    moonshot = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": USAGE}]}
    used = wire.streamed(CHAT, chunk("a"), moonshot, DONE).usage
    assert (used.total_tokens, used.basis) == (USAGE["total_tokens"], Basis.REPORTED)
    litellm = {"prompt_tokens": 1_300, "completion_tokens": 10, "total_tokens": 1_310, "cache_read_input_tokens": 1_000}
    litellm |= {"cache_creation_input_tokens": 200, "cache_creation": {"ephemeral_1h_input_tokens": 150}}
    used = wire.whole(CHAT, chat(litellm)).usage
    assert (used.input_fresh_tokens, used.input_cache_read_tokens) == (100, 1_000)
    assert (used.input_cache_write_1h_tokens, used.input_cache_write_unknown_tokens) == (150, 50)
    mistral = {"prompt_tokens": 200, "completion_tokens": 7, "total_tokens": 207, "num_cached_tokens": 128}
    used = wire.whole(CHAT, chat(mistral)).usage
    assert (used.input_fresh_tokens, used.input_cache_read_tokens) == (72, 128)


def test_searches_are_counted_where_the_response_leaves_its_output_out():
    """Some streams end with a response whose output is empty: then the items that were done count, once."""
    search = {"type": "web_search_call", "status": "completed", "action": {"type": "search"}}
    done = {"type": "response.output_item.done", "item": search}
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    for output in ([], [search, search]):
        end = {"type": "response.completed", "response": {"status": "completed", "usage": usage, "output": output}}
        assert wire.streamed(RESPONSES, done, done, end).usage.other_units == {"web_searches": 2}
    assert wire.streamed(RESPONSES, done).usage.other_units == {}  # broken off: of the usage nothing is known


def test_a_running_total_of_a_broken_stream_is_a_lower_bound():
    """Each chunk says what there is until then; more may have been on its way."""
    running = {"prompt_tokens": 7, "completion_tokens": 40, "total_tokens": 47}
    used = wire.streamed(CHAT, chunk("a", usage=running)).usage
    assert (used.input_tokens, used.output_tokens, used.basis) == (7, 40, Basis.DERIVED)
    used = wire.streamed(CHAT, chunk("a"), chunk(usage=running)).usage
    assert used.basis is Basis.REPORTED  # the chunk without choices is the last word


def test_a_usage_is_the_last_word_where_the_answer_has_ended():
    """A choice that finished with its usage is known, even if the line was cut before the stream's own end."""
    last = {"choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": "stop"}], "usage": USAGE}
    found = wire.streamed(CHAT, chunk("a"), last)
    assert (found.usage.basis, found.is_whole) == (Basis.REPORTED, False)
    found = wire.streamed(CHAT, chunk("a"), last, *[chunk("c")] * 6)  # another choice goes on
    assert (found.usage.output_tokens, found.usage.basis) == (8, Basis.DERIVED)


def test_a_placeholder_is_no_report():
    """What a stream said at its start, or before it went on, is a lower bound."""
    start = message_start({"input_tokens": 25, "output_tokens": 1})
    used = wire.streamed(MESSAGES, start, MESSAGE_STOP).usage
    assert (used.output_tokens, used.basis) == (1, Basis.DERIVED)
    paused = message_delta({"output_tokens": 2}, stop_reason="pause_turn")
    used = wire.streamed(MESSAGES, start, paused, *[text_delta("a")] * 3).usage
    assert (used.output_tokens, used.basis) == (3, Basis.DERIVED)


def test_thinking_is_told_once_for_all_calls():
    """The calls within a request do not say what of them was thinking; the top of the usage does."""
    calls = [{"type": "message", "input_tokens": 1, "output_tokens": 40}, {"type": "message", "output_tokens": 60}]
    calls[1]["input_tokens"] = 2
    usage = {"input_tokens": 1, "output_tokens": 100, "output_tokens_details": {"thinking_tokens": 70}}
    used = wire.whole(MESSAGES, messages({**usage, "iterations": calls})).usage
    assert (used.input_tokens, used.output_text_tokens, used.output_reasoning_tokens) == (3, 30, 70)


@pytest.mark.parametrize(
    ("extras", "spent_ms"),
    [
        (
            {"metrics": {"queue_time_ms": 300.0, "time_to_first_token_ms": 200.0, "generation_time_ms": 1_240.5}},
            {Phase.QUEUE: 300, Phase.PREFILL: 200, Phase.DECODE: 1_240.5},
        ),
        (
            {
                "meta_info": {
                    "queue_time": 0.3,
                    "forward_entry_time": 1_000.5,
                    "prefill_finished_time": 1_000.75,
                    "first_token_latency": 0.6,
                    "e2e_latency": 1.6,
                }
            },
            {Phase.QUEUE: 300, Phase.PREFILL: 250, Phase.DECODE: 1_000},
        ),
        ({"timings": {"prompt_ms": 62.0, "predicted_ms": 500}}, {Phase.PREFILL: 62, Phase.DECODE: 500}),
        ({"metrics": {"queue_time_ms": -1, "time_to_first_token_ms": "5", "generation_time_ms": None}}, {}),
        ({"metrics": {"queue_time_ms": 1e300, "time_to_first_token_ms": True}}, {}),
        ({"metrics": [1]}, {}),
        ({"timings": {"prompt_ms": 5.0, "unheard_of_ms": 7.0}}, {Phase.PREFILL: 5}),
    ],
)
def test_engines_times_are_phases(extras: dict[str, object], spent_ms: dict[Phase, float]):
    """vLLM's first-token time begins when the request is scheduled, so it is the prefill; nonsense is left out."""
    expected = {phase: round(ms * 1e6) for phase, ms in spent_ms.items()}
    for found in (
        wire.whole(CHAT, chat(USAGE, **extras)),
        wire.streamed(CHAT, chunk("a"), {**chunk(usage=USAGE), **extras}, DONE),
    ):
        assert found.spent_ns == pytest.approx(expected, abs=1_000)
        assert (found.usage.input_tokens, found.usage.output_tokens) == (10, 5)


def test_timings_that_disagree_with_the_usage_say_nothing_of_the_cache():
    """A prompt of another length is another prompt's."""
    used = wire.whole(CHAT, chat(USAGE, timings={"cache_n": 900, "prompt_n": 124})).usage
    assert (used.input_fresh_tokens, used.input_cache_read_tokens) == (10, 0)
    known = {**USAGE, "prompt_tokens_details": {"cached_tokens": 3}}
    used = wire.whole(CHAT, chat(known, timings={"cache_n": 8, "prompt_n": 2})).usage
    assert (used.input_fresh_tokens, used.input_cache_read_tokens) == (7, 3)


@pytest.mark.parametrize(
    ("dialect", "body", "error"),
    [
        (
            CHAT,
            {"error": {"message": "No such model", "type": "invalid_request_error"}},
            "invalid_request_error: No such model",
        ),
        (CHAT, {"error": {"message": "Slow down", "code": 429}}, "429: Slow down"),
        (CHAT, {"error": "out of memory"}, "out of memory"),
        (CHAT, {"error": {}}, "an error without a message"),
        (CHAT, {"object": "error", "message": "too long", "type": "BadRequestError"}, "BadRequestError: too long"),
        (CHAT, {"detail": "Not Found"}, "Not Found"),
        (
            MESSAGES,
            {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
            "overloaded_error: Overloaded",
        ),
        (RESPONSES, {"error": {"message": "no", "type": "server_error", "code": None}}, "server_error: no"),
    ],
)
def test_an_error_is_a_line(dialect: Dialect, body: dict[str, object], error: str):
    """Type and message, whether the stream was refused as a whole or broke."""
    found = wire.whole(dialect, body)
    assert found.error == error
    assert set(found.usage.leaves().values()) == {None}


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ("Incorrect API key provided: sk-proj-abc123DEF456ghi789.", "Incorrect API key provided: ***"),
        ("Incorrect API key provided: my-own-word. Find it", "Incorrect API key provided: *** Find it"),
        ("sent Authorization: Bearer abc.def-123", "sent Authorization: Bearer ***"),
        ("api_key='0123456789abcdef'", "api_key='***'"),
        ("sk-ant-api03-AbCdEf_GhIjKl is wrong", "*** is wrong"),
        ("got 0123456789abcdef0123456789abcdef", "got ***"),
        ("token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc", "token ***"),
        ("line one\n\n  line\ttwo", "line one line two"),
        ("claude-opus-5 and gpt-5.6-sol are well", "claude-opus-5 and gpt-5.6-sol are well"),
    ],
)
def test_no_key_is_kept(message: str, kept: str):
    """What looks like a secret is masked, and words are not."""
    assert wire.whole(CHAT, {"error": {"message": message}}).error == kept


def test_a_long_error_is_cut():
    """At most 200 characters, also where a key begins at the cut."""
    error = wire.whole(CHAT, {"error": {"message": "word " * 38 + "sk-abcdefghijklmnopqrstuvwxyz" + "0" * 5_000}}).error
    assert error is not None
    assert len(error) <= 200
    assert "sk-" not in error


def test_an_error_in_the_middle_of_a_stream():
    """What was seen before it stays, and the answer is not whole."""
    broken = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    found = wire.streamed(MESSAGES, message_start({"input_tokens": 25, "output_tokens": 1}), text_delta("a"), broken)
    assert (found.error, found.is_whole) == ("overloaded_error: Overloaded", False)
    assert (found.usage.input_tokens, found.usage.output_tokens) == (25, 1)
    found = wire.streamed(CHAT, chunk("a"), {"error": {"message": "boom"}}, DONE)
    assert (found.error, found.is_whole) == ("boom", False)


def test_a_usage_of_thousands_of_fields_is_not_kept():
    """A receipt keeps what was reported as it came, so there is a bound to it."""
    used = wire.whole(CHAT, chat({**USAGE, **{f"x{n}": n for n in range(5_000)}})).usage
    assert used.reported is None
    assert used == Usage.unknown("the usage is no object that could be read")


@pytest.mark.parametrize("dialect", [Dialect.COMMAND_LINE, Dialect.UNSAID])
def test_the_command_line_has_no_wire(dialect: Dialect):
    """Nothing to tap there, nor where nobody says what was spoken."""
    with pytest.raises(ValueError, match="by wire"):
        tap_for(dialect, streamed=False)


@pytest.mark.parametrize("model", ["gemini-2.5-pro", "models/gemini-3-flash", "google/Gemini-2.5-flash"])
def test_thoughts_that_are_in_the_total_alone_are_output(model: str):
    """Google's door for OpenAI's clients: 100 of answer, 50 of thoughts that are billed, and no word for them."""
    usage = {"prompt_tokens": 10, "completion_tokens": 100, "total_tokens": 160}
    found = wire.whole(CHAT, chat(usage, model=model))
    assert (found.usage.output_text_tokens, found.usage.output_reasoning_tokens) == (100, 50)
    assert (found.usage.output_tokens, found.usage.total_tokens) == (150, 160)
    told = {**usage, "completion_tokens_details": {"reasoning_tokens": 50}}
    assert wire.whole(CHAT, chat(told, model=model)).usage.output_tokens == 150
    plain = {"prompt_tokens": 10, "completion_tokens": 100, "total_tokens": 110}
    assert wire.whole(CHAT, chat(plain, model=model)).usage.output_tokens == 100
    nobody = wire.whole(CHAT, chat(usage, model="gpt"))
    assert nobody.usage.output_tokens is None, "elsewhere a total that is more than its parts is not understood"
