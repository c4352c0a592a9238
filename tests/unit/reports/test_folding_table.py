"""A table of a page is as wide as it has to be, and where there is less room each row is a card."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from taximeter.reports.cells import Column
from taximeter.reports.folding_table import folding_table

_names = Column(heading="label <of> somebody", cells=('</style><b>"', "b"), total="total", is_number=False)


def _width_rem(table: str) -> float:
    found = re.search(r"@container \(max-width: ([0-9.]+)rem\)", table)
    assert found is not None
    return float(found[1])


def test_a_card_says_what_each_of_its_figures_is() -> None:
    table = [_names, Column(heading="cost", cells=("$1", "?")), Column(heading=" ", cells=("", "+ 1 unpriced"))]
    made = folding_table(table, 2, name="tokens")
    labels = re.findall(r'#tokens td:nth-child\((\d)\)::before \{ content: "([^"]*)"', made)
    assert labels == [("2", "cost"), ("3", r"\a0")]
    assert len(re.findall(r"<td>|<td class", made)) == 3 * 3


def test_names_of_strangers_are_texts() -> None:
    """Neither markup nor words of the style."""
    made = folding_table([_names, Column(heading="cost", cells=("$1", "$2"))], 2, name="tokens")
    style, _, rest = made.partition("</style>")
    assert "somebody" not in style
    assert "</style" not in rest
    assert "&lt;/style&gt;&lt;b&gt;" in rest


@given(cells=st.lists(st.text("0123456789,$", min_size=1, max_size=30), min_size=2, max_size=2))
def test_longer_numbers_need_more_room(cells: list[str]) -> None:
    column = Column(heading="fresh", cells=tuple(cells))
    longer = Column(heading="fresh", cells=tuple(f"{cell}00000" for cell in cells))
    narrow, wide = (_width_rem(folding_table([_names, each], 2, name="t")) for each in (column, longer))
    assert narrow < wide


def test_words_may_stand_below_each_other_and_numbers_may_not() -> None:
    cells = ("12 of 100 seconds", "1 s")
    words, numbers = (
        _width_rem(folding_table([_names, Column(heading="x", cells=cells, is_number=is_number)], 2, name="t"))
        for is_number in (False, True)
    )
    assert words < numbers


@given(digits=st.integers(1, 40))
def test_figures_of_a_card_do_not_run_into_each_other(digits: int) -> None:
    """The longest has room in bold letters, as the total has it; a page that is narrower has one below the other."""
    table = [_names, Column(heading="fresh", cells=("1", "2"), total="9" * digits)]
    (rem,) = re.findall(r"minmax\(min\(100%, ([0-9.]+)rem\), 1fr\)", folding_table(table, 2, name="t"))
    assert float(rem) >= max(6.2, 0.55 * digits)
