"""Pieces of SQL and the values that go with them. What a question is made of is our own words; what comes from others
is a value, and never a word.

Owns: putting pieces together, and how an instant comes back. Refuses to know: tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple


class Condition(NamedTuple):
    """Something that must hold of a row, with a `?` for each of its values."""

    text: str
    values: tuple[object, ...] = ()


def all_of(conditions: Iterable[Condition]) -> Condition:
    """That all of them hold; there is at least one."""
    some = list(conditions)
    return Condition(
        " AND ".join(condition.text for condition in some),
        tuple(value for condition in some for value in condition.values),
    )


def one_of(column: str, values: Sequence[object]) -> Condition:
    """That the column has one of these values; see `database.batches` for how many."""
    return Condition(f"{column} IN ({', '.join('?' * len(values))})", tuple(values))


def instant(stored: str) -> datetime:
    """The aware instant that a column of times has (`rows.stored_instant`)."""
    return datetime.fromisoformat(f"{stored}+00:00")
