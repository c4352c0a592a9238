"""What a database is to the ledger: sessions that ask, tell and commit, and errors that say whose turn it is.

Owns: the protocol that SQLite (`sqlite`) and Postgres (`postgres`) fulfil, which of them a URL names, and the two ways
in which one fails: as a whole (`Away`) or for one entry (`Refused`). Refuses to know: tables.

Statements are plain SQL with `?` for each value, in the words that both databases have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from taximeter.errors import ConfigError, LedgerError

if TYPE_CHECKING:
    import sqlalchemy as sa

    from taximeter.ledger.native_rows import Insertion, Piece

_MOST_VALUES = 500
_Value = TypeVar("_Value")
_POSTGRES = ("postgresql", "postgres", "postgresql+psycopg")


class Away(LedgerError):
    """The database as a whole takes nothing just now: locked, full, gone. What was to be written may be later."""


class Refused(LedgerError):
    """The database will never take this entry, and has nothing against others."""


class Asking(Protocol):
    """A connection that only asks, used by one thread at a time. What fails raises `Away` or `Refused`."""

    @property
    def usable(self) -> bool:
        """Whether the next question can be asked of it; else a new one is needed."""
        ...

    def snapshot(self) -> AbstractContextManager[None]:
        """All that is asked inside is of one moment."""
        ...

    def ask(self, question: str, *values: object) -> list[tuple[Any, ...]]:
        """All rows of the answer. Times are text (see `sql.instant`)."""
        ...

    def each(self, question: str, *values: object) -> Iterator[tuple[Any, ...]]:
        """The same row by row, for who may need the first few only."""
        ...

    def joined(self, column: str) -> str:
        """What says in SQL: all values of a column of numbers that are known, as one value (see `numbers`)."""
        ...

    def numbers(self, joined: Any) -> list[int]:
        """Those that such a value has."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Session(Protocol):
    """One connection that writes, used by one thread at a time. What fails raises `Away` or `Refused`."""

    @property
    def usable(self) -> bool:
        """Whether trying again can help; else a new session is needed."""
        ...

    def be_patient(self, patience_s: float | None) -> None:
        """How long one call may take from now on before the database counts as away; None is as long as it takes. Only
        between transactions."""
        ...

    def ask(self, question: str, *values: object) -> list[tuple[Any, ...]]:
        """All rows of the answer. Times are text."""
        ...

    def tell(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """The statement once for each row of values."""
        ...

    def tell_columns(self, told: Insertion, last: Sequence[Piece]) -> bool:
        """Insert many rows by columns, of which `last` is the last. False where the database takes none: then nothing
        was done."""
        ...

    def transaction(self, *, durable: bool = True) -> AbstractContextManager[None]:
        """All of what is done inside, or nothing of it; one at a time in all processes. What is not `durable` survives
        the end of any process here, and may not survive a power cut until something durable follows."""
        ...

    def savepoint(self) -> AbstractContextManager[None]:
        """A part of a transaction that is undone alone when it fails."""
        ...

    def describe(self) -> AbstractContextManager[sa.Connection]:
        """The session as the library of the migrations has it, in a transaction that is committed at the end."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Living(Protocol):
    """Which of the writers that left notes in the database are alive."""

    def take_over(self, writer_id: str) -> AbstractContextManager[bool]:
        """Whether `writer_id` is dead, and ours to clear up after until the end of the context."""
        ...


class Database(Protocol):
    """Where a ledger is kept. `name` is how messages call it, without a password; `folder` is on this machine, for what
    a process has beside the database: its lock, and what it could not write yet. `is_on_this_disk` says whether what is
    in the folder is as safe as what is in the database."""

    name: str
    folder: Path
    is_on_this_disk: bool

    def session(self, *, patience_s: float | None, for_many: bool = False) -> Session:
        """A new session that writes; `for_many` receipts at a time, it takes the memory which that needs."""
        ...

    def opening(self, session: Session) -> AbstractContextManager[None]:
        """One process at a time, on all machines: to migrate."""
        ...

    def join(
        self, writer_id: str, here: Living, bury: Callable[[Session, str], None]
    ) -> AbstractContextManager[Living]:
        """Be alive as `writer_id` until the end of the context, and see who else is. `here` sees those of this machine;
        where there are others, their dead may be buried at any time: `bury` is given a session for it, and a name."""
        ...

    def tables(self, session: Session) -> set[str]:
        """The names of all tables that are there."""
        ...

    def asking(self, *, patience_s: float) -> Asking:
        """A new connection for questions, none of which takes longer to begin than `patience_s`."""
        ...


def database_at(url: str, *, spool: Path | None) -> Database | None:
    """The database that `url` names: `sqlite:///relative`, `sqlite:////absolute`, a plain path, or
    `postgresql://user:password@host/database`, whose spool is kept in the folder `spool`. None for `sqlite://`, a
    ledger that nobody keeps. Raises ConfigError for any other URL, and never repeats it: it may hold a password."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme in _POSTGRES:
        from taximeter.ledger.postgres import Postgres  # noqa: PLC0415  # who keeps a file need not have its driver

        return Postgres(f"postgresql://{rest}", spool=spool)
    if separator and scheme != "sqlite":
        raise ConfigError(
            f"a ledger cannot be kept at a {scheme[:20]}:// URL",
            hint="sqlite:///path/to/ledger.db, a plain path, or postgresql://user@host/database",
        )
    if not separator:
        path = url
    elif rest in ("", "/", "/:memory:"):
        return None
    elif rest.startswith("/") and "?" not in rest:
        path = rest[1:]
    else:
        raise ConfigError("the ledger's URL takes three slashes and no options", hint="sqlite:///path/to/ledger.db")
    if path == ":memory:":
        return None
    if not path or "\0" in path:
        raise ConfigError("the ledger's URL names no file", hint="sqlite:///path/to/ledger.db")
    from taximeter.ledger.sqlite import Sqlite  # noqa: PLC0415  # it knows this module

    # Resolved, because the locks beside the file must be the same ones by whatever name it is opened.
    return Sqlite(Path(path).expanduser().resolve())


def batches(values: Sequence[_Value]) -> Iterator[Sequence[_Value]]:
    """As many values at a time as one statement takes."""
    return (values[first : first + _MOST_VALUES] for first in range(0, len(values), _MOST_VALUES))


def first_line(error: Exception) -> str:
    """What went wrong, without what follows: values of a statement are somebody's data."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error).partition("\n")[0]
    return said or type(error).__name__


def as_ledger_error(error: Exception, name: str) -> LedgerError:
    """What went wrong with the ledger called `name`."""
    if isinstance(error, LedgerError):
        return error
    return LedgerError(f"the ledger {name} failed: {first_line(error)}", hint=hint_for(error))


def away(error: Exception, name: str) -> Away:
    """That the ledger called `name` takes nothing, and why."""
    return Away(f"the ledger {name} failed: {first_line(error)}", hint=hint_for(error))


def refused(error: Exception, name: str) -> Refused:
    """That the ledger called `name` does not take one entry, and why."""
    return Refused(f"the ledger {name} failed: {first_line(error)}", hint=hint_for(error))


def hint_for(error: Exception) -> str | None:
    """What to do about it, where that is known."""
    said = first_line(error).lower()
    return next((hint for sign, hint in _HINTS.items() if sign in said), None)


_HINTS = {
    "locked": "another program holds it; close that one, or wait until it is done",
    "disk is full": "make room on its disk",
    "no space left": "make room on its disk",
    "file too large": "make room on its disk",
    "readonly": "it must be writable, and so must its folder",
    "read-only": "it must be writable, and so must its folder; a copy elsewhere can be read: TAXIMETER_LEDGER=COPY",
    "unable to open": "it must be writable, and so must its folder",
    "permission denied": "it must be writable, and so must its folder",
    "not a database": "it is no ledger; name another file",
    "malformed": "it is damaged; keep a copy, then try `sqlite3 FILE .recover`",
    "connection refused": "is Postgres running there?",
    "password": "see its user and password",
}
