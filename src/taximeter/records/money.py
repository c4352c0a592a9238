"""Prices and amounts. Decimals in memory, never floats."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, localcontext
from typing import ClassVar, Final, Self

from taximeter.records.basis import Basis

PICODOLLARS_PER_DOLLAR = 10**12
NS_PER_HOUR = 3_600_000_000_000

_PER_HOUR: Final = re.compile(r"\$?\s*(?P<amount>\d+(\.\d+)?|\.\d+)\s*(/\s*(h|hr|hour))?", re.ASCII)

EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
"""Decimal arithmetic that never loses a digit; the ambient context keeps 28. For sums and products, not quotients."""


def exact_sum(amounts: Iterable[Decimal]) -> Decimal:
    """The sum of `amounts`, every digit of it. Plain `sum` rounds to 28 digits: past 10^16 dollars it drops
    picodollars."""
    with localcontext(EXACT):
        return sum(amounts, Decimal(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A price for one unit of usage: `amount` dollars for `per` units.

    `unit` is the name of a leaf of `Usage`, of one of its `other_units`, or `compute_ns` for our own machine.
    """

    unit: str
    amount: Decimal
    per: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceList:
    """The rates of one model, as they stood at one instant, and where they come from.

    `model` is `provider/model`. `source` names the catalog and its version, or the user's overlay file.
    `valid_from` and `valid_until` (exclusive) are the price's own dates, None where the source gives none.
    `checked_on` is the day somebody compared it with the provider's page. `tier` is the service tier the rates are
    for (`standard`, `batch`, ...).
    """

    model: str
    rates: tuple[Rate, ...]
    source: str
    tier: str = "standard"
    valid_from: datetime | None = None
    valid_until: datetime | None = None
    checked_on: date | None = None
    basis: Basis = Basis.REPORTED

    def rate(self, unit: str) -> Rate | None:
        """The rate for `unit`, None when this list has none."""
        for rate in self.rates:
            if rate.unit == unit:
                return rate
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRate:
    """What an hour of our own machine costs, in dollars. Somebody said so: its basis is *assumed* unless billed."""

    amount_per_hour: Decimal
    basis: Basis = Basis.ASSUMED

    @classmethod
    def parse(cls, text: str) -> Self:
        """Dollars per hour as people write them: `0.50/h`, `$0.50/h`, `0.5`. Raises ValueError with what it must be."""
        match = _PER_HOUR.fullmatch(text.strip().lower())
        if match is None:
            raise ValueError("dollars per hour, such as 0.50/h")
        return cls(amount_per_hour=Decimal(match["amount"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLine:
    """One line of a bill: `quantity` of `unit` at `rate` makes `amount` dollars, exact to the picodollar. `model` is
    whose rate it is, where another model than the served one took part in the call."""

    unit: str
    quantity: int
    rate: Rate
    amount: Decimal
    basis: Basis
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a request costs: the exact sum of its lines, in US dollars. `price_list` is None for our own machine."""

    lines: tuple[CostLine, ...]
    basis: Basis
    price_list: PriceList | None = None

    JSON_PROPERTIES: ClassVar[tuple[str, ...]] = ("total", "input", "output")

    @property
    def total(self) -> Decimal:
        return exact_sum(line.amount for line in self.lines)

    @property
    def input(self) -> Decimal | None:
        """What reading the prompt costs; None when the lines cannot tell (a machine's time is one line)."""
        return self._side("input_")

    @property
    def output(self) -> Decimal | None:
        """What writing the answer costs; None when the lines cannot tell."""
        return self._side("output_")

    def _side(self, prefix: str) -> Decimal | None:
        if self.price_list is None:
            return None
        return exact_sum(line.amount for line in self.lines if line.unit.startswith(prefix))
