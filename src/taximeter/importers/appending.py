"""One batch into the ledger: what is new, then corrections of what has grown, then how far its files were read.

Owns: that order, and what becomes of calls that the ledger has already. Refuses to know: formats, prices, and what
comes next.

Of two accounts of a call the one with more tokens is right, for answers grow as they are told: where the ledger has the
smaller one, it is corrected. Files that are read anew for another reason are exceptions. A map is somebody's own
correction, and a table's rows do not grow: all that it says now counts. A newer edition of a reader knows better which
tokens are which. Marks of files come last. Whoever is killed before that reads the files again, and finds what is
there; before the corrections they would say that there is nothing to correct.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from taximeter.importers.logged import known_tokens
from taximeter.importers.once import Entry, without
from taximeter.ledger import Call, FileMark
from taximeter.ledger.batch import Batch
from taximeter.ledger.calls import Calls
from taximeter.records import Receipt, Usage

if TYPE_CHECKING:
    from taximeter.ledger.bulk import Appended


class Anew(StrEnum):
    """Why files are read that were read before, and have not just grown."""

    NOT = "not"
    BY_ANOTHER_EDITION = "by another edition"
    BY_ANOTHER_MAP = "by another map"


class Shelf(Protocol):
    """As much of a ledger as imports need."""

    def append_many(
        self,
        entries: Batch | Sequence[Call | Calls | Receipt],
        files: Sequence[FileMark] = (),
        *,
        dry_run: bool = False,
        durable: bool = True,
    ) -> Appended: ...

    def file_marks(self, source: str) -> Mapping[str, str]: ...

    def receipt(self, name: str) -> Receipt | None: ...


@dataclass(slots=True, kw_only=True)
class Became:
    """What became of a batch: which entries are `new`, and how many calls are best appended together next; the rest is
    as `ImportSummary` has it."""

    new: list[Entry]
    present: int
    through_gateway: int
    most_at_once: int
    corrected: int = 0
    smaller: int = 0
    notes: Counter[str] = field(default_factory=Counter[str])


def append(
    shelf: Shelf,
    batch: Batch,
    entries: Sequence[Entry],
    marks: Sequence[FileMark],
    *,
    dry_run: bool,
    durable: bool,
    anew: Anew = Anew.NOT,
) -> Became:
    """All of it, in two transactions, of which the second is `durable` and the first with it. `batch` has the entries.
    `anew` is why they may be right that have no more tokens than the ledger has. Raises LedgerError when the ledger
    takes nothing."""
    appended = shelf.append_many(batch, dry_run=dry_run, durable=False)
    known = {id_ for id_, _ in appended.refused}
    known.update(appended.present, appended.through_gateway, (call.id for call, _, _ in appended.different))
    became = Became(
        new=without(entries, known),
        present=len(appended.present),
        through_gateway=len(appended.through_gateway),
        most_at_once=appended.most_at_once,
    )
    corrections: list[Call | Receipt] = [*_better(appended, became, anew)]
    corrections += _better_receipts(shelf, appended, entries, became, anew)
    again = shelf.append_many(corrections, marks, dry_run=dry_run, durable=durable)
    became.corrected = again.written
    for _, reason in again.refused:
        became.notes[f"refused by the ledger: {reason}"] += 1
    return became


def _better(appended: Appended, became: Became, anew: Anew) -> list[Call]:
    """Corrections of what the ledger has with fewer tokens."""
    corrections: dict[str, Call] = {}
    for call, newest_id, tokens in appended.different:
        if not _is_better(sum(call.tokens), sum(count or 0 for count in tokens), anew):
            became.smaller += 1
            continue
        other = corrections.get(newest_id)
        if other is None or sum(other.tokens) < sum(call.tokens):
            corrections[newest_id] = call._replace(id=_next_id(newest_id), supersedes=newest_id)
    return list(corrections.values())


def _better_receipts(
    shelf: Shelf, appended: Appended, entries: Sequence[Entry], became: Became, anew: Anew
) -> Iterator[Receipt]:
    """The same for whole receipts, of which the ledger says only that it has others under their names."""
    refused = dict(appended.refused)
    for entry in entries if refused else ():
        if not isinstance(entry, Receipt) or entry.id not in refused:
            continue
        newest = shelf.receipt(entry.request.id)
        if newest is None:
            became.notes[f"refused by the ledger: {refused[entry.id]}"] += 1
        elif _counts(entry.usage) == _counts(newest.usage):
            became.present += 1
        elif _is_better(known_tokens(entry.usage), known_tokens(newest.usage), anew):
            yield replace(entry, id=_next_id(newest.id), supersedes=newest.id)
        elif known_tokens(entry.usage) == known_tokens(newest.usage):
            became.present += 1
        else:
            became.smaller += 1


def _counts(usage: Usage | None) -> object:
    """All that is counted: what else there is of a usage says nothing of it."""
    return None if usage is None else (usage.leaves(), usage.other_units, usage.by_model)


def _is_better(tokens: int, before: int, anew: Anew) -> bool:
    """Whether another account of a call, with so many tokens, is right where the ledger has one with those `before`."""
    return tokens > before or anew is Anew.BY_ANOTHER_MAP or (tokens == before and anew is Anew.BY_ANOTHER_EDITION)


def _next_id(receipt_id: str) -> str:
    """The id of the correction of a receipt: it follows from what is corrected."""
    first, _, number = receipt_id.removeprefix("rcpt_").partition("_")
    return f"rcpt_{first}_{int(number or 1) + 1}"
