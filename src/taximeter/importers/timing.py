"""Times that a log has of a call. Owns: which of them can be, and making a timing of them, all of it spent upstream,
for a log sees no further. Refuses to know: which log."""

from __future__ import annotations

import msgspec

from taximeter.records import Basis, Timing

_LONGEST_NS = 10 * 24 * 3_600 * 10**9


class ReportedTiming(msgspec.Struct, gc=False):
    """What a log says of a call's times, see `Timing`."""

    total_ns: int
    first_token_ns: int | None = None
    first_chunk_ns: int | None = None

    def as_timing(self) -> Timing:
        """The times as a record."""
        return Timing(
            upstream_ns=self.total_ns,
            total_ns=self.total_ns,
            first_token_ns=self.first_token_ns,
            first_chunk_ns=self.first_chunk_ns,
            basis=Basis.REPORTED,
        )


def reported_timing(
    total_ns: int | None, first_token_ns: int | None = None, *, first_chunk_ns: int | None = None
) -> ReportedTiming | None:
    """The times of a call that took so long, by its log; None where that is not known, or cannot be. The first token is
    left out where it comes with the end of all, as it does in logs of calls that did not stream. A first chunk may have
    no token in it, and is kept apart."""
    if total_ns is None or not 0 <= total_ns <= _LONGEST_NS:
        return None
    if first_token_ns is not None and not 0 < first_token_ns < total_ns:
        first_token_ns = None
    if first_chunk_ns is not None and first_chunk_ns > total_ns:
        first_chunk_ns = None
    return ReportedTiming(total_ns, first_token_ns, first_chunk_ns)
