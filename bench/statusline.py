"""How long `taximeter statusline` takes, beside an interpreter that does nothing.

    python bench/statusline.py [--runs 40]

A ledger of a few thousand receipts of the last days is made in a temporary folder; what is timed is a whole process,
from its start to its end, with and without what Claude Code says on stdin.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

from taximeter.ledger import Ledger
from taximeter.records import Basis, Cost, CostLine, Dialect, Outcome, Rate, Receipt, Request, Usage, new_id

TOLD = json.dumps(
    {
        "session_id": "s7",
        "model": {"display_name": "Opus"},
        "cost": {"total_cost_usd": 0.1},
        "context_window": {"used_percentage": 41},
    }
)


def fill(path: Path, count: int) -> None:
    """Receipts of the last five days."""
    chance, now = random.Random(1), datetime.now(UTC)  # noqa: S311 - any numbers will do
    rate = Rate(unit="output_text_tokens", amount=Decimal(15), per=10**6)
    with Ledger.open(str(path)) as ledger:
        futures = []
        for number in range(count):
            at = now - timedelta(seconds=chance.randint(1, 5 * 86_400))
            line = CostLine(unit=rate.unit, quantity=400, rate=rate, amount=Decimal("0.006"), basis=Basis.DERIVED)
            receipt = Receipt(
                id=new_id("rcpt", at),
                request=Request(
                    id=new_id("req", at),
                    received_at=at,
                    received_ns=0,
                    dialect=Dialect.ANTHROPIC_MESSAGES,
                    model="anthropic/claude-sonnet-5-5",
                    session=f"s{number % 50}",
                ),
                closed_at=at,
                outcome=Outcome.COMPLETED,
                timing=None,
                usage=Usage(input_fresh_tokens=10, input_cache_read_tokens=0, output_text_tokens=400),
                unmeasured_reason="made up",
                cost=Cost(lines=(line,), basis=Basis.DERIVED),
            )
            futures.append(ledger.append(receipt))
        for future in futures:
            future.result()


def timed(command: list[str], stdin: str, environ: dict[str, str], runs: int) -> tuple[list[float], str]:
    """Milliseconds of each run, ascending, and what the last one said."""
    took, said = [], ""
    subprocess.run(command, input=stdin, capture_output=True, text=True, check=True, env=environ)  # noqa: S603
    for _ in range(runs):
        start = time.perf_counter()
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=True, env=environ)  # noqa: S603
        took.append((time.perf_counter() - start) * 1e3)
        said = done.stdout.strip()
    return sorted(took), said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--receipts", type=int, default=3_000)
    options = parser.parse_args()
    with TemporaryDirectory() as home:
        fill(Path(home) / "ledger.sqlite", options.receipts)
        environ = {**os.environ, "TAXIMETER_HOME": home}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installation has its modules compiled
        line = [sys.executable, "-m", "taximeter", "statusline"]
        for name, command, stdin in (
            ("nothing at all", [sys.executable, "-c", "pass"], ""),
            ("a line", line, ""),
            ("a line for Claude Code", line, TOLD),
        ):
            took, said = timed(command, stdin, environ, options.runs)
            print(f"{name:24} median {took[len(took) // 2]:6.1f} ms, best {took[0]:6.1f} ms   {said}")


if __name__ == "__main__":
    main()
