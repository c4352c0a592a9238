"""What the ledger called durable survives SIGKILL, and what was in flight says that it was interrupted."""

from __future__ import annotations

from pathlib import Path

from taximeter.ledger import Ledger
from taximeter.records import Outcome
from tests.unit.ledger.children import child


def test_a_killed_process_loses_no_finished_receipt(tmp_path: Path) -> None:
    """Four threads append until SIGKILL. Every receipt whose future had resolved is there, whole; every request that
    was begun has exactly one receipt, completed or interrupted; nothing else is there."""
    path = tmp_path / "ledger.db"
    with child("write", path) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(300)]
        process.kill()
        lines += process.stdout.readlines()
    said = [line.split() for line in lines if line.endswith("\n")]
    durable = {words[1] for words in said if words[0] == "durable"}
    begun = {words[1] for words in said if words[0] == "begun"}
    assert len(durable) > 50

    with Ledger.open(str(path)) as ledger:
        receipts = ledger.receipts(limit=10_000)
    completed = {receipt.id for receipt in receipts if receipt.outcome is Outcome.COMPLETED}
    interrupted = {receipt.id for receipt in receipts if receipt.outcome is Outcome.INTERRUPTED}
    assert durable <= completed
    assert len(completed - durable) <= 4  # durable, and killed before they could say so
    assert interrupted
    assert completed | interrupted == {receipt.id for receipt in receipts}
    requests = [receipt.request.id for receipt in receipts]
    assert len(requests) == len(set(requests))
    assert begun <= set(requests)
    assert len(set(requests) - begun) <= 4

    with Ledger.open(str(path)) as again:
        assert again.receipts(limit=10_000) == receipts
