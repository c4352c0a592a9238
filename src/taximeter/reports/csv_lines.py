"""Comma-separated lines that a spreadsheet takes for what they are. Owns: how they are written. Refuses to know: what
they are of."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

_STARTS_A_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def csv_lines(headings: Sequence[str], lines: Iterable[Mapping[str, object]]) -> str:
    """One line of headings, then the lines. None is an empty field: unknown, or it does not apply."""
    written = io.StringIO()
    writer = csv.DictWriter(written, headings, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return written.getvalue()


def no_formula(name: str | None) -> str | None:
    """A name of anybody's; one that a spreadsheet would take for a formula has an apostrophe before it."""
    return f"'{name}" if name is not None and name.startswith(_STARTS_A_FORMULA) else name
