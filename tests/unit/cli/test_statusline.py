"""One line for prompts and editors, at once."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import taximeter
from taximeter.cli import statusline
from taximeter.ledger import Ledger
from taximeter.records import Receipt
from taximeter.reports import Question, answer, periods
from tests.unit.reports.worlds import a_receipt

NOW = datetime(2026, 11, 30, 9, 30, tzinfo=UTC)
SLOW = ("typing", "re", "pathlib", "dataclasses", "json", "datetime", "typer", "msgspec", "sqlalchemy")


@pytest.fixture(params=["UTC", "Asia/Kolkata", "America/Los_Angeles"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The machine's own, one after the other."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def fill(receipts: list[Receipt], home: Path) -> None:
    with Ledger.open(str(home / "ledger.sqlite")) as ledger:
        for future in [ledger.append(receipt) for receipt in receipts]:
            future.result()


def run(stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "taximeter", "statusline"],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environ},
        timeout=60,
    )


def line(told: dict[str, object] | None = None, session: str | None = None) -> str:
    return statusline._line(told or {}, session, NOW.timestamp())


def test_today_and_the_block_are_those_of_the_reports(taximeter_home: Path, zone: str) -> None:
    """Days of the machine's own zone, also where they begin within an hour; blocks from a silence of five hours."""
    minutes = (3, 50, 200, 330, 400, 560, 571, 800, 1200, 2000)
    receipts = [
        a_receipt(NOW - timedelta(minutes=minute), dollars=None if minute == 330 else f"{minute}.12")
        for minute in minutes
    ]
    fill(receipts, taximeter_home)
    own = periods.zone_named(zone)
    with Ledger.open(str(taximeter_home / "ledger.sqlite")) as ledger:
        today = periods.midnight(periods.day_of(NOW, own), own)
        day = answer(ledger, Question(by="day", since=today, until=NOW, zone=own), NOW).total
        blocks = answer(ledger, Question(by="block", since=NOW - timedelta(days=7), until=NOW, zone=own), NOW).rows
    unpriced = f" + {day.unpriced} unpriced" if day.unpriced else ""
    block = blocks[-1]
    assert block.since is not None
    left = round((block.since + periods.BLOCK - NOW).total_seconds() / 60)
    hours = Decimal((NOW - block.since).total_seconds()) / 3600
    assert line() == (
        f"today ${day.cost:,.2f}{unpriced} · block ${block.sums.cost:,.2f}, {left // 60} h {left % 60:02} min left"
        f" · ${block.sums.cost / hours:,.2f}/h"
    )


def test_what_claude_code_says_is_beside_it(taximeter_home: Path) -> None:
    """Its model and its context; the session's cost is the ledger's, and its own account where that has none."""
    fill([a_receipt(NOW - timedelta(days=2), dollars="3", session="s")], taximeter_home)
    told: dict[str, object] = {
        "model.display_name": "Opus",
        "cost.total_cost_usd": 0.0123,
        "context_window.used_percentage": 41.6,
    }
    assert line(told, "s") == "Opus · session $3.00 · today $0.00 · context 42 %"
    assert line(told, "unheard") == "Opus · session $0.0123 by its own account · today $0.00 · context 42 %"


def test_a_ledger_that_is_not_there_is_a_line_too(taximeter_home: Path) -> None:
    """And so is one that cannot be read: a prompt has no use for an exit code. None is made."""
    done = run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "taximeter: no receipts yet\n", "")
    assert not (taximeter_home / "ledger.sqlite").exists()
    (taximeter_home / "ledger.sqlite").write_bytes(b"this is no database" * 100)
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("taximeter: ")
    (taximeter_home / "taximeter.toml").write_text("ledger = ")
    assert run().returncode == 0


@pytest.mark.parametrize(
    ("ledger", "words"),
    [
        ("postgresql://nobody@127.0.0.1:1/none", "connection"),
        ("sqlite:///{folder}/old.sqlite", "another version"),
        ("sqlite:///{folder}", "unable to open"),
    ],
)
def test_whatever_is_wrong_is_said_in_a_line(taximeter_home: Path, ledger: str, words: str) -> None:
    """A database that is away, tables that an older version has made, a folder: a traceback fits no prompt."""
    with sqlite3.connect(taximeter_home / "old.sqlite") as old:
        old.execute("CREATE TABLE receipts (number)")
    done = run(TAXIMETER_LEDGER=ledger.format(folder=taximeter_home))
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    assert done.stdout.startswith("taximeter: ")
    assert words in done.stdout


def test_a_ledger_of_a_newer_version_says_what_to_do(taximeter_home: Path) -> None:
    """Its tables may still be there and mean something else: no figure is better than a wrong one. One of our own
    version is read."""
    fill([a_receipt(datetime.now(UTC))], taximeter_home)
    path = taximeter_home / "ledger.sqlite"
    assert run().stdout.startswith("today ")
    with sqlite3.connect(path) as newer:
        newer.execute("UPDATE schema_version SET version_num = '9999'")
    newer.close()
    done = run()
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    assert done.stdout.startswith("taximeter: a newer version made this ledger (its schema is 9999, ")
    assert done.stdout.endswith(" is known here): upgrade Taximeter\n")


def test_what_the_terminal_has_no_character_for_is_a_question_mark(taximeter_home: Path) -> None:
    """A model's name may have any, and a line without a session is still a line."""
    fill([a_receipt(datetime.now(UTC) - timedelta(days=9))], taximeter_home)
    done = run(json.dumps({"model": {"display_name": "Opus ☃"}}), PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Opus ? ? today $0.00\n", "")


@pytest.mark.parametrize("stdout", [">&-", "> /dev/full", "| true"])
def test_a_line_that_nobody_takes_is_no_error(taximeter_home: Path, stdout: str) -> None:
    """An editor that has gone reads no traceback."""
    assert taximeter_home.is_dir()
    command = f"{shlex.quote(sys.executable)} -m taximeter statusline {stdout}"
    done = subprocess.run(["sh", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_ledger_that_nobody_may_write_is_read(taximeter_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A medium for reading has room for no log and no locks: where the file stands still, none are needed."""
    fill([a_receipt(NOW, dollars="5")], taximeter_home)
    path = taximeter_home / "ledger.sqlite"
    connect = sqlite3.connect

    def on_a_medium(name: str, **options: Any) -> sqlite3.Connection:
        if not options.get("uri"):
            raise sqlite3.OperationalError("unable to open database file")
        return connect(name, **options)

    monkeypatch.setattr(statusline.sqlite3, "connect", on_a_medium)
    with pytest.raises(sqlite3.OperationalError):
        line()
    monkeypatch.setattr(statusline.os, "access", lambda place, _: Path(place) != taximeter_home)
    assert "$5.00" in statusline._line({}, None, NOW.timestamp() + 60)
    Path(f"{path}-wal").write_bytes(b"what is not in the file yet")
    with pytest.raises(sqlite3.OperationalError):
        line()


def test_the_ledger_may_be_named_elsewhere(taximeter_home: Path, tmp_path: Path) -> None:
    """By the environment, and by the file of settings."""
    fill([a_receipt(datetime.now(UTC) - timedelta(seconds=1), dollars="5")], tmp_path)
    elsewhere = f"sqlite:///{tmp_path}/ledger.sqlite"
    assert "no receipts" not in run(TAXIMETER_LEDGER=elsewhere).stdout
    (taximeter_home / "taximeter.toml").write_text(f'ledger = "{elsewhere}"\n')
    assert "$5.00" in run().stdout


def test_nobody_who_says_nothing_is_waited_for(taximeter_home: Path) -> None:
    """Stdin may be a pipe that stays open for ever."""
    fill([a_receipt(datetime.now(UTC) - timedelta(days=9))], taximeter_home)
    reading, writing = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "taximeter", "statusline"],
            stdin=reading,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    finally:
        os.close(reading)
        os.close(writing)
    assert (done.returncode, done.stdout) == (0, "today $0.00\n")


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(("session_id", "model", "display_name", "cost", "total_cost_usd", "used_percentage")), inner
        )
    ),
    max_leaves=6,
)


@given(st.binary(max_size=30) | _json.map(lambda value: json.dumps(value).encode()))
def test_whatever_is_said_is_read_or_passed_over(said: bytes) -> None:
    """Half a document, another one, or none."""
    reading, writing = os.pipe()
    os.write(writing, said)
    os.close(writing)
    told = statusline.read_told(reading)
    os.close(reading)
    for place in ("session_id", "model.display_name"):
        text = statusline._text(told, place)
        assert text is None or text.isprintable()
    number = statusline._number(told, "cost.total_cost_usd")
    assert number is None or 0 <= number < 1e12
    try:
        document = json.loads(said)
    except ValueError:
        return
    session = document.get("session_id") if isinstance(document, dict) else None
    if isinstance(session, str) and session.isprintable() and session:
        assert statusline._text(told, "session_id") == session


@given(st.integers(0, 1029 * 8766))
def test_hours_are_counted_as_calendars_do(hours: int) -> None:
    """Leap years and all, until the year 2999."""
    hour = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(hours=hours)
    assert statusline._seconds(f"{hour:%Y-%m-%d %H}:00:00.000000") == hour.timestamp()


def test_there_is_one_at_a_time(taximeter_home: Path) -> None:
    """Whoever comes while another one is at it gets the last line of the same session, and asks nothing."""
    fill([a_receipt(datetime.now(UTC) - timedelta(seconds=1), dollars="5", session="s")], taximeter_home)
    told = json.dumps({"session_id": "s"})
    first = run(told).stdout
    assert "session $5.00" in first
    with (taximeter_home / "statusline").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (taximeter_home / "ledger.sqlite").write_bytes(b"who asks now gets nothing")
        assert run(told).stdout == first
        assert run(json.dumps({"session_id": "t"})).stdout == "\n"


def test_it_loads_nothing_that_is_slow(taximeter_home: Path) -> None:
    """That is how it stays under 50 ms: an interpreter, a database, and itself."""
    fill([a_receipt(datetime.now(UTC) - timedelta(days=9))], taximeter_home)
    code = (
        "import os, sys\n"
        "os._exit = sys.exit\n"
        "sys.argv = ['taximeter', 'statusline']\n"
        "from taximeter.__main__ import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    pass\n"
        f"print(*(name for name in {SLOW!r} if name in sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={**os.environ, "PYTHONPATH": str(Path(taximeter.__file__).parents[1])},
        input=json.dumps({"model": {"display_name": "Opus"}}),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "Opus · today $0.00\n\n"


@pytest.mark.parametrize(
    ("picodollars", "text"),
    [
        (0, "$0.00"),
        (10**9, "$0.0010"),
        (99_949_999_999, "$0.0999"),
        (10**11, "$0.10"),
        (1_234_565_000_000_000, "$1,234.57"),
        (1_999_999_999_999, "$2.00"),
    ],
)
def test_dollars_are_in_cents(picodollars: int, text: str) -> None:
    """And in hundredths of one where they are few."""
    assert statusline._dollars(picodollars) == text
