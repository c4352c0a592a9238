"""The published data in our words, compared with the package's own arithmetic."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import genai_prices
import pytest
from genai_prices.data_snapshot import get_snapshot
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.pricing import published
from taximeter.pricing.charge import charge
from taximeter.records import PriceList
from tests.price_card import usage

OCTOBER = datetime(2026, 10, 29, tzinfo=UTC)

MODELS = [
    "anthropic/claude-sonnet-5-5",
    "anthropic/claude-haiku-5-5",
    "anthropic/claude-opus-4-6",
    "openai/gpt-5",
    "openai/gpt-5.4",
    "openai/gpt-5.6-sol",
    "openai/o3",
    "google/gemini-2.5-pro",
    "deepseek/deepseek-v4-pro",
]
CONTEXTS = {"standard": None, "batch": {"processing": "batch"}, "flex": {"service_tier": "flex"}}


def prices(model: str, *, at: datetime = OCTOBER, tier: str = "standard", input_tokens: int = 1) -> PriceList | None:
    provider, _, name = model.partition("/")
    entry = published.listing(provider, name)
    assert entry is not None
    return published.price_list(entry, at=at, tier=tier, input_tokens=input_tokens)


def amounts(found: PriceList | None) -> dict[str, Decimal]:
    assert found is not None
    return {rate.unit: rate.amount for rate in found.rates}


@settings(max_examples=200, deadline=None)
@given(
    model=st.sampled_from(MODELS),
    tier=st.sampled_from(list(CONTEXTS)),
    at=st.datetimes(datetime(2025, 1, 1), datetime(2027, 6, 1), timezones=st.just(UTC)),  # noqa: DTZ001 - the zone is beside it
    fresh=st.integers(0, 400_000),
    read=st.integers(0, 400_000),
    text=st.integers(0, 100_000),
)
def test_our_bills_agree_with_the_packages_own(model: str, tier: str, at: datetime, fresh: int, read: int, text: int):
    """Wherever we quote a price, the package's own calculator comes to the same total."""
    found = prices(model, at=at, tier=tier, input_tokens=fresh + read)
    if found is None:
        assert tier != "standard"
        return
    theirs = genai_prices.calc_price(
        genai_prices.Usage(input_tokens=fresh + read, cache_read_tokens=read, output_tokens=text),
        model.partition("/")[2],
        provider_id=model.partition("/")[0],
        genai_request_timestamp=at,
        price_context=CONTEXTS[tier],
    )
    assert charge(usage(fresh=fresh, read=read, text=text), found).total == theirs.total_price


def test_the_list_names_its_source_and_its_own_dates():
    """A receipt can say which edition of the data, and from when to when the price held."""
    before = prices("openai/gpt-5.6-sol", at=datetime(2026, 8, 20, 23, 59, tzinfo=UTC))
    after = prices("openai/gpt-5.6-sol", at=datetime(2026, 8, 21, tzinfo=UTC))
    change = datetime(2026, 8, 21, tzinfo=UTC)
    assert before is not None
    assert after is not None
    assert before.source == f"genai-prices {genai_prices.__version__}"
    assert (before.valid_from, before.valid_until) == (None, change)
    assert (after.valid_from, after.valid_until) == (change, None)
    assert (before.model, before.tier) == ("openai/gpt-5.6-sol", "standard")


def test_prices_by_the_hour_have_their_hours_as_dates():
    """A price that changes with the time of day holds until the next change."""
    for hour in (0, 1, 3, 4, 6, 10, 23):
        at = datetime(2026, 10, 29, hour, tzinfo=UTC)
        found = prices("deepseek/deepseek-v4-pro", at=at)
        assert found is not None
        assert found.valid_from is not None
        assert found.valid_until is not None
        assert found.valid_from <= at < found.valid_until
        assert amounts(prices("deepseek/deepseek-v4-pro", at=found.valid_from)) == amounts(found)
        assert amounts(prices("deepseek/deepseek-v4-pro", at=found.valid_until)) != amounts(found)
        just_before = found.valid_from - timedelta(microseconds=1)
        assert amounts(prices("deepseek/deepseek-v4-pro", at=just_before)) != amounts(found)


def test_reasoning_is_output_and_short_writes_are_the_plain_ones():
    """Where the data has one price for several of our buckets, each bucket gets it; a 1-hour write never does."""
    sonnet = amounts(prices("anthropic/claude-sonnet-5-5"))
    assert sonnet["output_reasoning_tokens"] == sonnet["output_text_tokens"] == 10
    assert (sonnet["input_cache_write_5m_tokens"], sonnet["input_cache_write_1h_tokens"]) == (Decimal("2.5"), 4)
    sol = amounts(prices("openai/gpt-5.6-sol"))
    assert "input_cache_write_5m_tokens" in sol
    assert "input_cache_write_1h_tokens" not in sol


def test_other_tokens_and_tool_calls_keep_the_datas_names():
    """Video, searches and the like can be billed; minutes of audio cannot, for their rounding is not in the data."""
    assert published.OTHER_UNITS["web_searches"] == 1_000
    assert published.OTHER_UNITS["input_video_tokens"] == 1_000_000
    assert "input_audio_tokens" not in published.OTHER_UNITS  # a bucket of its own
    assert "input_tokens" not in published.OTHER_UNITS
    assert "audio_seconds" not in published.OTHER_UNITS


def test_images_cost_what_text_does_and_audio_only_what_it_says():
    """An image is input like any other unless it has a price of its own; audio and long writes are never guessed."""
    astra = amounts(prices("openai/gpt-6-astra"))
    assert astra["input_image_tokens"] == astra["input_fresh_tokens"]
    assert astra["input_cache_write_30m_tokens"] == astra["input_cache_write_5m_tokens"]
    guesses = {"input_audio_tokens", "output_audio_tokens", "output_image_tokens", "input_cache_write_12h_tokens"}
    assert not guesses & astra.keys()
    realtime = amounts(prices("openai/gpt-realtime"))
    assert (realtime["input_audio_tokens"], realtime["input_audio_cache_read_tokens"]) == (32, Decimal("0.4"))
    assert (realtime["output_audio_tokens"], realtime["input_image_tokens"]) == (64, 5)


@pytest.mark.parametrize(("tier", "day"), [("batch", 14), ("flex", 12), ("priority", 12)])
def test_a_tier_without_a_price_at_that_date_has_none(tier: str, day: int):
    """The data dates its tiers from the day they were entered. Before it the package bills the standard price."""
    entered = datetime(2026, 10, day, tzinfo=UTC)
    found = prices("openai/gpt-5", at=entered, tier=tier)
    assert amounts(found) != amounts(prices("openai/gpt-5", at=entered))
    assert found is not None
    assert found.valid_from == entered
    assert prices("openai/gpt-5", at=entered - timedelta(microseconds=1), tier=tier) is None


def test_a_tier_that_nobody_has_heard_of_has_no_price():
    """Unknown words select nothing; the package ignores them and bills the standard price."""
    assert prices("openai/gpt-5", tier="fast+batch") is None
    assert prices("openai/gpt-5", tier="us-only") is None


def test_resold_models_have_their_makers_standard_price_only():
    """Where a provider sells another's model, tiers of the maker are not its own."""
    entry = published.listing("azure", "gpt-5")
    assert entry is not None
    assert not entry.own
    assert published.tiers(entry, OCTOBER) == ["standard"]


def test_a_name_of_its_own_belongs_to_its_maker():
    """A model's name without a provider is its maker's; without a maker, it is everybody's who sells it."""
    assert [entry.name for entry in published.listings_by_name("claude-sonnet-5-5")] == ["anthropic/claude-sonnet-5-5"]
    assert [entry.name for entry in published.listings_by_name("gpt-4o")] == ["openai/gpt-4o"]
    assert len(published.listings_by_name("meta-llama/llama-3.1-8b-instruct")) > 1
    assert published.listings_by_name("no-such-model") == []


def test_a_name_is_found_as_the_data_find_it() -> None:
    """A model is looked up by its name where it has one; that is the model which trying all of them in turn finds. Some
    do not match the name that the data list them under: they are found by it all the same."""
    providers = get_snapshot().providers
    for provider in providers:
        for info in provider.models[::5]:
            for name in (info.id, info.id.upper(), f"{info.id}-latest", f"{info.id}-20251211"):
                found = published.listing(provider.id, name)
                own = next((each for each in provider.models if each.is_match(name)), None)
                own = own or (info if name.lower() == info.id.lower() else None)
                tried = own or provider.find_model(name, all_providers=providers)
                assert (found and found.info) is tried, (provider.id, name)


def test_every_model_is_found_by_the_name_it_is_listed_under() -> None:
    """Else what an alias leads to could not be priced: Bedrock's regional profiles, all that Fireworks sells."""
    for name in published.names():
        found = published.listing(*name.split("/", 1))
        assert found is not None, name
        assert found.name == name
    profile = published.listing("aws", "us.anthropic.claude-sonnet-4-20250514-v1:0")
    assert profile is not None
    assert published.price_list(profile, at=OCTOBER, tier="standard", input_tokens=1) is not None
