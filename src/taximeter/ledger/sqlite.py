"""SQLite: the ledger is one file.

Owns: how connections to the file are set up, and what its errors mean. Refuses to know: tables.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from taximeter.ledger import native_rows
from taximeter.ledger.database import Asking, Away, Living, Refused, Session, away, refused
from taximeter.ledger.log_copying import LogCopying

if TYPE_CHECKING:
    import sqlalchemy as sa

_decode_numbers = msgspec.json.Decoder(list[int]).decode
_FOR_EVER_S = 1_000_000.0
_PAGE_BYTES = 8 << 10  # of a file that is made: to write many receipts takes a sixth less than in pages of 4 kB
_MANY_KIB = 64 << 10
# What is wrong with one entry; all other errors are the file's.
_OF_AN_ENTRY = frozenset(
    {sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE}
)


class Sqlite:
    """A file, and the folder for locks and spools beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        self.folder = path.with_name(f"{path.name}-writers")
        self.is_on_this_disk = True

    def session(self, *, patience_s: float | None, for_many: bool = False) -> Session:
        return SqliteSession(self.path, patience_s=patience_s, for_many=for_many)

    def opening(self, session: Session) -> nullcontext[None]:  # noqa: ARG002 - the lock in the folder is enough here
        return nullcontext()

    def join(
        self,
        writer_id: str,  # noqa: ARG002 - it has the lock in the folder already
        here: Living,
        bury: Callable[[Session, str], None],  # noqa: ARG002 - whoever opens the file does
    ) -> nullcontext[Living]:
        return nullcontext(here)

    def tables(self, session: Session) -> set[str]:
        return {name for (name,) in session.ask("SELECT name FROM sqlite_master WHERE type = 'table'")}

    def asking(self, *, patience_s: float) -> Asking:
        return SqliteAsking(self.path, patience_s=patience_s)


def connect(path: Path, *, patience_s: float | None, writes: bool) -> sqlite3.Connection:
    """A connection to the file, which threads may hand to each other. One that does not write cannot."""
    timeout_s = _FOR_EVER_S if patience_s is None else patience_s
    connection = sqlite3.connect(path, timeout=timeout_s, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        if writes:
            connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")  # says nothing to a file that has pages
            connection.execute("PRAGMA journal_mode = WAL")
        else:
            connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


class SqliteAsking:
    """A connection that asks."""

    usable = True

    def __init__(self, path: Path, *, patience_s: float) -> None:
        self._path = path
        with _border(path):
            self._connection = connect(path, patience_s=patience_s, writes=False)

    @contextmanager
    def snapshot(self) -> Generator[None]:
        with _border(self._path):
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.execute("ROLLBACK")

    def ask(self, question: str, *values: object) -> list[tuple[Any, ...]]:
        with _border(self._path):
            return self._connection.execute(question, values).fetchall()

    def each(self, question: str, *values: object) -> Iterator[tuple[Any, ...]]:
        with _border(self._path), closing(self._connection.execute(question, values)) as rows:
            yield from rows

    def joined(self, column: str) -> str:
        return f"group_concat({column}, ',')"

    def numbers(self, joined: Any) -> list[int]:
        return _decode_numbers(f"[{joined}]")  # a third of the time that rows would take

    def close(self) -> None:
        self._connection.close()


class SqliteSession:
    """A connection that writes."""

    def __init__(self, path: Path, *, patience_s: float | None, for_many: bool = False) -> None:
        self._path = path
        self._patience_s = patience_s
        self._synchronous: str | None = None
        self._takes_columns = False
        self._copying: LogCopying | None = None
        with _border(self._path), native_rows.known_to_new_connections() if for_many else nullcontext():
            self._connection = connect(path, patience_s=patience_s, writes=True)
            if for_many:
                self._takes_columns = native_rows.are_known(self._connection)
                # Ids come in no order of time, so a batch changes pages all over their indexes. What does not fit into
                # memory is written to the log, and read back from there, several times in one transaction.
                self._connection.execute(f"PRAGMA cache_size = -{_MANY_KIB}")
                # Its numbers of forms are of the same transaction, and were looked for in there.
                self._connection.execute("PRAGMA foreign_keys = OFF")
                self._connection.execute("PRAGMA wal_autocheckpoint = 0")
                self._copying = LogCopying(path)

    @property
    def usable(self) -> bool:
        return True

    def be_patient(self, patience_s: float | None) -> None:
        if patience_s != self._patience_s:
            self._patience_s = patience_s
            timeout_s = _FOR_EVER_S if patience_s is None else patience_s
            self._connection.execute(f"PRAGMA busy_timeout = {round(timeout_s * 1_000)}")

    def ask(self, question: str, *values: object) -> list[tuple[Any, ...]]:
        with _border(self._path):
            return self._connection.execute(question, values).fetchall()

    def tell(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        with _border(self._path):
            self._connection.executemany(statement, rows)

    def tell_columns(self, told: native_rows.Insertion, last: Sequence[native_rows.Piece]) -> bool:
        if self._takes_columns:
            with _border(self._path):
                native_rows.insert(self._connection, told, last)
        return self._takes_columns

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Generator[None]:
        # FULL syncs the log at every commit: a receipt survives a power cut too. docs/ledger.md has what that costs.
        # NORMAL leaves that to the next FULL one: what it wrote is the system's by then, whatever becomes of us.
        synchronous = "FULL" if durable else "NORMAL"
        with _border(self._path):
            if synchronous != self._synchronous:
                self._connection.execute(f"PRAGMA synchronous = {synchronous}")
                self._synchronous = synchronous
            if self._copying is not None:
                self._copying.make_way()
            # Takes the lock to write as it begins, so that waiting for that is patience's business and never an error
            # half-way.
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            finally:
                self._roll_back()
            if self._copying is not None:
                self._copying.begin()

    @contextmanager
    def savepoint(self) -> Generator[None]:
        with _border(self._path):
            self._connection.execute("SAVEPOINT entry")
            try:
                yield
            except BaseException:
                if self._connection.in_transaction:  # a full disk ends all of it by itself
                    self._connection.execute("ROLLBACK TO entry")
                raise
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("RELEASE entry")

    @contextmanager
    def describe(self) -> Generator[sa.Connection]:
        import sqlalchemy as sa  # noqa: PLC0415  # only a migration needs it

        engine = sa.create_engine("sqlite://", creator=lambda: self._connection, poolclass=sa.StaticPool)
        with _border(self._path), engine.begin() as described:
            described.exec_driver_sql("BEGIN IMMEDIATE")
            yield described

    def close(self) -> None:
        if self._copying is not None:
            self._copying.close()
        self._connection.close()

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


@contextmanager
def _border(path: Path) -> Generator[None]:
    """Errors of the file leave as the ledger's."""
    try:
        yield
    except (Away, Refused):
        raise
    except (sqlite3.Error, OSError) as error:
        raise _named(error, str(path)) from error


def _named(error: sqlite3.Error | OSError, name: str) -> Away | Refused:
    """Whose turn it is: nearly everything is about the file as a whole."""
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(code, int):
        return refused(error, name) if code & 0xFF in _OF_AN_ENTRY else away(error, name)
    # Without a code it comes from the driver, about a value.
    return away(error, name) if isinstance(error, (OSError, sqlite3.OperationalError)) else refused(error, name)
