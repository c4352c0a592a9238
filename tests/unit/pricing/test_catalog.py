"""Which source wins, and which model is meant."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.errors import ConfigError, PricingError
from taximeter.pricing.catalog import Catalog
from taximeter.records import Basis, PriceList

OCTOBER = datetime(2026, 10, 29, tzinfo=UTC)
SONNET = "anthropic/claude-sonnet-5-5"
CATALOG = Catalog.load()


def overlaid(tmp_path: Path, text: str) -> Catalog:
    path = tmp_path / "prices.toml"
    path.write_text(text, encoding="utf-8")
    return Catalog.load(path)


def fresh(prices: PriceList) -> Decimal:
    rate = prices.rate("input_fresh_tokens")
    assert rate is not None
    return rate.amount * 1_000_000 / rate.per


def test_the_overlay_wins(tmp_path: Path):
    """What somebody wrote down beats what is published, in its period and for its tier."""
    catalog = overlaid(
        tmp_path,
        f'[[price]]\nmodel = "{SONNET}"\nvalid_from = 2026-10-01\nvalid_until = 2027-01-01\n'
        'source = "contract 17"\nchecked_on = 2026-09-30\ninput_fresh_per_million_usd = "1.80"\n',
    )
    ours = catalog.price_list(SONNET, at=OCTOBER, input_tokens=1)
    assert fresh(ours) == Decimal("1.80")
    assert ours.rate("output_text_tokens") is None  # an entry is a whole price list, not a patch
    assert (ours.model, ours.source, ours.checked_on) == (SONNET, "contract 17", date(2026, 9, 30))
    assert (ours.valid_from, ours.valid_until) == (
        datetime(2026, 10, 1, tzinfo=UTC),
        datetime(2027, 1, 1, tzinfo=UTC),
    )
    published = catalog.price_list(SONNET, at=datetime(2026, 9, 30, tzinfo=UTC), input_tokens=1)
    assert fresh(published) == 2
    assert published.valid_until == ours.valid_from
    assert fresh(catalog.price_list(SONNET, at=OCTOBER, tier="batch", input_tokens=1)) == 1


def test_the_overlay_adds_models(tmp_path: Path):
    """A model that nobody publishes a price for can be given one, and found by its name."""
    catalog = overlaid(tmp_path, '[[price]]\nmodel = "home/Llama-Mine"\ninput_fresh_per_million_usd = 1\n')
    assert catalog.resolve("home/llama-mine") == "home/llama-mine"
    assert catalog.resolve("LLAMA-MINE") == "home/llama-mine"
    assert fresh(catalog.price_list("llama-mine", at=OCTOBER, input_tokens=1)) == 1


def test_an_alias_shares_the_price(tmp_path: Path):
    """A dated or dotted name is the same model; an entry for exactly that name comes first."""
    catalog = overlaid(tmp_path, f'[[price]]\nmodel = "{SONNET}"\ninput_fresh_per_million_usd = 1\n')
    for alias in ("anthropic/claude-sonnet-5-5-20261001", "anthropic/claude-sonnet-5.5", "claude-sonnet-5.5"):
        assert catalog.resolve(alias) == SONNET
        assert fresh(catalog.price_list(alias, at=OCTOBER, input_tokens=1)) == 1
    own = overlaid(tmp_path, '[[price]]\nmodel = "anthropic/claude-sonnet-5.5"\ninput_fresh_per_million_usd = 3\n')
    assert fresh(own.price_list("claude-sonnet-5.5", at=OCTOBER, input_tokens=1)) == 3
    assert fresh(own.price_list(SONNET, at=OCTOBER, input_tokens=1)) == 2


def test_a_factor_is_on_the_standard_price_of_the_day(tmp_path: Path):
    """A discount follows the price it is on: its rates, its dates, its context length; counted extras keep theirs."""
    catalog = overlaid(
        tmp_path,
        '[[price]]\nmodel = "openai/gpt-5.6-sol"\ntier = "batch"\ntimes_standard = "0.5"\nsource = "batch deal"\n'
        "valid_until = 2026-10-01\n",
    )
    before, after = (
        catalog.price_list("openai/gpt-5.6-sol", at=datetime(2026, 8, day, tzinfo=UTC), tier="batch", input_tokens=1)
        for day in (20, 21)
    )
    assert (fresh(before), fresh(after)) == (Decimal("2.5"), 2)
    assert before.valid_until == after.valid_from == datetime(2026, 8, 21, tzinfo=UTC)
    assert after.valid_until == datetime(2026, 10, 1, tzinfo=UTC)
    assert after.tier == "batch"
    assert after.source.startswith("batch deal: 0.5 x genai-prices ")
    searches = after.rate("web_searches")
    assert searches is not None
    assert searches.amount == 10
    long = catalog.price_list("openai/gpt-5.6-sol", at=before.valid_until, tier="batch", input_tokens=272_001)
    assert fresh(long) == 4


def test_a_factor_on_the_standard_tier_is_on_the_published_price(tmp_path: Path):
    """Ten per cent off all of a provider is one entry; a factor for another tier is a factor on that."""
    catalog = overlaid(
        tmp_path,
        '[[price]]\nmodel = "anthropic/*"\ntimes_standard = "0.9"\n'
        '[[price]]\nmodel = "anthropic/*"\ntier = "batch"\ntimes_standard = "0.5"\n',
    )
    assert fresh(catalog.price_list(SONNET, at=OCTOBER, input_tokens=1)) == Decimal("1.8")
    assert fresh(catalog.price_list(SONNET, at=OCTOBER, tier="batch", input_tokens=1)) == Decimal("0.9")
    assert fresh(catalog.price_list("openai/gpt-5", at=OCTOBER, input_tokens=1)) == Decimal("1.25")


def test_a_factor_on_nothing_is_no_price(tmp_path: Path):
    """A discount on a price that nobody knows is refused."""
    catalog = overlaid(tmp_path, '[[price]]\nmodel = "home/mine"\ntier = "batch"\ntimes_standard = "0.5"\n')
    with pytest.raises(PricingError, match="no known price for the tier 'batch'"):
        catalog.price_list("home/mine", at=OCTOBER, tier="batch", input_tokens=1)


def test_what_ships_with_the_package_fills_gaps_only():
    """Anthropic's batch discount is older than its entry in the data: half, and marked as assumed, before that."""
    before = CATALOG.price_list(
        "anthropic/claude-opus-4-6", at=OCTOBER - timedelta(days=58), tier="batch", input_tokens=1
    )
    entered = CATALOG.price_list("anthropic/claude-opus-4-6", at=OCTOBER, tier="batch", input_tokens=1)
    assert fresh(before) == fresh(entered) == Decimal("2.5")
    assert (before.basis, entered.basis) == (Basis.ASSUMED, Basis.REPORTED)
    assert before.checked_on == date(2026, 10, 29)
    assert "platform.claude.com" in before.source
    assert entered.source.startswith("genai-prices ")
    with pytest.raises(PricingError, match="priced then: standard"):
        CATALOG.price_list(
            "anthropic/claude-3-haiku", at=datetime(2024, 10, 7, tzinfo=UTC), tier="batch", input_tokens=1
        )


@pytest.mark.parametrize(
    ("model", "tier", "day", "read", "out"),
    [
        ("openai/gpt-5", "batch", 1, "0.0625", "5"),
        ("openai/gpt-5", "priority", 1, "0.25", "20"),
        ("openai/gpt-4o-mini", "batch", 1, "0.075", "0.30"),
        ("google/gemini-2.5-pro", "batch", 1, "0.125", "5"),
    ],
)
def test_a_tier_is_assumed_to_have_cost_before_its_entry_what_it_costs_then(
    model: str, tier: str, day: int, read: str, out: str
):
    """The data date tiers from when somebody entered them; a batch of a year ago had half the price, too."""
    at = datetime(2025, 10, day, tzinfo=UTC)
    prices = CATALOG.price_list(model, at=at, tier=tier, input_tokens=1)
    found = [prices.rate(unit) for unit in ("input_cache_read_tokens", "output_text_tokens")]
    assert [rate and rate.amount * 1_000_000 / rate.per for rate in found] == [Decimal(read), Decimal(out)]
    assert prices.basis is Basis.ASSUMED
    assert prices.valid_until is not None
    assert "which knows this tier from 2026-10-" in prices.source
    assert tier in CATALOG.tiers(model, at)
    assert CATALOG.price_list(model, at=prices.valid_until, tier=tier, input_tokens=1).basis is Basis.REPORTED


def test_a_tier_is_not_assumed_where_the_standard_price_was_another():
    """GPT-5.6 Sol became cheaper on 21 August 2026: what priority cost before is not known."""
    before, after = datetime(2026, 8, 20, tzinfo=UTC), datetime(2026, 8, 21, tzinfo=UTC)
    assert "priority" in CATALOG.tiers("openai/gpt-5.6-sol", after)
    assert "priority" not in CATALOG.tiers("openai/gpt-5.6-sol", before)
    with pytest.raises(PricingError, match="no known price for the tier 'priority'"):
        CATALOG.price_list("openai/gpt-5.6-sol", at=before, tier="priority", input_tokens=1)
    # What is wrong in the data says nothing of its tiers.
    assert CATALOG.tiers("openai/o3", datetime(2025, 5, 1, tzinfo=UTC)) == ["standard", "flex"]


def test_what_is_wrong_in_the_data_is_put_right():
    """Sonnet 4's long prompts cost twice; o3's cached input fell with all its other prices."""
    august = datetime(2025, 8, 12, tzinfo=UTC)
    for model in ("claude-sonnet-4-20250514", "anthropic/claude-sonnet-4-0"):
        assert fresh(CATALOG.price_list(model, at=august, input_tokens=200_000)) == 3
        assert fresh(CATALOG.price_list(model, at=august, input_tokens=200_001)) == 6
        assert fresh(CATALOG.price_list(model, at=august, tier="batch", input_tokens=200_001)) == 3
    before = august - timedelta(microseconds=1)
    earlier = CATALOG.price_list("claude-sonnet-4-0", at=before, input_tokens=200_001)
    assert (fresh(earlier), earlier.valid_until) == (3, august)
    for day, read in ((9, Decimal("2.50")), (10, Decimal("0.50"))):
        rate = CATALOG.price_list("openai/o3", at=datetime(2025, 6, day, tzinfo=UTC), input_tokens=1).rate(
            "input_cache_read_tokens"
        )
        assert rate is not None
        assert rate.amount * 1_000_000 / rate.per == read


@pytest.mark.parametrize(
    ("model", "below", "above", "out"),
    [
        ("aws/us.anthropic.claude-sonnet-4-5-20250929-v1:0", "3.3", "6.6", "24.75"),
        ("aws/global.anthropic.claude-sonnet-4-5-20250929-v1:0", "3", "6", "22.5"),
        ("aws/eu.anthropic.claude-sonnet-4-20250514-v1:0", "3", "6", "22.5"),
        ("google/claude-sonnet-4-5", "3", "6", "22.5"),
        ("google/claude-sonnet-4@20250514", "3", "6", "22.5"),
        ("openrouter/anthropic/claude-sonnet-4", "3", "6", "22.5"),
    ],
)
def test_long_prompts_cost_more_wherever_the_model_is_served(model: str, below: str, above: str, out: str):
    at = datetime(2025, 11, 1, tzinfo=UTC)
    assert fresh(CATALOG.price_list(model, at=at, input_tokens=200_000)) == Decimal(below)
    long = CATALOG.price_list(model, at=at, input_tokens=200_001)
    answer = long.rate("output_text_tokens")
    assert answer is not None
    assert (fresh(long), answer.amount * 1_000_000 / answer.per) == (Decimal(above), Decimal(out))


@pytest.mark.parametrize("model", ["deepseek/deepseek-chat", "deepseek/deepseek-reasoner"])
def test_a_promotion_ends(model: str):
    """DeepSeek's cheap nights did on 5 September 2025; its price fell on the 29th."""
    night = {day: datetime(2025, 9, day, 17, tzinfo=UTC) for day in (4, 5, 28, 29)}
    found = {day: fresh(CATALOG.price_list(model, at=at, input_tokens=1)) for day, at in night.items()}
    assert found == {4: Decimal("0.135"), 5: Decimal("0.56"), 28: Decimal("0.56"), 29: Decimal("0.28")}
    last = CATALOG.price_list(model, at=night[4] - timedelta(hours=1, minutes=1) + timedelta(days=1), input_tokens=1)
    assert last.valid_until == datetime(2025, 9, 5, 16, tzinfo=UTC)


def test_a_name_that_moves_is_assumed_to_be_who_it_is_now(tmp_path: Path):
    """`gemini-flash-latest` was three models in a year. A family's own name is no such name, nor is one's own price."""
    moved = CATALOG.price_list("google/gemini-flash-latest", at=OCTOBER, input_tokens=1)
    assert (moved.model.endswith("-latest"), moved.basis) == (False, Basis.ASSUMED)
    assert moved.source.endswith("as of the model that gemini-flash-latest is now")
    named = CATALOG.price_list(moved.model, at=OCTOBER, input_tokens=1)
    assert (named.rates, named.basis) == (moved.rates, Basis.REPORTED)
    assert CATALOG.price_list("claude-3-5-haiku-latest", at=OCTOBER, input_tokens=1).basis is Basis.REPORTED
    own = '[[price]]\nmodel = "google/gemini-flash-latest"\ninput_fresh_per_million_usd = "1"\n'
    assert (
        overlaid(tmp_path, own).price_list("google/gemini-flash-latest", at=OCTOBER, input_tokens=1).basis == "reported"
    )


def test_what_was_put_right_is_beneath_the_overlay(tmp_path: Path):
    """A contract's factor is on the price that is right, and its own price beats both."""
    at = datetime(2025, 9, 1, tzinfo=UTC)
    factor = overlaid(tmp_path, '[[price]]\nmodel = "anthropic/*"\ntimes_standard = "0.9"\n')
    assert fresh(factor.price_list("claude-sonnet-4-0", at=at, input_tokens=200_001)) == Decimal("5.4")
    own = overlaid(tmp_path, '[[price]]\nmodel = "anthropic/claude-sonnet-4-0"\ninput_fresh_per_million_usd = "2"\n')
    assert fresh(own.price_list("claude-sonnet-4-0", at=at, input_tokens=200_001)) == 2


def test_modes_and_tiers_that_are_gone_have_their_prices():
    """Opus 4.6 was six times as fast a spender; embeddings in a batch cost half."""
    at = datetime(2026, 2, 10, tzinfo=UTC)
    assert fresh(CATALOG.price_list("claude-opus-4-6", at=at, tier="fast", input_tokens=200_000)) == 30
    assert fresh(CATALOG.price_list("claude-opus-4-6", at=at, tier="fast", input_tokens=200_001)) == 60
    embedded = CATALOG.price_list("openai/text-embedding-3-small", at=at, tier="batch", input_tokens=1)
    assert fresh(embedded) == Decimal("0.01")


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("anthropic/claude-sonet-5-5", "did you mean anthropic/claude-sonnet-5-5"),
        ("claude-sonnet-55", "anthropic/claude-sonnet-5-5"),
        ("zzzz-qqqq", "overlay file"),
        ("nobody/zzzz-qqqq", "overlay file"),
        ("", "overlay file"),
    ],
)
def test_an_unknown_model_is_refused_with_its_neighbours(asked: str, hint: str):
    """A typo is told what it may have meant, and costs nothing: least of all zero."""
    with pytest.raises(PricingError, match="no prices for a model called") as refused:
        CATALOG.price_list(asked, at=OCTOBER, input_tokens=1)
    assert refused.value.hint is not None
    assert hint in refused.value.hint


def test_a_name_that_several_sell_needs_a_provider(tmp_path: Path):
    """The same weights cost differently elsewhere: which ones is not guessed."""
    with pytest.raises(PricingError, match="providers") as refused:
        CATALOG.resolve("meta-llama/llama-3.1-8b-instruct")
    assert refused.value.hint is not None
    assert refused.value.hint.startswith("say whose: ")
    catalog = overlaid(tmp_path, '[[price]]\nmodel = "home/gpt-4o"\ninput_fresh_per_million_usd = 1\n')
    with pytest.raises(PricingError, match="2 providers"):
        catalog.resolve("gpt-4o")


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "aws"),
        ("anthropic.claude-3-5-sonnet-20240620-v1:0", "aws"),
        ("bedrock/eu.anthropic.claude-sonnet-4-5-20250929-v1:0", "aws"),
        ("text-embedding-3-small", "openai"),
        ("claude-sonnet-4-5-20250929", "anthropic"),
        ("gpt-5.4", "openai"),
    ],
)
def test_a_name_that_only_one_can_mean_needs_none(asked: str, meant: str):
    """Only Bedrock writes a maker and a full stop; Azure and OpenRouter sell others' models under their names."""
    assert CATALOG.resolve(asked).partition("/")[0] == meant


def test_an_instant_has_a_time_zone_and_a_prompt_a_length():
    """The catalog never completes what a caller left out."""
    with pytest.raises(ValueError, match="time zone"):
        CATALOG.price_list(SONNET, at=datetime(2026, 10, 29), input_tokens=1)  # noqa: DTZ001 - that is the point
    with pytest.raises(ValueError, match="-1 tokens"):
        CATALOG.price_list(SONNET, at=OCTOBER, input_tokens=-1)


def test_the_overlays_usual_place_may_be_empty(tmp_path: Path):
    """No file is no prices of one's own; a broken one is an error."""
    assert fresh(Catalog.load(tmp_path / "prices.toml").price_list(SONNET, at=OCTOBER, input_tokens=1)) == 2
    with pytest.raises(ConfigError, match="has no price"):
        overlaid(tmp_path, f'[[price]]\nmodel = "{SONNET}"\n')


_EDGES = [
    datetime(year, month, day, tzinfo=UTC) + timedelta(microseconds=aside)
    for year, month, day in ((2024, 10, 8), (2025, 6, 10), (2026, 3, 13), (2026, 8, 21), (2026, 10, 1), (2026, 10, 14))
    for aside in (-1, 0, 1)
]
_LENGTHS = [0, 1, 100_000, 100_001, 128_000, 128_001, 200_000, 200_001, 272_000, 272_001, 10**7]
_MODELS = [
    "openai/gpt-5.6-sol",
    "openai/o3",
    "openai/gpt-5.4",
    "anthropic/claude-opus-4-6",
    SONNET,
    "deepseek/deepseek-chat",
]
_OVERLAY = """
[[price]]
model = "openai/gpt-5.4"
valid_from = 2026-08-21
valid_until = 2026-10-01
input_fresh_per_million_usd = 1
[[price.above]]
input_tokens = 100_000
input_fresh_per_million_usd = 2

[[price]]
model = "openai/*"
tier = "batch"
times_standard = "0.4"
valid_until = 2026-10-14
"""
_ASKED = st.tuples(
    st.sampled_from(_MODELS),
    st.one_of(st.sampled_from(_EDGES), st.integers(0, 20_000).map(lambda hours: _EDGES[1] + timedelta(hours=hours))),
    st.sampled_from(["standard", "batch", "flex"]),
    st.one_of(st.sampled_from(_LENGTHS), st.integers(0, 10**6)),
)


@pytest.fixture(scope="module")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prices") / "prices.toml"
    path.write_text(_OVERLAY, encoding="utf-8")
    return path


def quoted(catalog: Catalog, model: str, at: datetime, tier: str, input_tokens: int) -> PriceList | str:
    try:
        return catalog.price_list(model, at=at, tier=tier, input_tokens=input_tokens)
    except PricingError as error:
        return error.message


@given(asked=st.lists(_ASKED, min_size=2, max_size=12))
def test_prices_that_were_asked_for_before_are_those_of_the_day(
    overlay: Path, asked: list[tuple[str, datetime, str, int]]
):
    """A catalog remembers what it quoted, and never across an edge of a price in time or in the prompt's length."""
    used = Catalog.load(overlay)
    for model, at, tier, input_tokens in asked:
        rates, fresh_rates = (
            quoted(catalog, model, at, tier, input_tokens) for catalog in (used, Catalog.load(overlay))
        )
        assert rates == fresh_rates


def test_whether_a_model_is_known_needs_no_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that may have been meant are looked for when somebody is told of them, and not before."""
    monkeypatch.setattr("difflib.get_close_matches", lambda *_, **__: pytest.fail("nobody asked"))
    catalog = Catalog.load()
    assert catalog.knows("anthropic/claude-haiku-4-5")
    assert not catalog.knows("anthropic/no-such-model")
    assert not catalog.knows("no-such-model")
