"""An Anthropic client in front of an upstream that speaks like OpenAI, and the reverse: answers, calls, images and
errors come as that client knows them, and receipts are as true as those of what passes through."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import openai
import pytest

from taximeter.records import Basis, Outcome, Phase
from taximeter.upstreams.config import Family
from taximeter.upstreams.secrets import Secret
from tests.fakes import WAIT_S
from tests.gateway_harness import CHAT, MESSAGES, Caller, app_of, listening, post
from tests.passing import CHAT_STREAM, CHAT_TEXT, CHAT_USAGE, MESSAGES_STREAM, asking, asking_messages
from tests.upstream_harness import Do, ScriptedUpstream, Steps, an_upstream, passing_house, streamed, whole
from tests.wire import DONE, MESSAGE_STOP, chat, chunk, message_delta, message_start, sse

DEAD = "http://127.0.0.1:9"
HELLO: list[Any] = [{"role": "user", "content": "Good day"}]
CLAUDE_ASKS: dict[str, Any] = {"model": "gpt", "max_tokens": 50, "messages": HELLO}
OPENAI_ASKS: dict[str, Any] = {"model": "claude", "max_tokens": 50, "messages": HELLO}
PIXEL = "aGk="
WEATHER_INPUT = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}

CALLING_CHAT = (
    sse(chunk(None, tool_calls=[{"index": 0, "id": "call_1", "function": {"name": "weather", "arguments": ""}}])),
    sse(chunk(None, tool_calls=[{"index": 0, "function": {"arguments": '{"city":'}}])),
    sse(chunk(None, tool_calls=[{"index": 0, "function": {"arguments": '"Ulm"}'}}])),
    sse({**chunk("x"), "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
    sse(chunk(usage={"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16})),
    sse(DONE),
)
TOOL_USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}
CALLING_MESSAGES = (
    sse(message_start({"input_tokens": 9, "output_tokens": 1})),
    sse({"type": "content_block_start", "index": 0, "content_block": TOOL_USE}),
    sse({"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"city":'}}),
    sse({"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '"Ulm"}'}}),
    sse({"type": "content_block_stop", "index": 0}),
    sse(message_delta({"output_tokens": 7}, stop_reason="tool_use")),
    sse(MESSAGE_STOP),
)


def claude(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="client-key", max_retries=0, timeout=WAIT_S)


def gpt(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url + "/v1", api_key="client-key", max_retries=0, timeout=WAIT_S)


def test_anthropics_client_asks_one_that_speaks_like_openai() -> None:
    """Whole and streamed. The upstream is asked in its own words, with its own key, for a stream and its usage."""
    with ScriptedUpstream(streamed(*CHAT_STREAM, x_request_id="up-1")).listening() as up:
        house, ledger = passing_house(an_upstream(up.url, key=Secret("sk-upstream", "env:K")), send_as="gpt-2026")
        with listening(house) as url, claude(url) as client:
            answer = client.messages.create(**CLAUDE_ASKS)
            with client.messages.stream(**CLAUDE_ASKS, system="Be brief.") as stream:
                assert "".join(stream.text_stream) == "Hello, world"
                assert stream.get_final_message().usage.output_tokens == 5
    assert (answer.content[0].text, answer.stop_reason) == ("Hello, world", "end_turn")
    assert (answer.usage.input_tokens, answer.usage.cache_read_input_tokens, answer.usage.output_tokens) == (8, 4, 5)
    first, second = up.books
    assert (first.method, first.path) == ("POST", "/v1/chat/completions")
    assert first.headers["authorization"] == "Bearer sk-upstream"
    assert "client-key" not in repr(up.books)
    assert (first.json()["model"], first.json()["stream"]) == ("gpt-2026", True)
    assert first.json()["stream_options"] == {"include_usage": True}
    assert second.json()["messages"][0] == {"role": "system", "content": "Be brief."}
    for receipt in ledger.kept:
        assert (receipt.outcome, receipt.served_by, receipt.upstream_request_id) == (Outcome.COMPLETED, "up", "up-1")
        assert (receipt.usage.input_fresh_tokens, receipt.usage.input_cache_read_tokens) == (8, 4)
        assert (receipt.usage.output_tokens, receipt.usage.basis) == (5, Basis.REPORTED)
        assert [attempt.status for attempt in receipt.tries] == [200]
        assert receipt.timing.first_token_ns is not None
        assert receipt.timing.upstream_ns > 0


@pytest.mark.parametrize("says_early", [True, False])
def test_the_start_of_a_message_has_the_prompt_where_it_is_known(says_early: bool) -> None:
    """Some tell the usage with every chunk, most at the end only: then all of it comes with the message's end."""
    early = {"prompt_tokens": 12, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}}
    first = sse({**chunk("Hello"), "usage": early}) if says_early else CHAT_TEXT[1]
    with ScriptedUpstream(streamed(CHAT_TEXT[0], first, Do.HOLD, *CHAT_STREAM[2:])).listening() as up:
        house, _ = passing_house(an_upstream(up.url))
        with listening(house) as url, claude(url) as client:
            events = iter(client.messages.create(**CLAUDE_ASKS, stream=True))
            start = next(events)
            assert up.held.acquire(timeout=WAIT_S)
            up.release()
            *_, delta, _ = events
    at_start = (start.message.usage.input_tokens, start.message.usage.cache_read_input_tokens)
    assert at_start == ((8, 4) if says_early else (0, 0))
    assert (delta.usage.input_tokens, delta.usage.cache_read_input_tokens, delta.usage.output_tokens) == (8, 4, 5)


def test_openais_client_asks_one_that_speaks_like_anthropic() -> None:
    """The reverse, with the usage as OpenAI's client knows it."""
    with ScriptedUpstream(streamed(*MESSAGES_STREAM, request_id="req_9")).listening() as up:
        upstream = an_upstream(up.url, Family.ANTHROPIC, key=Secret("sk-ant-upstream", "env:K"))
        house, ledger = passing_house(upstream)
        with listening(house) as url, gpt(url) as client:
            answer = client.chat.completions.create(**OPENAI_ASKS)
            events = list(client.chat.completions.create(**OPENAI_ASKS, stream=True))
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Hello, world", "stop")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (25, 15)
    assert "".join(event.choices[0].delta.content or "" for event in events) == "Hello, world"
    [first, _] = up.books
    assert (first.path, first.headers["x-api-key"]) == ("/v1/messages", "sk-ant-upstream")
    assert first.headers["anthropic-version"] == "2023-06-01"
    assert first.json()["max_tokens"] == 50
    used = [(each.usage.input_tokens, each.usage.output_tokens, each.upstream_request_id) for each in ledger.kept]
    assert used == [(25, 15, "req_9")] * 2


def test_an_answer_that_comes_whole_is_one_all_the_same() -> None:
    """Some servers do not stream, whatever they are asked for. All of it arrives, streamed or not; when its first token
    was generated nobody knows."""
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Ulm"}'}}
    said = {"role": "assistant", "content": "Hello", "tool_calls": [call]}
    chat_answer = chat(CHAT_USAGE) | {"choices": [{"index": 0, "message": said, "finish_reason": "tool_calls"}]}
    blocks = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Hello"}]
    message = {
        "type": "message",
        "model": "claude",
        "content": [*blocks, {**TOOL_USE, "input": {"city": "Ulm"}}],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 8, "cache_read_input_tokens": 4, "output_tokens": 5},
    }
    with (
        ScriptedUpstream(whole(json.dumps(chat_answer).encode())).listening() as chatting,
        ScriptedUpstream(whole(json.dumps(message).encode())).listening() as messaging,
    ):
        house, from_chat = passing_house(an_upstream(chatting.url))
        with listening(house) as url, claude(url) as client:
            answer = client.messages.create(**CLAUDE_ASKS)
            with client.messages.stream(**CLAUDE_ASKS) as stream:
                again = stream.get_final_message()
        house, from_messages = passing_house(an_upstream(messaging.url, Family.ANTHROPIC))
        with listening(house) as url, gpt(url) as client:
            choice = client.chat.completions.create(**OPENAI_ASKS).choices[0]
    for each in (answer, again):
        assert [block.type for block in each.content] == ["text", "tool_use"]
        assert each.content[1].input == {"city": "Ulm"}
    assert (choice.message.content, choice.finish_reason) == ("Hello", "tool_calls")
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {"city": "Ulm"}
    for receipt in (*from_chat.kept, *from_messages.kept):
        assert (receipt.usage.input_fresh_tokens, receipt.usage.input_cache_read_tokens) == (8, 4)
        assert (receipt.usage.output_tokens, receipt.usage.basis) == (5, Basis.REPORTED)
        assert (receipt.outcome, receipt.timing.first_token_ns) == (Outcome.COMPLETED, None)


@pytest.mark.parametrize("body", [b'{"error": {"type": "server_error", "message": "no"}}', b'{"choices": []}', b'{"a'])
def test_an_answer_that_comes_whole_and_is_none_is_an_error(body: bytes) -> None:
    """With 200, but an error, nothing, or no JSON."""
    with ScriptedUpstream(whole(body), whole(body)).listening() as up:
        house, from_chat = passing_house(an_upstream(up.url))
        with listening(house) as url, claude(url) as client, pytest.raises(anthropic.APIError):
            client.messages.create(**CLAUDE_ASKS)
        house, from_messages = passing_house(an_upstream(up.url, Family.ANTHROPIC))
        with listening(house) as url, gpt(url) as client, pytest.raises(openai.APIError):
            client.chat.completions.create(**OPENAI_ASKS)
    for receipt in (*from_chat.kept, *from_messages.kept):
        assert (receipt.outcome, receipt.cost) == (Outcome.FAILED, None)


def test_calls_cross_both_ways() -> None:
    """A tool is offered, called, and its result given back, in each direction."""
    with (
        ScriptedUpstream(streamed(*CALLING_CHAT), streamed(*CHAT_STREAM)).listening() as chatting,
        ScriptedUpstream(streamed(*CALLING_MESSAGES), streamed(*MESSAGES_STREAM)).listening() as messaging,
    ):
        tool: Any = {"name": "weather", "description": "Weather.", "input_schema": WEATHER_INPUT}
        house, _ = passing_house(an_upstream(chatting.url))
        with listening(house) as url, claude(url) as client:
            call = client.messages.create(**CLAUDE_ASKS, tools=[tool])
            [block] = call.content
            result = {"type": "tool_result", "tool_use_id": block.id, "content": "Rain"}
            turns = [
                *HELLO,
                {"role": "assistant", "content": [block.model_dump()]},
                {"role": "user", "content": [result]},
            ]
            client.messages.create(**CLAUDE_ASKS | {"messages": turns}, tools=[tool])
        assert (block.type, block.name, block.input, call.stop_reason) == (
            "tool_use",
            "weather",
            {"city": "Ulm"},
            "tool_use",
        )
        assert chatting.books[0].json()["tools"][0]["function"]["parameters"] == WEATHER_INPUT
        called, given = chatting.books[1].json()["messages"][-2:]
        assert json.loads(called["tool_calls"][0]["function"]["arguments"]) == {"city": "Ulm"}
        assert (given["role"], given["tool_call_id"]) == ("tool", called["tool_calls"][0]["id"])

        function = {"name": "weather", "description": "Weather.", "parameters": WEATHER_INPUT}
        house, _ = passing_house(an_upstream(messaging.url, Family.ANTHROPIC, key=Secret("k" * 9, "env:K")))
        with listening(house) as url, gpt(url) as client:
            tools: Any = [{"type": "function", "function": function}]
            choice = client.chat.completions.create(**OPENAI_ASKS, tools=tools).choices[0]
            [asked] = choice.message.tool_calls
            turns = [
                *HELLO,
                choice.message.model_dump(exclude_none=True),
                {"role": "tool", "tool_call_id": asked.id, "content": "Rain"},
            ]
            client.chat.completions.create(**OPENAI_ASKS | {"messages": turns}, tools=tools)
        assert (asked.function.name, json.loads(asked.function.arguments)) == ("weather", {"city": "Ulm"})
        assert choice.finish_reason == "tool_calls"
        assert messaging.books[0].json()["tools"][0]["input_schema"] == WEATHER_INPUT
        called, given = messaging.books[1].json()["messages"][-2:]
        assert called["content"][-1]["input"] == {"city": "Ulm"}
        assert given["content"][0]["tool_use_id"] == called["content"][-1]["id"]


def test_images_cross_both_ways() -> None:
    """Base64 in one, a data URL in the other."""
    with (
        ScriptedUpstream(streamed(*CHAT_STREAM)).listening() as chatting,
        ScriptedUpstream(streamed(*MESSAGES_STREAM)).listening() as messaging,
    ):
        source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
        house, _ = passing_house(an_upstream(chatting.url))
        with listening(house) as url, claude(url) as client:
            turn: Any = {
                "role": "user",
                "content": [{"type": "image", "source": source}, {"type": "text", "text": "?"}],
            }
            client.messages.create(**CLAUDE_ASKS | {"messages": [turn]})
        house, _ = passing_house(an_upstream(messaging.url, Family.ANTHROPIC, key=Secret("k" * 9, "env:K")))
        with listening(house) as url, gpt(url) as client:
            image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
            turn = {"role": "user", "content": [image, {"type": "text", "text": "?"}]}
            client.chat.completions.create(**OPENAI_ASKS | {"messages": [turn]})
    [sent] = chatting.books
    assert sent.json()["messages"][-1]["content"][0]["image_url"]["url"] == f"data:image/png;base64,{PIXEL}"
    [sent] = messaging.books
    assert sent.json()["messages"][-1]["content"][0]["source"] == source


REFUSALS = [
    (400, anthropic.BadRequestError, openai.BadRequestError, Outcome.REFUSED),
    (401, anthropic.AuthenticationError, openai.AuthenticationError, Outcome.REFUSED),
    (403, anthropic.PermissionDeniedError, openai.PermissionDeniedError, Outcome.REFUSED),
    (404, anthropic.NotFoundError, openai.NotFoundError, Outcome.REFUSED),
    (429, anthropic.RateLimitError, openai.RateLimitError, Outcome.REFUSED),
    (500, anthropic.InternalServerError, openai.InternalServerError, Outcome.FAILED),
    (529, anthropic.InternalServerError, openai.InternalServerError, Outcome.FAILED),
]


@pytest.mark.parametrize(("status", "claudes", "gpts", "outcome"), REFUSALS)
def test_refusals_come_as_the_client_knows_them(
    status: int, claudes: type[Exception], gpts: type[Exception], outcome: Outcome
) -> None:
    """The same status, the provider's words, when to come back; in the other dialect's shape."""
    said = {"error": {"message": "No room.", "type": "t"}}
    also_said = {"type": "error", "error": {"type": "t", "message": "No room."}}
    with (
        ScriptedUpstream(whole(said, status=status, retry_after="7")).listening() as chatting,
        ScriptedUpstream(whole(also_said, status=status, retry_after="7")).listening() as messaging,
    ):
        house, ledger = passing_house(an_upstream(chatting.url))
        with listening(house) as url, claude(url) as client, pytest.raises(claudes) as by_claude:
            client.messages.create(**CLAUDE_ASKS)
        upstream = an_upstream(messaging.url, Family.ANTHROPIC, key=Secret("k" * 9, "env:K"))
        house, _ = passing_house(upstream, ledger=ledger)
        with listening(house) as url, gpt(url) as client, pytest.raises(gpts) as by_gpt:
            client.chat.completions.create(**OPENAI_ASKS, stream=True)
    for caught in (by_claude, by_gpt):
        assert caught.value.response.status_code == status
        assert caught.value.response.headers["retry-after"] == "7"
        assert "up refused: t: No room." in caught.value.response.text
    for receipt in ledger.kept:
        assert receipt.outcome is outcome
        assert receipt.usage.output_tokens is None
        assert [attempt.status for attempt in receipt.tries] == [status]


BREAKS: dict[str, tuple[Steps, Steps]] = {
    "reset": (
        streamed(*CHAT_TEXT[:2], Do.RESET, ends=False),
        streamed(*MESSAGES_STREAM[:4], Do.RESET, ends=False),
    ),
    "ended early": (streamed(*CHAT_TEXT[:2]), streamed(*MESSAGES_STREAM[:4])),
    "says so": (
        streamed(*CHAT_TEXT[:2], sse({"error": {"message": "Broken", "type": "server_error"}})),
        streamed(
            *MESSAGES_STREAM[:4], sse({"type": "error", "error": {"type": "overloaded_error", "message": "Broken"}})
        ),
    ),
    "unreadable": (streamed(*CHAT_TEXT[:2], b"data: {\n\n"), streamed(*MESSAGES_STREAM[:4], b"data: {\n\n")),
}


@pytest.mark.parametrize("fault", BREAKS)
async def test_what_breaks_in_the_middle_is_an_error_in_the_clients_dialect(fault: str) -> None:
    """After what there was; never an answer that looks whole. What was seen is on the receipt."""
    chats, says = BREAKS[fault]
    with ScriptedUpstream(chats).listening() as chatting, ScriptedUpstream(says).listening() as messaging:
        house, ledger = passing_house(an_upstream(chatting.url))
        to_claude = await post(app_of(house), MESSAGES, asking_messages(stream=True))
        await house.aclose()
        upstream = an_upstream(messaging.url, Family.ANTHROPIC, key=Secret("k" * 9, "env:K"))
        house, _ = passing_house(upstream, ledger=ledger)
        to_gpt = await post(app_of(house), CHAT, asking(stream=True))
        await house.aclose()
    assert b"Hello" in to_claude.body
    assert b"event: error" in to_claude.body
    assert b"message_stop" not in to_claude.body
    assert b"Hello" in to_gpt.body
    assert b'data: {"error"' in to_gpt.body
    assert b"[DONE]" not in to_gpt.body
    for receipt in ledger.kept:
        assert receipt.outcome is Outcome.FAILED
        assert receipt.usage.output_text_tokens == 1
        assert receipt.usage.basis is Basis.DERIVED


async def test_it_fails_over_here_too() -> None:
    """Every try is on the receipt, and its time is the upstreams'."""
    with ScriptedUpstream(streamed(*CHAT_STREAM)).listening() as up:
        house, ledger = passing_house(an_upstream(DEAD, name="a"), an_upstream(up.url, name="b"))
        reply = await post(app_of(house), MESSAGES, asking_messages())
        await house.aclose()
    assert reply.status == 200
    [receipt] = ledger.kept
    assert [(each.upstream, each.status) for each in receipt.tries] == [("a", None), ("b", 200)]
    assert (receipt.served_by, receipt.attempts) == ("b", 2)
    assert receipt.timing.phases()[Phase.UPSTREAM] >= sum(each.duration_ns for each in receipt.tries)


async def test_nobody_answers() -> None:
    """502 in the client's dialect; the tries and their time are on the receipt."""
    house, ledger = passing_house(an_upstream(DEAD, retries=1))
    reply = await post(app_of(house), MESSAGES, asking_messages())
    await house.aclose()
    assert (reply.status, reply.json()["error"]["type"]) == (502, "api_error")
    [receipt] = ledger.kept
    assert (receipt.outcome, len(receipt.tries)) == (Outcome.FAILED, 2)
    assert receipt.timing.upstream_ns > 0


@pytest.mark.parametrize("stage", ["before", "middle"])
async def test_a_client_that_leaves_stops_it(stage: str) -> None:
    """Before the answer and in the middle: the upstream is let go at once, and one receipt says aborted."""
    steps = [Do.SILENCE] if stage == "before" else streamed(*CHAT_TEXT[:2], Do.SILENCE)
    with ScriptedUpstream(steps).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        caller = Caller(app_of(house), MESSAGES, asking_messages(stream=True))
        calling = asyncio.create_task(caller.call())
        assert await asyncio.to_thread(up.held.acquire, timeout=WAIT_S)
        if stage == "middle":
            await caller.until(b"Hello")
        caller.gone.set()
        await calling
        assert await asyncio.to_thread(up.left.acquire, timeout=WAIT_S)
        await house.aclose()
    [receipt] = ledger.kept
    assert receipt.outcome is Outcome.ABORTED
    assert len(receipt.tries) == 1
    assert receipt.usage.output_text_tokens == (None if stage == "before" else 1)


async def test_one_that_may_run_on_says_what_it_took() -> None:
    """`drain_s`, here too: aborted, with the provider's figures."""
    with ScriptedUpstream(streamed(*CHAT_TEXT[:2], Do.HOLD, *CHAT_STREAM[2:])).listening() as up:
        house, ledger = passing_house(an_upstream(up.url, drain_s=30.0))
        caller = Caller(app_of(house), MESSAGES, asking_messages(stream=True))
        calling = asyncio.create_task(caller.call())
        await caller.until(b"Hello")
        caller.gone.set()
        await asyncio.to_thread(up.held.acquire, timeout=WAIT_S)
        up.release()
        await calling
        await house.aclose()
    [receipt] = ledger.kept
    assert (receipt.outcome, receipt.usage.output_tokens) == (Outcome.ABORTED, 5)
    assert receipt.usage.basis is Basis.REPORTED


async def test_an_upstream_that_does_not_hang_up_holds_nobody_up() -> None:
    """After its last word the answer is over."""
    with ScriptedUpstream([*streamed(*CHAT_STREAM, ends=False), Do.SILENCE]).listening() as up:
        house, ledger = passing_house(an_upstream(up.url))
        async with asyncio.timeout(WAIT_S):
            reply = await post(app_of(house), MESSAGES, asking_messages())
        await asyncio.to_thread(up.left.acquire, timeout=WAIT_S)
        await house.aclose()
    assert reply.status == 200
    assert ledger.kept[0].outcome is Outcome.COMPLETED
