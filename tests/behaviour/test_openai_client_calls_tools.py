"""Tools, with the official client, models of three families, and calls that a random model is made to write."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import openai
import pydantic
import pytest

from taximeter.serve import House
from taximeter.settings import Settings
from tests.gateway_harness import listening
from tests.toolbox_models import NOW, TEMPLATES, TOOLS, WEATHER, make_model

ASK: list[Any] = [{"role": "user", "content": "How is the weather in Rome?"}]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@dataclass
class World:
    client: openai.OpenAI
    house: House

    def say(self, model: str, messages: list[Any] = ASK, *, stream: bool = False, **fields: Any) -> Any:
        """A chat with defaults; in a stream the chunks."""
        fields = {"max_tokens": 2000, "seed": 1, "tools": TOOLS} | fields
        answer = self.client.chat.completions.create(model=model, messages=messages, stream=stream, **fields)
        return list(answer) if stream else answer


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Generator[World]:
    folder = tmp_path_factory.mktemp("tools")
    settings = Settings.load(environ={"TAXIMETER_HOME": str(folder / "home")}, port=0)
    house = House.open(settings, [str(make_model(folder, family)) for family in (*TEMPLATES, "plain")])
    with listening(house) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        yield World(client, house)


def check(name: str, arguments: str) -> None:
    """The call is of a tool, and keeps to its schema."""
    values = json.loads(arguments)
    if name == "now":
        assert values == {}
        return
    assert name == "get_weather"
    assert list(values) == ["city", "days", "unit"]
    assert len(values["city"]) <= 6
    assert 0 <= values["days"] <= 9
    assert values["unit"] in ("C", "F")


@dataclass
class Streamed:
    """A stream put together as a client does."""

    content: str = ""
    calls: list[dict[str, str]] = field(default_factory=list)
    reason: str | None = None

    def take(self, chunks: list[Any]) -> Streamed:
        for chunk in chunks:
            (choice,) = chunk.choices
            self.content += choice.delta.content or ""
            self.reason = choice.finish_reason or self.reason
            for piece in choice.delta.tool_calls or ():
                if piece.id is not None:
                    assert piece.index == len(self.calls)
                    assert piece.type == "function"
                    self.calls.append({"name": piece.function.name, "arguments": ""})
                assert piece.index == len(self.calls) - 1
                self.calls[-1]["arguments"] += piece.function.arguments
        return self


@pytest.mark.parametrize("family", TEMPLATES)
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_call_that_has_to_be_made_is_made(world: World, family: str, choice: Any):
    """At any temperature: calls with arguments that keep to the schemas, and not a word beside them."""
    for seed, temperature in enumerate((0, 0.8, 2.0)):
        several = temperature > 1  # a greedy random model goes on with calls for ever
        completion = world.say(
            family, tool_choice=choice, seed=seed, temperature=temperature, parallel_tool_calls=several
        )
        (answer,) = completion.choices
        assert answer.finish_reason == "tool_calls"
        assert answer.message.content is None
        assert answer.message.tool_calls
        for call in answer.message.tool_calls:
            check(call.function.name, call.function.arguments)
            assert call.type == "function"
            assert choice == "required" or call.function.name == "get_weather"
        assert len({call.id for call in answer.message.tool_calls}) == len(answer.message.tool_calls)
        assert completion.usage.completion_tokens > 20


@pytest.mark.parametrize("family", TEMPLATES)
@pytest.mark.parametrize("limit", [15, 60, 2000])
def test_a_stream_says_the_same_as_a_whole_answer(world: World, family: str, limit: int):
    """Also where it is cut off, within a call or before it can be told to be one."""
    fields: dict[str, Any] = {"tool_choice": "required", "max_tokens": limit}
    whole = world.say(family, **fields).choices[0]
    chunks = world.say(family, stream=True, **fields)
    streamed = Streamed().take(chunks)
    calls = [
        {"name": call.function.name, "arguments": call.function.arguments} for call in whole.message.tool_calls or ()
    ]
    assert streamed.calls == calls
    assert streamed.content == (whole.message.content or "")
    assert streamed.reason == whole.finish_reason == ("length" if limit < 2000 else "tool_calls")
    if limit == 2000:
        assert len(chunks) > 20, "arguments come as they are generated"


@pytest.mark.parametrize("family", TEMPLATES)
def test_one_call_only(world: World, family: str):
    """Without parallel calls, over many seeds."""
    for seed in range(6):
        answer = world.say(family, tool_choice="required", parallel_tool_calls=False, seed=seed).choices[0]
        assert len(answer.message.tool_calls) == 1


@pytest.mark.parametrize("family", TEMPLATES)
def test_the_conversation_goes_on_with_the_result(world: World, family: str):
    """The calls of an answer, sent back as the client has them, and their results; then an answer without tools."""
    message = world.say(family, tool_choice="required", parallel_tool_calls=False).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in message.tool_calls]
    turns = [*ASK, message, *results]
    longer = world.say(family, turns, max_tokens=8)
    assert longer.usage.prompt_tokens > world.say(family, max_tokens=8).usage.prompt_tokens
    assert world.say(family, turns, max_tokens=8, tools=openai.omit).choices


@pytest.mark.parametrize("family", TEMPLATES)
def test_a_model_that_does_not_call_just_answers(world: World, family: str):
    """Left the choice, a random model never calls; its words are those that it has without the tools being read."""
    answer = world.say(family, max_tokens=40).choices[0]
    assert answer.message.tool_calls is None
    assert answer.finish_reason in ("length", "stop")
    free = world.say(family, max_tokens=40, tools=[NOW]).choices[0].message
    assert free.content
    none = world.say(family, max_tokens=40, tool_choice="none")
    plain = world.say(family, max_tokens=40, tools=openai.omit)
    assert none.choices[0].message.content == plain.choices[0].message.content
    assert none.usage.prompt_tokens == plain.usage.prompt_tokens


@pytest.mark.parametrize("family", TEMPLATES)
def test_tools_beside_a_schema_for_the_answer(world: World, family: str):
    """Every answer is a call or keeps to the schema."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]} | {
        "additionalProperties": False
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for seed in range(6):
        answer = world.say(family, response_format=form, seed=seed, temperature=2.0).choices[0]
        if answer.message.tool_calls:
            for call in answer.message.tool_calls:
                check(call.function.name, call.function.arguments)
        else:
            assert list(json.loads(answer.message.content)) == ["ok"]


def test_a_text_that_only_looks_like_a_call_is_text(world: World):
    """Whole and streamed, as it was written; the form makes the model write it."""
    broken = '<tool_call>\n{"name": "no_such_tool", "arguments": {}}\n</tool_call> or so'
    form: dict[str, Any] = {"extra_body": {"guided_choice": [broken]}}
    with pytest.raises(openai.BadRequestError, match="may call tools"):
        world.say("hermes", **form)
    answer = world.say("hermes", tools=openai.omit, **form).choices[0]
    assert (answer.message.content, answer.message.tool_calls) == (broken, None)


def test_a_model_without_tools_refuses_them(world: World):
    """It would answer without having seen them. The refusal says why, and has a receipt."""
    with pytest.raises(openai.BadRequestError, match="no place for tools") as caught:
        world.say("plain")
    assert caught.value.param == "tools"
    assert caught.value.response.headers["x-taximeter-receipt"]


def test_a_strict_tool_whose_schema_cannot_be_followed(world: World):
    """Strict means strict."""
    tool = json.loads(json.dumps(WEATHER))
    tool["function"]["parameters"]["properties"]["city"]["format"] = "city-name"
    with pytest.raises(openai.BadRequestError, match="city-name"):
        world.say("hermes", tools=[tool])
    tool["function"]["strict"] = False
    answer = world.say("hermes", tools=[tool], tool_choice="required").choices[0]
    check("get_weather", answer.message.tool_calls[0].function.arguments)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"type": "string"}, 'tool `odd` are a JSON schema of type "string"'),
        ({"type": ["array", "null"]}, "tool `odd` are a JSON schema of type"),
        ({"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}, "tool `odd` .*'/nowhere' does not exist"),
        ({"type": "object", "properties": {"a": {"type": "strnig"}}}, "tool `odd` .*Invalid type: strnig"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "tool `odd` .*'a' is unsatisfiable"),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "(["}}}, "tool `odd` .*unclosed"),
    ],
    ids=str,
)
def test_a_tool_whose_parameters_make_no_sense_is_named(world: World, parameters: dict[str, Any], says: str):
    """Which of them it is and what is wrong with it, in no other words than the schema's own."""
    odd = {"type": "function", "function": {"name": "odd", "parameters": parameters}}
    with pytest.raises(openai.BadRequestError, match=says) as caught:
        world.say("hermes", tools=[*TOOLS, odd], tool_choice="required")
    assert "call_0" not in caught.value.message
    assert caught.value.param == "tools"
    assert world.say("hermes", tools=TOOLS, tool_choice="required").choices


@pytest.mark.parametrize("family", TEMPLATES)
@pytest.mark.parametrize("parameters", [None, {}, {"type": ["object", "null"]}], ids=str)
def test_arguments_are_an_object_whatever_the_schema_says(world: World, family: str, parameters: Any):
    """A tool without a schema, or with one that would allow anything, is called all the same."""
    tool = {"type": "function", "function": {"name": "odd", "parameters": parameters}}
    answer = world.say(family, tools=[tool], tool_choice="required", seed=3, temperature=1.0, parallel_tool_calls=False)
    (call,) = answer.choices[0].message.tool_calls
    if answer.choices[0].finish_reason == "tool_calls":
        assert isinstance(json.loads(call.function.arguments), dict)


class GetWeather(pydantic.BaseModel):
    city: str = pydantic.Field(max_length=6)
    days: int = pydantic.Field(ge=0, le=9)


def test_the_clients_own_parsing(world: World):
    """`parse` with tools made from pydantic models gives arguments as instances of them, streamed too."""
    tools = [openai.pydantic_function_tool(GetWeather)]
    fields: dict[str, Any] = {"tools": tools, "tool_choice": "required", "seed": 4, "parallel_tool_calls": False}
    completion = world.client.chat.completions.parse(model="hermes", messages=ASK, max_tokens=2000, **fields)
    (call,) = completion.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, GetWeather)
    with world.client.chat.completions.stream(model="hermes", messages=ASK, max_tokens=2000, **fields) as stream:
        seen = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in seen
    assert final.choices[0].message.tool_calls[0].function.parsed_arguments == call.function.parsed_arguments


def test_receipts_count_the_tokens_of_calls(world: World):
    """As output, with the reason beside them, and without a word of the call."""
    raw = world.client.chat.completions.with_raw_response.create(
        model="hermes", messages=ASK, tools=[NOW], tool_choice="required", parallel_tool_calls=False, seed=1
    )
    receipt = world.house.ledger.receipt(raw.headers["x-taximeter-receipt"])
    assert receipt is not None
    assert receipt.usage.output_tokens == raw.parse().usage.completion_tokens
    assert receipt.finish_reasons == ("tool_calls",)
    assert "tool_call>" not in repr(receipt)
