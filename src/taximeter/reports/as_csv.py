"""A report as CSV: a line for each row, every digit of it. Owns: the columns, whose sums are the report's total."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from taximeter.ledger import Percentiles
from taximeter.records import Phase, Usage, decimal_text
from taximeter.reports.cells import name_text
from taximeter.reports.csv_lines import csv_lines, no_formula
from taximeter.reports.report import Report, Row
from taximeter.reports.sums import MONEY_GROUPS, Sums

_LEAVES: Final = Usage.INPUT_LEAVES + Usage.OUTPUT_LEAVES


def as_csv(report: Report) -> str:
    """Comma-separated, one heading line. An empty field is unknown, or does not apply."""
    lines = [{**_place(report, row), **_figures(row.sums)} for row in report.rows]
    headings = list(lines[0]) if lines else [*_PLACES, *_figures(Sums())]
    return csv_lines(headings, lines)


_PLACES: Final = ("by", "name", "since", "until", "state", "cost_in_all")


def _place(report: Report, row: Row) -> Mapping[str, object]:
    """What the row is of."""
    name = row.name if row.since is None else name_text(report.question, row)
    question = report.question
    return {
        "by": question.by,
        "name": no_formula(name),
        "since": (row.since or question.since).isoformat(),
        "until": (row.until or question.until).isoformat(),
        "state": None if row.task is None else row.task.state.value,
        "cost_in_all": None if row.task is None else decimal_text(row.task.cost),
    }


def _figures(sums: Sums) -> Mapping[str, object]:
    figures: dict[str, object] = {"requests": sums.receipts, "failures": sums.failures}
    figures |= {leaf: sums.tokens.get(leaf, 0) for leaf in _LEAVES}
    figures |= {leaf.replace("_tokens", "_unknown"): sums.unknown.get(leaf, 0) for leaf in _LEAVES}
    figures |= {"cost": decimal_text(sums.cost), "unpriced": sums.unpriced}
    by_group = sums.money_by_group()
    figures |= {f"cost_{group.replace(' ', '_')}": decimal_text(by_group[group]) for group in MONEY_GROUPS}
    figures |= {"failed_cost": decimal_text(sums.failed_cost), "failed_unpriced": sums.failed_unpriced}
    figures["cost_reported"] = decimal_text(sums.cost_reported) if sums.reported else None
    figures["reported"] = sums.reported
    figures |= {
        "cost_basis": sums.cost_basis,
        "usage_basis": sums.usage_basis,
        "time_basis": sums.time_basis,
        "inter_token_basis": sums.inter_token_basis,
    }
    figures |= {f"{phase.value}_ns": sums.phases_ns.get(phase, 0) for phase in Phase}
    figures["timed"] = sums.timed
    named = (("first_token", sums.first_token), ("inter_token", sums.inter_token), ("answer", sums.total))
    for name, found in named:
        figures |= _percentiles(name, found)
    figures["first_at"] = None if sums.first_at is None else sums.first_at.isoformat()
    figures["last_at"] = None if sums.last_at is None else sums.last_at.isoformat()
    figures["off_scale"] = sums.off_scale
    return figures


def _percentiles(name: str, found: Percentiles) -> Mapping[str, object]:
    return {
        f"{name}_n": found.of,
        f"{name}_p50_ns": found.p50_ns,
        f"{name}_p90_ns": found.p90_ns,
        f"{name}_p99_ns": found.p99_ns,
    }
