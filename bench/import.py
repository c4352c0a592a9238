"""How fast logs are imported, beside ccusage on the same directory in the same run.

    python bench/import.py [--megabytes 1000 | --dense CALLS | --table CALLS | --export SOURCE CALLS [--one-file]]
                           [--rounds 3] [--folder DIR] [--ccusage PATH] [--old DIR] [--into FILE] [--json PATH]

Writes synthetic transcripts of Claude Code to DIR (once; a temporary one without it), then in each round, by turns:
`taximeter import` into an empty ledger, the same again with nothing new, and `ccusage claude daily`. Ours prices each
call and writes a receipt for it, durable; ccusage prices and prints sums, and keeps nothing. What both say is compared
with what was written. ccusage is not installed by this: `npm install ccusage` makes `node_modules/.bin/ccusage`, or its
platform's package has the program itself. Without it ours is measured alone.

Most of a gigabyte of transcripts is text that is passed over. `--dense` writes so many calls without any, and `--table`
as rows of CSV files with a map: then it is booking and writing that is measured. `--export` writes them as another
program does, with `--one-file` all into one: SOURCE is litellm, litellm-csv, langfuse, otlp, codex, openai-batch or
anthropic-batch. Meanwhile somebody else reads the
ledger, every 50 ms: receipts a second are those of the whole process, and those from the first batch that was seen on.
Memory is the most that the process had, or one of those beside it. `--old` is another checkout, with a `.venv` of its
own, that takes its turn too. `--into` is a ledger that there is already, a copy of which is imported into: the larger
one is, the more of it changes with each batch (`bench/ledger/bench_size.py --hashed --ledger FILE` makes a large one).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from import_lab.exports import EXPORTS, make_exports
from import_lab.tables import make_tables
from import_lab.transcripts import Made, make_dense_transcripts, make_transcripts

_MADE = "made.json"
_LOOKS_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Took:
    """What one run of a program took: on the clock, and of all processors together; the most memory of a process; and
    receipts a second from the first batch on, where there was more than one."""

    wall_s: float
    cpu_s: float
    memory_bytes: int
    from_first_per_s: float | None
    said: dict[str, Any]


def main() -> None:
    """Make, measure, compare, print."""
    options = _options()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch) / "logs"
        made = _logs(folder, options)
        print(f"{made.size_bytes / 1e6:,.0f} MB in {made.files:,} files: {made.calls:,} calls in {made.lines:,} lines")
        times: dict[str, list[Took]] = {}
        for number in range(options.rounds):
            for name, (command, environ, ledger) in _turns(options, folder, Path(scratch) / str(number)).items():
                took = _run(command, environ, ledger)
                times.setdefault(name, []).append(took)
                _compare(name, took.said, made)
        for name, each in times.items():
            _tell(name, each, made)
        if options.json is not None:
            kept = {name: [{**asdict(took), "said": None} for took in each] for name, each in times.items()}
            options.json.write_text(json.dumps({"made": asdict(made), "runs": kept}, indent=2))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--megabytes", type=int, default=1_000)
    size.add_argument("--dense", type=int, metavar="CALLS")
    size.add_argument("--table", type=int, metavar="CALLS")
    size.add_argument("--export", nargs=2, metavar=("SOURCE", "CALLS"))
    parser.add_argument("--one-file", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--ccusage", type=Path)
    parser.add_argument("--old", type=Path)
    parser.add_argument("--into", type=Path, metavar="FILE")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.export is not None and not (options.export[0] in EXPORTS and options.export[1].isdecimal()):
        parser.error(f"--export SOURCE CALLS: SOURCE is one of {', '.join(EXPORTS)}, and CALLS a number")
    return options


def _logs(folder: Path, options: argparse.Namespace) -> Made:
    """What is imported, made if it is not there."""
    calls = options.dense or options.table or (options.export and int(options.export[1]))
    note = folder / _MADE
    if note.exists():
        made = Made(**json.loads(note.read_text()))
        if made.calls >= calls if calls else made.size_bytes >= options.megabytes * 1_000_000:
            return made
        sys.exit(f"{folder} has {made.calls:,} calls, {made.size_bytes:,} bytes: remove it, or name another folder")
    if options.table:
        made = make_tables(folder, calls=calls)
    elif options.export:
        made = make_exports(folder, options.export[0], calls=calls, one_file=options.one_file)
    elif options.dense:
        made = make_dense_transcripts(folder, calls=calls)
    else:
        made = make_transcripts(folder, size_bytes=options.megabytes * 1_000_000)
    note.write_text(json.dumps(asdict(made)))
    return made


def _turns(
    options: argparse.Namespace, folder: Path, scratch: Path
) -> dict[str, tuple[list[str], dict[str, str], Path | None]]:
    """What is run in a round, by name: the command, its environment, and where it writes a ledger."""
    if options.table:
        what = ["--map", str(folder / "map.toml"), str(folder / "tables")]
    elif options.export:
        what = ["--from", EXPORTS[options.export[0]].reader, str(folder / "exports")]
    else:
        what = ["--from", "claude-code", str(folder / "projects")]
    of_ours = ["-m", "taximeter", "import", "--json", *what]
    turns: dict[str, tuple[list[str], dict[str, str], Path | None]] = {}
    pythons = {"taximeter": sys.executable}
    if options.old is not None:
        pythons["old"] = str(options.old.absolute() / ".venv" / "bin" / "python")
    environ = {**os.environ, "HOME": str(scratch), "CLAUDE_CONFIG_DIR": str(folder)}
    for name, python in pythons.items():
        # A home of its own for each, so that nobody finds the logs of whoever measures.
        home = scratch / name
        home.mkdir(parents=True)
        if options.into is not None:
            shutil.copyfile(options.into, home / "ledger.sqlite")
        theirs = {**environ, "TAXIMETER_HOME": str(home)}
        turns[name] = [python, *of_ours], theirs, home / "ledger.sqlite"
        turns[f"{name}, again"] = [python, *of_ours], theirs, None
    if options.ccusage is not None:
        turns["ccusage"] = [str(options.ccusage), "claude", "daily", "--offline", "--json"], environ, None
    return turns


def _tell(name: str, each: Sequence[Took], made: Made) -> None:
    walls = [took.wall_s for took in each]
    print(
        f"{name:<17} {median(walls):7.2f} s ({min(walls):.2f} to {max(walls):.2f}), processors "
        f"{median(took.cpu_s for took in each):6.2f} s, {made.size_bytes / 1e6 / median(walls):8,.0f} MB/s, "
        f"{made.calls / median(walls):9,.0f} calls/s, {max(took.memory_bytes for took in each) / 1e6:,.0f} MB"
    )
    rates = [took.from_first_per_s for took in each if took.from_first_per_s is not None]
    if rates:
        print(
            f"{'':<17} from the first batch on {median(rates):,.0f} receipts/s ({min(rates):,.0f} to {max(rates):,.0f})"
        )


@dataclass(slots=True)
class _Looks:
    """What somebody else sees in the ledger while it is written: when, and how many receipts there were."""

    ledger: Path | None
    there: int  # before
    seen: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    is_over: threading.Event = field(default_factory=threading.Event)

    def look(self) -> None:
        while self.ledger is not None and not self.is_over.wait(_LOOKS_EVERY_S):
            # Until there are tables there is nothing to see.
            with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{self.ledger}?mode=ro", uri=True)) as asking:
                count = _count(asking) - self.there
                if count > 0:
                    self.seen.append((time.perf_counter(), count))

    def per_s(self, ended: float, calls: int) -> float | None:
        """From the first batch on to the process's end."""
        if not self.seen or self.seen[0][1] >= calls:
            return None
        began, first = self.seen[0]
        return (calls - first) / (ended - began)


def _count(asking: sqlite3.Connection) -> int:
    """How many receipts there are."""
    return asking.execute("SELECT coalesce(max(number), 0) FROM receipts").fetchone()[0]


def _run(command: Sequence[str], environ: Mapping[str, str], ledger: Path | None) -> Took:
    there = 0
    if ledger is not None and ledger.exists():
        with closing(sqlite3.connect(ledger)) as asking:
            there = _count(asking)
    looks = _Looks(ledger, there)
    looking = threading.Thread(target=looks.look)
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = subprocess.Popen(command, env=dict(environ), stdout=out, stderr=err)  # noqa: S603 - our own words
        looking.start()
        _, status, usage = os.wait4(child.pid, 0)
        ended = time.perf_counter()
        child.returncode = os.waitstatus_to_exitcode(status)
        looks.is_over.set()
        looking.join()
        for file in (out, err):
            file.seek(0)
        if child.returncode:
            sys.exit(f"{command[0]} failed: {err.read()[-500:]}")
        said = json.loads(out.read())
    calls = 0 if ledger is None else said["import"]["total"]["calls"]
    cpu_s = usage.ru_utime + usage.ru_stime
    return Took(ended - began, cpu_s, usage.ru_maxrss * 1024, looks.per_s(ended, calls), said)


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
