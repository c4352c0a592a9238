"""`taximeter machine`: measured once, then remembered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from taximeter.cli.main import app
from taximeter.engine import limits
from tests.unit.engine.test_limits import known


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Measurements that were made."""
    times: list[str] = []

    def measure(_report: limits.Report) -> limits.MachineLimits:
        times.append("once")
        return known()

    monkeypatch.setattr(limits, "measure", measure)
    monkeypatch.setattr(limits.MachineLimits, "stale_reason", lambda _: None)
    return times


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["machine", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_the_table(taximeter_home: Path, measured: list[str]) -> None:
    """Figures by threads, a dash for a unit there is not, and whether energy can be read."""
    code, text, _ = run()
    assert code == 0
    lines = text.splitlines()
    assert lines[0].startswith(known().cpu)
    assert lines[1].split() == ["threads", "read", "GB/s", "int8", "Gop/s", "bf16", "Gop/s", "f32", "Gop/s"]
    assert lines[2].split() == ["1", "25.5", "459", "-", "115"]
    assert lines[3].split() == ["4", "33.0", "910", "455", "229"]
    assert "\nenergy    " in text
    assert "measured  2026-11-29 12:00 UTC, reading 268 MB" in text
    assert f"kept in   {taximeter_home / 'machine.json'}" in text


def test_it_is_measured_once(taximeter_home: Path, measured: list[str]) -> None:
    """Unless it is asked for again."""
    first, second = run("--json"), run("--json")
    assert first == second
    assert len(measured) == 1
    document = json.loads(first[1])
    assert document["path"] == str(taximeter_home / "machine.json")
    assert document["limits"]["rates"][1]["read_gb_per_s"] == 33
    assert "energy_unknown_reason" in document
    run("--refresh")
    assert len(measured) == 2
