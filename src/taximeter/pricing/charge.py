"""Usage times prices. Every dollar amount in Taximeter is rounded here, once, and nowhere else.

Owns: the product of a quantity and a rate, to the picodollar, half to even, and the bill of one request. Refuses to
know: where a price comes from.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from taximeter.errors import PricingError
from taximeter.records import EXACT, PICODOLLARS_PER_DOLLAR, Basis, Cost, CostLine, PriceList, Rate, Usage, weakest

REQUESTS_UNIT = "requests"

_PICODOLLAR_DIGITS = len(str(PICODOLLARS_PER_DOLLAR)) - 1


def picodollars(quantity: int, rate: Rate) -> int:
    """`quantity` units at `rate`, to the nearest picodollar, half to even: the only rounding.

    It rounds nothing as long as the rate has at most six decimals per million, as published prices do. Exact integers
    throughout, so no quantity is too large.
    """
    dollars_numerator, dollars_denominator = rate.amount.as_integer_ratio()
    return round(Fraction(quantity * dollars_numerator * PICODOLLARS_PER_DOLLAR, dollars_denominator * rate.per))


def dollars(amount_picodollars: int) -> Decimal:
    """The same amount in dollars, exactly."""
    return Decimal(amount_picodollars).scaleb(-_PICODOLLAR_DIGITS, context=EXACT)


def charge(usage: Usage, price_list: PriceList) -> Cost:
    """The bill for one request's usage: one line for each unit that was used.

    The buckets of `Usage` are exclusive, so each is multiplied by its own rate and none is subtracted from another. A
    price list with a fee per `requests` adds it once. A line's basis is the weakest of the usage's and the list's,
    and at best *derived*: we calculated it, the provider did not say it.

    Raises PricingError when a bucket is unknown, or when a used unit has no rate: never a guess, never zero.
    """
    quantities: dict[str, int] = {}
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
    if price_list.rate(REQUESTS_UNIT) is not None:
        quantities.setdefault(REQUESTS_UNIT, 1)

    basis = weakest((usage.basis, price_list.basis, Basis.DERIVED))
    lines: list[CostLine] = []
    for unit, quantity in quantities.items():
        if quantity == 0:
            continue
        if quantity < 0:
            raise PricingError(f"{quantity} {unit} cannot be billed: a quantity is never negative")
        rate = price_list.rate(unit)
        if rate is None:
            raise PricingError(
                f"{price_list.model} ({price_list.tier}) has no price for {unit}, and {quantity} were used",
                hint=f"the list is from {price_list.source}; give the price in your overlay file",
            )
        amount = dollars(picodollars(quantity, rate))
        lines.append(CostLine(unit=unit, quantity=quantity, rate=rate, amount=amount, basis=basis))
    return Cost(lines=tuple(lines), basis=basis, price_list=price_list)
