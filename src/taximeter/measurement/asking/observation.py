"""What a client saw of one request: the vocabulary of this room.

Owns: the stamps of a request and its answer, and the definitions of every latency that is derived from them. Refuses to
know: how they came about, and what many of them say together.

| name | definition |
|---|---|
| dispatch delay | sent - scheduled: the client was late, or waited for a free slot |
| time to first token (TTFT) | first event with a generated token, on any channel, - origin |
| end-to-end latency | last event with a generated token - origin |
| inter-token latency (ITL) | (end-to-end - TTFT) / (output tokens - 1), of one request; the server's count |
| chunk gap | time between two successive events with tokens; says nothing of tokens where events bring several |

The origin is the *scheduled* arrival, so that waiting caused by the server's slowness counts even where it happens in
the client (otherwise: coordinated omission). From sending is there beside it, and labelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from taximeter.records import Basis, Outcome, Phase, Usage, gap_ns


class Origin(StrEnum):
    """What latencies are counted from."""

    SCHEDULED = "scheduled"  # when the request was due
    SENT = "sent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One request as its client saw it. All stamps are nanoseconds since the run began, on one monotonic clock.

    `shape` names what it is a sample of (a point of a sweep, a class of a workload). `headers_ns` is when the answer's
    head came, `first_event_ns` its first event, whatever was in it. `arrivals_ns` are the events that brought generated
    tokens, in order; `arrival_tokens` says how many each brought, and is None where the server counts only at the end
    and events and tokens are not one for one. `usage` is what the server counted, and its counts win over the client's;
    `asked_*_tokens` are what was asked for, `counted_prompt_tokens` what the client believed it sent. `reported_ns`
    are the server's own times by phase.

    `attempts` over 1 are connections that had died; the stamps are then still those of the first. `client_lag_ns` is
    the longest that the client's event loop was late while this request was under way, where that was watched.
    """

    id: str
    shape: str
    scheduled_ns: int
    sent_ns: int
    headers_ns: int | None = None
    first_event_ns: int | None = None
    arrivals_ns: tuple[int, ...] = ()
    arrival_tokens: tuple[int, ...] | None = None
    ended_ns: int
    outcome: Outcome
    status: int | None = None
    error: str | None = None
    attempts: int = 1
    usage: Usage
    asked_prompt_tokens: int | None = None
    asked_output_tokens: int | None = None
    counted_prompt_tokens: int | None = None
    finish_reasons: tuple[str, ...] = ()
    reported_ns: Mapping[Phase, int] = field(default_factory=dict[Phase, int])
    receipt_id: str | None = None
    client_lag_ns: int | None = None

    def __post_init__(self) -> None:
        if self.arrival_tokens is not None and len(self.arrival_tokens) != len(self.arrivals_ns):
            raise ValueError("each arrival brought some number of tokens")
        if any(later < earlier for earlier, later in pairwise(self.arrivals_ns)):
            raise ValueError("arrivals are in order")

    @property
    def is_complete(self) -> bool:
        """Whether the answer came whole. Everything else is a miss, and is counted as one."""
        return self.outcome is Outcome.COMPLETED

    @property
    def dispatch_delay_ns(self) -> int:
        return self.sent_ns - self.scheduled_ns

    def origin_ns(self, origin: Origin) -> int:
        return self.scheduled_ns if origin is Origin.SCHEDULED else self.sent_ns

    def ttft_ns(self, origin: Origin = Origin.SCHEDULED) -> int | None:
        """See the table above. None where no token came."""
        return self.arrivals_ns[0] - self.origin_ns(origin) if self.arrivals_ns else None

    def end_to_end_ns(self, origin: Origin = Origin.SCHEDULED) -> int | None:
        """See the table above. None for an answer that did not come whole, or brought no token."""
        return self.arrivals_ns[-1] - self.origin_ns(origin) if self.arrivals_ns and self.is_complete else None

    @property
    def prompt_tokens(self) -> int | None:
        """As the server counts."""
        return self.usage.input_tokens

    @property
    def cached_tokens(self) -> int | None:
        """How many of the prompt's the server says it had from a cache."""
        return self.usage.input_cache_read_tokens

    @property
    def output_tokens(self) -> int | None:
        """As the server counts. None where it does not, or where the answer broke off before it did: events are no
        count, and neither is what was asked for."""
        is_counted = self.is_complete and self.usage.basis is not Basis.DERIVED
        return self.usage.output_tokens if is_counted else None

    @property
    def itl_ns(self) -> int | None:
        """See the table above, to the nearest nanosecond. None with fewer than two tokens, or an unknown number."""
        return gap_ns(self.end_to_end_ns(Origin.SENT), self.ttft_ns(Origin.SENT), self.output_tokens)

    @property
    def chunk_gaps_ns(self) -> tuple[int, ...]:
        """The times between successive events with tokens."""
        return tuple(later - earlier for earlier, later in pairwise(self.arrivals_ns))

    @property
    def prompt_is_exact(self) -> bool | None:
        """Whether the server read just as many tokens as were asked for; None where either is not known."""
        if self.asked_prompt_tokens is None or self.prompt_tokens is None:
            return None
        return self.asked_prompt_tokens == self.prompt_tokens
