"""What every dialect gives to whoever serves its endpoints: bodies understood, answers and errors in its words.

Owns: the face that all endpoints have in common. Refuses to know: any dialect, status codes, sockets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from taximeter.records import ChoiceFinished, Dialect, Prompt, Request, Sampling, TokensGenerated, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One body, understood. `include_usage` asks for the usage at the end of a stream, where a dialect leaves it to the
    caller; `tier` is the service tier asked for, in the caller's words. `echoed` is what the answer repeats of the
    body, in a dialect that does so."""

    model: str
    prompt: Prompt
    sampling: Sampling
    max_output_tokens: int | None
    stream: bool
    include_usage: bool
    tier: str | None = None
    echoed: Mapping[str, Any] = field(default_factory=dict[str, Any])


class AnswerWriter(ABC):
    """Writes one answer, as a stream or as a whole: the caller uses either `tokens`, `finished` and `end`, or `keep`
    and `whole`.

    A stream is bytes of server-sent events; b"" means that there is nothing to show yet.
    """

    def __init__(self, request: Request) -> None:
        self._kept: dict[int, list[TokensGenerated | ChoiceFinished]] = {
            index: [] for index in range(request.sampling.choices)
        }

    def keep(self, event: TokensGenerated | ChoiceFinished) -> None:
        """Remember one event for `whole`."""
        self._kept[event.choice].append(event)

    @abstractmethod
    def whole(self, usage: Usage | None) -> bytes:
        """The whole answer as one JSON body."""

    def prompt_read(self, usage: Usage) -> None:  # noqa: B027 - most dialects say so at the end only
        """What the prompt is charged, for a dialect that says so at the start of its stream. It comes before the first
        tokens, if it comes."""

    @abstractmethod
    def tokens(self, event: TokensGenerated) -> bytes:
        """What these tokens add to the stream."""

    @abstractmethod
    def finished(self, event: ChoiceFinished) -> bytes:
        """The end of one choice. No dialect has a reason for a cancelled one: only its last text is shown."""

    @abstractmethod
    def end(self, usage: Usage | None) -> bytes:
        """The end of the stream."""

    def broken(self, fault: Fault) -> bytes | None:  # noqa: ARG002 - most dialects need nothing but the fault
        """The last event of a stream that breaks off, framed, in a dialect where it depends on what came before; None
        where the endpoint's `error_event` is enough."""
        return None


class FaultKind(StrEnum):
    """What sort of thing went wrong, as far as a client can do something about it."""

    INVALID_REQUEST = "invalid_request"  # it has to change the request
    AUTHENTICATION = "authentication"  # it has to show another key
    PERMISSION = "permission"  # it may not ask here
    NOT_FOUND = "not_found"  # what it asks for is not here
    TOO_LARGE = "too_large"  # the request is longer than what is read
    RATE_LIMIT = "rate_limit"  # it may come back later
    OVERLOADED = "overloaded"  # it may come back later, perhaps to somebody else
    SERVER = "server"  # nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What a client may read of an error. `code` is a fixed word for programs, `param` the field that is wrong, where
    there is one; `request_id` is the request's, where it has one."""

    kind: FaultKind
    message: str
    code: str | None = None
    param: str | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Both directions of one endpoint.

    `parse` raises RequestError; `writer` is for the answer to one request, and takes the request and the call it was
    made of. `error_body` is an error as a whole body, `error_event` as the last event of a stream, framed.
    `request_id_header` is what the dialect's clients look for a request's id under, where that is not `x-request-id`,
    which every response has.
    """

    dialect: Dialect
    parse: Callable[[bytes], Call]
    writer: Callable[[Request, Call], AnswerWriter]
    error_body: Callable[[Fault], bytes]
    error_event: Callable[[Fault], bytes]
    request_id_header: bytes | None = None
