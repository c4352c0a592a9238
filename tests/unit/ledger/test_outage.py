"""The database is locked, full, frozen or gone: traffic goes on, and what it left behind arrives."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from taximeter.errors import LedgerError
from taximeter.ledger import Ledger, LedgerCounts
from taximeter.ledger.database import Session, database_at
from taximeter.ledger.transactions import interrupt
from taximeter.records import Outcome
from tests.postgres_server import Server
from tests.unit.ledger.children import child
from tests.unit.ledger.conftest import Open
from tests.unit.ledger.records import NOON, a_receipt, a_request

WAIT_S = 30


@pytest.fixture
def ledger(reopen: Open) -> Generator[Ledger]:
    """One that has not much patience."""
    with reopen(patience_s=0.05) as opened:
        yield opened


@contextmanager
def holding(url: str, spool: Path) -> Generator[None]:
    """Nobody else can write to the ledger at `url`."""
    database = database_at(url, spool=spool)
    assert database is not None
    with ExitStack() as undo:
        session = database.session(patience_s=None)
        undo.callback(session.close)
        undo.enter_context(session.transaction())
        yield


def wait_for_the_drainer() -> None:
    """Until everything that was spooled is in the database."""
    for thread in threading.enumerate():
        if thread.name == "ledger-drainer":
            thread.join(WAIT_S)
            assert not thread.is_alive()


def test_what_the_database_does_not_take_is_spooled_and_arrives_in_order(ledger: Ledger, stranger: Session) -> None:
    """Notes, receipts, their corrections and the ends of tasks are durable while the database is held by somebody, and
    in it afterwards; then receipts go there directly again."""
    before, request = a_receipt(), a_request()
    ledger.append(before).result(WAIT_S)
    first = a_receipt(request)
    second = a_receipt(request, supersedes=first.id)
    with stranger.transaction():
        assert ledger.away is None
        ledger.begin(request, first.id).result(WAIT_S)
        for receipt in (first, second, first, a_receipt(a_request())):
            ledger.append(receipt).result(WAIT_S)
        ledger.finish_task("a task", succeeded=True, at=NOON).result(WAIT_S)
        assert ledger.counts() == LedgerCounts(accepted=5, written=1, spooled=4, lost=0)
        assert ledger.away is not None
        assert ledger.receipts() == [before]  # who asks is not held up
    wait_for_the_drainer()
    assert ledger.away is None
    assert ledger.counts() == LedgerCounts(accepted=5, written=5, lost=0)
    assert ledger.receipt(request.id) == second
    assert ledger.receipt(first.id) == first
    assert ledger.task("a task") is not None
    assert stranger.ask("SELECT count(*) FROM in_flight") == [(0,)]
    ledger.append(a_receipt()).result(WAIT_S)
    assert ledger.counts() == LedgerCounts(accepted=6, written=6, lost=0)
    assert [file.suffix for file in ledger._database.folder.iterdir()] == [".lock"] * 2


def test_a_spooled_receipt_that_the_ledger_refuses_is_lost_after_all(ledger: Ledger, stranger: Session) -> None:
    """Its rules are asked when it arrives; the others arrive nevertheless."""
    request, good = a_request(), a_receipt()
    with stranger.transaction():
        for receipt in (a_receipt(request), a_receipt(request), good):
            ledger.append(receipt).result(WAIT_S)
    wait_for_the_drainer()
    assert ledger.counts() == LedgerCounts(accepted=3, written=2, lost=1)
    assert ledger.receipt(good.id) == good


def test_a_full_spool_loses_what_comes_on_top_and_the_next_one_hears_of_it(
    url: str, reopen: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """accepted = written + spooled + lost; the number lost is told at the next opening, and at every one after."""
    with reopen(patience_s=0.05, spool_bytes=10_000) as ledger:
        with holding(url, tmp_path / "spool"):
            futures = [ledger.append(a_receipt()) for _ in range(40)]
            lost = sum(future.exception(WAIT_S) is not None for future in futures)
            counts = ledger.counts()
            assert counts == LedgerCounts(accepted=40, written=0, spooled=40 - lost, lost=lost)
            assert 0 < lost < 40
            with pytest.raises(LedgerError, match=r"spool .* is full"):
                futures[-1].result()
        wait_for_the_drainer()
        assert ledger.counts() == LedgerCounts(accepted=40, written=40 - lost, lost=lost)
        assert ledger.lost_before == 0
    for _ in range(2):
        with reopen() as ledger:
            assert ledger.lost_before == lost
            assert len(ledger.receipts(100)) == 40 - lost


def test_a_disk_that_is_full_as_well_loses_receipts_and_counts_them(
    ledger: Ledger, stranger: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither database nor spool: the future says so. With room again the spool goes on, and what was said to be lost
    is not found later."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    kept = [a_receipt() for _ in range(2)]
    with stranger.transaction():
        ledger.append(kept[0]).result(WAIT_S)
        with monkeypatch.context() as disk:
            disk.setattr(os, "fdatasync", full)
            with pytest.raises(LedgerError, match=r"No space left .*make room"):
                ledger.append(a_receipt()).result(WAIT_S)
        ledger.append(kept[1]).result(WAIT_S)
        assert ledger.counts() == LedgerCounts(accepted=3, written=0, spooled=2, lost=1)
    wait_for_the_drainer()
    assert ledger.counts() == LedgerCounts(accepted=3, written=2, lost=1)
    assert {receipt.id for receipt in ledger.receipts()} == {receipt.id for receipt in kept}


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("pragma", "undo"),
    [("max_page_count = 1", "max_page_count = 1000000"), ("query_only = ON", "query_only = OFF")],
)
def test_a_file_that_takes_nothing_costs_no_receipt(ledger: Ledger, pragma: str, undo: str) -> None:
    """A full or read-only file is an outage like any other."""
    session = ledger._keeper._session
    session._connection.execute(f"PRAGMA {pragma}")
    futures = [ledger.append(a_receipt()) for _ in range(40)]
    assert [future.result(WAIT_S) for future in futures] == [None] * 40
    assert ledger.counts().spooled > 0
    with ledger._keeper._keeping:
        session._connection.execute(f"PRAGMA {undo}")
    wait_for_the_drainer()
    assert ledger.counts() == LedgerCounts(accepted=40, written=40, lost=0)
    assert len(ledger.receipts()) == 40


def test_closing_while_the_database_is_away_leaves_it_to_the_next_one(url: str, reopen: Open, tmp_path: Path) -> None:
    """Closing ends soon, whatever waits is durable, and the next opening writes it, once."""
    ledger = reopen(patience_s=0.05)
    receipts = [a_receipt() for _ in range(1_200)]
    with holding(url, tmp_path / "spool"):
        futures = [ledger.append(receipt) for receipt in receipts]
        ledger.close()
        assert [future.result(WAIT_S) for future in futures] == [None] * 1_200
        assert ledger.counts() == LedgerCounts(accepted=1_200, written=0, spooled=1_200, lost=0)
    with reopen() as again:
        assert len(again.receipts(2_000)) == 1_200
        assert [file.suffix for file in again._database.folder.iterdir()] == [".lock"] * 2


def test_a_dead_processs_spool_is_drained_by_the_next_one(url: str, reopen: Open, tmp_path: Path) -> None:
    """Killed while the database is away: what was durable is there, what was in flight is interrupted, and a line that
    the process left half-written is nobody's."""
    reopen().close()
    with child("write", url, tmp_path / "spool") as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(50)]
        with holding(url, tmp_path / "spool"):
            while not (spools := [*tmp_path.glob("*/*.spool"), *tmp_path.glob("*/*/*.spool")]):
                said.append(process.stdout.readline())  # what it said before lay in the pipe
            said += [process.stdout.readline() for _ in range(300)]
            process.kill()
            said += process.stdout.readlines()
            process.wait()
            last = max(spools)
            last.write_bytes(last.read_bytes() + b"0123456789abcdef half a li")
    words = [line.split() for line in said if line.endswith("\n")]
    durable = {word[1] for word in words if word[0] == "durable"}
    begun = {word[1] for word in words if word[0] == "begun"}
    with reopen() as ledger:
        receipts = ledger.receipts(10_000)
        assert not list(ledger._database.folder.glob("*.spool"))
    assert durable <= {receipt.id for receipt in receipts if receipt.outcome is Outcome.COMPLETED}
    requests = [receipt.request.id for receipt in receipts]
    assert len(requests) == len(set(requests))
    assert begun <= set(requests)


def test_a_receipt_that_comes_after_its_interruption_corrects_it(
    ledger: Ledger, stranger: Session, reopen: Open
) -> None:
    """Somebody took this process for dead. Its answers come all the same, and are what counts; also twice."""
    request = a_request()
    promised = a_receipt(request)
    ledger.begin(request, promised.id).result(WAIT_S)
    ((writer_id,),) = stranger.ask("SELECT writer_id FROM in_flight")
    with stranger.transaction():
        interrupt(stranger, writer_id, NOON)
    for _ in range(2):
        ledger.append(promised).result(WAIT_S)
    newest, early = ledger.receipt(request.id), ledger.receipt(promised.id)
    assert newest is not None
    assert (newest.outcome, newest.usage, newest.supersedes) == (promised.outcome, promised.usage, promised.id)
    assert early is not None
    assert early.outcome is Outcome.INTERRUPTED
    assert ledger.receipts() == [newest]
    assert ledger.counts() == LedgerCounts(accepted=2, written=2, lost=0)


def test_postgres_stops_and_all_that_was_sent_meanwhile_is_there_when_it_starts(
    postgres: Server, tmp_path: Path
) -> None:
    """Stopped as if it had crashed, in the middle of requests; started again, and again in the middle of draining."""
    with Ledger.open(postgres.new_database(), spool=tmp_path, patience_s=1) as ledger:
        requests = [a_request() for _ in range(60)]
        receipts = [a_receipt(request) for request in requests]
        for request, receipt in zip(requests, receipts, strict=True):
            ledger.begin(request, receipt.id).result(WAIT_S)
        for receipt in receipts[:20]:
            ledger.append(receipt).result(WAIT_S)
        postgres.stop("immediate")
        try:
            for receipt in receipts[20:40]:
                ledger.append(receipt).result(WAIT_S)
            assert ledger.counts() == LedgerCounts(accepted=40, written=20, spooled=20, lost=0)
        finally:
            postgres.start()
        for receipt in receipts[40:]:
            ledger.append(receipt).result(WAIT_S)
        wait_for_the_drainer()
        assert ledger.counts() == LedgerCounts(accepted=60, written=60, lost=0)
        assert {receipt.id for receipt in ledger.receipts(100)} == {receipt.id for receipt in receipts}
        assert {receipt.outcome for receipt in ledger.receipts(100)} == {Outcome.COMPLETED}


def test_a_ledger_is_opened_while_postgres_is_away(postgres: Server, tmp_path: Path) -> None:
    """Nobody waits for it, and what was appended meanwhile is durable. When it comes its tables are made, then it is
    given everything. Who only wants to ask is told."""
    url = postgres.new_database()
    with ExitStack() as undo:
        with postgres.stopped():
            with pytest.raises(LedgerError, match="failed: connection"):
                Ledger.open(url, spool=tmp_path)
            ledger = undo.enter_context(Ledger.open(url, spool=tmp_path, may_be_away=True))
            assert (ledger.lost_before, ledger.counts().accepted) == (None, 0)
            assert ledger.away is not None
            with pytest.raises(LedgerError):
                ledger.receipts()
            request = a_request()
            receipts = [a_receipt(request), *(a_receipt() for _ in range(19))]
            ledger.begin(request, receipts[0].id).result(WAIT_S)
            for receipt in receipts:
                ledger.append(receipt).result(WAIT_S)
            assert ledger.counts() == LedgerCounts(accepted=20, written=0, spooled=20, lost=0)
        wait_for_the_drainer()
        assert (ledger.away, ledger.lost_before) == (None, 0)
        assert ledger.counts() == LedgerCounts(accepted=20, written=20, lost=0)
        assert {receipt.id for receipt in ledger.receipts(100)} == {receipt.id for receipt in receipts}
        ledger._arrival.living.sweep()
        ledger.append(a_receipt()).result(WAIT_S)
        assert ledger.counts().written == 21


def test_what_was_spooled_before_the_database_was_ever_seen_is_the_next_ones(postgres: Server, tmp_path: Path) -> None:
    """It never came while this one was open: the notes and receipts that are left are the next one's, and what was in
    flight is interrupted."""
    url = postgres.new_database()
    receipts, unfinished = [a_receipt() for _ in range(3)], a_request()
    with postgres.stopped(), Ledger.open(url, spool=tmp_path, patience_s=0.2, may_be_away=True) as ledger:
        ledger.begin(unfinished, "rcpt_unfinished").result(WAIT_S)
        for receipt in receipts:
            ledger.append(receipt).result(WAIT_S)
    with Ledger.open(url, spool=tmp_path) as ledger:
        found = {receipt.id: receipt.outcome for receipt in ledger.receipts()}
    completed = dict.fromkeys((each.id for each in receipts), Outcome.COMPLETED)
    assert found == completed | {"rcpt_unfinished": Outcome.INTERRUPTED}


def test_a_database_that_is_no_ledger_is_told_of_and_never_written_to(
    postgres: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At once where it can be seen; later where it was away: traffic goes on, the log says once what is wrong, and once
    somebody has mended it nothing is missing."""
    url = postgres.new_database()
    nowhere = url.replace("/postgres?", "/nowhere?")
    with pytest.raises(LedgerError, match="does not exist"):
        Ledger.open(nowhere, spool=tmp_path, may_be_away=True)
    database = database_at(url, spool=tmp_path)
    assert database is not None
    with closing(database.session(patience_s=None)) as stranger:
        stranger.tell("CREATE TABLE theirs (id INT)", [()])
    with pytest.raises(LedgerError, match="another program's database"):
        Ledger.open(url, spool=tmp_path, may_be_away=True)
    with ExitStack() as undo:
        with postgres.stopped():
            ledger = undo.enter_context(Ledger.open(url, spool=tmp_path, may_be_away=True))
        keeper, receipt = ledger._keeper, a_receipt()
        ledger.append(receipt).result(WAIT_S)
        for _ in range(2):
            with pytest.raises(LedgerError, match="another program's database"):
                keeper._database.session(patience_s=1)
        assert ledger.away is not None
        with closing(database.session(patience_s=None)) as stranger:
            stranger.tell("DROP TABLE theirs", [()])
        wait_for_the_drainer()
        assert ledger.receipts() == [receipt]
    assert [record.levelname for record in caplog.records if "cannot be used" in record.message] == ["ERROR"]


def test_a_frozen_postgres_hangs_nobody(postgres: Server, tmp_path: Path) -> None:
    """Its connections are open and it says nothing: after a second the spool takes over, at once for the next."""
    with Ledger.open(postgres.new_database(), spool=tmp_path, patience_s=0.2) as ledger:
        ledger.append(a_receipt()).result(WAIT_S)
        with postgres.frozen():
            for _ in range(5):
                ledger.append(a_receipt()).result(WAIT_S)
            assert ledger.counts() == LedgerCounts(accepted=6, written=1, spooled=5, lost=0)
        wait_for_the_drainer()
        assert ledger.counts() == LedgerCounts(accepted=6, written=6, lost=0)
        assert len(ledger.receipts()) == 6


def test_gateways_see_each_other_die(postgres: Server, tmp_path: Path) -> None:
    """Two look now and then. What a killed process began is interrupted at the second look; the living are left alone,
    even one whose session the server has ended meanwhile."""
    url = postgres.new_database()
    with Ledger.open(url, spool=tmp_path / "one") as one, Ledger.open(url, spool=tmp_path / "two") as two:
        alive = a_request()
        two.begin(alive, "rcpt_alive").result(WAIT_S)
        with child("hold", url, tmp_path / "three") as holder:
            assert holder.stdout is not None
            request_id = [holder.stdout.readline(), holder.stdout.readline()][1].strip()
            presence, other = one._arrival.living, two._arrival.living
            for _ in range(3):
                presence.sweep()
            assert one.receipts() == []
            holder.kill()
            holder.wait()
        other._session.ask("SELECT pg_backend_pid()")
        session = one._database.session(patience_s=9)
        ours = other._session.ask("SELECT pg_backend_pid()")[0][0]
        session.ask("SELECT pg_terminate_backend(?, 10000)", ours)
        session.close()
        presence.sweep()  # now both seem dead
        with pytest.raises(LedgerError):
            other.sweep()
        other.sweep()  # and one of them comes back
        presence.sweep()
        assert [receipt.request.id for receipt in one.receipts()] == [request_id]
        two.append(a_receipt(alive, receipt_id="rcpt_alive")).result(WAIT_S)
        found = one.receipt(alive.id)
        assert found is not None
        assert found.outcome is Outcome.COMPLETED
