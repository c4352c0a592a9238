"""Whatever a client calls it, one form for the answer arrives; two do not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from taximeter.errors import RequestError
from taximeter.providers.door import Endpoint
from taximeter.providers.openai import CHAT, COMPLETIONS
from taximeter.records import Form, FormKind

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"enum": [1, None]}}}
SCHEMA_TEXT = json.dumps(SCHEMA, separators=(",", ":"))
ANY_OBJECT = '{"type":"object"}'


def form(endpoint: Endpoint, **fields: object) -> Form | None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "prompt": "hi", **fields}
    return endpoint.parse(json.dumps(body).encode()).prompt.form


FORMS: list[tuple[dict[str, object], FormKind, str, str]] = [
    ({"response_format": {"type": "json_object"}}, FormKind.JSON_SCHEMA, ANY_OBJECT, "response_format"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
        FormKind.JSON_SCHEMA,
        SCHEMA_TEXT,
        "response_format",
    ),
    (
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        FormKind.JSON_SCHEMA,
        SCHEMA_TEXT,
        "response_format",
    ),
    ({"structured_outputs": {"json": SCHEMA}}, FormKind.JSON_SCHEMA, SCHEMA_TEXT, "structured_outputs.json"),
    ({"structured_outputs": {"json": SCHEMA_TEXT}}, FormKind.JSON_SCHEMA, SCHEMA_TEXT, "structured_outputs.json"),
    (
        {"structured_outputs": {"json_object": True}},
        FormKind.JSON_SCHEMA,
        ANY_OBJECT,
        "structured_outputs.json_object",
    ),
    ({"structured_outputs": {"regex": "a+"}}, FormKind.REGEX, "a+", "structured_outputs.regex"),
    ({"structured_outputs": {"choice": ["a", "b"]}}, FormKind.CHOICE, '["a","b"]', "structured_outputs.choice"),
    ({"structured_outputs": {"grammar": "root ::= x"}}, FormKind.GRAMMAR, "root ::= x", "structured_outputs.grammar"),
    ({"guided_json": SCHEMA}, FormKind.JSON_SCHEMA, SCHEMA_TEXT, "guided_json"),
    ({"guided_regex": "a+"}, FormKind.REGEX, "a+", "guided_regex"),
    ({"guided_choice": ["a"]}, FormKind.CHOICE, '["a"]', "guided_choice"),
    ({"guided_grammar": "root ::= x"}, FormKind.GRAMMAR, "root ::= x", "guided_grammar"),
    ({"json_schema": SCHEMA}, FormKind.JSON_SCHEMA, SCHEMA_TEXT, "json_schema"),
    ({"json_schema": {}}, FormKind.JSON_SCHEMA, "{}", "json_schema"),
    ({"grammar": "root ::= x"}, FormKind.GRAMMAR, "root ::= x", "grammar"),
]


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS], ids=["chat", "completions"])
@pytest.mark.parametrize(("fields", "kind", "text", "field"), FORMS)
def test_every_way_to_say_it(endpoint: Endpoint, fields: dict[str, object], kind: FormKind, text: str, field: str):
    """OpenAI's, vLLM's and llama.cpp's, with the order of a schema's keys kept: answers are written in it."""
    assert form(endpoint, **fields) == Form(kind=kind, text=text, field=field)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}},
        {"structured_outputs": {}},
        {"structured_outputs": {"json_object": False, "regex": "", "disable_any_whitespace": False}},
        {"grammar": ""},
        {"guided_choice": []},
        {"guided_json": None},
    ],
)
def test_no_form_is_asked_for(fields: dict[str, object]):
    """Clients send empty fields."""
    assert form(CHAT, **fields) is None


def test_two_forms_are_refused():
    """Nobody could say which one was meant."""
    with pytest.raises(RequestError, match="both say") as caught:
        form(CHAT, response_format={"type": "json_object"}, guided_regex="a")
    assert caught.value.param == "guided_regex"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
        ({"guided_choice": ["x"] * 10_001}, "guided_choice"),
    ],
)
def test_half_a_form_is_refused_by_name(fields: dict[str, object], param: str):
    """What would change the answer and is not there is said so."""
    with pytest.raises(RequestError) as caught:
        form(CHAT, **fields)
    assert caught.value.param == param


@pytest.mark.parametrize("field", ["json_schema", "guided_json"])
def test_a_schema_without_a_bottom_is_refused(field: str):
    """Before anybody walks through it."""
    deep = '{"items":' * 200 + "{}" + "}" * 200
    body = f'{{"model": "m", "messages": [{{"role": "user", "content": "x"}}], "{field}": {deep}}}'
    with pytest.raises(RequestError, match="levels deep") as caught:
        CHAT.parse(body.encode())
    assert caught.value.param == field
