"""Usage times prices: exact, and refused where it cannot be exact."""

from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.errors import PricingError
from taximeter.pricing import charge
from taximeter.pricing.charge import dollars, picodollars, surcharge
from taximeter.records import Basis, PriceList, Rate, Usage
from tests.price_card import usage

MILLION = 1_000_000
LEAVES = Usage.INPUT_LEAVES + Usage.OUTPUT_LEAVES

published_prices = st.decimals(min_value=0, max_value=1000, places=6)
token_counts = st.integers(min_value=0, max_value=10**24)


def price_list(basis: Basis = Basis.REPORTED, **per_million: Decimal | str) -> PriceList:
    rates = tuple(Rate(unit=unit, amount=Decimal(amount), per=MILLION) for unit, amount in per_million.items())
    return PriceList(model="maker/model", rates=rates, source="a test", basis=basis)


def full_usage(counts: list[int]) -> Usage:
    return Usage(**dict(zip(LEAVES, counts, strict=True)))


full_price_lists = st.lists(published_prices, min_size=len(LEAVES), max_size=len(LEAVES)).map(
    lambda prices: price_list(**dict(zip(LEAVES, prices, strict=True)))
)
full_counts = st.lists(token_counts, min_size=len(LEAVES), max_size=len(LEAVES))


def test_each_bucket_is_billed_at_its_own_rate():
    """No bucket is billed twice or at another's price."""
    prices = price_list(
        input_fresh_tokens="2",
        input_cache_read_tokens="0.10",
        input_cache_write_5m_tokens="2.50",
        input_cache_write_1h_tokens="4",
        output_text_tokens="10",
        output_reasoning_tokens="11",
    )
    cost = charge(usage(fresh=1, read=20, write_5m=300, write_1h=4_000, text=50_000, reasoning=600_000), prices)
    assert {line.unit: line.amount for line in cost.lines} == {
        "input_fresh_tokens": 1 * Decimal(2) / MILLION,
        "input_cache_read_tokens": 20 * Decimal("0.10") / MILLION,
        "input_cache_write_5m_tokens": 300 * Decimal("2.50") / MILLION,
        "input_cache_write_1h_tokens": 4_000 * Decimal(4) / MILLION,
        "output_text_tokens": 50_000 * Decimal(10) / MILLION,
        "output_reasoning_tokens": 600_000 * Decimal(11) / MILLION,
    }
    assert cost.input == Decimal("0.000002") + Decimal("0.000002") + Decimal("0.00075") + Decimal("0.016")
    assert cost.output == Decimal("0.5") + Decimal("6.6")


@given(full_counts, full_price_lists)
def test_the_lines_sum_to_the_total(counts: list[int], prices: PriceList):
    """The total, and its two sides, are exact sums whatever the size of the amounts."""
    cost = charge(full_usage(counts), prices)
    exact = sum(count * int(rate.amount * MILLION) for count, rate in zip(counts, prices.rates, strict=True))
    assert picos(cost.total) == exact
    assert cost.input is not None
    assert cost.output is not None
    assert picos(cost.input) + picos(cost.output) == exact


@given(full_counts, full_counts, full_price_lists)
def test_splitting_usage_does_not_change_its_price(first: list[int], second: list[int], prices: PriceList):
    """Two requests cost what one with the tokens of both does: published prices leave nothing to round."""
    together = [a + b for a, b in zip(first, second, strict=True)]
    apart = picos(charge(full_usage(first), prices).total) + picos(charge(full_usage(second), prices).total)
    assert picos(charge(full_usage(together), prices).total) == apart


@given(st.integers(0, 10**30), st.decimals(0, 10**6, places=15), st.sampled_from([1, 1000, MILLION, 3_600]))
def test_a_price_too_fine_for_picodollars_is_rounded_once_to_the_nearest(quantity: int, amount: Decimal, per: int):
    """The error of an amount is at most half a picodollar, whatever the price."""
    exact_numerator = quantity * int(amount.scaleb(15)) * 10**12
    exact_denominator = per * 10**15
    rounded = picodollars(quantity, Rate(unit="x", amount=amount, per=per))
    assert abs(rounded * exact_denominator - exact_numerator) * 2 <= exact_denominator


def test_halves_are_rounded_to_even():
    """Half a picodollar goes to the even neighbour, so that halves do not drift upwards."""
    half = Rate(unit="x", amount=Decimal("0.5"), per=10**12)
    assert [picodollars(quantity, half) for quantity in (1, 3, 5, 7)] == [0, 2, 2, 4]


def test_amounts_beyond_64_bits_are_exact_under_any_decimal_context():
    """A total past the range of a 64-bit integer neither wraps nor loses a digit, even in a coarse decimal context."""
    prices = price_list(input_fresh_tokens="0.000001", output_text_tokens="50")
    used = usage(fresh=2**64 + 1, text=10**40)
    with localcontext() as context:
        context.prec = 5
        total = charge(used, prices).total
    assert picos(total) == 10**40 * 50 * 10**6 + (2**64 + 1)


def test_dollars_keep_every_picodollar():
    """Moving the decimal point changes no digit."""
    assert str(dollars(10**30 + 1)) == "1000000000000000000.000000000001"


def test_unused_buckets_have_no_line():
    """A bill lists what was used; a price is needed for nothing else."""
    cost = charge(usage(fresh=10), price_list(input_fresh_tokens="1"))
    assert [line.unit for line in cost.lines] == ["input_fresh_tokens"]
    assert charge(usage(), price_list(input_fresh_tokens="1")).total == 0


def test_an_unknown_bucket_is_refused_with_its_reason():
    """Unknown usage makes unknown cost, never a smaller one."""
    unknown = Usage(
        input_fresh_tokens=10,
        input_cache_read_tokens=None,
        output_text_tokens=5,
        unknown_reasons={"input_cache_read_tokens": "the stream was cut"},
    )
    with pytest.raises(PricingError, match=r"input_cache_read_tokens is unknown.*the stream was cut"):
        charge(unknown, price_list(input_fresh_tokens="1", input_cache_read_tokens="1", output_text_tokens="1"))


def test_a_used_unit_without_a_price_is_refused_by_name():
    """A bucket that the list does not price is neither free nor billed as another."""
    with pytest.raises(PricingError, match="no price for input_cache_write_1h_tokens, and 7 were used"):
        charge(usage(write_1h=7), price_list(input_fresh_tokens="1", input_cache_write_5m_tokens="1.25"))


def test_counted_extras_are_billed_when_used_and_priced():
    """Searches are lines of their own, and they too need a price."""
    searches = Rate(unit="web_searches", amount=Decimal(10), per=1000)
    prices = PriceList(model="maker/model", rates=(searches,), source="a test")
    assert charge(usage(web_searches=2), prices).total == 2 * Decimal(10) / 1000
    with pytest.raises(PricingError, match="code_executions"):
        charge(usage(code_executions=1), prices)
    with pytest.raises(PricingError, match="never negative"):
        charge(usage(web_searches=-1), prices)
    with pytest.raises(PricingError, match="counted twice"):
        charge(usage(output_text_tokens=1), prices)


def test_a_fee_per_request_is_charged_once():
    """A list with a fee per request adds it to every bill, once."""
    fee = Rate(unit="requests", amount=Decimal(5), per=1000)
    fresh = Rate(unit="input_fresh_tokens", amount=Decimal(1), per=MILLION)
    cost = charge(usage(fresh=1_000), PriceList(model="maker/model", rates=(fresh, fee), source="a test"))
    assert cost.total == Decimal("0.001") + Decimal("0.005")


@pytest.mark.parametrize(
    ("of_usage", "of_prices", "expected"),
    [
        (Basis.REPORTED, Basis.REPORTED, Basis.DERIVED),
        (Basis.MEASURED, Basis.ASSUMED, Basis.ASSUMED),
        (Basis.MODELLED, Basis.REPORTED, Basis.MODELLED),
    ],
)
def test_a_cost_is_no_better_known_than_its_inputs(of_usage: Basis, of_prices: Basis, expected: Basis):
    """A cost takes the weakest basis among its inputs, and is at best calculated."""
    cost = charge(usage(fresh=1, basis=of_usage), price_list(of_prices, input_fresh_tokens="1"))
    assert cost.basis is expected
    assert cost.lines[0].basis is expected


def test_a_write_of_unknown_lifetime_costs_what_the_shortest_does():
    """It is billed, at a price that says it is assumed; a price of its own comes first, and none is none."""
    used = Usage(
        input_fresh_tokens=1, input_cache_read_tokens=0, input_cache_write_unknown_tokens=1_000, output_text_tokens=0
    )
    for prices, amount, basis in (
        ({"input_cache_write_5m_tokens": "2", "input_cache_write_30m_tokens": "3"}, "0.002", Basis.ASSUMED),
        ({"input_cache_write_30m_tokens": "3"}, "0.003", Basis.ASSUMED),
        ({"input_cache_write_5m_tokens": "2", "input_cache_write_unknown_tokens": "5"}, "0.005", Basis.DERIVED),
    ):
        cost = charge(used, price_list(input_fresh_tokens="1", **prices))
        lines = {line.unit: (line.amount, line.basis) for line in cost.lines}
        assert lines["input_cache_write_unknown_tokens"] == (Decimal(amount), basis)
        assert lines["input_fresh_tokens"][1] is Basis.DERIVED
        assert cost.basis is basis
    with pytest.raises(PricingError, match="no price for input_cache_write_unknown_tokens"):
        charge(used, price_list(input_fresh_tokens="1", input_cache_write_1h_tokens="4"))


@given(full_counts, full_counts, full_price_lists, full_price_lists)
def test_another_models_tokens_are_billed_at_its_prices(
    own: list[int], others: list[int], prices: PriceList, other_prices: PriceList
):
    """Together they cost what two requests would, and each line says whose it is."""
    together = dict(zip(LEAVES, (a + b for a, b in zip(own, others, strict=True)), strict=True))
    used = Usage(**together, by_model={"advisor": dict(zip(LEAVES, others, strict=True))})
    cost = charge(used, prices, {"advisor": other_prices})
    apart = picos(charge(full_usage(own), prices).total) + picos(charge(full_usage(others), other_prices).total)
    assert picos(cost.total) == apart
    advised = picos(charge(full_usage(others), other_prices).total)
    assert sum(picos(line.amount) for line in cost.lines if line.model == "advisor") == advised


def test_another_model_without_prices_is_refused():
    """Its tokens are neither free nor billed as the served model's."""
    used = Usage(
        input_fresh_tokens=3,
        input_cache_read_tokens=0,
        output_text_tokens=0,
        by_model={"advisor": {"input_fresh_tokens": 2}},
    )
    with pytest.raises(PricingError, match="2 tokens are advisor's"):
        charge(used, price_list(input_fresh_tokens="1"))


@given(full_counts, full_price_lists)
def test_a_surcharge_is_a_part_of_what_tokens_cost(counts: list[int], prices: PriceList):
    """It is one line more, exact to the picodollar, and says that it is assumed if it is."""
    cost = charge(full_usage(counts), prices)
    more = surcharge(cost, unit="geography_us", factor=Decimal("1.1"), basis=Basis.ASSUMED)
    extra = picos(more.total) - picos(cost.total)
    assert abs(extra * 10 - picos(cost.total)) * 2 <= 10
    if cost.lines and cost.total:
        assert more.lines[:-1] == cost.lines
        assert (more.lines[-1].unit, more.basis) == ("geography_us", Basis.ASSUMED)
        assert more.lines[-1].amount == dollars(picodollars(more.lines[-1].quantity, more.lines[-1].rate))
    else:
        assert more == cost


def picos(amount: Decimal) -> int:
    """`amount` in picodollars; an amount with anything finer fails the test."""
    numerator, denominator = amount.as_integer_ratio()
    quotient, rest = divmod(numerator * 10**12, denominator)
    assert rest == 0
    return quotient
