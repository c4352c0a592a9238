"""Calls of forms with one document by columns: arrays, so that nothing is done for each of a hundred thousand of them.

Owns: the arrays, and what becomes of texts in them. Refuses to know: SQL, prices, and whose log it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate, chain
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from taximeter.ledger.forms import Call, Form

Names = NDArray[np.bytes_]
"""ASCII, each as long as the longest."""

Instants = NDArray[np.datetime64]
"""In microseconds, UTC."""

Counts = NDArray[np.int64]
Places = Sequence[int] | NDArray[np.intp]

_INSTANT = "0000-00-00 00:00:00.000000"
_TO_ZEROS = str.maketrans(dict.fromkeys("123456789", "0"))
_DAY_LETTERS = len("0000-00-00")
_PAIRS = np.array([f"{number:02}".encode() for number in range(100)], dtype=np.bytes_).view(np.uint8).reshape(-1, 2)

_T = TypeVar("_T")


def names_of(texts: Sequence[str]) -> Names:
    """Raises ValueError for a text that is not ASCII, or would not come back as it is."""
    together = "".join(texts)
    if not together.isascii() or "\0" in together:
        raise ValueError("names of calls are ASCII, and without NUL")
    return np.array(texts, dtype=np.bytes_)


def instants_of(texts: Sequence[str]) -> Instants:
    """Of texts as the ledger has them, `2026-10-29 12:00:00.000000`. Raises ValueError where one is none."""
    if "".join(texts).translate(_TO_ZEROS) != len(texts) * _INSTANT:
        raise ValueError("instants of calls are as the ledger has them")
    return np.array(texts, dtype="datetime64[us]")


def stored_instants(instants: Instants) -> Names:
    """The texts again, as an array. Digit by digit: numpy's own way takes three times as long, and most logs are of few
    days."""
    days, day_of = np.unique(instants.astype("datetime64[D]"), return_inverse=True)
    microseconds = (instants - days.astype(instants.dtype)[day_of]).view(np.int64)
    seconds, microseconds = np.divmod(microseconds, 1_000_000)
    minutes, seconds = np.divmod(seconds, 60)
    hours, minutes = np.divmod(minutes, 60)
    hundreds, below = np.divmod(microseconds, 100)
    made = np.full((len(instants), len(_INSTANT)), np.frombuffer(_INSTANT.encode(), np.uint8))
    texts = np.datetime_as_string(days).astype(f"S{_DAY_LETTERS}")
    made[:, :_DAY_LETTERS] = texts.view(np.uint8).reshape(-1, _DAY_LETTERS)[day_of]
    for place, pairs in ((11, hours), (14, minutes), (17, seconds), (24, below)):
        made[:, place : place + 2] = _PAIRS[pairs]
    for place, pairs in zip((20, 22), np.divmod(hundreds, 100), strict=True):
        made[:, place : place + 2] = _PAIRS[pairs]
    return made.view(f"S{len(_INSTANT)}").ravel()


def texts_of(names: Names) -> list[str]:
    """An array of names as Python's texts."""
    return names.astype(np.str_).tolist()


@dataclass(slots=True, kw_only=True, eq=False)
class Calls:
    """At least one call, by columns: what a `Call` says, for all of them. Their `forms` have one document and differ in
    what calls belong to; `form_of` is the place of each call's form among them. `tokens` has a row for each of the
    form's leaves. `total_ns` and `first_token_ns` are None where the form has no timing, and `reported` where no call
    has such a figure. `closed_at` may be the same array as `received_at`."""

    forms: Sequence[Form]
    form_of: Counts
    ids: Names
    request_ids: Names
    received_at: Instants
    closed_at: Instants
    tokens: Counts
    total_ns: Sequence[int | None] | None = None
    first_token_ns: Sequence[int | None] | None = None
    reported: Sequence[Decimal | None] | None = None
    upstream_request_ids: Sequence[str | None]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def form(self) -> Form:
        """One of the forms, for all that they have in common."""
        return self.forms[0]

    @property
    def runs(self) -> Counts:
        """Where calls begin that have the same form and stand in a row."""
        return np.flatnonzero(np.diff(self.form_of, prepend=-1))

    @classmethod
    def of(cls, form: Form, calls: Sequence[Call]) -> Self:
        """Raises ValueError where arrays cannot hold what one of them says, or it says tokens of other leaves."""
        _, ids, request_ids, received_at, closed_at, counts, total_ns, first_ns, reported, theirs, _ = zip(
            *calls, strict=True
        )
        try:
            tokens = np.array(counts, dtype=np.int64).T
        except OverflowError as error:
            raise ValueError("so many tokens are no count") from error
        return cls(
            forms=(form,),
            form_of=np.zeros(len(calls), dtype=np.int64),
            ids=names_of(ids),
            request_ids=names_of(request_ids),
            received_at=instants_of(received_at),
            closed_at=instants_of(closed_at),
            tokens=np.ascontiguousarray(tokens),
            total_ns=_if_any(total_ns),
            first_token_ns=_if_any(first_ns),
            reported=_if_any(reported),
            upstream_request_ids=theirs,
        )

    @classmethod
    def joined(cls, several: Sequence[Calls]) -> Calls:
        """All of them, one behind the other: their forms have one document."""
        if len(several) == 1:
            return several[0]
        befores = accumulate((len(calls.forms) for calls in several), initial=0)
        received_at = np.concatenate([calls.received_at for calls in several])
        is_one_instant = all(calls.closed_at is calls.received_at for calls in several)
        return cls(
            forms=list(chain.from_iterable(calls.forms for calls in several)),
            form_of=np.concatenate([calls.form_of + before for calls, before in zip(several, befores, strict=False)]),
            ids=np.concatenate([calls.ids for calls in several]),
            request_ids=np.concatenate([calls.request_ids for calls in several]),
            received_at=received_at,
            closed_at=received_at if is_one_instant else np.concatenate([calls.closed_at for calls in several]),
            tokens=np.concatenate([calls.tokens for calls in several], axis=1),
            total_ns=_joined_if_any([calls.total_ns for calls in several], several),
            first_token_ns=_joined_if_any([calls.first_token_ns for calls in several], several),
            reported=_joined_if_any([calls.reported for calls in several], several),
            upstream_request_ids=list(chain.from_iterable(calls.upstream_request_ids for calls in several)),
        )

    def call(self, place: int) -> Call:
        """One of them."""
        received_at, closed_at = texts_of(stored_instants(np.array([self.received_at[place], self.closed_at[place]])))
        return Call(
            self.forms[self.form_of[place]],
            self.ids[place].decode(),
            self.request_ids[place].decode(),
            received_at,
            closed_at,
            tuple(self.tokens[:, place].tolist()),
            None if self.total_ns is None else self.total_ns[place],
            None if self.first_token_ns is None else self.first_token_ns[place],
            None if self.reported is None else self.reported[place],
            self.upstream_request_ids[place],
        )

    def part(self, places: Places) -> Calls:
        """Those at `places`."""
        received_at = self.received_at[places]
        return Calls(
            forms=self.forms,
            form_of=self.form_of[places],
            ids=self.ids[places],
            request_ids=self.request_ids[places],
            received_at=received_at,
            closed_at=received_at if self.closed_at is self.received_at else self.closed_at[places],
            tokens=np.take(self.tokens, places, axis=1),
            total_ns=None if self.total_ns is None else _if_any(chosen(places, self.total_ns)),
            first_token_ns=None if self.first_token_ns is None else _if_any(chosen(places, self.first_token_ns)),
            reported=None if self.reported is None else _if_any(chosen(places, self.reported)),
            upstream_request_ids=chosen(places, self.upstream_request_ids),
        )


def chosen(places: Places, column: Sequence[_T]) -> list[_T]:
    """What is at these places of a column."""
    return [column[place] for place in places]


def _joined_if_any(columns: Sequence[Sequence[Any] | None], several: Sequence[Calls]) -> Sequence[Any] | None:
    if all(column is None for column in columns):
        return None
    filled = ([None] * len(calls) if column is None else column for column, calls in zip(columns, several, strict=True))
    return list(chain.from_iterable(filled))


def _if_any(column: Sequence[_T | None]) -> Sequence[_T | None] | None:
    return None if column.count(None) == len(column) else column
