"""How a figure is known stands beside it, in every form of a report."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest

from taximeter.records import Basis, Receipt, Timing, Usage
from taximeter.reports.as_csv import as_csv
from taximeter.reports.as_html import as_html
from taximeter.reports.as_json import as_json
from taximeter.reports.as_markdown import as_markdown
from taximeter.reports.cells import View
from taximeter.reports.question import Question
from taximeter.reports.report import Report, answer, folded
from taximeter.reports.terminal import terminal_lines
from tests.slices_oracle import ReceiptsInMemory
from tests.unit.reports.worlds import NOW, a_receipt

TIMED = Timing(upstream_ns=9_000, total_ns=9_000, first_token_ns=3_000)
ANSWERED = Usage(input_fresh_tokens=100, input_cache_read_tokens=0, output_text_tokens=4)


def ours() -> Receipt:
    return a_receipt(timing=TIMED, usage=ANSWERED, model="a")


def of_a_log(timing: Timing | None = TIMED) -> Receipt:
    reported = None if timing is None else replace(timing, basis=Basis.REPORTED)
    return replace(a_receipt(timing=reported, usage=ANSWERED, model="b"), source="a log")


def report_on(*receipts: Receipt) -> Report:
    question = Question(by="model", since=NOW - timedelta(days=7), until=NOW, zone=ZoneInfo("UTC"), only=())
    return answer(ReceiptsInMemory(receipts), question, NOW)


@pytest.mark.parametrize(
    ("receipts", "basis", "between"),
    [
        ([ours()], "measured", "derived"),
        ([of_a_log()], "reported", "derived"),
        ([of_a_log(), ours()], "measured", "derived"),
        ([of_a_log(None)], None, None),
    ],
    ids=["ours", "a log's", "both", "nobody's"],
)
def test_every_form_says_how_times_are_known(receipts: list[Receipt], basis: str | None, between: str | None) -> None:
    """The weakest of any receipt; the time between tokens follows from two of them. Nothing is said of what is not."""
    report = report_on(*receipts)
    total = as_json(report)["total"]
    assert isinstance(total, dict)
    assert (total["time_basis"], total["inter_token_basis"]) == (basis, between)
    sentence = "money derived, tokens reported" + ("" if basis is None else f", time {basis}, ITL {between}")
    on_terminal = "\n".join(line for _, line in terminal_lines(report, 200, View.TIME))
    for text in (on_terminal, as_markdown(report, View.TIME), as_html(report)):
        assert sentence in text
        assert ("time basis" in text) == (basis is not None)
    heading, *lines = (line.split(",") for line in as_csv(report).splitlines())
    told = {line[heading.index("time_basis")] for line in lines}
    assert told == {
        "" if basis is None else basis for basis in ({basis} if len(receipts) == 1 else {"reported", "measured"})
    }


def test_rows_that_come_together_are_known_as_the_weakest_of_them() -> None:
    """Folding a table loses no word of doubt."""
    three = [replace(of_a_log(), request=replace(of_a_log().request, model=name)) for name in "cde"]
    report = folded(report_on(*three, ours()), 2)
    assert [row.sums.time_basis for row in report.rows][-1] in (Basis.MEASURED, Basis.REPORTED)
    assert {row.sums.time_basis for row in report.rows} | {report.total.time_basis} == {Basis.MEASURED, Basis.REPORTED}
