"""Calls of a form as rows, and what they add to the sums: by columns, so that little is done for each of them.

Owns: which columns a call fills, whether the database can hold it, and its amounts. Refuses to know: what is there
already, and transactions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import chain, repeat
from typing import Any, TypeVar

from taximeter.dataclass import dataclass
from taximeter.ledger import rows
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
from taximeter.ledger.forms import Calls, Form, chosen
from taximeter.ledger.native_rows import Insertion, Piece
from taximeter.ledger.rollups import Key, Sums, hour_of
from taximeter.ledger.sparse import Pattern, insert, inserting
from taximeter.records import PICODOLLARS_PER_DOLLAR, Basis, Usage, gap_ns

_INSTANT = "0000-00-00 00:00:00.000000"
_TO_ZEROS = str.maketrans(dict.fromkeys("123456789", "0"))
_OF_A_FORM = ("outcome", "model", "served_by", "usage_basis", "cost_basis", "form")
_OF_A_TIMING = ("total_ns", "upstream_ns", "first_token_ns", "itl_ns")
_TOO_FINE = -(10**30)  # in the place of what a log says, and what no column can hold

_STAYS = " ON CONFLICT DO NOTHING"

_T = TypeVar("_T")
_Numbers = Sequence[int]
_Known = Sequence[int | None]


def _stored_amount(reported: Decimal | None) -> int | None:
    """In picodollars; `_TOO_FINE` where it is finer than that."""
    if reported is None:
        return None
    picodollars = rows.picodollars_of(reported)
    return _TOO_FINE if picodollars is None else picodollars


Segment = tuple[Form, int, int]
"""Calls that belong to the same: their form, and from which place on and before which they stand."""


@dataclass(slots=True)
class Part:
    """Calls that rows can hold, of forms with one document, and what their columns hold besides; `times` and `amounts`
    are empty where the forms have none. In each column of `BELONGING_COLUMNS` either all of them have something, or
    none."""

    calls: Calls
    segments: Sequence[Segment]
    numbers: _Numbers
    reported: _Known | None
    times: Sequence[_Known]
    amounts: Sequence[_Numbers]


class CallColumns:
    """Which columns the calls of forms with one document fill, and how.

    A row is: number, id, request_id, received_at, closed_at, upstream_request_id, reported; then the tokens; the times,
    where there are any; the amounts and the cost, where there are prices; what it belongs to, and what is the form's.
    """

    def __init__(self, form: Form, number: int) -> None:
        usage, timing = form.prototype.usage, form.prototype.timing
        assert usage is not None  # noqa: S101 - see `Form.of`
        constants: dict[str, Any] = dict(zip(RECEIPT_COLUMNS, rows.receipt_row(form.prototype), strict=True))
        constants["form"] = number
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
        self._names = (*names, *BELONGING_COLUMNS, *_OF_A_FORM)
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
        """The same by columns, of parts whose calls' rows have this `shape`."""
        pieces = [mine.pieces(part) for mine, part in parts]
        columns = [list(chain.from_iterable(column)) for column in zip(*pieces, strict=True)]
        return Insertion(
            table="receipts",
            names=self._names,
            columns=columns,
            also=self._also,
            values=self._values,
            behind=_STAYS,
        )

    def parts(
        self, numbers: list[int], calls: Calls, segments: Sequence[Segment], refused: list[int]
    ) -> Iterator[Part]:
        """The calls together, if the database can hold all of them; else each that it can hold by itself, and the
        numbers of the others are `refused`."""
        part = self._part(numbers, calls, segments)
        if part is not None:
            yield part
        elif len(numbers) == 1:
            refused += numbers
        elif len(segments) == 1:
            for place, number in enumerate(numbers):
                yield from self.parts([number], calls.part([place]), [(segments[0][0], 0, 1)], refused)
        else:
            for form, begin, end in segments:
                mine = calls.part(range(begin, end))
                yield from self.parts(numbers[begin:end], mine, [(form, 0, end - begin)], refused)

    def _part(self, numbers: list[int], calls: Calls, segments: Sequence[Segment]) -> Part | None:
        """None if the database cannot hold them all."""
        tokens = calls.tokens
        instants = "".join(calls.received_at)
        if calls.closed_at is not calls.received_at:
            instants += "".join(calls.closed_at)
        reported = None if calls.reported is None else list(map(_stored_amount, calls.reported))
        if (
            len(tokens) != len(self._leaves)
            or min(map(min, tokens)) < 0
            or max(map(max, tokens)) > rows.LARGEST
            or instants.translate(_TO_ZEROS) != len(instants) // len(_INSTANT) * _INSTANT
            or not ("".join(calls.ids).isascii() and "".join(calls.request_ids).isascii())
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
        amounts: list[_Numbers] = []
        if self._rates is not None:
            for rate, column in zip(self._rates, tokens, strict=True):
                amounts.append([count * rate for count in column] if any(column) else column)
            costs = list(map(sum, zip(*amounts, strict=True)))
            most = max(costs)
            if most >= rows.LARGEST_PICODOLLARS:
                return None
            if most < PICODOLLARS_PER_DOLLAR:
                amounts += [[0] * len(costs), costs]
            else:
                amounts.append([cost // PICODOLLARS_PER_DOLLAR for cost in costs])
                amounts.append([cost % PICODOLLARS_PER_DOLLAR for cost in costs])
        return Part(calls, segments, numbers, reported, times, amounts)

    def _itls(self, total_ns: _Numbers, first_ns: _Known, tokens: Sequence[_Numbers]) -> _Known:
        if self._outputs is None:
            return [None] * len(total_ns)
        outputs = map(sum, zip(*(tokens[place] for place in self._outputs), strict=True))
        return list(map(gap_ns, total_ns, first_ns, outputs))

    def rows(self, part: Part) -> tuple[Pattern | None, Iterable[rows.Row]]:
        """What `insert` takes: rows of what there is, and in which columns there is nothing; or rows of all columns,
        where some of the calls have something in one and others have not."""
        calls, count = part.calls, len(part.numbers)
        reported = [None] * count if part.reported is None else part.reported
        names = (part.numbers, calls.ids, calls.request_ids, calls.received_at, calls.closed_at)
        columns = (*names, calls.upstream_request_ids, reported, *calls.tokens, *part.times, *part.amounts)
        lengths = [end - begin for _, begin, end in part.segments]
        belongings = [
            None if values[0] is None else chain.from_iterable(map(repeat, values, lengths))
            for values in zip(*(form.belongings for form, _, _ in part.segments), strict=True)
        ]
        # What is shared never ends.
        shared = [*belongings, *(None if value is None else repeat(value) for value in self._constants)]
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
        names = (part.numbers, calls.ids, calls.request_ids, calls.received_at, calls.closed_at)
        columns = (*names, calls.upstream_request_ids, part.reported, *calls.tokens, *part.times, *part.amounts)
        lengths = [end - begin for _, begin, end in part.segments]
        belongings = zip(*(form.belongings for form, _, _ in part.segments), strict=True)
        return [
            *([(None if column is None else tuple(column), count)] for column in columns),
            *(list(zip(values, lengths, strict=True)) for values in belongings),
            *([(value, count)] for value in self._constants),
        ]

    def sums(self, part: Part, missing: frozenset[int]) -> Iterator[tuple[Key, Sums]]:
        """The sums of those that are not `missing`, and their keys: for each hour that they were closed in, of all that
        belong to the same."""
        closed_at = part.calls.closed_at
        for form, begin, end in part.segments:
            key = tuple((self._key | dict(zip(BELONGING_COLUMNS, form.belongings, strict=True))).values())
            for places in _by_hour(closed_at, begin, end, part.numbers, missing):
                yield (hour_of(closed_at[places[0]]), *key), self._sums(part, places)

    def _sums(self, part: Part, places: Sequence[int]) -> Sums:
        """Of what is at some places in the columns of a part."""
        calls, count = part.calls, len(places)
        sums = Sums({"receipts": count}, {}, 0, min(_at(places, calls.received_at)), max(_at(places, calls.closed_at)))
        for leaf, column in zip(self._leaves, calls.tokens, strict=True):
            sums.counts[leaf] = sum(_at(places, column))
        if self._unknown:
            sums.uncounted = count
            sums.counts |= dict.fromkeys(self._unknown, count)
        if part.times:
            total, _, first, itl = (_at(places, column) for column in part.times)
            sums.counts["total_ns"] = sums.counts["upstream_ns"] = sum(filter(None, total))
            sums.counts |= {"timed": count, "first_token_ns": sum(filter(None, first))}
            sums.counts |= {"first_tokens": count - first.count(None), "itls": count - itl.count(None)}
        if self._rates is None:
            sums.counts["unpriced"] = count
        else:
            for leaf, rate in zip(self._leaves, self._rates, strict=True):
                sums.picodollars[leaf] = rate * sums.counts[leaf]
            sums.picodollars["cost"] = sum(sums.picodollars.values())
        told = () if part.reported is None else _at(places, part.reported)
        reported = [picodollars for picodollars in told if picodollars is not None]
        if reported:
            sums.counts["reported"], sums.picodollars["reported"] = len(reported), sum(reported)
        sums.counts = {name: number for name, number in sums.counts.items() if number}
        sums.picodollars = {name: amount for name, amount in sums.picodollars.items() if amount}
        return sums


def _by_hour(
    closed_at: Sequence[str], begin: int, end: int, numbers: _Numbers, missing: frozenset[int]
) -> Iterable[Sequence[int]]:
    """The places from `begin` on and before `end` whose numbers are not `missing`, those of an hour together."""
    hours = [at[:13] for at in closed_at[begin:end]]
    if not missing or missing.isdisjoint(numbers[begin:end]):
        # Most logs are in the order of time, so that hours are places in a row.
        starts = [begin, *(begin + place for place in range(1, end - begin) if hours[place] != hours[place - 1])]
        if len(starts) == len(set(hours)):
            return map(range, starts, [*starts[1:], end])
    together: defaultdict[str, list[int]] = defaultdict(list)
    for place, hour in enumerate(hours, begin):
        if numbers[place] not in missing:
            together[hour].append(place)
    return together.values()


def _at(places: Sequence[int], column: Sequence[_T]) -> Sequence[_T]:
    """What is at these places of a column."""
    return column[places.start : places.stop] if isinstance(places, range) else chosen(places, column)
