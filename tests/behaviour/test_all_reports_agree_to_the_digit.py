"""By whatever a report is, in whatever zone and whatever form: the numbers are the same ones."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from datetime import datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.figures import money_text
from taximeter.records import Usage, exact_sum
from taximeter.reports import Question, Report, answer
from taximeter.reports.as_csv import as_csv
from taximeter.reports.as_html import as_html
from taximeter.reports.as_json import as_json
from taximeter.reports.as_markdown import as_markdown
from taximeter.reports.cells import View, columns
from taximeter.reports.report import folded
from taximeter.reports.sums import MONEY_GROUPS, TOKEN_GROUPS, Sums
from taximeter.reports.terminal import terminal_lines
from tests.slices_oracle import ReceiptsInMemory
from tests.unit.reports.worlds import MONTHS_AGO, NOW, instants, worlds

KINDS = ("task", "run", "session", "model", "day", "week", "month", "block", "label:team", "label:branch")
zones = st.sampled_from(sorted(available_timezones() - {"localtime"})).map(ZoneInfo)
spans = st.tuples(instants, instants).map(sorted).filter(lambda span: span[0] < span[1]) | st.just(
    [MONTHS_AGO, NOW + timedelta(days=1)]
)


def a_report(
    world: ReceiptsInMemory, by: str, span: list[datetime], zone: ZoneInfo, *, timeline: bool = False
) -> Report:
    return answer(world, Question(by=by, since=span[0], until=span[1], zone=zone), NOW, timeline=timeline)


def figures(sums: Sums) -> dict[str, object]:
    """All that can be added up."""
    names = set(Sums.__slots__) - {"first_token", "inter_token", "total"}
    present = {name: getattr(sums, name) for name in names}
    return {
        name: {key: part for key, part in value.items() if part} if isinstance(value, dict) else value
        for name, value in present.items()
    }


@given(worlds, spans, zones)
@settings(max_examples=50, deadline=None)
def test_every_report_of_a_span_has_the_same_total(
    world: ReceiptsInMemory, span: list[datetime], zone: ZoneInfo
) -> None:
    """Days, weeks, months and blocks of every zone, tasks by whatever rules, sessions, labels: each receipt is in
    exactly one row. Percentiles are of the whole, so they are the same too; and a period before is as long."""
    whole = a_report(world, "model", span, ZoneInfo("UTC"))
    for by in KINDS:
        report = a_report(world, by, span, zone)
        assert report.total == whole.total
        assert report.before == whole.before
        assert (report.tasks, report.tasks_before) == (whole.tasks, whole.tasks_before)
        assert exact_sum(row.sums.cost for row in report.rows) == report.total.cost
        assert figures(folded(report, 2).total) == figures(report.total)
        assert sum(row.sums.receipts for row in folded(report, 2).rows) == report.total.receipts
    timeline = a_report(world, "task", span, zone, timeline=True).timeline
    assert exact_sum(row.sums.cost for row in timeline) == whole.total.cost
    assert sum(row.sums.receipts for row in timeline) == whole.total.receipts


@given(worlds, spans, zones, st.sampled_from(KINDS), st.integers(2, 5))
@settings(max_examples=60, deadline=None)
def test_a_table_that_is_short_from_the_start_is_the_whole_one_folded(
    world: ReceiptsInMemory, span: list[datetime], zone: ZoneInfo, by: str, most: int
) -> None:
    """Nobody need make ten thousand rows to show thirty: the same rows in the same order, the others together, what
    they cost before, how their tasks stand, and the total with its percentiles."""
    question = Question(by=by, since=span[0], until=span[1], zone=zone)
    short = answer(world, question, NOW, most_rows=most)
    whole = folded(answer(world, question, NOW), most)
    assert [(row.name, row.since, row.until, row.others) for row in short.rows] == [
        (row.name, row.since, row.until, row.others) for row in whole.rows
    ]
    for row, expected in zip(short.rows, whole.rows, strict=True):
        assert figures(row.sums) == figures(expected.sums)
        assert (row.before, row.task) == (expected.before, expected.task)
    assert short.total == whole.total
    assert (short.tasks, short.tasks_before) == (whole.tasks, whole.tasks_before)
    for name in ("receipts", "unpriced", "cost"):
        assert getattr(short.before, name) == getattr(whole.before, name)
    assert [text for _, text in terminal_lines(short, 400)] == [text for _, text in terminal_lines(whole, 400)]


@given(worlds, spans, zones)
@settings(max_examples=40, deadline=None)
def test_the_total_is_that_of_an_independent_count(
    world: ReceiptsInMemory, span: list[datetime], zone: ZoneInfo
) -> None:
    """Not by way of slices: receipt by receipt."""
    total = a_report(world, "week", span, zone).total
    within = [receipt for receipt in world._receipts if span[0] <= receipt.closed_at < span[1]]
    assert total.receipts == len(within)
    assert total.cost == sum((receipt.cost.total for receipt in within if receipt.cost), Decimal(0))
    assert total.unpriced == sum(receipt.cost is None for receipt in within)
    assert exact_sum(total.money_by_group().values()) == total.cost
    for leaf in Usage.INPUT_LEAVES + Usage.OUTPUT_LEAVES:
        counts = [None if receipt.usage is None else receipt.usage.leaves()[leaf] for receipt in within]
        assert total.tokens.get(leaf, 0) == sum(filter(None, counts))
        assert total.unknown.get(leaf, 0) == counts.count(None)
    assert sum(total.tokens_of(group)[0] for group in TOKEN_GROUPS) == total.total_tokens


@given(worlds, spans, zones, st.sampled_from(KINDS))
@settings(max_examples=80, deadline=None)
def test_json_csv_tables_and_html_say_the_same_numbers(
    world: ReceiptsInMemory, span: list[datetime], zone: ZoneInfo, by: str
) -> None:
    """JSON and CSV have every digit. What people read has the same figures, rounded in one way."""
    report = a_report(world, by, span, zone, timeline=True)
    told = json.loads(json.dumps(as_json(report)))
    lines = list(csv.DictReader(io.StringIO(as_csv(report))))
    assert len(lines) == len(told["rows"]) == len(report.rows)
    for line, row in zip(lines, told["rows"], strict=True):
        assert (int(line["requests"]), line["cost"], int(line["unpriced"])) == (
            row["requests"],
            row["cost"],
            row["unpriced"],
        )
        assert (line["name"] or None) in (row["name"], f"'{row['name']}")
        for group in MONEY_GROUPS:
            key = group.replace(" ", "_")
            assert line[f"cost_{key}"] == row["cost_by"].get(key, "0")
        for leaf in Usage.INPUT_LEAVES + Usage.OUTPUT_LEAVES:
            assert int(line[leaf]) == row["tokens"].get(leaf, 0)
    assert exact_sum(Decimal(line["cost"]) for line in lines) == Decimal(told["total"]["cost"])
    assert sum(int(line["unpriced"]) for line in lines) == told["total"]["unpriced"]
    if not report.rows:
        return
    page, markdown = as_html(report), as_markdown(report, View.DOLLARS)
    terminal = "\n".join(text for _, text in terminal_lines(report, 400, View.DOLLARS, bars=False))
    rows = re.findall(r"<tr>(.*?)</tr>", page.split("<h2>Dollars</h2>")[-1].split("</table>")[0], re.DOTALL)
    cells = [[html.unescape(cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)] for row in rows]
    table = columns(report, View.DOLLARS)
    if len(cells) > 1:  # where nothing has a price, the tables are one
        shown = sorted(zip(*cells, strict=True))  # a page has them in an order of its own
        assert shown == sorted((column.heading, *column.cells, column.total) for column in table)
    cost = next(column for column in table if column.heading == "cost")
    for row, cell in zip(report.rows, cost.cells, strict=True):
        assert cell == ("?" if row.sums.unpriced == row.sums.receipts else money_text(row.sums.cost))
    for cell in (*cost.cells, cost.total):
        assert cell in terminal
        assert cell.replace("<", "\\<") in markdown


@given(worlds, st.sampled_from(KINDS), st.integers(20, 200), st.sampled_from(View))
@settings(max_examples=60, deadline=None)
def test_no_line_is_wider_than_the_terminal(world: ReceiptsInMemory, by: str, width: int, view: View) -> None:
    """Columns go, names are cut, sentences break; the cost and what it leaves out stay."""
    report = a_report(world, by, [MONTHS_AGO, NOW], ZoneInfo("Asia/Kolkata"))
    lines = terminal_lines(report, width, view)
    for _, text in lines:
        assert all(mark.isprintable() for mark in text)
    wide = [text for kind, text in lines if len(text) > width and kind not in ("span", "note", "fact")]
    assert not wide or width < 44
    if report.rows and width >= 44:
        (heading,) = [text for kind, text in lines if kind == "heading"]
        (total,) = [text for kind, text in lines if kind == "total"]
        assert "cost" in heading
        assert not report.total.unpriced or f"+ {report.total.unpriced} unpriced" in total


@pytest.mark.parametrize("by", KINDS)
def test_nothing_is_a_report_too(by: str) -> None:
    """An empty ledger has a report of each kind, in each form."""
    report = a_report(ReceiptsInMemory([]), by, [MONTHS_AGO, NOW], ZoneInfo("UTC"), timeline=True)
    assert as_json(report)["rows"] == []
    assert as_csv(report).count("\n") == 1
    assert "No receipts" in as_html(report)
    assert "No receipts" in as_markdown(report)
    assert terminal_lines(report, 80)


@given(worlds)
@settings(max_examples=30, deadline=None)
def test_strangers_names_stay_names(world: ReceiptsInMemory) -> None:
    """In HTML they are no markup, in CSV no formulas, and the page asks nobody for anything."""
    page = as_html(a_report(world, "session", [MONTHS_AGO, NOW], ZoneInfo("UTC"), timeline=True))
    assert "<b>" not in page
    assert "<i>" not in page
    assert "<script" not in page
    assert not re.search(r"""(?:src|href)=|url\(|@import""", page)
    for line in csv.reader(io.StringIO(as_csv(a_report(world, "session", [MONTHS_AGO, NOW], ZoneInfo("UTC"))))):
        assert not line[1].startswith("=")
