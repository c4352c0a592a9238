"""Whose receipts are a task's, by what people said."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from taximeter.records import Task, TaskVerb, TaskWord, TaskWords

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


def at(minutes: int) -> datetime:
    return NOON + timedelta(minutes=minutes)


def assign(task: str | None, kind: str, name: str, minutes: int = 0) -> TaskWord:
    return TaskWord(verb=TaskVerb.ASSIGN, said_at=at(minutes), task=task, kind=kind, name=name)


def start(task: str, minutes: int, kind: str | None = None, name: str | None = None) -> TaskWord:
    return TaskWord(verb=TaskVerb.START, said_at=at(minutes), task=task, kind=kind, name=name)


def end(task: str, minutes: int) -> Task:
    return Task(name=task, finished_at=at(minutes), succeeded=True)


def test_without_words_requests_say_it_themselves() -> None:
    """And those that say nothing belong to none."""
    words = TaskWords.of([], [])
    assert words.is_empty
    assert words.task_of({"task": "own"}, NOON) == "own"
    assert words.task_of({"session": "s"}, NOON) is None


def test_the_last_word_on_anything_counts_and_can_be_taken_back() -> None:
    """Of two assignments that fit a receipt the newer one; and once it is taken back the older, then its own."""
    said = [assign("a", "session", "s"), assign("b", "label:team", "x"), assign("c", "task", "old")]
    groups = {"task": "own", "session": "s", "label:team": "x"}
    assert TaskWords.of(said, []).task_of(groups, NOON) == "b"
    assert TaskWords.of([*said, assign("a", "session", "s")], []).task_of(groups, NOON) == "a"
    assert TaskWords.of([*said, assign(None, "label:team", "x")], []).task_of(groups, NOON) == "a"
    gone = [*said, assign(None, "label:team", "x"), assign(None, "session", "s")]
    assert TaskWords.of(gone, []).task_of(groups, NOON) == "own"
    assert TaskWords.of(said, []).task_of({"task": "old"}, NOON) == "c"


def test_a_start_has_what_names_no_task_until_the_tasks_end() -> None:
    """Half-open; of two that overlap the later start; never what names another task or was assigned."""
    words = TaskWords.of([start("outer", 0), start("inner", 10)], [end("inner", 20), end("outer", 30)])
    expected = {-1: None, 0: "outer", 9: "outer", 10: "inner", 19: "inner", 20: "outer", 29: "outer", 30: None}
    assert {minute: words.task_of({}, at(minute)) for minute in expected} == expected
    assert words.task_of({"task": "own"}, at(15)) == "own"
    assert words.instants == [at(0), at(10), at(20), at(30)]
    again = TaskWords.of([start("x", 0), start("x", 40)], [end("x", 10), end("x", 50)])
    assert [again.task_of({}, at(minute)) for minute in (5, 20, 45, 55)] == ["x", None, "x", None]


def test_a_start_may_be_of_one_session_only() -> None:
    """Two at the same time in two sessions."""
    words = TaskWords.of([start("a", 0, "session", "s"), start("b", 0, "session", "t")], [])
    assert words.task_of({"session": "s"}, at(1)) == "a"
    assert words.task_of({"session": "t"}, at(1)) == "b"
    assert words.task_of({}, at(1)) is None


@pytest.mark.parametrize("kind", ["session", "run", "label:team"])
@pytest.mark.parametrize("narrow_is_first", [True, False])
def test_a_start_of_some_requests_comes_before_one_of_all(kind: str, narrow_is_first: bool) -> None:
    """Whichever was said first, until the narrower one has ended; of two that both fit the later."""
    starts = [start("narrow", 0, kind, "s"), start("wide", 1)]
    if not narrow_is_first:
        starts = [start("wide", 0), start("narrow", 1, kind, "s")]
    words = TaskWords.of(starts, [end("narrow", 10)])
    assert [words.task_of({kind: name}, at(minute)) for name, minute in (("s", 5), ("t", 5), ("s", 10))] == [
        "narrow",
        "wide",
        "wide",
    ]
    both = TaskWords.of([*starts, start("newer", 3, "label:branch", "main"), start("wider", 4)], [])
    assert both.task_of({kind: "s", "label:branch": "main"}, at(5)) == "newer"
    assert both.task_of({}, at(5)) == "wider"
    assert both.task_of({kind: "s", "task": "own"}, at(5)) == "own"


def test_a_task_may_start_in_several_sessions_and_ends_in_all() -> None:
    """Of the same session, and of everything, a later start is the one that counts."""
    words = TaskWords.of([start("a", 0, "session", "s"), start("a", 1, "session", "t")], [end("a", 10)])
    assert [words.task_of({"session": name}, at(5)) for name in ("s", "t", "u")] == ["a", "a", None]
    assert [words.task_of({"session": name}, at(10)) for name in ("s", "t")] == [None, None]
    assert [window.until for window in words.windows] == [at(10), at(10)]
    again = TaskWords.of([*(start("a", minute, "session", "s") for minute in (0, 2)), start("a", 4), start("a", 6)], [])
    assert [window.until for window in again.windows] == [at(2), at(4), at(6), None]
    narrowed = TaskWords.of([start("a", 0), start("a", 2, "session", "s")], [])
    assert [narrowed.task_of({"session": name}, at(5)) for name in ("s", "t")] == ["a", None]


def test_each_session_may_be_a_task_where_nothing_else_is_said() -> None:
    """The last such word counts, also that there is none any more."""
    each = TaskWord(verb=TaskVerb.EACH, said_at=NOON, kind="session", idle_s=60)
    words = TaskWords.of([each, assign("a", "session", "s")], [])
    assert (words.task_of({"session": "t"}, NOON), words.task_of({"session": "s"}, NOON)) == ("t", "a")
    assert words.idle_s == 60
    none = TaskWords.of([each, TaskWord(verb=TaskVerb.EACH, said_at=NOON)], [])
    assert none.is_empty


@pytest.mark.parametrize(
    "half",
    [
        {"verb": TaskVerb.ASSIGN, "task": "a"},
        {"verb": TaskVerb.ASSIGN, "task": "a", "kind": "session"},
        {"verb": TaskVerb.START},
        {"verb": TaskVerb.START, "task": "a", "name": "s"},
        {"verb": TaskVerb.EACH, "kind": "session", "task": "a"},
        {"verb": TaskVerb.EACH, "kind": "session", "idle_s": 0},
        {"verb": TaskVerb.START, "task": "a", "idle_s": 5},
    ],
)
def test_half_a_word_is_none(half: dict[str, object]) -> None:
    """It would come to nothing anybody meant."""
    with pytest.raises(ValueError, match="half a word"):
        TaskWord(said_at=NOON, **half)  # pyright: ignore[reportArgumentType]
