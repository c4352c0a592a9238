"""What every log is read into: calls, and what could not be read.

Owns: the form in which a source hands over a call, before it is priced and becomes a receipt. Refuses to know: any
source's format, prices, and the ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from io import FileIO
from pathlib import Path

import msgspec

from taximeter.importers.timing import ReportedTiming
from taximeter.ledger.rows import LARGEST
from taximeter.providers.metering.plain import LEAVES
from taximeter.records import Dialect, Outcome, Terms, Usage


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What calls of one place in a log have in common. One object for all of them, as far as that goes: whoever prices
    them looks at each origin once.

    `provider` is whose prices hold, by the catalog's name, None where the log does not say. `untimed` is why there are
    no times, where a call has none. `tier` is the service tier that was asked for.
    """

    source: str
    dialect: Dialect
    provider: str | None = None
    session: str | None = None
    run: str | None = None
    task: str | None = None
    key: str | None = None
    labels: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    stream: bool = False
    tier: str | None = None
    untimed: str = "the log has no times of the call"


class LoggedCall(msgspec.Struct, gc=False):
    """One call as a log tells it.

    `identity` names the call within its source, whatever file it is found in. `at_us` is when it was made, as
    `instants.epoch_us` has it. `leaves` are its tokens in the order of `plain.LEAVES`; where something about them is
    unusual they are None, and `usage` says it. `reported` is what the log says it cost, in dollars. `timing` is one of
    `reported_timing`.
    """

    identity: str
    at_us: int
    origin: Origin
    model: str
    leaves: tuple[int, ...] | None = None
    usage: Usage | None = None
    terms: Terms | None = None
    reported: Decimal | None = None
    request_id: str | None = None
    model_asked: str | None = None
    timing: ReportedTiming | None = None
    outcome: Outcome = Outcome.COMPLETED
    error: str | None = None
    finish_reason: str | None = None
    uncosted: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether columns hold what is known of this call alone: names, tokens, times. What else there is, only a whole
        receipt holds."""
        return (
            self.leaves is not None
            and self.error is None
            and (self.timing is None or (self.timing.first_chunk_ns is None and self.timing.total_ns <= LARGEST))
            and self.outcome is Outcome.COMPLETED
        )

    @property
    def total_tokens(self) -> int:
        """All tokens that are known."""
        return sum(self.leaves) if self.leaves is not None else known_tokens(self.usage)

    def as_usage(self) -> Usage | None:
        """The tokens as a record."""
        if self.leaves is None:
            return self.usage
        return Usage(**dict(zip(LEAVES, self.leaves, strict=True)))  # pyright: ignore[reportArgumentType]  # names of leaves only


@lru_cache(maxsize=100)
def terms_of_tier(tier: str) -> Terms:
    """The terms of a tier, and no others: one object for all of its calls."""
    return Terms(tier=tier)


def usage_of(leaves: Mapping[str, int], *, wrong: str, reported: Mapping[str, object] | None = None) -> Usage:
    """A usage of these buckets, the others empty. Where one is below zero the log contradicts itself, and none is
    known: `wrong` is the reason then, and `reported` what it says."""
    if min(leaves.values()) < 0:
        return Usage.unknown(wrong, reported=reported)
    counts = {**dict.fromkeys(LEAVES, 0), **leaves}
    return Usage(**counts, reported=reported)  # pyright: ignore[reportArgumentType]  # names of leaves only


def known_tokens(usage: Usage | None) -> int:
    """The sum of the buckets that are known."""
    return 0 if usage is None else sum(count or 0 for count in usage.leaves().values())


def of_two(one: LoggedCall, later: LoggedCall) -> LoggedCall:
    """One call of two accounts of it: the one with more tokens is told later in the call's life, and of equals the
    second is. When it was made is when it was first heard of; a figure that only one of them has stays."""
    kept, other = (later, one) if later.total_tokens >= one.total_tokens else (one, later)
    kept.at_us = min(one.at_us, later.at_us)
    kept.reported = other.reported if kept.reported is None else kept.reported
    kept.request_id = kept.request_id or other.request_id
    kept.terms = kept.terms or other.terms
    return kept


@dataclass(slots=True)
class LogFile:
    """A log that is being read, as far as it went when it was opened: `size` bytes.

    `offset` is where to read on; readers move it, and it is where the next one begins. `memory` is what a reader has to
    know there, in its own words. `notes` counts what was left out or is odd, by reason.
    """

    path: Path
    file: FileIO
    size: int
    offset: int = 0
    memory: str = ""
    on_bytes: Callable[[int], None] = lambda _: None
    notes: Counter[str] = field(default_factory=Counter[str])

    def note(self, reason: str, count: int = 1) -> None:
        self.notes[reason] += count
