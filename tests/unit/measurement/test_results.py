"""Result files: what is written can be read, and what cannot be read says why."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from taximeter.errors import ConfigError
from taximeter.measurement.asking.observation import Observation
from taximeter.measurement.results import Result, environment, read_result, write_result, write_whole
from taximeter.records import Outcome, Phase, Usage


def a_result() -> Result:
    seen = Observation(
        id="req_1",
        shape="64",
        scheduled_ns=5,
        sent_ns=6,
        headers_ns=7,
        first_event_ns=8,
        arrivals_ns=(8, 9),
        arrival_tokens=(1, 1),
        ended_ns=10,
        outcome=Outcome.COMPLETED,
        status=200,
        usage=Usage(
            input_fresh_tokens=64,
            input_cache_read_tokens=None,
            output_text_tokens=2,
            unknown_reasons={"input_cache_read_tokens": "nobody said"},
        ),
        reported_ns={Phase.QUEUE: 1},
    )
    broken = Observation(
        id="req_2",
        shape="64",
        scheduled_ns=0,
        sent_ns=0,
        ended_ns=1,
        outcome=Outcome.FAILED,
        error="it broke",
        usage=Usage.unknown("it broke"),
    )
    return Result(
        kind="sweep",
        run="sweep-1",
        made_at=datetime(2026, 11, 30, tzinfo=UTC),
        taximeter_version="0.1.0",
        environment=environment(),
        targets=({"name": "a", "setup": {"context": "4096"}},),
        plan={"lengths": [64, 128], "repeats": 5},
        conclusions={"ttft": {"value": 1.5, "low": None}},
        observations={"a": (seen, broken)},
        warnings=("few samples",),
    )


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_result(path, a_result())
    assert read_result(path) == a_result()


def test_definitions_and_version_are_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_result(path, a_result())
    document = json.loads(path.read_text("utf-8"))
    assert document["schema_version"] == 1
    assert "any channel" in document["definitions"]["ttft"]
    assert document["environment"]["client_cpu"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("[]", "no result"),
        ('{"schema": "else"}', "no result"),
        ('{"schema": "taximeter.measurement", "schema_version": 2}', "version 2"),
        ('{"schema": "taximeter.measurement", "schema_version": 1}', "damaged"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_result(path)


def test_a_damaged_observation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_result(path, a_result())
    document = json.loads(path.read_text("utf-8"))
    document["observations"]["a"][0]["arrivals_ns"] = [9, 8]
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match="damaged"):
        read_result(path)


def test_others_may_read_what_they_usually_may(tmp_path: Path) -> None:
    """A file is for whom the umask says, a link stays one, and a pipe is written to."""
    (tmp_path / "usual").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "page.html")
    write_whole(tmp_path / "link", "<p>")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "page.html").read_text() == "<p>"
    assert (tmp_path / "page.html").stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "page.html", "usual"]
    write_whole(Path(os.devnull), "<p>")
    assert Path(os.devnull).is_char_device()


def test_a_file_that_cannot_be_written_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        write_result(tmp_path / "no" / "result.json", a_result())
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        write_result(tmp_path / "folder", a_result())
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
