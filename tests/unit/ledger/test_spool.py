"""Entries on disk, until the database takes them."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.ledger import spool
from taximeter.ledger.spool import Spool, writers_with_spools
from taximeter.ledger.transactions import Entry, NewReceipt, NewRequest, TaskEnd, unpacked
from taximeter.records import Receipt, Task
from tests.unit.ledger.records import NOON, a_receipt, a_request, any_receipts


def entries_of(receipt: Receipt) -> list[Entry]:
    task = Task(name=receipt.id, finished_at=NOON, succeeded=False, labels=receipt.request.labels)
    return [
        NewRequest.of(receipt.request, receipt.id, "a writer"),
        NewReceipt.of(receipt),
        TaskEnd.of(task),
    ]


def drained(folder: Path, name: str = "writer") -> list[Entry]:
    """Everything, in small pieces, by whoever comes after the one that wrote it."""
    found: list[Entry] = []
    left = Spool(folder, name, most_bytes=0)
    while chunk := left.front(2):
        found += chunk.entries
        left.drop(chunk)
    return found


@settings(deadline=None)
@given(st.lists(any_receipts(), max_size=4))
def test_what_is_drained_is_what_was_kept(receipts: list[Receipt]) -> None:
    """Any record that the vocabulary allows, in the order they came; afterwards there are no files."""
    entries = [entry for receipt in receipts for entry in entries_of(receipt)]
    with TemporaryDirectory() as name:
        folder = Path(name)
        kept = Spool(folder, "writer", most_bytes=10**9)
        for entry in entries:
            assert kept.append([entry]) == [None]
        assert kept.is_empty is not entries
        kept.close()
        assert drained(folder) == entries
        assert list(folder.iterdir()) == []


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_file_that_was_cut_or_damaged_anywhere_keeps_the_rest(data: st.DataObject) -> None:
    """A process is killed at any byte; a disk turns any bit. What is whole is there, and nothing else is made up."""
    entries = [entry for _ in range(3) for entry in entries_of(a_receipt())]
    with TemporaryDirectory() as name:
        folder = Path(name)
        kept = Spool(folder, "writer", most_bytes=10**9)
        kept.append(entries)
        kept.close()
        (file,) = folder.iterdir()
        whole = file.read_bytes()
        place = data.draw(st.integers(0, len(whole) - 1))
        if data.draw(st.booleans()):
            file.write_bytes(whole[:place])
            assert drained(folder) == entries[: whole[:place].count(b"\n")]
        else:
            turned = whole[place] ^ (1 << data.draw(st.integers(0, 7)))
            file.write_bytes(whole[:place] + bytes([turned]) + whole[place + 1 :])
            found = drained(folder)
            line = whole[:place].count(b"\n")
            lost = entries[line : line + 2] if whole[place : place + 1] == b"\n" else [entries[line]]
            assert found == [entry for entry in entries if entry not in lost]
        assert list(folder.iterdir()) == []


def test_what_is_drained_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments go as soon as they are in the database, while new ones are written behind them; the oldest first."""
    monkeypatch.setattr(spool, "_SEGMENT_BYTES", 2_000)
    kept = Spool(tmp_path, "writer", most_bytes=20_000)
    sent: list[Entry] = []
    found: list[Entry] = []
    for _ in range(50):
        new: list[Entry] = [NewReceipt.of(a_receipt()) for _ in range(3)]
        assert kept.append(new) == [None] * 3
        sent += new
        while chunk := kept.front(2):
            found += chunk.entries
            kept.drop(chunk)
            if len(found) % 5 == 0:
                break
        assert len(list(tmp_path.iterdir())) < 10
    while chunk := kept.front(2):
        found += chunk.entries
        kept.drop(chunk)
    assert found == sent
    assert kept.is_empty
    assert list(tmp_path.iterdir()) == []


def test_a_spool_takes_what_it_has_room_for(tmp_path: Path) -> None:
    """In a batch that is too large the first entries are kept, and each of the others is told."""
    kept = Spool(tmp_path, "writer", most_bytes=5_000)
    fates = kept.append([NewReceipt.of(a_receipt()) for _ in range(20)])
    room = fates.index(next(fate for fate in fates if fate is not None))
    assert 0 < room < 20
    assert all("is full" in str(fate) for fate in fates[room:])
    kept.close()
    assert len(drained(tmp_path)) == room


def test_what_another_version_wrote_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is in nobody's way, and is not thrown away."""
    kept = Spool(tmp_path, "writer", most_bytes=10_000)
    receipt = a_receipt()
    kept.append([NewReceipt.of(receipt)])
    kept.close()
    (file,) = tmp_path.iterdir()
    line = file.read_bytes()[8:-1]
    other = line.replace(b"R ", b"Z ", 1)
    file.write_bytes(b"%08x%s\n" % (spool.crc32(other), other) + file.read_bytes())
    assert drained(tmp_path) == [unpacked(line.decode())] == [NewReceipt.of(receipt)]
    assert [file.suffix for file in tmp_path.iterdir()] == [".unreadable"]
    assert writers_with_spools(tmp_path) == set()
    assert "a newer Taximeter wrote it" in caplog.text


def test_a_spool_is_for_its_owners_eyes(tmp_path: Path) -> None:
    """What is in it would be in the ledger."""
    kept = Spool(tmp_path, "writer", most_bytes=10_000)
    kept.append([NewRequest.of(a_request(), "rcpt_none", "writer")])
    kept.close()
    assert [file.stat().st_mode & 0o777 for file in tmp_path.iterdir()] == [0o600]
