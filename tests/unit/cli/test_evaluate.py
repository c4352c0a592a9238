"""`taximeter eval`, with tiny models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from taximeter.cli import evaluate
from taximeter.cli.main import app
from taximeter.engine import kernels
from tests.engine_harness import TINY_LLAMA, TINY_MODELS


@pytest.fixture(autouse=True)
def home(taximeter_home: Path) -> Path:
    return taximeter_home


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("A receipt says what it took, and what it cost. " * 4, "utf-8")
    return str(path)


def run(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    result = CliRunner().invoke(app, ["eval", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_perplexity_for_people(text: str) -> None:
    """The figure with its error, and what it depends on: text, windows and arithmetic."""
    code, printed, _ = run("perplexity", str(TINY_LLAMA), "--text", text, "--context-tokens", "64", "--stride", "32")
    assert code == 0
    rows = {line[:18].strip(): line[18:].strip() for line in printed.splitlines()}
    value, _, error = rows["perplexity"].partition(" ± ")
    assert float(value) > 1
    assert float(error) > 0
    assert rows["text"].startswith(f"{text}, ")
    assert rows["windows"] == "64 tokens, one every 32"
    assert rows["computed by"] == kernels.level()
    assert "± is one standard error" in printed


def test_perplexity_for_programs(text: str) -> None:
    """Every digit, and nothing else on stdout."""
    code, printed, _ = run("perplexity", f"{TINY_LLAMA},level=reference", "--text", text, "--json")
    assert code == 0
    document = json.loads(printed)
    assert document["text"] == text
    assert document["windows"] == {"context_tokens": 512, "stride_tokens": 384}
    assert document["model"]["model"] == str(TINY_LLAMA)
    assert (document["model"]["level"], document["model"]["kv"]) == ("reference", "f32")
    found = document["model"]["perplexity"]
    assert set(found) == {"tokens", "nll_nats", "perplexity"}
    assert set(found["perplexity"]) == {"value", "standard_error"}


def test_divergence_for_people(text: str) -> None:
    """All the figures, B against A."""
    code, printed, _ = run("divergence", str(TINY_LLAMA), str(TINY_MODELS[1]), "--text", text)
    assert code == 0
    assert printed.startswith(f"{TINY_MODELS[1]}\nagainst {TINY_LLAMA}\n")
    for name in (
        "KL divergence, mean",
        "median, 90 %, 99 %, most",
        "same likeliest token",
        "right token's probability",
        "perplexity of A",
        "perplexity of B",
        "-ln p of a token, B less A",
    ):
        assert f"\n{name}  " in printed


def test_divergence_for_programs(text: str) -> None:
    """A model from itself: nothing, exactly."""
    code, printed, _ = run("divergence", str(TINY_LLAMA), str(TINY_LLAMA), "--text", text, "--json")
    assert code == 0
    document = json.loads(printed)
    assert document["divergence"]["kl_nats"] == {"value": 0.0, "standard_error": 0.0}
    assert document["divergence"]["same_top"] == 1.0
    assert document["a"]["perplexity"] == document["b"]["perplexity"]


def test_the_built_in_text_comes_with_the_package() -> None:
    """A few thousand tokens of many kinds."""
    text = evaluate._read(None)
    assert 12_000 < len(text) < 16_000
    for part in ("The lighthouse at Corran Point", "def take(self)", "SELECT b.id", "日本語", "| month", "E-217"):
        assert part in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["perplexity", "no-such-model"], "no-such-model"),
        (["perplexity", f"{TINY_LLAMA},colour=red"], "sets 'colour', which there is not"),
        (["perplexity", str(TINY_LLAMA), "--text", "no-such-file"], "no-such-file"),
        (["perplexity", str(TINY_LLAMA), "--context-tokens", "513"], "reads at most 512 tokens, not 513"),
        (["perplexity", str(TINY_LLAMA), "--context-tokens", "64", "--stride", "64"], "does not fit windows of 64"),
    ],
)
def test_wrong_calls_say_what_is_wrong(arguments: list[str], said: str) -> None:
    """And end with 2, as every wrong call."""
    code, printed, error = run(*arguments)
    assert (code, printed) == (2, "")
    assert said in error


def test_a_text_that_is_none_is_refused(tmp_path: Path) -> None:
    """Too short, or not UTF-8."""
    short, binary = tmp_path / "short.txt", tmp_path / "binary.txt"
    short.write_text("a")
    binary.write_bytes(b"\xff\xfe\x00")
    code, _, error = run("perplexity", str(TINY_LLAMA), "--text", str(short))
    assert code == 2
    assert "too few to say anything" in error
    code, _, error = run("perplexity", str(TINY_LLAMA), "--text", str(binary))
    assert code == 2
    assert "is not UTF-8 text" in error
