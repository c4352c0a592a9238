"""What most rows of a table say, column by column.

Owns: which rows are usual, so that little is done for each of them alone. Refuses to know: anything that `mapped_rows`
does not do with a row too: a test holds the two together.

A row is usual if its call is plain: it has a time, counts of tokens that fit together, a cost that is one where there
is any, and has not failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import repeat
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from taximeter.importers.alike import Alike, Kind, digests
from taximeter.importers.chunks import Chunk
from taximeter.importers.instants import between_ns, epochs_us
from taximeter.importers.logged import Origin
from taximeter.importers.mapped_rows import (
    COUNTS,
    OF_MANY,
    TIMES,
    Common,
    MappedRows,
    count_in,
    identity_of,
    is_nothing,
)
from taximeter.importers.strangers import amount, text
from taximeter.importers.timing import ReportedTiming, reported_timing
from taximeter.ledger.calls import Counts, Names, chosen, names_of
from taximeter.providers.metering.plain import MOST_TOKENS

UNUSUAL = -1
_SURELY_AMOUNTS = 10**9  # whole numbers up to here are amounts, and have nanoseconds that are counts
ODD: Any = (
    object()
)  # instead of a cell that is neither a text nor nothing: some of these are equal and mean different things

_Which = NDArray[np.bool_]


class UsualRows:
    """Reads the usual rows of one table."""

    def __init__(self, rows: MappedRows) -> None:
        self._rows = rows
        self._columns = dict(rows.columns)
        self._counts = dict(rows.counts)
        self._times = [name for name in TIMES if name in self._columns]

    def of(self, chunk: Chunk) -> tuple[list[Alike], Sequence[int]]:
        """The calls of the usual ones, and the places of all others."""
        if "input" not in self._counts or not len(chunk):
            return [], range(len(chunk))
        at_us, is_usual = epochs_us(chunk.column(self._columns["time"]))
        leaves, add_up = self._leaves(chunk)
        is_usual &= add_up
        commons, codes = self._commons(chunk)
        is_usual &= codes != UNUSUAL
        reported = None
        if "cost" in self._columns:
            costs = chunk.column(self._columns["cost"])
            reported = list(map(amount, costs))
            is_usual &= [cost is not None or text(said) is None for cost, said in zip(reported, costs, strict=True)]
        places = np.flatnonzero(is_usual)
        calls = UsualCalls(
            at_us[places],
            np.take(leaves, places, axis=1),
            names_of(digests(self._rows.by.source, self._identities(chunk, places))),
            None if reported is None else chosen(places, reported),
            self._timings(chunk, at_us, places),
        )
        others = np.flatnonzero(~is_usual).tolist()
        return list(calls.alike(commons, codes[places])) if len(places) else [], others

    def _leaves(self, chunk: Chunk) -> tuple[Counts, _Which]:
        """The tokens of each row, in the order of `plain.LEAVES`, and of which they are known and add up."""
        by = self._rows.by.tokens
        told = {name: _counted(chunk.column(column)) for name, column in self._counts.items()}
        nothing = np.zeros(len(chunk), dtype=np.int64)
        numbers = {name: told[name].numbers if name in told else nothing for name in COUNTS}
        given, answer, read, write, write_5m, write_1h, reasoning = map(numbers.__getitem__, COUNTS)
        unknown = nothing
        if "cache_write" in told:
            unknown = np.where(told["cache_write"].is_told, write - write_5m - write_1h, 0)
        parts = read + write_5m + write_1h + unknown
        leaves = np.stack(
            (
                given - parts if by.input_includes_cache else given,
                read,
                write_5m,
                write_1h,
                unknown,
                answer - reasoning if by.output_includes_reasoning else answer,
                reasoning,
            )
        )
        add_up = (leaves >= 0).all(axis=0) & (leaves.sum(axis=0) <= MOST_TOKENS)
        for each in told.values():
            add_up &= ~each.is_odd
        for name in ("input", "output"):
            if name in told:
                add_up &= told[name].is_told
        return leaves, add_up

    def _commons(self, chunk: Chunk) -> tuple[list[Common], Counts]:
        """What rows have in common, and which of it each has; `UNUSUAL` where it has failed, or cannot be compared."""
        names = [name for name in OF_MANY if name in self._columns]
        of_names = [comparable(chunk.column(self._columns[name])) for name in names]
        of_labels = [comparable(chunk.column(column)) for _, column in self._rows.labels]
        columns = (*of_names, *of_labels)
        codes = _Codes(self._rows, names)
        keys = zip(*columns, strict=True) if columns else repeat((), len(chunk))
        return codes.commons, np.fromiter(map(codes.__getitem__, keys), np.int64, len(chunk))

    def _identities(self, chunk: Chunk, places: NDArray[np.intp]) -> list[str]:
        column = self._columns.get("id")
        names: list[Any] = [None] * len(places) if column is None else chosen(places, chunk.column(column))
        if all(type(name) is str and name for name in names):
            return names
        return [
            identity_of(chunk.row(place), None if name == "" else name)
            for place, name in zip(places.tolist(), names, strict=True)
        ]

    def _timings(self, chunk: Chunk, at_us: Counts, places: NDArray[np.intp]) -> list[ReportedTiming | None] | None:
        if not self._times:
            return None
        total_ns = self._ns(chunk, at_us, places, "duration_s", "duration_ms", "end")
        first_ns = self._ns(chunk, at_us, places, "first_token_s", "first_token_ms", "first_token")
        return list(map(reported_timing, total_ns, first_ns))

    def _ns(
        self, chunk: Chunk, at_us: Counts, places: NDArray[np.intp], in_s: str, in_ms: str, until: str
    ) -> list[int | None]:
        """How long it took from each call's beginning, by the first of these that says it."""
        ways: list[Sequence[int | None]] = []
        for name, unit_ns in ((in_s, 10**9), (in_ms, 10**6)):
            if name in self._columns:
                ways.append(_ns_in(chosen(places, chunk.column(self._columns[name])), unit_ns))
        if until in self._columns:
            ends_us = epochs_us(chunk.column(self._columns[until]))[0][places].tolist()
            ways.append(list(map(between_ns, at_us[places].tolist(), ends_us)))
        if len(ways) == 1:
            return list(ways[0])
        by_row = zip(*ways, strict=True) if ways else repeat((), len(places))
        return [next((ns for ns in said if ns is not None), None) for said in by_row]


def _ns_in(values: Sequence[Any], unit_ns: int) -> list[int | None]:
    numbers = _if_all_are_counts(values)
    if numbers is not None and len(numbers) and numbers.min() >= 0 and numbers.max() <= _SURELY_AMOUNTS:
        return (numbers * unit_ns).tolist()
    return [None if said is None else int(said * unit_ns) for said in map(amount, values)]


class _Counted(NamedTuple):
    """A column of counts: 0 where a row has none; what is no count, or none of one call, is odd."""

    numbers: Counts
    is_told: _Which
    is_odd: _Which


def _counted(values: Sequence[Any]) -> _Counted:
    numbers = _if_all_are_counts(values)
    if numbers is not None:
        is_odd = (numbers < -MOST_TOKENS) | (numbers > MOST_TOKENS)
        return _Counted(numbers, np.ones(len(values), dtype=np.bool_), is_odd)
    is_told = [not is_nothing(value) for value in values]
    counts = [count_in(value) if told else 0 for value, told in zip(values, is_told, strict=True)]
    is_odd = [count is None or abs(count) > MOST_TOKENS for count in counts]
    known = [0 if count is None or odd else count for count, odd in zip(counts, is_odd, strict=True)]
    return _Counted(np.array(known, dtype=np.int64), np.array(is_told), np.array(is_odd))


def _if_all_are_counts(values: Sequence[Any]) -> Counts | None:
    kinds = set(map(type, values))
    try:
        if kinds == {str}:
            return np.array(list(map(int, values)), dtype=np.int64)
        return np.array(values, dtype=np.int64) if kinds == {int} else None
    except (ValueError, OverflowError):
        return None


def comparable(cells: Sequence[Any]) -> Sequence[Any]:
    """Cells that are equal if they mean the same: 1 and True are not, and so numbers are put into tuples."""
    if set(map(type, cells)) <= {str, type(None)}:
        return cells
    return [cell if cell is None or type(cell) is str else (cell,) if type(cell) is int else ODD for cell in cells]


def _said(comparable: Any) -> Any:
    """The cell again, None where it is empty."""
    if isinstance(comparable, tuple):
        return cast("tuple[int]", comparable)[0]
    return None if comparable == "" else comparable


class _Codes(dict[tuple[Any, ...], int]):
    """The place among `commons` of what rows with these cells have in common."""

    def __init__(self, rows: MappedRows, names: Sequence[str]) -> None:
        super().__init__()
        self.commons: list[Common] = []
        self._rows = rows
        self._names = names

    def __missing__(self, cells: tuple[Any, ...]) -> int:
        code = UNUSUAL
        if ODD not in cells:
            said = list(map(_said, cells))
            of_names = len(self._names)
            common = self._rows.common(dict(zip(self._names, said[:of_names], strict=True)), said[of_names:])
            if common.error is None:
                code = len(self.commons)
                self.commons.append(common)
        self[cells] = code
        return code


class UsualCalls(NamedTuple):
    """Columns of what each call has for itself, as in `Alike`."""

    at_us: Counts
    leaves: Counts
    digests: Names
    reported: list[Decimal | None] | None
    timings: list[ReportedTiming | None] | None

    def alike(self, commons: Sequence[Common], codes: Counts) -> Iterator[Alike]:
        """Those of each kind, in the order in which the first of it came. `codes` are places among `commons`."""
        origins = list({id(each.origin): each.origin for each in commons}.values())
        place_of = {id(origin): place for place, origin in enumerate(origins)}
        origin_of = np.array([place_of[id(each.origin)] for each in commons], dtype=np.int64)[codes]
        kinds: dict[tuple[object, ...], int] = {}
        of_kind = [
            kinds.setdefault(Kind.of(each.origin, each.model, terms=each.terms, uncosted=each.uncosted), len(kinds))
            for each in commons
        ]
        groups = 2 * np.array(of_kind, dtype=np.int64)[codes]
        if self.timings is not None:
            groups += [timing is not None for timing in self.timings]
        in_order = np.argsort(groups, kind="stable")
        begins = np.flatnonzero(np.diff(groups[in_order], prepend=-1))
        parts = np.split(in_order, begins[1:])
        for places in sorted(parts, key=lambda part: int(part[0])):
            common, is_timed = commons[int(codes[places[0]])], bool(groups[places[0]] % 2)
            yield self._of(common, is_timed, origins, origin_of, places)

    def _of(
        self, common: Common, is_timed: bool, origins: Sequence[Origin], origin_of: Counts, places: NDArray[np.intp]
    ) -> Alike:
        among, origin_of = np.unique(origin_of[places], return_inverse=True)
        reported = None if self.reported is None else chosen(places, self.reported)
        timings = [] if self.timings is None or not is_timed else chosen(places, self.timings)
        told = [timing for timing in timings if timing is not None]
        return Alike(
            Kind.of(common.origin, common.model, terms=common.terms, uncosted=common.uncosted, timed=is_timed),
            chosen(among, origins),
            origin_of,
            self.digests[places],
            self.at_us[places].view("datetime64[us]"),
            np.take(self.leaves, places, axis=1),
            [None] * len(places),
            None if reported is None or reported.count(None) == len(reported) else reported,
            [timing.total_ns for timing in told] or None,
            [timing.first_token_ns for timing in told] or None,
        )
