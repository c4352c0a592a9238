"""What a provider says of its service, as a tier and a surcharge."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from taximeter.errors import PricingError
from taximeter.pricing.terms import GEOGRAPHIES, geography_of, tier_of
from taximeter.records import Basis, Terms
from tests.price_card import CHECKED_AT


@pytest.mark.parametrize(
    ("terms", "asked", "tier"),
    [
        (None, None, "standard"),
        (Terms(), "auto", "standard"),
        (Terms(), "standard_only", "standard"),
        (Terms(tier="default"), "flex", "standard"),
        (Terms(tier="auto"), None, "standard"),
        (Terms(tier=" Standard"), None, "standard"),
        (Terms(tier="on_demand"), None, "standard"),
        (Terms(tier="batch"), None, "batch"),
        (Terms(tier="priority"), "auto", "priority"),
        (Terms(tier="scale"), None, "scale"),
        (Terms(tier="standard", speed="fast"), None, "fast"),
        (Terms(speed="fast"), None, "fast"),
        (Terms(tier="batch", speed="standard"), None, "batch"),
    ],
)
def test_the_tier_to_price_by(terms: Terms | None, asked: str | None, tier: str):
    """What was served counts. A word that nobody knows stays itself, and has no price."""
    assert tier_of(terms, asked=asked) == tier


@pytest.mark.parametrize(
    ("terms", "asked", "complaint"),
    [
        (None, "flex", "'flex' was asked for"),
        (Terms(speed="standard"), "priority", "'priority' was asked for"),
        (Terms(tier="batch", speed="fast"), None, "at once"),
        (Terms(speed="ludicrous"), None, "ludicrous"),
    ],
)
def test_what_selects_no_price(terms: Terms | None, asked: str | None, complaint: str):
    """A wish that was not confirmed, two tiers at once, an unknown speed: none is the standard price."""
    with pytest.raises(PricingError, match=complaint):
        tier_of(terms, asked=asked)


def test_geographies_have_dates_and_sources():
    """A surcharge holds from a day on, and says where it is written and how well it is known."""
    (us,) = GEOGRAPHIES
    assert (us.unit, us.factor, us.basis) == ("geography_us", Decimal("1.1"), Basis.ASSUMED)
    assert us.source.startswith("https://")
    assert geography_of(Terms(geography="US"), provider="anthropic", at=CHECKED_AT) is us
    for nowhere in (None, Terms(), Terms(geography="global"), Terms(geography="not_available"), Terms(geography=" ")):
        assert geography_of(nowhere, provider="anthropic", at=CHECKED_AT) is None


@pytest.mark.parametrize(
    ("word", "provider", "at"),
    [
        ("eu", "anthropic", CHECKED_AT),
        ("us", "somebody", CHECKED_AT),
        ("us", "anthropic", datetime(2025, 12, 31, tzinfo=UTC)),
    ],
)
def test_a_place_without_a_factor_is_not_free(word: str, provider: str, at: datetime):
    """Another place, another provider, an earlier day: unknown, not nothing."""
    with pytest.raises(PricingError, match="is not known"):
        geography_of(Terms(geography=word), provider=provider, at=at)
