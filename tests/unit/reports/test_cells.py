"""What a figure looks like in a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.records import Outcome, Receipt, Task
from taximeter.reports.cells import columns, name_text, tokens_text
from taximeter.reports.facts import facts
from taximeter.reports.question import Question
from taximeter.reports.report import Report, answer
from taximeter.reports.terminal import fitting
from tests.slices_oracle import ReceiptsInMemory
from tests.unit.reports.worlds import NOW, a_receipt, ended


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


def _rows(*receipts: Receipt, by: str = "model", ends: Sequence[Task] = ()) -> Report:
    question = Question(by=by, since=NOW - timedelta(days=7), until=NOW, zone=ZoneInfo("UTC"))
    return answer(ReceiptsInMemory(receipts, ends=ends), question, NOW)


def test_what_has_no_known_cost_has_not_fallen_to_nothing() -> None:
    """Neither in its row nor in the total: a change is between two costs that are known."""
    last_week = NOW - timedelta(days=8)
    found = _rows(a_receipt(dollars=None), a_receipt(last_week, dollars="5"))
    assert "change" not in [column.heading for column in columns(found)]
    (cost,) = (said for about, said in facts(found) if about == "cost")
    assert cost.startswith("? + 1 unpriced; against $5.0000 in the 7 days before")


def test_failures_of_which_no_cost_is_known_are_not_for_nothing() -> None:
    found = _rows(a_receipt(), a_receipt(dollars=None, outcome=Outcome.FAILED))
    assert ("incomplete", "1 of 2 requests (1 failed): ? + 1 unpriced") in facts(found)


def test_a_finished_task_without_requests_cost_nobody_knows_what() -> None:
    """So did one none of whose requests has a cost; what the others cost is a sum."""
    empty, unknown = ended("empty"), ended("unknown", succeeded=False)
    found = _rows(a_receipt(task="unknown", dollars=None), ends=[empty, unknown])
    told = dict(facts(found))
    assert (told["succeeded"], told["failed"]) == ("1 task, ?", "1 task, ? + 1 unpriced")
    assert told["finished"] == "2 tasks, ? + 1 unpriced"


def test_the_running_block_says_what_it_leaves_out() -> None:
    unpriced = a_receipt(dollars=None)
    said = [dict(facts(_rows(*some, by="block")))["block"] for some in ([unpriced], [unpriced, a_receipt()])]
    assert said[0].endswith("min left of the running block, of which no cost is known")
    assert said[1].endswith("if it goes on so (modelled); 1 unpriced in neither")


@pytest.mark.parametrize("width", range(20, 60))
def test_hours_of_blocks_are_not_cut(width: int) -> None:
    """In Kolkata one begins at half past: without its minutes it would be another one."""
    found = _rows(a_receipt(dollars="1234.5"), a_receipt(NOW - timedelta(days=2), dollars=None), by="block")
    found = replace(found, question=replace(found.question, zone=ZoneInfo("Asia/Kolkata")))
    (name, *_) = fitting(columns(found), width)
    whole = [name_text(found.question, row) for row in found.rows]
    assert list(name.cells) in (whole, [text.removeprefix("2026-") for text in whole]) or width < 36
