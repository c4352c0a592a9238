"""Answers that are sums: of an hour's receipts, and of a group's.

Owns: the two records. Refuses to know: how they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from taximeter.records import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageTotals:
    """What receipts of one hour, model, backend and outcome add up to. `hour` is when it began, in UTC; None where the
    sum is not of an hour's.

    `tokens` are the sums of what is known of each bucket, `unknown` how many receipts do not know it. `cost` is the sum
    of known costs, `unpriced` how many receipts have none. `total_ns` is the sum over `timed` receipts,
    `first_token_ns` over `first_tokens`. `off_scale` counts numbers too large for a sum; they are in the receipts.
    """

    hour: datetime | None
    model: str
    served_by: str | None
    outcome: Outcome
    receipts: int
    tokens: Mapping[str, int]
    unknown: Mapping[str, int]
    cost: Decimal
    unpriced: int
    total_ns: int
    timed: int
    first_token_ns: int
    first_tokens: int
    compute_ns: int
    off_scale: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTotals:
    """What the receipts of one task, run, session or label add up to.

    `failures` are all that did not complete. Tokens are sums of what is known; `uncounted` receipts do not know a
    bucket of theirs. `cost` is the sum of known costs, `unpriced` how many receipts have none. `first_at` is when the
    first request was received, `last_at` when the last receipt was closed.
    """

    kind: str
    name: str
    receipts: int
    failures: int
    input_tokens: int
    output_tokens: int
    uncounted: int
    cost: Decimal
    unpriced: int
    off_scale: int
    first_at: datetime
    last_at: datetime
