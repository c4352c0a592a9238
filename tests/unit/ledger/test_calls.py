"""Calls by columns: what stands in arrays is what texts say."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from taximeter.ledger.calls import instants_of, stored_instants, texts_of
from taximeter.ledger.rows import stored_instant


@given(st.lists(st.datetimes(timezones=st.just(UTC)), max_size=20))
def test_instants_are_stored_as_those_of_receipts(instants: list[datetime]) -> None:
    """To the microsecond and on any day of any year, and back."""
    texts = [stored_instant(each) for each in instants]
    made = np.array([each.replace(tzinfo=None) for each in instants], dtype="datetime64[us]")
    assert texts_of(stored_instants(made)) == texts
    if texts:
        assert (instants_of(texts) == made).all()
