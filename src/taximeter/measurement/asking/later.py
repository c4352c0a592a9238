"""Receipts that are written when a level is over.

Owns: what was sent, kept in memory until somebody has time for it. Refuses to know: ledgers and prices. To settle and
write a receipt takes a thousandth of a second of the one thread that stamps arrivals, and the ledger's own thread may
hold it up for several: under load that would be seen in the figures. Processes that only send have no ledger at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from taximeter.measurement.asking.asker import Bookkeeper, Sent
from taximeter.measurement.asking.wire import Question
from taximeter.records import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One request that is over; its question without the body."""

    question: Question
    sent: Sent


class Later:
    """A `Bookkeeper` that keeps everything."""

    def __init__(self) -> None:
        self._asked: dict[str, Question] = {}
        self.notes: list[Note] = []

    def begun(self, request: Request, question: Question) -> None:
        """See `asking.Bookkeeper`."""
        self._asked[request.id] = replace(question, body=b"")

    def keep(self, sent: Sent) -> str | None:
        """See `asking.Bookkeeper`. There is no receipt yet, and so no id of one."""
        self.notes.append(Note(question=self._asked.pop(sent.request.id), sent=sent))
        return None


def tell(books: Bookkeeper, notes: Iterable[Note]) -> None:
    """Tell the books what they would have heard, in the order of time, whoever sent it."""
    events: list[tuple[int, int, str, Note]] = []
    for note in notes:
        request = note.sent.request
        events += [(request.received_ns, 0, request.id, note), (note.sent.ended_ns, 1, request.id, note)]
    for _, is_end, _, note in sorted(events, key=lambda event: event[:3]):
        if is_end:
            books.keep(note.sent)
        else:
            books.begun(note.sent.request, note.question)
