"""The protocol every answering machine speaks: our engine, a hosted provider, another engine.

A `Backend` takes a `Request` and a `Prompt` and gives an `Answer`: a stream of events, all stamped by one monotonic
clock, the last of which is `Served`. Backends know nothing of HTTP doors, prices or ledgers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from taximeter.records.receipt import Attempt
from taximeter.records.request import Prompt, Request
from taximeter.records.timing import Phase
from taximeter.records.usage import Terms, Usage, Work


class FinishReason(StrEnum):
    """Why a choice ended."""

    STOP = "stop"  # an end-of-turn token, a stop string, or the end of the form that was asked for
    LENGTH = "length"  # the answer's own limit, the context's, or the limit of what following a form may cost
    TOOL_CALLS = "tool_calls"  # like STOP, and there is a call to run
    REFUSAL = "content_filter"  # the model or its provider would not answer; the value is OpenAI's word
    CANCELLED = "cancelled"  # nobody wanted the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """One candidate for one position: `logprob` is natural, from the model's own logits before any temperature.
    `token_id` is None where a provider does not say it."""

    token_id: int | None
    text: str
    utf8: bytes
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionLogprobs:
    """The token that was picked, and the likeliest alternatives, best first."""

    picked: TokenLogprob
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEntered:
    """The request does `phase` from `at_ns` on."""

    at_ns: int
    phase: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRead:
    """The whole prompt has been read: `usage` is what it is charged, and nothing yet for the answer. Told once, before
    the first tokens, where that is known by then; `Served` says it in any case."""

    at_ns: int
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta:
    """A piece of call number `index` of one choice. The first piece of each has `id` and `name`, and no arguments;
    then come the arguments, in pieces to be joined."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensGenerated:
    """`new_tokens` tokens of choice `choice` arrived. `text` is what can be shown by now: it may be empty while a
    character is incomplete or a stop string or a call may be beginning, and may then belong to earlier tokens too.
    `reasoning` is what the model thinks before it answers, where it says that apart; it comes before the text. `calls`
    are the pieces of calls that became certain, after the text.

    `logprobs` has one entry per new token when they were asked for, else it is empty. When the tokens of an answer
    that came whole were generated is unknown: `new_tokens` is 0 then.
    """

    at_ns: int
    choice: int
    new_tokens: int
    text: str
    reasoning: str = ""
    calls: tuple[ToolCallDelta, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[PositionLogprobs, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceFinished:
    """Choice `choice` has ended; `text` is the tail that was still held back, `stop` the stop string that ended it,
    where it was one and that is known."""

    at_ns: int
    choice: int
    reason: FinishReason
    text: str = ""
    stop: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The last event of every answer, also of one that was cancelled: what it took.

    `usage` is None when it is not even known whether anything was used. The rest is known of upstreams only: `spent_ns`
    is what an engine behind us says of its own time, by phase.
    """

    at_ns: int
    usage: Usage | None
    work: Work | None
    served_by: str
    model: str
    terms: Terms | None = None
    upstream_request_id: str | None = None
    tries: tuple[Attempt, ...] = ()
    spent_ns: Mapping[Phase, int] = field(default_factory=dict[Phase, int])


Event = PhaseEntered | PromptRead | TokensGenerated | ChoiceFinished | Served


class Answer(Protocol):
    """An answer being made."""

    def __aiter__(self) -> AsyncIterator[Event]:
        """Events in order. Raises a `TaximeterError` when the backend breaks. Read once."""
        ...

    async def cancel(self) -> Served:
        """Stop as soon as possible and say what it took until now. May be called at any time, also twice, also
        when the stream has ended or broken."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """One model a backend serves. `chat` is False for a model without a chat template; `context_length_tokens` is None
    where whoever serves it does not say."""

    id: str
    context_length_tokens: int | None = None
    chat: bool = True
    owned_by: str = "taximeter"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineTime:
    """How a machine of our own spent its time since it came up: `busy_ns` of `wall_ns` went to requests, and every
    nanosecond of it is on some request's `Work.compute_ns`."""

    wall_ns: int
    busy_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoad:
    """What one model of our own engine is doing: sequences in its steps, and blocks of its KV cache that are free, that
    hold what may be wanted again, and that are in use."""

    running_sequences: int
    free_kv_blocks: int
    cached_kv_blocks: int
    used_kv_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """What our own engine is doing, by model; `waiting_requests` wait for any of them."""

    waiting_requests: int
    models: Mapping[str, ModelLoad]


class Backend(Protocol):
    """Something that answers requests."""

    @property
    def name(self) -> str:
        """Short name for receipts, for example `embedded`."""
        ...

    def models(self) -> Sequence[ModelInfo]: ...

    async def submit(self, request: Request, prompt: Prompt) -> Answer:
        """Take the request up. Raises `RequestError` when it cannot be served as it stands, `CapacityError` when
        the queue is full. Once it returns, the answer ends with `Served` or raises."""
        ...

    async def count_tokens(self, model: str, prompt: Prompt) -> int | None:
        """How many tokens `prompt` has for that model; None where that is not known before the answer. Raises as
        `submit` does."""
        ...

    def machine_time(self) -> MachineTime | None:
        """For a backend that is our own machine; None for somebody else's."""
        ...

    async def aclose(self) -> None:
        """Stop serving; answers in flight end. Idempotent."""
        ...
