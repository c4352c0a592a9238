"""Where the time went: exclusive phases that sum to the total, exactly.

The total begins when the request comes to the door, and ends when its answer is whole and about to be written down. Not
in it, and in no phase, are the ledger's making the receipt durable and the client's reading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import attrgetter
from typing import cast

from taximeter.records.basis import Basis

_ROUNDING_NS = 2_000_000  # engines tell milliseconds


class Phase(StrEnum):
    """What a request is doing at an instant. It is always doing exactly one of these."""

    GATEWAY = "gateway"  # in our door: reading the request, parsing, tokenizing, rounding the answer off
    QUEUE = "queue"  # waiting for the engine to take it up
    PREFILL = "prefill"  # the prompt is being read
    DECODE = "decode"  # the answer is being written
    STALLED = "stalled"  # preempted for memory, until it is back where it was
    UPSTREAM = "upstream"  # inside a provider, not divisible by us


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Durations of one request, in nanoseconds of one monotonic clock.

    The phases sum to `total_ns`; anything else raises ValueError. `first_token_ns` is the time from receiving the
    request to its first generated token on any channel, None when there was none, or when it could not be seen;
    `first_answer_ns` the same to the first one that is not reasoning, `first_chunk_ns` to the first event of an
    upstream's stream, whatever is in it. `longest_gap_ns` is the longest wait between two token arrivals after the
    first. `reported_phases` are those that an engine behind us timed by its own clock and told us; they are laid into
    what we measured, and what they leave of it stays `upstream`.
    """

    gateway_ns: int = 0
    queue_ns: int = 0
    prefill_ns: int = 0
    decode_ns: int = 0
    stalled_ns: int = 0
    upstream_ns: int = 0
    total_ns: int
    first_token_ns: int | None = None
    first_answer_ns: int | None = None
    first_chunk_ns: int | None = None
    longest_gap_ns: int | None = None
    reported_phases: tuple[Phase, ...] = ()
    basis: Basis = Basis.MEASURED

    def __post_init__(self) -> None:
        spent_ns = _spent_ns(self)
        if min(spent_ns) < 0:
            raise ValueError(f"a phase cannot be negative: {self.phases()}")
        if sum(spent_ns) != self.total_ns:
            raise ValueError(f"phases sum to {sum(spent_ns)} ns, the total is {self.total_ns} ns")

    def phases(self) -> dict[Phase, int]:
        """Every phase with its nanoseconds, in the order a request goes through them."""
        return dict(zip(_PHASES, _spent_ns(self), strict=True))

    def divided(self, spent_ns: Mapping[Phase, int]) -> Timing:
        """The same, with what an engine says of its own time (`spent_ns`) taken out of `upstream`, where we saw all of
        it pass. Unchanged when it says more than we saw: then its clock is not to be believed. Rounding is forgiven."""
        too_much_ns = sum(spent_ns.values()) - self.upstream_ns
        if not spent_ns or min(spent_ns.values()) < 0 or too_much_ns > max(_ROUNDING_NS, self.upstream_ns // 100):
            return self
        laid_ns = dict(spent_ns)
        for phase in sorted(laid_ns, key=laid_ns.__getitem__, reverse=True):
            over_ns = min(max(0, too_much_ns), laid_ns[phase])
            laid_ns[phase] -= over_ns
            too_much_ns -= over_ns
        phases = self.phases()
        changed = {f"{phase.value}_ns": phases[phase] + ns for phase, ns in laid_ns.items()}
        upstream_ns = self.upstream_ns - sum(laid_ns.values())
        return replace(self, **changed, upstream_ns=upstream_ns, reported_phases=tuple(laid_ns))


_PHASES = tuple(Phase)
_spent_ns = cast("Callable[[Timing], tuple[int, ...]]", attrgetter(*(f"{phase.value}_ns" for phase in Phase)))


class Stopwatch:
    """Turns a request's events into a `Timing`. Each stamp closes one phase and opens the next, so that every
    nanosecond from `started_ns` on lands in exactly one phase, by construction.

    Stamps are monotonic and in order per source; one that lies before the last is taken at the last, because two
    threads may stamp the same instant in either order.
    """

    def __init__(self, started_ns: int, phase: Phase = Phase.GATEWAY) -> None:
        self._started_ns = started_ns
        self._last_ns = started_ns
        self._phase = phase
        self._spent_ns = dict.fromkeys(_PHASES, 0)
        self._first_token_ns: int | None = None
        self._first_answer_ns: int | None = None
        self._first_chunk_ns: int | None = None
        self._last_token_ns: int | None = None
        self._longest_gap_ns: int | None = None

    def enter(self, phase: Phase, at_ns: int) -> None:
        """The request does `phase` from `at_ns` on."""
        at_ns = max(at_ns, self._last_ns)
        self._spent_ns[self._phase] += at_ns - self._last_ns
        self._phase, self._last_ns = phase, at_ns

    def chunk(self, at_ns: int) -> None:
        """An event of a stream arrived at `at_ns`; only the first one counts."""
        if self._first_chunk_ns is None:
            self._first_chunk_ns = at_ns

    def tokens(self, at_ns: int, *, answer: bool = True) -> None:
        """At least one generated token arrived at `at_ns`, on any channel; an `answer` is one that is not reasoning."""
        if answer and self._first_answer_ns is None:
            self._first_answer_ns = at_ns
        if self._first_token_ns is None or self._last_token_ns is None:
            self._first_token_ns = at_ns
        else:
            gap_ns = max(0, at_ns - self._last_token_ns)
            self._longest_gap_ns = max(gap_ns, self._longest_gap_ns or 0)
        self._last_token_ns = at_ns

    def stop(self, at_ns: int) -> Timing:
        """The finished timing. The stopwatch may go on: a later `stop` includes what came between."""
        self.enter(self._phase, at_ns)
        return Timing(
            gateway_ns=self._spent_ns[Phase.GATEWAY],
            queue_ns=self._spent_ns[Phase.QUEUE],
            prefill_ns=self._spent_ns[Phase.PREFILL],
            decode_ns=self._spent_ns[Phase.DECODE],
            stalled_ns=self._spent_ns[Phase.STALLED],
            upstream_ns=self._spent_ns[Phase.UPSTREAM],
            total_ns=self._last_ns - self._started_ns,
            first_token_ns=self._since_start(self._first_token_ns),
            first_answer_ns=self._since_start(self._first_answer_ns),
            first_chunk_ns=self._since_start(self._first_chunk_ns),
            longest_gap_ns=self._longest_gap_ns,
        )

    def _since_start(self, at_ns: int | None) -> int | None:
        return None if at_ns is None else at_ns - self._started_ns
