"""What a measurement costs is said before, and it stops before it costs more."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from taximeter.errors import RequestError
from taximeter.measurement.asking.spending import Purse, estimate
from taximeter.pricing.catalog import Catalog
from taximeter.pricing.tariff import PublishedTariff

AT = datetime(2026, 11, 30, tzinfo=UTC)


def test_an_estimate_is_the_plan_at_the_days_prices() -> None:
    """claude-sonnet-5-5: $2 and $10 a million tokens, in and out."""
    tariff = PublishedTariff(Catalog.load(), "anthropic")
    plan = [(5, 3_000, 400), (2, 64, 1)]
    expected = estimate(tariff, "claude-sonnet-5-5", plan, at=AT, why_none="")
    assert expected.amount == (
        5 * (3_000 * Decimal("0.000002") + 400 * Decimal("0.00001"))
        + 2 * (64 * Decimal("0.000002") + 1 * Decimal("0.00001"))
    )
    assert (expected.requests, expected.input_tokens, expected.output_tokens) == (7, 15_128, 2_002)


def test_an_unknown_price_is_unknown_and_has_its_reason() -> None:
    tariff = PublishedTariff(Catalog.load(), "anthropic")
    unknown = estimate(tariff, "no-such-model", [(1, 10, 10)], at=AT, why_none="")
    assert unknown.amount is None
    assert "no-such-model" in (unknown.unknown_reason or "")
    assert estimate(None, "m", [(1, 10, 10)], at=AT, why_none="nobody said").unknown_reason == "nobody said"


def test_a_purse_with_a_limit_sends_nothing_it_cannot_pay() -> None:
    purse = Purse(Decimal("0.10"))
    assert purse.allows(Decimal("0.10"))
    purse.spent = Decimal("0.06")
    assert purse.allows(Decimal("0.04"))
    assert not purse.allows(Decimal("0.0400001"))
    assert not purse.allows(None)
    assert Purse().allows(None)
    with pytest.raises(RequestError):
        Purse(Decimal(-1))
