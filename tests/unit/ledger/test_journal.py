"""What is in the journal is safe, is in the database a moment later, and is written once."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import threading
from concurrent.futures import Future
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.ledger import Ledger, LedgerCounts
from taximeter.ledger.spool import JOURNAL, Spool
from taximeter.ledger.transactions import Entry, NewReceipt
from taximeter.records import Outcome, Receipt
from tests.unit.ledger.children import child
from tests.unit.ledger.records import a_receipt, a_request

WAIT_S = 30


@pytest.fixture
def url(path: Path) -> str:
    """Only a file has a journal beside it."""
    return str(path)


def journals(path: Path) -> list[Path]:
    return sorted(path.parent.rglob(f"*{JOURNAL}"))


def test_who_is_content_with_the_journal_does_not_wait_for_the_database(ledger: Ledger, path: Path) -> None:
    """Somebody holds the database for as long as the test likes; the receipt is durable meanwhile, and has not been
    spooled because of that."""
    with sqlite3.connect(path, isolation_level=None) as holder:
        holder.execute("BEGIN IMMEDIATE")
        request = a_request()
        receipt = a_receipt(request)
        ledger.begin(request, receipt.id, journaled=True).result(WAIT_S)
        ledger.append(receipt, journaled=True).result(WAIT_S)
        assert ledger.counts().waiting == 1
        assert receipt.id.encode() in b"".join(file.read_bytes() for file in journals(path))
        holder.execute("ROLLBACK")
    holder.close()
    assert ledger.receipts() == [receipt]
    assert ledger.counts() == LedgerCounts(accepted=1, written=1, lost=0)


def test_readers_of_this_process_see_all_that_was_handed_in(ledger: Ledger) -> None:
    """At once, though the database lags behind."""
    for count in range(20):
        ledger.append(a_receipt(), journaled=True)
        assert len(ledger.receipts()) == count + 1


def test_a_note_whose_receipt_comes_soon_is_never_written(ledger: Ledger, path: Path) -> None:
    """And one whose receipt does not is, and is cleared later."""
    with sqlite3.connect(path, isolation_level=None) as stranger:
        stranger.execute("CREATE TABLE noted AS SELECT request_id FROM in_flight")
        stranger.execute(
            "CREATE TRIGGER watch AFTER INSERT ON in_flight BEGIN INSERT INTO noted VALUES (new.request_id); END"
        )
        requests = [a_request() for _ in range(3)]
        for request in requests:
            ledger.begin(request, f"rcpt_of_{request.id}", journaled=True)
        for request in requests[:2]:
            ledger.append(a_receipt(request), journaled=True)
        assert len(ledger.receipts()) == 2
        assert stranger.execute("SELECT request_id FROM noted").fetchall() == [(requests[2].id,)]
        ledger.append(a_receipt(requests[2]), journaled=True)
        assert len(ledger.receipts()) == 3
        assert stranger.execute("SELECT * FROM in_flight").fetchall() == []
    stranger.close()


def tell(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str], lines: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().rstrip() for _ in range(lines)]


def test_what_a_killed_process_had_in_its_journal_is_written_by_the_next_one(url: str, path: Path) -> None:
    """Receipts are there, once, and requests in flight are interrupted: also when the database never heard of them."""
    with child("journal", url) as process:
        assert hear(process, 2) == ["up", "open"]
        with sqlite3.connect(path, isolation_level=None) as holder:
            holder.execute("BEGIN IMMEDIATE")
            tell(process, "go")
            said = [line.split() for line in hear(process, 7)]
            process.kill()
            process.wait()
            holder.execute("ROLLBACK")
        holder.close()
    expected = {request: Outcome.COMPLETED for word, request in said if word == "done"}
    assert len(expected) == 3
    begun, in_flight = said[-1]
    assert begun == "begun"
    with Ledger.open(url) as ledger:
        found = {receipt.request.id: receipt.outcome for receipt in ledger.receipts(100)}
        assert found == expected | {in_flight: Outcome.INTERRUPTED}
    assert journals(path) == []


def test_what_is_in_the_database_need_not_be_written_again(
    url: str, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The journal says itself up to where it has been drained, so a killed process's file of thousands is no delay."""
    with child("journal", url) as process:
        tell(process, "go")
        assert hear(process, 9)[:2] == ["up", "open"]
        tell(process, "settle")
        assert hear(process, 1) == ["settled"]
        process.kill()
        process.wait()
    (left,) = journals(path)
    chunk = Spool(left.parent, left.name.partition(".")[0], most_bytes=0, suffix=JOURNAL).front(100)
    assert chunk is not None
    assert chunk.entries == ()
    with Ledger.open(url) as ledger:
        assert len(ledger.receipts(100)) == 4
    assert not [record for record in caplog.records if "came from the spool" in record.getMessage()]
    assert journals(path) == []


def test_a_full_disk_sends_everybody_to_the_database(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told that a receipt is durable before it is."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    receipts = [a_receipt() for _ in range(5)]
    with monkeypatch.context() as disk:
        disk.setattr(os, "fdatasync", full)
        for receipt in receipts:
            ledger.append(receipt, journaled=True).result(WAIT_S)
        assert ledger.counts() == LedgerCounts(accepted=5, written=5, lost=0)
    assert {receipt.id for receipt in ledger.receipts()} == {receipt.id for receipt in receipts}


def test_a_journal_that_breaks_holds_up_nobody(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong in it: the database has what came meanwhile, and the journal what comes after."""

    def broken(*_: object) -> None:
        raise RuntimeError("a bug in the spool")

    with monkeypatch.context() as bug:
        bug.setattr(Spool, "append", broken)
        ledger.append(a_receipt(), journaled=True).result(WAIT_S)
    ledger.append(a_receipt(), journaled=True).result(WAIT_S)
    assert len(ledger.receipts()) == 2
    assert ledger.counts() == LedgerCounts(accepted=2, written=2, lost=0)


def test_what_the_database_refuses_is_counted_as_lost_and_said(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """Its caller has been told that it is durable: so it was, but against the ledger's rules."""
    request = a_request()
    for _ in range(2):
        ledger.append(a_receipt(request), journaled=True).result(WAIT_S)
    assert len(ledger.receipts()) == 1
    assert ledger.counts() == LedgerCounts(accepted=2, written=1, lost=1)
    assert f"request {request.id} has a receipt already" in caplog.text


def test_many_threads_by_either_way(url: str, path: Path) -> None:
    """Notes, receipts and corrections, some content with the journal: all are there, nothing is in flight, and no file
    is left."""
    with Ledger.open(url) as ledger:

        def work(number: int) -> None:
            for count in range(25):
                request = a_request()
                first = a_receipt(request)
                ledger.begin(request, first.id, journaled=number % 2 == 0)
                ledger.append(first, journaled=count % 3 != 0).result(WAIT_S)
                if count % 5 == 0:
                    ledger.append(a_receipt(request, supersedes=first.id)).result(WAIT_S)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ledger.receipts(1_000)) == 150
        assert ledger.counts() == LedgerCounts(accepted=180, written=180, lost=0)
    assert journals(path) == []
    with sqlite3.connect(path) as file:
        assert file.execute("SELECT count(*) FROM in_flight").fetchone() == (0,)
    file.close()


def test_closing_writes_what_lingers(url: str) -> None:
    with Ledger.open(url) as ledger:
        futures: list[Future[None]] = [ledger.append(a_receipt(), journaled=True) for _ in range(50)]
    assert [future.result(0) for future in futures] == [None] * 50
    with Ledger.open(url) as again:
        assert len(again.receipts(100)) == 50


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_a_journal_cut_anywhere_forgets_nothing_that_was_not_released(data: st.DataObject) -> None:
    """Entries and words about what is in the database, by turns; then the process is killed in the middle of a line."""
    receipts: list[Receipt] = []
    released = 0
    with TemporaryDirectory() as name:
        folder = Path(name)
        journal = Spool(folder, "writer", most_bytes=10**9, suffix=JOURNAL)
        for is_entry in data.draw(st.lists(st.booleans(), min_size=1, max_size=12)):
            if is_entry or not receipts:
                receipts.append(a_receipt())
                assert journal.append([NewReceipt.of(receipts[-1])]) == [None]
            else:
                journal.release(journal.end)
                released = len(receipts)
                assert journal.is_empty
        (file,) = folder.iterdir()
        whole = file.read_bytes()
        file.write_bytes(whole + b"0123abcdR half a lin"[: data.draw(st.integers(0, 20))])
        left = Spool(folder, "writer", most_bytes=0, suffix=JOURNAL)
        found: list[Entry] = []
        while chunk := left.front(3):
            found += chunk.entries
            left.drop(chunk)
        assert found == [NewReceipt.of(receipt) for receipt in receipts[released:]]
        assert list(folder.iterdir()) == []
