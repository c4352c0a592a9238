"""Figures for the eye: amounts, durations and counts, rounded as people read them; the JSON has every digit.

Owns: how many digits are shown. Refuses to know: where.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal
from fractions import Fraction
from typing import Final

from taximeter.records import decimal_text

SHORT_ID: Final = 16
"""How much of an id is enough for `taximeter receipt` to find it: prefix, milliseconds and a random digit."""

_THREE_DIGITS: Final = Context(prec=3)


def money_text(amount: Decimal, *, beside: Decimal | None = None) -> str:
    """Dollars for the eye: four decimals, and more for small amounts until three digits count; cents from $100 on.

    An amount that stands `beside` another shows as many decimals as that one, so that the points are in line.
    """
    if amount == 0:
        return "$0"
    decimals = max(_decimals(one) for one in (amount, beside) if one is not None)
    return f"{'-' if amount < 0 else ''}${abs(amount):,.{decimals}f}"


def sum_text(amount: Decimal, unpriced: int, *, of: int | None = None) -> str:
    """A sum and what it lacks: `$12.00 + 3 unpriced`; `? + 3 unpriced` where no more than those 3 are summed (`of`)."""
    known = "?" if unpriced and unpriced == of else money_text(amount)
    return known + (f" + {unpriced:,} unpriced" if unpriced else "")


def _decimals(amount: Decimal) -> int:
    if abs(amount) >= 100 or amount == 0:
        return 2
    return max(4, 2 - _THREE_DIGITS.plus(amount).adjusted())


def duration_text(duration_ns: int) -> str:
    """A duration for the eye: milliseconds to a tenth, from a second on seconds to a thousandth."""
    if duration_ns < 1_000_000_000:
        return f"{ms_text(duration_ns)} ms"
    return f"{duration_ns / 1e9:,.3f} s"


def ms_text(duration_ns: int) -> str:
    """Milliseconds to a tenth; what is less, and not nothing, says so."""
    return "<0.1" if 0 < duration_ns < 50_000 else f"{duration_ns / 1e6:,.1f}"


def count_text(count: int | None) -> str:
    """A count, or a question mark for an unknown one."""
    return "?" if count is None else f"{count:,}"


def shared_out(parts: Sequence[int], whole: int) -> list[int]:
    """`whole` units divided in proportion to `parts`, in whole units that sum to it: largest remainders round up.

    Bars and percentages are made with it, so that what is printed adds up like what is stored.
    """
    total = sum(parts)
    if total == 0:
        return [0] * len(parts)
    exact = [Fraction(part * whole, total) for part in parts]
    units = [int(share) for share in exact]
    by_remainder = sorted(range(len(parts)), key=lambda index: units[index] - exact[index])
    for index in by_remainder[: whole - sum(units)]:
        units[index] += 1
    return units


def rate_text(amount: Decimal) -> str:
    """Every digit of a rate, at least cents."""
    whole, _, fraction = decimal_text(amount).partition(".")
    return f"${int(whole):,}.{fraction:0<2}"
