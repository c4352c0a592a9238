"""How far somebody's files have been read.

Owns: one note for each file, which stands in the transaction of what was read. Refuses to know: what a note says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from taximeter.ledger import rows
from taximeter.ledger.database import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMark:
    """How far the file at `path` has been read for `source`: the `document` is the importer's own."""

    source: str
    path: str
    document: str


def file_marks(session: Session, source: str) -> dict[str, str]:
    """What is remembered of the files that were read for `source`: documents, by their paths."""
    question = "SELECT path, document FROM file_marks WHERE source = ?"
    return {str(path): str(document) for path, document in session.ask(question, rows.stored_text(source))}


def remember(session: Session, marks: Iterable[FileMark]) -> None:
    """The marks, in the place of older ones of their files."""
    session.tell(_MARK, [tuple(map(rows.stored_text, (mark.source, mark.path, mark.document))) for mark in marks])


_MARK = (
    "INSERT INTO file_marks (source, path, document) VALUES (?, ?, ?)"
    " ON CONFLICT (source, path) DO UPDATE SET document = excluded.document"
)
