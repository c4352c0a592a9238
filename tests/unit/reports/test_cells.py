"""What a figure looks like in a table."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taximeter.reports.cells import tokens_text


@given(known=st.integers(0, 10**15), uncounted=st.integers(0, 5), counted=st.integers(0, 5))
def test_a_count_says_what_is_known_and_whether_that_is_all(known: int, uncounted: int, counted: int) -> None:
    """A question mark alone is of receipts of which none knows it: one that knows there were none knows something."""
    known = known if counted else 0
    said = tokens_text(known, uncounted, uncounted + counted)
    assert said.endswith("?") == bool(uncounted)
    number, plus, _ = said.partition("+")
    assert bool(plus) == bool(uncounted and counted)
    assert int(number.replace(",", "").replace("?", "") or 0) == known
    assert said != "0"
