"""Finds the price of a model at an instant.

Owns: the order of the sources (the user's overlay, what is known to be wrong in the published data, the data, what they
lack), the names models go by, and the refusal to guess. Refuses to know: what was used, and what time it is.
"""

from __future__ import annotations

import difflib
import re
from bisect import bisect_left
from dataclasses import dataclass, replace
from datetime import date, datetime
from importlib.resources import files
from pathlib import Path

from taximeter.errors import ConfigError, PricingError
from taximeter.pricing import published
from taximeter.pricing.overlay import Overlay, OverlayPrice, tier_name
from taximeter.pricing.periods import Period
from taximeter.pricing.published import Listing
from taximeter.records import EXACT, Basis, PriceList, weakest

_BUILTIN = "builtin_prices.toml"
_CORRECTED = "corrected_prices.toml"
_MOST_KNOWN = 1_000
_BEDROCKS = re.compile(r"(?:bedrock/)?(?:[a-z-]+\.)?[a-z0-9]+\.[a-z]")  # us.anthropic.claude-opus-5
_MOVING = "-latest"
_RESELLERS = frozenset({"azure", "openrouter"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A model by every name it has here, the one that was asked for first; `listing` is its place in the data,
    `thresholds` are the lengths of prompts at which prices may change, ascending."""

    names: tuple[str, ...]
    listing: Listing | None
    thresholds: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.names[-1]


class Catalog:
    """Dated prices from several sources, of which the first that has one wins."""

    def __init__(self, overlay: Overlay, builtin: Overlay, corrected: Overlay) -> None:
        self._overlay = overlay
        self._builtin = builtin
        self._corrected = corrected
        # To find a name again takes as long as to charge a request, and to find its prices again longer.
        self._known: dict[str, _Found] = {}
        self._quoted: dict[tuple[str, str, int], PriceList] = {}  # by model, tier, and number of thresholds exceeded

    @classmethod
    def load(cls, overlay: Path | None = None, problems: list[ConfigError] | None = None) -> Catalog:
        """The catalog, beneath the user's overlay file if there is one.

        A path with no file counts as an empty one, for the usual place may stay empty; whoever takes a path from a
        user checks that it exists. Raises ConfigError when the file cannot be read or is not understood: prices that
        somebody meant to apply are never left out quietly. With `problems` they are left out, and what is wrong with
        single ones is added there.
        """
        return cls(
            Overlay([]) if overlay is None or not overlay.exists() else Overlay.load(overlay, problems),
            _shipped(_BUILTIN),
            _shipped(_CORRECTED),
        )

    def overlaid(self) -> list[str]:
        """The models that the user's overlay has entries for, `provider/model` or `provider/*`."""
        return self._overlay.written()

    def checked(self) -> list[tuple[str, date | None]]:
        """The same, each with the last day on which somebody noted that they had checked one of its entries."""
        return self._overlay.checked()

    def resolve(self, model: str) -> str:
        """The full name, `provider/model`, of the model that `model` names.

        Raises PricingError when there is no such model, or when a name without a provider could be several.
        """
        return self._find(model).name

    def models(self) -> list[str]:
        """Every `provider/model` that some source has an entry for, once, in alphabetical order."""
        written = (name for name in self._written() if not name.endswith("/*"))
        return sorted({*written, *published.names()})

    def thresholds(self, model: str) -> tuple[int, ...]:
        """The lengths of prompts beyond which the model may cost more, at some time and in some tier, ascending.
        Raises PricingError as `resolve` does."""
        return self._find(model).thresholds

    def tiers(self, model: str, at: datetime) -> list[str]:
        """The tiers that have a price at `at`, the standard one first. Raises PricingError as `resolve` does."""
        priced = self._priced(self._find(model), at)
        return sorted(priced, key=lambda tier: tier != "standard")

    def price_list(self, model: str, *, at: datetime, tier: str = "standard", input_tokens: int) -> PriceList:
        """The rates of `model` for a request made at `at`, with a prompt of `input_tokens` in all, cached or not.

        `model` is `provider/model`, or a model's name alone where only one provider can be meant. `tier` is the
        service tier that the response named, in the provider's words (`default`, `batch`, `flex`, `priority`) or ours.

        Raises PricingError for an unknown model, or a tier or date that no source prices: standard prices never stand
        in for another tier's. Raises ValueError for a time without a time zone.
        """
        if at.tzinfo is None:
            raise ValueError("a price needs an instant: `at` has no time zone")
        if input_tokens < 0:
            raise ValueError(f"a prompt of {input_tokens} tokens cannot be")
        found = self._find(model)
        tier = tier_name(tier)
        quote = (model, tier, bisect_left(found.thresholds, input_tokens))
        prices = self._quoted.get(quote)
        if prices is not None and Period(start=prices.valid_from, end=prices.valid_until).holds(at):
            return prices
        prices = self._quote(found, at, tier, input_tokens, overlaid=True)
        if prices is None:
            raise self._no_price(found, at, tier)
        if len(self._quoted) >= _MOST_KNOWN:
            self._quoted.clear()
        self._quoted[quote] = prices
        return prices

    def _quote(self, found: _Found, at: datetime, tier: str, input_tokens: int, *, overlaid: bool) -> PriceList | None:
        period = Period()
        if overlaid:
            entry, period = self._overlay.select(found.names, tier, at)
            if entry is not None:
                return self._apply(entry, period, found, at, tier, input_tokens)
        entry, uncorrected = self._corrected.select(found.names, tier, at)
        period = period.within(uncorrected)
        if entry is not None:
            return self._apply(entry, period, found, at, tier, input_tokens)
        if found.listing is not None:
            prices = published.price_list(found.listing, at=at, tier=tier, input_tokens=input_tokens)
            if prices is not None:
                return _limited(_of_whom_the_name_is_now(found, prices), period)
            period = period.within(published.unpriced(found.listing, at=at, tier=tier))
        entry, builtin_period = self._builtin.select(found.names, tier, at)
        period = period.within(builtin_period)
        if entry is not None:
            return self._apply(entry, period, found, at, tier, input_tokens)
        if found.listing is None or self._corrected.select(found.names, "standard", at)[0] is not None:
            return None
        prices = published.backdated(found.listing, at=at, tier=tier, input_tokens=input_tokens)
        return None if prices is None else _limited(prices, period)

    def _apply(
        self, entry: OverlayPrice, period: Period, found: _Found, at: datetime, tier: str, input_tokens: int
    ) -> PriceList | None:
        if entry.times_standard is None:
            return PriceList(
                model=found.name,
                rates=entry.rates(input_tokens),
                source=entry.source,
                tier=tier,
                valid_from=period.start,
                valid_until=period.end,
                checked_on=entry.checked_on,
                basis=entry.basis,
            )
        # A factor on the standard tier itself is a factor on what the sources beneath say.
        standard = self._quote(found, at, "standard", input_tokens, overlaid=tier != "standard")
        if standard is None:
            return None
        rates = tuple(
            replace(rate, amount=EXACT.multiply(rate.amount, entry.times_standard))
            if rate.unit.endswith("_tokens")
            else rate
            for rate in standard.rates
        )
        factored = replace(
            standard,
            rates=rates,
            tier=tier,
            source=f"{entry.source}: {entry.times_standard} x {standard.source}",
            checked_on=entry.checked_on,
            basis=weakest((entry.basis, standard.basis)),
        )
        return _limited(factored, period)

    def knows(self, model: str) -> bool:
        """Whether `resolve` finds it. It takes a hundredth of being told what else may have been meant."""
        try:
            return self._known_as(model) is not None
        except PricingError:
            return False

    def _find(self, model: str) -> _Found:
        found = self._known_as(model)
        if found is None:
            raise self._unknown(model)
        return found

    def _known_as(self, model: str) -> _Found | None:
        """None for one that nobody knows. Raises PricingError for one that could be several."""
        found = self._known.get(model)
        if found is None:
            found = self._look_for(model)
            if found is None:
                return None
            if len(self._known) >= _MOST_KNOWN:  # aliases match patterns, so there is no end of them
                self._known.clear()
            self._known[model] = found
        return found

    def _look_for(self, model: str) -> _Found | None:
        asked = model.strip().lower()
        provider, _, name = asked.partition("/")
        if not (name and (published.provider_known(provider) or asked in self._written())):
            owner = self._owner(model, asked)
            if owner is None:
                return None
            provider, name = owner, asked
        full_name = f"{provider}/{name}"
        listing = published.listing(provider, name)
        if listing is None and full_name not in self._written():
            return None
        # An alias may have an entry of its own in the overlay, so it stays among the names.
        names = _distinct(full_name, *([] if listing is None else [listing.name]))
        thresholds = set[int]() if listing is None else published.thresholds(listing)
        for written in (self._overlay, self._corrected, self._builtin):
            thresholds |= written.thresholds(names)
        return _Found(names=names, listing=listing, thresholds=tuple(sorted(thresholds)))

    def _owner(self, model: str, asked: str) -> str | None:
        """The provider of a model that was named without one; None where nobody has it."""
        written = [name for name in self._written() if name.partition("/")[2] == asked]
        names = [*written, *(listing.name for listing in published.listings_by_name(asked))]
        owners = list(dict.fromkeys(name.partition("/")[0] for name in names))
        if not owners:
            return None
        if len(owners) > 1 and not any(name in self._overlay.models() for name in written):
            owners = _narrowed(owners, asked)
        if len(owners) > 1:
            raise PricingError(
                f"{model!r} could be the model of {len(owners)} providers",
                hint="say whose: " + ", ".join(f"{owner}/{asked}" for owner in owners[:5]),
            )
        return owners[0]

    def _written(self) -> list[str]:
        """Every model with an entry in a file."""
        return self._overlay.models() + self._corrected.models() + self._builtin.models()

    def _unknown(self, model: str) -> PricingError:
        asked = model.strip().lower()
        known = [*self._written(), *published.names()]
        close = difflib.get_close_matches(asked, known, n=3)
        if not close:
            by_model = {name.partition("/")[2]: name for name in reversed(known)}
            close = [by_model[name] for name in difflib.get_close_matches(asked.partition("/")[2] or asked, by_model)]
        hint = f"did you mean {', '.join(close)}?" if close else "give its prices in an overlay file"
        return PricingError(f"no prices for a model called {model!r}", hint=hint)

    def _no_price(self, found: _Found, at: datetime, tier: str) -> PricingError:
        priced = self._priced(found, at)
        known = f"priced then: {', '.join(priced)}; " if priced else ""
        return PricingError(
            f"{found.name} has no known price for the tier {tier!r} on {at:%Y-%m-%d}",
            hint=f"{known}give what you paid in your overlay file",
        )

    def _priced(self, found: _Found, at: datetime) -> list[str]:
        """The tiers that some source prices then. A factor on a price that is not there prices nothing."""
        sources = (
            self._overlay.tiers(found.names, at),
            [] if found.listing is None else published.tiers(found.listing, at),
            self._builtin.tiers(found.names, at),
            [] if found.listing is None else published.backdated_tiers(found.listing, at),
        )
        tiers = dict.fromkeys(tier for tiers in sources for tier in tiers)
        return [tier for tier in tiers if self._quote(found, at, tier, 0, overlaid=True) is not None]


def _shipped(name: str) -> Overlay:
    """The entries of a file of this package."""
    return Overlay.parse(files("taximeter.pricing").joinpath(name).read_text(encoding="utf-8"), name=name)


def _narrowed(owners: list[str], asked: str) -> list[str]:
    """Of the providers that sell a model of this name, those who can be meant: only Bedrock calls a model by its
    maker's name and a full stop, and who resells everybody's models is meant only by name."""
    if _BEDROCKS.match(asked) and "aws" in owners:
        return ["aws"]
    makers = [owner for owner in owners if owner not in _RESELLERS]
    return makers if len(makers) == 1 else owners


def _of_whom_the_name_is_now(found: _Found, prices: PriceList) -> PriceList:
    """Prices that were found by a name such as `gemini-flash-latest`: the data know whose it is today, and not since
    when."""
    asked = found.names[0]
    if not asked.endswith(_MOVING) or found.name.endswith(_MOVING):
        return prices
    source = f"{prices.source}, as of the model that {asked.partition('/')[2]} is now"
    return replace(prices, source=source, basis=weakest((prices.basis, Basis.ASSUMED)))


def _distinct(*names: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _limited(prices: PriceList, period: Period) -> PriceList:
    both = Period(start=prices.valid_from, end=prices.valid_until).within(period)
    return replace(prices, valid_from=both.start, valid_until=both.end)
