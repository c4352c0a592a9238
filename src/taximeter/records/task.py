"""What requests are for: a task, which is finished one day, well or badly; and whose requests are a task's.

A request may say its task itself. People may say it too, before, meanwhile or afterwards, and take it back: `TaskWords`
is what they said, and receipts stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

_Scope = tuple[str | None, str | None]  # the kind and the name of what a start is of
_EVERYTHING: _Scope = (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A piece of work that requests name as theirs. `name` is how they name it. `finished_at` and `succeeded` are None
    while it goes on: what a finished task costs, and what a failed one did, is the sum of its receipts."""

    name: str
    finished_at: datetime | None = None
    succeeded: bool | None = None
    labels: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        if (self.finished_at is None) != (self.succeeded is None):
            raise ValueError("a task is finished when it is known whether it succeeded")


class TaskVerb(StrEnum):
    """What somebody may say about whose requests are a task's."""

    ASSIGN = "assign"  # all of a session, a run, a label or a task
    START = "start"  # from now on, until the task's end
    EACH = "each"  # every session, run or value of a label is a task by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWord:
    """One thing that was said. `kind` and `name` say of which requests: `session`, `run`, `task` or `label:KEY`.

    ASSIGN gives them to `task`, and with None takes that back. START gives `task` what is asked from then on, only of
    those where they are given. EACH makes every name of `kind` a task, with None no more; a task without any other end
    has then ended when it was silent for `idle_s` seconds, where that is given. Raises ValueError for half a word.
    """

    verb: TaskVerb
    said_at: datetime
    task: str | None = None
    kind: str | None = None
    name: str | None = None
    idle_s: int | None = None

    def __post_init__(self) -> None:
        if self.verb is TaskVerb.EACH:
            complete = self.task is None and self.name is None
        else:
            complete = (self.kind is None) == (self.name is None)
            complete = complete and (self.kind if self.verb is TaskVerb.ASSIGN else self.task) is not None
        if not complete or (self.idle_s is not None and (self.verb is not TaskVerb.EACH or self.idle_s < 1)):
            raise ValueError(f"half a word about tasks: {self.verb}, {self.task}, {self.kind}, {self.name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWindow:
    """That what is closed from `since` and before `until` (None: until further notice) is `task`'s; where `kind` and
    `name` are given, only what belongs to them."""

    task: str
    since: datetime
    until: datetime | None = None
    kind: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWords:
    """What people's words come to, the last one on each thing. `assigned` and `windows` have the newest last.

    A receipt belongs to the task that its session, run, label or task was assigned to last; else to the one it names
    itself; else to the last of the windows it was closed in that are of its session, run or label; else to the last of
    those that are of everything; else to the one named after what `each` names.
    """

    assigned: Mapping[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    windows: tuple[TaskWindow, ...] = ()
    each: str | None = None
    idle_s: int | None = None

    def task_of(self, groups: Mapping[str, str], closed_at: datetime) -> str | None:
        """The task of a receipt that was closed then, by what it belongs to: name by kind (`task`, `run`, `session`,
        `label:KEY`)."""
        mine = [place for place in groups.items() if place in self.assigned]
        if mine:
            newest = mine[0] if len(mine) == 1 else max(mine, key=list(self.assigned).index)
            return self.assigned[newest]
        if "task" in groups:
            return groups["task"]
        of_everything = None
        for window in reversed(self.windows):
            if window.since > closed_at or (window.until is not None and closed_at >= window.until):
                continue
            if window.kind is None:
                of_everything = of_everything or window.task
            elif groups.get(window.kind) == window.name:
                return window.task
        if of_everything is not None:
            return of_everything
        return None if self.each is None else groups.get(self.each)

    @property
    def is_empty(self) -> bool:
        """Whether receipts belong to the tasks that they name, and that is all."""
        return not self.assigned and not self.windows and self.each is None

    @property
    def instants(self) -> list[datetime]:
        """When windows begin and end, ascending: between two of these a receipt's task depends on its groups alone."""
        bounds = {at for window in self.windows for at in (window.since, window.until) if at is not None}
        return sorted(bounds)

    @classmethod
    def of(cls, words: Sequence[TaskWord], ends: Iterable[Task]) -> TaskWords:
        """What `words`, oldest first, come to, where tasks ended as `ends` say: a start's window ends with the first
        end of its task after it, or with its next start: where both are of some requests only, of the same ones."""
        assigned: dict[tuple[str, str], str] = {}
        starts: list[TaskWord] = []
        each, idle_s = None, None
        for word in words:
            match word.verb:
                case TaskVerb.ASSIGN:
                    place = (word.kind or "", word.name or "")
                    assigned.pop(place, None)  # to the end: the newest is the last
                    if word.task is not None:
                        assigned[place] = word.task
                case TaskVerb.START:
                    starts.append(word)
                case TaskVerb.EACH:
                    each, idle_s = word.kind, word.idle_s
        stops: dict[str, list[tuple[datetime, _Scope]]] = {}
        for end in ends:
            if end.finished_at is not None:
                stops.setdefault(end.name, []).append((end.finished_at, _EVERYTHING))
        for word in starts:
            stops.setdefault(word.task or "", []).append((word.said_at, (word.kind, word.name)))

        def stop(word: TaskWord) -> datetime | None:
            mine = (word.kind, word.name)
            mine_too = (at for at, whose in stops[word.task or ""] if whose == mine or _EVERYTHING in (whose, mine))
            return min((at for at in mine_too if at > word.said_at), default=None)

        windows = [
            TaskWindow(
                task=word.task or "",
                since=word.said_at,
                until=stop(word),
                kind=word.kind,
                name=word.name,
            )
            for word in starts
        ]
        return cls(assigned=assigned, windows=tuple(windows), each=each, idle_s=idle_s)
