"""What we ask Anthropic: records as the body of a messages request.

Owns: the shapes, and the sentence for each wish that Anthropic cannot fulfil. Refuses to know: which model can do what,
HTTP. The answer is always streamed: whoever wants a whole one gets it put together.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from taximeter.errors import RequestError
from taximeter.providers.bodies import json_object
from taximeter.records import Form, FormKind, Image, Message, Prompt, Request, Sampling, Tool, Toolbox, ToolCall

DEFAULT_MAX_TOKENS = 4096
"""How long an answer may be where the caller did not say: Anthropic has to be told."""

_STRANGE_IN_ID = re.compile(r"[^A-Za-z0-9_-]")  # other providers' ids of calls may have what Anthropic's cannot
_TIERS = {"auto": "auto", "default": "standard_only", "standard_only": "standard_only"}

_Json = dict[str, Any]


def render(request: Request, prompt: Prompt) -> bytes:
    """The body. Raises RequestError, which names the field, for what cannot be asked there."""
    if prompt.messages is None:
        raise RequestError(
            "Anthropic's models take conversations only", param="prompt", hint="use the chat completions endpoint"
        )
    sampling = request.sampling
    _check(sampling)
    instructions = [message for message in prompt.messages if message.role == "system"]
    turns = _turns([message for message in prompt.messages if message.role != "system"])
    if not turns:
        raise RequestError("`messages` has no turn that says something", param="messages")
    body: _Json = {
        "model": request.model,
        "max_tokens": request.max_output_tokens or DEFAULT_MAX_TOKENS,
        "messages": turns,
        "stream": True,
    }
    if system := [block for message in instructions for block in _instruction(message)]:
        body["system"] = system
    # Left out where it is neutral: newer models take no more than one of them.
    if sampling.temperature != 1:
        body["temperature"] = sampling.temperature
    if sampling.top_p != 1:
        body["top_p"] = sampling.top_p
    if sampling.top_k:
        body["top_k"] = sampling.top_k
    if sampling.stop:
        body["stop_sequences"] = sampling.stop
    if prompt.toolbox is not None:
        body["tools"] = [_tool(tool) for tool in prompt.toolbox.tools]
        body["tool_choice"] = _tool_choice(prompt.toolbox)
    if prompt.form is not None:
        body["output_config"] = {"format": _format(prompt.form)}
    if request.tier is not None:
        body["service_tier"] = _tier(request.tier)
    return msgspec.json.encode(body)


def _check(sampling: Sampling) -> None:
    if sampling.temperature > 1:
        raise RequestError(
            f"`temperature` is {sampling.temperature:g}, and Anthropic's goes from 0 to 1", param="temperature"
        )
    wishes = {
        "n": sampling.choices != 1,
        "logprobs": sampling.logprobs is not None,
        "seed": sampling.seed is not None,
        "min_p": sampling.min_p != 0,
        "repetition_penalty": sampling.repetition_penalty != 1,
        "presence_penalty": sampling.presence_penalty != 0,
        "frequency_penalty": sampling.frequency_penalty != 0,
        "logit_bias": bool(sampling.logit_bias),
        "min_tokens": sampling.min_tokens != 0,
        "ignore_eos": sampling.ignore_eos,
    }
    for param, is_wished in wishes.items():
        if is_wished:
            raise _impossible(param)


def _impossible(param: str) -> RequestError:
    return RequestError(f"`{param}` is nothing that Anthropic's models can do", param=param, hint="leave it out")


def _instruction(message: Message) -> list[_Json]:
    blocks = _blocks(message)
    if any(block["type"] != "text" for block in blocks):
        raise RequestError("instructions to Anthropic's models are text", param="messages")
    return blocks


def _turns(messages: Sequence[Message]) -> list[_Json]:
    """Turns in which a user's words follow the results of tools, as they must. One that says nothing is left out."""
    turns: list[_Json] = []
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        blocks = [_result(message)] if message.role == "tool" else _blocks(message)
        blocks += [_call(call) for call in message.tool_calls]
        if not blocks:
            continue
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    return turns


def _blocks(message: Message) -> list[_Json]:
    parts = (message.content,) if isinstance(message.content, str) else message.content
    return [_block(part) for part in parts if part != ""]


def _block(part: str | Image) -> _Json:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if part.url is not None:
        return {"type": "image", "source": {"type": "url", "url": part.url}}
    return {"type": "image", "source": {"type": "base64", "media_type": part.media_type, "data": part.data}}


def _call(call: ToolCall) -> _Json:
    return {"type": "tool_use", "id": _id(call.id), "name": call.name, "input": _input(call.arguments)}


def _result(message: Message) -> _Json:
    if message.tool_call_id is None:
        raise RequestError("a tool's turn does not say which call it is the result of", param="messages")
    return {"type": "tool_result", "tool_use_id": _id(message.tool_call_id), "content": _blocks(message)}


def _id(call_id: str) -> str:
    return _STRANGE_IN_ID.sub("_", call_id)


def _input(arguments: str) -> msgspec.Raw:
    written = json_object(arguments or "{}")
    if written is None:
        raise RequestError("the arguments of a tool call in the messages are not a JSON object", param="messages")
    return written


def _tool(tool: Tool) -> _Json:
    # A schema without a type is one of any object, and Anthropic wants to be told.
    rendered: _Json = {"name": tool.name, "input_schema": {"type": "object", **tool.parameters}}
    if tool.description is not None:
        rendered["description"] = tool.description
    if tool.strict:
        rendered["strict"] = True
    return rendered


def _tool_choice(toolbox: Toolbox) -> _Json:
    choice: _Json = {"type": "any" if toolbox.must_call else "auto"}
    if toolbox.only is not None:
        choice = {"type": "tool", "name": toolbox.only}
    return choice if toolbox.parallel else choice | {"disable_parallel_tool_use": True}


def _format(form: Form) -> _Json:
    schema = json_object(form.text) if form.kind is FormKind.JSON_SCHEMA else None
    if schema is None:
        raise _impossible(form.field)
    return {"type": "json_schema", "schema": schema}


def _tier(tier: str) -> str:
    if tier not in _TIERS:
        raise _impossible("service_tier")
    return _TIERS[tier]
