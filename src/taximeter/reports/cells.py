"""A report for the eye: headings, cells and sentences, which terminal, Markdown and HTML all show.

Owns: what a figure looks like, and which columns a view has. Refuses to know: widths, colours and markup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Final

from taximeter.figures import duration_text, money_text, shared_out, sum_text
from taximeter.ledger import Percentiles
from taximeter.records import LABEL_KIND, Phase
from taximeter.reports.question import Question
from taximeter.reports.report import Report, Row
from taximeter.reports.sums import MONEY_GROUPS, TOKEN_GROUPS, Cost, Sums

TOTAL: Final = "total"
_NBSP: Final = "\N{NO-BREAK SPACE}"  # a number and its unit stay on one line


class View(StrEnum):
    """What the columns of the table are of."""

    TOKENS = "tokens"
    DOLLARS = "dollars"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: a cell for each row, and one for the total. The columns that tell least have the lowest `rank`.
    `short` are names that may not be cut, in fewer words for where there is no room."""

    heading: str
    cells: tuple[str, ...]
    total: str = ""
    is_number: bool = True
    rank: int = 50
    short: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not any((*self.cells, self.total))


def columns(report: Report, view: View = View.TOKENS) -> list[Column]:
    """The table, from left to right; columns in which nothing stands are left out."""
    rows = report.rows
    made = [
        Column(
            heading=heading_of(report.question.by),
            cells=tuple(name_text(report.question, row) for row in rows),
            total=TOTAL,
            is_number=False,
            rank=100,
            short=_short_names(report),
        )
    ]

    def add(heading: str, cell: Callable[[Sums], str], rank: int) -> None:
        made.append(
            Column(heading=heading, cells=tuple(cell(row.sums) for row in rows), total=cell(report.total), rank=rank)
        )

    made += _task_columns(rows)
    add("requests", lambda sums: f"{sums.receipts:,}", 28 if view is View.DOLLARS else 60)
    add("failed", lambda sums: f"{sums.failures:,}" if sums.failures else "", 20)
    match view:
        case View.TOKENS:
            for place, group in enumerate(TOKEN_GROUPS):
                add(group, _token_cell(group), 34 - place if group != "out" else 36)
        case View.DOLLARS:
            for place, group in enumerate(MONEY_GROUPS):
                add(group, _money_cell(group), 40 - place)
        case View.TIME:
            made += _time_columns(report)
            add("time basis", lambda sums: "" if sums.time_basis is None else sums.time_basis.value, 27)
    add("cost", cost_text, 99)
    add(" ", unpriced_text, 98)
    if any(row.before is not None for row in rows):
        changes = tuple(_change(row.sums, row.before) for row in rows)
        made.append(Column(heading="change", cells=changes, total=_change(report.total, report.before), rank=25))
    add("basis", lambda sums: "" if sums.cost_basis is None else sums.cost_basis.value, 10)
    return [column for column in made if not column.is_empty]


def heading_of(by: str) -> str:
    """What the first column is called."""
    return by.removeprefix(LABEL_KIND)


def name_text(question: Question, row: Row) -> str:
    """What a row is called: a name, or when it was. Characters that a terminal would obey are replaced."""
    if row.others:
        return f"({row.others:,} {'earlier' if question.is_by_time else 'others'})"
    if row.since is None or row.until is None:
        name = f"(no {heading_of(question.by)})" if row.name is None else row.name or "(empty)"
        return "".join(mark if mark.isprintable() else "\N{REPLACEMENT CHARACTER}" for mark in name)
    since = row.since.astimezone(question.zone)
    match question.by:
        case "day":
            return f"{since:%Y-%m-%d}"
        case "week":
            return f"{since:%G-W%V}"
        case "month":
            return f"{since:%Y-%m}"
        case _:
            return f"{since:%Y-%m-%d %H:%M}"


def _short_names(report: Report) -> tuple[str, ...]:
    """Blocks without their year: half an hour later is another one, and hours must not be cut."""
    question = report.question
    if question.by != "block" or question.until - question.since > timedelta(days=365):
        return ()
    return tuple(name_text(question, row).removeprefix(_year_of(question, row)) for row in report.rows)


def _year_of(question: Question, row: Row) -> str:
    return "" if row.since is None else f"{row.since.astimezone(question.zone):%Y-}"


def span_text(question: Question) -> str:
    """From when until when, and whose clock that is."""
    since, until = (at.astimezone(question.zone) for at in (question.since, question.until))
    text = f"{_instant(since)} until {_instant(until)} ({question.zone.key})"
    return text + "".join(f", only {kind.removeprefix(LABEL_KIND)} {name}" for kind, name in question.only)


def cost_text(sums: Sums) -> str:
    """The known cost; a question mark where none is known."""
    return "?" if sums.receipts and sums.unpriced == sums.receipts else money_text(sums.cost)


def unpriced_text(sums: Sums) -> str:
    """How many receipts the cost leaves out, as it stands behind it."""
    return f"+ {sums.unpriced:,} unpriced" if sums.unpriced else ""


def tokens_text(known: int, uncounted: int, receipts: int) -> str:
    """Tokens of a bucket; where some of the receipts do not know it, it is what the others know, and `?`."""
    if not uncounted:
        return f"{known:,}" if known else ""
    return f"{known:,}+?" if known or uncounted < receipts else "?"


def change_text(now: Decimal, before: Decimal) -> str:
    """By how much more or less, in whole per cent; empty where there was nothing before."""
    if before <= 0:
        return ""
    percent = round(Fraction(now - before) * 100 / Fraction(before))
    return f"{percent:+,}{_NBSP}%" if percent else f"±0{_NBSP}%"


def shares_text(parts: Iterable[tuple[str, int]]) -> str:
    """Parts of a whole in per cent that sum to 100.0, largest first; those that are nothing are left out."""
    present = sorted(((name, part) for name, part in parts if part > 0), key=lambda pair: -pair[1])
    units = shared_out([part for _, part in present], 1000)
    return ", ".join(f"{name} {share_text(unit)}" for (name, _), unit in zip(present, units, strict=True))


def share_text(per_mille: int) -> str:
    """A share in per cent."""
    return f"{per_mille / 10:.1f}{_NBSP}%" if per_mille else f"<0.1{_NBSP}%"


def percentiles_text(found: Percentiles, receipts: int) -> str:
    """p50, p90 and p99, and of how many."""
    if found.p50_ns is None or found.p90_ns is None or found.p99_ns is None:
        return "unknown" if receipts else ""
    told = ", ".join(
        f"{name} {duration_text(ns)}".replace(" ", _NBSP)
        for name, ns in (("p50", found.p50_ns), ("p90", found.p90_ns), ("p99", found.p99_ns))
    )
    seen = "" if found.exact else f", from {found.n:,} of them"
    return f"{told} (n{_NBSP}={_NBSP}{found.of:,} of {receipts:,}{seen})"


def _instant(at: datetime) -> str:
    return f"{at:%Y-%m-%d}" if (at.hour, at.minute, at.second) == (0, 0, 0) else f"{at:%Y-%m-%d %H:%M}"


def _task_columns(rows: Sequence[Row]) -> list[Column]:
    """How tasks stand; and what they cost in all, where a part of that was before or after."""
    if not any(row.task is not None for row in rows):
        return []
    states = tuple("" if row.task is None else row.task.state.value for row in rows)
    wholes = tuple(
        sum_text(row.task.cost, row.task.unpriced, of=row.task.receipts)
        if row.task is not None and (row.task.receipts != row.sums.receipts or row.task.cost != row.sums.cost)
        else ""
        for row in rows
    )
    return [
        Column(heading="state", cells=states, is_number=False, rank=70),
        Column(heading="in all", cells=wholes, rank=30),
    ]


def _time_columns(report: Report) -> list[Column]:
    """Percentiles with their n, and the share of each phase."""
    made: list[Column] = []
    for heading, attribute, rank in (("TTFT", "first_token", 44), ("ITL", "inter_token", 42), ("total", "total", 40)):
        found = [getattr(sums, attribute) for sums in (*(row.sums for row in report.rows), report.total)]
        for name in ("p50", "p90", "p99"):
            texts = ["" if (ns := getattr(each, f"{name}_ns")) is None else duration_text(ns) for each in found]
            lower = rank if name == "p50" else rank - 10 - (name == "p99")
            made.append(Column(heading=f"{heading} {name}", cells=tuple(texts[:-1]), total=texts[-1], rank=lower))
        counts = [f"{each.of:,}" if each.of else "" for each in found]
        made.append(Column(heading=f"n({heading})", cells=tuple(counts[:-1]), total=counts[-1], rank=rank - 1))
    shares = [_phase_shares(sums) for sums in (*(row.sums for row in report.rows), report.total)]
    for phase in Phase:
        texts = [share.get(phase, "") for share in shares]
        made.append(Column(heading=phase.value, cells=tuple(texts[:-1]), total=texts[-1], rank=24))
    return made


def _phase_shares(sums: Sums) -> dict[Phase, str]:
    units = shared_out([sums.phases_ns.get(phase, 0) for phase in Phase], 1000)
    return {phase: share_text(unit) for phase, unit in zip(Phase, units, strict=True) if unit}


def _token_cell(group: str) -> Callable[[Sums], str]:
    return lambda sums: tokens_text(*sums.tokens_of(group), sums.receipts)


def _money_cell(group: str) -> Callable[[Sums], str]:
    def cell(sums: Sums) -> str:
        amount = sums.money_by_group()[group]
        return money_text(amount) if amount else ""

    return cell


def _change(sums: Sums, before: Cost | Sums | None) -> str:
    """Nothing where no cost of one of them is known: that would be a fall to zero, or from it."""
    if before is None:
        return "new"
    return change_text(sums.cost, before.cost) if sums.unpriced < sums.receipts else ""
