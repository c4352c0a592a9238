"""Ledgers in a folder of their own: in a file, and in a real Postgres where there is one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from taximeter.ledger import Ledger
from taximeter.ledger.database import Asking, Session
from tests import postgres_server
from tests.postgres_server import Server

Open = Callable[..., Ledger]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture(scope="session")
def postgres() -> Generator[Server]:
    """One server for all tests; each has a database of its own."""
    if postgres_server.binaries() is None:
        pytest.skip(postgres_server.WHY_NOT)
    with postgres_server.server() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, path: Path) -> str:
    """Where to keep a ledger, of each kind."""
    return str(path) if request.param == "sqlite" else request.getfixturevalue("postgres").new_database()


@pytest.fixture
def reopen(url: str, tmp_path: Path) -> Open:
    """Opens the ledger at `url`, as often as one likes."""
    return lambda **options: Ledger.open(url, spool=tmp_path / "spool", **options)


@pytest.fixture
def stranger(ledger: Ledger) -> Generator[Session]:
    """Somebody else's session with the ledger's database. A transaction of it keeps all others from writing."""
    session = ledger._database.session(patience_s=None)
    yield session
    session.close()


@pytest.fixture
def ledger(reopen: Open) -> Generator[Ledger]:
    with reopen() as opened:
        yield opened


@pytest.fixture(scope="module")
def shared_ledger() -> Generator[Ledger]:
    """One for many examples of one property, which must not mind what is in it already."""
    with Ledger.open("sqlite://") as opened:
        yield opened


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def shared_ledger_of_each(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Ledger]:
    """The same, of each kind."""
    url = "sqlite://" if request.param == "sqlite" else request.getfixturevalue("postgres").new_database()
    with Ledger.open(url, spool=tmp_path_factory.mktemp("spool"), patience_s=30.0) as opened:  # of a busy machine too
        yield opened


class _Listened:
    """A connection that asks, and what it is asked."""

    def __init__(self, asking: Asking, asked: list[tuple[str, tuple[object, ...]]]) -> None:
        self._asking = asking
        self._asked = asked

    def __getattr__(self, name: str) -> object:
        return getattr(self._asking, name)

    def ask(self, question: str, *values: object) -> list[tuple[Any, ...]]:
        self._asked.append((question, values))
        return self._asking.ask(question, *values)

    def each(self, question: str, *values: object) -> Iterator[tuple[Any, ...]]:
        self._asked.append((question, values))
        return self._asking.each(question, *values)


@pytest.fixture
def asked(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[object, ...]]]:
    """Every question that the ledger asks its database from now on, with its values."""
    database, found = ledger._database, list[tuple[str, tuple[object, ...]]]()
    real = database.asking
    monkeypatch.setattr(database, "asking", lambda *, patience_s: _Listened(real(patience_s=patience_s), found))
    return found
