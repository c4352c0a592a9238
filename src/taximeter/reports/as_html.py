"""A report as one HTML file that needs nothing else: no script, no font, no picture from anywhere.

Owns: the page and its colours, by day and by night. Refuses to know: what the figures mean.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Final

from taximeter.figures import money_text
from taximeter.records import Phase
from taximeter.reports.cells import (
    Column,
    View,
    columns,
    heading_of,
    name_text,
    span_text,
    tokens_text,
    whole_cost_text,
)
from taximeter.reports.charts import Bar, Scale, by_row, over_time, whole
from taximeter.reports.facts import facts, notes
from taximeter.reports.report import Report, timeline_edges
from taximeter.reports.sums import MONEY_GROUPS, TOKEN_GROUPS, Sums

_MOST_BARS: Final = 20

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2024; --dim: #60646c; --page: #fcfcfd; --line: #e0e1e6; --soft: #f4f4f6;
  --c0: #3e63dd; --c1: #12a594; --c2: #ffb224; --c3: #e5484d; --c4: #8e4ec6; --c5: #78716c; --c6: #b0b4ba; }
@media (prefers-color-scheme: dark) { :root { --ink: #edeef0; --dim: #a1a5ab; --page: #111113; --line: #2e3135;
  --soft: #1a1b1e; --c0: #5b7bff; --c1: #2dd4bf; --c2: #ffc53d; --c3: #ff6369;
  --c4: #b182ff; --c5: #a8a29e; --c6: #6b7075; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1rem 4rem; max-width: 70rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.05rem; margin: 2.2rem 0 .6rem; }
.span, .note, caption { color: var(--dim); }
.big { font-size: 2.4rem; font-weight: 650; letter-spacing: -.02em; margin: .8rem 0 0;
  font-variant-numeric: tabular-nums; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.2rem; margin: 1rem 0; }
dt { color: var(--dim); } dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; display: block; } svg text { font-size: 12px; fill: var(--dim); }
.grid { stroke: var(--line); stroke-width: 1; } .hit { fill: transparent; }
.c0 { fill: var(--c0); } .c1 { fill: var(--c1); } .c2 { fill: var(--c2); } .c3 { fill: var(--c3); }
.c4 { fill: var(--c4); } .c5 { fill: var(--c5); } .c6 { fill: var(--c6); }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: .3rem 0 .8rem; color: var(--dim);
  font-size: .85rem; }
.legend svg { width: .75rem; height: .75rem; display: inline-block; margin-right: .35rem; }
.scroll { overflow-x: auto; } .scroll svg { min-width: 40rem; }
table { border-collapse: collapse; width: 100%; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--line); }
th.n, td.n { text-align: right; } thead th { color: var(--dim); font-weight: 500; position: sticky; top: 0;
  background: var(--page); }
tbody tr:hover { background: var(--soft); } tfoot td { font-weight: 650; border-bottom: 0; }
td:first-child { max-width: 26rem; overflow: hidden; text-overflow: ellipsis; }
@media print { body { max-width: none; padding: 0; } .scroll { overflow: visible; } }
"""


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
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Names come from strangers. Should one ever get through as markup, it may load and run nothing.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


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
    texts = [_amount_text(ticks.step * number, report.total) for number in range(ticks.steps + 1)]
    name = f"{'cost' if report.total.cost else 'tokens'} over time"
    return [
        "<h2>Over time</h2>",
        _legend(_present(report.total, groups)),
        f'<div class="scroll">{over_time(bars, name=name, ticks=ticks, tick_texts=texts)}</div>',
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
        _legend(_present(report.total, groups)),
        f'<div class="scroll">{by_row(bars, name=heading, amounts=amounts)}</div>',
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
                _legend([name if amount else "" for name, amount in parts]),
                f'<p class="note">{_text(said[about])}</p>',
            ]
    return lines


def _tables(report: Report) -> list[str]:
    lines: list[str] = []
    shown: list[list[Column]] = []
    for view, heading in ((View.TOKENS, "Tokens"), (View.DOLLARS, "Dollars"), (View.TIME, "Time")):
        table = columns(report, view)
        if table not in shown:
            shown.append(table)
            lines += [f"<h2>{heading}</h2>", _table(table, len(report.rows))]
    return lines


def _table(table: Sequence[Column], count: int) -> str:
    head = "".join(f'<th scope="col"{_side(column)}>{_text(column.heading)}</th>' for column in table)
    body = "".join(
        "<tr>" + "".join(f"<td{_side(column)}>{_text(column.cells[number])}</td>" for column in table) + "</tr>\n"
        for number in range(count)
    )
    foot = "".join(f"<td{_side(column)}>{_text(column.total)}</td>" for column in table)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n'
        f"<tfoot><tr>{foot}</tr></tfoot></table></div>"
    )


def _side(column: Column) -> str:
    return ' class="n"' if column.is_number else ""


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


def _title(sums: Sums) -> str:
    tokens = tokens_text(sums.total_tokens, sums.uncounted) or "0"
    return f"{whole_cost_text(sums.cost, sums.unpriced)}, {sums.receipts:,} requests, {tokens} tokens"


def _point(at: datetime, edges: Sequence[datetime], report: Report) -> str:
    local = at.astimezone(report.question.zone)
    hourly = len(edges) > 2 and (edges[2] - edges[1]).total_seconds() < 7200
    return f"{local:%H:%M}" if hourly else f"{local:%m-%d}"


def _legend(names: Iterable[str]) -> str:
    marks = "".join(
        '<span><svg viewBox="0 0 10 10" aria-hidden="true">'
        f'<rect class="c{number}" width="10" height="10"/></svg>{_text(name)}</span>'
        for number, name in enumerate(names)
        if name
    )
    return f'<div class="legend">{marks}</div>'


def _text(text: str) -> str:
    return html.escape(text)
