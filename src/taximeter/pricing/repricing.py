"""What receipts would cost by another list, beside what they cost by their own.

Owns: which receipts are priced by the token, by whose prices, and the sums of both. Refuses to know: where receipts are
kept. A receipt is never changed: what differs becomes a correction that names it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum

from taximeter.errors import PricingError
from taximeter.pricing.catalog import Catalog
from taximeter.pricing.published import provider_known
from taximeter.pricing.tariff import PublishedTariff
from taximeter.records import EXACT, Cost, Receipt


class Change(StrEnum):
    """What another list does to a receipt."""

    SAME = "same"  # to the digit, line by line; where the list was found does not matter
    CHANGED = "changed"
    PRICED = "priced"  # its cost was not known before
    LEFT = "left"  # the list has no price for it, so it stays as it is
    ELSEWHERE = "elsewhere"  # not priced by the token, or nobody can say by whose prices


@dataclass(frozen=True, slots=True, kw_only=True)
class Repriced:
    """A receipt, and what the other list says of it: `cost` where that is known, `reason` where not."""

    receipt: Receipt
    change: Change
    cost: Cost | None = None
    reason: str | None = None

    def correction(self, receipt_id: str) -> Receipt | None:
        """The receipt that takes its place, under `receipt_id`; None where nothing changes. It is of the same moment:
        what was asked and answered then cost another amount."""
        if self.change not in (Change.CHANGED, Change.PRICED):
            return None
        return replace(self.receipt, id=receipt_id, cost=self.cost, uncosted_reason=None, supersedes=self.receipt.id)


class Repricer:
    """Prices receipts by `catalog`. `sellers` says whose prices hold for each upstream; a receipt that has a price list
    keeps to its provider."""

    def __init__(self, catalog: Catalog, sellers: Mapping[str, str]) -> None:
        self._catalog = catalog
        self._sellers = sellers
        self._tariffs: dict[str, PublishedTariff] = {}

    def look(self, receipt: Receipt) -> Repriced:
        """What becomes of one receipt."""
        seller = seller_of(receipt, self._sellers)
        if seller is None or receipt.usage is None:
            return Repriced(receipt=receipt, change=Change.ELSEWHERE)
        tariff = self._tariffs.get(seller)
        if tariff is None:
            tariff = self._tariffs[seller] = PublishedTariff(self._catalog, seller)
        try:
            cost = tariff.cost(
                receipt_id=receipt.id,
                request=receipt.request,
                model_served=receipt.model_served,
                usage=receipt.usage,
                terms=receipt.terms,
                at=receipt.request.received_at,
            )
        except PricingError as error:
            return Repriced(receipt=receipt, change=Change.LEFT, reason=error.message)
        if receipt.cost is None:
            return Repriced(receipt=receipt, change=Change.PRICED, cost=cost)
        change = Change.SAME if _says_the_same(receipt.cost, cost) else Change.CHANGED
        return Repriced(receipt=receipt, change=change, cost=cost)


def seller_of(receipt: Receipt, sellers: Mapping[str, str]) -> str | None:
    """Whose published prices hold for a receipt: those that it has; else those that `sellers` names for who served it,
    or that one's own, as receipts from elsewhere have it. None where it is not paid by the token."""
    if receipt.cost is not None:
        prices = receipt.cost.price_list
        return None if prices is None else prices.model.partition("/")[0]
    served_by = receipt.served_by
    if served_by is None:
        return None
    if served_by in sellers:
        return sellers[served_by]
    # An imported one names a provider there, also one that only a list of one's own may know.
    return served_by if receipt.source is not None or provider_known(served_by) else None


def _says_the_same(one: Cost, other: Cost) -> bool:
    return one.lines == other.lines


@dataclass(slots=True)
class Sums:
    """Two exact sums over the same receipts: by their own lists, and by the other one, each with how many have no
    cost there."""

    receipts: int = 0
    corrected: int = 0
    before: Decimal = Decimal(0)
    after: Decimal = Decimal(0)
    unpriced_before: int = 0
    unpriced_after: int = 0

    @property
    def difference(self) -> Decimal:
        """After less before, of what is known."""
        return EXACT.subtract(self.after, self.before)

    def add(self, before: Cost | None, after: Cost | None, *, corrected: bool) -> None:
        """One more receipt."""
        self.receipts += 1
        self.corrected += corrected
        if before is None:
            self.unpriced_before += 1
        else:
            self.before = EXACT.add(self.before, before.total)
        if after is None:
            self.unpriced_after += 1
        else:
            self.after = EXACT.add(self.after, after.total)


@dataclass(slots=True)
class Repricing:
    """The sums of all that were looked at: in all, by model, and by the reason why some stay as they are."""

    total: Sums = field(default_factory=Sums)
    models: dict[str, Sums] = field(default_factory=dict[str, Sums])
    changes: Counter[Change] = field(default_factory=Counter[Change])
    left: Counter[str] = field(default_factory=Counter[str])

    def add(self, found: Repriced) -> None:
        """One more receipt. Those that are not priced by the token are counted, and in no sum."""
        self.changes[found.change] += 1
        if found.change is Change.ELSEWHERE:
            return
        receipt = found.receipt
        if found.reason is not None:
            self.left[found.reason] += 1
        after = receipt.cost if found.change is Change.LEFT else found.cost
        corrected = found.change in (Change.CHANGED, Change.PRICED)
        model = receipt.model_served or receipt.request.model
        for sums in (self.total, self.models.setdefault(model, Sums())):
            sums.add(receipt.cost, after, corrected=corrected)
