"""What was asked: the request that receipts keep, and the prompt that they never do."""

from __future__ import annotations

import hashlib
import json
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from taximeter.records.codec import Json


class Dialect(StrEnum):
    """The wire format a request came in."""

    OPENAI_CHAT = "openai.chat"
    OPENAI_COMPLETIONS = "openai.completions"
    OPENAI_RESPONSES = "openai.responses"
    OPENAI_EMBEDDINGS = "openai.embeddings"
    ANTHROPIC_MESSAGES = "anthropic.messages"
    COMMAND_LINE = "command-line"
    UNSAID = "unsaid"  # somebody else's log, which does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may ask the caller to run. `parameters` is a JSON schema of its arguments.

    With `strict`, arguments that do not keep to the schema cannot be generated.
    """

    name: str
    parameters: Mapping[str, Json]
    description: str | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolbox:
    """The tools that the model is offered, at least one.

    With `must_call` the answer is a call, of the tool named `only` where that is given; else the model decides.
    `parallel` allows more than one call.
    """

    tools: tuple[Tool, ...]
    must_call: bool = False
    only: str | None = None
    parallel: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call that a model made. `arguments` is JSON as the model wrote it, which need not be valid."""

    id: str
    name: str
    arguments: str


class FormKind(StrEnum):
    """How the form of an answer is described."""

    JSON_SCHEMA = "json_schema"  # a JSON schema
    REGEX = "regex"  # a regular expression for the whole answer
    CHOICE = "choice"  # a JSON list of the texts to choose from
    GRAMMAR = "grammar"  # a context-free grammar, in GBNF or Lark


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What the text of an answer must be. `field` is what the caller calls it, for refusals."""

    kind: FormKind
    text: str
    field: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A picture in a conversation: exactly one of `url` and base64 `data`, which then has a `media_type`."""

    url: str | None = None
    data: str | None = None
    media_type: str | None = None

    def __post_init__(self) -> None:
        if (self.url is None) == (self.data is None) or (self.data is None) != (self.media_type is None):
            raise ValueError("an image is either a URL, or data of a media type")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a conversation. `content` is a text, or texts and images in their order.

    `tool_calls` are what an assistant's turn called; `tool_call_id` is which of them a tool's turn is the result of,
    `name` its tool's name where it was given.
    """

    role: str
    content: str | tuple[str | Image, ...]
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What the model is to read: exactly one of a conversation, a text, or token ids; and what it is to write by: the
    tools it has (`messages` only) and the form its text must have.

    It travels beside the `Request` and is dropped with the answer: receipts and ledgers never hold it.
    """

    messages: tuple[Message, ...] | None = None
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    toolbox: Toolbox | None = None
    form: Form | None = None

    def __post_init__(self) -> None:
        given = [part for part in (self.messages, self.text, self.token_ids) if part is not None]
        if len(given) != 1:
            raise ValueError("a prompt is exactly one of messages, text and token_ids")
        if self.toolbox is not None and self.messages is None:
            raise ValueError("tools belong to a conversation")

    def fingerprint(self) -> tuple[str, ...]:
        """One tagged hash per part, so that equal parts of two prompts can be seen without keeping either. Tools come
        before the conversation, as most models read them; the form of the answer is no part of what is read."""
        if self.messages is not None:
            tools = () if self.toolbox is None else self.toolbox.tools
            parts = [_text_bytes(part) for part in (*map(_tool_text, tools), *map(_message_text, self.messages))]
        elif self.text is not None:
            parts = [_text_bytes(self.text)]
        else:
            parts = [_id_bytes(self.token_ids or ())]
        return tuple("sha256:" + hashlib.sha256(part).hexdigest()[:16] for part in parts)


def _tool_text(tool: Tool) -> str:
    return f"tool\0{tool.name}\0{tool.description or ''}\0{json.dumps(tool.parameters)}"


def _message_text(message: Message) -> str:
    calls = "".join(f"\0{call.id}\0{call.name}\0{call.arguments}" for call in message.tool_calls)
    result_of = "" if message.tool_call_id is None else f"\0{message.tool_call_id}"
    parts = (message.content,) if isinstance(message.content, str) else message.content
    content = "\0".join(part if isinstance(part, str) else f"{part.url}\0{part.data}" for part in parts)
    return f"{message.role}\0{content}{calls}{result_of}"


def _text_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _id_bytes(token_ids: Sequence[int]) -> bytes:
    """Eight bytes each, lowest first; in decimal where one needs more, which no model's token does."""
    try:
        ids = array("q", token_ids)
    except OverflowError:
        return _text_bytes(" ".join(map(str, token_ids)))
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is picked. Defaults are the neutral ones: the model's own distribution.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1, `min_p` 0, `repetition_penalty` 1 and the other penalties 0 are
    off. `logprobs` is the number of alternatives to report beside each picked token (0 reports the pick alone),
    None reports nothing. `choices` is the API's `n`.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    seed: int | None = None
    logprobs: int | None = None
    stop: tuple[str, ...] = ()
    choices: int = 1
    min_tokens: int = 0
    ignore_eos: bool = False


MOST_GROUP_NAME_CHARACTERS = 200
MOST_LABELS = 16
LABEL_KIND = "label:"


def label_group(text: str) -> tuple[str, str] | None:
    """The kind and the name of the group of all that has the label `text`, which is `KEY=VALUE`; None where it is not.
    Keys come from headers, so their case does not count."""
    key, equals, value = text.partition("=")
    return (LABEL_KIND + key.lower(), value) if key and equals else None


def is_group_name(text: str) -> bool:
    """Whether `text` can name a task, a run or a session: short and printable, since every report prints it."""
    return len(text) <= MOST_GROUP_NAME_CHARACTERS and text.isprintable() and "\N{REPLACEMENT CHARACTER}" not in text


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """What a request belongs to. Names are None where nobody gave one. `trace` is the id of a W3C trace,
    `traceparent` the header that says so."""

    task: str | None = None
    run: str | None = None
    session: str | None = None
    trace: str | None = None
    traceparent: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as receipts remember it: everything but its words.

    `received_at` is wall time for people and prices, `received_ns` the monotonic stamp that durations start from
    (meaningful in the process that made it only). `max_output_tokens` is per choice, None when the caller set none.
    `tier` is the service tier that was asked for, in the caller's words; what was served is on the receipt. `labels`
    are the caller's own names for what the request belongs to, `trace` the id of the trace it is a part of, and
    `traceparent` the W3C header that says which span of it asked. `key` is who called: the name of a key or of a user,
    or a digest of one, and never a secret.
    """

    id: str
    received_at: datetime
    received_ns: int
    dialect: Dialect
    model: str
    sampling: Sampling = field(default_factory=Sampling)
    max_output_tokens: int | None = None
    stream: bool = False
    prompt_fingerprint: tuple[str, ...] = ()
    task: str | None = None
    run: str | None = None
    session: str | None = None
    tier: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    trace: str | None = None
    traceparent: str | None = None
    key: str | None = None
