"""Plain calls by columns: a log has a hundred thousand that differ in little, and little is done for each of them.

Owns: which calls go together, and what a call's ids end with. Refuses to know: prices, and the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from hashlib import blake2b

import msgspec

from taximeter.importers.logged import LoggedCall, Origin
from taximeter.records import Terms

_ID_BYTES = 11  # 88 bits: of ten million calls, two have the same in one of 10^12 ledgers


class Alike(msgspec.Struct):
    """At least one call of one origin, one model, the same terms, and no cost for the same reason, if it has none: what
    else is known of them are these columns.

    `digests` name them, `at` is as in a `LoggedCall`, and so is `reported`, which is None where no call has such a
    figure. `leaves` is a column for each of `plain.LEAVES`.
    """

    origin: Origin
    model: str
    terms: Terms | None
    uncosted: str | None
    digests: list[str]
    at: list[str]
    leaves: list[Sequence[int]]
    request_ids: list[str | None]
    reported: list[Decimal | None] | None

    def part(self, places: Sequence[int]) -> Alike:
        """Those at `places`."""
        return Alike(
            self.origin,
            self.model,
            self.terms,
            self.uncosted,
            [self.digests[place] for place in places],
            [self.at[place] for place in places],
            [[column[place] for place in places] for column in self.leaves],
            [self.request_ids[place] for place in places],
            None if self.reported is None else [self.reported[place] for place in places],
        )

    def call(self, place: int) -> LoggedCall:
        """One of them, without its identity."""
        return LoggedCall(
            "",
            self.at[place],
            self.origin,
            self.model,
            tuple([column[place] for column in self.leaves]),
            terms=self.terms,
            reported=None if self.reported is None else self.reported[place],
            request_id=self.request_ids[place],
            uncosted=self.uncosted,
        )


def sorted_out(calls: Iterable[LoggedCall]) -> tuple[list[Alike], list[LoggedCall]]:
    """Calls that are alike, together, in the order in which the first of each came; and the others."""
    together: dict[tuple[int, str, int, str | None], list[LoggedCall]] = {}
    others: list[LoggedCall] = []
    same: list[LoggedCall] = []
    origin: Origin | None = None
    model, terms, uncosted = "", None, None
    for call in calls:
        if not call.is_plain:
            others.append(call)
            continue
        # Most are like the one before.
        if call.origin is not origin or call.terms is not terms or call.model != model or call.uncosted != uncosted:
            origin, model, terms, uncosted = call.origin, call.model, call.terms, call.uncosted
            same = together.setdefault((id(origin), model, id(terms), uncosted), [])
        same.append(call)
    return list(map(_alike, together.values())), others


def _alike(calls: Sequence[LoggedCall]) -> Alike:
    first = calls[0]
    source = first.origin.source
    reported = [call.reported for call in calls]
    return Alike(
        first.origin,
        first.model,
        first.terms,
        first.uncosted,
        [_digest(source, call.identity) for call in calls],
        [call.at for call in calls],
        list(zip(*[call.leaves or () for call in calls], strict=True)),
        [call.request_id for call in calls],
        None if reported.count(None) == len(reported) else reported,
    )


def call_digest(call: LoggedCall) -> str:
    """What the call's ids end with. It names the call, whatever file it was found in."""
    return _digest(call.origin.source, call.identity)


def _digest(source: str, identity: str) -> str:
    name = f"{source}\0{identity}".encode("utf-8", "surrogatepass")
    return blake2b(name, digest_size=_ID_BYTES).hexdigest()
