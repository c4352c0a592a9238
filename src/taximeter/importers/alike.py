"""Plain calls by columns: a log has a hundred thousand that differ in little, and little is done for each of them.

Owns: which calls go together, and what a call's ids end with. Refuses to know: prices, and the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from hashlib import blake2b
from itertools import chain

import msgspec
import numpy as np

from taximeter.importers.logged import LoggedCall, Origin
from taximeter.importers.timing import reported_timing
from taximeter.ledger.calls import (
    Counts,
    Instants,
    Names,
    Places,
    chosen,
    instants_of,
    names_of,
    stored_instants,
    texts_of,
)
from taximeter.records import Terms, Timing

_ID_BYTES = 11  # 88 bits: of ten million calls, two have the same in one of 10^12 ledgers


class Alike(msgspec.Struct):
    """At least one call of one origin, one model, the same terms, and no cost for the same reason, if it has none: what
    else is known of them are these columns.

    `digests` name them, and `at` is when each was made. `leaves` has a row for each of `plain.LEAVES`. `reported` is as
    in a `LoggedCall`, and None where no call has such a figure. `total_ns` is of the timings that all of them have, or
    none, and `first_token_ns` too.
    """

    origin: Origin
    model: str
    terms: Terms | None
    uncosted: str | None
    digests: Names
    at: Instants
    leaves: Counts
    request_ids: list[str | None]
    reported: list[Decimal | None] | None
    total_ns: list[int] | None = None
    first_token_ns: list[int | None] | None = None

    def __len__(self) -> int:
        return len(self.at)

    def part(self, places: Places) -> Alike:
        """Those at `places`."""
        return Alike(
            self.origin,
            self.model,
            self.terms,
            self.uncosted,
            self.digests[places],
            self.at[places],
            np.take(self.leaves, places, axis=1),
            chosen(places, self.request_ids),
            None if self.reported is None else chosen(places, self.reported),
            None if self.total_ns is None else chosen(places, self.total_ns),
            None if self.first_token_ns is None else chosen(places, self.first_token_ns),
        )

    @classmethod
    def joined(cls, several: Sequence[Alike]) -> Alike:
        """All of them, one behind the other, which are like the first. None of them has a `reported`, nor a timing."""
        first = several[0]
        if len(several) == 1:
            return first
        return cls(
            first.origin,
            first.model,
            first.terms,
            first.uncosted,
            np.concatenate([each.digests for each in several]),
            np.concatenate([each.at for each in several]),
            np.concatenate([each.leaves for each in several], axis=1),
            list(chain.from_iterable(each.request_ids for each in several)),
            None,
        )

    def call(self, place: int) -> LoggedCall:
        """One of them, without its identity."""
        return LoggedCall(
            "",
            texts_of(stored_instants(self.at[place : place + 1]))[0],
            self.origin,
            self.model,
            tuple(self.leaves[:, place].tolist()),
            terms=self.terms,
            reported=None if self.reported is None else self.reported[place],
            timing=self._timing(place),
            request_id=self.request_ids[place],
            uncosted=self.uncosted,
        )

    def _timing(self, place: int) -> Timing | None:
        if self.total_ns is None or self.first_token_ns is None:
            return None
        return reported_timing(self.total_ns[place], self.first_token_ns[place])


def sorted_out(calls: Iterable[LoggedCall]) -> tuple[list[Alike], list[LoggedCall]]:
    """Calls that are alike, together, in the order in which the first of each came; and the others."""
    together: dict[tuple[int, str, int, str | None, bool], list[LoggedCall]] = {}
    others: list[LoggedCall] = []
    same: list[LoggedCall] = []
    origin: Origin | None = None
    model, terms, uncosted, untimed = "", None, None, True
    for call in calls:
        if not call.is_plain:
            others.append(call)
            continue
        # Most are like the one before.
        if (
            call.origin is not origin
            or call.terms is not terms
            or call.model != model
            or call.uncosted != uncosted
            or (call.timing is None) is not untimed
        ):
            origin, model, terms, uncosted, untimed = (
                call.origin,
                call.model,
                call.terms,
                call.uncosted,
                call.timing is None,
            )
            same = together.setdefault((id(origin), model, id(terms), uncosted, untimed), [])
        same.append(call)
    return list(map(_alike, together.values())), others


def _alike(calls: Sequence[LoggedCall]) -> Alike:
    first = calls[0]
    reported = [call.reported for call in calls]
    timings = [call.timing for call in calls if call.timing is not None]
    return Alike(
        first.origin,
        first.model,
        first.terms,
        first.uncosted,
        names_of(digests(first.origin.source, [call.identity for call in calls])),
        instants_of([call.at for call in calls]),
        np.array([call.leaves for call in calls], dtype=np.int64).T.copy(),
        [call.request_id for call in calls],
        None if reported.count(None) == len(reported) else reported,
        [timing.total_ns for timing in timings] or None,
        [timing.first_token_ns for timing in timings] or None,
    )


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
