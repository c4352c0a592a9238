"""The official `openai` client against our server, over a real socket: everything it expects is there.

The backend is a script, so that every answer is known; the door, the relay and the sockets are the real ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import httpx
import openai
import pytest

from taximeter.errors import CapacityError, PromptTooLong
from taximeter.records import FinishReason, Outcome
from tests.fakes import WAIT_S, Script
from tests.gateway_harness import FakeWorld, a_world

HELLO = [{"role": "user", "content": "one two three four five"}]


class World(FakeWorld):
    """With this client."""

    def client(self) -> openai.OpenAI:
        return self.closing.enter_context(
            openai.OpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0, timeout=WAIT_S)
        )


@pytest.fixture(scope="module")
def server() -> Generator[World]:
    with a_world(World) as world:
        yield world


@pytest.fixture
def world(server: World) -> World:
    return server.as_new()


def test_a_whole_chat(world: World):
    """Text, reason, usage, and the receipt that the header names."""
    raw = world.client().chat.completions.with_raw_response.create(model="fake", messages=HELLO)
    completion = raw.parse()
    assert completion.choices[0].message.content == "Hello, world"
    assert completion.choices[0].message.role == "assistant"
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    receipt = world.receipt(raw)
    assert completion.usage.prompt_tokens == receipt.usage.input_tokens == 5
    assert completion.usage.completion_tokens == receipt.usage.output_tokens == 3


def test_a_streamed_chat(world: World):
    """Role, deltas, reason; no usage chunk that nobody asked for."""
    chunks = list(world.client().chat.completions.create(model="fake", messages=HELLO, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello, world"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_at_the_end_of_a_stream(world: World):
    """Exactly one chunk has it, the last, without choices; and it agrees with the receipt."""
    world.backend.script = Script(cached_tokens=4)
    options = {"include_usage": True}
    raw = world.client().chat.completions.with_raw_response.create(
        model="fake", messages=HELLO, stream=True, stream_options=options
    )
    chunks = list(raw.parse())
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    last = chunks[-1]
    assert last.choices == []
    receipt = world.receipt(raw)
    assert last.usage.total_tokens == receipt.usage.total_tokens == 8
    assert last.usage.prompt_tokens_details.cached_tokens == receipt.usage.input_cache_read_tokens == 4


def test_the_clients_own_stream_helper_accumulates(world: World):
    """The client's accumulator is the strictest reader of chunks there is."""
    with world.client().chat.completions.stream(model="fake", messages=HELLO) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "Hello, world"
    assert final.choices[0].finish_reason == "stop"


def test_two_choices(world: World):
    """n = 2, whole and streamed: both are complete, and one usage counts both."""
    client = world.client()
    whole = client.chat.completions.create(model="fake", messages=HELLO, n=2)
    assert [choice.message.content for choice in whole.choices] == ["Hello, world"] * 2
    assert whole.usage.completion_tokens == 6
    texts = {0: "", 1: ""}
    for chunk in client.chat.completions.create(model="fake", messages=HELLO, n=2, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == {0: "Hello, world", 1: "Hello, world"}


def test_sampling_arrives_at_the_backend(world: World):
    """Stop strings, seed and the extensions of other engines, sent the way the client sends them."""
    world.client().chat.completions.create(
        model="fake", messages=HELLO, seed=7, stop=["\n"], temperature=0, extra_body={"top_k": 5, "min_p": 0.1}
    )
    sampling = world.backend.submitted[-1][0].sampling
    assert (sampling.seed, sampling.stop, sampling.temperature) == (7, ("\n",), 0)
    assert (sampling.top_k, sampling.min_p) == (5, 0.1)


def test_a_limit_ends_with_length(world: World):
    """`max_tokens` cuts, and says so."""
    whole = world.client().chat.completions.create(model="fake", messages=HELLO, max_tokens=2)
    assert whole.choices[0].message.content == "Hello,"
    assert whole.choices[0].finish_reason == FinishReason.LENGTH.value


def test_chat_logprobs(world: World):
    """The pick and its alternatives, as the client's types have them."""
    whole = world.client().chat.completions.create(model="fake", messages=HELLO, logprobs=True, top_logprobs=2)
    content = whole.choices[0].logprobs.content
    assert [position.token for position in content] == ["Hello", ",", " world"]
    assert [position.logprob for position in content] == [-0.5] * 3
    assert content[0].bytes == list(b"Hello")
    assert [len(position.top_logprobs) for position in content] == [2] * 3


def test_legacy_completions(world: World):
    """Whole and streamed, from text and from token ids, with logprobs."""
    client = world.client()
    whole = client.completions.create(model="fake", prompt="one two", logprobs=1)
    assert whole.choices[0].text == "Hello, world"
    assert whole.usage.prompt_tokens == 2
    assert whole.choices[0].logprobs.text_offset == [0, 5, 6]
    chunks = list(client.completions.create(model="fake", prompt=[1, 2, 3], stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello, world"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert world.backend.submitted[-1][1].token_ids == (1, 2, 3)


def test_models(world: World):
    """Listed, and asked for one by one."""
    client = world.client()
    assert [model.id for model in client.models.list()] == ["fake", "fake/base"]
    assert client.models.retrieve("fake").owned_by == "taximeter"


def test_an_unknown_model(world: World):
    """The client's own NotFoundError, with the code that programs look at."""
    with pytest.raises(openai.NotFoundError) as caught:
        world.client().chat.completions.create(model="gpt-9", messages=HELLO)
    assert caught.value.code == "model_not_found"
    assert world.receipt(caught.value.response).outcome is Outcome.REFUSED


def test_a_prompt_that_is_too_long(world: World):
    """BadRequestError with `context_length_exceeded`: agents trim their history on it."""
    world.backend.script = Script(refuse=PromptTooLong("5,000 tokens do not fit"))
    with pytest.raises(openai.BadRequestError) as caught:
        world.client().chat.completions.create(model="fake", messages=HELLO, stream=True)
    assert caught.value.code == "context_length_exceeded"
    assert world.receipt(caught.value.response).outcome is Outcome.REFUSED


def test_a_full_queue(world: World):
    """RateLimitError with whole seconds to wait."""
    world.backend.script = Script(refuse=CapacityError("the queue is full", retry_after_s=1.5))
    with pytest.raises(openai.RateLimitError) as caught:
        world.client().chat.completions.create(model="fake", messages=HELLO)
    assert caught.value.response.headers["retry-after"] == "2"
    assert world.receipt(caught.value.response).outcome is Outcome.REFUSED


def test_the_client_retries_a_full_queue_by_itself(world: World):
    """The second attempt is another request with another receipt."""
    world.backend.script = Script(refuse=CapacityError("the queue is full", retry_after_s=0.1))
    before = len(world.ledger.kept)
    client = world.client().with_options(max_retries=1)
    with pytest.raises(openai.RateLimitError):
        client.chat.completions.create(model="fake", messages=HELLO)
    assert len(world.ledger.kept) == before + 2


def test_a_client_that_hangs_up_mid_answer(world: World):
    """The answer is cancelled while nothing is being written, and its receipt has what was made until then."""
    world.backend.script = Script(hold_at=2)
    raw = world.client().chat.completions.with_raw_response.create(model="fake", messages=HELLO, stream=True)
    stream = raw.parse()
    while next(stream).choices[0].delta.content != ",":
        pass
    stream.close()
    receipt = world.receipt(raw)
    assert receipt.outcome is Outcome.ABORTED
    assert receipt.usage.output_tokens == 2
    assert receipt.timing.first_token_ns is not None


async def test_a_client_that_gives_up_waiting(world: World):
    """Also one that has got nothing yet leaves a receipt."""
    world.backend.script = Script(hold_at=0)
    kept = len(world.ledger.kept)
    async with openai.AsyncOpenAI(base_url=f"{world.url}/v1", api_key="unused", max_retries=0) as client:
        waiting = asyncio.create_task(client.chat.completions.create(model="fake", messages=HELLO))
        assert await asyncio.to_thread(world.backend.held.acquire, timeout=WAIT_S)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert await asyncio.to_thread(world.backend.cancelled.acquire, timeout=WAIT_S)
    request = world.backend.submitted[-1][0]
    assert (await asyncio.to_thread(world.ledger.wait_for, request.id)).outcome is Outcome.ABORTED
    assert len(world.ledger.kept) == kept + 1


def test_an_answer_that_breaks_mid_stream(world: World):
    """The client raises its APIError in the middle of the loop."""
    world.backend.script = Script(fail_at=1)
    with pytest.raises(openai.APIError, match="something broke here"):
        list(world.client().chat.completions.create(model="fake", messages=HELLO, stream=True))


def test_a_slow_reader_does_not_stall_others(world: World):
    """One client reads nothing of a stream too long for any buffer; the next is served, and both have receipts."""
    world.backend.script = Script(tokens=("x" * 100_000,) * 200)
    with httpx.Client(timeout=WAIT_S) as slow:
        body = {"model": "fake", "messages": HELLO, "stream": True}
        with slow.stream("POST", f"{world.url}/v1/chat/completions", json=body) as unread:
            receipt = world.receipt(unread)
            assert receipt.outcome is Outcome.COMPLETED
            world.backend.script = Script()
            answer = world.client().chat.completions.create(model="fake", messages=HELLO)
            assert answer.choices[0].message.content == "Hello, world"


def test_eight_streams_at_once(world: World):
    """Each gets its own answer; all are held at the same token first, so they do overlap."""
    world.backend.script = Script(hold_at=1)
    client = world.client()
    streams = [client.chat.completions.create(model="fake", messages=HELLO, stream=True) for _ in range(8)]
    assert world.house.relay.in_flight == 8
    world.backend.release()
    for stream in streams:
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "Hello, world"


def test_receipts_agree_with_what_clients_saw(world: World):
    """GET /api/receipts/ID: usage as in the answer, and phases that sum to the total."""
    raw = world.client().chat.completions.with_raw_response.create(model="fake", messages=HELLO)
    receipt = httpx.get(f"{world.url}/api/receipts/{raw.headers['x-taximeter-receipt']}").json()
    assert receipt["usage"]["total_tokens"] == raw.parse().usage.total_tokens
    timing = receipt["timing"]
    phases = ("gateway_ns", "queue_ns", "prefill_ns", "decode_ns", "stalled_ns", "upstream_ns")
    assert sum(timing[phase] for phase in phases) == timing["total_ns"] > 0
    assert isinstance(receipt["cost"]["total"], str)
