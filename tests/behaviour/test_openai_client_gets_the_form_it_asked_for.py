"""An answer has the form that the client asked for, whatever the model would have liked to say.

The model is random: without the form nothing it says would have any.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import openai
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taximeter.serve import House
from taximeter.settings import Settings
from tests.gateway_harness import listening
from tests.toolbox_models import make_model

ASK = [{"role": "user", "content": "Anything."}]
MODEL = "plain"


@dataclass
class World:
    client: openai.OpenAI
    house: House

    def say(self, *, stream: bool = False, **fields: Any) -> Any:
        """A chat with defaults; in a stream the chunks."""
        fields = {"max_tokens": 1000, "seed": 1} | fields
        answer = self.client.chat.completions.create(model=MODEL, messages=ASK, stream=stream, **fields)
        return list(answer) if stream else answer


@contextmanager
def served(folder: Path, *, kv_cache_tokens: int) -> Generator[World]:
    environ = {"TAXIMETER_HOME": str(folder / "home")}
    settings = Settings.load(environ=environ, port=0, kv_cache_tokens=kv_cache_tokens)
    house = House.open(settings, [str(make_model(folder, MODEL))])
    with listening(house) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        yield World(client, house)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Generator[World]:
    with served(tmp_path_factory.mktemp("form"), kv_cache_tokens=16_384) as world:
        yield world


def text_of(chunks: list[Any], choice: int = 0) -> str:
    return "".join(part.delta.content or "" for chunk in chunks for part in chunk.choices if part.index == choice)


def fits(value: object, schema: Any) -> bool:
    """Whether a value keeps to a schema of the kinds that `SCHEMAS` makes."""
    match schema:
        case {"enum": choices}:
            return any(value == choice and type(value) is type(choice) for choice in choices)
        case {"type": "boolean"}:
            return isinstance(value, bool)
        case {"type": "integer"}:
            return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
        case {"type": "string", "pattern": pattern}:
            return isinstance(value, str) and re.fullmatch(pattern, value) is not None
        case {"type": "string"}:
            return isinstance(value, str) and len(value) <= schema["maxLength"]
        case {"type": "array"}:
            in_range = isinstance(value, list) and schema["minItems"] <= len(value) <= schema["maxItems"]
            return in_range and all(fits(item, schema["items"]) for item in value)
        case {"type": "object"}:
            required = set(schema["required"])
            return (
                isinstance(value, dict)
                and required <= set(value) <= set(schema["properties"])
                and all(fits(item, schema["properties"][key]) for key, item in value.items())
            )
        case {"anyOf": choices}:
            return any(fits(value, choice) for choice in choices)
        case _:
            raise AssertionError(schema)


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=5)
LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.tuples(st.integers(-99, 9), st.integers(10, 999)).map(
        lambda ends: {"type": "integer", "minimum": ends[0], "maximum": ends[1]}
    ),
    st.integers(0, 5).map(lambda most: {"type": "string", "maxLength": most}),
    st.sampled_from(["[a-c]{2}", "x|yy", "[0-9]{1,3}-é?"]).map(
        lambda pattern: {"type": "string", "pattern": f"^({pattern})$"}
    ),
    st.lists(NAMES | st.integers(-5, 5) | st.none(), min_size=1, max_size=4).map(lambda values: {"enum": values}),
)


def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.tuples(inner, st.integers(0, 1), st.integers(1, 2)).map(
        lambda made: {"type": "array", "items": made[0], "minItems": made[1], "maxItems": made[2]}
    )
    objects = st.dictionaries(NAMES, inner, max_size=3).flatmap(
        lambda properties: st.sets(st.sampled_from([*properties] or [""])).map(
            lambda required: {
                "type": "object",
                "properties": properties,
                "required": [key for key in properties if key in required],
                "additionalProperties": False,
            }
        )
    )
    return lists | objects | st.lists(inner, min_size=1, max_size=2).map(lambda choices: {"anyOf": choices})


SCHEMAS = st.recursive(LEAVES, larger, max_leaves=6)
FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@FEW
@given(schema=SCHEMAS, seed=st.integers(0, 99), temperature=st.sampled_from([0, 0.7, 2.0]))
def test_an_answer_keeps_to_its_schema(world: World, schema: Any, seed: int, temperature: float):
    """Any schema, any seed, any temperature; an answer that is not cut off is JSON, and fits."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    (choice,) = world.say(
        response_format=form, seed=seed, temperature=temperature, max_tokens=3000, presence_penalty=0.5
    ).choices
    assert choice.finish_reason == "stop"
    assert fits(json.loads(choice.message.content), schema), choice.message.content


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": SCHEMA}}


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_stream_says_the_same_as_a_whole_answer(world: World, temperature: float):
    """Letter by letter."""
    whole = world.say(response_format=FORM, temperature=temperature)
    chunks = world.say(response_format=FORM, temperature=temperature, stream=True)
    assert text_of(chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert len(chunks) > 10


def test_choices_of_one_request_each_keep_to_the_form(world: World):
    """They differ, and each is whole."""
    answers = [choice.message.content for choice in world.say(response_format=FORM, n=4).choices]
    assert len(set(answers)) > 1
    assert all(fits(json.loads(answer), SCHEMA) for answer in answers)


def test_many_at_once_under_a_cache_that_is_too_small(tmp_path: Path):
    """Answers are preempted and computed again, beside others without a form, and go on where they were."""
    forms: list[dict[str, Any]] = [{"response_format": FORM}, {}, {"extra_body": {"guided_regex": "[a-z]{150}"}}]
    with served(tmp_path, kv_cache_tokens=512) as world:
        alone = [world.say(max_tokens=150, **form).choices[0].message.content for form in forms]

        def answer(number: int) -> str:
            return world.say(max_tokens=150, **forms[number % len(forms)]).choices[0].message.content

        with ThreadPoolExecutor(12) as clients:
            assert list(clients.map(answer, range(12))) == [alone[number % len(forms)] for number in range(12)]
        receipts = world.house.ledger.receipts()
        assert sum(receipt.work.preemptions for receipt in receipts if receipt.work is not None) > 0


def test_an_answer_that_is_cut_off_says_so(world: World):
    """What there is of it is the beginning of one."""
    (choice,) = world.say(response_format=FORM, max_tokens=5).choices
    assert choice.finish_reason == "length"
    assert choice.message.content.startswith("{")


def test_any_json_object(world: World):
    """The older `json_object`: the answer is an object, whole or cut off."""
    for seed in range(5):
        (choice,) = world.say(response_format={"type": "json_object"}, seed=seed, max_tokens=300).choices
        assert choice.message.content.startswith("{")
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_regex": "[a-f]{4}|[0-9]{2}"}, "[a-f]{4}|[0-9]{2}"),
        ({"structured_outputs": {"regex": "né+"}}, "né+"),
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"structured_outputs": {"choice": ["ja", "nein \U0001f980"]}}, "ja|nein \U0001f980"),
        ({"grammar": 'root ::= "(" [ab] (root | "!") ")"'}, r"(\([ab])+!\)+"),
        ({"guided_grammar": 'start: "a" B ("," B)*\nB: /[0-9]/'}, "a[0-9](,[0-9])*"),
        ({"json_schema": {"const": [1, "é"]}}, r'\[\s*1\s*,\s*"é"\s*\]'),
        ({"guided_json": '{"enum": ["x"]}'}, '"x"'),
    ],
)
def test_other_forms_than_openais(world: World, fields: dict[str, object], pattern: str):
    """What clients of vLLM and llama.cpp send; on both endpoints."""
    (choice,) = world.say(extra_body=fields, max_tokens=400).choices
    assert re.fullmatch(pattern, choice.message.content)
    completion = world.client.completions.create(model=MODEL, prompt="x", max_tokens=400, extra_body=fields)
    assert re.fullmatch(pattern, completion.choices[0].text)


class Step(pydantic.BaseModel):
    explanation: str = pydantic.Field(max_length=10)
    number: int = pydantic.Field(ge=0, le=9)


class Plan(pydantic.BaseModel):
    kind: Literal["short", "long"]
    steps: list[Step] = pydantic.Field(max_length=2)
    note: str | None = pydantic.Field(max_length=5)


def test_the_clients_own_parsing(world: World):
    """`parse` with a pydantic model gives an instance of it, and so does the end of a stream."""
    completion = world.client.chat.completions.parse(
        model=MODEL, messages=ASK, response_format=Plan, seed=2, max_tokens=1500
    )
    assert isinstance(completion.choices[0].message.parsed, Plan)
    with world.client.chat.completions.stream(
        model=MODEL, messages=ASK, response_format=Plan, seed=2, max_tokens=1500
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == completion.choices[0].message.parsed


def test_log_probabilities_beside_a_form(world: World):
    """One for each token, together the answer."""
    completion = world.say(response_format=FORM, logprobs=True, top_logprobs=2)
    content = completion.choices[0].logprobs.content
    assert len(content) == completion.usage.completion_tokens
    assert b"".join(bytes(position.bytes) for position in content).decode() == completion.choices[0].message.content


@pytest.mark.parametrize(
    ("fields", "says", "param"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}},
            'Unimplemented keys: \\["not"\\]',
            "response_format",
        ),
        ({"extra_body": {"guided_regex": "a("}}, "unclosed group", "guided_regex"),
        ({"extra_body": {"grammar": "root ::= missing"}}, "missing", "grammar"),
    ],
)
def test_a_form_that_cannot_be_followed_is_refused(world: World, fields: dict[str, Any], says: str, param: str):
    """A 400 that says why and names the field, and the next request is served."""
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match=says) as caught:
            world.say(stream=stream, **fields)
        assert caught.value.param == param
    assert world.say(max_tokens=1).choices
