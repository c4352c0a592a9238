"""Where the published data has no price for exactly what was asked, there is no price: nothing is billed in its stead.

The package with the data answers each of these with a standard price and no warning.
"""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from taximeter.errors import PricingError
from taximeter.pricing import charge
from taximeter.pricing.catalog import Catalog
from taximeter.records import Basis, Rate
from tests.price_card import CHECKED_AT, cost, usage

CATALOG = Catalog.load()


def test_the_wires_word_for_a_batch_is_understood():
    """`service_tier: batch` is `processing: batch` in the data; passed on as it is, it would cost double."""
    used = usage(fresh=5_000, text=800)
    batch = cost(CATALOG, "anthropic/claude-opus-5-5", used, tier="batch").total
    assert batch * 2 == cost(CATALOG, "anthropic/claude-opus-5-5", used, tier="standard").total


@pytest.mark.parametrize("tier", ["batch", "priority"])
def test_a_tier_has_no_price_before_its_date_where_prices_were_others(tier: str):
    """The data knows OpenAI's tiers from October 2026 on. What they cost at an older price is unknown, not standard."""
    early = datetime(2026, 8, 20, tzinfo=UTC)
    with pytest.raises(PricingError, match=f"no known price for the tier '{tier}' on 2026-08-20") as refused:
        CATALOG.price_list("openai/gpt-5.6-sol", at=early, tier=tier, input_tokens=1)
    assert refused.value.hint is not None
    assert "priced then: standard, flex;" in refused.value.hint
    assert "overlay" in refused.value.hint


@pytest.mark.parametrize(("tier", "times"), [("batch", "0.5"), ("priority", "2")])
def test_a_tier_before_its_date_is_at_best_assumed(tier: str, times: str):
    """Where the standard price was the same, the tier's is assumed to have been, too; it is never the standard one."""
    used, early = usage(fresh=5_000, text=800), datetime(2026, 9, 1, tzinfo=UTC)
    found = cost(CATALOG, "openai/gpt-5", used, tier=tier, at=early)
    assert found.total == cost(CATALOG, "openai/gpt-5", used, tier="standard", at=early).total * Decimal(times)
    assert found.basis is Basis.ASSUMED


@pytest.mark.parametrize("tier", ["auto", "scale", "us", "batch,fast", "fast+batch"])
def test_a_word_that_names_no_tier_has_no_price(tier: str):
    """A wish, a region, or two tiers at once select nothing."""
    with pytest.raises(PricingError, match="no known price for the tier"):
        CATALOG.price_list("anthropic/claude-opus-5-5", at=CHECKED_AT, tier=tier, input_tokens=1)


def test_a_provider_that_resells_a_model_does_not_get_its_makers_tiers():
    """Azure sells GPT-5 at OpenAI's standard price; that says nothing about a batch there."""
    assert CATALOG.price_list("azure/gpt-5", at=CHECKED_AT, input_tokens=1).model == "azure/gpt-5"
    with pytest.raises(PricingError, match="no known price for the tier 'batch'"):
        CATALOG.price_list("azure/gpt-5", at=CHECKED_AT, tier="batch", input_tokens=1)


def test_a_one_hour_write_is_not_billed_as_a_shorter_one():
    """Where the data has one price for cache writes, it is the short ones'."""
    with pytest.raises(PricingError, match="no price for input_cache_write_1h_tokens"):
        cost(CATALOG, "openai/gpt-5.6-sol", usage(write_1h=1))


def test_a_cached_token_is_not_billed_as_a_fresh_one():
    """Where the data has no price for cache reads, there is none."""
    with pytest.raises(PricingError, match="no price for input_cache_read_tokens"):
        cost(CATALOG, "groq/llama-3.3-70b-versatile", usage(read=1))


def test_searches_in_a_batch_cost_the_standard_fee():
    """A batch price says nothing of searches, and a discount on tokens is none on them."""
    batch = CATALOG.price_list("anthropic/claude-opus-5-5", at=CHECKED_AT, tier="batch", input_tokens=1)
    standard = CATALOG.price_list("anthropic/claude-opus-5-5", at=CHECKED_AT, input_tokens=1)
    assert batch.rate("web_searches") == standard.rate("web_searches")
    assumed = CATALOG.price_list(
        "anthropic/claude-opus-5-5", at=datetime(2026, 9, 1, tzinfo=UTC), tier="batch", input_tokens=1
    )
    assert assumed.rate("web_searches") == standard.rate("web_searches")


def test_a_provider_is_named_or_certain():
    """`openai/gpt-5.4` is found as it is written, and `gpt-5.4` is its maker's."""
    assert CATALOG.resolve("openai/gpt-5.4") == CATALOG.resolve("gpt-5.4") == "openai/gpt-5.4"


def test_nothing_is_priced_now_by_default():
    """A price needs the request's own time: leaving it out is an error of the caller."""
    with pytest.raises(TypeError, match="at"):
        CATALOG.price_list("openai/gpt-5", input_tokens=1)  # pyright: ignore[reportCallIssue] - that is the point


def test_prices_are_exact_rationals_of_what_was_published():
    """No rate went through a binary fraction: each is a short decimal, and bills to the picodollar."""
    for model in ("anthropic/claude-haiku-5-5", "openai/gpt-5.4", "google/gemini-2.5-pro", "deepseek/deepseek-v4-pro"):
        prices = CATALOG.price_list(model, at=CHECKED_AT, input_tokens=1)
        assert all(_decimals(rate) <= 6 for rate in prices.rates)
        assert charge(usage(fresh=1, text=1), prices).total > 0


def _decimals(rate: Rate) -> int:
    exponent = rate.amount.as_tuple().exponent
    assert isinstance(exponent, int)
    return -exponent
