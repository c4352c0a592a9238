"""`taximeter serve`: what it prints, from its greeting to its closing line."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from taximeter.cli.serve import MAX_UNPRINTED, Lines, Ticker
from taximeter.serve import House
from tests.unit.cli.test_receipt_view import RECEIPT

GOLDEN = Path(__file__).parents[2] / "golden"
TINY = str(GOLDEN / "tiny_llama")


@contextmanager
def serving(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A server on a free port; it must end by itself, or it is killed and the test fails."""
    command = [sys.executable, "-m", "taximeter", "serve", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], ending: str) -> str:
    """Stdout up to the line that starts with `ending`."""
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if line.startswith(ending):
            return text
    assert process.stderr is not None
    pytest.fail(f"no line begins with {ending!r} in:\n{text}\n{process.stderr.read()}")


def closed(process: subprocess.Popen[str]) -> str:
    """What is printed after Ctrl-C."""
    process.send_signal(signal.SIGINT)
    rest, error = process.communicate(timeout=30)
    assert error == ""
    assert process.returncode == 0
    return rest


def complete(url: str, model: str) -> None:
    """One request by a client."""
    body = json.dumps({"model": model, "prompt": "hello", "max_tokens": 3}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
        assert answer.status == 200


def test_the_greeting_the_demo_and_the_closing_line(taximeter_home: Path) -> None:
    """URL, model, kernels, a curl to paste; one prompt with its receipt; a line for a request; the sums."""
    with serving("-m", TINY, "--demo", "--machine-rate", "0.50/h") as process:
        greeting = read_until(process, "Serving;")
        url = greeting.splitlines()[0].rpartition(" ")[2]
        assert url.startswith("http://127.0.0.1:")
        assert "  model     tiny_llama, " in greeting
        assert "  kernels   " in greeting
        assert "  machine   $0.50/h, assumed" in greeting
        assert f"  curl {url}/v1/" in greeting
        assert "completed: " in greeting
        assert "of the machine for" in greeting
        complete(url, "tiny_llama")
        line = read_until(process, "")
        assert "  tiny_llama  " in line
        assert "  3 out  " in line
        summary = closed(process).strip()
    assert summary.startswith("2 requests, ")
    assert " on receipts + $" in summary


def test_json_is_one_document_a_line(taximeter_home: Path) -> None:
    """`ready`, a `receipt` for each request, `closed`; the sums agree with the receipts."""
    with serving("-m", TINY, "-m", str(GOLDEN / "tiny_gemma3"), "--demo", "--machine-rate", "1/h", "--json") as process:
        ready = json.loads(read_until(process, "{"))
        assert [model["id"] for model in ready["models"]] == ["tiny_llama", "tiny_gemma3"]
        first = json.loads(read_until(process, "{"))
        complete(ready["url"], "tiny_gemma3")
        second = json.loads(read_until(process, "{"))
        end = json.loads(closed(process))
    assert [document["event"] for document in (ready, first, second, end)] == ["ready", "receipt", "receipt", "closed"]
    receipts = [first["receipt"], second["receipt"]]
    assert end["receipts"] == 2
    assert end["output_tokens"] == sum(receipt["usage"]["output_tokens"] for receipt in receipts)
    assert end["machine"]["charged_ns"] == sum(receipt["work"]["compute_ns"] for receipt in receipts)
    assert end["machine"]["in_flight_ns"] == 0


def test_the_slow_path_is_said_plainly(taximeter_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never silently: with the reason."""
    monkeypatch.setenv("TAXIMETER_CPU_LEVEL", "reference")
    with serving("-m", TINY) as process:
        greeting = read_until(process, "  receipts")
        assert "reference: the slow reference path is in use, because TAXIMETER_CPU_LEVEL asks for it" in greeting
        closed(process)


def test_a_port_in_use_is_told(taximeter_home: Path) -> None:
    """As one line, with what to do."""
    with serving("-m", TINY, "--json") as first:
        port = json.loads(read_until(first, "{"))["url"].rpartition(":")[2]
        second = subprocess.run(
            [sys.executable, "-m", "taximeter", "serve", "-m", TINY, "--port", port],
            capture_output=True,
            text=True,
            check=False,
        )
        assert second.returncode == 1
        assert second.stderr.startswith(f"taximeter: cannot listen on 127.0.0.1 port {port}: ")
        closed(first)


def test_a_journal_whose_reader_is_gone_still_counts() -> None:
    """A terminal that went away stops the printing, not the sums and not the server."""

    def broken(_: object) -> None:
        raise BrokenPipeError

    ticker = Ticker(broken)
    ticker.start(skip=None)
    ticker.add(RECEIPT)
    ticker.add(RECEIPT)
    ticker.close()
    assert (ticker.receipts, ticker.input_tokens, ticker.output_tokens) == (2, 70, 96)


def test_a_journal_whose_reader_is_gone_keeps_nothing() -> None:
    """A server that serves on for weeks without its terminal must not fill the memory with what it would say."""

    def broken(_: object) -> None:
        raise BrokenPipeError

    ticker = Ticker(broken)
    ticker.start(skip=None)
    receipt = dataclasses.replace(RECEIPT, id="rcpt_unread")
    held = sys.getrefcount(receipt)
    for _ in range(MAX_UNPRINTED):
        ticker.add(receipt)
    ticker.close()
    assert sys.getrefcount(receipt) == held
    assert ticker.receipts == MAX_UNPRINTED


def test_a_journal_whose_reader_hangs_keeps_a_bounded_number() -> None:
    """What a stopped terminal does not take is counted, and beyond a limit no longer kept for it."""
    reads_on = threading.Event()
    shown: list[object] = []

    def hanging(receipt: object) -> None:
        reads_on.wait()
        shown.append(receipt)

    ticker = Ticker(hanging)
    ticker.start(skip=None)
    for _ in range(2 * MAX_UNPRINTED):
        ticker.add(RECEIPT)
    reads_on.set()
    ticker.close()
    assert MAX_UNPRINTED <= len(shown) <= MAX_UNPRINTED + 1
    assert ticker.receipts == 2 * MAX_UNPRINTED


def test_the_closing_line_names_lost_receipts(capsys: pytest.CaptureFixture[str]) -> None:
    """Those the ledger lost and those that never reached it, as one sum; nothing is said where none is lost."""

    def closing_line(ledger_lost: int, relay_lost: int) -> str:
        house = SimpleNamespace(
            ledger=SimpleNamespace(counts=lambda: SimpleNamespace(lost=ledger_lost)),
            relay=SimpleNamespace(receipts_lost=relay_lost, machines=None),
            machine=None,
            backend=SimpleNamespace(machine_time=lambda: None),
        )
        Lines(cast("House", house)).sum_up(Ticker(lambda _: None))
        return capsys.readouterr().out

    assert closing_line(2, 1).rstrip().endswith("; 3 receipts LOST: not in the ledger")
    assert "LOST" not in closing_line(0, 0)
