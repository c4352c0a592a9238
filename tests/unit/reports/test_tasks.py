"""What finished tasks cost, in arithmetic."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest

from taximeter.records import Outcome, Receipt, Task, TaskVerb, TaskWord, Usage
from taximeter.reports import Question, Report, answer
from taximeter.reports.facts import facts, notes
from taximeter.reports.tasks import TaskState
from tests.slices_oracle import ReceiptsInMemory
from tests.unit.reports.worlds import NOW, a_receipt, ended

WEEK = timedelta(days=7)


def ask(
    receipts: list[Receipt], words: list[TaskWord] | None = None, ends: list[Task] | None = None, *, by: str = "task"
) -> Report:
    """The last seven days."""
    world = ReceiptsInMemory(receipts, words or [], ends or [])
    return answer(world, Question(by=by, since=NOW - WEEK, until=NOW, zone=ZoneInfo("UTC")), NOW)


def days_ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


def test_median_p90_and_the_price_of_a_success() -> None:
    """Ten tasks of $1 to $10, of which those of $9 and $10 failed: the median of all is half of $5 and $6, the 90th
    percentile by nearest rank the ninth; a success costs what all of them did, by eight."""
    receipts = [a_receipt(days_ago(1), dollars=str(number), task=f"t{number}") for number in range(1, 11)]
    ends = [ended(f"t{number}", days_ago(0.5), succeeded=number < 9) for number in range(1, 11)]
    tasks = ask(receipts, ends=ends).tasks
    assert (tasks.finished.n, tasks.finished.median, tasks.finished.p90) == (10, Decimal("5.5"), Decimal(9))
    assert (tasks.succeeded.n, tasks.succeeded.median, tasks.succeeded.p90) == (8, Decimal("4.5"), Decimal(8))
    assert (tasks.failed.n, tasks.failed.cost) == (2, Decimal(9 + 10))
    assert tasks.per_success == Decimal(55) / 8


def test_a_success_that_nobody_knows_the_cost_of_makes_no_other_one_cheaper() -> None:
    """A name with a typo, or a log that is still to be imported: no receipts. And one whose receipts have no price."""
    receipts = [a_receipt(days_ago(1), dollars="6", task="a"), a_receipt(days_ago(1), dollars=None, task="b")]
    ends = [ended(name, days_ago(0.5)) for name in ("a", "b", "typo")]
    tasks = ask(receipts, ends=ends).tasks
    assert (tasks.succeeded.n, tasks.succeeded.priced, tasks.per_success) == (3, 1, Decimal(6))
    assert ask([], ends=[ended("typo", days_ago(0.5))]).tasks.per_success is None


def test_a_task_costs_all_of_its_receipts_in_the_period_it_finished_in() -> None:
    """Begun last week and finished in this one: this week's row has this week's dollars, and the task its whole cost.
    In last week's report it did not finish."""
    receipts = [a_receipt(days_ago(9), dollars="3", task="long"), a_receipt(days_ago(1), dollars="2", task="long")]
    report = ask(receipts, ends=[ended("long", days_ago(1))])
    (row,) = report.rows
    assert row.sums.cost == Decimal(2)
    assert row.before is not None
    assert row.before.cost == Decimal(3)
    assert row.task is not None
    assert (row.task.cost, row.task.state) == (Decimal(5), TaskState.SUCCEEDED)
    assert report.tasks.finished.median == Decimal(5)
    assert (report.before.cost, report.tasks_before.finished.n) == (Decimal(3), 0)


def test_unpriced_is_carried_and_is_never_nothing() -> None:
    """$12.00 + 3 unpriced. A task without any price is in no median, one with a part of it is a lower bound."""
    receipts = [
        a_receipt(dollars="12", task="a"),
        a_receipt(dollars=None, task="a"),
        a_receipt(dollars=None, task="b"),
        a_receipt(dollars=None, task="b"),
    ]
    report = ask(receipts, ends=[ended("a"), ended("b")])
    assert (report.total.cost, report.total.unpriced) == (Decimal(12), 3)
    finished = report.tasks.finished
    assert (finished.n, finished.priced, finished.at_least, finished.median) == (2, 1, 1, Decimal(12))
    assert dict(facts(report))["cost"].startswith("$12.0000 + 3 unpriced")
    assert any("3 of 4 requests have no known cost" in note for note in notes(report))
    nothing = ask([a_receipt(dollars=None, task="b")], ends=[ended("b")])
    assert nothing.tasks.finished.median is None
    assert dict(facts(nothing))["cost"].startswith("? + 1 unpriced")


def test_a_task_without_receipts_did_not_cost_nothing() -> None:
    """It finished, and nobody knows what it cost: its log may not be imported."""
    report = ask([a_receipt(dollars="1")], ends=[ended("silent")])
    assert (report.tasks.finished.n, report.tasks.finished.priced, report.tasks.finished.median) == (1, 0, None)
    assert any("1 of the 1 finished tasks has no known cost" in note for note in notes(report))


def test_another_word_on_the_end_changes_the_figures_and_no_receipt() -> None:
    """Failed after all; and open again once it was started again."""
    receipts = [a_receipt(days_ago(2), dollars="1", task="a")]
    ends = [ended("a", days_ago(1)), ended("a", days_ago(0.5), succeeded=False)]
    report = ask(receipts, ends=ends)
    assert (report.tasks.succeeded.n, report.tasks.failed.n, report.tasks.failed.cost) == (0, 1, Decimal(1))
    start = TaskWord(verb=TaskVerb.START, said_at=days_ago(0.2), task="a")
    again = ask(receipts, [start], ends)
    assert again.tasks.finished.n == 0
    assert again.rows[0].task is not None
    assert again.rows[0].task.state is TaskState.OPEN


def test_sessions_as_tasks_end_by_their_silence() -> None:
    """Nobody said how: they count as finished, and neither as a success nor as a failure."""
    receipts = [
        a_receipt(days_ago(2), dollars="4", session="old"),
        a_receipt(NOW - timedelta(minutes=10), dollars="1", session="new"),
        a_receipt(NOW - timedelta(minutes=9), dollars="1"),
    ]
    each = TaskWord(verb=TaskVerb.EACH, said_at=NOW, kind="session", idle_s=3600)
    report = ask(receipts, [each])
    states = {row.name: row.task.state for row in report.rows if row.task is not None}
    assert states == {"old": TaskState.ENDED, "new": TaskState.OPEN}
    assert [row.name for row in report.rows] == ["old", "new", None]
    assert (report.tasks.finished.n, report.tasks.ended.median) == (1, Decimal(4))
    assert report.tasks.per_success is None


def test_unknown_tokens_are_said_once_where_nothing_of_them_is_known() -> None:
    """Five lines that say the same would fill a narrow terminal; a bucket that is unknown by itself has a line."""
    nothing = a_receipt(usage=Usage.unknown("nobody said"))
    answer_alone = Usage(
        input_fresh_tokens=1,
        input_cache_read_tokens=0,
        output_text_tokens=None,
        unknown_reasons={"output_text_tokens": "x"},
    )
    said = [note for note in notes(ask([nothing, a_receipt()])) if "unknown count" in note]
    assert said == ["1 of 2 requests has unknown counts of tokens, shown as `?`"]
    said = [note for note in notes(ask([a_receipt(usage=answer_alone), a_receipt()])) if "unknown count" in note]
    assert said == ["1 of 2 requests has an unknown count of tokens `out`, shown as `?`"]


def test_what_failed_requests_cost_is_told_apart() -> None:
    """Whatever became of their task."""
    receipts = [
        a_receipt(dollars="1"),
        a_receipt(dollars="0.25", outcome=Outcome.ABORTED),
        a_receipt(dollars=None, outcome=Outcome.FAILED),
    ]
    report = ask(receipts, by="model")
    assert (report.total.failures, report.total.failed_cost, report.total.failed_unpriced) == (2, Decimal("0.25"), 1)
    assert dict(facts(report))["incomplete"] == ("2 of 3 requests (1 aborted, 1 failed): $0.2500 + 1 unpriced")


@pytest.mark.parametrize(("now", "before", "said"), [("3", "2", "+50"), ("1", "2", "-50"), ("2", "2", "±0")])
def test_the_trend_is_against_as_long_a_time_before(now: str, before: str, said: str) -> None:
    """What was closed exactly at the edge belongs to the later one."""
    receipts = [a_receipt(NOW - WEEK, dollars=now), a_receipt(NOW - 2 * WEEK, dollars=before)]
    report = ask([*receipts, a_receipt(NOW - 2 * WEEK - timedelta(microseconds=1), dollars="99")], by="day")
    assert (report.total.cost, report.before.cost) == (Decimal(now), Decimal(before))
    assert f"; {said}\N{NO-BREAK SPACE}% against ${before}.0000 in the 7 days before" in dict(facts(report))["cost"]
