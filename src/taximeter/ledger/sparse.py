"""Rows that are mostly empty, told without what is not there.

Binding a None costs Python's driver of SQLite as much as ten numbers: it looks for somebody who would adapt it. Most of
a receipt's eighty columns are NULL, and most receipts leave out the same ones, so there is a statement for each set of
columns that comes along. Owns: those statements. Refuses to know: tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import lru_cache
from operator import itemgetter

from taximeter.ledger.database import Session
from taximeter.ledger.rows import Row

Pattern = tuple[bool, ...]
"""Of a row's columns, which have nothing in them."""


def insert(
    session: Session,
    table: str,
    names: tuple[str, ...],
    rows: Iterable[Row],
    *,
    also: str = "",
    values: str = "",
    behind: str = "",
) -> None:
    """Insert rows of the columns `names`, of which each has at least two; in the columns `also` all of them have
    `values`, which are SQL. `behind` ends the statement. All words are our own, never a stranger's."""
    told = list(rows)
    if len(told) == 1:
        statement, there = inserting(table, names, also, values, behind, tuple([value is None for value in told[0]]))
        session.tell(statement, [there(told[0])])
        return
    nothings = [column.count(None) for column in zip(*told, strict=True)]
    # Where a column is the same for all of them, not every row needs to be looked at.
    mixed = [place for place, nothing in enumerate(nothings) if 0 < nothing < len(told)]
    alike: defaultdict[Pattern, list[Row]] = defaultdict(list)
    for row in told if mixed else ():
        alike[tuple([row[place] is None for place in mixed])].append(row)
    pattern = [nothing > 0 for nothing in nothings]
    for of_mixed, some in alike.items() if mixed else [((), told)]:
        for place, is_nothing in zip(mixed, of_mixed, strict=True):
            pattern[place] = is_nothing
        statement, there = inserting(table, names, also, values, behind, tuple(pattern))
        session.tell(statement, map(there, some))


@lru_cache(maxsize=4_096)
def inserting(
    table: str, names: tuple[str, ...], also: str, values: str, behind: str, pattern: Pattern
) -> tuple[str, Callable[[Row], Row]]:
    """The statement for rows that have nothing in some places, and what takes the rest out of a row."""
    places = [place for place, is_nothing in enumerate(pattern) if not is_nothing]
    columns = ", ".join([*(names[place] for place in places), *([also] if also else [])])
    marks = ", ".join([*("?" for _ in places), *([values] if values else [])])
    return f"INSERT INTO {table} ({columns}) VALUES ({marks}){behind}", itemgetter(*places)  # noqa: S608 - see `insert`
