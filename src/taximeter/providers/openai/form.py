"""What an answer must look like: `response_format`, and the fields that vLLM's and llama.cpp's clients send instead.

Owns: the shapes, and that there is one form at most. Refuses to know: how a form is followed, and which forms can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from taximeter.errors import RequestError
from taximeter.providers.schemas import check_depth
from taximeter.records import Form, FormKind

_MOST_CHOICES = 10_000
_ANY_OBJECT: dict[str, Any] = {"type": "object"}
Schema = dict[str, Any] | bool | str  # a schema may come as the text of one


class _JsonSchema(msgspec.Struct):
    schema: dict[str, Any] | bool | None = None
    name: str | None = None
    strict: bool | None = None  # a form is always followed


class ResponseFormat(msgspec.Struct):
    """OpenAI's field. With `json_object` llama.cpp takes a `schema` beside the type."""

    type: str = "text"
    json_schema: _JsonSchema | None = None
    schema: dict[str, Any] | bool | None = None


class TextFormat(msgspec.Struct):
    """What the Responses endpoint has instead, under `text.format`."""

    type: str = "text"
    schema: dict[str, Any] | bool | None = None
    name: str | None = None
    strict: bool | None = None


class StructuredOutputs(msgspec.Struct):
    """vLLM's field."""

    json: Schema | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: object = None
    whitespace_pattern: object = None
    disable_any_whitespace: object = None
    disable_additional_properties: object = None


class FormFields(Protocol):
    """The fields of a body that say what the answer must look like."""

    response_format: ResponseFormat | None
    structured_outputs: StructuredOutputs | None
    guided_json: Schema | None
    guided_regex: str | None
    guided_choice: list[str] | None
    guided_grammar: str | None
    grammar: str | None
    json_schema: Schema | None


def form_of(read: FormFields, text_format: TextFormat | None = None) -> Form | None:
    """The form of the answer; None when any will do. Raises RequestError when it is not clear which one is meant."""
    vllm = read.structured_outputs or StructuredOutputs()
    for name in ("structural_tag", "whitespace_pattern", "disable_any_whitespace", "disable_additional_properties"):
        if getattr(vllm, name):
            at = f"structured_outputs.{name}"
            raise RequestError(f"`{at}` is not supported yet: it would change the answer", param=at)
    given = [
        form
        for form in (
            _response_format(read.response_format),
            _text_format(text_format),
            _schema(vllm.json, "structured_outputs.json"),
            _schema(_ANY_OBJECT if vllm.json_object else None, "structured_outputs.json_object"),
            _text(FormKind.REGEX, vllm.regex, "structured_outputs.regex"),
            _text(FormKind.GRAMMAR, vllm.grammar, "structured_outputs.grammar"),
            _choice(vllm.choice, "structured_outputs.choice"),
            _schema(read.guided_json, "guided_json"),
            _text(FormKind.REGEX, read.guided_regex, "guided_regex"),
            _text(FormKind.GRAMMAR, read.guided_grammar, "guided_grammar"),
            _choice(read.guided_choice, "guided_choice"),
            _schema(read.json_schema, "json_schema"),
            _text(FormKind.GRAMMAR, read.grammar, "grammar"),
        )
        if form is not None
    ]
    if len(given) > 1:
        raise RequestError(
            f"`{given[0].field}` and `{given[1].field}` both say what the answer must look like", param=given[1].field
        )
    return given[0] if given else None


def _response_format(given: ResponseFormat | None) -> Form | None:
    at = "response_format"
    match given:
        case None | ResponseFormat(type="text"):
            return None
        case ResponseFormat(type="json_object"):
            return _schema(_ANY_OBJECT if given.schema is None else given.schema, at)
        case ResponseFormat(type="json_schema"):
            schema = None if given.json_schema is None else given.json_schema.schema
            if schema is None:
                raise RequestError(f"`{at}.json_schema.schema` is missing", param=f"{at}.json_schema.schema")
            return _schema(schema, at)
        case _:
            raise RequestError(f"`{at}.type` must be text, json_object or json_schema", param=f"{at}.type")


def _text_format(given: TextFormat | None) -> Form | None:
    at = "text.format"
    match given:
        case None | TextFormat(type="text"):
            return None
        case TextFormat(type="json_object"):
            return _schema(_ANY_OBJECT, at)
        case TextFormat(type="json_schema", schema=None):
            raise RequestError(f"`{at}.schema` is missing", param=f"{at}.schema")
        case TextFormat(type="json_schema"):
            return _schema(given.schema, at)
        case _:
            raise RequestError(f"`{at}.type` must be text, json_object or json_schema", param=f"{at}.type")


def _schema(schema: Schema | None, at: str) -> Form | None:
    if schema is None or schema == "":
        return None
    if isinstance(schema, str):
        return Form(kind=FormKind.JSON_SCHEMA, text=schema, field=at)
    check_depth(schema, at)
    return Form(kind=FormKind.JSON_SCHEMA, text=msgspec.json.encode(schema).decode(), field=at)


def _text(kind: FormKind, text: str | None, at: str) -> Form | None:
    return Form(kind=kind, text=text, field=at) if text else None


def _choice(choices: Sequence[str] | None, at: str) -> Form | None:
    if not choices:
        return None
    if len(choices) > _MOST_CHOICES:
        raise RequestError(f"`{at}` has more than {_MOST_CHOICES} choices", param=at)
    return Form(kind=FormKind.CHOICE, text=msgspec.json.encode(choices).decode(), field=at)
