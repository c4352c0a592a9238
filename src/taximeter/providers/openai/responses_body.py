"""What a client asks of `/v1/responses`: its body as records.

Owns: the fields that are this endpoint's own, the items of a conversation, and the sentence for each that cannot be
served. Refuses to know: what the endpoints have in common, which `body` reads; models, HTTP.

Nothing is stored here: whatever a body only names, an earlier response or one of its items, is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from taximeter.errors import RequestError
from taximeter.providers.bodies import decode, unsupported
from taximeter.providers.door import Call
from taximeter.providers.openai.body import ROLES, Body, Count, Refused, call_of, check_common
from taximeter.providers.openai.content import content_of, image_of
from taximeter.providers.openai.form import TextFormat, form_of
from taximeter.providers.openai.tools import FlatChoiceBody, FlatToolBody, flat_toolbox_of
from taximeter.providers.schemas import check_depth
from taximeter.providers.toolboxes import check_tool_name
from taximeter.records import Image, Message, Prompt, ToolCall

_LOGPROBS = "message.output_text.logprobs"
_TRUNCATIONS = (None, "auto", "disabled")


class _Text(msgspec.Struct):
    format: TextFormat | None = None


class _ResponsesBody(Body, kw_only=True):
    input: str | list[msgspec.Raw]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    tools: list[FlatToolBody] | None = None
    tool_choice: str | FlatChoiceBody | None = None
    parallel_tool_calls: bool | None = None
    text: _Text | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    truncation: str | None = None
    background: Refused = None
    context_management: Refused = None
    conversation: Refused = None
    moderation: Refused = None
    previous_response_id: Refused = None
    prompt: Refused = None


class _Echoed(msgspec.Struct):
    """What the answer repeats as it stood, also where nothing here reads it."""

    instructions: str | None = None
    metadata: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    tool_choice: Any = None
    tools: list[Any] | None = None
    truncation: str | None = None


class _Kind(msgspec.Struct):
    type: str | None = None  # a message may leave it out


class _Part(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None


class _Said(msgspec.Struct):
    role: str
    content: str | list[_Part]


class _Called(msgspec.Struct):
    call_id: str
    name: str
    arguments: str


class _Result(msgspec.Struct):
    call_id: str
    output: str | list[_Part]
    name: str | None = None


_body_decoder = msgspec.json.Decoder(_ResponsesBody)
_echo_decoder = msgspec.json.Decoder(_Echoed)
_kind_decoder = msgspec.json.Decoder(_Kind)
_said_decoder = msgspec.json.Decoder(_Said)
_called_decoder = msgspec.json.Decoder(_Called)
_result_decoder = msgspec.json.Decoder(_Result)


def parse_responses(body: bytes) -> Call:
    """A responses body. Raises RequestError that names the field."""
    read = decode(_body_decoder, body)
    check_common(read)
    _check_own(read)
    alternatives = read.top_logprobs
    has_logprobs = bool(alternatives) or _LOGPROBS in (read.include or ())
    return call_of(
        read,
        prompt=Prompt(
            messages=_messages(read),
            toolbox=flat_toolbox_of(read.tools, read.tool_choice, parallel=read.parallel_tool_calls is not False),
            form=form_of(read, None if read.text is None else read.text.format),
        ),
        max_output_tokens=read.max_output_tokens,
        logprobs=(alternatives or 0) if has_logprobs else None,
        echoed=_echoed(body),
    )


def _check_own(read: _ResponsesBody) -> None:
    if read.max_tokens is not None:
        raise RequestError("`max_tokens` is called `max_output_tokens` here", param="max_tokens")
    if read.n is not None and read.n != 1:
        raise unsupported("n", "a response is one answer", hint="send one request for each")
    if read.truncation not in _TRUNCATIONS:
        raise RequestError("`truncation` must be auto or disabled", param="truncation")


def _echoed(body: bytes) -> dict[str, Any]:
    echoed = msgspec.structs.asdict(decode(_echo_decoder, body))
    for name, value in echoed.items():
        check_depth(value, name)
    return echoed


def _messages(read: _ResponsesBody) -> tuple[Message, ...]:
    instructions = [Message(role="system", content=read.instructions)] if read.instructions else []
    if isinstance(read.input, str):
        return (*instructions, Message(role="user", content=read.input))
    turns = _Turns()
    for index, item in enumerate(read.input):
        _take(turns, item, f"input[{index}]")
    said = turns.whole()
    if not said:
        raise RequestError("`input` is empty", param="input")
    return (*instructions, *said)


class _Turns:
    """Items as turns: what an assistant says and the calls it then makes are one, as in every other dialect."""

    def __init__(self) -> None:
        self._said: list[Message] = []
        self._calls: list[ToolCall] = []  # of the last of them

    def say(self, message: Message) -> None:
        self._close()
        self._said.append(message)

    def call(self, call: ToolCall) -> None:
        if not self._said or self._said[-1].role != "assistant":
            self._said.append(Message(role="assistant", content=""))
        self._calls.append(call)

    def whole(self) -> list[Message]:
        self._close()
        return self._said

    def _close(self) -> None:
        if self._calls:
            self._said[-1] = replace(self._said[-1], tool_calls=tuple(self._calls))
            self._calls = []


def _take(turns: _Turns, item: msgspec.Raw, at: str) -> None:
    match decode(_kind_decoder, item, at).type:
        case None | "message":
            said = decode(_said_decoder, item, at)
            role = ROLES.get(said.role)
            if role is None or role == "tool":
                raise RequestError(f"`{at}.role` must be system, developer, user or assistant", param=f"{at}.role")
            turns.say(Message(role=role, content=_content(said.content, f"{at}.content")))
        case "function_call":
            called = decode(_called_decoder, item, at)
            check_tool_name(called.name, f"{at}.name")
            turns.call(ToolCall(id=called.call_id, name=called.name, arguments=called.arguments))
        case "function_call_output":
            result = decode(_result_decoder, item, at)
            content = _content(result.output, f"{at}.output")
            turns.say(Message(role="tool", content=content, tool_call_id=result.call_id, name=result.name))
        case "reasoning":
            pass  # how an earlier answer was thought out is nothing that models are shown again
        case "item_reference":
            raise unsupported(at, "nothing is stored here", hint="send the item itself")
        case _:
            raise unsupported(f"{at}.type", "only messages, function calls, their outputs and reasoning can be read")


def _content(given: str | Sequence[_Part], at: str) -> str | tuple[str | Image, ...]:
    if isinstance(given, str):
        return given
    return content_of([_part(part, f"{at}[{index}]") for index, part in enumerate(given)])


def _part(part: _Part, at: str) -> str | Image:
    match part:
        case (
            _Part(type="input_text" | "output_text" | "text", text=str(text)) | _Part(type="refusal", refusal=str(text))
        ):
            return text
        case _Part(type="input_image", image_url=str(url)):
            return image_of(url, f"{at}.image_url")
        case _Part(type="input_image"):
            raise unsupported(at, "no files are stored here", hint="give the image as `image_url`")
        case _Part(type="input_text" | "output_text" | "text"):
            raise RequestError(f"`{at}.text` is missing", param=f"{at}.text")
        case _Part(type="refusal"):
            raise RequestError(f"`{at}.refusal` is missing", param=f"{at}.refusal")
        case _:
            raise unsupported(at, "only texts and images can be read")
