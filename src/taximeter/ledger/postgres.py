"""Postgres: one ledger for gateways on several machines.

Owns: how sessions with the server are set up and given up, what its errors mean, and the locks by which processes see
that one of them has died. Refuses to know: tables, but for whose notes lie in one.

The lock of a writer is an advisory one of a session of its own, which the server frees when the session ends, however
it ends. That session may also be lost while its process lives (the server is restarted, the network is away): then the
process takes the lock again as soon as it can. Should somebody have found it free meanwhile, the receipts written in
its place are corrected when the true ones come (`transactions`).
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import weakref
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from taximeter.errors import ConfigError, LedgerError
from taximeter.ledger.database import Asking, Away, Living, Refused, Session, away, refused
from taximeter.ledger.transactions import writers_with_notes

try:
    import psycopg
    from psycopg import conninfo
    from psycopg.adapt import Loader
    from psycopg.rows import TupleRow
except ImportError as missing:
    raise ConfigError(
        "a ledger in Postgres needs its driver, which is not installed", hint="pip install 'taximeter[postgres]'"
    ) from missing

if TYPE_CHECKING:
    import sqlalchemy as sa

    from taximeter.ledger.native_rows import Insertion, Piece

_log = logging.getLogger(__name__)

_CONNECT_PATIENCE_S = 5
# Sums of a hundred columns look dear to its planner, and compiling them takes longer than they do. Old servers have no
# such setting.
_NOT_COMPILED = "SELECT set_config(name, 'off', false) FROM pg_settings WHERE name = 'jit'"
# In the server, so that nothing is left waiting there for somebody who has gone.
_LOCK_PATIENCE_MS = 10_000
SWEEP_EVERY_S = 15.0
_OURS = 0x5441_584D  # "TAXM": the first half of the names of locks that are not about one writer
_OPENING, _WRITING = 1, 2
# By the first two characters of SQLSTATE: what was said is wrong, breaks a rule, or is too long. All else is about the
# server, or about the ledger's tables as a whole.
_OF_AN_ENTRY = frozenset({"21", "22", "23", "54"})


class Postgres:
    """A database, and the folder on this machine for its spools."""

    def __init__(self, url: str, *, spool: Path | None) -> None:
        try:
            given = conninfo.conninfo_to_dict(url)
        except psycopg.Error:
            given = {}
        where = [str(given.get(part) or "") for part in ("host", "port", "dbname", "user", "options")]
        host, port, name, *_ = where
        # Where a password has a sign that should have been quoted, a part of it is taken for something else, and every
        # message of the driver would have that.
        if not given or "@" in host + name or not re.fullmatch(r"[0-9,]*", port):
            raise ConfigError(
                "the ledger's URL cannot be read", hint="postgresql://user:password@host:5432/database, quoted"
            )
        if spool is None:
            raise ConfigError(
                "a ledger in Postgres needs a folder on this machine, for what cannot be written while it is away",
                hint="Ledger.open(url, spool=folder)",
            )
        self._conninfo = conninfo.make_conninfo(
            **cast(dict[str, Any], {"connect_timeout": _CONNECT_PATIENCE_S} | given)
        )
        self.name = f"postgresql://{host}{port and ':'}{port}/{name}"
        self.is_on_this_disk = False
        # What was meant for one database must never be written to another.
        self.folder = spool / f"postgres-{sha256(chr(0).join(where).encode()).hexdigest()[:16]}"

    def session(self, *, patience_s: float | None, for_many: bool = False) -> PostgresSession:  # noqa: ARG002 - it is the server's memory
        return PostgresSession(self.connect(), self, patience_s=patience_s)

    def connect(self) -> Connection:
        """A connection in UTC and UTF-8. Transactions are begun by whoever uses it."""
        with self.border():
            connection = Connection.connect(self._conninfo, autocommit=True, client_encoding="utf-8")
            try:
                connection.execute(
                    f"SET TIME ZONE 'UTC'; SET lock_timeout = {_LOCK_PATIENCE_MS}; {_NOT_COMPILED}".encode()
                )
                if connection.info.parameter_status("server_encoding") != "UTF8":
                    raise LedgerError(f"the database of {self.name} is not in UTF-8", hint="createdb -E UTF8 …")
            except BaseException:
                connection.close()
                raise
            return connection

    @contextmanager
    def border(self) -> Generator[None]:
        """Errors of the driver leave as the ledger's."""
        try:
            yield
        except psycopg.Error as error:
            raise self._named(error) from None  # the cause would say what this leaves out

    @contextmanager
    def opening(self, session: Session) -> Generator[None]:
        session.ask("SELECT pg_advisory_lock(?, ?)", _OURS, _OPENING)
        try:
            yield
        finally:
            if session.usable:
                session.ask("SELECT pg_advisory_unlock(?, ?)", _OURS, _OPENING)

    def tables(self, session: Session) -> set[str]:
        of_ours = "SELECT table_name::text FROM information_schema.tables WHERE table_schema = current_schema()"
        return {name for (name,) in session.ask(of_ours)}

    def asking(self, *, patience_s: float) -> Asking:
        return PostgresAsking(self.connect(), self, patience_s=patience_s)

    @contextmanager
    def join(
        self,
        writer_id: str,
        here: Living,  # noqa: ARG002 - the server sees all of them
        bury: Callable[[Session, str], None],
    ) -> Generator[Presence]:
        presence = Presence(self, writer_id, bury)
        try:
            yield presence
        finally:
            presence.leave()

    def _named(self, error: psycopg.Error) -> Away | Refused:
        state = error.sqlstate
        if state is None:
            of_an_entry = not isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
        else:
            of_an_entry = state[:2] in _OF_AN_ENTRY
        return refused(error, self.name) if of_an_entry else away(error, self.name)


class _AsText(Loader):
    """Times as the text that they are sent as: the ledger's own SQL compares and never computes with them."""

    def load(self, data: Any) -> str:
        return bytes(data).decode()


class Connection(psycopg.Connection[TupleRow]):
    """One whose server may hang: no call takes longer than `patience_s`."""

    patience_s: float | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _open.add(self)

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        return super().wait(gen, interval, self.patience_s if timeout is None else timeout)


_open: weakref.WeakSet[Connection] = weakref.WeakSet()


def _leave_to_the_parent() -> None:
    # A forked child has the sockets too, and its parent's locks would outlive the parent with them.
    for connection in list(_open):
        with suppress(psycopg.Error, OSError):
            os.close(connection.fileno())


os.register_at_fork(after_in_child=_leave_to_the_parent)


@cache
def _their_way(statement: str) -> bytes:
    return statement.replace("%", "%%").replace("?", "%s").encode()


class _Connected:
    """What a connection that writes and one that only asks have in common."""

    def __init__(self, connection: Connection, database: Postgres, *, patience_s: float | None) -> None:
        connection.adapters.register_loader("timestamp", _AsText)
        connection.patience_s = patience_s
        self._connection = connection
        self._database = database

    @property
    def usable(self) -> bool:
        return not self._connection.closed

    def ask(self, question: str, *values: object) -> list[tuple[Any, ...]]:
        with self._border():
            return self._connection.execute(_their_way(question), values).fetchall()

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _border(self) -> Generator[None]:
        try:
            with self._database.border():
                yield
        except Away:
            # Whatever the server was doing, it is told in the surest way that nobody waits for it any longer.
            self._connection.close()
            raise


class PostgresAsking(_Connected):
    """A connection that asks."""

    @property
    def usable(self) -> bool:
        """A question to the server itself: it may have been restarted since the last one."""
        try:
            self.ask("SELECT 1")
        except Away:
            return False
        return True

    @contextmanager
    def snapshot(self) -> Generator[None]:
        with self._border():
            self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                yield
            finally:
                if not self._connection.closed:
                    self._connection.execute("ROLLBACK")

    def each(self, question: str, *values: object) -> Iterator[tuple[Any, ...]]:
        yield from self.ask(question, *values)  # all of it is sent in any case

    def joined(self, column: str) -> str:
        return f"string_agg(int8send({column}), '')"

    def numbers(self, joined: Any) -> list[int]:
        found = array("q", joined)
        if sys.byteorder == "little":
            found.byteswap()
        return found.tolist()


class PostgresSession(_Connected):
    """A connection that writes."""

    def be_patient(self, patience_s: float | None) -> None:
        self._connection.patience_s = patience_s

    def tell(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        told = list(rows)
        if not told:
            return
        with self._border(), self._connection.cursor() as cursor:
            if len(told) == 1:
                cursor.execute(_their_way(statement), told[0])
            else:
                cursor.executemany(_their_way(statement), told)

    def tell_columns(self, told: Insertion, last: Sequence[Piece]) -> bool:  # noqa: ARG002 - its driver takes rows only
        return False

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Generator[None]:
        with self._border():
            # One writer at a time, as in SQLite: rollups of an hour are few rows that everybody adds to, and what is
            # taken in one order by some and in another by others ends in a deadlock.
            begin = (
                f"BEGIN; SET LOCAL synchronous_commit = {'on' if durable else 'off'};"
                f" SELECT pg_advisory_xact_lock({_OURS}, {_WRITING})"
            )
            self._connection.execute(begin.encode())
            try:
                yield
                self._connection.execute("COMMIT")
            finally:
                if not self._connection.closed and self._connection.info.transaction_status != _IDLE:
                    self._connection.execute("ROLLBACK")

    @contextmanager
    def savepoint(self) -> Generator[None]:
        with self._border():
            self._connection.execute("SAVEPOINT entry")
            try:
                yield
            except BaseException:
                if not self._connection.closed:
                    self._connection.execute("ROLLBACK TO entry")
                raise
            finally:
                if not self._connection.closed:
                    self._connection.execute("RELEASE entry")

    @contextmanager
    def describe(self) -> Generator[sa.Connection]:
        import sqlalchemy as sa  # noqa: PLC0415  # only a migration needs it

        # A connection of its own: the library has its own ways with transactions.
        connection = self._database.connect()
        connection.autocommit = False
        engine = sa.create_engine("postgresql+psycopg://", creator=lambda: connection, poolclass=sa.StaticPool)
        try:
            with self._border(), engine.begin() as described:
                yield described
        finally:
            engine.dispose()
            connection.close()


_IDLE = psycopg.pq.TransactionStatus.IDLE


def _lock_of(writer_id: str) -> int:
    """The name of a writer's lock: 64 bits of its hash."""
    return int.from_bytes(sha256(writer_id.encode()).digest()[:8], signed=True)


class Presence:
    """That this process lives, as the others see it; and a look now and then at who of them does not."""

    def __init__(self, database: Postgres, writer_id: str, bury: Callable[[Session, str], None]) -> None:
        self._database = database
        self._writer_id = writer_id
        self._bury = bury
        self._session: PostgresSession | None = None
        self._suspects: set[str] = set()
        self._using = threading.RLock()
        self._left = threading.Event()
        self._join()
        self._thread = threading.Thread(target=self._watch, name="ledger-presence", daemon=True)
        self._thread.start()

    @contextmanager
    def take_over(self, writer_id: str) -> Generator[bool]:
        """See `Living`."""
        with self._using:
            session = self._join()
            dead = bool(session.ask("SELECT pg_try_advisory_lock(?)", _lock_of(writer_id))[0][0])
            try:
                yield dead and writer_id != self._writer_id
            finally:
                if dead and session.usable:
                    session.ask("SELECT pg_advisory_unlock(?)", _lock_of(writer_id))

    def sweep(self) -> None:
        """Bury who has left notes, and whose lock was free the last time too: a process that lost its session has that
        long to come back."""
        with self._using:
            free: set[str] = set()
            for writer_id in writers_with_notes(self._join()) - {self._writer_id}:
                with self.take_over(writer_id) as dead:
                    if dead and writer_id in self._suspects:
                        self._bury(self._join(), writer_id)
                    elif dead:
                        free.add(writer_id)
            self._suspects = free

    def leave(self) -> None:
        """Be alive no longer."""
        self._left.set()
        self._thread.join()
        if self._session is not None:
            self._session.close()

    def _join(self) -> PostgresSession:
        """The session that holds our lock, a new one if the old one is lost."""
        if self._session is None or not self._session.usable:
            session = self._database.session(patience_s=_LOCK_PATIENCE_MS / 1e3 + 1)
            try:
                session.ask("SELECT pg_advisory_lock(?)", _lock_of(self._writer_id))
            except BaseException:
                session.close()
                raise
            self._session = session
        return self._session

    def _watch(self) -> None:
        while not self._left.wait(SWEEP_EVERY_S):
            try:
                self.sweep()
            except Away as error:  # then nobody can see us; the next time
                _log.info("not looking for dead processes: %s", error)
            except Exception:  # noqa: BLE001 - whatever it is, the next look must come
                _log.exception("looking for dead processes failed")
