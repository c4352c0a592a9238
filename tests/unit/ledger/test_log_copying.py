"""SQLite's log is copied into the file beside who writes it, who waits for that only where there is too much of it."""

from __future__ import annotations

import shutil
import sqlite3
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import pytest

from taximeter.ledger import log_copying
from taximeter.ledger.log_copying import LogCopying
from taximeter.ledger.sqlite import connect


@pytest.fixture(autouse=True)
def _little_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_copying, "_ENOUGH_BYTES", 1)


def test_what_was_committed_is_in_the_file_while_the_log_is_open(tmp_path: Path) -> None:
    """The file alone has it, before whoever wrote it lets go."""
    path = tmp_path / "a.db"
    copying = LogCopying(path)
    assert copying.begin()  # there is nothing yet
    with closing(connect(path, patience_s=None, writes=True)) as writer:
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        writer.execute("CREATE TABLE kept (number)")
        writer.execute("INSERT INTO kept VALUES (7)")
        assert copying.begin()
        copying.close()
        alone = shutil.copy(path, tmp_path / "alone.db")
        with closing(sqlite3.connect(alone)) as reader:
            assert reader.execute("SELECT number FROM kept").fetchall() == [(7,)]


def test_who_is_faster_than_the_disk_waits_and_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the log would grow for as long as an import takes."""
    monkeypatch.setattr(log_copying, "_MOST_BYTES", 1)

    class GoingOn(Future[None]):
        waited_for = 0

        def result(self, timeout: float | None = None) -> None:
            self.waited_for += 1

    path = tmp_path / "a.db"
    path.with_name("a.db-wal").write_bytes(b"much")
    copying = LogCopying(path)
    copying._going_on = before = GoingOn()
    assert not copying.begin()
    assert before.waited_for == 1
    copying.close()
