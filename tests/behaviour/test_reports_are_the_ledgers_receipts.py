"""What a report says of a ledger is what its receipts say, one after the other; and people's words change it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taximeter.ledger import Ledger
from taximeter.records import Receipt, Task, TaskVerb, TaskWord, new_id
from taximeter.reports import Question, Report, answer
from taximeter.reports.sums import Sums
from tests.slices_oracle import ReceiptsInMemory
from tests.unit.reports.worlds import NOW, a_receipt, ends, receipts, words

KINDS = ("task", "session", "model", "day", "block", "label:branch")
SINCE = datetime(2026, 11, 25, 3, 17, tzinfo=UTC)
KOLKATA = ZoneInfo("Asia/Kolkata")  # whose days begin at half past


def written(ledger: Ledger, found: list[Receipt]) -> None:
    for future in [ledger.append(receipt) for receipt in found]:
        future.result()


def asked(source: Ledger | ReceiptsInMemory, by: str, since: datetime = NOW - timedelta(days=1)) -> Report:
    return answer(source, Question(by=by, since=since, until=NOW, zone=KOLKATA), NOW)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with nothing in it, to be copied: making one takes longer than using it."""
    path = tmp_path_factory.mktemp("empty") / "ledger.db"
    Ledger.open(str(path)).close()
    return path


@contextmanager
def a_ledger(empty: Path) -> Iterator[Ledger]:
    with TemporaryDirectory() as folder, Ledger.open(shutil.copy(empty, folder)) as ledger:
        yield ledger


@given(st.lists(receipts(), max_size=9), st.lists(words, max_size=4), st.lists(ends, max_size=3), st.data())
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_ledgers_sums_are_those_of_its_receipts(
    empty: Path, found: list[Receipt], said: list[TaskWord], ended: list[Task], data: st.DataObject
) -> None:
    """With corrections, unknown buckets, days that begin at half past, and tasks by any rule."""
    said = sorted(said, key=lambda word: word.said_at)
    corrected = data.draw(st.sets(st.sampled_from(range(len(found))))) if found else set[int]()
    with a_ledger(empty) as ledger:
        written(ledger, found)
        current = list(found)
        for place in corrected:
            other = data.draw(receipts())
            current[place] = replace(
                other,
                id=new_id("rcpt", other.closed_at),
                request=replace(other.request, id=found[place].request.id),
                supersedes=found[place].id,
            )
            written(ledger, [current[place]])
        for word in said:
            ledger.say(word)
        for end in ended:
            ledger.finish_task(end.name, bool(end.succeeded), end.finished_at or NOW).result()
        kept = [word for name in sorted({end.name for end in ended}) for word in ledger.task_words(name)]
        oracle = ReceiptsInMemory(current, said, kept)
        by = data.draw(st.sampled_from(KINDS))
        assert plainly(asked(ledger, by, SINCE)) == plainly(asked(oracle, by, SINCE))


def plain(sums: Sums) -> Sums:
    """Without when the first request came and the last receipt was closed: a correction does not take that back."""
    return replace(sums, first_at=None, last_at=None)


def plainly(report: Report) -> Report:
    return replace(
        report,
        rows=tuple(replace(row, sums=plain(row.sums)) for row in report.rows),
        total=plain(report.total),
        before=plain(report.before),
        timeline=tuple(replace(row, sums=plain(row.sums)) for row in report.timeline),
    )


def test_a_task_is_what_its_user_says_and_can_be_said_anew() -> None:
    """By session, by run, by label, by a window in time: afterwards, and no receipt is rewritten."""
    hour = timedelta(hours=1)
    found = [
        a_receipt(NOW - 5 * hour, session="s", dollars="1"),
        a_receipt(NOW - 4 * hour, run="r", labels={"ticket": "7"}, dollars="2"),
        a_receipt(NOW - 3 * hour, task="own", session="s", dollars="4"),
        a_receipt(NOW - 2 * hour, dollars="8"),
    ]
    with Ledger.open("sqlite://") as ledger:
        written(ledger, found)
        before = ledger.receipts()

        def costs() -> dict[str | None, int]:
            return {row.name: int(row.sums.cost) for row in asked(ledger, "task").rows}

        def assign(task: str | None, kind: str, name: str) -> dict[str | None, int]:
            ledger.say(TaskWord(verb=TaskVerb.ASSIGN, said_at=NOW, task=task, kind=kind, name=name))
            return costs()

        assert costs() == {"own": 4, None: 1 + 2 + 8}
        assert assign("login", "session", "s") == {"login": 1 + 4, None: 2 + 8}
        assert assign("login", "label:ticket", "7") == {"login": 1 + 2 + 4, None: 8}
        assert assign("other", "run", "r") == {"login": 1 + 4, "other": 2, None: 8}
        assert assign(None, "session", "s") == {"own": 4, "other": 2, None: 1 + 8}
        ledger.say(TaskWord(verb=TaskVerb.START, said_at=NOW - 6 * hour, task="window"))
        ledger.finish_task("window", True, NOW - 2 * hour).result()
        assert costs() == {"own": 4, "other": 2, "window": 1, None: 8}
        ledger.say(TaskWord(verb=TaskVerb.EACH, said_at=NOW, kind="session"))
        assert costs() == {"own": 4, "other": 2, "window": 1, None: 8}
        assert ledger.receipts() == before


def test_a_task_may_start_and_end_twice() -> None:
    """The second end is news, though it says the same as the first."""
    hour = timedelta(hours=1)
    found = [a_receipt(NOW - at * hour, dollars=str(at)) for at in (7, 5, 3, 1)]
    with Ledger.open("sqlite://") as ledger:
        written(ledger, found)
        for begin, end in ((8, 6), (4, 2)):
            ledger.say(TaskWord(verb=TaskVerb.START, said_at=NOW - begin * hour, task="twice"))
            ledger.finish_task("twice", True, NOW - end * hour).result()
        assert {row.name: int(row.sums.cost) for row in asked(ledger, "task").rows} == {"twice": 7 + 3, None: 5 + 1}
        assert ledger.tasks_named(["twice"])["twice"].finished_at == NOW - 2 * hour
