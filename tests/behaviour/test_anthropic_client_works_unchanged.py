"""The official `anthropic` client against our server, over a real socket: everything it expects is there.

First the backend is a script, so that every answer is known; then it is our engine, with models that have tools. The
door, the relay and the sockets are the real ones.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import anthropic
import pytest

from taximeter.errors import CapacityError, PromptTooLong
from taximeter.records import Dialect, FinishReason, Message, Outcome
from taximeter.serve import House
from taximeter.settings import Settings
from tests.fakes import WAIT_S, Script
from tests.gateway_harness import FakeWorld, a_world, listening
from tests.toolbox_models import TEMPLATES, make_model

HELLO: list[Any] = [{"role": "user", "content": "one two three four five"}]
ASK: dict[str, Any] = {"model": "fake", "max_tokens": 20, "messages": HELLO}
GREEDY = {"temperature": 0}  # the client has no arguments for sampling any more; other clients send it
PIXEL = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather of the next days.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
WEATHER["input_schema"]["properties"]["days"] |= {"minimum": 0, "maximum": 9}


def a_client(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="unused", max_retries=0, timeout=WAIT_S)


class World(FakeWorld):
    """With this client."""

    def client(self) -> anthropic.Anthropic:
        return self.closing.enter_context(a_client(self.url))


@pytest.fixture(scope="module")
def server() -> Generator[World]:
    with a_world(World) as world:
        yield world


@pytest.fixture
def world(server: World) -> World:
    return server.as_new()


def test_a_whole_message(world: World):
    """Text, reason, usage by bucket, the request's id, and the receipt that the header names."""
    world.backend.script = Script(cached_tokens=2)
    raw = world.client().messages.with_raw_response.create(**ASK)
    message = raw.parse()
    assert [(block.type, block.text) for block in message.content] == [("text", "Hello, world")]
    assert (message.role, message.model, message.stop_reason) == ("assistant", "fake", "end_turn")
    receipt = world.receipt(raw)
    assert receipt.request.dialect is Dialect.ANTHROPIC_MESSAGES
    assert message._request_id == receipt.request.id
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (5 - 2, 2)
    assert usage.cache_creation_input_tokens == 0
    assert usage.output_tokens == receipt.usage.output_tokens == 3


def test_a_streamed_message(world: World):
    """Each piece as it comes, in the order in which the client has to see them."""
    stream = world.client().messages.create(**ASK, stream=True)
    events = list(stream)
    assert [event.type for event in events] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 3,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert [event.delta.text for event in events if event.type == "content_block_delta"] == ["Hello", ",", " world"]


def test_the_start_of_a_stream_says_how_long_the_prompt_is(world: World):
    """Agents show it while the answer comes, and some add it to what comes at the end: it says the same there."""
    world.backend.script = Script(cached_tokens=2)
    start, *_, delta, _ = world.client().messages.create(**ASK, stream=True)
    for usage in (start.message.usage, delta.usage):
        assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (5 - 2, 2, 0)
    assert (start.message.usage.output_tokens, delta.usage.output_tokens) == (0, 3)


def test_the_clients_own_stream_helper_accumulates(world: World):
    """Its final message is the whole one, usage included."""
    world.backend.script = Script(cached_tokens=2, tail="!")
    with world.client().messages.stream(**ASK) as stream:
        assert "".join(stream.text_stream) == "Hello, world!"
        streamed = stream.get_final_message()
    whole = world.client().messages.create(**ASK)
    assert (streamed.content[0].text, streamed.stop_reason) == (whole.content[0].text, whole.stop_reason)
    counts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
    for name in counts:
        assert getattr(streamed.usage, name) == getattr(whole.usage, name), name


def test_what_is_asked_arrives_at_the_backend(world: World):
    """System, turns, sampling and tier, sent the way the client sends them, also through its beta door."""
    client = world.client()
    client.beta.messages.create(
        **ASK,
        system=[{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
        extra_body=GREEDY | {"top_k": 5},
        stop_sequences=["\n"],
        service_tier="standard_only",
        metadata={"user_id": "u"},
        thinking={"type": "enabled", "budget_tokens": 1024},
        betas=["interleaved-thinking-2025-05-14"],
    )
    request, prompt = world.backend.submitted[-1]
    assert prompt.messages == (
        Message(role="system", content="be brief"),
        Message(role="user", content="one two three four five"),
    )
    assert (request.sampling.temperature, request.sampling.top_k, request.sampling.stop) == (0, 5, ("\n",))
    assert (request.tier, request.max_output_tokens) == ("standard_only", 20)


def test_a_limit_ends_with_max_tokens(world: World):
    """`max_tokens` cuts, and says so."""
    message = world.client().messages.create(**ASK | {"max_tokens": 2})
    assert (message.content[0].text, message.stop_reason) == ("Hello,", "max_tokens")


def test_a_refusal(world: World):
    """Has its own reason."""
    world.backend.script = Script(finish=FinishReason.REFUSAL)
    assert world.client().messages.create(**ASK).stop_reason == "refusal"


def test_tokens_are_counted_without_an_answer(world: World):
    """As many as the answer's usage has; there is no receipt."""
    client, kept = world.client(), len(world.ledger.kept)
    count = client.messages.count_tokens(model="fake", messages=HELLO, system="be brief")
    assert count.input_tokens == 5 + 2
    assert client.beta.messages.count_tokens(model="fake", messages=HELLO).input_tokens == 5
    assert len(world.ledger.kept) == kept


def test_models(world: World):
    """Listed, page by page, and asked for one by one."""
    client = world.client()
    assert [model.id for model in client.models.list()] == ["fake", "fake/base"]
    model = client.models.retrieve("fake")
    assert (model.display_name, model.max_input_tokens) == ("fake", 64)
    assert model.created_at.tzinfo is not None
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("claude-9")


def test_an_unknown_model(world: World):
    """The client's own NotFoundError, with the type that programs look at."""
    with pytest.raises(anthropic.NotFoundError) as caught:
        world.client().messages.create(**ASK | {"model": "claude-9"})
    assert caught.value.type == "not_found_error"
    receipt = world.receipt(caught.value.response)
    assert receipt.outcome is Outcome.REFUSED
    assert caught.value.request_id == receipt.request.id == caught.value.body["request_id"]


def test_a_body_that_is_wrong(world: World):
    """BadRequestError that names the field; it has a receipt too."""
    with pytest.raises(anthropic.BadRequestError, match="temperature") as caught:
        world.client().messages.create(**ASK, extra_body={"temperature": 3})
    assert caught.value.type == "invalid_request_error"
    assert world.receipt(caught.value.response).outcome is Outcome.REFUSED


def test_a_prompt_that_is_too_long(world: World):
    """In the words on which agents shorten their history."""
    world.backend.script = Script(refuse=PromptTooLong("5,000 tokens do not fit"))
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        world.client().messages.create(**ASK, stream=True)


def test_a_full_queue(world: World):
    """RateLimitError with whole seconds to wait."""
    world.backend.script = Script(refuse=CapacityError("the queue is full", retry_after_s=1.5))
    with pytest.raises(anthropic.RateLimitError) as caught:
        world.client().messages.create(**ASK)
    assert caught.value.type == "rate_limit_error"
    assert caught.value.response.headers["retry-after"] == "2"


def test_an_answer_that_breaks(world: World):
    """Before its first token with a status, later as an event: the client raises its own error both times."""
    world.backend.script = Script(fail_at=0)
    with pytest.raises(anthropic.InternalServerError, match="something broke here"):
        world.client().messages.create(**ASK, stream=True)
    world.backend.script = Script(fail_at=1)
    stream = world.client().messages.create(**ASK, stream=True)
    seen: list[str] = []
    with pytest.raises(anthropic.APIError, match="something broke here"):
        seen += (event.type for event in stream)
    assert "message_stop" not in seen


def test_a_client_that_hangs_up_mid_answer(world: World):
    """The answer is cancelled, and its receipt has what was made until then."""
    world.backend.script = Script(hold_at=2)
    raw = world.client().messages.with_raw_response.create(**ASK, stream=True)
    stream = raw.parse()
    assert [next(stream).type for _ in range(4)][-1] == "content_block_delta"
    stream.close()
    receipt = world.receipt(raw)
    assert receipt.outcome is Outcome.ABORTED
    assert receipt.usage.output_tokens == 2


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Generator[anthropic.Anthropic]:
    folder = tmp_path_factory.mktemp("tools")
    settings = Settings.load(environ={"TAXIMETER_HOME": str(folder / "home")}, port=0)
    house = House.open(settings, [str(make_model(folder, family)) for family in TEMPLATES])
    with listening(house) as url, a_client(url) as client:
        yield client


def asking_for_a_call(family: str) -> dict[str, Any]:
    return {
        "model": family,
        "max_tokens": 2000,
        "messages": HELLO,
        "extra_body": GREEDY,
        "tools": [WEATHER],
        "tool_choice": {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
    }


@pytest.mark.parametrize("family", TEMPLATES)
def test_our_engine_calls_tools(engine: anthropic.Anthropic, family: str):
    """Whole and streamed the same call, which keeps to its schema; then the conversation goes on with its result."""
    asked = asking_for_a_call(family)
    message = engine.messages.create(**asked)
    assert message.stop_reason == "tool_use"
    (call,) = message.content
    assert (call.type, call.name, list(call.input)) == ("tool_use", "get_weather", ["city", "days"])
    with engine.messages.stream(**asked) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        streamed = stream.get_final_message()
    assert streamed.content[0].input == json.loads("".join(pieces)) == call.input
    assert len(pieces) > 5, "arguments come as they are generated"
    assert streamed.usage.output_tokens == message.usage.output_tokens > 5

    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]}
    turns = [*HELLO, message.to_param(), {"role": "user", "content": [result]}]
    fields = asked | {"messages": turns, "max_tokens": 4, "tool_choice": {"type": "auto"}}
    later = engine.messages.create(**fields)
    assert later.usage.output_tokens <= 4
    whole_prompt = later.usage.input_tokens + later.usage.cache_read_input_tokens
    counted = engine.messages.count_tokens(model=family, messages=turns, tools=[WEATHER])
    assert counted.input_tokens == whole_prompt > message.usage.input_tokens


def test_our_engine_says_at_the_start_what_the_prompt_is_charged(engine: anthropic.Anthropic):
    """What came from the prefix cache apart, as at the end."""
    asked = {
        "model": next(iter(TEMPLATES)),
        "max_tokens": 3,
        "messages": [{"role": "user", "content": "Good day. " * 40}],
    }
    for _ in range(2):
        start, *_, delta, _ = engine.messages.create(**asked, stream=True)
        first, last = start.message.usage, delta.usage
        counts = [(usage.input_tokens, usage.cache_read_input_tokens) for usage in (first, last)]
        assert counts[0] == counts[1]
        assert first.input_tokens > 0
    assert first.cache_read_input_tokens > 0, "the second time it was there"


def test_our_engine_tells_which_stop_sequence_it_was(engine: anthropic.Anthropic):
    """By its name, and not in the text."""
    asked = {"model": "hermes", "max_tokens": 12, "messages": HELLO, "extra_body": GREEDY}
    text = engine.messages.create(**asked).content[0].text
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    message = engine.messages.create(**asked, stop_sequences=["never seen", stop])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert message.content[0].text == text[: text.index(stop)]
    with engine.messages.stream(**asked, stop_sequences=[stop]) as stream:
        assert stream.get_final_message().stop_sequence == stop


def test_our_engine_keeps_to_a_schema(engine: anthropic.Anthropic):
    """Asked for under Anthropic's name for it."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    message = engine.messages.create(
        model="hermes",
        max_tokens=100,
        messages=HELLO,
        output_config={"format": {"type": "json_schema", "schema": schema | {"additionalProperties": False}}},
    )
    assert list(json.loads(message.content[0].text)) == ["ok"]


@pytest.mark.parametrize(
    "blocks",
    [
        [PIXEL, {"type": "text", "text": "what is it?"}],
        [{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}],
    ],
)
def test_our_engine_refuses_what_it_cannot_see(engine: anthropic.Anthropic, blocks: list[Any]):
    """An answer that has not seen the picture would be an answer to another question."""
    with pytest.raises(anthropic.BadRequestError) as caught:
        engine.messages.create(model="hermes", max_tokens=5, messages=[{"role": "user", "content": blocks}])
    assert caught.value.response.headers["x-taximeter-receipt"]


def test_our_engine_refuses_tools_that_are_anthropics_own(engine: anthropic.Anthropic):
    """Nobody here can run them."""
    search: Any = {"type": "web_search_20250305", "name": "web_search"}
    with pytest.raises(anthropic.BadRequestError, match="web_search_20250305"):
        engine.messages.create(model="hermes", max_tokens=5, messages=HELLO, tools=[search])
