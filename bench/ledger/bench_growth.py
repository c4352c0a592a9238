"""What a receipt of an import costs as the ledger grows: calls by columns, their ids in no order, appended in batches.

    python bench/ledger/bench_growth.py [--receipts 1000000] [--at-once 100000] [--ledger FILE] [--first SQL]

Nothing is read and nothing is priced: it is laying out and writing alone, in one process. `--ledger` keeps the file,
and goes on in one that is there; `--first` is said to the file before anything is written, to see what an index costs.
Microseconds a receipt, of the clock: to lay a batch out, and to write it. An import does one beside the other.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
from bench_size import forms

from taximeter.ledger import Form, Ledger
from taximeter.ledger.batch import Batch
from taximeter.ledger.calls import Calls

_IN_A_SESSION = 500
_STEP = np.timedelta64(500_000, "us")
_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)


def batch_of(of_models: list[Form], first: int, count: int, chance: np.random.Generator) -> list[Calls]:
    """Sessions of calls, from the `first` instant on."""
    digests = _DIGITS[chance.integers(0, len(_DIGITS), (count, 22), dtype=np.uint8)].view("S22").ravel()
    at = np.datetime64("2026-01-01", "us") + np.arange(first, first + count) * _STEP
    tokens = chance.integers(0, 2_000, (len(of_models[0].leaves), count))
    made: list[Calls] = []
    for begin in range(0, count, _IN_A_SESSION):
        end = min(begin + _IN_A_SESSION, count)
        number = (first + begin) // _IN_A_SESSION
        form = of_models[number % len(of_models)]
        received_at = at[begin:end]
        made.append(
            Calls(
                forms=[form.belonging_to(session=f"session-{number}", labels={"project": f"project-{number % 12}"})],
                form_of=np.zeros(end - begin, dtype=np.int64),
                ids=np.strings.add(b"rcpt_", digests[begin:end]),
                request_ids=np.strings.add(b"req_", digests[begin:end]),
                received_at=received_at,
                closed_at=received_at,
                tokens=np.ascontiguousarray(tokens[:, begin:end]),
                upstream_request_ids=[None] * (end - begin),
            )
        )
    return made


def main() -> None:
    """Make, append, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--receipts", type=int, default=1_000_000)
    parser.add_argument("--at-once", type=int, default=100_000)
    parser.add_argument("--ledger", type=Path)
    parser.add_argument("--first", metavar="SQL")
    options = parser.parse_args()
    of_models: list[Form] = []
    for form in forms()[:5]:
        untimed = replace(form.prototype, timing=None, unmeasured_reason="the log has no times")
        of_models.append(Form.of(untimed, form.leaves))
    with tempfile.TemporaryDirectory() as folder:
        path = (options.ledger or Path(folder) / "ledger.sqlite").absolute()
        with Ledger.open(f"sqlite:///{path}") as ledger:
            with closing(sqlite3.connect(path)) as connection:
                if options.first:
                    connection.executescript(options.first)
                (there,) = connection.execute("SELECT coalesce(max(number), 0) FROM receipts").fetchone()
            chance = np.random.default_rng(there)
            for first in range(there, there + options.receipts, options.at_once):
                calls = batch_of(of_models, first, options.at_once, chance)
                begun_s = time.perf_counter()
                batch = Batch(calls)
                laid_out_s = time.perf_counter()
                if ledger.append_many(batch, durable=False).written != options.at_once:
                    raise SystemExit("not all was written, so nothing was measured")
                written_s = time.perf_counter()
                laid_out_us, written_us = (
                    seconds / options.at_once * 1e6 for seconds in (laid_out_s - begun_s, written_s - laid_out_s)
                )
                print(f"{first + options.at_once:>11,} receipts: {laid_out_us:.2f} us and {written_us:.2f} us each")


if __name__ == "__main__":
    main()
