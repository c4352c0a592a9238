"""The page about the ledger says what is so."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from taximeter.ledger import Ledger
from taximeter.ledger.columns import BUCKET_COLUMNS
from tests.unit.ledger import tables
from tests.unit.ledger.records import a_receipt, a_request

PAGE = (Path(__file__).parents[3] / "docs" / "ledger.md").read_text("utf-8")


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_every_question_on_the_page_can_be_asked(ledger: Ledger, path: Path) -> None:
    """Each SQL block runs as it stands, and finds the receipt."""
    ledger.append(a_receipt(replace(a_request(), task="report"), dollars=Decimal("-0.25"))).result()
    questions = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    assert questions
    connection = sqlite3.connect(path)
    answers = [connection.execute(question).fetchall() for question in questions]
    connection.close()
    assert all(len(rows) == 1 for rows in answers)
    assert answers[0][0][2:] == (1, "-1 + 750000000000e-12", -0.25)


def test_every_column_is_on_the_page() -> None:
    """A new column is explained before it ships."""
    parts = BUCKET_COLUMNS.values()  # there is one for each bucket of tokens, says the page
    columns = [name for name in tables.receipts.columns.keys() if name not in parts]  # noqa: SIM118 - no dict
    assert [name for name in columns if f"`{name}`" not in PAGE] == []
