"""`taximeter report` on a ledger, through its own door, on real terminals."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from taximeter.ledger import Ledger
from taximeter.records import Timing, Usage
from tests.terminal import on_a_terminal
from tests.unit.reports.worlds import a_receipt

TODAY = datetime.now(UTC) - timedelta(minutes=1)


@pytest.fixture
def ledger(taximeter_home: Path) -> Path:
    """Two tasks of $12.00 together, three receipts without a price, and one without a task."""
    timing = Timing(gateway_ns=10**6, upstream_ns=99 * 10**6, total_ns=10**8, first_token_ns=3 * 10**7)
    receipts = [
        a_receipt(TODAY, dollars="7.50", task="write the importer for somebody else's logs", timing=timing),
        a_receipt(TODAY, dollars="4.00", task="triage"),
        a_receipt(TODAY, dollars=None, task="triage"),
        a_receipt(TODAY, dollars=None, task="triage"),
        a_receipt(TODAY, dollars="0.50", model="claude-sonnet-5-5"),
        a_receipt(TODAY, dollars=None),
    ]
    with Ledger.open(str(taximeter_home / "ledger.sqlite")) as opened:
        for future in [opened.append(receipt) for receipt in receipts]:
            future.result()
    return taximeter_home


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "taximeter", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_newcomer_sees_seven_days_by_task(ledger: Path) -> None:
    """Without any flag; $12.00 + 3 unpriced, and no colours where nobody sees them."""
    told = run("report")
    assert told.startswith("by task\n")
    assert "\x1b" not in told
    total = next(text for text in told.splitlines() if text.startswith("total"))
    assert "$12.0000  + 3 unpriced" in total
    assert "cost        $12.0000 + 3 unpriced; nothing in the" in told
    assert "3 of 6 requests have no known cost" in told


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_it_fits_the_terminal(ledger: Path, width: int) -> None:
    """Columns go before anything is cut; names are cut with a sign; the cost and what it leaves out always stand."""
    told = on_a_terminal(width, "report")
    assert "\x1b[" in told
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", text).rstrip("\r") for text in told.split("\n")]
    assert max(map(len, plain)) <= width
    rows = [text for text in plain if text.startswith(("triage", "write the", "(no task)", "total"))]
    assert len(rows) == 4
    assert "$7.5000" in rows[0]
    assert all("+ " in text and "unpriced" in text for text in rows[1:])


def test_every_form_says_the_same(ledger: Path, tmp_path: Path) -> None:
    """JSON, CSV, Markdown and HTML."""
    told = json.loads(run("report", "--json"))
    assert (told["version"], told["by"], told["total"]["cost"], told["total"]["unpriced"]) == (1, "task", "12", 3)
    lines = list(csv.DictReader(io.StringIO(run("report", "--csv"))))
    assert sum(Decimal(each["cost"]) for each in lines) == 12
    assert [each["name"] for each in lines] == [row["name"] or "" for row in told["rows"]]
    assert "| **total** |" in run("report", "--markdown")
    page = tmp_path / "report.html"
    assert run("report", "--html", str(page)) == f"wrote {page}\n"
    assert "$12.0000 + 3 unpriced" in page.read_text("utf-8")
    assert run("report", "--html", "-").startswith("<!doctype html>")


def test_filters_and_views(ledger: Path) -> None:
    """Only one task's requests, by model; the percentiles with their n."""
    told = json.loads(run("report", "--by", "model", "--task", "triage", "--json"))
    assert (told["total"]["requests"], told["only"]) == (3, {"task": "triage"})
    time = run("report", "--by", "model", "--show", "time")
    assert "n(TTFT)" in time
    assert "p50 30.0 ms" in time
    assert "(n = 1 of 6)" in time
    dollars = run("report", "--by", "day", "--timezone", "Asia/Kolkata", "--show", "dollars")
    assert "(Asia/Kolkata)" in dollars


def test_where_nothing_is_it_says_where_something_is(ledger: Path, taximeter_home: Path) -> None:
    """An empty span, and an empty ledger."""
    assert "no receipts then; the newest is of" in run("report", "--since", "2020-01-01", "--until", "2020-01-02")
    told = run("report", "--model", "another", "--label", "team=search")
    assert "no such receipts then: `taximeter report --by model` or `taximeter report --by label:team` says" in told
    (taximeter_home / "ledger.sqlite").unlink()
    assert "no receipts yet: `taximeter import` reads logs that exist" in run("report")


def test_a_task_in_the_middle_of_the_work(ledger: Path) -> None:
    """Start, finish without a name, assign, take back; each says what it comes to."""
    assert "task login has started" in run("task", "start", "login")
    with Ledger.open(str(ledger / "ledger.sqlite")) as opened:
        opened.append(a_receipt(datetime.now(UTC), dollars="0.25", session="s")).result()
    assert run("task", "finish", "--failed") == "task login failed: 1 request, $0.2500\n"
    assert run("task", "assign", "other", "--session", "s") == "task other: 1 request, $0.2500\n"
    assert run("task", "assign", "--session", "s") == "session s belongs to the tasks that its requests name\n"
    assert "each session is a task by itself" in run("task", "assign", "--each", "session", "--done-after", "2h")
    rules = json.loads(run("task", "rules", "--json"))
    assert (rules["assigned"], rules["each"], rules["idle_s"]) == ([], "session", 7200)
    tasks = {each["task"]["name"]: each for each in json.loads(run("tasks", "--json"))["tasks"]}
    assert (tasks["login"]["sums"]["cost"], tasks["login"]["task"]["succeeded"]) == ("0.25", False)
    rows = {row["name"]: row for row in json.loads(run("report", "--by", "task", "--json"))["rows"]}
    assert (rows["login"]["cost"], rows["login"]["task"]["state"]) == ("0.25", "failed")


def test_a_tasks_receipts_are_assigned_anew_and_stay_as_they_are(ledger: Path) -> None:
    """To another task, by a narrower word after that, and back; the task's end follows its sums. No receipt changes."""

    def sums() -> dict[str, str]:
        tasks = json.loads(run("tasks", "--json"))["tasks"]
        return {each["task"]["name"]: each["sums"]["cost"] for each in tasks if each["sums"] is not None}

    with Ledger.open(str(ledger / "ledger.sqlite")) as opened:
        opened.append(a_receipt(TODAY, dollars="1.50", task="triage", session="s")).result()
        before = sorted(opened.receipts(), key=lambda each: each.id)
    assert run("task", "finish", "login").startswith("task login succeeded: no requests yet")
    assert run("task", "assign", "login", "--task", "triage") == "task login: 4 requests, $5.5000 + 2 unpriced\n"
    assert run("task", "finish", "login", "--failed") == "task login failed: 4 requests, $5.5000 + 2 unpriced\n"
    assert "triage" not in sums()
    assert run("task", "assign", "urgent", "--session", "s") == "task urgent: 1 request, $1.5000\n"
    assert (sums()["login"], sums()["urgent"]) == ("4", "1.5")
    run("task", "assign", "urgent", "--task", "triage")
    assert "login" not in sums()
    run("task", "assign", "--task", "triage")
    run("task", "assign", "--session", "s")
    assert sums()["triage"] == "5.5"
    with Ledger.open(str(ledger / "ledger.sqlite")) as opened:
        assert sorted(opened.receipts(), key=lambda each: each.id) == before


@pytest.mark.parametrize("narrow_is_first", [True, False])
def test_a_start_for_a_session_has_its_requests_whatever_else_starts(ledger: Path, narrow_is_first: bool) -> None:
    """All others are of the task that started for everything."""
    starts = [("task", "start", "narrow", "--session", "s"), ("task", "start", "wide")]
    for arguments in starts if narrow_is_first else reversed(starts):
        run(*arguments)
    with Ledger.open(str(ledger / "ledger.sqlite")) as opened:
        for dollars, session in (("0.25", "s"), ("0.50", "t")):
            opened.append(a_receipt(datetime.now(UTC), dollars=dollars, session=session)).result()
    rows = {row["name"]: row["cost"] for row in json.loads(run("report", "--by", "task", "--json"))["rows"]}
    assert (rows["narrow"], rows["wide"]) == ("0.25", "0.5")


@pytest.mark.parametrize("width", [40, 50, 80])
def test_tasks_say_what_they_cost_and_what_nobody_counted(taximeter_home: Path, width: int) -> None:
    """On the narrowest terminal too; tokens that some requests do not know are no sum."""
    nobody = {"input_fresh_tokens": "nobody says"}
    unknown = Usage(input_fresh_tokens=None, input_cache_read_tokens=0, output_text_tokens=7, unknown_reasons=nobody)
    receipts = [
        a_receipt(TODAY, task="write the importer for somebody else's logs", dollars="0.41"),
        a_receipt(TODAY, task="write the importer for somebody else's logs", dollars=None, usage=unknown),
        a_receipt(TODAY, task="silent", dollars=None, usage=unknown),
    ]
    with Ledger.open(str(taximeter_home / "ledger.sqlite")) as opened:
        for future in [opened.append(receipt) for receipt in receipts]:
            future.result()
    told = re.sub(r"\x1b\[[0-9;]*m", "", on_a_terminal(width, "tasks"))
    assert "$0.4100 + 1 unpriced" in told
    assert "? + 1 unpriced" in told
    assert max(map(len, told.splitlines())) <= width
    if width == 80:
        assert "7+?" in told
