"""A report as JSON, every digit of it. Owns: the names of its fields, which scripts rely on, and their version."""

from __future__ import annotations

from typing import Final

from taximeter.records import Json, to_json
from taximeter.reports.cells import name_text
from taximeter.reports.facts import notes
from taximeter.reports.report import Report, Row
from taximeter.reports.sums import TOKEN_GROUPS, Sums
from taximeter.reports.tasks import Costs, TaskFigures

VERSION: Final = 1
"""Counts up when a field is renamed, taken away or means something else; new ones may come at any time."""


def as_json(report: Report) -> dict[str, Json]:
    """The whole report. Money is decimal text, durations are nanoseconds, instants are UTC."""
    question = report.question
    return {
        "version": VERSION,
        "by": question.by,
        "since": to_json(question.since),
        "until": to_json(question.until),
        "timezone": question.zone.key,
        "only": dict(question.only),
        "made_at": to_json(report.made_at),
        "rows": [_row(report, row) for row in report.rows],
        "total": sums_json(report.total),
        "before": {"since": to_json(question.before), "until": to_json(question.since), **sums_json(report.before)},
        "tasks": _tasks(report.tasks),
        "tasks_before": _tasks(report.tasks_before),
        "notes": list(notes(report)),
    }


def sums_json(sums: Sums) -> dict[str, Json]:
    """The sums of some receipts. `tokens` are what is known of each bucket, `unknown` how many receipts do not know it;
    `cost` leaves out the `unpriced` receipts, `cost_by` is the same by what it was charged for."""
    return {
        "requests": sums.receipts,
        "failures": sums.failures,
        "outcomes": {outcome.value: count for outcome, count in sorted(sums.outcomes.items()) if count},
        "tokens": {leaf: count for leaf, count in sums.tokens.items() if count},
        "tokens_by": {_key(group): sums.tokens_of(group)[0] for group in TOKEN_GROUPS},
        "total_tokens": sums.total_tokens,
        "unknown": to_json(sums.unknown),
        "cost": to_json(sums.cost),
        "unpriced": sums.unpriced,
        "cost_by": {_key(group): to_json(amount) for group, amount in sums.money_by_group().items() if amount},
        "cost_by_unit": to_json(sums.money),
        "failed_cost": to_json(sums.failed_cost),
        "failed_unpriced": sums.failed_unpriced,
        "cost_reported": to_json(sums.cost_reported) if sums.reported else None,
        "reported": sums.reported,
        "cost_basis": to_json(sums.cost_basis),
        "usage_basis": to_json(sums.usage_basis),
        "time_basis": to_json(sums.time_basis),
        "inter_token_basis": to_json(sums.inter_token_basis),
        "phases_ns": {phase.value: ns for phase, ns in sums.phases_ns.items() if ns},
        "timed": sums.timed,
        "compute_ns": sums.compute_ns,
        "first_token": to_json(sums.first_token),
        "inter_token": to_json(sums.inter_token),
        "answer": to_json(sums.total),
        "first_at": to_json(sums.first_at),
        "last_at": to_json(sums.last_at),
        "off_scale": sums.off_scale,
    }


def _key(group: str) -> str:
    return group.replace(" ", "_")


def _row(report: Report, row: Row) -> dict[str, Json]:
    named: dict[str, Json] = {"name": row.name}
    if row.since is not None:
        named = {"name": name_text(report.question, row), "since": to_json(row.since), "until": to_json(row.until)}
    if row.task is not None:
        named["task"] = to_json(row.task)
    before: dict[str, Json] = {}
    if row.before is not None:
        before["before"] = {
            "requests": row.before.receipts,
            "cost": to_json(row.before.cost),
            "unpriced": row.before.unpriced,
        }
    return {**named, **sums_json(row.sums), **before}


def _tasks(figures: TaskFigures) -> dict[str, Json]:
    costs: dict[str, Costs] = {
        "finished": figures.finished,
        "succeeded": figures.succeeded,
        "failed": figures.failed,
        "ended": figures.ended,
    }
    return {**{name: to_json(cost) for name, cost in costs.items()}, "per_success": to_json(figures.per_success)}
