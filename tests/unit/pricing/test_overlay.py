"""The overlay file: what it may say, and what it is told when it says something else."""

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from taximeter.errors import ConfigError
from taximeter.pricing.overlay import Overlay, OverlayPrice, tier_name
from taximeter.pricing.periods import Period
from taximeter.records import Basis, Rate, Usage

OCTOBER = datetime(2026, 10, 29, tzinfo=UTC)
PRICED = 'input_fresh_per_million_usd = "2"\noutput_per_million_usd = "10"\n'


def parse(text: str) -> Overlay:
    return Overlay.parse(text, name="prices.toml")


def entry(fields: str, *, model: str = "maker/model", tier: str = "standard", at: datetime = OCTOBER) -> OverlayPrice:
    found, _ = parse(f'[[price]]\nmodel = "{model}"\n{fields}').select([model], tier, at)
    assert found is not None
    return found


def test_a_whole_entry():
    """Every field that the format has."""
    price = entry(
        'tier = "flex"\nvalid_from = 2026-10-01\nvalid_until = 2026-11-01T12:00:00+02:00\n'
        'source = "contract 17"\nchecked_on = 2026-10-02\nbasis = "assumed"\n' + PRICED,
        tier="flex",
    )
    assert price.period == Period(start=datetime(2026, 10, 1, tzinfo=UTC), end=datetime(2026, 11, 1, 10, tzinfo=UTC))
    assert (price.source, price.checked_on, price.basis) == ("contract 17", date(2026, 10, 2), Basis.ASSUMED)
    assert price.rates(0) == (
        Rate(unit="output_text_tokens", amount=Decimal(10), per=1_000_000),
        Rate(unit="output_reasoning_tokens", amount=Decimal(10), per=1_000_000),
        Rate(unit="input_fresh_tokens", amount=Decimal(2), per=1_000_000),
    )


def test_what_is_left_out():
    """An entry without dates, tier or source is the standard price, always, from this file."""
    price = entry(PRICED)
    assert price.period == Period()
    assert (price.tier, price.source, price.checked_on, price.basis) == (
        "standard",
        "prices.toml",
        None,
        Basis.REPORTED,
    )


@pytest.mark.parametrize("written", ['"0.1"', "0.1", "1e-1"])
def test_numbers_keep_their_digits(written: str):
    """A tenth is a tenth, in quotes or not: no binary fraction comes between."""
    assert entry(f"input_fresh_per_million_usd = {written}").rates(0)[0].amount == Decimal("0.1")


def test_units_are_named_in_the_fields():
    """A price says what it is for: a million, a thousand, one."""
    price = entry(
        'input_audio_per_million_usd = "32"\nweb_searches_per_thousand_usd = 10\nrequests_per_one_usd = "0.005"\n'
        'input_fresh_per_token_usd = "0.000002"\noutput_per_thousand_usd = "0.01"\n'
        "output_reasoning_per_million_usd = 12"
    )
    rates = {rate.unit: (rate.amount, rate.per) for rate in price.rates(0)}
    assert rates == {
        "input_audio_tokens": (Decimal(32), 1_000_000),
        "web_searches": (Decimal(10), 1_000),
        "requests": (Decimal("0.005"), 1),
        "input_fresh_tokens": (Decimal("0.000002"), 1),
        "output_text_tokens": (Decimal("0.01"), 1_000),
        "output_reasoning_tokens": (Decimal(12), 1_000_000),
    }


def test_every_bucket_can_have_a_price():
    """Each leaf of a usage has a field, but for a write of unknown lifetime, which is priced as a known one."""
    stems = [leaf.removesuffix("_tokens") for leaf in Usage.INPUT_LEAVES + Usage.OUTPUT_LEAVES if "unknown" not in leaf]
    price = entry("\n".join(f"{stem}_per_million_usd = 2" for stem in stems))
    assert {rate.unit for rate in price.rates(0)} == {f"{stem}_tokens" for stem in stems}


def test_context_thresholds_hold_above_them():
    """Exactly on a threshold is still below it."""
    price = entry(
        PRICED
        + "[[price.above]]\ninput_tokens = 100\ninput_fresh_per_million_usd = 3\noutput_per_million_usd = 11\n"
        + "[[price.above]]\ninput_tokens = 200\ninput_fresh_per_million_usd = 4\noutput_per_million_usd = 12\n"
    )
    outputs = [price.rates(tokens)[0].amount for tokens in (0, 1, 100, 101, 200, 201)]
    assert outputs == [10, 10, 10, 11, 11, 12]


def test_later_prices_are_appended():
    """The entry that began last holds, and says from when to when."""
    overlay = parse(
        f'[[price]]\nmodel = "m/x"\n{PRICED}'
        f'[[price]]\nmodel = "m/x"\nvalid_from = 2026-08-21\nsource = "new"\n{PRICED}'
        f'[[price]]\nmodel = "m/x"\nvalid_from = 2026-10-01\nvalid_until = 2026-10-08\nsource = "offer"\n{PRICED}'
    )

    def holding(day: date) -> tuple[str, Period]:
        found, period = overlay.select(["m/x"], "standard", datetime(day.year, day.month, day.day, tzinfo=UTC))
        assert found is not None
        return found.source, period

    august, october, eighth = (datetime(2026, *day, tzinfo=UTC) for day in ((8, 21), (10, 1), (10, 8)))
    assert holding(date(2026, 8, 20)) == ("prices.toml", Period(end=august))
    assert holding(date(2026, 8, 21)) == ("new", Period(start=august, end=october))
    assert holding(date(2026, 10, 7)) == ("offer", Period(start=october, end=eighth))
    assert holding(date(2026, 10, 8)) == ("new", Period(start=eighth))


def test_an_entry_for_the_model_beats_one_for_its_provider():
    """However young the general discount is."""
    overlay = parse(
        f'[[price]]\nmodel = "m/x"\nsource = "own"\n{PRICED}'
        '[[price]]\nmodel = "m/*"\nvalid_from = 2026-10-01\ntimes_standard = "0.9"\n'
    )
    own, _ = overlay.select(["m/x"], "standard", OCTOBER)
    other, _ = overlay.select(["m/y"], "standard", OCTOBER)
    assert own is not None
    assert own.source == "own"
    assert other is not None
    assert other.times_standard == Decimal("0.9")
    assert overlay.select(["n/x"], "standard", OCTOBER)[0] is None
    assert overlay.models() == ["m/x"]


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ("", "has no price"),
        ('input_fersh_per_million_usd = "2"', "unknown field.*did you mean input_fresh_per_million_usd"),
        ('input_fresh_per_milion_usd = "2"', "unknown field"),
        ('input_fresh = "2"', "unknown field"),
        ("input_fresh_per_million_usd = true", "must be a number"),
        ('input_fresh_per_million_usd = "two"', "not a number"),
        ("input_fresh_per_million_usd = -1", "not negative"),
        ("input_fresh_per_million_usd = inf", "finite"),
        ("input_fresh_per_million_usd = nan", "finite"),
        (PRICED + 'valid_from = "2026-10-29"', "must be a date"),
        (PRICED + "valid_from = 2026-10-29T10:00:00", "without a time zone"),
        (PRICED + "valid_from = 2026-10-29\nvalid_until = 2026-10-29", "ends before it begins"),
        (PRICED + "checked_on = 2026-10-29T10:00:00Z", "checked_on must be a date"),
        (PRICED + 'basis = "hearsay"', "basis 'hearsay' is none of reported"),
        (PRICED + "tier = 1", "tier must be text"),
        (PRICED + 'times_standard = "0.5"', "either the one or the others"),
        ("times_standard = 0", "nothing is free by a factor"),
        (PRICED + "above = 5", "no list of tables"),
        (PRICED + "[[price.above]]\noutput_per_million_usd = 1", "needs input_tokens"),
        (PRICED + "[[price.above]]\ninput_tokens = 5\noutput_per_million_usd = 11", "same units"),
        (
            PRICED
            + "[[price.above]]\ninput_tokens = 9\ninput_fresh_per_million_usd = 3\noutput_per_million_usd = 11\n"
            + "[[price.above]]\ninput_tokens = 9\ninput_fresh_per_million_usd = 3\noutput_per_million_usd = 11\n",
            "must ascend",
        ),
    ],
)
def test_what_is_not_understood_is_refused(fields: str, complaint: str):
    """No field is ignored and no price guessed: the file is fixed, or not used."""
    with pytest.raises(ConfigError, match=complaint) as refused:
        parse(f'[[price]]\nmodel = "maker/model"\n{fields}')
    assert "prices.toml, price 1 (maker/model)" in refused.value.message


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[price]", "not TOML"),
        ("[prices]", "unknown entry 'prices'"),
        ("price = 1", "no list of tables"),
        ("[price]\nmodel = 'a/b'", "no list of tables"),
        (PRICED, "unknown entry"),
        (f"[[price]]\n{PRICED}", "model must be text"),
        (f'[[price]]\nmodel = "model"\n{PRICED}', "does not say whose"),
        (f'[[price]]\nmodel = "maker/*"\n{PRICED}', "can only be a factor"),
        (f'[[price]]\nmodel = "m/x"\n{PRICED}[[price]]\nmodel = "M/X"\n{PRICED}', "begin at the same time"),
    ],
)
def test_a_file_of_another_shape_is_refused(text: str, complaint: str):
    """The complaint says what is wrong, and where."""
    with pytest.raises(ConfigError, match=complaint):
        parse(text)


@pytest.mark.parametrize(
    "field",
    [
        "input_fresh_per_million_usd = 1000.01",
        "input_fresh_per_million_usd = 0.0009",
        "input_fresh_per_million_usd = 0",
        "input_fresh_per_token_usd = 8",
        "output_per_thousand_usd = 2",
    ],
)
def test_an_unusual_price_needs_a_confirmation(field: str):
    """Somebody who is off by a million is asked; somebody who means it says so."""
    with pytest.raises(ConfigError, match=r"per million tokens.*confirm_unusual_prices"):
        entry(field)
    assert entry(f"{field}\nconfirm_unusual_prices = true").rates(0)
    for usual in ("1000", "0.001"):
        assert entry(f"input_fresh_per_million_usd = {usual}").rates(0)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path):
    """Prices that somebody meant to apply are never left out quietly."""
    with pytest.raises(ConfigError, match="cannot be read"):
        Overlay.load(tmp_path / "missing.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        Overlay.load(tmp_path / "latin.toml")


def test_tiers_have_one_name_each():
    """Providers' words for the standard tier are one; other words are names of their own."""
    assert [tier_name(word) for word in ("default", " Standard", "on_demand", "Batch", "mine")] == [
        "standard",
        "standard",
        "standard",
        "batch",
        "mine",
    ]


def test_the_documented_file_is_read():
    """The example in docs/prices.md means what it says there."""
    page = (Path(__file__).parents[3] / "docs" / "prices.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    overlay = parse(example)
    contract, _ = overlay.select(["anthropic/claude-sonnet-5-5"], "standard", datetime(2026, 11, 1, tzinfo=UTC))
    assert contract is not None
    assert (contract.times_standard, contract.source) == (Decimal("0.9"), "contract 17")
    assert overlay.select(["openai/gpt-5"], "flex", OCTOBER)[0] is None
    own, _ = overlay.select(["home/our-model"], "standard", OCTOBER)
    assert own is not None
    assert own.rates(200_000) != own.rates(200_001)
