"""A report as Markdown, for issues, wikis and chats. Owns: its markup."""

from __future__ import annotations

from collections.abc import Iterable

from taximeter.reports.cells import Column, View, columns, heading_of, span_text
from taximeter.reports.facts import facts, notes
from taximeter.reports.report import Report

_ESCAPED = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_[]|<>#~"} | {"\n": " ", "\r": " "})


def as_markdown(report: Report, view: View = View.TOKENS) -> str:
    """A heading, the table, the facts and the notes."""
    lines = [f"## By {_text(heading_of(report.question.by))}", "", _text(span_text(report.question)), ""]
    if not report.rows:
        return "\n".join([*lines, "No receipts.", ""])
    table = columns(report, view)
    lines.append(_line(_text(column.heading) for column in table))
    lines.append("|" + "|".join("---:" if column.is_number else "---" for column in table) + "|")
    lines += [_line(_text(column.cells[number]) for column in table) for number in range(len(report.rows))]
    lines += [_line(_strong(column) for column in table), ""]
    lines += [f"- **{_text(about)}**: {_text(said)}" for about, said in facts(report)]
    if left_out := notes(report):
        lines += ["", *(f"- {_text(note)}" for note in left_out)]
    return "\n".join([*lines, ""])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _strong(column: Column) -> str:
    return f"**{_text(column.total)}**" if column.total.strip() else ""


def _text(text: str) -> str:
    """Text that is nothing but text: names come from strangers."""
    return text.translate(_ESCAPED)
