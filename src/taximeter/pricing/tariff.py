"""A provider's published prices as a tariff.

Owns: the way from a usage and the terms it was served under to a bill. Refuses to know: how the answer came, and what
else is on its receipt. It brings a year of prices along, so only those import it who charge by them.
"""

from __future__ import annotations

from datetime import datetime

from taximeter.errors import PricingError
from taximeter.pricing.catalog import Catalog
from taximeter.pricing.charge import charge, surcharge
from taximeter.pricing.terms import geography_of, tier_of
from taximeter.records import Cost, PriceList, Request, Terms, Usage

_MOST_NAMES = 1_000


class PublishedTariff:
    """The published prices of one provider of the catalog, or those in the user's overlay."""

    def __init__(self, catalog: Catalog, provider: str) -> None:
        self._catalog = catalog
        self._provider = provider.strip().lower()
        self._names: dict[str, str | PricingError] = {}  # a name that is not known takes milliseconds to look for

    def cost(
        self,
        *,
        receipt_id: str,  # noqa: ARG002 - a published price is the same on every receipt
        request: Request,
        model_served: str | None,
        usage: Usage | None,
        terms: Terms | None,
        at: datetime,
    ) -> Cost:
        """See `Tariff.cost`. The model priced is the one that the answer names, where the catalog has it, else the one
        that was asked for: providers answer an alias with the version behind it."""
        if usage is None:
            raise PricingError("no usage is known")
        tier = tier_of(terms, asked=request.tier)
        geography = geography_of(terms, provider=self._provider, at=at)
        model = self._model(model_served, request.model)
        cost = charge(usage, self._own(model, usage, tier, at), self._others(usage, tier, at))
        if geography is None:
            return cost
        return surcharge(cost, unit=geography.unit, factor=geography.factor, basis=geography.basis)

    def plain_prices(
        self,
        *,
        model_served: str | None,
        asked: str,
        terms: Terms | None,
        tier: str | None,
        input_tokens: int,
        at: datetime,
    ) -> PriceList | None:
        """The list that all of a call's bill is by, where its usage is nothing but buckets; None where its terms add to
        that. `tier` is the one asked for. Raises PricingError as `cost` does."""
        if geography_of(terms, provider=self._provider, at=at) is not None:
            return None
        served = tier_of(terms, asked=tier)
        return self._catalog.price_list(self._model(model_served, asked), at=at, tier=served, input_tokens=input_tokens)

    def thresholds(self, *, model_served: str | None, asked: str) -> tuple[int, ...]:
        """The lengths of prompts at which prices of the model may change. Raises PricingError as `cost` does."""
        return self._catalog.thresholds(self._model(model_served, asked))

    def _model(self, served: str | None, asked: str) -> str:
        if served is not None:
            try:
                return self._resolved(served)
            except PricingError:
                if served == asked:
                    raise
        return self._resolved(asked)

    def _resolved(self, model: str) -> str:
        """The catalog's name for the provider's `model`. Raises PricingError where it has none."""
        known = self._names.get(model)
        if known is None:
            prefix = f"{self._provider}/"
            try:
                known = self._catalog.resolve(model if model.lower().startswith(prefix) else prefix + model)
            except PricingError as error:
                known = error
            if len(self._names) >= _MOST_NAMES:
                self._names.clear()
            self._names[model] = known
        if isinstance(known, PricingError):
            raise PricingError(known.message, hint=known.hint)
        return known

    def _own(self, model: str, usage: Usage, tier: str, at: datetime) -> PriceList:
        """The list of the model that served. Where it was asked several times within the request, each prompt's length
        picks its prices, and they have to be the same: the buckets are sums over all of them."""
        elsewhere = sum(tokens.get(leaf, 0) for tokens in usage.by_model.values() for leaf in Usage.INPUT_LEAVES)
        prompts = usage.prompts_tokens or (max(0, (usage.input_tokens or 0) - elsewhere),)
        lists = [self._catalog.price_list(model, at=at, tier=tier, input_tokens=tokens) for tokens in set(prompts)]
        if len({prices.rates for prices in lists}) > 1:
            raise PricingError(
                f"{model} was asked {len(prompts)} times: some of the prompts are so long that they cost more",
                hint="the counts of each are on the receipt, as the provider reported them",
            )
        return lists[0]

    def _others(self, usage: Usage, tier: str, at: datetime) -> dict[str, PriceList]:
        """The lists of other models that took part. How long each of their prompts was is not known, so that all
        lengths have to cost the same."""
        lists: dict[str, PriceList] = {}
        for model, tokens in usage.by_model.items():
            name = self._resolved(model)
            together = sum(tokens.get(leaf, 0) for leaf in Usage.INPUT_LEAVES)
            shortest, longest = (
                self._catalog.price_list(name, at=at, tier=tier, input_tokens=length) for length in (0, together)
            )
            if shortest.rates != longest.rates:
                raise PricingError(f"the prices of {name} depend on the lengths of its prompts, which are not known")
            lists[model] = shortest
        return lists
