"""How a row of sums, or a receipt, gets the name that somebody asks by.

Tasks are what people say they are, so they are found out here, row by row, and not in SQL: between two instants at
which somebody said something, a receipt's task depends on what it belongs to alone, and sums are kept by all of that
together. Owns: names, and where spans are cut so that they stand still. Refuses to know: what is added up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

from taximeter.ledger import rows
from taximeter.ledger.hours import Belongs, Source, Span, parts_of
from taximeter.records import LABEL_KIND, TaskWords

_BY_RUN = ("task", "run", "session", "labels")  # what a task may be found out from
_NOT_BY_RUN = ("task", "session", "labels")

Groups = Sequence[tuple[str, str]]


class Names:
    """How the name that a row has is found: the `columns` to group by (`grouped` says so), and what their values mean
    at an instant. With `only`, whether it belongs to all of these is asked too; `about` is another column that somebody
    asks about."""

    def __init__(self, by: str | None, only: Groups, words: TaskWords, about: str | None = None) -> None:
        said = not words.is_empty and (by == "task" or any(kind == "task" for kind, _ in only))
        self._tasks = [name for kind, name in only if kind == "task"] if said else []
        self._words = words if said else None
        self._by = by
        self._belongs = Belongs([group for group in only if not (said and group[0] == "task")])
        self.conditions = self._belongs.conditions
        joint = () if not said else _BY_RUN if _speak_of_runs(words) else _NOT_BY_RUN
        self._kinds = [kind for kind in joint if kind != "labels"]
        keys: list[str] = [*joint]
        column = "labels" if by is not None and by.startswith(LABEL_KIND) else by
        if column is not None and column not in keys:
            keys.append(column)
        self._places = {name: place for place, name in enumerate(keys)}
        self.columns = [*keys, *self._belongs.columns]
        self.grouped = f" GROUP BY {', '.join(self.columns)}" if self.columns else ""
        self._by_days = "run" not in (*keys, about, *(kind for kind, _ in only))
        self.column = by if by is not None and self.columns == [by] and not said else None
        """The column whose values are the names, where nothing needs to be found out."""

    def parts(self, span: Span) -> Iterator[tuple[Source, Span]]:
        """Where the sums of a span are."""
        return parts_of(span, by_days=self._by_days)

    def name(self, values: Sequence[Any], at: datetime) -> tuple[bool, str | None]:
        """Whether a row with these values of `columns` counts, and as whose."""
        if self._belongs.columns and not self._belongs.accepts(values[-1:]):
            return False, None
        if self._words is None:
            return True, self._plain(values)
        groups = self._groups(values)
        task = self._words.task_of(groups, at)
        if any(task != name for name in self._tasks):
            return False, None
        return True, task if self._by == "task" else self._plain(values)

    def _plain(self, values: Sequence[Any]) -> str | None:
        if self._by is None:
            return None
        if self._by.startswith(LABEL_KIND):
            labels = rows.labels_from(values[self._places["labels"]])
            return labels.get(rows.stored_label(self._by.removeprefix(LABEL_KIND)))
        return values[self._places[self._by]]

    def _groups(self, values: Sequence[Any]) -> dict[str, str]:
        places = self._places
        groups = {kind: values[places[kind]] for kind in self._kinds if values[places[kind]] is not None}
        labels = rows.labels_from(values[places["labels"]])
        return groups | {LABEL_KIND + name: value for name, value in labels.items()}


def _speak_of_runs(words: TaskWords) -> bool:
    """Whether a task may be found out from a run; days know of none."""
    of_groups = [*(kind for kind, _ in words.assigned), *(window.kind for window in words.windows), words.each]
    return "run" in of_groups


def cut(span: Span, instants: Sequence[datetime]) -> Iterator[Span]:
    """The span, in parts between those instants."""
    inside = instants[bisect_right(instants, span[0]) : bisect_right(instants, span[1])]
    return (part for part in pairwise([span[0], *inside, span[1]]) if part[0] < part[1])
