"""What people said about tasks, in both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from taximeter.ledger import Ledger
from taximeter.records import Task, TaskVerb, TaskWord, TaskWords
from tests.unit.ledger.conftest import Open

NOON = datetime(2026, 11, 30, 12, 0, 0, 123456, tzinfo=UTC)


def at(minutes: int) -> datetime:
    return NOON + timedelta(minutes=minutes)


WORDS = [
    TaskWord(verb=TaskVerb.ASSIGN, said_at=at(0), task="a", kind="session", name="s\ud800\0"),
    TaskWord(verb=TaskVerb.ASSIGN, said_at=at(1), task="b", kind="label:team", name="日本"),
    TaskWord(verb=TaskVerb.START, said_at=at(2), task="c", kind="run", name="7"),
    TaskWord(verb=TaskVerb.START, said_at=at(3), task="d"),
    TaskWord(verb=TaskVerb.EACH, said_at=at(4), kind="session", idle_s=7200),
    TaskWord(verb=TaskVerb.ASSIGN, said_at=at(5), kind="label:team", name="日本"),
]


def test_words_are_kept_in_their_order_and_come_to_rules(reopen: Open) -> None:
    """To the microsecond, whoever opens the ledger next; names are stored as those of receipts are."""
    with reopen() as ledger:
        assert ledger.task_rules().is_empty
        for word in WORDS:
            ledger.say(word)
        ledger.finish_task("c", True, at(10)).result()
    with reopen() as ledger:
        rules = ledger.task_rules()
    assert rules.assigned == {("session", "s\\ud800\\x00"): "a"}
    assert [(window.task, window.since, window.until, window.kind, window.name) for window in rules.windows] == [
        ("c", at(2), at(10), "run", "7"),
        ("d", at(3), None, None, None),
    ]
    assert (rules.each, rules.idle_s) == ("session", 7200)
    assert rules == TaskWords.of(
        [TaskWord(verb=TaskVerb.ASSIGN, said_at=at(0), task="a", kind="session", name="s\\ud800\\x00"), *WORDS[2:5]],
        ledger_ends(),
    )


def ledger_ends() -> list[Task]:
    return [Task(name="c", finished_at=at(10), succeeded=True)]


def test_how_tasks_stand_by_the_last_word(ledger: Ledger) -> None:
    """Ended well, badly after all, open again, only started; and those that ended within a time, half-open."""
    for name, succeeded, minutes in (("well", True, 1), ("badly", True, 2), ("badly", False, 3), ("again", True, 4)):
        ledger.finish_task(name, succeeded, at(minutes)).result()
    for name in ("again", "new"):
        ledger.say(TaskWord(verb=TaskVerb.START, said_at=at(5), task=name))
    stand = ledger.tasks_named(["well", "badly", "again", "new", "unheard"])
    assert {name: task.succeeded for name, task in stand.items()} == {
        "well": True,
        "badly": False,
        "again": None,
        "new": None,
    }
    assert [task.name for task in ledger.finished_tasks(at(0), at(9))] == ["well", "badly"]
    assert [task.name for task in ledger.finished_tasks(at(1), at(3))] == ["well"]
    assert [task.name for task in ledger.finished_tasks(at(3), at(4))] == ["badly"]
    task = ledger.task("again")
    assert task is not None
    assert task.finished_at is None
    ledger.finish_task("again", True, at(6)).result()
    ledger.finish_task("again", True, at(7)).result()  # no news: it did not start in between
    assert [word.finished_at for word in ledger.task_words("again")] == [at(4), at(6)]


def test_very_many_tasks_are_asked_for_at_once(ledger: Ledger) -> None:
    """More than a statement has room for."""
    ledger.finish_task("t1500", True, at(1)).result()
    assert list(ledger.tasks_named([f"t{number}" for number in range(2_000)])) == ["t1500"]
