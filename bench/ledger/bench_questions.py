"""How long questions take in a ledger of a million receipts.

    python bench/ledger/bench_questions.py [--receipts 1000000] [--folder PATH] [--url URL] [--json]

The receipts are synthetic: thirty days, twenty models of three backends, runs of ten requests, tasks of five runs, one
in a hundred corrected. They are written as a server writes them, sums and all, but for the making of each document. A
question's time is the median of nine, on a warm file; the first one is told apart. `--url` takes an empty Postgres
instead of a file. It takes minutes to fill, and 5 GB.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

from bench_append import a_receipt

from taximeter.ledger import Ledger
from taximeter.ledger.keeper import write_all
from taximeter.ledger.transactions import NewReceipt

_START = datetime(2026, 10, 1, tzinfo=UTC)
_DAYS = 30
_BATCH = 5_000


class Filler:
    """Makes entries from one receipt, by putting other names and times into it."""

    def __init__(self, receipts: int) -> None:
        self._step = timedelta(days=_DAYS) / receipts
        request = replace(a_receipt(_START).request, id="REQUEST", run="RUN", task="TASK", labels={"team": "TEAM"})
        receipt = replace(a_receipt(_START), id="RECEIPT", request=request, served_by="SERVER")
        self._documents = {
            supersedes: NewReceipt.of(replace(receipt, supersedes=supersedes)).document
            for supersedes in (None, "SUPERSEDES")
        }
        self._row = NewReceipt.of(receipt).row

    def entry(self, number: int, *, corrects: bool = False) -> NewReceipt:
        at = _START + number * self._step
        closed_at = at + timedelta(seconds=8)
        names = {
            "REQUEST": f"req_{number:022}",
            "RECEIPT": f"rcpt_{number:021}{'c' if corrects else ''}",
            "SUPERSEDES": f"rcpt_{number:021}",
            "RUN": f"run-{number // 10}",
            "TASK": f"task-{number // 50}",
            "TEAM": f"team-{number % 7}",
            "SERVER": f"backend-{number % 3}",
            "a/model": f"a/model-{number % 20}",
        }
        text = self._documents["SUPERSEDES" if corrects else None]
        for old, new in (names | {_START.isoformat(): closed_at.isoformat()}).items():
            text = text.replace(old, new)
        row = [names.get(value, value) if isinstance(value, str) else value for value in self._row]
        row[2] = names["SUPERSEDES"] if corrects else None
        row[3:5] = (f"{moment:%Y-%m-%d %H:%M:%S.%f}" for moment in (at, closed_at))
        return NewReceipt(tuple(row), text, {"team": names["TEAM"]})


def fill(ledger: Ledger, receipts: int) -> float:
    """Write all of them; seconds it took."""
    filler = Filler(receipts)
    entries = (
        filler.entry(number, corrects=corrects)
        for number in range(receipts)
        for corrects in ((False, True) if number % 100 == 0 else (False,))
    )
    begun_s = time.monotonic()
    session = ledger._database.session(patience_s=None)  # noqa: SLF001 - as the writer does
    try:
        while batch := list(islice(entries, _BATCH)):
            errors = [error for error in write_all(session, batch) if error is not None]
            if errors:
                raise SystemExit(f"the ledger refused {len(errors)}: {errors[0]}")
    finally:
        session.close()
    return time.monotonic() - begun_s


def questions(ledger: Ledger, receipts: int) -> dict[str, Callable[[], object]]:
    """What pages and reports ask, by name."""
    week = (_START + timedelta(days=14, hours=7), _START + timedelta(days=21, hours=7))
    half = (_START + timedelta(days=14, hours=18, minutes=30), _START + timedelta(days=21, hours=18, minutes=30))
    run = f"run-{receipts // 23}"
    return {
        "a week's report": lambda: ledger.usage_by_hour(*week),
        "a week's report, India's days": lambda: ledger.usage_by_hour(*half),
        "one run's page": lambda: (ledger.group("run", run), ledger.receipts_of("run", run)),
        "the last 50 runs": lambda: ledger.groups("run", week[0]),
        "the newest 50 receipts": ledger.receipts,
        "50 receipts of a label": lambda: ledger.receipts_of("label:team", "team-3"),
        "one request, by its id": lambda: ledger.receipt(f"req_{receipts - 1:022}"[:-1] + "9"),
        "the total cost": ledger.total_cost,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--receipts", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where to make the ledger (default: the temporary folder)")
    parser.add_argument("--url", help="an empty database of Postgres instead of a file")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    times: dict[str, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        url = options.url or f"{name}/ledger.db"
        with Ledger.open(url, spool=Path(name)) as ledger:
            took_s = fill(ledger, options.receipts)
            if options.url:
                session = ledger._database.session(patience_s=None)  # noqa: SLF001 - as its autovacuum would
                session.ask("SELECT 1")
                session.tell("ANALYZE", [()])
                session.close()
        with Ledger.open(url, spool=Path(name)) as ledger:
            for question, ask in questions(ledger, options.receipts).items():
                taken: list[float] = []
                for _ in range(10):
                    begun_ns = time.perf_counter_ns()
                    if not ask():
                        raise SystemExit(f"{question}: nothing was found, so nothing was measured")
                    taken.append(round((time.perf_counter_ns() - begun_ns) / 1e6, 2))
                times[question] = (taken[0], statistics.median(taken[1:]))
        size_bytes = 0 if options.url else Path(url).stat().st_size
    us_each = round(took_s / options.receipts * 1e6, 1)
    if options.json:
        json.dump({"receipts": options.receipts, "fill_us": us_each, "bytes": size_bytes, "ms": times}, sys.stdout)
        return
    print(f"{options.receipts:,} receipts, {us_each} µs each to write, {size_bytes / 1e9:.2f} GB\n")
    print(f"{'':32} {'first ms':>9} {'median ms':>9}")
    for question, (first, median) in times.items():
        print(f"{question:32} {first:>9,} {median:>9,}")


if __name__ == "__main__":
    main()
