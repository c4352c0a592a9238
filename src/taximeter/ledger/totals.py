"""Answers that are sums: of an hour's receipts, and of a group's.

Owns: the two records. Refuses to know: how they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from taximeter.records import Basis, Outcome, Phase


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Durations by nearest rank: the smallest that at least so many per cent do not exceed, None where none is known.

    `of` is how many are known, `n` how many were looked at: all of them (`exact`), or of very many an even part.
    """

    n: int = 0
    p50_ns: int | None = None
    p90_ns: int | None = None
    p95_ns: int | None = None
    p99_ns: int | None = None
    of: int = 0

    @property
    def exact(self) -> bool:
        """Whether all that are known were looked at."""
        return self.n == self.of


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What the receipts of one interval and one name add up to. `interval` is its place in what was asked for, `name`
    None for receipts without one.

    Tokens, `unknown`, `cost`, `unpriced`, times and `off_scale` are as in `UsageTotals`, but for buckets and phases of
    which there is nothing: these are left out. `money` is the known cost by
    what it was charged for (a bucket of tokens, `compute_ns`, another unit) and sums to it; `failed_cost` is the part
    of receipts that did not complete. `first_token`, `inter_token` and `total` are of the receipts that know them. The
    bases are the weakest of any receipt, None where there is no such figure. `cost_reported` is what the logs that
    receipts were read from said themselves, over `reported` of them.
    """

    interval: int
    name: str | None
    receipts: int
    outcomes: Mapping[Outcome, int]
    tokens: Mapping[str, int]
    unknown: Mapping[str, int]
    cost: Decimal
    unpriced: int
    money: Mapping[str, Decimal]
    failed_cost: Decimal
    failed_unpriced: int
    phases_ns: Mapping[Phase, int]
    timed: int
    compute_ns: int
    first_token: Percentiles
    inter_token: Percentiles
    total: Percentiles
    first_at: datetime
    last_at: datetime
    usage_basis: Basis | None
    cost_basis: Basis | None
    time_basis: Basis | None
    cost_reported: Decimal
    reported: int
    off_scale: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What some receipts cost: how many they are, how many of them have no known cost, and the sum of the others."""

    receipts: int
    unpriced: int
    cost: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Dearest:
    """What costs most, name by name, and all `names` others as one; `whole` is everything, and the exact sum of them.
    What costs most comes first, receipts without a name last; only `whole` has percentiles.

    `before` is what those names cost in the time before, `others_before` what the others did, and `whole_before` what
    everything did then; where there was nothing, there is none.
    """

    slices: tuple[Slice, ...]
    others: Slice | None
    names: int
    whole: Slice | None
    before: Mapping[str | None, Spent]
    others_before: Spent | None
    whole_before: Spent | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTotals:
    """What the receipts of one interval and name cost, as in `Slice`, and when the last of them was closed."""

    interval: int
    name: str | None
    receipts: int
    unpriced: int
    cost: Decimal
    last_at: datetime
