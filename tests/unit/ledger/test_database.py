"""From a URL to a file."""

from __future__ import annotations

import errno
import sys
import tempfile
import traceback
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from taximeter.errors import ConfigError, LedgerError, TaximeterError
from taximeter.ledger import Ledger
from taximeter.ledger.database import database_at
from taximeter.ledger.liveness import WriterLocks
from tests.unit.ledger.records import a_receipt


@pytest.mark.parametrize("form", ["sqlite:///{}", "{}"])
def test_missing_folders_are_made(tmp_path: Path, form: str) -> None:
    """A URL and a plain path both name the file, however deep."""
    file = tmp_path / "not yet" / "there %20#" / "ledger.db"
    Ledger.open(form.format(file)).close()
    assert file.is_file()


def test_a_relative_path_starts_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three slashes are relative, as in SQLAlchemy; `~` is home in both forms."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = tmp_path.resolve() / "a.db"
    for url in ("sqlite:///a.db", "a.db", "sqlite:///~/a.db", "~/a.db"):
        database = database_at(url, spool=None)
        assert database is not None
        assert database.name == str(expected)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", ":memory:"])
def test_a_ledger_that_nobody_keeps(url: str) -> None:
    """It works like any other, and is gone when closed."""
    receipt = a_receipt()
    with Ledger.open(url) as ledger:
        ledger.append(receipt).result()
        assert ledger.latest() == receipt
        folder = ledger._database.folder.parent
    assert not folder.exists()
    with Ledger.open(url) as ledger:
        assert ledger.latest() is None


@pytest.mark.parametrize(
    "url",
    [
        "mysql://secret",
        "sqlite://secret/ledger.db",
        "sqlite:///ledger.db?mode=secret",
        "",
        "sqlite:///\0secret",
    ],
)
def test_another_kind_of_url_is_refused_without_repeating_it(url: str) -> None:
    """The operator learns what is accepted; a password in the URL is not printed."""
    with pytest.raises(ConfigError, match="sqlite:///path") as raised:
        Ledger.open(url)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:secret@127.0.0.1:1/db",  # nobody listens there
        "postgres://me:secret@127.0.0.1:1/db",
        "postgresql+psycopg://me:sec%72et@127.0.0.1:1/db",
        "postgresql://me@127.0.0.1:1/db?password=secret",
        "postgresql://me:a@b:secret/db",  # passwords that should have been quoted
        "postgresql://me:12/secret@host/db",
        "postgresql://me@host/db?nonsense=secret",
    ],
)
def test_no_error_repeats_a_password(url: str, tmp_path: Path) -> None:
    """Whatever is wrong with the server or with its URL, and however the driver puts it."""
    with pytest.raises(TaximeterError) as raised:
        Ledger.open(url, spool=tmp_path)
    told = "".join(traceback.format_exception(raised.value))
    assert "secret" not in told.replace(url, "")


def test_a_missing_driver_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Who keeps a file need not have it, and who wants Postgres is told the line."""
    monkeypatch.delitem(sys.modules, "taximeter.ledger.postgres", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r"pip install 'taximeter\[postgres\]'"):
        Ledger.open("postgresql://host/db", spool=tmp_path)


def test_postgres_needs_a_folder_for_what_it_cannot_take() -> None:
    """Nobody is left to find out at the first outage."""
    with pytest.raises(ConfigError, match="spool=folder"):
        Ledger.open("postgresql://host/db")


def test_a_file_that_is_no_database_is_refused_and_kept(path: Path) -> None:
    """Naming the wrong file costs nothing but a message."""
    path.write_text("my diary, long enough not to be taken for an empty file" * 20)
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="not a database"):
        Ledger.open(str(path))
    assert path.read_bytes() == before


def test_a_folder_is_no_ledger(tmp_path: Path) -> None:
    """Nor is a path below a file."""
    with pytest.raises(LedgerError, match="unable to open"):
        Ledger.open(str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match=r"Not a directory|File exists"):
        Ledger.open(str(tmp_path / "file" / "ledger.db"))


def test_a_ledger_that_may_not_be_written_can_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a copy: of what it was, with what was on its way into it, and nothing of that is left behind."""
    place, before = tmp_path / "a medium" / "ledger.db", set(Path(tempfile.gettempdir()).glob("taximeter-*"))
    with Ledger.open(str(place)) as ledger:
        receipt = a_receipt()
        ledger.append(receipt).result()
    lock = WriterLocks.opening

    def only_elsewhere(self: WriterLocks) -> AbstractContextManager[None]:
        if self._folder.is_relative_to(place.parent):
            raise OSError(errno.EROFS, "Read-only file system")
        return lock(self)

    monkeypatch.setattr(WriterLocks, "opening", only_elsewhere)
    with pytest.raises(LedgerError, match="Read-only") as refused:
        Ledger.open(str(place))
    assert refused.value.hint is not None
    assert "copy" in refused.value.hint
    with Ledger.open_to_ask(str(place)) as copy:
        assert copy.receipt(receipt.id) == receipt
    assert set(Path(tempfile.gettempdir()).glob("taximeter-*")) == before
    with pytest.raises(LedgerError, match="failed"):
        Ledger.open_to_ask(str(place.parent))  # a folder is no ledger, wherever it is
