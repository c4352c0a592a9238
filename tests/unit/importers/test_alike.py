"""Calls that are alike are booked by columns, and have the receipts that they would have had one by one."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.importers.alike import sorted_out
from taximeter.importers.booking import Books
from taximeter.importers.instants import epoch_us
from taximeter.importers.logged import LoggedCall, Origin
from taximeter.importers.timing import reported_timing
from taximeter.ledger.rows import LARGEST
from taximeter.providers.metering.plain import LEAVES
from taximeter.records import Dialect, Terms, exact_sum
from tests.unit.importers.logs import desk

ORIGINS = [
    Origin(source="proxy", dialect=Dialect.UNSAID, provider=provider, session=session, labels=labels)
    for provider, session, labels in (
        (None, "s", {}),
        (None, "another", {"team": "search"}),
        (None, "longer than a column has room for" * 20, {}),
        ("openai", None, {"team": "search"}),
    )
]
TERMS = [None, Terms(tier="priority")]
INSTANTS = st.datetimes(min_value=datetime(2015, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - as hypothesis wants it
TIMES = st.none() | st.tuples(st.integers(0, 10 * 24 * 3_600 * 10**9), st.none() | st.integers(0, 10**12))


@st.composite
def calls(draw: st.DrawFn) -> list[LoggedCall]:
    """Of a few origins and models, with times or without."""
    count = draw(st.integers(1, 12))
    made: list[LoggedCall] = []
    for number in range(count):
        times = draw(TIMES)
        made.append(
            LoggedCall(
                f"call {number}",
                epoch_us(draw(INSTANTS).isoformat()) or 0,
                draw(st.sampled_from(ORIGINS)),
                draw(st.sampled_from(["opus-card", "g5-card", "nobody's"])),
                tuple(draw(st.lists(st.integers(0, 2_000_000), min_size=len(LEAVES), max_size=len(LEAVES)))),
                terms=draw(st.sampled_from(TERMS)),
                reported=draw(st.none() | st.sampled_from([Decimal("0.02"), Decimal(0)])),
                model_asked=draw(st.none() | st.just("what was asked for")),
                finish_reason=draw(st.none() | st.just("stop")),
                request_id=draw(st.none() | st.just(f"theirs {number}")),
                timing=None if times is None else reported_timing(*times),
            )
        )
    return made


@settings(max_examples=25, deadline=None)
@given(calls())
def test_the_receipts_are_the_same(logged: list[LoggedCall]) -> None:
    """To the nanosecond and the picodollar, and so are the sums."""
    with desk() as one:
        books = Books(one.catalog)
        alike, others = sorted_out(logged)
        assert all(call.timing is not None and call.timing.total_ns > LARGEST for call in others)
        entries = [entry for each in alike for entry in books.entries(each)]
        became = one.ledger.append_many([*entries, *map(books.entry, others)])
        assert became.written == len(logged)
        whole = {receipt.id: receipt for receipt in map(books.entry, logged)}
        assert {receipt.id: receipt for receipt in one.receipts()} == whole
        everything = one.ledger.group("all", "")
    assert everything is not None
    assert everything.cost == exact_sum(each.cost.total for each in whole.values() if each.cost is not None)


def test_a_first_chunk_is_on_a_whole_receipt() -> None:
    """Columns have no place for it."""
    call = LoggedCall("a", epoch_us("2026-10-29T12:00:00Z") or 0, ORIGINS[0], "g5-card", (1,) * len(LEAVES))
    call.timing = reported_timing(2_000_000, 1_000)
    assert call.is_plain
    assert call.timing is not None
    call.timing.first_chunk_ns = 500
    assert not call.is_plain
