"""What an import did, in numbers. Owns: sums over what was new, by model. Refuses to know: how they are shown."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import ClassVar

import numpy as np

from taximeter.importers.instants import text_of
from taximeter.ledger.calls import Calls, Counts, stored_instants, texts_of
from taximeter.pricing.charge import dollars
from taximeter.records import Receipt, Usage, exact_sum


@dataclass(slots=True, kw_only=True)
class ModelSums:
    """What was new of one model. `cost` is by our prices, over all calls but the `unpriced`; `reported` is what the log
    itself says, over `reported_calls` of them. `both_calls` have both, and sum to `both_cost` and `both_reported`."""

    model: str
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    uncounted: int = 0
    cost: Decimal = Decimal(0)
    unpriced: int = 0
    reported: Decimal = Decimal(0)
    reported_calls: int = 0
    both_calls: int = 0
    both_cost: Decimal = Decimal(0)
    both_reported: Decimal = Decimal(0)

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("difference",)

    @property
    def difference(self) -> Decimal | None:
        """The log's figure less ours, over the calls that have both; None where none has."""
        return self.both_reported - self.both_cost if self.both_calls else None

    def plus(self, other: ModelSums) -> ModelSums:
        """Both together, under this one's name."""
        names = [name for name in self.__slots__ if name != "model"]
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return ModelSums(model=self.model, **sums)


@dataclass(slots=True, kw_only=True)
class ImportSummary:
    """What an import did. `present` calls were in the ledger already, or twice in the logs; `through_gateway` ones are
    on receipts of our own gateway, which they went through; `corrected` ones were there with fewer tokens; `smaller`
    ones are there with more. `notes` counts what was left out or is odd, by reason."""

    files_read: int = 0
    files_resumed: int = 0
    files_unchanged: int = 0
    read_bytes: int = 0
    present: int = 0
    through_gateway: int = 0
    corrected: int = 0
    smaller: int = 0
    first_at: str | None = None
    last_at: str | None = None
    models: dict[str, ModelSums] = field(default_factory=dict[str, ModelSums])
    unpriced: Counter[str] = field(default_factory=Counter[str])
    notes: Counter[str] = field(default_factory=Counter[str])

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("total",)

    @property
    def total(self) -> ModelSums:
        """The sums over all models."""
        sums = ModelSums(model="total")
        for each in self.models.values():
            sums = sums.plus(each)
        return sums

    def add(self, entries: Iterable[Calls | Receipt]) -> None:
        """Count what is new."""
        together: defaultdict[str, list[Calls]] = defaultdict(list)
        for entry in entries:
            if isinstance(entry, Receipt):
                self._add_receipt(entry)
            else:
                together[entry.form.digest].append(entry)
        for several in together.values():
            self._add_calls(several)

    def _add_receipt(self, receipt: Receipt) -> None:
        usage, cost, reported = receipt.usage, receipt.cost, receipt.cost_reported
        one = ModelSums(
            model=receipt.model_served or receipt.request.model,
            calls=1,
            input_tokens=sum(getattr(usage, leaf) or 0 for leaf in Usage.INPUT_LEAVES) if usage else 0,
            output_tokens=sum(getattr(usage, leaf) or 0 for leaf in Usage.OUTPUT_LEAVES) if usage else 0,
            uncounted=int(usage is None or None in usage.leaves().values()),
        )
        if cost is None:
            one.unpriced = 1
            self.unpriced[receipt.uncosted_reason or "no reason"] += 1
        else:
            one.cost = cost.total
        if reported is not None:
            one.reported, one.reported_calls = reported, 1
            if cost is not None:
                one.both_calls, one.both_cost, one.both_reported = 1, cost.total, reported
        self._add(one)
        self._saw(text_of(receipt.request.received_at))

    def _add_calls(self, several: Sequence[Calls]) -> None:
        """Calls of forms with one document: what they cost together is what their tokens cost together, for each costs
        so much a token, to the picodollar."""
        form, count = several[0].form, sum(map(len, several))
        receipt = form.prototype
        sums = _sums([calls.tokens for calls in several])
        one = ModelSums(
            model=receipt.model_served or receipt.request.model,
            calls=count,
            input_tokens=sum(
                tokens for leaf, tokens in zip(form.leaves, sums, strict=True) if leaf in Usage.INPUT_LEAVES
            ),
            output_tokens=sum(
                tokens for leaf, tokens in zip(form.leaves, sums, strict=True) if leaf in Usage.OUTPUT_LEAVES
            ),
        )
        told = [_told(calls) for calls in several if calls.reported is not None]
        if told:
            one.reported = exact_sum(amount for amounts, _ in told for amount in amounts)
            one.reported_calls = sum(len(amounts) for amounts, _ in told)
        if form.rates is None:
            one.unpriced = count
            self.unpriced[receipt.uncosted_reason or "no reason"] += count
        else:
            one.cost = _cost(form.rates, sums)
            if told:
                one.both_calls, one.both_reported = one.reported_calls, one.reported
                one.both_cost = _cost(form.rates, _sums([tokens for _, tokens in told]))
        self._add(one)
        spans = np.array([(calls.received_at.min(), calls.received_at.max()) for calls in several])
        for at in texts_of(stored_instants(np.array([spans.min(), spans.max()]))):
            self._saw(at)

    def _add(self, one: ModelSums) -> None:
        known = self.models.get(one.model)
        self.models[one.model] = one if known is None else known.plus(one)

    def _saw(self, at: str) -> None:
        self.first_at = at if self.first_at is None else min(self.first_at, at)
        self.last_at = at if self.last_at is None else max(self.last_at, at)


def _sums(tokens: Iterable[Counts]) -> list[int]:
    """All of each leaf."""
    return [sum(each) for each in zip(*(counts.sum(axis=1).tolist() for counts in tokens), strict=True)]


def _told(calls: Calls) -> tuple[list[Decimal], Counts]:
    """What the log says that calls cost, and the tokens of those of which it does."""
    reported = calls.reported or ()
    places = [place for place, each in enumerate(reported) if each is not None]
    return [each for each in reported if each is not None], calls.tokens[:, places]


def _cost(rates: Sequence[int], tokens: Sequence[int]) -> Decimal:
    """What so many tokens cost, at so many picodollars each; where there is no price there are none."""
    return dollars(sum(rate * count for rate, count in zip(rates, tokens, strict=True) if count))
