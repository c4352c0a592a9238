"""Many receipts, laid out for the ledger before it is their turn.

While one batch is written the next one can be laid out: rows by columns, in the order of their ids, and the sums that
they add to. Owns: that order, and what no row can hold. Refuses to know: what is there already, and transactions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np

from taximeter.ledger import rows
from taximeter.ledger.call_columns import CallColumns, Part
from taximeter.ledger.call_sums import tellings
from taximeter.ledger.calls import Calls, Counts, texts_of
from taximeter.ledger.columns import BELONGING_COLUMNS, PHASE_COLUMNS, RECEIPT_COLUMNS, REPORTED_COLUMN
from taximeter.ledger.forms import Call, Form, derive
from taximeter.ledger.native_rows import Insertion
from taximeter.ledger.rollups import Telling
from taximeter.records import Receipt

_CANNOT_HOLD = "its names, times or numbers are none that a row can hold"
_OF_A_CALL = ("id", "request_id", "received_at", "closed_at", "supersedes", "upstream_request_id")
_NOBODY: Counts = np.empty(0, dtype=np.int64)
_id_of = itemgetter(Call._fields.index("id"))

Entry = Call | Calls | Receipt


@dataclass(slots=True)
class Statement:
    """Calls whose rows one statement writes, as `Part`s of all that can be held, and by columns if that is all of them.
    Their `numbers` follow one on the other in the order of their ids, so that tables and indexes are gone through in
    one direction."""

    numbers: Counts
    calls: list[tuple[Counts, Calls]]
    parts: list[tuple[CallColumns, Part]]
    insertion: Insertion | None


class Batch:
    """`receipts` are to be appended whole. Of the calls, `statements` have all but what is `refused`: ids and
    reasons."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.receipts: list[Receipt] = []
        self._never: list[tuple[str, str]] = []
        self._calls: list[Calls] = []
        single: defaultdict[Form, list[Call]] = defaultdict(list)
        for entry in entries:
            if isinstance(entry, Receipt):
                self.receipts.append(entry)
            elif isinstance(entry, Calls):
                self._calls.append(entry)
            elif entry.supersedes is None:
                single[entry.form].append(entry)
            else:
                self.receipts.append(_receipt_of(entry))
        for form, some in single.items():
            self._calls += self._together(form, some)
        self._first = 0
        self._lay_out()

    @property
    def calls(self) -> Sequence[Calls]:
        """All that came together."""
        return self._calls

    @property
    def joined(self) -> Iterator[Calls]:
        """The same, those together whose forms have one document."""
        return (some for statement in self.statements for _, some in statement.calls)

    def leave_out(self, upstream_request_ids: Collection[str]) -> list[str]:
        """Take out the calls by these names, as if they had not come: their ids."""
        gone: list[str] = []
        left: list[Calls] = []
        for some in self._calls:
            names = some.upstream_request_ids
            places = [place for place, name in enumerate(names) if name in upstream_request_ids]
            gone += texts_of(some.ids[places])
            if len(places) < len(some):
                left.append(some.part(np.delete(np.arange(len(some)), places)) if places else some)
        self._calls = left
        self._lay_out()
        return gone

    def number_from(self, first: int) -> None:
        """The numbers of all its calls begin there."""
        for statement in self.statements:
            statement.numbers += first - self._first  # all that has some of these has them from there
        self._first = first

    def of_numbers(self, numbers: Sequence[int]) -> list[Call]:
        """The calls that go by these numbers, by their ids."""
        found: list[Call] = []
        for theirs, some in chain.from_iterable(each.calls for each in self.statements) if numbers else ():
            found += map(some.call, np.flatnonzero(np.isin(theirs, numbers)).tolist())
        return sorted(found, key=_id_of)

    def numbers(self) -> Counts:
        """All that rows have."""
        return np.concatenate([_NOBODY, *(part.numbers for each in self.statements for _, part in each.parts)])

    def tellings(self, missing: Counts = _NOBODY) -> list[Telling]:
        """What the calls whose numbers are not `missing` add to the sums."""
        return self._of_all if not len(missing) else self._tellings(missing)

    def _tellings(self, missing: Counts) -> list[Telling]:
        parts = chain.from_iterable(statement.parts for statement in self.statements)
        added = (mine.sums(part, missing) for mine, part in parts)
        return tellings([each for each in added if each is not None])

    def _together(self, form: Form, calls: Sequence[Call]) -> list[Calls]:
        """By columns, those that these can hold."""
        try:
            return [Calls.of(form, calls)]
        except ValueError:
            if len(calls) > 1:
                return list(chain.from_iterable(self._together(form, [call]) for call in calls))
            self._never.append((calls[0].id, _CANNOT_HOLD))
            return []

    def _lay_out(self) -> None:
        self.statements: list[Statement] = []
        refused: list[int] = []
        first = self._first
        for alike in _of_one_statement(self._calls):
            ids = np.concatenate([some.ids for _, some in alike])
            numbers: Counts = np.empty(len(ids), dtype=np.int64)
            numbers[np.argsort(ids, kind="stable")] = np.arange(first, first + len(ids))
            statement = Statement(numbers, [], [], None)
            begin, refused_before = 0, len(refused)
            for mine, some in alike:
                theirs = numbers[begin : (begin := begin + len(some))]
                statement.calls.append((theirs, some))
                statement.parts += ((mine, part) for part in mine.parts(theirs, some, refused))
            if len(refused) == refused_before:
                statement.insertion = alike[0][0].insertion(statement.parts)
                statement.insertion.make_ahead()
            self.statements.append(statement)
            first += len(ids)
        self.refused = [*self._never, *((call.id, _CANNOT_HOLD) for call in self.of_numbers(refused))]
        self._of_all = self._tellings(_NOBODY)


def _of_one_statement(calls: Iterable[Calls]) -> Iterable[list[tuple[CallColumns, Calls]]]:
    """Calls whose rows one statement writes: those of forms with one document joined."""
    together: defaultdict[tuple[str, int], list[Calls]] = defaultdict(list)
    for some in calls:
        together[some.form.digest, len(some.tokens)].append(some)
    alike: defaultdict[tuple[object, ...], list[tuple[CallColumns, Calls]]] = defaultdict(list)
    for (_, leaves), each in together.items():
        mine = CallColumns(each[0].form)
        alike[mine.shape, leaves].append((mine, Calls.joined(each)))
    return alike.values()


def _receipt_of(call: Call) -> Receipt:
    """What a call stands for, as a receipt of its own."""
    row: dict[str, Any] = dict.fromkeys(RECEIPT_COLUMNS) | dict(zip(call.form.leaves, call.tokens, strict=True))
    row |= dict.fromkeys(PHASE_COLUMNS, 0) | dict(zip(BELONGING_COLUMNS, call.form.belongings, strict=True))
    row |= {name: getattr(call, name) for name in _OF_A_CALL}
    row |= {"total_ns": call.total_ns, "upstream_ns": call.total_ns, "first_token_ns": call.first_token_ns}
    return derive(call.form.prototype, row | {REPORTED_COLUMN: rows.picodollars_of(call.reported)})
