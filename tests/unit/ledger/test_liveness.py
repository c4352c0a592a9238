"""Who is writing, and what the dead leave behind."""

from __future__ import annotations

import sqlite3
import threading
import time
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path

import pytest

from taximeter.clock import FakeClock
from taximeter.errors import LedgerError
from taximeter.ledger import Ledger, liveness, sqlite
from taximeter.ledger.transactions import NewRequest
from taximeter.records import Outcome
from tests.unit.ledger.children import child
from tests.unit.ledger.conftest import Open
from tests.unit.ledger.records import NOON, a_receipt, a_request


def test_the_living_keep_what_they_began_and_the_dead_are_cleared_up_after(
    url: str, reopen: Open, tmp_path: Path
) -> None:
    """A request in flight elsewhere is left alone while its process lives, by whoever opens the ledger; once that
    process is dead the next opening writes its receipt, once, and removes its lock."""
    with child("hold", url, tmp_path / "spool") as holder:
        assert holder.stdout is not None
        request_id = [holder.stdout.readline(), holder.stdout.readline()][1].strip()
        with reopen() as ledger, reopen() as again:
            assert ledger.receipts() == again.receipts() == []
        holder.kill()
        holder.wait()
    clock = FakeClock(NOON + timedelta(days=1))
    with reopen(clock=clock) as ledger:
        folder = ledger._database.folder
        (receipt,) = ledger.receipts()
    assert receipt.request.id == request_id
    assert receipt.outcome is Outcome.INTERRUPTED
    assert receipt.closed_at == clock.utc_now()
    assert receipt.unmeasured_reason == receipt.uncosted_reason == "the process ended before the answer did"
    assert receipt.timing is receipt.usage is receipt.cost is None
    assert [file.name for file in folder.iterdir()] == ["opening.lock"]
    with reopen() as ledger:
        assert ledger.receipts() == [receipt]


def test_the_end_of_a_forked_child_is_not_its_parents(url: str, reopen: Open, tmp_path: Path) -> None:
    """A child has the ledger open too, and lets go of nothing: what its parent began is in flight still."""
    with child("fork", url, tmp_path / "spool") as parent:
        assert parent.stdout is not None
        lines = [parent.stdout.readline().strip() for _ in range(3)]
        assert lines[2] == "forked"
        with reopen() as ledger:
            assert ledger.receipts() == []


def test_a_forked_child_does_not_keep_its_dead_parent_alive(url: str, reopen: Open, tmp_path: Path) -> None:
    """Locks belong to the process that took them, though a child inherits what they are made of."""
    with child("outlive", url, tmp_path / "spool") as parent:
        assert parent.stdout is not None
        lines = [parent.stdout.readline().strip() for _ in range(3)]
        assert lines[2] == "forked"
        with reopen() as ledger:
            assert ledger.receipts() == []
        parent.kill()
        parent.wait()
        with reopen() as ledger:
            assert [receipt.request.id for receipt in ledger.receipts()] == [lines[1]]


def test_who_opens_waits_while_another_does_but_not_for_ever(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock of somebody else's opening is waited for, and given up on with a hint where to look."""
    Ledger.open(str(path)).close()
    monkeypatch.setattr(liveness, "_PATIENCE_S", 0.0)
    locks = liveness.WriterLocks(path.with_name("ledger.db-writers"))
    with locks.opening(), pytest.raises(LedgerError, match="has been opening the ledger"):
        Ledger.open(str(path))
    Ledger.open(str(path)).close()


def test_a_ledger_closed_with_requests_in_flight_interrupts_them_next_time(reopen: Open) -> None:
    """Closing in order is an end too; and a request whose receipt is there is not interrupted for a stray note."""
    request, answered = a_request(), a_request()
    receipt = a_receipt(answered)
    with reopen() as ledger:
        ledger.begin(request, f"rcpt_of_{request.id}").result()
        ledger.append(receipt).result()
        ledger.begin(answered, f"rcpt_of_{answered.id}").result()
    with reopen() as ledger:
        assert ledger.receipt(answered.id) == receipt
        interrupted = ledger.receipt(request.id)
        assert interrupted is not None
        assert interrupted.id == f"rcpt_of_{request.id}"  # what its client was told
        assert interrupted.outcome is Outcome.INTERRUPTED
        assert len(ledger.receipts()) == 2


def test_a_note_that_cannot_be_read_does_not_close_the_ledger(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It stays, with a warning, for the version that can read it; the others are cleared up."""
    with Ledger.open(str(path)) as ledger:
        for _ in range(2):
            ledger.begin(a_request(), "rcpt_none").result()
    with sqlite3.connect(path) as connection:
        connection.execute(
            "UPDATE in_flight SET document = replace(document, 'openai.chat', 'telepathy')"
            " WHERE request_id = (SELECT min(request_id) FROM in_flight)"
        )
    connection.close()
    with Ledger.open(str(path)) as ledger:
        assert len(ledger.receipts()) == 1
    assert "telepathy" in caplog.text
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM in_flight").fetchone() == (1,)
    connection.close()


def test_a_file_is_touched_only_while_nobody_else_opens_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that make a new file's log at the same moment would be told by SQLite that it is locked, however patient."""
    taken: list[bool] = []

    def watched(path: Path, *, patience_s: float, writes: bool) -> sqlite3.Connection:
        taken.append(liveness.WriterLock(path.with_name("ledger.db-writers") / "opening.lock").take())
        return connect(path, patience_s=patience_s, writes=writes)

    connect = sqlite.connect
    monkeypatch.setattr(sqlite, "connect", watched)
    Ledger.open(str(path)).close()
    assert taken == [False]


def test_processes_that_open_at_once_make_one_ledger(url: str, reopen: Open, tmp_path: Path) -> None:
    """Three processes find no tables, and all of them can write to the one that appears."""
    spool = tmp_path / "spool"
    with child("open", url, spool) as one, child("open", url, spool) as two, child("open", url, spool) as three:
        children = (one, two, three)
        for process in children:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
        for process in children:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in children:
            assert process.stdout is not None
            assert process.stdout.readline() == "opened\n"
        with reopen() as ledger:
            assert len(ledger.receipts()) == 3


def test_what_a_killed_process_took_up_and_nothing_speaks_of_is_counted(
    url: str, reopen: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its notes were on their way when it died: exactly those, also when it is told of again and again. A note that
    was durable is an interrupted receipt instead."""
    with child("doubt", url, tmp_path / "spool") as process:
        assert process.stdout is not None
        said = [process.stdout.readline().split() for _ in range(1 + 3 + 300)]
        assert said[-1][0] == "taken"
        process.kill()
        process.wait()
    noted = {word[1] for word in said if word[0] == "noted"}
    with reopen() as ledger:
        found = ledger.receipts(1_000)
        assert {receipt.request.id for receipt in found} == noted
        assert {receipt.outcome for receipt in found} == {Outcome.INTERRUPTED}
        assert ledger.lost_before == 300
        assert [file.name for file in ledger._database.folder.glob("*.lock")] != []
    assert "300 receipts were LOST" in caplog.text
    with reopen() as ledger:
        assert ledger.lost_before == 300


def test_an_orderly_end_leaves_nothing_in_doubt(reopen: Open) -> None:
    """Nor does a request that is over, nor many at once, in the file that the next one would read."""
    with reopen() as ledger:
        requests = [a_request() for _ in range(700)]
        begun: list[Future[None]] = []
        were_any = False
        for request in requests:
            begun.append(ledger.begin(request, f"rcpt_of_{request.id}"))
            were_any = were_any or bool(ledger._lock.in_doubt)  # who writes may be quicker than this, not each time
        assert were_any
        for future in begun:
            future.result(30)
        ledger.append(a_receipt(requests[0])).result(30)
        until = time.monotonic() + 30
        while ledger._lock.in_doubt and time.monotonic() < until:  # a result is there before who waits for it has run
            time.sleep(0.001)
        assert ledger._lock.in_doubt == []
    with reopen() as ledger:
        assert ledger.lost_before == 0


def test_a_note_that_cannot_be_written_stays_in_doubt_until_its_receipt(
    reopen: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the receipt is there, or counted."""
    with reopen() as ledger:
        request = a_request()
        with monkeypatch.context() as disk:
            disk.setattr(NewRequest, "of", staticmethod(_broken))
            assert ledger.begin(request, "rcpt_1").exception(30) is not None
        assert ledger._lock.in_doubt == [request.id]
        is_over = threading.Event()
        ledger.append(a_receipt(request)).add_done_callback(lambda _: is_over.set())
        assert is_over.wait(30)
        assert ledger._lock.in_doubt == []


def _broken(*_: object) -> NewRequest:
    raise OSError("no room")
