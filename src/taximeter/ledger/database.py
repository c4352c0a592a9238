"""The file: from a URL to connections, and from the database's errors to ours.

Owns: where a ledger lies, how its connections are set up, what its failures are called. Refuses to know: tables.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from taximeter.errors import ConfigError, LedgerError

_SQLITE = "sqlite://"


def ledger_path(url: str) -> Path | None:
    """The file that `url` names: `sqlite:///relative`, `sqlite:////absolute`, or a plain path. None for `sqlite://`, a
    ledger that nobody keeps. Raises ConfigError for any other URL, and never repeats it: it may hold a password."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme != "sqlite":
        raise ConfigError(
            f"a ledger cannot be kept at a {scheme[:20]}:// URL",
            hint="sqlite:///path/to/ledger.db or a plain path",
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
    # Resolved, because the locks beside the file must be the same ones by whatever name it is opened.
    return Path(path).expanduser().resolve()


def connect(path: Path, *, busy_timeout_s: float, writes: bool) -> sqlite3.Connection:
    """A connection to the file, which threads may hand to each other. One that does not write cannot. Transactions are
    begun by `transaction`, or whoever uses it."""
    connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        if writes:
            connection.execute("PRAGMA journal_mode = WAL")
            # Sync the log at every commit: a receipt survives a power cut too. docs/ledger.md has what that costs.
            connection.execute("PRAGMA synchronous = FULL")
        else:
            connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Generator[None]:
    """All of what is done inside, or nothing of it. Takes the lock to write as it begins, so that waiting for that is
    the busy timeout's business and never an error half-way."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:  # a full disk ends one by itself
            connection.execute("ROLLBACK")


@contextmanager
def border(path: Path) -> Generator[None]:
    """Errors of the database and of the file system leave as LedgerError."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise as_ledger_error(error, path) from error


def as_ledger_error(error: Exception, path: Path) -> LedgerError:
    """What went wrong with the ledger at `path`, without the statement: its values are somebody's data."""
    if isinstance(error, LedgerError):
        return error
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error).partition("\n")[0]
    hint = next((hint for sign, hint in _HINTS.items() if sign in said.lower()), None)
    return LedgerError(f"the ledger {path} failed: {said}", hint=hint)


_HINTS = {
    "locked": "another program holds it; close that one, or wait until it is done",
    "disk is full": "make room on its disk",
    "file too large": "make room on its disk",
    "readonly": "it must be writable, and so must its folder",
    "unable to open": "it must be writable, and so must its folder",
    "permission denied": "it must be writable, and so must its folder",
    "not a database": "it is no ledger; name another file",
    "malformed": "it is damaged; keep a copy, then try `sqlite3 FILE .recover`",
}
