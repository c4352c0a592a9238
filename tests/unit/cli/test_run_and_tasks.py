"""`taximeter run`, `taximeter tasks`, and receipts by what they belong to: a gateway, programs and a ledger."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from taximeter.cli.main import app
from taximeter.cli.run import told
from taximeter.ledger import Ledger
from taximeter.records import Groups
from taximeter.settings import Settings
from tests.fakes import FakeBackend
from tests.gateway_harness import a_house, listening

ASK = """
import os, openai, anthropic
hello = [{"role": "user", "content": "one two three"}]
openai.OpenAI(api_key="unused").chat.completions.create(model="fake", messages=hello)
anthropic.Anthropic(api_key="unused").messages.create(model="fake", max_tokens=5, messages=hello)
"""
CURL = """
import json, os, urllib.request
body = json.dumps({"model": "fake", "messages": [{"role": "user", "content": "hi"}]}).encode()
url = os.environ["OPENAI_API_BASE"] + "/chat/completions"
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
opener.open(urllib.request.Request(url, body, {"content-type": "application/json"})).read()
"""


@pytest.fixture
def gateway(taximeter_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A gateway on a script; its ledger is the home's."""
    settings = Settings.load()
    with listening(a_house(FakeBackend(), Ledger.open(settings.ledger_url))) as url:
        monkeypatch.setenv("TAXIMETER_URL", url)
        yield url


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "taximeter", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, timeout=60)


def test_a_programs_requests_belong_to_its_task(gateway: str) -> None:
    """Through the official clients, which take a base URL and headers from the environment, and through one that knows
    nothing but an address. The task ends with it, and one line says what it took."""
    label = ("--label", "team=search")
    done = run("run", "--task", "nightly", "--run", "7", *label, "--", sys.executable, "-c", ASK + CURL)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("taximeter: task nightly succeeded: 3 requests, 7 tokens in, 9 out, $0.00000000300, ")
    assert done.stderr.endswith("of answers; run 7\n")
    listed = json.loads(run("receipts", "--run", "7", "--json").stdout)["receipts"]
    assert {(each["request"]["task"], each["request"]["labels"]["team"]) for each in listed} == {("nightly", "search")}
    assert len(listed) == 3
    for asked in (("--task", "nightly"), ("--label", "team=search")):
        assert len(json.loads(run("receipts", *asked, "--json").stdout)["receipts"]) == 3
    (task,) = json.loads(run("tasks", "--json").stdout)["tasks"]
    assert (task["task"]["succeeded"], task["task"]["labels"]) == (True, {"team": "search"})
    assert (task["sums"]["receipts"], task["sums"]["cost"]) == (3, "0.000000003")


def test_its_exit_code_is_ours_and_the_tasks_end(gateway: str) -> None:
    """Its output is untouched, its flags are its own, and a run without a name gets one."""
    program = "import sys; print('out', sys.argv[1:]); sys.exit(3)"
    done = run("run", "--task", "Prüfung/ä", sys.executable, "-c", program, "--json", "--task", "x")
    assert done.returncode == 3
    assert done.stdout == "out ['--json', '--task', 'x']\n"
    assert done.stderr == (
        "taximeter: task Prüfung/ä failed (exit code 3): no request of it came through the gateway\n"
    )
    finished = run("task", "finish", "Prüfung/ä")
    assert finished.stdout == "task Prüfung/ä succeeded: no requests yet\n"


def test_a_gateway_that_is_not_there_changes_nothing_but_the_line(taximeter_home: Path) -> None:
    """The program ran; only that it ended could not be told."""
    done = run("run", "--task", "x", "--url", "http://127.0.0.1:9", "--", sys.executable, "-c", "print(1)")
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "but the gateway does not know: http://127.0.0.1:9 does not answer" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_reach_the_program(gateway: str, number: signal.Signals) -> None:
    """It may end as it likes; one that it does not handle ends it, and its code says so."""
    patient = f"import signal, sys\nsignal.signal({int(number)}, lambda *_: sys.exit(9))\n"
    # Naps: a signal that comes just before a long sleep begins is heeded only when that is over.
    waits = "import time\nprint('ready', flush=True)\nwhile True: time.sleep(0.05)\n"
    for program, code in ((patient + waits, 9), (waits, 128 + number)):
        command = [sys.executable, "-m", "taximeter", "run", "--task", "x", "--", sys.executable, "-c", program]
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # noqa: PLW1509 - under nohup, tests ignore one
        ) as started:
            assert started.stdout is not None
            assert started.stdout.readline() == "ready\n"
            os.kill(started.pid, number)
            _, said = started.communicate(timeout=60)
        assert started.returncode == code, said
        assert f"failed (exit code {code})" in said


@pytest.mark.parametrize(
    ("arguments", "told_of"),
    [
        (["run", "--task", "", "true"], "the name of a task"),
        (["run", "--task", "..", "true"], "cannot be a name"),
        (["run", "--task", "x", "--label", "team", "true"], "--label must be KEY=VALUE"),
        (["run", "--task", "x", "--label", "a b=c", "true"], "cannot be sent"),
        (["run", "--task", "x", "/no/such/program"], "there is no program"),
        (["run", "--task", "x"], "command"),
        (["receipts", "--task", "x", "--run", "y"], "give one of"),
        (["receipts", "--label", "x"], "--label must be KEY=VALUE"),
        (["task", "finish", "a\nb"], "NAME must be"),
        (["task", "finish"], "no task has started"),
        (["task", "assign", "x"], "say whose requests"),
        (["task", "assign", "x", "--session", "s", "--run", "r"], "give one of"),
        (["task", "assign", "--each", "model"], "--each is"),
        (["task", "assign", "--each", "run", "--done-after", "soon"], "--done-after is"),
        (["report", "--by", "colour"], "no report by"),
        (["report", "--since", "soon"], "no instant"),
        (["report", "--since", "2026-11-02", "--until", "2026-11-01"], "nothing between"),
        (["report", "--timezone", "Atlantis"], "no time zone"),
        (["report", "--json", "--csv"], "give one of"),
    ],
)
def test_what_makes_no_sense_is_told(arguments: list[str], told_of: str, taximeter_home: Path) -> None:
    """As one line, before anything is run."""
    done = run(*arguments)
    assert done.returncode == 2
    assert told_of in done.stderr.lower() or told_of in done.stderr


def test_what_a_program_has_of_its_own_is_kept() -> None:
    """Its own headers stay; those of an outer `taximeter run` are replaced. What is not ASCII is in the address only:
    clients cannot send it as a header."""
    groups = Groups(task="ä/b", run="7", labels={"team": "search"})
    mine = {"ANTHROPIC_CUSTOM_HEADERS": "x-own: 1\nX-Taximeter-Task: outer"}
    environ = told(groups, "http://127.0.0.1:8000", mine)
    assert environ["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8000/task/%C3%A4%2Fb/run/7/label/team/search"
    assert environ["OPENAI_BASE_URL"] == environ["ANTHROPIC_BASE_URL"] + "/v1" == environ["OPENAI_API_BASE"]
    assert environ["ANTHROPIC_CUSTOM_HEADERS"].split("\n") == [
        "x-own: 1",
        "x-taximeter-run: 7",
        "x-taximeter-label-team: search",
    ]


def test_a_table_of_tasks(gateway: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Newest first; those that nobody has finished are open."""
    run("run", "--task", "done", "--", sys.executable, "-c", CURL)
    run("run", "--task", "broken", "--", sys.executable, "-c", CURL + "raise SystemExit(1)")
    assert app(["tasks"], standalone_mode=False) == 0
    heading, broken, done = capsys.readouterr().out.splitlines()
    assert heading.split() == ["task", "last,", "UTC", "requests", "in", "out", "cost", "ended"]
    assert (broken.split()[0], broken.split()[-1]) == ("broken", "failed")
    assert (done.split()[0], done.split()[-1]) == ("done", "succeeded")
