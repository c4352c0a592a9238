"""`taximeter import`: what it finds, says and leaves alone."""

from __future__ import annotations

import errno
import json
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from taximeter.cli.main import app
from taximeter.importers.importing import Importer
from taximeter.ledger.liveness import WriterLocks
from tests.unit.importers.logs import PRICES, content, transcript_line


@pytest.fixture
def home(tmp_path: Path, taximeter_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody's home with transcripts in it, and prices for them."""
    (taximeter_home / "prices.toml").write_text(PRICES)
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    monkeypatch.delenv("CODEX_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def transcripts(home: Path) -> Path:
    path = home / ".claude" / "projects" / "-home-dev-shop" / "session-a.jsonl"
    path.parent.mkdir(parents=True)
    lines = [
        transcript_line("m1", out=4_400, costUSD=0.12),
        transcript_line("m2", out=40_000, request="r2"),
        transcript_line("m3", out=5, request="r3", model="no-such"),
    ]
    path.write_bytes(content(lines))
    return path


def call(*arguments: str) -> int:
    code = app(["import", *arguments], standalone_mode=False)
    assert isinstance(code, int)
    return code


def test_one_command_finds_and_prices_what_is_there(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the second time there is nothing to do."""
    transcripts(home)
    assert call() == 0
    said = capsys.readouterr().out
    assert "3 new calls of 2026-10-29; 1 file read" in said
    assert "$1.1100" in said
    assert "1 unpriced: no prices for a model called 'anthropic/no-such'" in said
    assert call() == 0
    assert "0 new calls; 0 files read, 1 unchanged, 0 bytes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("mode", "there", "absent"),
    [("calculate", "$0.1100", "$0.1200"), ("reported", "$0.1200", "$0.1100"), ("both", "$0.0100", "$9")],
)
def test_the_mode_says_whose_figures_are_shown(
    home: Path, capsys: pytest.CaptureFixture[str], mode: str, there: str, absent: str
) -> None:
    """Ours, the log's own, or both and their difference over the calls that have both."""
    path = transcripts(home)
    path.write_bytes(content([transcript_line("m1", out=4_400, costUSD=0.12)]))
    assert call("--mode", mode) == 0
    said = capsys.readouterr().out
    assert there in said
    assert absent not in said


def test_json_has_everything(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By model and in all, with reasons; a dry run writes nothing."""
    transcripts(home)
    for expected in (3, 3, 0):
        arguments = ["--json", *(["--dry-run"] if expected and not (home / "done").exists() else [])]
        assert call(*arguments) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["import"]["total"]["calls"] == expected
        assert said["dry_run"] is (len(arguments) == 2)
        (home / "done").touch()
        if expected:
            assert said["import"]["total"]["cost"] == "1.11"
            assert said["import"]["total"]["unpriced"] == 1
            assert set(said["import"]["models"]) == {"opus-card", "no-such"}


def test_nothing_in_the_usual_places_says_what_to_do(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong call, not an empty success."""
    assert home.exists()
    assert call() == 2
    assert "taximeter import PATH" in capsys.readouterr().err


def test_codex_and_claude_code_are_found_where_their_variables_say(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Comma lists too."""
    for name in ("one", "two"):
        path = home / name / "projects" / "p" / f"{name}.jsonl"
        path.parent.mkdir(parents=True)
        path.write_bytes(content([transcript_line(name, out=4_000)]))
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", f"{home / 'one'}, {home / 'two'}")
    assert call() == 0
    assert "2 new calls" in capsys.readouterr().out


def test_who_only_asks_needs_not_write(
    home: Path, taximeter_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A ledger on a medium for reading is asked in a copy by what changes nothing; what would says that it cannot."""
    path = transcripts(home)
    assert call() == 0
    path.write_bytes(path.read_bytes() + content([transcript_line("m4", out=1, request="r4")]))
    lock = WriterLocks.opening

    def only_elsewhere(self: WriterLocks) -> AbstractContextManager[None]:
        if self._folder.is_relative_to(taximeter_home):
            raise OSError(errno.EROFS, "Read-only file system")
        return lock(self)

    monkeypatch.setattr(WriterLocks, "opening", only_elsewhere)
    capsys.readouterr()
    assert call("--dry-run") == 0
    assert "1 new call of" in capsys.readouterr().out
    for arguments in (["task", "rules"], ["reprice", "--with", "current", "--dry-run"]):
        assert app(arguments, standalone_mode=False) == 0
    capsys.readouterr()
    assert call() == 1
    assert "Read-only" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"), [((), "the next import reads the rest"), (("--dry-run",), "nothing was")]
)
def test_who_interrupts_an_import_is_told_what_became_of_it(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    said: str,
) -> None:
    """It ends at once, with the code for that."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    transcripts(home)
    monkeypatch.setattr(Importer, "run", interrupted)
    assert call(*arguments) == 130
    assert said in capsys.readouterr().err
