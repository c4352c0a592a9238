"""The database is locked again and again while processes are killed at any moment: all that was durable is there."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from taximeter.ledger import Ledger
from taximeter.records import Outcome
from tests.unit.ledger.children import child


def test_a_database_that_comes_and_goes_loses_nothing(tmp_path: Path) -> None:
    """Four processes, one after the other, each killed after another number of steps, half of them while somebody
    holds the database. Each begins where the last one died. Every receipt whose future had resolved is there, once;
    every request that was begun has exactly one receipt, completed or interrupted; and the sums are those of the
    receipts."""
    path = tmp_path / "ledger.db"
    Ledger.open(str(path)).close()
    said: list[str] = []
    with closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as stranger:
        for lines in (37, 150, 411, 260):
            with child("write", path) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == "up\n"
                said.append(process.stdout.readline())  # it needs the database to open it
                for _ in range(3):
                    stranger.execute("BEGIN IMMEDIATE")
                    said += [process.stdout.readline() for _ in range(lines // 3)]
                    if lines % 2 == 0 and len(said) % 2 == 0:
                        process.kill()
                    stranger.execute("COMMIT")
                    said += [process.stdout.readline() for _ in range(lines // 5)]
                process.kill()
                said += process.stdout.readlines()
    words = [line.split() for line in said if line.endswith("\n")]
    durable = {word[1] for word in words if word[0] == "durable"}
    begun = {word[1] for word in words if word[0] == "begun"}
    assert len(durable) > 200

    with Ledger.open(str(path)) as ledger:
        receipts = ledger.receipts(limit=100_000)
        everything = ledger.group("all", "")
        assert everything is not None
        assert everything.receipts == len(receipts)
        assert everything.output_tokens == 10 * sum(receipt.outcome is Outcome.COMPLETED for receipt in receipts)
        # Each of four threads may have been taking one up, of which nobody was told, at each of four kills.
        assert ledger.lost_before is not None
        assert ledger.lost_before <= 16
        assert not list(ledger._database.folder.glob("*.spool"))
    assert durable <= {receipt.id for receipt in receipts if receipt.outcome is Outcome.COMPLETED}
    requests = [receipt.request.id for receipt in receipts]
    assert len(requests) == len(set(requests))
    assert begun <= set(requests)
    assert {receipt.outcome for receipt in receipts} == {Outcome.COMPLETED, Outcome.INTERRUPTED}
