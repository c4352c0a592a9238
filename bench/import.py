"""How fast logs are imported, beside ccusage on the same directory in the same run.

    python bench/import.py [--megabytes 1000] [--rounds 3] [--folder DIR] [--ccusage PATH] [--json PATH]

Writes synthetic transcripts of Claude Code to DIR (once; a temporary one without it), then in each round, by turns:
`taximeter import` into an empty ledger, the same again with nothing new, and `ccusage claude daily`. Ours prices each
call and writes a receipt for it, durable; ccusage prices and prints sums, and keeps nothing. What both say is compared
with what was written. ccusage is not installed by this: `npm install ccusage` makes `node_modules/.bin/ccusage`, or its
platform's package has the program itself. Without it ours is measured alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from import_lab.transcripts import Made, make_transcripts

_MADE = "made.json"


@dataclass(frozen=True, slots=True)
class Took:
    """What one run of a program took: on the clock, and of all processors together."""

    wall_s: float
    cpu_s: float
    said: dict[str, Any]


def main() -> None:
    """Make, measure, compare, print."""
    options = _options()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch) / "logs"
        made = _transcripts(folder, options.megabytes * 1_000_000)
        print(f"{made.size_bytes / 1e6:,.0f} MB in {made.files:,} files: {made.calls:,} calls in {made.lines:,} lines")
        times: dict[str, list[Took]] = {}
        for number in range(options.rounds):
            home = Path(scratch) / f"home-{number}"
            home.mkdir()
            # A home of its own for each, so that nobody finds the logs of whoever measures.
            environ = {**os.environ, "TAXIMETER_HOME": str(home), "HOME": scratch, "CLAUDE_CONFIG_DIR": str(folder)}
            ours = [sys.executable, "-m", "taximeter", "import", "--from", "claude-code", "--json"]
            turns = {
                "taximeter": [*ours, str(folder / "projects")],
                "taximeter, again": [*ours, str(folder / "projects")],
            }
            if options.ccusage is not None:
                turns["ccusage"] = [str(options.ccusage), "claude", "daily", "--offline", "--json"]
            for name, command in turns.items():
                took = _run(command, environ)
                times.setdefault(name, []).append(took)
                _compare(name, took.said, made)
        for name, each in times.items():
            walls, cpus = [took.wall_s for took in each], [took.cpu_s for took in each]
            speed = made.size_bytes / 1e6 / median(walls)
            print(
                f"{name:<17} {median(walls):7.2f} s ({min(walls):.2f} to {max(walls):.2f}), processors "
                f"{median(cpus):6.2f} s, {speed:8,.0f} MB/s, {made.calls / median(walls):9,.0f} calls/s"
            )
        if options.json is not None:
            kept = {
                name: [{"wall_s": took.wall_s, "cpu_s": took.cpu_s} for took in each] for name, each in times.items()
            }
            options.json.write_text(json.dumps({"made": asdict(made), "runs": kept}, indent=2))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--ccusage", type=Path)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def _transcripts(folder: Path, size_bytes: int) -> Made:
    """The transcripts, made if they are not there."""
    note = folder / _MADE
    if note.exists():
        made = Made(**json.loads(note.read_text()))
        if made.size_bytes >= size_bytes:
            return made
        sys.exit(f"{folder} has {made.size_bytes:,} bytes of transcripts: remove it, or name another folder")
    made = make_transcripts(folder, size_bytes=size_bytes)
    note.write_text(json.dumps(asdict(made)))
    return made


def _run(command: Sequence[str], environ: Mapping[str, str]) -> Took:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)  # noqa: S603 - our own words
    wall_s = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{command[0]} failed: {done.stderr[-500:]}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Took(wall_s, cpu_s, json.loads(done.stdout))


def _compare(name: str, said: Mapping[str, Any], made: Made) -> None:
    """Whether the sums are what was written."""
    inputs = sum(made.tokens.values()) - made.tokens["output_tokens"]
    expected = (inputs, made.tokens["output_tokens"])
    if name == "ccusage":
        totals = said["totals"]
        parts = [totals[key] for key in ("inputTokens", "cacheCreationTokens", "cacheReadTokens")]
        found = (sum(parts), totals["outputTokens"])
    else:
        summary = said["import"]
        found = (summary["total"]["input_tokens"], summary["total"]["output_tokens"])
        expected = (0, 0) if name.endswith("again") else expected
    if found != expected:
        print(f"{name} says {found}, and {expected} were written")


if __name__ == "__main__":
    main()
