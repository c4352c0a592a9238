"""Other processes with the same ledger open: `python -m tests.unit.ledger.children NAME LEDGER SPOOL`.

They say on stdout, a line at a time, what has happened, and never end by themselves: their parent kills them.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from taximeter.ledger import Ledger
from tests.unit.ledger.records import a_receipt, a_request


@contextmanager
def child(name: str, ledger: Path | str, spool: Path | None = None) -> Generator[subprocess.Popen[str]]:
    """The child `name`, running; killed at the end if it is not dead by then."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, name, str(ledger), str(spool or ".")],
        cwd=Path(__file__).parents[3],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # one call, so that lines of several threads never mix


def _hold(ledger: Ledger) -> None:
    """Takes one request up and never finishes it."""
    request = a_request()
    ledger.begin(request, f"rcpt_of_{request.id}").result()
    _say(request.id)


def _fork(ledger: Ledger) -> None:
    """Takes a request up; then has a child that ends in order, with all that Python does at an exit."""
    _hold(ledger)
    child_id = os.fork()
    if child_id == 0:
        sys.exit()
    os.waitpid(child_id, 0)
    _say("forked")


def _outlive(ledger: Ledger) -> None:
    """Takes a request up; then has a child that lives on when its parent is killed, until nobody writes to stdin."""
    _hold(ledger)
    if os.fork() == 0:
        _say("forked")
        sys.stdin.read()
        sys.exit()


def _journal(ledger: Ledger) -> None:
    """Once told to go, finishes three requests and takes up a fourth, content with the journal; then does as told."""
    _say("open")
    sys.stdin.readline()
    for count in range(4):
        request = a_request()
        ledger.begin(request, f"rcpt_of_{request.id}", journaled=True).result()
        _say(f"begun {request.id}")
        if count < 3:
            ledger.append(a_receipt(request), journaled=True).result()
            _say(f"done {request.id}")
    if sys.stdin.readline() == "settle\n":
        ledger.receipts()
        _say("settled")


def _write(ledger: Ledger) -> None:
    """Four threads finish receipt after receipt; every third request stays in flight."""

    def work() -> None:
        for count in itertools.count():
            request = a_request()
            ledger.begin(request, f"rcpt_of_{request.id}").result()
            _say(f"begun {request.id}")
            if count % 3 < 2:
                receipt = a_receipt(request)
                ledger.append(receipt).result()
                _say(f"durable {receipt.id}")

    for _ in range(4):
        threading.Thread(target=work).start()


def _doubt(ledger: Ledger) -> None:
    """Takes three requests up as usual; then three hundred whose notes never get anywhere: the writer is stuck, and
    half of them were only expected."""
    for _ in range(3):
        request = a_request()
        ledger.expect(request.id)
        ledger.begin(request, f"rcpt_of_{request.id}").result()
        _say(f"noted {request.id}")
    with ledger._keeper._keeping:
        for number in range(300):
            request = a_request()
            if number % 2:
                ledger.expect(request.id)
            else:
                ledger.begin(request, f"rcpt_of_{request.id}")
            _say(f"taken {request.id}")
        threading.Event().wait()


def _main(name: str, url: str, spool: str) -> None:
    _say("up")
    if name == "open":  # all at once, when the parent says so
        sys.stdin.readline()
    # Those that open at once wait for each other; the others are there to be held up.
    ledger = Ledger.open(url, spool=Path(spool), patience_s=30.0 if name == "open" else 0.05)
    match name:
        case "open":
            ledger.append(a_receipt()).result()
            _say("opened")
        case "hold":
            _hold(ledger)
        case "fork":
            _fork(ledger)
        case "doubt":
            _doubt(ledger)
        case "outlive":
            _outlive(ledger)
        case "journal":
            _journal(ledger)
        case _:
            _write(ledger)
    threading.Event().wait()


if __name__ == "__main__":
    _main(*sys.argv[1:])
