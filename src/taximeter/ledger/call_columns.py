"""Calls of a form as rows, and what they add to the sums: by columns, so that little is done for each of them.

Owns: which columns a call fills, whether the database can hold it, and its amounts. Refuses to know: what is there
already, and transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain, repeat
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from taximeter.ledger import rows
from taximeter.ledger.calls import Calls, Counts, chosen, stored_instants, texts_of
from taximeter.ledger.columns import (
    BELONGING_COLUMNS,
    BUCKET_COLUMNS,
    HOUR_KEYS,
    MONEY_COLUMNS,
    PHASE_COLUMNS,
    RECEIPT_COLUMNS,
    REPORTED_COLUMN,
    TOKEN_COLUMNS,
    UNKNOWN_COLUMNS,
)
from taximeter.ledger.database import Session
from taximeter.ledger.forms import Form
from taximeter.ledger.native_rows import Insertion, Piece
from taximeter.ledger.rollups import Key, Sums, hour_of
from taximeter.ledger.sparse import Pattern, insert, inserting
from taximeter.records import PICODOLLARS_PER_DOLLAR, Basis, Usage, gap_ns

_OF_A_FORM = ("outcome", "model", "served_by", "usage_basis", "cost_basis")
_OF_A_TIMING = ("total_ns", "upstream_ns", "first_token_ns", "itl_ns")
_TOO_FINE = -(10**30)  # in the place of what a log says, and what no column can hold

_STAYS = " ON CONFLICT DO NOTHING"

_CALLS_IN_A_RUN = 4  # for a piece of each run to be less work than a value for each call
_MOST_IN_A_SUM = 2**62  # of what is added up in 64 bits

_Known = Sequence[int | None]


def _stored_amount(reported: Decimal | None) -> int | None:
    """In picodollars; `_TOO_FINE` where it is finer than that."""
    if reported is None:
        return None
    picodollars = rows.picodollars_of(reported)
    return _TOO_FINE if picodollars is None else picodollars


@dataclass(slots=True)
class Part:
    """Calls that rows can hold, and what their columns hold besides; `times` and `amounts` are empty where the forms
    have none."""

    calls: Calls
    numbers: Counts
    reported: _Known | None
    times: Sequence[_Known]
    amounts: Sequence[Counts]


class CallColumns:
    """Which columns the calls of forms with one document fill, and how.

    A row is: number, id, request_id, received_at, closed_at, upstream_request_id, reported; then the tokens; the times,
    where there are any; the amounts and the cost, where there are prices; what it belongs to, what is the form's, and
    the form's number in the database.
    """

    def __init__(self, form: Form) -> None:
        self.form = form
        usage, timing = form.prototype.usage, form.prototype.timing
        assert usage is not None  # noqa: S101 - see `Form.of`
        constants: dict[str, Any] = dict(zip(RECEIPT_COLUMNS, rows.receipt_row(form.prototype), strict=True))
        self._constants = tuple(constants[name] for name in _OF_A_FORM)
        self._key = {name: constants[name] for name in HOUR_KEYS}
        self._leaves = form.leaves
        self._rates = form.rates
        self._timed = timing is not None
        unknown = tuple(name for name, count in usage.leaves().items() if count is None)
        self._unknown = tuple(UNKNOWN_COLUMNS[name] for name in unknown)
        divisible = usage.basis is not Basis.DERIVED and not set(unknown) & set(Usage.OUTPUT_LEAVES)
        outputs = [form.leaves.index(name) for name in Usage.OUTPUT_LEAVES if name in form.leaves]
        self._outputs = outputs if divisible else None
        names = ["number", "id", "request_id", "received_at", "closed_at", "upstream_request_id", REPORTED_COLUMN]
        names += form.leaves
        zeros = [name for name in TOKEN_COLUMNS if name not in form.leaves and name not in unknown]
        if self._timed:
            names += _OF_A_TIMING
            zeros += [name for name in PHASE_COLUMNS if name not in _OF_A_TIMING]
        if form.rates is not None:
            names += [*(BUCKET_COLUMNS[leaf] for leaf in form.leaves), *MONEY_COLUMNS]
            zeros += [column for unit, column in BUCKET_COLUMNS.items() if unit not in form.leaves]
        self._names = (*names, *BELONGING_COLUMNS, *_OF_A_FORM, "form")
        self._also = ", ".join([*zeros, "off_scale", "stream"])
        self._values = ", ".join([*("0" for _ in zeros), "0", "TRUE" if constants["stream"] else "FALSE"])

    @property
    def shape(self) -> tuple[object, ...]:
        """The same for forms whose calls' rows one statement writes, if they have something in the same columns."""
        return self._names, self._also, self._values

    def insert(self, session: Session, pattern: Pattern | None, made: Sequence[rows.Row]) -> None:
        """What is 0 for all of them is a part of the statement. What is there already stays."""
        if pattern is None:
            insert(session, "receipts", self._names, made, also=self._also, values=self._values, behind=_STAYS)
        else:
            statement, _ = inserting("receipts", self._names, self._also, self._values, _STAYS, pattern)
            session.tell(statement, made)

    def insertion(self, parts: Sequence[tuple[CallColumns, Part]]) -> Insertion:
        """The same by columns, of parts whose calls' rows have this `shape`; without the last, the numbers of forms."""
        pieces = [mine.pieces(part) for mine, part in parts]
        return Insertion(
            table="receipts",
            names=self._names,
            columns=[list(chain.from_iterable(column)) for column in zip(*pieces, strict=True)],
            also=self._also,
            values=self._values,
            behind=_STAYS,
        )

    def parts(self, numbers: Counts, calls: Calls, refused: list[int]) -> Iterator[Part]:
        """The calls together, if the database can hold all of them; else halves of them, and so on. The numbers of
        those that it cannot even hold by themselves are `refused`."""
        part = self._part(numbers, calls)
        if part is not None:
            yield part
        elif len(numbers) == 1:
            refused += numbers.tolist()
        else:
            middle = len(numbers) // 2
            for begin, end in ((0, middle), (middle, len(numbers))):
                # Not copied: all numbers change together.
                yield from self.parts(numbers[begin:end], calls.part(np.arange(begin, end)), refused)

    def _part(self, numbers: Counts, calls: Calls) -> Part | None:
        """None if the database cannot hold them all."""
        tokens = calls.tokens
        reported = None if calls.reported is None else list(map(_stored_amount, calls.reported))
        if (
            len(tokens) != len(self._leaves)
            or tokens.min() < 0
            or tokens.max() > rows.LARGEST
            or (reported is not None and _TOO_FINE in reported)
        ):
            return None
        times: Sequence[_Known] = ()
        if self._timed:
            total_ns = [each for each in calls.total_ns or () if each is not None]
            first_ns = calls.first_token_ns or [None] * len(numbers)
            if len(total_ns) < len(numbers) or min(total_ns) < 0 or max(total_ns) > rows.LARGEST:
                return None
            if not all(first is None or 0 <= first <= total for first, total in zip(first_ns, total_ns, strict=True)):
                return None
            times = (total_ns, total_ns, first_ns, self._itls(total_ns, first_ns, tokens))
        elif calls.total_ns is not None or calls.first_token_ns is not None:
            return None
        amounts: list[Counts] = []
        if self._rates is not None:
            # Each is at most what all of the largest would cost, and that has to fit into 64 bits.
            if sum(map(int.__mul__, tokens.max(axis=1).tolist(), self._rates)) >= rows.LARGEST_PICODOLLARS:
                return None
            amounts = [
                column * rate if column.any() else column for rate, column in zip(self._rates, tokens, strict=True)
            ]
            costs = np.add.reduce(amounts)
            amounts += [costs // PICODOLLARS_PER_DOLLAR, costs % PICODOLLARS_PER_DOLLAR]
        return Part(calls, numbers, reported, times, amounts)

    def _itls(self, total_ns: Sequence[int], first_ns: _Known, tokens: Counts) -> _Known:
        if self._outputs is None:
            return [None] * len(total_ns)
        outputs = tokens[self._outputs].sum(axis=0).tolist()
        return list(map(gap_ns, total_ns, first_ns, outputs))

    def rows(self, part: Part, form_number: int) -> tuple[Pattern | None, Iterable[rows.Row]]:
        """What `insert` takes: rows of what there is, and in which columns there is nothing; or rows of all columns,
        where some of the calls have something in one and others have not."""
        calls, count = part.calls, len(part.numbers)
        reported = [None] * count if part.reported is None else part.reported
        received_at, closed_at = (texts_of(stored_instants(each)) for each in (calls.received_at, calls.closed_at))
        names = (part.numbers.tolist(), texts_of(calls.ids), texts_of(calls.request_ids), received_at, closed_at)
        counts = (each.tolist() for each in (*calls.tokens, *part.amounts))
        tokens = [next(counts) for _ in calls.tokens]
        columns: list[Sequence[Any]] = [*names, calls.upstream_request_ids, reported, *tokens, *part.times, *counts]
        columns += _belongings(calls)
        # What is shared never ends.
        shared = [None if value is None else repeat(value) for value in (*self._constants, form_number)]
        nothings = [column.count(None) for column in columns]
        if any(0 < nothing < count for nothing in nothings):
            filled = (repeat(None) if column is None else column for column in shared)
            return None, zip(*columns, *filled, strict=False)
        there = (column for column, nothing in zip(columns, nothings, strict=True) if not nothing)
        also_there = (column for column in shared if column is not None)
        pattern = (*map(bool, nothings), *(column is None for column in shared))
        return pattern, zip(*there, *also_there, strict=False)

    def pieces(self, part: Part) -> list[list[Piece]]:
        """Each column of a part: what it has for each of the calls, or for so many of them."""
        calls, count = part.calls, len(part.numbers)
        received_at = stored_instants(calls.received_at)
        closed_at = received_at if calls.closed_at is calls.received_at else stored_instants(calls.closed_at)
        told = (calls.upstream_request_ids, part.reported)
        return [
            *([(column, count)] for column in (part.numbers, calls.ids, calls.request_ids, received_at, closed_at)),
            *([(None if column is None else tuple(column), count)] for column in told),
            *([(column, count)] for column in calls.tokens),
            *([(tuple(column), count)] for column in part.times),
            *([(column, count)] for column in part.amounts),
            *_belonging_pieces(calls),
            *([(value, count)] for value in self._constants),
        ]

    def sums(self, part: Part, missing: Counts) -> Iterator[tuple[Key, Sums]]:
        """The sums of those whose numbers are not `missing`, and their keys: for each hour that they were closed in, of
        all that belong to the same."""
        hours = part.calls.closed_at.astype("datetime64[h]").view(np.int64)
        mine = part.calls.form_of
        # Most logs are in the order of time, and these places in a row.
        places = np.lexsort((hours, mine))
        if len(missing):
            places = places[~np.isin(part.numbers[places], missing)]
        if not len(places):
            return
        hours, mine = hours[places], mine[places]
        begins = np.flatnonzero((np.diff(hours, prepend=hours[0]) != 0) | (np.diff(mine, prepend=-1) != 0))
        forms = cast("list[int]", mine[begins].tolist())
        for form, (hour, sums) in zip(forms, self._sums(part, places, begins), strict=True):
            belongings = dict(zip(BELONGING_COLUMNS, part.calls.forms[form].belongings, strict=True))
            yield (hour, *(self._key | belongings).values()), sums

    def _sums(self, part: Part, places: NDArray[np.intp], begins: NDArray[np.intp]) -> Iterator[tuple[str, Sums]]:
        """Of what is at some places in the columns of a part, from each of `begins` on to the next: the hour of the
        first of them, and their sums."""
        calls = part.calls
        ends = cast("list[int]", [*begins[1:].tolist(), len(places)])
        tokens = np.take(calls.tokens, places, axis=1)
        if int(tokens.max(initial=0)) * len(places) > _MOST_IN_A_SUM:
            tokens = tokens.astype(object)
        counted = cast("list[list[int]]", np.add.reduceat(tokens, begins, axis=1).T.tolist())
        first_at = np.minimum.reduceat(calls.received_at[places], begins)
        last_at = np.maximum.reduceat(calls.closed_at[places], begins)
        spans = zip(texts_of(stored_instants(first_at)), texts_of(stored_instants(last_at)), strict=True)
        for counts, (first, last), begin, end in zip(counted, spans, begins.tolist(), ends, strict=True):
            count = end - begin
            sums = Sums({"receipts": count}, {}, 0, first, last)
            sums.counts |= {leaf: number for leaf, number in zip(self._leaves, counts, strict=True) if number}
            if self._unknown:
                sums.uncounted = count
                for name in self._unknown:
                    sums.counts[name] = count
            if self._rates is None:
                sums.counts["unpriced"] = count
            else:
                costs = {
                    leaf: rate * number
                    for leaf, rate, number in zip(self._leaves, self._rates, counts, strict=True)
                    if rate * number
                }
                if costs:
                    sums.picodollars = {**costs, "cost": sum(costs.values())}
            if part.times or part.reported is not None:
                self._add_told(sums, part, places[begin:end].tolist())
            yield hour_of(last), sums

    def _add_told(self, sums: Sums, part: Part, places: Sequence[int]) -> None:
        """What a log may say besides tokens."""
        count = len(places)
        if part.times:
            total, _, first, itl = (chosen(places, column) for column in part.times)
            total_ns = sum(filter(None, total))
            sums.counts |= {"timed": count, "total_ns": total_ns, "upstream_ns": total_ns}
            sums.counts["first_token_ns"] = sum(filter(None, first))
            sums.counts |= {"first_tokens": count - first.count(None), "itls": count - itl.count(None)}
            for name in [name for name, number in sums.counts.items() if not number]:
                del sums.counts[name]
        reported = [] if part.reported is None else chosen(places, part.reported)
        known = [picodollars for picodollars in reported if picodollars is not None]
        if known:
            sums.counts["reported"] = len(known)
            if sum(known):
                sums.picodollars["reported"] = sum(known)


def _belongings(calls: Calls) -> list[list[str | None]]:
    """Each column of what they belong to."""
    columns = zip(*(form.belongings for form in calls.forms), strict=True)
    forms = calls.form_of.tolist()
    return [[values[form] for form in forms] for values in columns]


def _belonging_pieces(calls: Calls) -> list[list[Piece]]:
    """The same as pieces: a value for all that stand in a row, where that makes few pieces."""
    runs = list(calls.runs)
    if len(runs) * _CALLS_IN_A_RUN > len(calls):
        return [[(tuple(column), len(calls))] for column in _belongings(calls)]
    lengths = [end - begin for _, begin, end in runs]
    columns = zip(*(form.belongings for form, _, _ in runs), strict=True)
    return [list(zip(values, lengths, strict=True)) for values in columns]
