"""What our receipts come to, in the buckets of a report.

Owns: which receipts a report is about, the bucket each falls in, and one name for each model. Refuses to know: what the
report says.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Final

from taximeter.errors import PricingError
from taximeter.pricing.catalog import Catalog
from taximeter.reconcile.reading import Statement
from taximeter.records import EXACT, Basis, Outcome, Receipt, exact_sum

SURELY: Final = (Basis.REPORTED, Basis.MEASURED)
_MOST_NAMES: Final = 1_000

Key = tuple[datetime, str]
"""The start of a bucket, and a model's name there."""


@dataclass(slots=True)
class Ours:
    """Our receipts of one model in one bucket. `extras` is the part of `cost` that is not for tokens, `tokens` are
    those that are known; `unpriced_tokens` are the part of them that is on receipts without a cost. Of `estimated`
    receipts the tokens are a lower bound, or the price is assumed."""

    receipts: int = 0
    cost: Decimal = Decimal(0)
    extras: Decimal = Decimal(0)
    estimated: int = 0
    unpriced: Counter[str] = field(default_factory=Counter[str])
    tokens: Counter[str] = field(default_factory=Counter[str])
    unpriced_tokens: Counter[str] = field(default_factory=Counter[str])
    tiers: Counter[str] = field(default_factory=Counter[str])

    def add(self, receipt: Receipt) -> None:
        """One more."""
        self.receipts += 1
        cost, usage = receipt.cost, receipt.usage
        known = {} if usage is None else {leaf: count for leaf, count in usage.leaves().items() if count}
        self.tokens.update(known)
        is_sure = usage is not None and usage.basis in SURELY and None not in usage.leaves().values()
        if cost is None:
            self.unpriced[receipt.uncosted_reason or "no reason"] += 1
            self.unpriced_tokens.update(known)
            self.estimated += not is_sure
            return
        self.cost = EXACT.add(self.cost, cost.total)
        extras = exact_sum(line.amount for line in cost.lines if not _is_for_tokens(line.unit))
        self.extras = EXACT.add(self.extras, extras)
        self.estimated += not is_sure or cost.basis in (Basis.ASSUMED, Basis.MODELLED)
        if cost.price_list is not None:
            self.tiers[cost.price_list.tier] += 1

    def give(self, other: Ours, tokens: Mapping[str, int], amount: Decimal | None) -> None:
        """Some of the tokens and of the cost are another model's, which helped; `amount` is None where nothing has a
        cost."""
        self.tokens.subtract(tokens)
        other.tokens.update(tokens)
        if amount is None:
            self.unpriced_tokens.subtract(tokens)
            other.unpriced_tokens.update(tokens)
            return
        self.cost = EXACT.subtract(self.cost, amount)
        other.cost = EXACT.add(other.cost, amount)

    def merge(self, other: Ours) -> None:
        """All of `other`'s too."""
        self.receipts += other.receipts
        self.estimated += other.estimated
        self.cost = EXACT.add(self.cost, other.cost)
        self.extras = EXACT.add(self.extras, other.extras)
        self.unpriced.update(other.unpriced)
        self.tokens.update(other.tokens)
        self.unpriced_tokens.update(other.unpriced_tokens)
        self.tiers.update(other.tiers)


def _is_for_tokens(unit: str) -> bool:
    return unit.endswith("_tokens") or unit.startswith("geography_")


class Names:
    """One name for each model of a provider: the catalog's, where it knows it; else the one that it came with."""

    def __init__(self, catalog: Catalog, provider: str) -> None:
        self._catalog = catalog
        self._provider = provider
        self._known: dict[str, str] = {}

    def of(self, model: str) -> str:
        """The name of `model`, with or without its provider."""
        known = self._known.get(model)
        if known is None:
            bare = model.strip().lower().removeprefix(f"{self._provider}/")
            try:
                known = self._catalog.resolve(f"{self._provider}/{bare}")
            except PricingError:
                known = bare
            if len(self._known) >= _MOST_NAMES:
                self._known.clear()
            self._known[model] = known
        return known


class Books:
    """Takes receipts in any order. `seller` says whose prices hold for one, None where nobody's do."""

    def __init__(self, statement: Statement, names: Names, seller: Callable[[Receipt], str | None]) -> None:
        self.statement = statement
        self.names = names
        self._buckets = statement.buckets
        self._starts = [bucket.start for bucket in statement.buckets]
        self._provider = statement.provider
        self._seller = seller
        self.found: dict[Key, Ours] = {}

    def add(self, receipt: Receipt) -> None:
        """One receipt, if the report is about it: by when its request was received, in half-open buckets."""
        if self._seller(receipt) != self._provider or (receipt.outcome is Outcome.REFUSED and receipt.cost is None):
            return
        at = receipt.request.received_at
        place = bisect_right(self._starts, at) - 1
        if place < 0 or at >= self._buckets[place].end:
            return
        model = receipt.model_served or receipt.request.model
        ours = self._ours(self._starts[place], model)
        ours.add(receipt)
        if receipt.usage is None:
            return
        for helper, tokens in receipt.usage.by_model.items():
            amount = None
            if receipt.cost is not None:
                amount = exact_sum(line.amount for line in receipt.cost.lines if line.model == helper)
            ours.give(self._ours(self._starts[place], helper), tokens, amount)

    def _ours(self, start: datetime, model: str) -> Ours:
        return self.found.setdefault((start, self.names.of(model)), Ours())
