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

from taximeter.ledger import rows
from taximeter.ledger.call_sums import Amount, KeyedSums, SumColumns, amount_of
from taximeter.ledger.calls import Calls, Counts, stored_instants, texts_of
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
from taximeter.ledger.rollups import Key
from taximeter.ledger.sparse import Pattern, insert, inserting
from taximeter.records import Basis, Usage

_OF_A_FORM = ("outcome", "model", "served_by", "usage_basis", "cost_basis")
_OF_A_TIMING = ("total_ns", "upstream_ns", "first_token_ns", "itl_ns")
_TOO_FINE = -(10**30)  # in the place of what a log says, and what no column can hold

_STAYS = " ON CONFLICT DO NOTHING"

_UNKNOWN = -(2**63)  # in the place of a number that there is none of
_CALLS_IN_A_RUN = 4  # for a piece of each run to be less work than a value for each call


def _stored_amount(reported: Decimal | None) -> int | None:
    """In picodollars; `_TOO_FINE` where it is finer than that."""
    if reported is None:
        return None
    picodollars = rows.picodollars_of(reported)
    return _TOO_FINE if picodollars is None else picodollars


@dataclass(slots=True)
class Part:
    """Calls that rows can hold, and what their columns hold besides, `_UNKNOWN` where that is nothing; `times` and
    `amounts` are empty where the forms have none."""

    calls: Calls
    numbers: Counts
    reported: Counts | None
    times: Sequence[Counts]
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
        if len(tokens) != len(self._leaves) or tokens.min() < 0 or tokens.max() > rows.LARGEST:
            return None
        if reported is not None and _TOO_FINE in reported:
            return None
        times: Sequence[Counts] = ()
        if self._timed:
            total_ns = [each for each in calls.total_ns or () if each is not None]
            if len(total_ns) < len(numbers) or min(total_ns) < 0 or max(total_ns) > rows.LARGEST:
                return None
            firsts_ns = calls.first_token_ns or [None] * len(numbers)
            if not all(each is None or 0 <= each <= rows.LARGEST for each in firsts_ns):
                return None
            total, first = np.array(total_ns, dtype=np.int64), _known(firsts_ns)
            if (first > total).any():
                return None
            times = (total, total, first, self._itls(total, first, tokens))
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
            amounts += amount_of(cast("Counts", np.add.reduce(amounts)))
        return Part(calls, numbers, None if reported is None else _known(reported), times, amounts)

    def _itls(self, total_ns: Counts, first_ns: Counts, tokens: Counts) -> Counts:
        """As `records.gap_ns`, of all of them: numbers as small as these are whole in 64 bits of a float."""
        if self._outputs is None:
            return np.full(len(total_ns), _UNKNOWN)
        outputs = tokens[self._outputs].sum(axis=0)
        is_known = (first_ns != _UNKNOWN) & (outputs >= 2)
        gaps = np.rint(np.where(is_known, total_ns - first_ns, 0) / np.where(is_known, outputs - 1, 1))
        return np.where(is_known, gaps.astype(np.int64), _UNKNOWN)

    def rows(self, part: Part, form_number: int) -> tuple[Pattern | None, Iterable[rows.Row]]:
        """What `insert` takes: rows of what there is, and in which columns there is nothing; or rows of all columns,
        where some of the calls have something in one and others have not."""
        calls, count = part.calls, len(part.numbers)
        reported = [None] * count if part.reported is None else _told(part.reported)
        received_at, closed_at = (texts_of(stored_instants(each)) for each in (calls.received_at, calls.closed_at))
        names = (part.numbers.tolist(), texts_of(calls.ids), texts_of(calls.request_ids), received_at, closed_at)
        counts = (each.tolist() for each in (*calls.tokens, *part.amounts))
        tokens = [next(counts) for _ in calls.tokens]
        columns: list[Sequence[Any]] = [
            *names,
            calls.upstream_request_ids,
            reported,
            *tokens,
            *map(_told, part.times),
            *counts,
        ]
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
        return [
            *([(column, count)] for column in (part.numbers, calls.ids, calls.request_ids, received_at, closed_at)),
            [(tuple(calls.upstream_request_ids), count)],
            [_piece(part.reported, count)],
            *([(column, count)] for column in calls.tokens),
            *([_piece(column, count)] for column in part.times),
            *([(column, count)] for column in part.amounts),
            *_belonging_pieces(calls),
            *([(value, count)] for value in self._constants),
        ]

    def sums(self, part: Part, missing: Counts) -> KeyedSums | None:
        """What those whose numbers are not `missing` add to the sums, one by one; None where these are all."""
        calls, form_of = part.calls, part.calls.form_of
        added, hours = self._added(part), calls.closed_at.astype("datetime64[h]").view(np.int64)
        if len(missing):
            places = np.flatnonzero(~np.isin(part.numbers, missing))
            if not len(places):
                return None
            added, hours, form_of = added.at(places), hours[places], form_of[places]
        belongings = (zip(BELONGING_COLUMNS, form.belongings, strict=True) for form in calls.forms)
        keys: list[Key] = [(None, *(self._key | dict(each)).values()) for each in belongings]
        return KeyedSums(added, hours, keys, form_of, uncounted=bool(self._unknown))

    def _added(self, part: Part) -> SumColumns:
        """What each of the calls adds."""
        calls, one = part.calls, np.ones(len(part.numbers), dtype=np.int64)
        counts = {
            "receipts": one,
            **dict(zip(self._leaves, calls.tokens, strict=True)),
            **dict.fromkeys(self._unknown, one),
        }
        amounts: dict[str, Amount] = {}
        if self._rates is None:
            counts["unpriced"] = one
        else:
            *by_leaf, dollars, rest = part.amounts
            amounts = {leaf: amount_of(each) for leaf, each in zip(self._leaves, by_leaf, strict=True)}
            amounts["cost"] = dollars, rest
        if part.times:
            total, _, first, itl = part.times
            is_first, is_itl = first != _UNKNOWN, itl != _UNKNOWN
            counts |= {
                "timed": one,
                "total_ns": total,
                "upstream_ns": total,
                "first_token_ns": np.where(is_first, first, 0),
            }
            counts |= {"first_tokens": is_first.astype(np.int64), "itls": is_itl.astype(np.int64)}
        if part.reported is not None:
            is_known = part.reported != _UNKNOWN
            counts["reported"] = is_known.astype(np.int64)
            amounts["reported"] = amount_of(np.where(is_known, part.reported, 0))
        return SumColumns(counts, amounts, calls.received_at, calls.closed_at)


def _known(column: Iterable[int | None]) -> Counts:
    return np.array([_UNKNOWN if each is None else each for each in column], dtype=np.int64)


def _told(column: Counts) -> list[int | None]:
    """The same as Python has it."""
    return [None if each == _UNKNOWN else each for each in column.tolist()]


def _piece(column: Counts | None, count: int) -> Piece:
    """The same as a piece of a column."""
    if column is None or not (is_unknown := column == _UNKNOWN).any():
        return column, count
    return None if is_unknown.all() else tuple(_told(column)), count


def _belongings(calls: Calls) -> list[list[str | None]]:
    """Each column of what they belong to."""
    columns = zip(*(form.belongings for form in calls.forms), strict=True)
    forms = calls.form_of.tolist()
    return [[values[form] for form in forms] for values in columns]


def _belonging_pieces(calls: Calls) -> list[list[Piece]]:
    """The same as pieces: a value for all that stand in a row, where that makes few pieces."""
    begins = calls.runs
    if len(begins) * _CALLS_IN_A_RUN > len(calls):
        return [[(tuple(column), len(calls))] for column in _belongings(calls)]
    lengths = cast("list[int]", np.diff(begins, append=len(calls)).tolist())
    forms = cast("list[int]", calls.form_of[begins].tolist())
    columns = zip(*(calls.forms[form].belongings for form in forms), strict=True)
    return [list(zip(values, lengths, strict=True)) for values in columns]
