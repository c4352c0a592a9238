"""The receipt: one request with its time, tokens, work and money."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import ClassVar

from taximeter.records.basis import Basis
from taximeter.records.money import Cost
from taximeter.records.request import Request
from taximeter.records.timing import Timing
from taximeter.records.usage import Terms, Usage, Work


class Outcome(StrEnum):
    """How a request ended."""

    COMPLETED = "completed"
    REFUSED = "refused"  # not taken up: a wrong request, an unknown model, a full queue
    FAILED = "failed"  # taken up and broken by us or by a provider
    ABORTED = "aborted"  # the client went away or cancelled
    INTERRUPTED = "interrupted"  # the process died; written by the next one


def inter_token_ns(timing: Timing, output_tokens: int | None) -> int | None:
    """Inter-token latency: (total - time to first token) ÷ (output tokens - 1), to the nearest nanosecond.

    None with fewer than two output tokens or without a first one: unknown, not zero. As the field defines it.
    """
    return gap_ns(timing.total_ns, timing.first_token_ns, output_tokens)


def gap_ns(total_ns: int | None, first_token_ns: int | None, output_tokens: int | None) -> int | None:
    """The same, from its numbers."""
    if total_ns is None or first_token_ns is None or output_tokens is None or output_tokens < 2:
        return None
    return round((total_ns - first_token_ns) / (output_tokens - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try at an upstream. `started_ns` counts from when the request was received; `status` is what came back, None
    where nothing did; `error` says what was wrong, None for the try that was answered."""

    upstream: str
    started_ns: int
    duration_ns: int
    status: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Everything known about one finished request.

    `timing`, `usage`, `work` and `cost` are None when they are not known; `unmeasured_reason` says why for the first
    three, `uncosted_reason` for the last. `cost_priced_as` prices the same usage from another price list, to
    compare. `served_by` names the backend that answered. `finish_reasons` has one entry per choice. `supersedes` is
    the receipt that this one corrects. `error` is a short class and message, free of secrets and of prompts.

    `attempts` counts tries, of which `tries` has those at upstreams, in their order. `terms` is what the answer says it
    was served under, `upstream_request_id` what the provider calls the request: support asks for it.

    `source` is whose log an imported receipt comes from, None for what we saw ourselves. `cost_reported` is what that
    log says the request cost, in dollars: it stands beside `cost`, which is ours, and is in no sum with it.
    """

    id: str
    request: Request
    closed_at: datetime
    outcome: Outcome
    timing: Timing | None
    usage: Usage | None
    work: Work | None = None
    cost: Cost | None = None
    cost_priced_as: Cost | None = None
    uncosted_reason: str | None = None
    unmeasured_reason: str | None = None
    served_by: str | None = None
    model_served: str | None = None
    finish_reasons: tuple[str, ...] = ()
    error: str | None = None
    attempts: int = 1
    tries: tuple[Attempt, ...] = ()
    terms: Terms | None = None
    upstream_request_id: str | None = None
    supersedes: str | None = None
    source: str | None = None
    cost_reported: Decimal | None = None

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("inter_token_ns",)

    def __post_init__(self) -> None:
        if self.cost is None and self.uncosted_reason is None:
            raise ValueError("a receipt without a cost must say why")
        if (self.timing is None or self.usage is None) and self.unmeasured_reason is None:
            raise ValueError("a receipt without timing or usage must say why")

    @property
    def inter_token_ns(self) -> int | None:
        """See `inter_token_ns` of this module. None where the answer's tokens are known as a lower bound only, as after
        a broken stream: time per chunk is not time per token."""
        if self.timing is None or self.usage is None or self.usage.basis is Basis.DERIVED:
            return None
        return inter_token_ns(self.timing, self.usage.output_tokens)
