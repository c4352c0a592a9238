"""A request in front of a provider that speaks chat completions: its records as the body that is sent.

Owns: how each record is written, and the sentence for each that this dialect has no word for. Refuses to know: who the
provider is, what it is paid, HTTP.

Only what all such providers take is written. What is neutral is left out, as the caller most probably left it out too:
models that think refuse some fields even with their default value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from taximeter.errors import RequestError
from taximeter.providers.bodies import unsupported
from taximeter.providers.openai.content import content_of, url_of
from taximeter.providers.schemas import check_depth
from taximeter.records import (
    Dialect,
    Form,
    FormKind,
    Image,
    Message,
    Prompt,
    Request,
    Sampling,
    Tool,
    Toolbox,
    ToolCall,
)

_Fields = dict[str, Any]
_encode = msgspec.json.Encoder().encode
# Anthropic's words for a tier; OpenAI has the same two choices, and leaves one of them out.
_ANTHROPIC_TIERS = {"auto": None, "standard_only": "default"}
_NO_WORD = "the provider behind this model has no word for it"


def render(request: Request, prompt: Prompt) -> bytes:
    """The body of a streamed chat completion whose last chunk says what it took. Raises RequestError that names what
    cannot be asked there."""
    if prompt.messages is None:
        raise unsupported("prompt", "the provider behind this model takes conversations only", hint="send a chat")
    return _encode(
        {
            "model": request.model,
            "messages": [_message(message) for message in prompt.messages],
            **_tools(prompt.toolbox),
            **_form(prompt.form),
            **_sampling(request.sampling),
            **_given(max_completion_tokens=request.max_output_tokens, service_tier=_tier(request)),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


def _given(**fields: object) -> _Fields:
    return {name: value for name, value in fields.items() if value is not None}


def _tier(request: Request) -> str | None:
    if request.dialect is Dialect.ANTHROPIC_MESSAGES and request.tier in _ANTHROPIC_TIERS:
        return _ANTHROPIC_TIERS[request.tier]
    return request.tier


def _message(message: Message) -> _Fields:
    match message.role:
        case "tool":
            if message.tool_call_id is None:
                raise RequestError("a tool's message must name its call in `tool_call_id`", param="messages")
            return {"role": "tool", "tool_call_id": message.tool_call_id, "content": _text(message)}
        case "assistant" if message.tool_calls:
            calls = [_call(call) for call in message.tool_calls]
            return {"role": "assistant", "content": _text(message) or None, "tool_calls": calls}
        case "user":
            return {"role": "user", "content": _content(message.content)}
        case role:
            return {"role": role, "content": _text(message)}


def _content(content: str | Sequence[str | Image]) -> str | list[_Fields]:
    joined = content if isinstance(content, str) else content_of(content)
    return joined if isinstance(joined, str) else [_part(part) for part in joined]


def _part(part: str | Image) -> _Fields:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image_url", "image_url": {"url": url_of(part)}}


def _text(message: Message) -> str:
    joined = message.content if isinstance(message.content, str) else content_of(message.content)
    if not isinstance(joined, str):
        raise unsupported("messages", f"the provider behind this model takes no images from a {message.role}")
    return joined


def _call(call: ToolCall) -> _Fields:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments or "{}"}}


def _tools(toolbox: Toolbox | None) -> _Fields:
    if toolbox is None:
        return {}
    choice: object = None
    if toolbox.only is not None:
        choice = {"type": "function", "function": {"name": toolbox.only}}
    elif toolbox.must_call:
        choice = "required"
    parallel = None if toolbox.parallel else False
    return {
        "tools": [_tool(tool) for tool in toolbox.tools],
        **_given(tool_choice=choice, parallel_tool_calls=parallel),
    }


def _tool(tool: Tool) -> _Fields:
    described = _given(description=tool.description, strict=tool.strict or None)
    return {"type": "function", "function": {"name": tool.name, "parameters": tool.parameters, **described}}


def _form(form: Form | None) -> _Fields:
    if form is None:
        return {}
    if form.kind is not FormKind.JSON_SCHEMA:
        raise unsupported(form.field, f"the provider behind this model follows JSON schemas only, no {form.kind}")
    try:
        schema = msgspec.json.decode(form.text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f"`{form.field}` is no JSON schema", param=form.field) from error
    check_depth(schema, form.field)
    match schema:
        case {"type": "object", **others} if not others:
            return {"response_format": {"type": "json_object"}}
        case dict():
            # A form is a promise: providers that follow one only with `strict` are told to.
            described: _Fields = {"name": "answer", "schema": schema, "strict": True}
            return {"response_format": {"type": "json_schema", "json_schema": described}}
        case _:
            raise unsupported(form.field, "the provider behind this model takes schemas that are objects only")


def _sampling(sampling: Sampling) -> _Fields:
    neutral = Sampling()
    for name in ("top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos"):
        if getattr(sampling, name) != getattr(neutral, name):
            raise unsupported(name, _NO_WORD, hint="leave it out")
    names = {"choices": "n"}
    fields: _Fields = {
        names.get(name, name): getattr(sampling, name)
        for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "stop", "choices")
        if getattr(sampling, name) != getattr(neutral, name)
    }
    if sampling.logit_bias:
        fields["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if sampling.logprobs is not None:
        fields |= {"logprobs": True, **_given(top_logprobs=sampling.logprobs or None)}
    return fields
