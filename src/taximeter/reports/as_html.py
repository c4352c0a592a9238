"""A report as one HTML file. Owns: what stands on its page. Refuses to know: what the figures mean."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Final

from taximeter.figures import money_text, sum_text
from taximeter.records import Phase
from taximeter.reports import charts, folding_table
from taximeter.reports.cells import (
    Column,
    View,
    columns,
    heading_of,
    name_text,
    span_text,
    tokens_text,
)
from taximeter.reports.charts import Bar, Scale, by_row, over_time, whole
from taximeter.reports.facts import facts, notes
from taximeter.reports.page import legend, page
from taximeter.reports.report import Report, timeline_edges
from taximeter.reports.sums import MONEY_GROUPS, TOKEN_GROUPS, Sums

_MOST_BARS: Final = 20
# What a row cost stands beside its name, where no width of a window hides it; words give way before numbers do.
_BESIDE_THE_NAME: Final = ("cost", " ", "change")


def as_html(report: Report) -> str:
    """The whole page. Its charts over time are of `report.timeline`."""
    title = f"Taximeter: by {heading_of(report.question.by)}, {span_text(report.question)}"
    body = [f"<h1>By {_text(heading_of(report.question.by))}</h1>"]
    body.append(f'<p class="span">{_text(span_text(report.question))}</p>')
    if not report.rows:
        body.append("<p>No receipts.</p>")
    else:
        body += _headline(report)
        body += _timeline(report)
        body += _rows(report)
        body += _parts(report)
        body += _tables(report)
    zone = report.question.zone
    made = f"Made {report.made_at.astimezone(zone):%Y-%m-%d %H:%M} ({zone.key}) by taximeter report."
    body.append(f'<p class="note">{_text(made)}</p>')
    return page(title, body, style=charts.STYLE + folding_table.STYLE)


def _headline(report: Report) -> list[str]:
    (_, cost), *rest = facts(report)
    amount, _, trend = cost.partition("; ")
    lines = [f'<p class="big">{_text(amount)}</p>']
    if trend:
        lines.append(f'<p class="span">{_text(trend)}</p>')
    pairs = "".join(f"<dt>{_text(about)}</dt><dd>{_text(said)}</dd>" for about, said in rest)
    lines.append(f"<dl>{pairs}</dl>")
    lines += [f'<p class="note">{_text(note[:1].upper() + note[1:])}.</p>' for note in notes(report)]
    return lines


def _timeline(report: Report) -> list[str]:
    """By hour, day or week, whatever the report is by."""
    if not report.timeline:
        return []
    question = report.question
    groups = _drawn(report.total)
    edges = timeline_edges(question)
    found = {row.since: row.sums for row in report.timeline}
    bars = [
        Bar(
            label=_point(at, edges, report),
            parts=_amounts(sums, groups),
            title=f"{_point(at, edges, report)}: {_title(sums)}",
        )
        for at in edges[:-1]
        for sums in (found.get(at, Sums()),)
    ]
    ticks = Scale.up_to(max(bar.whole for bar in bars))
    texts = [_tick_text(ticks, number, report.total) for number in range(ticks.steps + 1)]
    name = f"{'cost' if report.total.cost else 'tokens'} over time"
    return [
        "<h2>Over time</h2>",
        legend(_present(report.total, groups)),
        over_time(bars, name=name, ticks=ticks, tick_texts=texts),
    ]


def _rows(report: Report) -> list[str]:
    question = report.question
    if question.is_by_time:
        return []
    rows, groups = report.rows[:_MOST_BARS], _drawn(report.total)
    bars = [
        Bar(label=name, parts=_amounts(row.sums, groups), title=f"{name}: {_title(row.sums)}")
        for row in rows
        for name in (name_text(question, row),)
    ]
    amounts = [_amount_text(bar.whole, report.total) for bar in bars]
    heading = f"By {heading_of(question.by)}" + (f", the first {len(rows)}" if len(report.rows) > len(rows) else "")
    return [
        f"<h2>{_text(heading)}</h2>",
        legend(_present(report.total, groups)),
        by_row(bars, name=heading, amounts=amounts),
    ]


def _parts(report: Report) -> list[str]:
    """One bar each for dollars, tokens and time."""
    total, said = report.total, dict(facts(report))
    money = total.money_by_group()
    drawn = (
        ("dollars", "Where the dollars went", [(group, money[group]) for group in MONEY_GROUPS]),
        ("tokens", "Where the tokens went", [(group, Decimal(total.tokens_of(group)[0])) for group in TOKEN_GROUPS]),
        ("time", "Where the time went", [(phase.value, Decimal(total.phases_ns.get(phase, 0))) for phase in Phase]),
    )
    lines: list[str] = []
    for about, heading, parts in drawn:
        amounts = [max(amount, Decimal(0)) for _, amount in parts]
        if about in said and any(amounts):
            lines += [
                f"<h2>{heading}</h2>",
                whole(Bar(label=about, parts=amounts, title=said[about]), name=heading),
                legend([name if amount else "" for name, amount in parts]),
                f'<p class="note">{_text(said[about])}</p>',
            ]
    return lines


def _tables(report: Report) -> list[str]:
    lines: list[str] = []
    shown: list[list[Column]] = []
    for view, heading in ((View.TOKENS, "Tokens"), (View.DOLLARS, "Dollars"), (View.TIME, "Time")):
        name, *others = columns(report, view)
        first = [column for heading in _BESIDE_THE_NAME for column in others if column.heading == heading]
        table = [name, *first, *(column for column in others if column.heading not in _BESIDE_THE_NAME)]
        if table not in shown:
            shown.append(table)
            drawn = folding_table.folding_table(table, len(report.rows), name=f"table-{view.value}")
            lines += [f"<h2>{heading}</h2>", drawn]
    return lines


def _drawn(total: Sums) -> list[tuple[str, bool]]:
    """What bars are made of: dollars by what they were for, or tokens where nothing has a price."""
    if total.cost > 0:
        return [(group, True) for group in MONEY_GROUPS]
    return [(group, False) for group in TOKEN_GROUPS]


def _amounts(sums: Sums, groups: Iterable[tuple[str, bool]]) -> list[Decimal]:
    money = sums.money_by_group()
    amounts = [money[group] if is_money else Decimal(sums.tokens_of(group)[0]) for group, is_money in groups]
    return [max(amount, Decimal(0)) for amount in amounts]


def _present(total: Sums, groups: Sequence[tuple[str, bool]]) -> list[str]:
    """The series for the legend, empty for what no bar has."""
    return [group if amount else "" for (group, _), amount in zip(groups, _amounts(total, groups), strict=True)]


def _amount_text(amount: Decimal, total: Sums) -> str:
    return money_text(amount) if total.cost > 0 else f"{int(amount):,}"


def _tick_text(ticks: Scale, number: int, total: Sums) -> str:
    """What an axis says: as many decimals at each tick as its step has, none where that is whole."""
    amount = ticks.step * number
    if total.cost <= 0:
        return f"{int(amount):,}"
    decimals = 0 if ticks.step >= 1 else max(2, -ticks.step.adjusted())
    return f"${amount:,.{decimals}f}"


def _title(sums: Sums) -> str:
    tokens = tokens_text(sums.total_tokens, sums.uncounted, sums.receipts) or "0"
    cost = sum_text(sums.cost, sums.unpriced, of=sums.receipts)
    return f"{cost}, {sums.receipts:,} requests, {tokens} tokens"


def _point(at: datetime, edges: Sequence[datetime], report: Report) -> str:
    local = at.astimezone(report.question.zone)
    hourly = len(edges) > 2 and (edges[2] - edges[1]).total_seconds() < 7200
    return f"{local:%H:%M}" if hourly else f"{local:%m-%d}"


def _text(text: str) -> str:
    return html.escape(text)
