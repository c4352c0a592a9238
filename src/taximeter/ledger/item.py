"""An entry on its way to where it is kept, and whoever waits for it.

Owns: that each entry is made once, and that its future is answered once. Refuses to know: threads and files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from taximeter.errors import LedgerError
from taximeter.ledger.database import as_ledger_error
from taximeter.ledger.keeper import Fate
from taximeter.ledger.spool import Place
from taximeter.ledger.transactions import Entry

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Item:
    """`make` takes too long for whoever hands it in. `is_journaled` says that the journal is enough for who waits;
    `place` is where in it the entry is, if it is there."""

    make: Callable[[], Entry]
    is_receipt: bool
    is_journaled: bool
    done: Future[None] = field(default_factory=Future[None])
    entry: Entry | None = None
    place: Place | None = None
    fate: Fate | None = None

    def __post_init__(self) -> None:
        # Running from the start: whoever waits may be cancelled, what was accepted is written all the same.
        self.done.set_running_or_notify_cancel()

    def made(self, name: str) -> Entry | None:
        """The entry; None when it cannot be made, and then its fate says why. `name` is the ledger's."""
        if self.entry is None and self.fate is None:
            try:
                self.entry = self.make()
            except Exception as error:  # noqa: BLE001 - its batch mates must not suffer for it
                self.fate = as_ledger_error(error, name)
        return self.entry

    def tell(self) -> None:
        """Answer with the fate. Who was told of the journal can be told nothing more: then it stands in the log."""
        error = self.fate if isinstance(self.fate, LedgerError) else None
        if self.done.done():
            if error is not None:
                _log.error("LOST, although it was in the journal: %s", error)
        elif error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)
