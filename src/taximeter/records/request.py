"""What was asked: the request that receipts keep, and the prompt that they never do."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


class Dialect(StrEnum):
    """The wire format a request came in."""

    OPENAI_CHAT = "openai.chat"
    OPENAI_COMPLETIONS = "openai.completions"
    COMMAND_LINE = "command-line"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What the model is to read: exactly one of a conversation, a text, or token ids.

    It travels beside the `Request` and is dropped with the answer: receipts and ledgers never hold it.
    """

    messages: tuple[Message, ...] | None = None
    text: str | None = None
    token_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        given = [part for part in (self.messages, self.text, self.token_ids) if part is not None]
        if len(given) != 1:
            raise ValueError("a prompt is exactly one of messages, text and token_ids")

    def fingerprint(self) -> tuple[str, ...]:
        """One tagged hash per part, so that equal parts of two prompts can be seen without keeping either."""
        if self.messages is not None:
            parts = [_text_bytes(f"{message.role}\0{message.content}") for message in self.messages]
        elif self.text is not None:
            parts = [_text_bytes(self.text)]
        else:
            parts = [_id_bytes(self.token_ids or ())]
        return tuple("sha256:" + hashlib.sha256(part).hexdigest()[:16] for part in parts)


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


def is_group_name(text: str) -> bool:
    """Whether `text` can name a task, a run or a session: short and printable, since every report prints it."""
    return len(text) <= MOST_GROUP_NAME_CHARACTERS and text.isprintable() and "\N{REPLACEMENT CHARACTER}" not in text


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as receipts remember it: everything but its words.

    `received_at` is wall time for people and prices, `received_ns` the monotonic stamp that durations start from
    (meaningful in the process that made it only). `max_output_tokens` is per choice, None when the caller set none.
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
