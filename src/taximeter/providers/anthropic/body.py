"""What a client asks: the JSON bodies of `/v1/messages` and `/v1/messages/count_tokens` as records.

Owns: the fields, their types, ranges and defaults, and the sentence for each that cannot be served. Refuses to know:
which models exist, how long their context is, HTTP, what the headers `anthropic-version` and `anthropic-beta` say.

A field nobody here knows is ignored, and so is one that changes what an answer takes and not what it is: marks for
caches, budgets for thinking, tiers. A known field that would change the answer and is not supported is refused.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from taximeter.errors import RequestError
from taximeter.providers.anthropic.conversation import SystemBlock, Turn, messages_of
from taximeter.providers.anthropic.tools import ChoiceBody, ToolBody, toolbox_of
from taximeter.providers.bodies import check_model_name, decode, stop_strings, unsupported
from taximeter.providers.door import Call
from taximeter.providers.schemas import check_depth
from taximeter.records import Form, FormKind, Prompt, Sampling

_MAX_INT32 = 2**31 - 1

_Share = Annotated[float, Meta(ge=0, le=1)]


class _Format(msgspec.Struct):
    type: str
    schema: dict[str, Any] | None = None


class _OutputConfig(msgspec.Struct):
    format: _Format | None = None


class _Body(msgspec.Struct, kw_only=True):
    """What both endpoints read a prompt from. None everywhere means that the caller left it out or wrote null."""

    model: str
    messages: list[Turn]
    system: str | list[SystemBlock] | None = None
    tools: list[ToolBody] | None = None
    tool_choice: ChoiceBody | None = None
    output_config: _OutputConfig | None = None
    output_format: _Format | None = None  # an older name of `output_config.format`
    # What only Anthropic has: answers without it would be answers to another question.
    container: object = None
    mcp_servers: object = None
    thread: object = None


class _MessagesBody(_Body, kw_only=True):
    max_tokens: Annotated[int, Meta(ge=1, le=_MAX_INT32)]
    stream: bool | None = None
    temperature: _Share | None = None
    top_p: _Share | None = None
    top_k: Annotated[int, Meta(ge=0, le=_MAX_INT32)] | None = None
    stop_sequences: list[str] | None = None
    service_tier: str | None = None
    compaction: object = None


_messages_decoder = msgspec.json.Decoder(_MessagesBody)
_count_decoder = msgspec.json.Decoder(_Body)


def parse(body: bytes) -> Call:
    """A messages body. Raises RequestError that names the field."""
    read = decode(_messages_decoder, body)
    _refuse(compaction=read.compaction)
    prompt = _prompt(read)
    if read.messages[-1].role == "assistant":
        at = f"messages[{len(read.messages) - 1}]"
        raise unsupported(at, "an answer cannot go on from the assistant's words", hint="end with a user's turn")
    return Call(
        model=read.model,
        prompt=prompt,
        sampling=Sampling(
            temperature=1.0 if read.temperature is None else read.temperature,
            top_p=1.0 if read.top_p is None else read.top_p,
            top_k=read.top_k or 0,
            stop=stop_strings(read.stop_sequences, "stop_sequences"),
        ),
        max_output_tokens=read.max_tokens,
        stream=bool(read.stream),
        include_usage=True,
        tier=read.service_tier,
    )


def parse_count(body: bytes) -> tuple[str, Prompt]:
    """A body of which only the tokens are to be counted: model and prompt. Raises RequestError that names the field."""
    read = decode(_count_decoder, body)
    return read.model, _prompt(read)


def _prompt(read: _Body) -> Prompt:
    check_model_name(read.model)
    _refuse(container=read.container, mcp_servers=read.mcp_servers, thread=read.thread)
    return Prompt(
        messages=messages_of(read.system, read.messages),
        toolbox=toolbox_of(read.tools, read.tool_choice),
        form=_form(read),
    )


def _refuse(**fields: object) -> None:
    for name, given in fields.items():
        if given:
            raise unsupported(name, "only Anthropic's own servers have it", hint="leave it out")


def _form(read: _Body) -> Form | None:
    at, given = "output_config.format", None if read.output_config is None else read.output_config.format
    if given is None:
        at, given = "output_format", read.output_format
    if given is None:
        return None
    if given.type != "json_schema":
        raise RequestError(f"`{at}.type` must be json_schema", param=f"{at}.type")
    if given.schema is None:
        raise RequestError(f"`{at}.schema` is missing", param=f"{at}.schema")
    check_depth(given.schema, at)
    return Form(kind=FormKind.JSON_SCHEMA, text=msgspec.json.encode(given.schema).decode(), field=at)
