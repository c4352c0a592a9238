"""Billing mistakes that other tools have shipped, each as the amount it should have been.

The names in brackets are the reports in which users found them. Prices are those of the frozen price card, per million
tokens; amounts are written as arithmetic.
"""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from taximeter.errors import ConfigError, PricingError
from taximeter.pricing import charge
from taximeter.pricing.catalog import Catalog
from taximeter.records import PriceList, Rate, Usage
from tests.price_card import CHECKED_AT, PRICE_CARD, cost, usage

CARD = Catalog.load(PRICE_CARD)


def dollars(text: str) -> Decimal:
    """A sum of `count * price per million` products, as dollars."""
    products = [term.split("*") for term in text.replace(",", "").split("+")]
    return sum((Decimal(count.strip()) * Decimal(price.strip()) for count, price in products), Decimal(0)) / 1_000_000


@pytest.mark.parametrize(
    ("model", "used", "arithmetic", "amount"),
    [
        pytest.param(
            "card/sonnet-4-6",
            usage(fresh=3, write_5m=12_304, text=550),
            "3 * 3 + 12,304 * 3.75 + 550 * 15",
            "0.054399",
            id="cache writes are not billed as fresh input too (BerriAI/litellm#9812)",
        ),
        pytest.param(
            "card/haiku-3-5",
            usage(fresh=4, read=2_455, text=23),
            "4 * 0.8 + 2,455 * 0.08 + 23 * 4",
            "0.0002916",
            id="cache reads are not billed as fresh input too (BerriAI/litellm#11789)",
        ),
        pytest.param(
            "card/gpt-4o",
            usage(fresh=2_006 - 1_920, read=1_920, text=300),
            "86 * 2.5 + 1,920 * 1.25 + 300 * 10",
            "0.005615",
            id="cached tokens are a part of the prompt, not beside it (BerriAI/litellm#6215)",
        ),
        pytest.param(
            "card/opus-5",
            usage(fresh=6, write_5m=159_217, text=2_745),
            "6 * 5 + 159,217 * 6.25 + 2,745 * 25",
            "1.06376125",
            id="writes are not counted again as input at the end of a stream (maximhq/bifrost#3451)",
        ),
        pytest.param(
            "card/opus-5",
            usage(fresh=5, write_5m=1_253, read=128_955),
            "5 * 5 + 1,253 * 6.25 + 128,955 * 0.5",
            "0.07233375",
            id="totals that include their parts are taken apart (langfuse/langfuse#12306)",
        ),
        pytest.param(
            "card/sonnet-4-6",
            usage(fresh=19, read=39_000),
            "19 * 3 + 39,000 * 0.30",
            "0.011757",
            id="fresh input is not free because more was cached (langchain-ai/langsmith-sdk PR 2519)",
        ),
        pytest.param(
            "card/opus-5",
            usage(write_5m=600_000, write_1h=400_000),
            "600,000 * 6.25 + 400,000 * 10",
            "7.75",
            id="1-hour writes are not billed as 5-minute ones (earendil-works/pi#5737)",
        ),
        pytest.param(
            "card/opus-5",
            usage(write_1h=344_139),
            "344,139 * 10",
            "3.44139",
            id="1-hour writes alone (Owloops/claude-powerline#104)",
        ),
        pytest.param(
            "card/gpt-5.4",
            usage(fresh=72_000, read=200_000, text=1_000),
            "72,000 * 2.5 + 200,000 * 0.25 + 1,000 * 15",
            "0.245",
            id="exactly on a context threshold is below it (ding113/claude-code-hub#869)",
        ),
        pytest.param(
            "card/gpt-5.4",
            usage(fresh=72_001, read=200_000, text=1_000),
            "72,001 * 5 + 200,000 * 0.5 + 1,000 * 22.5",
            "0.482505",
            id="one token above it every bucket costs more, all of it (junhoyeo/tokscale#862)",
        ),
        pytest.param(
            "card/gpt-5-nano",
            usage(fresh=17, text=482 - 448, reasoning=448),
            "17 * 0.05 + 34 * 0.4 + 448 * 0.4",
            "0.00019365",
            id="reasoning is billed once, and the rest of the answer too (BerriAI/litellm#18599)",
        ),
        pytest.param(
            "card/sonnet-4-6",
            usage(fresh=10_000, text=500, web_searches=2),
            "10,000 * 3 + 500 * 15 + 2 * 10000",
            "0.0575",
            id="searches that were made are billed (langfuse/langfuse#15856)",
        ),
        pytest.param(
            "card/sonnet-4-6",
            usage(fresh=10_000, text=500, web_searches=0),
            "10,000 * 3 + 500 * 15",
            "0.0375",
            id="searches that were only offered are not (BerriAI/litellm#16996)",
        ),
        pytest.param(
            "card/fable-5-1",
            usage(read=1_000_000),
            "1,000,000 * 0.25",
            "0.25",
            id="a cache read costs what the list says, not a tenth (Fable 5.1)",
        ),
        pytest.param(
            "card/opus-5-5",
            usage(read=1_000_000),
            "1,000,000 * 0.20",
            "0.20",
            id="a cache read costs what the list says, not a tenth (Opus 5.5)",
        ),
        pytest.param(
            "card/sonnet-4-5",
            usage(fresh=100_000, read=100_001, text=10),
            "100,000 * 6 + 100,001 * 0.60 + 10 * 22.5",
            "0.6602256",
            id="no bucket is long by itself, the prompt is (robinebers/openusage PR 885)",
        ),
        pytest.param(
            "card/realtime",
            usage(audio=1_000, read_audio=9_000),
            "1,000 * 32 + 9,000 * 0.40",
            "0.0356",
            id="audio has prices of its own",
        ),
    ],
)
def test_the_right_amount(model: str, used: Usage, arithmetic: str, amount: str):
    """Each token is billed once, in its own bucket, at that bucket's price."""
    assert cost(CARD, model, used).total == dollars(arithmetic) == Decimal(amount)


@pytest.mark.parametrize(("tier", "amount"), [("default", "0.0135"), ("flex", "0.00675"), ("priority", "0.027")])
def test_the_tier_is_part_of_the_price(tier: str, amount: str):
    """Flex is half and priority double of the standard price (BerriAI/litellm#13810)."""
    factor = {"default": 1, "flex": Decimal("0.5"), "priority": 2}[tier]
    exact = dollars("2,000 * 1.25 + 8,000 * 0.125 + 1,000 * 10") * factor
    used = usage(fresh=10_000 - 8_000, read=8_000, text=1_000)
    assert cost(CARD, "card/gpt-5", used, tier=tier).total == exact == Decimal(amount)


def test_batch_is_half_of_all_where_the_list_says_so():
    """A batch result names its tier on the wire, and that word is enough (BerriAI/litellm PR 9077)."""
    used = usage(fresh=5_000, text=800)
    assert cost(CARD, "card/opus-5-5", used, tier="batch").total == dollars("5,000 * 2 + 800 * 10") == Decimal("0.018")
    assert cost(CARD, "card/opus-5-5", used).total == dollars("5,000 * 4 + 800 * 20") == Decimal("0.036")
    assert cost(CARD, "card/opus-5-5", used, tier="fast").total == dollars("5,000 * 8 + 800 * 40")


def test_batch_is_not_half_of_all_everywhere():
    """Anthropic halves cached reads in a batch, Google does not: factors are written down, never assumed."""
    used = usage(fresh=1_000, read=9_000, text=500)
    batch = cost(CARD, "card/gemini-2.5-pro", used, tier="batch")
    assert batch.total == dollars("1,000 * 0.625 + 9,000 * 0.125 + 500 * 5")


def test_batch_prices_are_older_than_their_entry_in_the_data():
    """Six weeks before the data knows of it, a batch is half, and says that this is assumed (genai-prices 0.2.3)."""
    opus = cost(
        Catalog.load(),
        "anthropic/claude-opus-4-6",
        usage(fresh=5_000, text=800),
        at=datetime(2026, 9, 1, tzinfo=UTC),
        tier="batch",
    )
    assert opus.total == dollars("5,000 * 2.5 + 800 * 12.5") == Decimal("0.0225")
    assert opus.basis == "assumed"


@pytest.mark.parametrize("model", ["openai/gpt-5", "openai/gpt-5-2025-08-07"])
def test_flex_is_older_than_its_entry_in_the_data(model: str):
    """So is flex, half as well, also for cached input, and for a dated name of the model (BerriAI/litellm#13810)."""
    used = usage(fresh=2_000, read=8_000, text=1_000)
    early = cost(Catalog.load(), model, used, at=datetime(2026, 9, 1, tzinfo=UTC), tier="flex")
    later = cost(Catalog.load(), model, used, tier="flex")
    assert early.total == dollars("2,000 * 0.625 + 8,000 * 0.0625 + 1,000 * 5") == Decimal("0.00675") == later.total
    assert (early.basis, later.basis) == ("assumed", "derived")
    assert early.price_list is not None
    assert early.price_list.valid_until == datetime(2026, 10, 12, tzinfo=UTC)


def test_an_unpriced_model_is_not_free():
    """No price is an error with a reason, not zero dollars (BerriAI/litellm PR 36561, ccusage/ccusage PR 858)."""
    with pytest.raises(PricingError, match="no prices for a model called 'no-such'"):
        cost(CARD, "no-such", usage(fresh=1))


def test_yesterday_keeps_yesterdays_price():
    """A request is priced by its own time, so a closed day never changes (ccusage/ccusage#1636)."""
    used = usage(fresh=200_000, text=100_000)
    before = cost(CARD, "card/gpt-5.6-sol", used, at=datetime(2026, 8, 20, tzinfo=UTC))
    after = cost(CARD, "card/gpt-5.6-sol", used, at=datetime(2026, 8, 21, tzinfo=UTC))
    assert before.total == dollars("200,000 * 5 + 100,000 * 30") == 4
    assert after.total == dollars("200,000 * 4 + 100,000 * 20") == Decimal("2.80")
    assert before.price_list is not None
    assert before.price_list.valid_until == datetime(2026, 8, 21, tzinfo=UTC)
    published = Catalog.load()
    assert cost(published, "openai/gpt-5.6-sol", used, at=datetime(2026, 8, 20, tzinfo=UTC)).total == 4
    assert cost(published, "openai/gpt-5.6-sol", used, at=datetime(2026, 8, 21, tzinfo=UTC)).total == Decimal("2.80")


def test_a_price_per_million_in_a_field_per_token_is_noticed(tmp_path: Path):
    """$8 a token is $8,000,000 a million: not without a confirmation (maximhq/bifrost#3559)."""
    path = tmp_path / "prices.toml"
    path.write_text('[[price]]\nmodel = "home/mine"\ninput_fresh_per_token_usd = 8\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"\$8,000,000 per million"):
        Catalog.load(path)


def test_no_float_dust():
    """Sums are exact to the last digit (BerriAI/litellm PR 35205)."""
    rates = [("input_fresh_tokens", 3), ("output_text_tokens", Decimal("0.75"))]
    prices = PriceList(
        model="m/x",
        rates=tuple(Rate(unit=unit, amount=Decimal(amount), per=1_000_000) for unit, amount in rates),
        source="a test",
    )
    bill = charge(usage(fresh=113, text=433), prices)
    assert [line.amount for line in bill.lines] == [Decimal("0.000339"), Decimal("0.00032475")]
    assert bill.total == Decimal("0.00066375")


def test_negative_buckets_are_refused():
    """Parts that exceed their total are an error, never a clamp to zero (langchain-ai/langsmith-sdk PR 2519)."""
    with pytest.raises(ValueError, match="cannot be negative"):
        usage(fresh=19 - 39_000, read=39_000)


def test_the_catalog_agrees_with_the_card():
    """The published data has the card's prices, on the dates that the card is for."""
    pairs = [
        ("card/sonnet-5", "anthropic/claude-sonnet-5"),
        ("card/opus-5", "anthropic/claude-opus-5"),
        ("card/opus-5-5", "anthropic/claude-opus-5-5"),
        ("card/haiku-3-5", "anthropic/claude-3-5-haiku-latest"),
        ("card/haiku-4-5", "anthropic/claude-haiku-4-5"),
        ("card/fable-5-1", "anthropic/claude-fable-5-1"),
        ("card/gpt-5", "openai/gpt-5"),
        ("card/gpt-5.4", "openai/gpt-5.4"),
        ("card/gpt-5-nano", "openai/gpt-5-nano"),
    ]
    published = Catalog.load()
    for card, model in pairs:
        ours = CARD.price_list(card, at=CHECKED_AT, input_tokens=1)
        theirs = published.price_list(model, at=CHECKED_AT, input_tokens=1)
        for rate in ours.rates:
            assert rate == theirs.rate(rate.unit), model
