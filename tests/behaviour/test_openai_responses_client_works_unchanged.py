"""The official `openai` client's Responses API against our server, over a real socket, whole and streamed.

The backend is a script, so that every answer is known; the door, the relay and the sockets are the real ones.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import openai
import pydantic
import pytest

from taximeter.errors import CapacityError, PromptTooLong
from taximeter.records import Dialect, FinishReason, Image, Message, Outcome, ToolCall, ToolCallDelta
from taximeter.serve import House
from taximeter.settings import Settings
from tests.fakes import WAIT_S, Script
from tests.gateway_harness import FakeWorld, a_world, listening
from tests.toolbox_models import make_model

HELLO = "one two three four five"
NOW: Any = {"type": "function", "name": "now", "description": "The time.", "parameters": {}, "strict": False}
CALLS = (
    ToolCallDelta(index=0, id="call_1", name="now"),
    ToolCallDelta(index=0, arguments='{"zone":'),
    ToolCallDelta(index=0, arguments='"UTC"}'),
)


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


def test_a_whole_response(world: World):
    """Text, status, usage, and the receipt that the header names."""
    world.backend.script = Script(cached_tokens=4)
    raw = world.client().responses.with_raw_response.create(model="fake", input=HELLO)
    response = raw.parse()
    assert response.output_text == "Hello, world"
    assert response.status == "completed"
    receipt = world.receipt(raw)
    assert receipt.request.dialect is Dialect.OPENAI_RESPONSES
    assert response.usage.input_tokens == receipt.usage.input_tokens == 5
    assert response.usage.input_tokens_details.cached_tokens == receipt.usage.input_cache_read_tokens == 4
    assert response.usage.output_tokens == receipt.usage.output_tokens == 3


def test_a_streamed_response(world: World):
    """Deltas add up; the last event has the response."""
    events = list(world.client().responses.create(model="fake", input=HELLO, stream=True))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert deltas == ["Hello", ",", " world"]
    assert events[-1].response.output_text == "Hello, world"
    assert events[-1].response.usage.total_tokens == 5 + 3
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_the_clients_own_types_hold(world: World):
    """Nothing that they require is missing, in no event: they are checked strictly here, as stricter clients do."""
    world.backend.script = Script(reasoning=("hm",), calls=CALLS)
    raw = world.client().responses.with_raw_response.create(model="fake", input=HELLO, tools=[NOW])
    openai.types.responses.Response.model_validate(json.loads(raw.text))
    adapter: Any = pydantic.TypeAdapter(openai.types.responses.ResponseStreamEvent)
    with world.client().responses.with_streaming_response.create(
        model="fake", input=HELLO, tools=[NOW], stream=True
    ) as stream:
        data = [line.removeprefix("data: ") for line in stream.iter_lines() if line.startswith("data: ")]
    assert len(data) == 22
    for line in data:
        event = adapter.validate_python(json.loads(line))
        assert event.type == json.loads(line)["type"]


def test_the_clients_own_stream_helper_accumulates(world: World):
    """The client's accumulator is the strictest reader of events there is."""
    world.backend.script = Script(reasoning=("h", "m"), calls=CALLS, finish=FinishReason.TOOL_CALLS)
    with world.client().responses.stream(model="fake", input=HELLO, tools=[NOW]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.function_call_arguments.delta" in kinds
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert final.output[0].content[0].text == "hm"
    assert final.output_text == "Hello, world"
    assert (final.output[2].call_id, final.output[2].arguments) == ("call_1", '{"zone":"UTC"}')


def test_a_tool_is_called_and_its_result_sent(world: World):
    """The round trip that agents make: the output goes back as it came, the result after it."""
    world.backend.script = Script(calls=CALLS, finish=FinishReason.TOOL_CALLS)
    client = world.client()
    asked: list[Any] = [{"role": "user", "content": "What time is it?"}]
    first = client.responses.create(model="fake", input=asked, tools=[NOW], instructions="be brief")
    asked += [item.model_dump() for item in first.output]
    (call,) = (item for item in first.output if item.type == "function_call")
    asked.append({"type": "function_call_output", "call_id": call.call_id, "output": "noon"})
    world.backend.script = Script(tokens=("Noon", "."))
    second = client.responses.create(model="fake", input=asked, tools=[NOW], instructions="be brief")
    assert second.output_text == "Noon."
    prompt = world.backend.submitted[-1][1]
    assert prompt.messages == (
        Message(role="system", content="be brief"),
        Message(role="user", content="What time is it?"),
        Message(
            role="assistant",
            content="Hello, world",
            tool_calls=(ToolCall(id="call_1", name="now", arguments='{"zone":"UTC"}'),),
        ),
        Message(role="tool", content="noon", tool_call_id="call_1"),
    )
    assert prompt.toolbox.tools[0].name == "now"


def test_an_answer_in_a_form(world: World):
    """`responses.parse` sends a schema and reads the answer by it."""

    class City(pydantic.BaseModel):
        name: str

    world.backend.script = Script(tokens=('{"name":', '"Rome"}'))
    response = world.client().responses.parse(model="fake", input=HELLO, text_format=City)
    assert response.output_parsed == City(name="Rome")
    form = world.backend.submitted[-1][1].form
    assert form.field == "text.format"
    assert json.loads(form.text)["properties"]["name"]["type"] == "string"


def test_a_limit_makes_it_incomplete(world: World):
    """`max_output_tokens` cuts, and says so; streamed too."""
    client = world.client()
    response = client.responses.create(model="fake", input=HELLO, max_output_tokens=2)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output_text == "Hello,"
    last = list(client.responses.create(model="fake", input=HELLO, max_output_tokens=2, stream=True))[-1]
    assert last.type == "response.incomplete"


def test_logprobs(world: World):
    """As the client's types have them."""
    response = world.client().responses.create(
        model="fake", input=HELLO, include=["message.output_text.logprobs"], top_logprobs=2
    )
    logprobs = response.output[0].content[0].logprobs
    assert [position.token for position in logprobs] == ["Hello", ",", " world"]
    assert [len(position.top_logprobs) for position in logprobs] == [2] * 3


def test_the_tier_is_on_the_receipt(world: World):
    """What was asked for; what was served is another matter."""
    raw = world.client().responses.with_raw_response.create(model="fake", input=HELLO, service_tier="flex")
    assert world.receipt(raw).request.tier == "flex"
    raw = world.client().chat.completions.with_raw_response.create(
        model="fake", messages=[{"role": "user", "content": HELLO}], service_tier="priority"
    )
    assert world.receipt(raw).request.tier == "priority"


def test_reasoning_in_a_chat(world: World):
    """Where the open engines put it; clients find it as an extra field."""
    world.backend.script = Script(reasoning=("hm",))
    messages: Any = [{"role": "user", "content": HELLO}]
    client = world.client()
    message = client.chat.completions.create(model="fake", messages=messages).choices[0].message
    assert (message.reasoning_content, message.content) == ("hm", "Hello, world")
    chunks = client.chat.completions.create(model="fake", messages=messages, stream=True)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas) == "hm"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
    ],
)
def test_what_is_not_there_is_a_bad_request(world: World, fields: Any, param: str):
    """With the field's name, and a receipt."""
    with pytest.raises(openai.BadRequestError) as caught:
        world.client().responses.create(model="fake", input=HELLO, **fields)
    assert caught.value.param == param
    assert world.receipt(caught.value.response).outcome is Outcome.REFUSED


def test_an_image_arrives_at_the_backend(world: World):
    """The doors take it; whether somebody looks at it is the backend's business."""
    url = "data:image/png;base64,aGk="
    client: Any = world.client()
    client.responses.create(
        model="fake", input=[{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]
    )
    client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    )
    shown = Message(role="user", content=(Image(data="aGk=", media_type="image/png"),))
    assert [prompt.messages for _, prompt in world.backend.submitted[-2:]] == [(shown,)] * 2


def test_errors_are_the_clients_own(world: World):
    """Before the first token they have their status."""
    client = world.client()
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="gpt-9", input=HELLO)
    world.backend.script = Script(refuse=PromptTooLong("5,000 tokens do not fit"))
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="fake", input=HELLO, stream=True)
    assert caught.value.code == "context_length_exceeded"
    world.backend.script = Script(refuse=CapacityError("the queue is full", retry_after_s=1.5))
    with pytest.raises(openai.RateLimitError):
        client.responses.create(model="fake", input=HELLO)


def test_an_answer_that_breaks_mid_stream(world: World):
    """The last event says that the response failed, with nothing of the inside."""
    world.backend.script = Script(fail_at=1)
    raw = world.client().responses.with_raw_response.create(model="fake", input=HELLO, stream=True)
    events = list(raw.parse())
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.code == "server_error"
    assert "secret" not in events[-1].response.error.message
    assert events[-1].response.output_text == "Hello"
    assert world.receipt(raw).outcome is Outcome.FAILED


def test_a_client_that_hangs_up(world: World):
    """Its receipt has what was made until then."""
    world.backend.script = Script(hold_at=2)
    raw = world.client().responses.with_raw_response.create(model="fake", input=HELLO, stream=True)
    stream = raw.parse()
    while getattr(next(stream), "delta", None) != ",":
        pass
    stream.close()
    receipt = world.receipt(raw)
    assert receipt.outcome is Outcome.ABORTED
    assert receipt.usage.output_tokens == 2


def test_embeddings_are_refused_clearly(world: World):
    """This engine makes none, and says so; there is a receipt all the same."""
    with pytest.raises(openai.BadRequestError, match="makes no embeddings") as caught:
        world.client().embeddings.create(model="fake", input="a")
    receipt = world.receipt(caught.value.response)
    assert (receipt.outcome, receipt.request.dialect) == (Outcome.REFUSED, Dialect.OPENAI_EMBEDDINGS)


def test_a_model_answers_by_this_door_as_by_the_others(tmp_path_factory: pytest.TempPathFactory):
    """A real engine: the same words as by chat, a form that is kept to, a call that it is made to write."""
    folder = tmp_path_factory.mktemp("responses")
    settings = Settings.load(environ={"TAXIMETER_HOME": str(folder / "home")}, port=0)
    house = House.open(settings, [str(make_model(folder, "hermes"))])
    with listening(house) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        model = client.models.list().data[0].id
        greedy: Any = {"model": model, "temperature": 0}
        response = client.responses.create(input=HELLO, instructions="be brief", max_output_tokens=20, **greedy)
        chat = client.chat.completions.create(
            messages=[{"role": "system", "content": "be brief"}, {"role": "user", "content": HELLO}],
            max_tokens=20,
            **greedy,
        )
        assert response.output_text == chat.choices[0].message.content
        assert response.usage.total_tokens == chat.usage.total_tokens
        image: Any = {"type": "input_image", "image_url": "https://example.org/x.png"}
        with pytest.raises(openai.BadRequestError, match="image"):
            client.responses.create(input=[{"role": "user", "content": [image]}], **greedy)
        schema: Any = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
        form: Any = {"format": {"type": "json_schema", "name": "n", "schema": schema | {"additionalProperties": False}}}
        response = client.responses.create(input=HELLO, text=form, max_output_tokens=200, **greedy)
        assert list(json.loads(response.output_text)) == ["a"]
        tool: Any = NOW | {"parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
        with client.responses.stream(
            input=HELLO, tools=[tool], tool_choice="required", max_output_tokens=500, **greedy
        ) as stream:
            final = stream.get_final_response()
        (call, *_) = (item for item in final.output if item.type == "function_call")
        assert (call.name, json.loads(call.arguments)) == ("now", {})
