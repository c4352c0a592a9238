"""The thread that writes, and what it owes to those who wait."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from taximeter.errors import LedgerError
from taximeter.ledger import Ledger, LedgerCounts, writer
from taximeter.ledger.database import Session
from tests.unit.ledger.conftest import Open
from tests.unit.ledger.records import a_receipt, a_request

WAIT_S = 30


def in_flight(session: Session) -> list[str]:
    return [request_id for (request_id,) in session.ask("SELECT request_id FROM in_flight")]


def test_a_request_is_in_flight_until_its_receipt_is_there(ledger: Ledger, stranger: Session) -> None:
    """The note and the receipt are never both missing and never both there."""
    request = a_request()
    ledger.begin(request, f"rcpt_of_{request.id}").result()
    ledger.begin(request, f"rcpt_of_{request.id}").result()
    assert in_flight(stranger) == [request.id]
    ledger.append(a_receipt(request)).result()
    assert in_flight(stranger) == []
    assert ledger.receipt(request.id) == ledger.latest()


def test_the_same_receipt_twice_is_one(ledger: Ledger) -> None:
    """Whoever is not sure may append again: in one batch or in two."""
    receipt = a_receipt()
    for future in [ledger.append(receipt) for _ in range(3)]:
        future.result()
    ledger.append(receipt).result()
    assert ledger.receipts() == [receipt]
    assert ledger.counts() == LedgerCounts(accepted=4, written=4, lost=0)


def test_a_second_receipt_must_be_a_correction(ledger: Ledger) -> None:
    """A request has one first receipt, each receipt one correction, of the same request and of something there."""
    request = a_request()
    first = a_receipt(request)
    ledger.append(first).result()
    with pytest.raises(LedgerError, match=f"has a receipt already: {first.id}"):
        ledger.append(a_receipt(request)).result()
    with pytest.raises(LedgerError, match="says something else"):
        ledger.append(a_receipt(a_request(), receipt_id=first.id)).result()
    second = a_receipt(request, supersedes=first.id)
    ledger.append(second).result()
    with pytest.raises(LedgerError, match=f"corrected already, by {second.id}"):
        ledger.append(a_receipt(request, supersedes=first.id)).result()
    with pytest.raises(LedgerError, match="no receipt of the same request"):
        ledger.append(a_receipt(supersedes=second.id)).result()
    with pytest.raises(LedgerError, match="no receipt of the same request"):
        ledger.append(a_receipt(request, supersedes="rcpt_unheard_of")).result()
    third = a_receipt(request, supersedes=second.id)
    ledger.append(third).result()
    assert ledger.receipt(request.id) == third
    assert ledger.receipt(first.id) == first


def test_one_bad_entry_does_not_fail_its_batch_mates(ledger: Ledger, stranger: Session) -> None:
    """While another process holds the database everything queues up, then goes into one transaction."""
    request = a_request()
    first, twin, good = a_receipt(request), a_receipt(request), a_receipt()
    with stranger.transaction():
        futures = [ledger.append(receipt) for receipt in (a_receipt(), first, twin, good)]
        begun = [ledger.begin(request, f"rcpt_of_{request.id}") for request in (a_request(), a_request())]
        assert ledger.counts().waiting == 4
    assert [future.exception(WAIT_S) is None for future in futures + begun] == [True, True, False, True, True, True]
    assert {receipt.id for receipt in ledger.receipts()} >= {first.id, good.id}
    assert ledger.counts() == LedgerCounts(accepted=4, written=3, lost=1)


def test_a_full_queue_refuses_instead_of_eating_memory(
    ledger: Ledger, stranger: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nothing is written only so much waits; what comes on top is lost, and counted."""
    monkeypatch.setattr(writer, "_MAX_WAITING", 5)
    with stranger.transaction():
        futures = [ledger.append(a_receipt()) for _ in range(20)]
    refused = [future for future in futures if future.exception(WAIT_S)]
    assert refused
    with pytest.raises(LedgerError, match="entries behind"):
        refused[-1].result()
    assert ledger.counts() == LedgerCounts(accepted=20, written=20 - len(refused), lost=len(refused))


async def test_a_waiter_who_is_cancelled_cancels_no_receipt(ledger: Ledger, stranger: Session) -> None:
    """The client goes away while its receipt is being written: it is written, and the writer lives."""
    receipt = a_receipt()
    with stranger.transaction():
        appended = ledger.append(receipt)
        waiting = asyncio.wrap_future(appended)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
    appended.result(WAIT_S)
    ledger.append(a_receipt()).result()
    assert ledger.receipt(receipt.id) == receipt


def test_closing_writes_what_waits(ledger: Ledger, reopen: Open) -> None:
    """A thousand queued receipts are a thousand rows; closing twice is closing; afterwards nothing is taken."""
    futures = [ledger.append(a_receipt()) for _ in range(1_000)]
    ledger.close()
    ledger.close()
    assert all(future.done() and future.exception() is None for future in futures)
    for question in (lambda: ledger.append(a_receipt()), lambda: ledger.begin(a_request(), "rcpt_none"), ledger.latest):
        with pytest.raises(LedgerError, match="closed"):
            question()
    with reopen() as again:
        assert len(again.receipts(limit=2_000)) == 1_000


def test_many_threads_write_and_read_at_once(ledger: Ledger) -> None:
    """Each thread finds its own receipt as soon as its future resolves."""

    def work(_: int) -> bool:
        receipt = a_receipt()
        ledger.append(receipt).result()
        return ledger.receipt(receipt.id) == receipt

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(200)))
    assert ledger.counts() == LedgerCounts(accepted=200, written=200, lost=0)


def test_two_writers_of_one_database_lose_nothing(ledger: Ledger, reopen: Open) -> None:
    """Two ledgers write at once, some receipts through both: each is there once, and none is told it was lost."""
    shared = [a_receipt() for _ in range(100)]
    with reopen() as other:

        def work(writing: Ledger) -> None:
            for receipt in shared:
                for future in [writing.append(receipt), writing.append(a_receipt())]:
                    future.result(WAIT_S)

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(work, [ledger, other, ledger, other]))
        assert ledger.counts() == other.counts() == LedgerCounts(accepted=400, written=400, lost=0)
    assert len(ledger.receipts(limit=1_000)) == 100 + 400


def test_readers_and_the_writer_do_not_wait_for_each_other(ledger: Ledger, stranger: Session) -> None:
    """A read answers while somebody holds the write lock; a write is durable while somebody is still reading."""
    receipt = a_receipt()
    ledger.append(receipt).result(WAIT_S)
    with stranger.transaction():
        assert ledger.receipts() == [receipt]
    with ledger._reading()._snapshot() as reading:
        count = "SELECT count(*) FROM receipts"
        assert reading.ask(count)[0][0] == 1
        ledger.append(a_receipt()).result(WAIT_S)
        assert reading.ask(count)[0][0] == 1
    assert len(ledger.receipts()) == 2
    assert ledger.counts() == LedgerCounts(accepted=2, written=2, lost=0)
