"""SIGKILL in mid-load: every answer that a client has whole has its receipt, and what was in flight says so."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from taximeter.ledger import Ledger
from taximeter.records import Outcome
from taximeter.settings import Settings
from tests.fakes import WAIT_S

MODEL = Path(__file__).parents[1] / "golden" / "tiny_llama"  # random weights: fast, and never at a loss for words
COMPLETIONS = "/v1/completions"


def test_a_killed_server_keeps_its_receipts(taximeter_home: Path) -> None:
    """Four clients ask without pause, a fifth is in the middle of a long answer, and the server is killed. Whoever got
    an answer finds its receipt after the restart, completed; the long one is interrupted; nobody has two."""
    answered: queue.SimpleQueue[str] = queue.SimpleQueue()
    with server() as (process, url):
        clients = [threading.Thread(target=ask_until_it_dies, args=(url, answered)) for _ in range(4)]
        for client in clients:
            client.start()
        finished = {answered.get(timeout=WAIT_S) for _ in range(30)}
        long = a_completion(tokens=500) | {"stream": True, "n": 128}  # 64 000 tokens: minutes of work
        with httpx.stream("POST", url + COMPLETIONS, json=long, timeout=WAIT_S) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")  # so its client has seen a part of it
            unfinished = response.headers["x-request-id"]
            promised = response.headers["x-taximeter-receipt"]
            process.kill()
            with pytest.raises(httpx.TransportError):
                list(lines)
        for client in clients:
            client.join(WAIT_S)
    while not answered.empty():
        finished.add(answered.get())

    with server() as (_, url):
        interrupted = httpx.get(f"{url}/api/receipts/{promised}", timeout=WAIT_S)
        assert interrupted.status_code == 200, interrupted.text
        with Ledger.open(Settings.load().ledger_url) as ledger:
            receipts = {receipt.request.id: receipt for receipt in ledger.receipts(limit=10_000)}
            assert len(receipts) == len(ledger.receipts(limit=10_000))  # so no request has two
    assert interrupted.json()["request"]["id"] == unfinished
    assert interrupted.json()["outcome"] == "interrupted"
    assert interrupted.json()["unmeasured_reason"] == "the process ended before the answer did"
    assert {receipts[request_id].outcome for request_id in finished} == {Outcome.COMPLETED}
    others = [receipt for request_id, receipt in receipts.items() if request_id not in finished]
    assert unfinished in {receipt.request.id for receipt in others}
    assert {receipt.outcome for receipt in others} <= {Outcome.COMPLETED, Outcome.INTERRUPTED}
    assert len(others) <= 1 + len(clients)  # each client had one question open when the server died


def a_completion(tokens: int) -> dict[str, object]:
    return {"model": MODEL.name, "prompt": "Once", "max_tokens": tokens, "ignore_eos": True}


def ask_until_it_dies(url: str, answered: queue.SimpleQueue[str]) -> None:
    with httpx.Client(timeout=WAIT_S) as client:
        while True:
            try:
                response = client.post(url + COMPLETIONS, json=a_completion(tokens=4))
            except httpx.TransportError:
                return
            assert response.json()["usage"]["completion_tokens"] == 4
            answered.put(response.headers["x-request-id"])


@contextmanager
def server() -> Generator[tuple[subprocess.Popen[str], str]]:
    """`taximeter serve` in a process of its own, and its URL; killed at the end."""
    command = [sys.executable, "-m", "taximeter", "serve", "--json", "--port", "0", "--model", str(MODEL)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            reader = threading.Thread(target=process.stdout.read)  # or it would wait for room in the pipe
            reader.start()
            yield process, ready["url"]
        finally:
            process.kill()
        reader.join()
