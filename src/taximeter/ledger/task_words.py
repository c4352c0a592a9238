"""What people said about tasks: whose receipts are a task's, and how tasks stand.

Owns: the table `task_rules`, whose rows are only ever added, and reading it together with `task_ends`. Refuses to know:
receipts. What the words come to for one of those is `records.TaskWords`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import datetime

import sqlalchemy as sa

from taximeter.ledger import rows
from taximeter.ledger.database import Session, batches
from taximeter.ledger.documents import record_from
from taximeter.ledger.schema import task_ends, task_rules
from taximeter.records import Task, TaskVerb, TaskWord, TaskWords

_COLUMNS = ("number", "said_at", "word", "task", "kind", "name", "idle_s")
_INSERT = f"INSERT INTO task_rules ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608 - our own words


def say(session: Session, word: TaskWord) -> None:
    """Write down one word, behind those that were said before. Inside the caller's transaction."""
    number = session.ask("SELECT coalesce(max(number), 0) + 1 FROM task_rules")[0][0]
    texts = [None if text is None else rows.stored_name(text) for text in (word.task, word.kind, word.name)]
    row = (number, rows.stored_instant(word.said_at), word.verb.value, *texts, word.idle_s)
    session.tell(_INSERT, [row])


def words(connection: sa.Connection) -> list[TaskWord]:
    """Everything that was said, oldest first."""
    this = task_rules.c
    question = sa.select(this.said_at, this.word, this.task, this.kind, this.name, this.idle_s).order_by(this.number)
    return [
        TaskWord(verb=TaskVerb(verb), said_at=said_at, task=task, kind=kind, name=name, idle_s=idle_s)
        for said_at, verb, task, kind, name, idle_s in connection.execute(question)
    ]


def rules(connection: sa.Connection) -> TaskWords:
    """What all of it comes to."""
    said = words(connection)
    started = {word.task for word in said if word.verb is TaskVerb.START and word.task is not None}
    ends = [_task(name, document) for name, document in _ends(connection, started)] if started else []
    return TaskWords.of(said, ends)


def finished(connection: sa.Connection, since: datetime, until: datetime) -> list[Task]:
    """Tasks whose end, by the last word on it, was from `since` and before `until`, and which did not start again."""
    this, later = task_ends.c, task_ends.alias("later")
    question = (
        sa.select(this.name, this.document)
        .where(this.finished_at >= since, this.finished_at < until)
        .where(~sa.exists().where(later.c.name == this.name, later.c.number > this.number))
        .order_by(this.finished_at, this.name)
    )
    starts = _starts(connection)
    tasks = [_task(name, document) for name, document in connection.execute(question)]
    return [task for task in tasks if not _is_open_again(task, starts)]


def standing(connection: sa.Connection, names: Collection[str]) -> dict[str, Task]:
    """How these tasks stand: by the last word on each one's end, open where it started again since or never ended.
    Those that nobody said anything of are not in it."""
    starts = _starts(connection)
    tasks = {name: Task(name=name) for name in names if name in starts}
    for name, document in _ends(connection, names):  # the last one stays
        task = _task(name, document)
        tasks[name] = Task(name=name, labels=task.labels) if _is_open_again(task, starts) else task
    return tasks


def _ends(connection: sa.Connection, names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Words on how these ended, oldest first for each one."""
    this = task_ends.c
    for some in batches(sorted(names)):
        question = sa.select(this.name, this.document).where(this.name.in_(some)).order_by(this.name, this.number)
        yield from ((row[0], row[1]) for row in connection.execute(question))


def _starts(connection: sa.Connection) -> dict[str, datetime]:
    """When tasks were last said to start."""
    this = task_rules.c
    question = sa.select(this.task, this.said_at).where(this.word == TaskVerb.START.value).order_by(this.number)
    return {row[0]: row[1] for row in connection.execute(question)}


def _is_open_again(task: Task, starts: dict[str, datetime]) -> bool:
    started_at = starts.get(task.name)
    return started_at is not None and task.finished_at is not None and started_at >= task.finished_at


def _task(name: str, document: str) -> Task:
    """As its row has it, under the name that receipts go by too."""
    return replace(record_from(document, Task), name=name)
