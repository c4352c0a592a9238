"""The boundary of the command line: every way out is one line on stderr and an exit code."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from taximeter.cli import console
from taximeter.cli.main import app
from taximeter.errors import (
    CapacityError,
    ConfigError,
    DownloadError,
    LedgerError,
    ModelNotFound,
    RequestError,
    TaximeterError,
)


def raising(error: BaseException) -> Callable[[], object]:
    def command() -> object:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RequestError("wrong"), 2),
        (ModelNotFound("wrong"), 2),
        (ConfigError("wrong"), 1),
        (DownloadError("wrong"), 1),
        (LedgerError("wrong"), 1),
        (CapacityError("wrong", retry_after_s=1), 1),
        (KeyboardInterrupt(), 130),
        (typer.Abort(), 130),
    ],
)
def test_exit_codes_say_who_must_act(error: BaseException, code: int) -> None:
    """2 for a wrong call, 1 for a failure, 130 for Ctrl-C."""
    assert console.run_guarded(raising(error), as_json=False) == code


def test_an_error_is_one_line_and_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    """Long messages are not folded, and nothing goes to stdout."""
    message = "the thing " + "very " * 60 + "broke"
    console.run_guarded(raising(TaximeterError(message, hint="mend it")), as_json=False)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"taximeter: {message}\n  hint: mend it\n"


def test_an_error_is_json_when_json_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts read the class, the message and the hint."""
    console.run_guarded(raising(ModelNotFound("no such model", hint="another")), as_json=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err) == {
        "error": {"type": "ModelNotFound", "message": "no such model", "hint": "another"}
    }


@pytest.mark.parametrize("name", ["my[models]-x", "/data/[/x]", "a[b]c[/b]", ":smile:"])
def test_names_are_printed_as_they_are(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing in them is an instruction about colours, or a picture."""
    console.out().print(f"model {name}")
    with console.waiting(f"loading {name}") as say:
        say(f"still loading {name}")
    assert capsys.readouterr().out == f"model {name}\n"


def test_a_file_is_as_wide_as_ever(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Programs that read lines hand their own width on to whatever they start: ids in a file are not cut for it."""
    monkeypatch.setenv("COLUMNS", "40")
    console.out().print("x" * 150)
    assert capsys.readouterr().out == "x" * 150 + "\n"


def test_a_bug_keeps_its_traceback() -> None:
    """What is not ours is not dressed up as a mistake of the caller."""
    with pytest.raises(ZeroDivisionError):
        console.run_guarded(raising(ZeroDivisionError()), as_json=False)


def run(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    result = CliRunner().invoke(app, arguments, input="")
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["frobnicate"], "no such command 'frobnicate'"),
        (["ask", "--frobnicate"], "no such option: --frobnicate"),
        (["models", "pull"], "missing argument 'NAME'"),
        (["receipts", "--limit", "0"], "invalid value for '--limit'"),
        (["ask", "hi", "--machine-rate", "1/min"], "--machine-rate is '1/min': it must be dollars per hour"),
    ],
)
def test_a_wrong_call_exits_with_2_and_one_line(taximeter_home: Path, arguments: list[str], told: str) -> None:
    """With --json it is a JSON object, on stderr too."""
    code, text, error = run(*arguments)
    assert (code, text) == (2, "")
    assert error.startswith(f"taximeter: {told}")
    assert len(error.splitlines()) <= 2
    code, text, error = run(*arguments, "--json")
    assert (code, text) == (2, "")
    assert json.loads(error)["error"]["message"].startswith(told)


def test_a_bad_variable_is_told_by_every_command(taximeter_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a traceback, and as a failure: the call was right."""
    monkeypatch.setenv("TAXIMETER_PORT", "http")
    for arguments in (["models"], ["receipts"], ["ask", "hi"], ["serve"]):
        code, _, error = run(*arguments)
        assert code == 1
        assert error.startswith("taximeter: TAXIMETER_PORT is 'http': it must be a port number")


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_a_closed_pipe_is_quiet(taximeter_home: Path, form: list[str]) -> None:
    """`taximeter ... | head` ends without a word, as other commands do."""
    with subprocess.Popen(
        [sys.executable, "-m", "taximeter", "models", *form], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == console.EXIT_BROKEN_PIPE


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
@pytest.mark.parametrize("form", [["models"], ["models", "--json"], ["--version"], ["models", "--help"]])
def test_output_that_cannot_be_written_is_one_line(taximeter_home: Path, form: list[str]) -> None:
    """A full disk is a failure like any other, also where only the last flush meets it."""
    with open("/dev/full", "w") as full:  # noqa: PTH123
        result = subprocess.run(
            [sys.executable, "-m", "taximeter", *form], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert "the output could not be written: No space left on device" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.returncode == 1


def test_a_closed_stdout_is_one_line(taximeter_home: Path) -> None:
    """`taximeter receipts >&-` has nowhere to print."""
    command = f"exec {shlex.quote(sys.executable)} -m taximeter receipts >&-"
    result = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert result.stderr == "taximeter: stdout is closed, so there is nowhere to print\n"
    assert result.returncode == 1


def test_help_and_version_load_nothing_heavy(taximeter_home: Path) -> None:
    """The command line answers at once: arrays, databases, servers and weights are imported by those who need them."""
    program = (
        "import sys\n"
        "from taximeter.cli.main import app\n"
        "code = app(['--version'], standalone_mode=False)\n"
        "heavy = {'numpy', 'sqlalchemy', 'starlette', 'uvicorn', 'tokenizers', 'jinja2', 'genai_prices', 'rich',\n"
        "         'huggingface_hub', 'httpx'}\n"
        "print(code, sorted(heavy & sys.modules.keys()))\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "0 []"
    assert answer.stdout.startswith("taximeter ")


def test_every_command_takes_json_and_explains_itself(taximeter_home: Path) -> None:
    """The contract that scripts rely on."""
    commands = (["ask"], ["serve"], ["receipts"], ["receipt"], ["price"], ["models"])
    more = (["tasks"], ["tasks", "finish"], ["config", "check"], ["config", "show"])
    for command in (*commands, *more, ["models", "pull"], ["models", "path"], ["models", "remove"]):
        code, text, _ = run(*command, "--help")
        assert code == 0
        assert "--json" in text, command


def test_no_command_at_all_shows_the_help(taximeter_home: Path) -> None:
    """And says with its exit code that there was nothing to do."""
    code, text, _ = run()
    assert code == 2
    assert "receipts" in text


def test_the_readme_shows_commands_that_exist(taximeter_home: Path) -> None:
    """Every `$ taximeter ...` of the README parses: command, flags and all."""
    readme = (Path(__file__).parents[3] / "README.md").read_text("utf-8")
    shown = [shlex.split(line, comments=True)[2:] for line in readme.splitlines() if line.startswith("$ taximeter ")]
    assert len(shown) >= 6
    for arguments in shown:
        ours = arguments[: arguments.index("--")] if "--" in arguments else arguments  # the rest is another program's
        code, _, error = run(*ours, "--help")
        assert code == 0, (arguments, error)
