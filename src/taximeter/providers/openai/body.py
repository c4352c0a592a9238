"""What a client asks: the JSON bodies of `/v1/chat/completions` and `/v1/completions` as records.

Owns: the fields, their types, ranges and defaults, and the sentence for each that cannot be served. Refuses to know:
which models exist, how long their context is, HTTP.

A field nobody here knows is ignored, as other engines do. A known field that would change the answer and is not
supported is refused: an answer to another question would be worse.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from taximeter.errors import RequestError
from taximeter.providers.bodies import check_model_name, decode, stop_strings, unsupported
from taximeter.providers.door import Call
from taximeter.providers.openai.content import content_of, image_of
from taximeter.providers.openai.form import ResponseFormat, Schema, StructuredOutputs, form_of
from taximeter.providers.openai.tools import CallBody, ChoiceBody, ToolBody, calls_of, toolbox_of
from taximeter.records import (
    MOST_GROUP_NAME_CHARACTERS,
    Form,
    Image,
    Message,
    Prompt,
    Sampling,
    is_group_name,
)

_MAX_INT32 = 2**31 - 1
_MAX_INT64 = 2**63 - 1
_MAX_BIASES = 1024
_DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's, for the legacy endpoint only

_TokenId = Annotated[int, Meta(ge=0, le=_MAX_INT32)]
Count = Annotated[int, Meta(ge=1, le=_MAX_INT32)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Repetition = Annotated[float, Meta(gt=0, le=10)]
_Share = Annotated[float, Meta(ge=0, le=1)]
# A field that would change the answer and is not supported: anything but an empty value is refused.
Refused = Annotated[object, Meta(title="refused")]


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class Body(msgspec.Struct, kw_only=True):
    """What all endpoints accept. None everywhere means that the caller left it out or wrote null."""

    model: str
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: Count | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: _Share | None = None
    seed: Annotated[int, Meta(ge=-_MAX_INT64 - 1, le=_MAX_INT64)] | None = None
    stop: str | list[str] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    response_format: ResponseFormat | None = None
    service_tier: str | None = None
    # Extensions of vLLM and llama.cpp.
    top_k: Annotated[int, Meta(ge=-1, le=_MAX_INT32)] | None = None
    min_p: _Share | None = None
    repetition_penalty: _Repetition | None = None
    repeat_penalty: _Repetition | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=_MAX_INT32)] | None = None
    ignore_eos: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    grammar: str | None = None
    json_schema: Schema | None = None
    allowed_token_ids: Refused = None
    bad_words: Refused = None
    dry_multiplier: Refused = None
    logits_processors: Refused = None
    mirostat: Refused = None
    prompt_logprobs: Refused = None
    stop_token_ids: Refused = None
    use_beam_search: Refused = None
    xtc_probability: Refused = None


class _ImageUrl(msgspec.Struct):
    url: str


class _Part(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: _ImageUrl | str | None = None


class _Turn(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None
    tool_calls: list[CallBody] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    function_call: object = None


class _ChatBody(Body, kw_only=True):
    messages: list[_Turn]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    modalities: list[str] | None = None
    tools: list[ToolBody] | None = None
    tool_choice: str | ChoiceBody | None = None
    parallel_tool_calls: bool | None = None
    audio: Refused = None
    chat_template: Refused = None
    continue_final_message: Refused = None
    documents: Refused = None
    functions: Refused = None
    web_search_options: Refused = None


class _CompletionBody(Body, kw_only=True):
    prompt: str | list[str | _TokenId | list[_TokenId]]
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=128)] | None = None
    echo: Refused = None
    suffix: Refused = None


@cache
def _refused(body: type[Body]) -> tuple[str, ...]:
    return tuple(field.name for field in msgspec.structs.fields(body) if field.type == Refused)


_chat_decoder = msgspec.json.Decoder(_ChatBody)
_completion_decoder = msgspec.json.Decoder(_CompletionBody)


def parse_chat(body: bytes) -> Call:
    """A chat body. Raises RequestError that names the field."""
    read = decode(_chat_decoder, body)
    check_common(read)
    if read.modalities is not None and read.modalities != ["text"]:
        raise unsupported("modalities", "answers are text")
    alternatives = read.top_logprobs
    if alternatives and not read.logprobs:
        raise RequestError("`top_logprobs` needs `logprobs` to be true", param="top_logprobs")
    return call_of(
        read,
        prompt=Prompt(
            messages=_messages(read.messages),
            toolbox=toolbox_of(read.tools, read.tool_choice, parallel=read.parallel_tool_calls is not False),
            form=form_of(read),
        ),
        max_output_tokens=read.max_completion_tokens or read.max_tokens,
        logprobs=(alternatives or 0) if read.logprobs else None,
    )


def parse_completion(body: bytes) -> Call:
    """A legacy completions body. Raises RequestError that names the field."""
    read = decode(_completion_decoder, body)
    check_common(read)
    if read.best_of is not None and read.best_of != (read.n or 1):
        raise unsupported("best_of", "every choice that is made is given back", hint="leave it out, or give it `n`")
    return call_of(
        read,
        prompt=_plain_prompt(read.prompt, form_of(read)),
        max_output_tokens=read.max_tokens or _DEFAULT_COMPLETION_TOKENS,
        logprobs=read.logprobs,
    )


def check_common(read: Body) -> None:
    """Raises RequestError for what no endpoint can serve."""
    check_model_name(read.model)
    for name in _refused(type(read)):
        if getattr(read, name):
            raise unsupported(name, "it would change the answer", hint="leave it out")
    if read.stream_options is not None and not read.stream:
        raise RequestError("`stream_options` needs `stream` to be true", param="stream_options")
    if read.service_tier is not None and not is_group_name(read.service_tier):
        raise RequestError(
            f"`service_tier` must be at most {MOST_GROUP_NAME_CHARACTERS} printable characters", param="service_tier"
        )


def call_of(
    read: Body,
    *,
    prompt: Prompt,
    max_output_tokens: int | None,
    logprobs: int | None,
    echoed: Mapping[str, Any] | None = None,
) -> Call:
    """The call that a body asks for, with what each endpoint has in its own words. Raises RequestError."""
    min_tokens = read.min_tokens or 0
    if max_output_tokens is not None and min_tokens > max_output_tokens:
        raise RequestError(
            f"`min_tokens` is {min_tokens}, more than the {max_output_tokens} tokens the answer may have",
            param="min_tokens",
        )
    sampling = Sampling(
        temperature=_or(read.temperature, 1.0),
        top_k=max(read.top_k or 0, 0),
        top_p=_or(read.top_p, 1.0),
        min_p=_or(read.min_p, 0.0),
        repetition_penalty=_repetition_penalty(read),
        presence_penalty=_or(read.presence_penalty, 0.0),
        frequency_penalty=_or(read.frequency_penalty, 0.0),
        logit_bias=_logit_bias(read.logit_bias or {}),
        seed=read.seed,
        logprobs=logprobs,
        stop=stop_strings(read.stop, "stop"),
        choices=read.n or 1,
        min_tokens=min_tokens,
        ignore_eos=bool(read.ignore_eos),
    )
    return Call(
        model=read.model,
        prompt=prompt,
        sampling=sampling,
        max_output_tokens=max_output_tokens,
        stream=bool(read.stream),
        include_usage=bool(read.stream_options and read.stream_options.include_usage),
        tier=read.service_tier,
        echoed=echoed or {},
    )


def _or(given: float | None, default: float) -> float:
    return default if given is None else given


def _repetition_penalty(read: Body) -> float:
    given = {value for value in (read.repetition_penalty, read.repeat_penalty) if value is not None}
    if len(given) > 1:
        raise RequestError(
            "`repeat_penalty` and `repetition_penalty` are one setting, and differ", param="repeat_penalty"
        )
    return given.pop() if given else 1.0


def _logit_bias(given: Mapping[str, float]) -> dict[int, float]:
    if len(given) > _MAX_BIASES:
        raise RequestError(f"`logit_bias` has more than {_MAX_BIASES} entries", param="logit_bias")
    # The range of digits keeps int() away from absurd lengths and from digits of other scripts.
    if not all(re.fullmatch(r"[0-9]{1,9}", key) for key in given):
        raise RequestError("the keys of `logit_bias` must be token ids in decimal digits", param="logit_bias")
    return {int(key): value for key, value in given.items()}


# Templates know `system`; `developer` is OpenAI's newer word for it.
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def _messages(turns: list[_Turn]) -> tuple[Message, ...]:
    if not turns:
        raise RequestError("`messages` is empty", param="messages")
    return tuple(_message(turn, f"messages[{index}]") for index, turn in enumerate(turns))


def _message(turn: _Turn, at: str) -> Message:
    role = ROLES.get(turn.role)
    if role is None:
        raise RequestError(f"`{at}.role` must be one of {', '.join(ROLES)}", param=f"{at}.role")
    if turn.function_call:
        raise unsupported(f"{at}.function_call", "it is an older word for `tool_calls`")
    if turn.tool_calls and role != "assistant":
        raise RequestError(f"`{at}.tool_calls` belongs to assistants", param=f"{at}.tool_calls")
    is_result = role == "tool"
    return Message(
        role=role,
        content=_content(turn, at),
        tool_calls=calls_of(turn.tool_calls or (), f"{at}.tool_calls"),
        tool_call_id=turn.tool_call_id if is_result else None,
        name=turn.name if is_result else None,
    )


def _content(turn: _Turn, at: str) -> str | tuple[str | Image, ...]:
    match turn.content:
        case None if turn.tool_calls:
            return ""
        case None:
            raise RequestError(f"`{at}.content` is missing", param=f"{at}.content")
        case str(content):
            return content
        case parts:
            return content_of([_part(part, f"{at}.content[{index}]") for index, part in enumerate(parts)])


def _part(part: _Part, at: str) -> str | Image:
    match part:
        case _Part(type="text", text=str(text)) | _Part(type="refusal", refusal=str(text)):
            return text
        case _Part(type="image_url", image_url=_ImageUrl(url=url) | str(url)):
            return image_of(url, f"{at}.image_url")
        case _Part(type="text" | "refusal" | "image_url"):
            raise RequestError(f"`{at}.{part.type}` is missing", param=f"{at}.{part.type}")
        case _:
            raise unsupported(at, "only texts and images can be read")


def _plain_prompt(given: str | list[str | int | list[int]], form: Form | None) -> Prompt:
    match given:
        case str(text):
            return Prompt(text=text, form=form)
        case []:
            raise RequestError("`prompt` is empty", param="prompt")
        case [str(text)]:
            return Prompt(text=text, form=form)
        case [[*ids]]:
            return Prompt(token_ids=tuple(ids), form=form)
        case items:
            ids = [item for item in items if isinstance(item, int)]
            if len(ids) != len(items):
                raise unsupported("prompt", "one request is one prompt", hint="send one request for each")
            return Prompt(token_ids=tuple(ids), form=form)
