"""What is done once, when a ledger's database is seen for the first time.

Owns: that tables are up to date, what dead processes of this machine left (spools, journals, losses), and a receipt for
every request whose process died. Refuses to know: who writes and who asks afterwards.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from taximeter.clock import Clock
from taximeter.ledger import migrations
from taximeter.ledger.database import Database, Living, Session
from taximeter.ledger.keeper import drain
from taximeter.ledger.late import LateDatabase
from taximeter.ledger.liveness import WriterLocks
from taximeter.ledger.spool import JOURNAL, SPOOL, Spool, writers_with_spools
from taximeter.ledger.sqlite import Sqlite
from taximeter.ledger.transactions import interrupt, losses, tell_loss, unheard_of, writers_with_notes

_log = logging.getLogger(__name__)

_ADOPTED_CHUNK = 500


class Arrival:
    """What is done once, when the database is seen for the first time: tables are made, the dead's affairs settled, and
    this process joins the living."""

    def __init__(self, database: Database, locks: WriterLocks, writer_id: str, clock: Clock) -> None:
        self.lost_before: int | None = None
        self.living: Living | None = None
        self._database = database
        self._locks = locks
        self._writer_id = writer_id
        self._clock = clock
        self._joined = ExitStack()

    def first_session(self, *, patience_s: float) -> Session:
        """One with the database, which is ready then. Only while `opening`. Raises Away, with nothing left open."""
        session = self._database.session(patience_s=patience_s)
        try:
            self.get_ready(session)
        except BaseException:
            session.close()
            raise
        return session

    def get_ready(self, session: Session) -> None:
        """Do it. Only while `opening`. What was left half done is done again at the next try."""
        lost_before = _get_ready(self._database, session, self._locks, self._clock)
        with ExitStack() as undo:
            bury = partial(_bury, self._clock)
            living = undo.enter_context(self._database.join(self._writer_id, self._locks, bury))
            _bury_the_dead(session, living, self._clock)
            self._joined = undo.pop_all()
        self.lost_before, self.living = lost_before, living

    def awaited(self) -> LateDatabase:
        """The database, which gets ready when it comes."""

        def get_ready(session: Session) -> None:
            with self._locks.opening():
                self.get_ready(session)

        return LateDatabase(self._database, get_ready)

    def leave(self) -> None:
        """Be no longer among those that others see."""
        self._joined.close()


def _get_ready(database: Database, session: Session, locks: WriterLocks, clock: Clock) -> int:
    """Bring the tables up to date, and take over what dead processes of this machine left beside the database; how many
    receipts were lost before."""
    with database.opening(session):
        if not migrations.is_current(session, database):
            if isinstance(database, Sqlite) and not database.tables(session):
                migrations.make_new(session)
            else:
                migrations.upgrade(session)
    for writer_id in locks.known() | writers_with_spools(database.folder):
        lock = locks.claim(writer_id)
        if lock is None:
            continue
        try:
            _adopt(session, database.folder, writer_id, clock)
            if lost := lock.lost + unheard_of(session, lock.in_doubt):
                _log.error("%d receipts were LOST by a process that has ended (%s)", lost, writer_id)
                with session.transaction():
                    tell_loss(session, writer_id, lost, clock.utc_now())
        except BaseException:
            lock.let_go()  # and leave it for the next one
            raise
        # What it had in flight keeps its name in the database; see `_bury_the_dead`.
        locks.leave(lock)
    return losses(session)


def _adopt(session: Session, folder: Path, writer_id: str, clock: Clock) -> None:
    """Write what a dead process left in its journal and in its spool. Some is in the database, or in both: the order in
    which it came is the same in each, and twice is once."""
    for suffix in (JOURNAL, SPOOL):
        _write_left(session, Spool(folder, writer_id, most_bytes=0, suffix=suffix), writer_id, clock)


def _write_left(session: Session, spool: Spool, writer_id: str, clock: Clock) -> None:
    while chunk := spool.front(_ADOPTED_CHUNK):
        written, refused = drain(session, chunk)
        if chunk.damaged:
            _log.warning("%d half-written lines of %s's spool were nobody's", chunk.damaged, writer_id)
        if refused:
            with session.transaction():
                tell_loss(session, f"{writer_id}.spool", refused, clock.utc_now())
        if written:
            _log.warning("%d receipts came from the spool of a process that has ended", written)
        spool.drop(chunk)


def _bury_the_dead(session: Session, living: Living, clock: Clock) -> None:
    """Write the receipts that dead processes left open."""
    for writer_id in writers_with_notes(session):
        with living.take_over(writer_id) as is_dead:
            if is_dead:
                _bury(clock, session, writer_id)


def _bury(clock: Clock, session: Session, writer_id: str) -> None:
    with session.transaction():
        interrupt(session, writer_id, clock.utc_now())
