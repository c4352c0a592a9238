"""`taximeter ask` and the receipts it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from taximeter.cli.ask import to_prompt
from taximeter.cli.main import app
from taximeter.errors import RequestError
from taximeter.records import Message, ModelInfo, Prompt

TINY = str(Path(__file__).parents[2] / "golden" / "tiny_llama")


def run(*arguments: str, stdin: str | bytes | None = None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    result = CliRunner().invoke(app, arguments, input=stdin)
    return result.exit_code, result.stdout, result.stderr


def test_one_question_leaves_one_receipt(taximeter_home: Path) -> None:
    """What `ask` says about a request is what the ledger holds of it, to the last digit."""
    code, text, error = run("ask", "hello", "-m", TINY, "--max-tokens", "5", "--machine-rate", "0.50/h", "--json")
    assert code == 0, error
    said = json.loads(text)
    assert said.keys() == {"text", "receipt"}
    receipt = said["receipt"]
    assert receipt["outcome"] == "completed"
    assert receipt["usage"]["output_text_tokens"] == 5
    assert receipt["work"]["decode_passes"] == 4
    timing = receipt["timing"]
    assert (
        sum(timing[f"{phase}_ns"] for phase in ("gateway", "queue", "prefill", "decode", "stalled", "upstream"))
        == (timing["total_ns"])
    )
    assert Decimal(receipt["cost"]["total"]) == sum(Decimal(line["amount"]) for line in receipt["cost"]["lines"])
    assert json.loads(run("receipt", "last", "--json")[1]) == receipt
    assert json.loads(run("receipts", "--json")[1]) == {"receipts": [receipt]}
    assert json.loads(run("receipt", receipt["request"]["id"], "--json")[1]) == receipt


def test_the_answer_comes_first_and_the_receipt_below(taximeter_home: Path) -> None:
    """The same block that `taximeter receipt` shows later; plain, since nobody's terminal is attached."""
    code, text, _ = run("ask", "hello", "-m", TINY, "--max-tokens", "5", "--task", "greeting")
    assert code == 0
    block = run("receipt")[1]
    assert text.endswith("\n\n" + block)
    assert "task greeting" in block
    assert "money    unknown: no machine rate: set --machine-rate" in block
    assert "\x1b" not in text


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_a_slow_answer_says_why(taximeter_home: Path, form: list[str]) -> None:
    """Once, on stderr, never in the answer; a program that asked for JSON reads it on the receipt."""
    answer = subprocess.run(
        [sys.executable, "-m", "taximeter", "ask", "hello", "-m", TINY, "--max-tokens", "2", *form],
        env={**os.environ, "TAXIMETER_CPU_LEVEL": "reference"},
        capture_output=True,
        text=True,
        check=True,
    )
    told = "reference kernels: the slow reference path is in use, because TAXIMETER_CPU_LEVEL asks for it"
    assert answer.stderr.splitlines() == ([] if form else [told])
    assert "slow" not in answer.stdout


def test_a_model_in_a_strange_folder_answers(taximeter_home: Path, tmp_path: Path) -> None:
    """A path is no markup, however it looks."""
    folder = tmp_path / "m[" / "b]"
    folder.parent.mkdir(parents=True)
    folder.symlink_to(TINY, target_is_directory=True)
    code, _, error = run("ask", "hello", "-m", str(folder), "--max-tokens", "2")
    assert code == 0, error


def test_a_profile_says_where_the_passes_went(taximeter_home: Path, smollm2_path: Path) -> None:
    """By kind of work, all of them together less than the machine's time on the receipt."""
    printed = json.loads(run("ask", "Hello", "--max-tokens", "4", "--profile", "--json")[1])
    spent_ns = printed["profile_ns"]
    assert {"attention", "head", "gate and up"} <= spent_ns.keys()
    assert all(ns > 0 for ns in spent_ns.values())
    assert sum(spent_ns.values()) < printed["receipt"]["work"]["compute_ns"]
    assert "gate and up" in run("ask", "Hello", "--max-tokens", "4", "--profile")[1]


def test_an_answer_repeats_by_default(taximeter_home: Path, smollm2_path: Path) -> None:
    """The default model, by its name and greedily: the same words from stdin as from the argument."""
    first = json.loads(run("ask", "What is the capital of Japan?", "--json")[1])
    again = json.loads(run("ask", "-", "--json", stdin="What is the capital of Japan?")[1])
    assert "Tokyo" in first["text"]
    assert again["text"] == first["text"]
    assert again["receipt"]["request"]["prompt_fingerprint"] == first["receipt"]["request"]["prompt_fingerprint"]


def test_a_base_model_goes_on_with_the_text() -> None:
    """Without a chat template there is no conversation: nobody to tell a system prompt to."""
    base = ModelInfo(id="gemma3-270m", context_length_tokens=32_768, chat=False)
    assert to_prompt("One, two,", None, base) == Prompt(text="One, two,")
    with pytest.raises(RequestError, match="gemma3-270m does not chat"):
        to_prompt("One, two,", "You count.", base)
    chat = ModelInfo(id="smollm2", context_length_tokens=8192, chat=True)
    turns = (Message(role="system", content="You count."), Message(role="user", content="One, two,"))
    assert to_prompt("One, two,", "You count.", chat) == Prompt(messages=turns)


@pytest.mark.parametrize(
    ("arguments", "stdin", "told"),
    [
        (["ask"], "", "the prompt is empty"),
        (["ask", " \n"], None, "the prompt is empty"),
        (["ask", "-"], b"\xff\xfe", "the prompt on stdin is not UTF-8"),
        (["ask", "hi", "--task", "two\nlines"], None, "--task must be at most 200 printable characters"),
        (["ask", "hi", "--task", "x" * 201], None, "--task must be at most 200 printable characters"),
        (["ask", "hi", "-m", "no[/b]-such[b]-model"], None, "no model file or folder at no[/b]-such[b]-model"),
        (["ask", "hi", "-m", "no-such-model"], None, "there is no model 'no-such-model'"),
        (["ask", "hi", "--max-tokens", "0"], None, "invalid value for '--max-tokens'"),
    ],
)
def test_what_cannot_be_asked_is_a_wrong_call(
    taximeter_home: Path, arguments: list[str], stdin: str | bytes | None, told: str
) -> None:
    """Before any model is loaded."""
    code, text, error = run(*arguments, stdin=stdin)
    assert (code, text) == (2, "")
    assert told in error


def test_a_prompt_that_does_not_fit_is_refused_with_a_receipt(taximeter_home: Path) -> None:
    """It cost nothing, and it is on record."""
    code, _, error = run("ask", "word " * 3000, "-m", TINY)
    assert code == 2
    assert "traceback" not in error.lower()
    (receipt,) = json.loads(run("receipts", "--json")[1])["receipts"]
    assert receipt["outcome"] == "refused"
    assert receipt["error"].startswith("PromptTooLong: ")


def test_an_interrupted_answer_has_a_receipt(taximeter_home: Path, smollm2_path: Path) -> None:
    """Ctrl-C in the middle: exit code 130, and an aborted receipt for what was done."""
    command = [sys.executable, "-m", "taximeter", "ask", "Count from 1 to 1000.", "--max-tokens", "2000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGINT)
        rest, error = process.stdout.read(), process.stderr.read()
    assert process.returncode == 130
    assert error == b"" or b"slow reference path" in error.splitlines()[0]
    assert b"Traceback" not in error
    assert b"aborted: cancelled" in rest
    assert json.loads(run("receipt", "--json")[1])["outcome"] == "aborted"


def test_a_receipt_that_is_not_there_is_told(taximeter_home: Path) -> None:
    """In an empty ledger, and by name."""
    assert run("receipts")[1].startswith("no receipts yet")
    code, _, error = run("receipt")
    assert (code, error.splitlines()[0]) == (1, "taximeter: there are no receipts yet")
    code, _, error = run("receipt", "rcpt_nothing")
    assert (code, error.splitlines()[0]) == (1, "taximeter: there is no receipt rcpt_nothing")


def test_the_list_has_a_line_for_each_receipt_newest_first(taximeter_home: Path) -> None:
    """Limited, and continued from behind a given one."""
    for tokens in ("1", "2", "3"):
        assert run("ask", "hello", "-m", TINY, "--max-tokens", tokens)[0] == 0
    newest, *older = json.loads(run("receipts", "--json")[1])["receipts"]
    assert [receipt["usage"]["output_tokens"] for receipt in (newest, *older)] == [3, 2, 1]
    assert json.loads(run("receipts", "--json", "--before", newest["id"])[1])["receipts"] == older
    table = run("receipts", "--limit", "2")[1].splitlines()
    assert len(table) == 3
    assert newest["id"] in table[1]
