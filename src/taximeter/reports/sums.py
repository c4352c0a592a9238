"""What a row of a report adds up to, and which buckets are shown together.

Owns: adding slices of the ledger, so that a report's total is the exact sum of its rows, and the names of groups of
buckets. Refuses to know: what the rows are by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar, cast

from taximeter.ledger import CostTotals, Percentiles, Slice, Spent
from taximeter.records import Basis, Outcome, Phase, Usage, exact_sum, weakest

MACHINE: Final = "machine"
OTHER: Final = "other"

TOKEN_GROUPS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "fresh": ("input_fresh_tokens", "input_image_tokens", "input_audio_tokens"),
        "cache read": ("input_cache_read_tokens", "input_audio_cache_read_tokens"),
        "cache write": tuple(leaf for leaf in Usage.INPUT_LEAVES if leaf.startswith("input_cache_write_")),
        "out": ("output_text_tokens", "output_image_tokens", "output_audio_tokens"),
        "reasoning": ("output_reasoning_tokens",),
    }
)
"""Buckets by what people call them together. Every bucket is in exactly one of these."""

MONEY_GROUPS: Final = (*TOKEN_GROUPS, MACHINE, OTHER)
"""What dollars are for: buckets of tokens, time of a machine of one's own, and everything else (searches, sessions)."""

_GROUP_OF: Final = {leaf: group for group, leaves in TOKEN_GROUPS.items() for leaf in leaves} | {"compute_ns": MACHINE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What some receipts cost, and how many of them have no known cost."""

    receipts: int = 0
    unpriced: int = 0
    cost: Decimal = Decimal(0)

    @classmethod
    def of(cls, part: CostTotals | Spent) -> Self:
        """The cost of one slice."""
        return cls(receipts=part.receipts, unpriced=part.unpriced, cost=part.cost)

    @classmethod
    def added(cls, costs: Iterable[Self]) -> Self:
        """The exact sum."""
        parts = list(costs)
        return cls(
            receipts=sum(part.receipts for part in parts),
            unpriced=sum(part.unpriced for part in parts),
            cost=exact_sum(part.cost for part in parts),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """What some receipts add up to; see `taximeter.ledger.Slice` for each figure. Times are None without receipts."""

    receipts: int = 0
    outcomes: Mapping[Outcome, int] = field(default_factory=dict[Outcome, int])
    tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    unknown: Mapping[str, int] = field(default_factory=dict[str, int])
    cost: Decimal = Decimal(0)
    unpriced: int = 0
    money: Mapping[str, Decimal] = field(default_factory=dict[str, Decimal])
    failed_cost: Decimal = Decimal(0)
    failed_unpriced: int = 0
    phases_ns: Mapping[Phase, int] = field(default_factory=dict[Phase, int])
    timed: int = 0
    compute_ns: int = 0
    first_token: Percentiles = field(default_factory=Percentiles)
    inter_token: Percentiles = field(default_factory=Percentiles)
    total: Percentiles = field(default_factory=Percentiles)
    first_at: datetime | None = None
    last_at: datetime | None = None
    usage_basis: Basis | None = None
    cost_basis: Basis | None = None
    time_basis: Basis | None = None
    cost_reported: Decimal = Decimal(0)
    reported: int = 0
    off_scale: int = 0

    @classmethod
    def of(cls, part: Slice) -> Self:
        """The sums of one slice."""
        return cls(**dict(zip(cls.__slots__, _figures(part), strict=True)))

    @property
    def failures(self) -> int:
        """Receipts that did not complete, for whatever reason."""
        return self.receipts - self.outcomes.get(Outcome.COMPLETED, 0)

    @property
    def inter_token_basis(self) -> Basis | None:
        """Of the time between tokens: nobody saw it, it is what follows from two times and a count."""
        return None if self.time_basis is None or not self.inter_token.of else weakest([self.time_basis, Basis.DERIVED])

    @property
    def total_tokens(self) -> int:
        """All known tokens."""
        return sum(self.tokens.values())

    @property
    def uncounted(self) -> int:
        """At least so many receipts do not know a bucket of theirs."""
        return max(self.unknown.values(), default=0)

    def tokens_of(self, group: str) -> tuple[int, int]:
        """The known tokens of one of `TOKEN_GROUPS`, and how many receipts do not know one of its buckets, at least."""
        leaves = TOKEN_GROUPS[group]
        return sum(self.tokens.get(leaf, 0) for leaf in leaves), max(self.unknown.get(leaf, 0) for leaf in leaves)

    def money_by_group(self) -> dict[str, Decimal]:
        """The known cost by `MONEY_GROUPS`; those sum to it."""
        amounts: dict[str, list[Decimal]] = {group: [] for group in MONEY_GROUPS}
        for unit, amount in self.money.items():
            amounts[_GROUP_OF.get(unit, OTHER)].append(amount)
        return {group: exact_sum(parts) for group, parts in amounts.items()}


_figures: Final = cast("Callable[[Slice], tuple[Any, ...]]", attrgetter(*Sums.__slots__))


def added(sums: Iterable[Sums]) -> Sums:
    """The exact sum. Percentiles cannot be added, and are unknown."""
    parts = list(sums)
    outcomes, phases_ns = dict[Outcome, int](), dict[Phase, int]()
    tokens, unknown = dict[str, int](), dict[str, int]()
    money: dict[str, list[Decimal]] = {}
    for part in parts:
        _count(outcomes, part.outcomes)
        _count(phases_ns, part.phases_ns)
        _count(tokens, part.tokens)
        _count(unknown, part.unknown)
        for unit, amount in part.money.items():
            money.setdefault(unit, []).append(amount)
    usage_bases = [part.usage_basis for part in parts if part.usage_basis is not None]
    cost_bases = [part.cost_basis for part in parts if part.cost_basis is not None]
    time_bases = [part.time_basis for part in parts if part.time_basis is not None]
    return Sums(
        receipts=sum(part.receipts for part in parts),
        outcomes=outcomes,
        tokens=tokens,
        unknown={leaf: count for leaf, count in unknown.items() if count},
        cost=exact_sum(part.cost for part in parts),
        unpriced=sum(part.unpriced for part in parts),
        money={unit: exact_sum(amounts) for unit, amounts in money.items()},
        failed_cost=exact_sum(part.failed_cost for part in parts),
        failed_unpriced=sum(part.failed_unpriced for part in parts),
        phases_ns=phases_ns,
        timed=sum(part.timed for part in parts),
        compute_ns=sum(part.compute_ns for part in parts),
        first_at=min((part.first_at for part in parts if part.first_at is not None), default=None),
        last_at=max((part.last_at for part in parts if part.last_at is not None), default=None),
        usage_basis=weakest(usage_bases) if usage_bases else None,
        cost_basis=weakest(cost_bases) if cost_bases else None,
        time_basis=weakest(time_bases) if time_bases else None,
        cost_reported=exact_sum(part.cost_reported for part in parts),
        reported=sum(part.reported for part in parts),
        off_scale=sum(part.off_scale for part in parts),
    )


_Name = TypeVar("_Name", bound=str)


def _count(counts: dict[_Name, int], more: Mapping[_Name, int]) -> None:
    """Count these too; there are a few in each of ten thousands."""
    for name, number in more.items():
        counts[name] = counts.get(name, 0) + number
