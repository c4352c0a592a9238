"""Amounts that strangers write."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal, localcontext

from hypothesis import given
from hypothesis import strategies as st

from taximeter.importers.strangers import amount

PICODOLLAR = Decimal("1e-12")
NUMBERS = st.decimals(0, 10**9, allow_nan=False, allow_infinity=False) | st.decimals(0, 10, places=13)


def rounded(number: Decimal) -> Decimal:
    with localcontext(prec=100, rounding=ROUND_HALF_EVEN):
        return number.quantize(PICODOLLAR)


@given(NUMBERS)
def test_a_text_is_its_number_to_the_picodollar(number: Decimal) -> None:
    for said in (str(number), f"{number:f}", f" ${number:f} ", number):
        assert amount(said) == rounded(number)


@given(st.floats(0, 10**9))
def test_a_float_is_the_digits_that_it_is_written_with(number: float) -> None:
    assert amount(number) == amount(repr(number)) == rounded(Decimal(repr(number)))


@given(st.text("0123456789.,eE+-$ _naifNIs", max_size=16))
def test_nothing_that_is_written_raises(said: str) -> None:
    found = amount(said)
    assert found is None or (0 <= found <= 10**9 and found == rounded(found))


def test_an_amount_is_written_in_one_way() -> None:
    """Equal amounts of two logs are the same text in the ledger."""
    assert {str(amount(said)) for said in ("1.50", "1.5", 1.5, "$1.500", "1,5", "15e-1")} == {"1.5"}
    assert {str(amount(said)) for said in ("0", 0, 0.0, "0.00", "1e-20", "-0")} == {"0"}
