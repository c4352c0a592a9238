"""What there is to see in an answer that passes through: the vocabulary between those who look and those who relay.

Owns: what is said of one event of a stream, of a whole body, and of all of an answer. Refuses to know: any dialect, and
what becomes of it. A tap is told everything in order and changes nothing: what it looks at is forwarded by others, byte
for byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Protocol

from taximeter.records import Phase, Terms, Usage


class Seen(IntFlag):
    """What one event of a stream is."""

    NOTHING = 0
    TOKENS = 1  # at least one generated token, on any channel
    ANSWER = 2  # and one that is not reasoning
    USAGE_ONLY = 4  # there for `include_usage` and nothing else: a client that did not ask for it need not see it
    END = 8  # the last one of a stream that ended as its dialect says
    ERROR = 16  # the provider says that it broke


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What an answer said about itself.

    `usage` has reasons for what is not known of it. `model` is who answered. `finish_reasons` are the provider's own
    words, one for each choice, in order. `error` is what the provider says went wrong: a type and a message, at most a
    line. `is_whole` is whether the answer ended as its dialect says. `spent_ns` are the engine's own times by phase.
    """

    usage: Usage
    model: str | None = None
    finish_reasons: tuple[str, ...] = ()
    terms: Terms | None = None
    error: str | None = None
    is_whole: bool = False
    spent_ns: Mapping[Phase, int] = field(default_factory=dict[Phase, int])


class Tap(Protocol):
    """Looks at one answer as it passes: either `event`, for each event of a stream, or `whole`, once. It never raises:
    what it cannot read is a reason in what it found."""

    def event(self, name: bytes, data: bytes) -> Seen:
        """One event of a stream: its `event:` field, empty where it has none, and its `data:`."""
        ...

    def whole(self, body: bytes) -> None:
        """The body of an answer that is not streamed, also of a refusal."""
        ...

    def found(self) -> Found:
        """What is known by now. A stream that broke off has the tokens that were seen, as *derived*."""
        ...
