"""How tasks ended."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from taximeter.ledger import Ledger
from taximeter.records import Task
from tests.unit.ledger.records import NOON, a_receipt, a_request

LATER = NOON + timedelta(hours=1)


def test_the_last_word_counts_and_the_others_are_kept(ledger: Ledger) -> None:
    """The same word again is no news; another one is a correction, and both can be seen."""
    assert ledger.task("report") is None
    for succeeded, at in ((True, NOON), (True, NOON), (True, LATER), (False, LATER), (False, NOON), (True, NOON)):
        ledger.finish_task("report", succeeded, at, labels={"team": "search"}).result()
    good = Task(name="report", finished_at=NOON, succeeded=True, labels={"team": "search"})
    bad = Task(name="report", finished_at=LATER, succeeded=False, labels={"team": "search"})
    assert ledger.task_words("report") == [good, bad]
    assert ledger.task("report") == bad
    ledger.finish_task("report", True, LATER).result()
    assert ledger.task("report") == Task(name="report", finished_at=LATER, succeeded=True)
    assert len(ledger.task_words("report")) == 3


def test_a_task_that_goes_on_is_known_by_its_receipts(ledger: Ledger) -> None:
    """Until somebody says how it ended."""
    ledger.append(a_receipt(replace(a_request(), task="report"))).result()
    assert ledger.task("report") == Task(name="report")
    assert ledger.task_words("report") == []


def test_an_end_without_a_time_zone_is_refused_alone(ledger: Ledger) -> None:
    """It would be another instant on every machine."""
    naive = ledger.finish_task("report", True, NOON.replace(tzinfo=None))
    good = ledger.finish_task("other", True, NOON)
    with pytest.raises(Exception, match="time zone"):
        naive.result()
    good.result()
    assert ledger.task("report") is None
