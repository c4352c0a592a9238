"""Calls of a form as rows, and what they add to the sums: by columns, so that little is done for each of them.

Owns: which columns a call fills, whether the database can hold it, and its amounts. Refuses to know: what is there
already, and transactions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import repeat
from typing import Any, TypeVar

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
from taximeter.ledger.forms import Call, Form
from taximeter.ledger.rollups import Key, Sums, hour_of
from taximeter.ledger.sparse import Pattern, insert, inserting
from taximeter.records import PICODOLLARS_PER_DOLLAR, Basis, Usage, gap_ns

_INSTANT = "0000-00-00 00:00:00.000000"
_TO_ZEROS = str.maketrans(dict.fromkeys("123456789", "0"))
_OF_A_FORM = ("outcome", "model", "served_by", "usage_basis", "cost_basis", "form")
_OF_A_TIMING = ("total_ns", "upstream_ns", "first_token_ns", "itl_ns")
_TOO_FINE = -(10**30)  # in the place of what a log says, and what no column can hold
_LARGEST_DOLLARS = rows.LARGEST_PICODOLLARS // PICODOLLARS_PER_DOLLAR

_T = TypeVar("_T")
_Numbers = Sequence[int]
_Known = Sequence[int | None]


def _stored_amount(reported: Decimal | None) -> int | None:
    """In picodollars; `_TOO_FINE` where it is finer than that."""
    if reported is None:
        return None
    picodollars = rows.picodollars_of(reported)
    return _TOO_FINE if picodollars is None else picodollars


@dataclass(slots=True)
class Part:
    """Calls of one form, by columns; `times` and `amounts` are empty where the form has none."""

    form: Form
    numbers: _Numbers
    ids: Sequence[str]
    request_ids: Sequence[str]
    received_at: Sequence[str]
    closed_at: Sequence[str]
    theirs: Sequence[str | None]
    reported: _Known
    tokens: Sequence[_Numbers]
    times: Sequence[_Known]
    amounts: Sequence[_Numbers]


def _chosen(places: list[int] | None, column: Sequence[_T]) -> Sequence[_T]:
    """What is at these places of a column; all of it without any."""
    return column if places is None else [column[place] for place in places]


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

    def insert(self, session: Session, pattern: Pattern | None, made: Sequence[rows.Row]) -> None:
        """What is 0 for all of them is a part of the statement. What is there already stays."""
        behind = " ON CONFLICT DO NOTHING"
        if pattern is None:
            insert(session, "receipts", self._names, made, also=self._also, values=self._values, behind=behind)
        else:
            statement, _ = inserting("receipts", self._names, self._also, self._values, behind, pattern)
            session.tell(statement, made)

    def parts(self, form: Form, numbers: list[int], calls: Sequence[Call], refused: list[int]) -> Iterator[Part]:
        """The calls of a form together, if the database can hold all of them; else each that it can hold by itself, and
        the numbers of the others are `refused`."""
        part = self._part(form, numbers, calls)
        if part is not None:
            yield part
        elif len(calls) == 1:
            refused += numbers
        else:
            for number, call in zip(numbers, calls, strict=True):
                yield from self.parts(form, [number], [call], refused)

    def _part(self, form: Form, numbers: list[int], calls: Sequence[Call]) -> Part | None:
        """None if the database cannot hold them all."""
        _, ids, request_ids, received_at, closed_at, counts, total_ns, first_ns, told, theirs, _ = zip(
            *calls, strict=True
        )
        try:
            tokens: list[tuple[int, ...]] = list(zip(*counts, strict=True))
        except ValueError:  # one says other tokens than another
            return None
        reported = told if told.count(None) == len(told) else [_stored_amount(amount) for amount in told]
        instants = "".join((*received_at, *closed_at)).translate(_TO_ZEROS)
        if (
            len(tokens) != len(self._leaves)
            or min(map(min, tokens)) < 0
            or max(map(max, tokens)) > rows.LARGEST
            or instants != 2 * len(numbers) * _INSTANT
            or not ("".join(ids).isascii() and "".join(request_ids).isascii())
            or _TOO_FINE in reported
        ):
            return None
        times: Sequence[_Known] = ()
        if self._timed:
            if None in total_ns or min(total_ns) < 0 or max(total_ns) > rows.LARGEST:
                return None
            if not all(first is None or 0 <= first <= total for first, total in zip(first_ns, total_ns, strict=True)):
                return None
            times = (total_ns, total_ns, first_ns, self._itls(total_ns, first_ns, tokens))
        elif total_ns.count(None) + first_ns.count(None) < 2 * len(numbers):
            return None
        amounts: list[_Numbers] = []
        if self._rates is not None:
            for rate, column in zip(self._rates, tokens, strict=True):
                amounts.append([count * rate for count in column] if any(column) else column)
            costs = list(map(sum, zip(*amounts, strict=True)))
            amounts.append([cost // PICODOLLARS_PER_DOLLAR for cost in costs])
            amounts.append([cost % PICODOLLARS_PER_DOLLAR for cost in costs])
            if max(amounts[-2]) >= _LARGEST_DOLLARS:
                return None
        return Part(form, numbers, ids, request_ids, received_at, closed_at, theirs, reported, tokens, times, amounts)

    def _itls(self, total_ns: _Numbers, first_ns: _Known, tokens: Sequence[_Numbers]) -> _Known:
        if self._outputs is None:
            return [None] * len(total_ns)
        outputs = map(sum, zip(*(tokens[place] for place in self._outputs), strict=True))
        return list(map(gap_ns, total_ns, first_ns, outputs))

    def rows(self, part: Part) -> tuple[Pattern | None, Iterable[rows.Row]]:
        """What `insert` takes: rows of what there is, and in which columns there is nothing; or rows of all columns,
        where some of the calls have something in one and others have not."""
        said = (part.numbers, part.ids, part.request_ids, part.received_at, part.closed_at, part.theirs, part.reported)
        columns = (*said, *part.tokens, *part.times, *part.amounts)
        shared = (*part.form.belongings, *self._constants)
        nothings = [column.count(None) for column in columns]
        if any(0 < nothing < len(part.numbers) for nothing in nothings):
            return None, zip(*columns, *map(repeat, shared), strict=False)  # what is shared never ends
        there = (column for column, nothing in zip(columns, nothings, strict=True) if not nothing)
        also_there = (repeat(value) for value in shared if value is not None)
        pattern = (*map(bool, nothings), *(value is None for value in shared))
        return pattern, zip(*there, *also_there, strict=False)

    def sums(self, part: Part, missing: frozenset[int]) -> Iterator[tuple[Key, Sums]]:
        """The sums of those that are not `missing`, and their keys: one for each hour that they were closed in."""
        key = tuple((self._key | dict(zip(BELONGING_COLUMNS, part.form.belongings, strict=True))).values())
        first, last = min(part.closed_at), max(part.closed_at)
        if first[:13] == last[:13] and missing.isdisjoint(part.numbers):
            yield (hour_of(first), *key), self._sums(part, None)
            return
        by_hour: defaultdict[str, list[int]] = defaultdict(list)
        for place, (number, closed_at) in enumerate(zip(part.numbers, part.closed_at, strict=True)):
            if number not in missing:
                by_hour[closed_at[:13]].append(place)
        for places in by_hour.values():
            yield (hour_of(part.closed_at[places[0]]), *key), self._sums(part, places)

    def _sums(self, part: Part, places: list[int] | None) -> Sums:
        """Of all of a part, or of what is at some places in its columns."""
        chosen = partial(_chosen, places)
        count = len(part.numbers) if places is None else len(places)
        sums = Sums({"receipts": count}, {}, 0, min(chosen(part.received_at)), max(chosen(part.closed_at)))
        for leaf, column in zip(self._leaves, part.tokens, strict=True):
            sums.counts[leaf] = sum(chosen(column))
        if self._unknown:
            sums.uncounted = count
            sums.counts |= dict.fromkeys(self._unknown, count)
        if part.times:
            total, _, first, itl = map(chosen, part.times)
            sums.counts["total_ns"] = sums.counts["upstream_ns"] = sum(filter(None, total))
            sums.counts |= {"timed": count, "first_token_ns": sum(filter(None, first))}
            sums.counts |= {"first_tokens": count - first.count(None), "itls": count - itl.count(None)}
        if self._rates is None:
            sums.counts["unpriced"] = count
        else:
            for leaf, rate in zip(self._leaves, self._rates, strict=True):
                sums.picodollars[leaf] = rate * sums.counts[leaf]
            sums.picodollars["cost"] = sum(sums.picodollars.values())
        reported = [picodollars for picodollars in chosen(part.reported) if picodollars is not None]
        if reported:
            sums.counts["reported"], sums.picodollars["reported"] = len(reported), sum(reported)
        sums.counts = {name: number for name, number in sums.counts.items() if number}
        sums.picodollars = {name: amount for name, amount in sums.picodollars.items() if amount}
        return sums
