"""Any table, CSV or JSON lines, with a map that says what its columns are.

Owns: that what most rows say is read by columns, and the rest of them one by one. Refuses to know: what either is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from taximeter.importers.alike import Alike
from taximeter.importers.column_map import ColumnMap
from taximeter.importers.logged import LogFile, LoggedCall
from taximeter.importers.mapped_rows import MappedRows
from taximeter.importers.rows import chunks_of
from taximeter.importers.usual_rows import UsualRows

NAME = "columns"
SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson")
EDITION = "2"


def read(log: LogFile, columns: ColumnMap) -> Iterator[Alike | LoggedCall]:
    """The calls of one table."""
    rows = MappedRows(columns)
    usual = UsualRows(rows)
    for chunk in chunks_of(log):
        alike, others = usual.of(chunk)
        yield from alike
        for place in others:
            call = rows.call(chunk.row(place), log)
            if call is not None:
                yield call


def is_mine(entry: Mapping[str, Any]) -> bool:  # noqa: ARG001 - as the others
    """Never: only who has a map can say."""
    return False
