"""What people said about tasks: whose receipts are a task's, and how tasks stand.

Owns: the table `task_rules`, whose rows are only ever added, and reading it together with `task_ends`. Refuses to know:
receipts. What the words come to for one of those is `records.TaskWords`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import datetime

from taximeter.ledger import rows
from taximeter.ledger.database import Asking, Session, batches
from taximeter.ledger.documents import record_from
from taximeter.ledger.sql import instant, one_of
from taximeter.records import Task, TaskVerb, TaskWord, TaskWords

_COLUMNS = ("number", "said_at", "word", "task", "kind", "name", "idle_s")
_INSERT = f"INSERT INTO task_rules ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608 - our own words


def say(session: Session, word: TaskWord) -> None:
    """Write down one word, behind those that were said before. Inside the caller's transaction."""
    number = session.ask("SELECT coalesce(max(number), 0) + 1 FROM task_rules")[0][0]
    texts = [None if text is None else rows.stored_name(text) for text in (word.task, word.kind, word.name)]
    row = (number, rows.stored_instant(word.said_at), word.verb.value, *texts, word.idle_s)
    session.tell(_INSERT, [row])


def words(asking: Asking) -> list[TaskWord]:
    """Everything that was said, oldest first."""
    question = "SELECT said_at, word, task, kind, name, idle_s FROM task_rules ORDER BY number"
    return [
        TaskWord(verb=TaskVerb(verb), said_at=instant(said_at), task=task, kind=kind, name=name, idle_s=idle_s)
        for said_at, verb, task, kind, name, idle_s in asking.ask(question)
    ]


def rules(asking: Asking) -> TaskWords:
    """What all of it comes to."""
    said = words(asking)
    started = {word.task for word in said if word.verb is TaskVerb.START and word.task is not None}
    ends = [_task(name, document) for name, document in _ends(asking, started)] if started else []
    return TaskWords.of(said, ends)


def finished(asking: Asking, since: datetime, until: datetime) -> list[Task]:
    """Tasks whose end, by the last word on it, was from `since` and before `until`, and which did not start again."""
    question = (
        "SELECT name, document FROM task_ends AS this WHERE finished_at >= ? AND finished_at < ? AND NOT EXISTS"
        " (SELECT 1 FROM task_ends AS later WHERE later.name = this.name AND later.number > this.number)"
        " ORDER BY finished_at, name"
    )
    ends = asking.ask(question, rows.stored_instant(since), rows.stored_instant(until))
    starts = _starts(asking)
    tasks = [_task(name, document) for name, document in ends]
    return [task for task in tasks if not _is_open_again(task, starts)]


def standing(asking: Asking, names: Collection[str]) -> dict[str, Task]:
    """How these tasks stand: by the last word on each one's end, open where it started again since or never ended.
    Those that nobody said anything of are not in it."""
    starts = _starts(asking)
    tasks = {name: Task(name=name) for name in names if name in starts}
    for name, document in _ends(asking, names):  # the last one stays
        task = _task(name, document)
        tasks[name] = Task(name=name, labels=task.labels) if _is_open_again(task, starts) else task
    return tasks


def _ends(asking: Asking, names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Words on how these ended, oldest first for each one."""
    for some in batches(sorted(map(rows.stored_text, names))):
        which = one_of("name", some)
        question = f"SELECT name, document FROM task_ends WHERE {which.text} ORDER BY name, number"  # noqa: S608 - our own words
        yield from asking.ask(question, *which.values)


def _starts(asking: Asking) -> dict[str, datetime]:
    """When tasks were last said to start."""
    question = "SELECT task, said_at FROM task_rules WHERE word = ? ORDER BY number"
    return {task: instant(said_at) for task, said_at in asking.ask(question, TaskVerb.START.value)}


def _is_open_again(task: Task, starts: dict[str, datetime]) -> bool:
    started_at = starts.get(task.name)
    return started_at is not None and task.finished_at is not None and started_at >= task.finished_at


def _task(name: str, document: str) -> Task:
    """As its row has it, under the name that receipts go by too."""
    return replace(record_from(document, Task), name=name)
