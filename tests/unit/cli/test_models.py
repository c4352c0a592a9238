"""`taximeter models`, with the models that are really here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from taximeter.cli.main import app


def run(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.stdout, result.stderr


def test_the_list_says_what_is_here(taximeter_home: Path, smollm2_path: Path) -> None:
    """Names, sizes, licences and the folder; as JSON with every field."""
    code, text, _ = run("models")
    assert code == 0
    assert "smollm2-135m-instruct    98 MB   yes    Apache-2.0" in text
    assert f"kept in {smollm2_path.parent}" in text
    code, text, _ = run("models", "--json")
    known = {model["name"]: model for model in json.loads(text)["models"]}
    assert known["smollm2-135m-instruct"]["pulled"] is True
    assert known["smollm2-135m-instruct"]["path"] == str(smollm2_path)
    assert known["smollm2-135m-instruct"]["size_bytes"] == smollm2_path.stat().st_size


def test_an_empty_folder_has_everything_to_pull(
    taximeter_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not here says how much it is to fetch."""
    monkeypatch.setenv("TAXIMETER_MODELS_DIR", str(tmp_path / "none"))
    _, text, _ = run("models")
    assert "no, 93 MB to pull" in text
    code, text, error = run("models", "path", "gemma3-270m")
    assert (code, text) == (1, "")
    assert "taximeter models pull gemma3-270m" in error


def test_a_pull_of_what_is_here_says_where(taximeter_home: Path, smollm2_path: Path) -> None:
    """It is safe to call every time, as `make run` does."""
    code, text, _ = run("models", "pull", "smollm2-135m-instruct")
    assert (code, text) == (0, f"smollm2-135m-instruct is here: {smollm2_path}\n")
    code, text, _ = run("models", "pull", "smollm2-135m-instruct", "--json")
    assert json.loads(text)["path"] == str(smollm2_path)


def test_the_path_alone_is_for_scripts(taximeter_home: Path, smollm2_path: Path) -> None:
    """One line, nothing else."""
    assert run("models", "path", "smollm2-135m-instruct")[1] == f"{smollm2_path}\n"


def test_an_unknown_name_is_a_wrong_call(taximeter_home: Path) -> None:
    """With the nearest name."""
    code, _, error = run("models", "pull", "smollm2")
    assert code == 2
    assert "did you mean smollm2-135m-instruct?" in error


def test_only_pulled_models_are_removed(taximeter_home: Path, tmp_path: Path) -> None:
    """A file of one's own is not ours to delete, and it is not said to be missing."""
    own = tmp_path / "own.gguf"
    own.write_bytes(b"mine")
    code, _, error = run("models", "remove", str(own))
    assert code == 2
    assert f"{own} is no pulled model, and only those are removed" in error
    assert own.read_bytes() == b"mine"


def test_removing_what_is_not_here_changes_nothing(
    taximeter_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says so."""
    monkeypatch.setenv("TAXIMETER_MODELS_DIR", str(tmp_path))
    assert run("models", "remove", "gemma3-270m")[1] == "gemma3-270m was not here\n"
    assert json.loads(run("models", "remove", "gemma3-270m", "--json")[1]) == {"name": "gemma3-270m", "removed": False}
