"""Plain calls by columns: a log has a hundred thousand that differ in little, and little is done for each of them.

Owns: which calls go together, and what a call's ids end with. Refuses to know: prices, and the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from hashlib import blake2b
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, Self, cast

import msgspec
import numpy as np

from taximeter.importers.logged import LoggedCall, Origin
from taximeter.importers.timing import ReportedTiming
from taximeter.ledger.calls import (
    Counts,
    Instants,
    Names,
    Places,
    chosen,
    names_of,
)
from taximeter.providers.metering.plain import LEAVES
from taximeter.records import Dialect, Terms

_ID_BYTES = 11  # 88 bits: of ten million calls, two have the same in one of 10^12 ledgers


class Kind(NamedTuple):
    """What calls have to have in common to be booked together: of their origins all but what calls belong to, for that
    is in columns; what else is as in a `LoggedCall`. `timed` is whether they have a timing."""

    source: str
    dialect: Dialect
    provider: str | None
    stream: bool
    tier: str | None
    untimed: str
    model: str
    model_asked: str | None = None
    finish_reason: str | None = None
    terms: Terms | None = None
    uncosted: str | None = None
    timed: bool = False

    @classmethod
    def of(cls, origin: Origin, model: str, **told: Any) -> Self:
        """The kind of calls of this origin and model."""
        return cls(*_shared_by(origin), model, **told)


_Shared = tuple[str, Dialect, str | None, bool, str | None, str]
_shared_by = cast("Callable[[Origin], _Shared]", attrgetter(*Kind._fields[: Kind._fields.index("model")]))


class Alike(msgspec.Struct):
    """At least one call of one `kind`: what else is known of them are these columns.

    `origin_of` is the place of each call's origin among the `origins`, which differ in what calls belong to. `digests`
    name the calls, and `at` is when each was made. `leaves` has a row for each of `plain.LEAVES`. `reported` is as in a
    `LoggedCall`, and None where no call has such a figure. `total_ns` is of the timings that all of them have, or none,
    and `first_token_ns` too.
    """

    kind: Kind
    origins: Sequence[Origin]
    origin_of: Counts
    digests: Names
    at: Instants
    leaves: Counts
    request_ids: list[str | None]
    reported: list[Decimal | None] | None = None
    total_ns: list[int] | None = None
    first_token_ns: list[int | None] | None = None

    def __len__(self) -> int:
        return len(self.at)

    def part(self, places: Places) -> Alike:
        """Those at `places`, and their origins."""
        origins, origin_of = np.unique(self.origin_of[places], return_inverse=True)
        return Alike(
            self.kind,
            chosen(origins, self.origins),
            origin_of,
            self.digests[places],
            self.at[places],
            np.take(self.leaves, places, axis=1),
            chosen(places, self.request_ids),
            None if self.reported is None else chosen(places, self.reported),
            None if self.total_ns is None else chosen(places, self.total_ns),
            None if self.first_token_ns is None else chosen(places, self.first_token_ns),
        )

    def call(self, place: int) -> LoggedCall:
        """One of them, without its identity."""
        kind = self.kind
        return LoggedCall(
            "",
            int(self.at.view(np.int64)[place]),
            self.origins[int(self.origin_of[place])],
            kind.model,
            tuple(self.leaves[:, place].tolist()),
            terms=kind.terms,
            reported=None if self.reported is None else self.reported[place],
            timing=self._timing(place),
            request_id=self.request_ids[place],
            model_asked=kind.model_asked,
            finish_reason=kind.finish_reason,
            uncosted=kind.uncosted,
        )

    def _timing(self, place: int) -> ReportedTiming | None:
        if self.total_ns is None or self.first_token_ns is None:
            return None
        return ReportedTiming(self.total_ns[place], self.first_token_ns[place])


def sorted_out(calls: Iterable[LoggedCall]) -> tuple[list[Alike], list[LoggedCall]]:
    """Calls that are alike, together, in the order in which the first of each came; and the others."""
    together: dict[Kind, list[LoggedCall]] = {}
    found: dict[tuple[object, ...], list[LoggedCall]] = {}
    others: list[LoggedCall] = []
    for call in calls:
        if not call.is_plain:
            others.append(call)
            continue
        is_timed = call.timing is not None
        told = (call.model, call.model_asked, call.finish_reason, call.terms, call.uncosted, is_timed)
        # By where the origin is, for it has many fields: all of these live as long as the calls do.
        same = found.get((id(call.origin), *told))
        if same is None:
            same = found[id(call.origin), *told] = together.setdefault(Kind(*_shared_by(call.origin), *told), [])
        same.append(call)
    return [_alike(kind, same) for kind, same in together.items()], others


def _alike(kind: Kind, calls: Sequence[LoggedCall]) -> Alike:
    reported = [call.reported for call in calls]
    timings = [call.timing for call in calls if call.timing is not None]
    origins = {id(call.origin): call.origin for call in calls}
    places = {origin: place for place, origin in enumerate(origins)}
    return Alike(
        kind,
        list(origins.values()),
        np.array([places[id(call.origin)] for call in calls], dtype=np.int64),
        names_of(digests(kind.source, [call.identity for call in calls])),
        np.array([call.at_us for call in calls], dtype=np.int64).view("datetime64[us]"),
        _leaves_of(calls),
        [call.request_id for call in calls],
        None if reported.count(None) == len(reported) else reported,
        [timing.total_ns for timing in timings] or None,
        [timing.first_token_ns for timing in timings] or None,
    )


def _leaves_of(calls: Sequence[LoggedCall]) -> Counts:
    every = chain.from_iterable(call.leaves for call in calls if call.leaves is not None)
    return np.fromiter(every, np.int64, len(LEAVES) * len(calls)).reshape(-1, len(LEAVES)).T.copy()


def call_digest(call: LoggedCall) -> str:
    """What the call's ids end with. It names the call, whatever file it was found in."""
    return digests(call.origin.source, [call.identity])[0]


def digests(source: str, identities: Iterable[str]) -> list[str]:
    """The same for calls of one source."""
    begun = blake2b(f"{source}\0".encode("utf-8", "surrogatepass"), digest_size=_ID_BYTES)
    made: list[str] = []
    for identity in identities:
        digest = begun.copy()
        digest.update(identity.encode("utf-8", "surrogatepass"))
        made.append(digest.hexdigest())
    return made
