"""A database that is away while its ledger is opened.

Owns: the session that stands in for one until the database comes, and that the first real one gets it ready. Refuses to
know: what that takes, and who keeps what until then: to a keeper it is an outage like any other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, NoReturn

from taximeter.errors import LedgerError
from taximeter.ledger.database import Asking, Away, Database, Living, Session

if TYPE_CHECKING:
    import sqlalchemy as sa

    from taximeter.ledger.native_rows import Insertion, Piece

_log = logging.getLogger(__name__)

# What no waiting mends. A server that answers says FATAL for all that it does not like, and also while it comes up.
_MISTAKES: Final = ("readonly", "unable to open", "permission denied", "not a database", "malformed", "fatal:")
_FOR_A_MOMENT: Final = (
    "starting up",
    "shutting down",
    "recovery",
    "not yet accepting",
    "too many",
    "slots are reserved",
)


def may_come_back(error: Away) -> bool:
    """Whether the database is away, rather than not as somebody believes it to be."""
    said = error.message.lower()
    return any(sign in said for sign in _FOR_A_MOMENT) or not any(sign in said for sign in _MISTAKES)


class NoSession:
    """A `Session` with a database that has not come yet: whatever it is asked, the database is `away`."""

    usable = False

    def __init__(self, away: Away) -> None:
        self._away = away

    def be_patient(self, patience_s: float | None) -> None:
        """Nobody waits for it."""

    def ask(self, question: str, *values: object) -> list[tuple[Any, ...]]:
        self._fail(question, values)

    def tell(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        self._fail(statement, rows)

    def tell_columns(self, told: Insertion, last: Sequence[Piece]) -> bool:
        self._fail(told, last)

    def transaction(self, *, durable: bool = True) -> AbstractContextManager[None]:
        self._fail(durable)

    def savepoint(self) -> AbstractContextManager[None]:
        self._fail()

    def describe(self) -> AbstractContextManager[sa.Connection]:
        self._fail()

    def close(self) -> None:
        """There is nothing to let go of."""

    def _fail(self, *_asked: object) -> NoReturn:
        raise Away(self._away.message, hint=self._away.hint)


class LateDatabase:
    """A `Database` whose first session is given to `get_ready` before anybody else has it. What is wrong with the
    database itself (it is another program's, or a newer version's) is logged once, and then it is away."""

    def __init__(self, database: Database, get_ready: Callable[[Session], None]) -> None:
        self.name = database.name
        self.folder = database.folder
        self.is_on_this_disk = database.is_on_this_disk
        self._database = database
        self._get_ready = get_ready
        self._is_ready = False
        self._told: str | None = None

    def session(self, *, patience_s: float | None, for_many: bool = False) -> Session:
        session = self._database.session(patience_s=patience_s, for_many=for_many)
        if self._is_ready:
            return session
        try:
            session.be_patient(None)  # to bring tables up to date takes as long as it takes
            self._get_ready(session)
            session.be_patient(patience_s)
        except BaseException as error:
            session.close()
            if isinstance(error, Away) or not isinstance(error, LedgerError):
                raise
            if error.message != self._told:
                self._told = error.message
                _log.exception("the database is there, and cannot be used; receipts stay in the spool")
            raise Away(error.message, hint=error.hint) from error
        self._is_ready = True
        return session

    def opening(self, session: Session) -> AbstractContextManager[None]:
        return self._database.opening(session)

    def join(
        self, writer_id: str, here: Living, bury: Callable[[Session, str], None]
    ) -> AbstractContextManager[Living]:
        return self._database.join(writer_id, here, bury)

    def tables(self, session: Session) -> set[str]:
        return self._database.tables(session)

    def asking(self, *, patience_s: float) -> Asking:
        return self._database.asking(patience_s=patience_s)
