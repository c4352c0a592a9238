"""The page of a report: what it shows first, and axes that can be read."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.reports import as_html
from taximeter.reports.charts import Scale
from taximeter.reports.question import Question
from taximeter.reports.report import answer
from taximeter.reports.sums import Sums
from tests.slices_oracle import ReceiptsInMemory
from tests.unit.reports.worlds import NOW, a_receipt


def test_what_a_row_cost_stands_beside_its_name() -> None:
    """In each of its tables, so that a narrow window shows it too; and with it, by how much that changed."""
    receipts = [
        a_receipt(dollars="3"),
        a_receipt(dollars=None),
        a_receipt(NOW - timedelta(days=8), dollars="2"),
    ]
    question = Question(by="model", since=NOW - timedelta(days=7), until=NOW, zone=ZoneInfo("UTC"), only=())
    page = as_html.as_html(answer(ReceiptsInMemory(receipts), question, NOW))
    tables = [re.findall(r"<th [^>]*>([^<]*)</th>", table) for table in page.split("<table>")[1:]]
    assert len(tables) >= 2
    for headings in tables:
        assert headings[:4] == ["model", "cost", " ", "change"]
        assert len(set(headings)) == len(headings)
    assert {"fresh", "requests"} <= set(tables[0])


@given(largest=st.decimals(min_value=Decimal("1e-9"), max_value=Decimal("1e9"), allow_nan=False, allow_infinity=False))
def test_an_axis_of_dollars_says_each_of_its_amounts(largest: Decimal) -> None:
    """To the digit, and all of them with as many decimals."""
    ticks = Scale.up_to(largest)
    texts = [as_html._tick_text(ticks, number, Sums(cost=largest)) for number in range(ticks.steps + 1)]
    assert [Decimal(text.removeprefix("$").replace(",", "")) for text in texts] == [
        ticks.step * number for number in range(ticks.steps + 1)
    ]
    assert len({len(text.partition(".")[2]) for text in texts}) == 1


@pytest.mark.parametrize(
    ("largest", "texts"),
    [
        ("355.74", ["$0", "$100", "$200", "$300", "$400"]),
        ("1.2", ["$0.00", "$0.50", "$1.00", "$1.50"]),
        ("0.0038", ["$0.000", "$0.001", "$0.002", "$0.003", "$0.004"]),
    ],
)
def test_an_axis_has_no_more_decimals_than_it_needs(largest: str, texts: list[str]) -> None:
    ticks = Scale.up_to(Decimal(largest))
    total = Sums(cost=Decimal(largest))
    assert [as_html._tick_text(ticks, number, total) for number in range(ticks.steps + 1)] == texts
