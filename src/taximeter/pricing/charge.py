"""Usage times prices. Every dollar amount in Taximeter is rounded here, once, and nowhere else.

Owns: the product of a quantity and a rate, to the picodollar, half to even, and the bill of one request. Refuses to
know: where a price comes from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal

from taximeter.errors import PricingError
from taximeter.records import (
    EXACT,
    PICODOLLARS_PER_DOLLAR,
    Basis,
    Cost,
    CostLine,
    PriceList,
    Rate,
    Usage,
    exact_sum,
    weakest,
)

REQUESTS_UNIT = "requests"

_PICODOLLAR_DIGITS = len(str(PICODOLLARS_PER_DOLLAR)) - 1

# A cache write that nobody says the lifetime of is taken for one of the shortest that the list has a price for: that is
# what a caller gets who asks for no other.
_ASSUMED = {"input_cache_write_unknown_tokens": ("input_cache_write_5m_tokens", "input_cache_write_30m_tokens")}


def picodollars(quantity: int, rate: Rate) -> int:
    """`quantity` units at `rate`, to the nearest picodollar, half to even: the only rounding.

    It rounds nothing as long as the rate has at most six decimals per million, as published prices do. Exact integers
    throughout, so no quantity is too large.
    """
    numerator, denominator = rate.amount.as_integer_ratio()
    denominator *= rate.per
    whole, rest = divmod(quantity * numerator * PICODOLLARS_PER_DOLLAR, denominator)
    return whole + (2 * rest > denominator or (2 * rest == denominator and whole % 2))


def dollars(amount_picodollars: int) -> Decimal:
    """The same amount in dollars, exactly."""
    return Decimal(amount_picodollars).scaleb(-_PICODOLLAR_DIGITS, context=EXACT)


def charge(usage: Usage, price_list: PriceList, others: Mapping[str, PriceList] | None = None) -> Cost:
    """The bill for one request's usage: one line for each unit that was used.

    The buckets of `Usage` are exclusive, so each is multiplied by its own rate and none is subtracted from another. A
    price list with a fee per `requests` adds it once. A line's basis is the weakest of the usage's and the list's,
    and at best *derived*: we calculated it, the provider did not say it. `others` are the lists of the models in
    `usage.by_model`, whose tokens have lines of their own.

    Raises PricingError when a bucket is unknown, when a used unit has no rate, or when another model has no list: never
    a guess, never zero.
    """
    quantities: Counter[str] = Counter()
    for unit, tokens in usage.leaves().items():
        if tokens is None:
            raise PricingError(
                f"{unit} is unknown, so its cost is too: {usage.unknown_reasons[unit]}",
                hint="an unknown bucket is never billed as zero",
            )
        quantities[unit] = tokens
    for unit, quantity in usage.other_units.items():
        if unit in quantities:
            raise PricingError(f"{unit} is counted twice: as a bucket of its own and among the other units")
        quantities[unit] = quantity
    for tokens in usage.by_model.values():
        quantities.subtract(tokens)
    if price_list.rate(REQUESTS_UNIT) is not None:
        quantities.setdefault(REQUESTS_UNIT, 1)

    lines = list(_lines(quantities, price_list, usage.basis, model=None))
    for model, tokens in usage.by_model.items():
        prices = (others or {}).get(model)
        if prices is None:
            raise PricingError(f"{sum(tokens.values())} tokens are {model}'s, which has no price list here")
        lines += _lines(tokens, prices, usage.basis, model=model)
    basis = weakest((usage.basis, price_list.basis, Basis.DERIVED, *(line.basis for line in lines)))
    return Cost(lines=tuple(lines), basis=basis, price_list=price_list)


def surcharge(cost: Cost, *, unit: str, factor: Decimal, basis: Basis) -> Cost:
    """`cost` with one line more: its tokens cost `factor` times as much for where or how they were served.

    What is charged by the piece, such as searches, costs the same everywhere. The line's quantity is the picodollars
    that the tokens cost, its rate the part that is added to them.
    """
    tokens = exact_sum(line.amount for line in cost.lines if line.unit.endswith("_tokens"))
    if not tokens:
        return cost
    quantity = int(tokens.scaleb(_PICODOLLAR_DIGITS, context=EXACT))
    rate = Rate(unit=unit, amount=EXACT.subtract(factor, Decimal(1)), per=PICODOLLARS_PER_DOLLAR)
    basis = weakest((cost.basis, basis))
    line = CostLine(unit=unit, quantity=quantity, rate=rate, amount=dollars(picodollars(quantity, rate)), basis=basis)
    return Cost(lines=(*cost.lines, line), basis=basis, price_list=cost.price_list)


def _lines(
    quantities: Mapping[str, int], prices: PriceList, of_usage: Basis, *, model: str | None
) -> Iterator[CostLine]:
    for unit, quantity in quantities.items():
        if quantity == 0:
            continue
        if quantity < 0:
            raise PricingError(f"{quantity} {unit} cannot be billed: a quantity is never negative")
        rate, basis = _rate(prices, unit)
        if rate is None:
            raise PricingError(
                f"{prices.model} ({prices.tier}) has no price for {unit}, and {quantity} were used",
                hint=f"the list is from {prices.source}; give the price in your overlay file",
            )
        yield CostLine(
            unit=unit,
            quantity=quantity,
            rate=rate,
            amount=dollars(picodollars(quantity, rate)),
            basis=weakest((of_usage, prices.basis, basis)),
            model=model,
        )


def _rate(prices: PriceList, unit: str) -> tuple[Rate | None, Basis]:
    """The rate for a unit, and how well it is known that it is the one."""
    rate = prices.rate(unit)
    if rate is not None or unit not in _ASSUMED:
        return rate, Basis.DERIVED
    rates = (prices.rate(other) for other in _ASSUMED[unit])
    return next((rate for rate in rates if rate is not None), None), Basis.ASSUMED
