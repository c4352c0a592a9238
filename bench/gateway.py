"""Taximeter's gateway beside LiteLLM's proxy and Portkey's gateway on this machine, in one run.

    python bench/gateway.py [--rounds 5] [--minutes N] [--only NAMES] [--questions NAMES] [--json PATH]

One mock upstream, one client and every gateway run in processes of their own on loopback, each gateway with one
worker. In each round every question goes to the mock directly and through each gateway within seconds, forwards and
backwards by turns. Ours writes a priced receipt for each request to SQLite, durable before the answer's last byte; the
peers keep no books in this set-up. Peers are not installed by this: bench/gateway_lab/README.md says how; who is
missing is named.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from engines_lab.options import place, words
from engines_lab.report import page
from gateway_lab.contestants import Contestant, Places, Taximeter, contestants
from gateway_lab.questions import QUESTIONS, Question
from gateway_lab.report import Report
from gateway_lab.rounds import Broken, measure_rounds
from rich.console import Console


def main() -> None:
    """Measure, print, write."""
    options = _options()
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory(dir=options.ledger_in) as ledger:
        places = Places(
            scratch=options.logs or Path(scratch),
            ledger=Path(ledger),
            litellm_python=options.litellm_python,
            portkey=options.portkey,
        )
        wanted = [who for who in contestants(places) if options.only is None or who.label.lower() in options.only]
        absent = {who.label: reason for who in wanted if (reason := who.missing())}
        gateways = [who for who in wanted if who.label not in absent]
        asked = [each for each in QUESTIONS if options.questions is None or _begins(each.key, options.questions)]
        report = Report(
            {who.label: who.version() for who in gateways}, absent, rounds=options.rounds, ledger=places.ledger
        )
        try:
            asyncio.run(_measure(places, gateways, asked, options, report))
        except Broken as reason:
            sys.exit(f"{reason}; --logs FOLDER keeps what the servers print")
        except asyncio.CancelledError:
            print("broken off: this is what was measured until then", file=sys.stderr)
        page().print(report.tables())
        if options.json:
            report.write(options.json)
            print(f"written to {options.json}", file=sys.stderr)


async def _measure(
    places: Places,
    gateways: Sequence[Contestant],
    asked: Sequence[Question],
    options: argparse.Namespace,
    report: Report,
) -> None:
    measuring = asyncio.current_task()
    if measuring is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, measuring.cancel)
    limit_s = None if options.minutes is None else options.minutes * 60
    screen = Console(stderr=True)
    with screen.status("") as status:
        seats = await measure_rounds(
            places, gateways, asked, options.rounds, limit_s=limit_s, tell=status.update, on_turn=report
        )
    ours = next((who for who in gateways if isinstance(who, Taximeter)), None)
    report.close(seats, None if ours is None else _receipts(ours.ledger))


def _receipts(ledger: Path) -> int:
    """How many there are, asked of the file itself: the server is gone."""
    connection = sqlite3.connect(ledger)
    try:
        return connection.execute("SELECT count(*) FROM receipts").fetchone()[0]
    finally:
        connection.close()


def _begins(key: str, given: Sequence[str]) -> bool:
    return any(key.startswith(word) for word in given)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, help="begin no further round that would not end in that time")
    parser.add_argument("--only", type=words, help="gateways, such as taximeter,litellm")
    parser.add_argument("--questions", type=words, help="beginnings of " + ", ".join(each.key for each in QUESTIONS))
    parser.add_argument("--json", type=Path, metavar="PATH", help="write everything there")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep what the servers print")
    parser.add_argument("--ledger-in", type=Path, metavar="FOLDER", help="on which disk our ledger is")
    for option, metavar, what in (
        ("--litellm-python", "PROGRAM", "of an environment with litellm[proxy]"),
        ("--portkey", "FOLDER", "where @portkey-ai/gateway was installed"),
    ):
        variable = "TAXIMETER_BENCH" + option[1:].replace("-", "_").upper()
        parser.add_argument(option, type=Path, metavar=metavar, default=place(variable), help=f"{what} ({variable})")
    return parser.parse_args()


if __name__ == "__main__":
    main()
