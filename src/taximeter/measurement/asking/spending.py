"""What a measurement costs before it is made, and that it stops before it costs more than it may.

Owns: the estimate, and the purse. Refuses to know: prices, which a tariff brings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from taximeter.errors import PricingError, RequestError
from taximeter.pricing import Tariff
from taximeter.records import Dialect, Receipt, Request, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What is expected to be billed, None with the reason where no price is known."""

    requests: int
    input_tokens: int
    output_tokens: int
    amount: Decimal | None
    unknown_reason: str | None = None


def estimate(
    tariff: Tariff | None, model: str, plan: Iterable[tuple[int, int, int]], *, at: datetime, why_none: str
) -> Estimate:
    """The price of `plan`: how often a prompt of so many tokens is answered with so many (times, prompt, output), at
    the prices of `at`. Nothing is taken to come from a cache. `why_none` is the reason where there is no tariff.
    """
    kinds = list(plan)
    requests = sum(times for times, _, _ in kinds)
    read = sum(times * prompt for times, prompt, _ in kinds)
    written = sum(times * output for times, _, output in kinds)
    amount: Decimal | None = None
    reason: str | None = why_none
    if tariff is not None:
        try:
            amount = sum(
                (times * _price(tariff, model, prompt, output, at) for times, prompt, output in kinds), Decimal(0)
            )
            reason = None
        except PricingError as error:
            reason = error.message
    return Estimate(requests=requests, input_tokens=read, output_tokens=written, amount=amount, unknown_reason=reason)


def _price(tariff: Tariff, model: str, prompt_tokens: int, output_tokens: int, at: datetime) -> Decimal:
    cost = tariff.cost(
        receipt_id="estimate",
        request=Request(id="estimate", received_at=at, received_ns=0, dialect=Dialect.UNSAID, model=model),
        model_served=None,
        usage=Usage(input_fresh_tokens=prompt_tokens, input_cache_read_tokens=0, output_text_tokens=output_tokens),
        terms=None,
        at=at,
    )
    return cost.total


class Purse:
    """What may be spent, and what has been. `most` None is no limit.

    It is asked before each request, with what that is expected to cost, and told of each receipt. With a limit, a
    request whose price is not known is not sent: its cost could be anything.
    """

    def __init__(self, most: Decimal | None = None) -> None:
        """Raises RequestError for a limit below nothing."""
        if most is not None and most < 0:
            raise RequestError("the limit of what may be spent cannot be negative", param="max-cost")
        self.most = most
        self.spent = Decimal(0)
        self.unpriced = 0

    def allows(self, expected: Decimal | None) -> bool:
        """Whether a request may be sent that is expected to cost so much; None is not known."""
        if self.most is None:
            return True
        return expected is not None and self.spent + expected <= self.most

    def add(self, receipt: Receipt) -> None:
        """It has been billed."""
        if receipt.cost is None:
            self.unpriced += 1
        else:
            self.spent += receipt.cost.total
