"""SQLite's log is copied into the file beside who writes it, who waits for that only where the log is long."""

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
    copying.begin()  # there is nothing yet
    with closing(connect(path, patience_s=None, writes=True)) as writer:
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        writer.execute("CREATE TABLE kept (number)")
        writer.execute("INSERT INTO kept VALUES (7)")
        copying.begin()
        copying.close()
        alone = shutil.copy(path, tmp_path / "alone.db")
        with closing(sqlite3.connect(alone)) as reader:
            assert reader.execute("SELECT number FROM kept").fetchall() == [(7,)]


def test_a_long_log_is_written_from_its_beginning_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would grow for as long as an import takes."""
    monkeypatch.setattr(log_copying, "_MOST_BYTES", 1)
    path = tmp_path / "a.db"
    log = path.with_name("a.db-wal")
    copying = LogCopying(path)
    lengths: set[int] = set()
    with closing(connect(path, patience_s=None, writes=True)) as writer:
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        writer.execute("CREATE TABLE kept (number)")
        for number in range(20):
            copying.make_way()
            writer.execute("INSERT INTO kept VALUES (?)", (number,))
            lengths.add(log.stat().st_size)
            copying.begin()
    copying.close()
    assert len(lengths) == 1


def test_what_was_committed_while_some_was_copied_is_copied_before_more_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is going on has only what there was when it began."""
    monkeypatch.setattr(log_copying, "_MOST_BYTES", 1)
    path = tmp_path / "a.db"
    copying = LogCopying(path)
    with closing(connect(path, patience_s=None, writes=True)) as writer:
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        writer.execute("CREATE TABLE kept (number)")
        going_on = Future[None]()
        copying._going_on = going_on
        copying.begin()
        going_on.set_result(None)
        copying.make_way()
        alone = shutil.copy(path, tmp_path / "alone.db")
        with closing(sqlite3.connect(alone)) as reader:
            assert reader.execute("SELECT count(*) FROM kept").fetchall() == [(0,)]
    copying.close()
