"""Where entries are kept: in the database while it takes them, on this machine's disk while it does not.

Owns: noticing that the database is away, and the thread that then tries it again and drains the spool, in order, until
it has caught up. Refuses to know: queues and futures.

While the database is here, whoever calls `keep` writes to it. When it fails as a whole (`Away`), everything goes to the
spool from then on, because what comes later must not overtake; the drainer has the database's session. It hands the
session back at a moment when the spool is empty: it takes the last few entries across while nobody can add any.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from enum import Enum

from taximeter.errors import LedgerError
from taximeter.ledger.database import Away, Database, Refused, Session
from taximeter.ledger.spool import Chunk, Spool
from taximeter.ledger.transactions import Entry, write, write_one

_log = logging.getLogger(__name__)

_CHUNK = 500
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
# Longer than for traffic: a drainer keeps nobody waiting, and a slow server must be able to take what it missed.
_DRAINER_PATIENCE_S = 5.0


class Kept(Enum):
    """Where an entry is durable."""

    WRITTEN = "in the database"
    SPOOLED = "in the spool"


Fate = Kept | LedgerError


class Keeper:
    """Keeps entries, one batch at a time; safe to use from many threads.

    `patience_s` is how long the database may take before the spool takes over. `on_drained` is told how many of the
    receipts that were spooled have been written, and how many refused.
    """

    def __init__(
        self,
        database: Database,
        session: Session,
        spool: Spool,
        *,
        patience_s: float,
        on_drained: Callable[[int, int], None],
    ) -> None:
        self._database = database
        self._session = session
        self._spool = spool
        self._patience_s = patience_s
        self._on_drained = on_drained
        self._keeping = threading.Lock()
        self._away: Away | None = None
        self._drainer: threading.Thread | None = None
        self._closing = threading.Event()
        session.be_patient(patience_s)

    @property
    def away(self) -> Away | None:
        """Why the database takes nothing just now; None when it does."""
        return self._away

    def keep(self, entries: Sequence[Entry]) -> list[Fate]:
        """Write `entries` to the database or to the spool; what became of each. An error is of one entry, which is
        then nowhere."""
        with self._keeping:
            if self._away is None:
                try:
                    errors = write_all(self._session, entries)
                except Away as error:
                    self._go_away(error)
                else:
                    return [error or Kept.WRITTEN for error in errors]
            return [error or Kept.SPOOLED for error in self._spool.append(entries)]

    def stop(self) -> Session | None:
        """Try once more to drain what is spooled; what cannot be stays there. The session, if the database is here."""
        self._closing.set()
        if self._drainer is not None:
            self._drainer.join()
        return self._session if self._away is None else None

    def close(self) -> None:
        """Let go of everything. Only after `stop`."""
        self._spool.close()
        self._session.close()

    def _go_away(self, error: Away) -> None:
        _log.warning("receipts go to the spool from now on: %s", error)
        self._away = error
        self._drainer = threading.Thread(target=self._drain, name="ledger-drainer", daemon=True)
        self._drainer.start()

    def _drain(self) -> None:
        pause_s = _FIRST_PAUSE_S
        last = False
        while not last:
            last = self._closing.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            try:
                # At the end nobody may be held up for long by a database that hangs.
                self._take_across(self._patience_s if last else _DRAINER_PATIENCE_S)
            except Away:
                continue
            except Exception:  # noqa: BLE001 - whatever it is, what is spooled must be tried again
                _log.exception("draining the spool failed; it is tried again")
                continue
            return

    def _take_across(self, patience_s: float) -> None:
        """Everything that is spooled, then give the session back. Raises Away."""
        if not self._session.usable:
            self._session.close()
            self._session = self._database.session(patience_s=patience_s)
        self._session.be_patient(patience_s)
        while (chunk := self._spool.front(_CHUNK)) and len(chunk.entries) == _CHUNK:
            self._move(chunk)
        with self._keeping:
            self._session.be_patient(self._patience_s)
            while chunk := self._spool.front(_CHUNK):
                self._move(chunk)
            self._away = None
        _log.warning("the database takes receipts again, and all that were spooled")

    def _move(self, chunk: Chunk) -> None:
        written, refused = drain(self._session, chunk)
        self._spool.drop(chunk)
        self._on_drained(written, refused)


def drain(session: Session, chunk: Chunk) -> tuple[int, int]:
    """Write what was spooled; how many receipts of it are there now, and how many were refused. Raises Away."""
    errors = write_all(session, chunk.entries)
    refused = 0
    for entry, error in zip(chunk.entries, errors, strict=True):
        if error is not None:
            _log.error("spooled, and refused by the database: %s", error)
            refused += entry.is_receipt
    return sum(entry.is_receipt for entry in chunk.entries) - refused, refused


def write_all(session: Session, entries: Sequence[Entry]) -> list[LedgerError | None]:
    """All of `entries` in one transaction, without those that are refused; why each of them is. Raises Away."""
    durable = any(entry.durable for entry in entries)
    try:
        with session.transaction(durable=durable):
            write(session, entries)
        return [None] * len(entries)
    except Refused:
        pass  # some entry of it: find out which, and write the others
    errors: list[LedgerError | None] = []
    with session.transaction(durable=durable):
        for entry in entries:
            try:
                write_one(session, entry)
            except Away:
                raise
            except LedgerError as error:
                errors.append(error)
            else:
                errors.append(None)
    return errors
