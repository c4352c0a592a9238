"""What the terms of service do to a price: the tier that was served, and where.

Owns: the words that mean the standard tier, and the dated factors for geographies. Refuses to know: prices themselves,
and requests that were not answered. A word that is not known here never means the standard price.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal

from taximeter.errors import PricingError
from taximeter.pricing.overlay import tier_name
from taximeter.pricing.periods import midnight
from taximeter.records import Basis, Terms

_STANDARD_TIERS = frozenset({"standard", "auto", "standard_only"})
_STANDARD_SPEEDS = frozenset({"standard"})
_EVERYWHERE = frozenset({"global", "not_available"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Geography:
    """What tokens cost where a request was confined to one place: `factor` times as much, from `since` on."""

    provider: str
    word: str
    factor: Decimal
    since: date
    source: str
    checked_on: date
    basis: Basis

    @property
    def unit(self) -> str:
        """What the line on the bill is called."""
        return f"geography_{self.word}"


# The parameter came with Claude Opus 4.6; models from before it refuse it. That the factor has been the same since then
# is assumed, and so is that it is multiplied with a batch's or a fast request's prices.
GEOGRAPHIES = (
    Geography(
        provider="anthropic",
        word="us",
        factor=Decimal("1.1"),
        since=date(2026, 2, 5),
        source="https://docs.aws.amazon.com/claude-platform/latest/userguide/data-residency.html",
        checked_on=date(2026, 11, 30),
        basis=Basis.ASSUMED,
    ),
)


def tier_of(terms: Terms | None, *, asked: str | None = None) -> str:
    """The tier to price by: what the answer was served under, in the words of price lists.

    Speed is a tier of its own there. `asked` is the tier of the request, which counts only where the answer says
    nothing: then it has to be the standard one. Raises PricingError for a tier that was asked for and not confirmed,
    for two at once, and for a speed that is not known.
    """
    said = Terms() if terms is None else terms
    tier = _plain(said.tier)
    wish = _plain(asked)
    if said.tier is None and wish != "standard":
        raise PricingError(f"the tier {asked!r} was asked for, and the answer does not say which one it got")
    speed = "standard" if said.speed is None else said.speed.strip().lower()
    if speed in _STANDARD_SPEEDS:
        return tier
    if speed != "fast":
        raise PricingError(f"no price is known for the speed {said.speed!r}")
    if tier != "standard":
        raise PricingError(f"no price is known for the tier {tier!r} and the speed {said.speed!r} at once")
    return "fast"


def geography_of(terms: Terms | None, *, provider: str, at: datetime) -> Geography | None:
    """What the place that an answer names adds to its price, None where that is nothing.

    Raises PricingError for a place that has no factor here at that time.
    """
    word = None if terms is None or terms.geography is None else terms.geography.strip().lower()
    if not word or word in _EVERYWHERE:
        return None
    for geography in GEOGRAPHIES:
        if (geography.provider, geography.word) == (provider, word) and at >= midnight(geography.since):
            return geography
    raise PricingError(f"what {provider} charges for the geography {word!r} on {at:%Y-%m-%d} is not known")


def _plain(word: str | None) -> str:
    tier = "standard" if word is None else tier_name(word)
    return "standard" if tier in _STANDARD_TIERS else tier
