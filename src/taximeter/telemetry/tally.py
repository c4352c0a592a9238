"""Receipts, added up since the process began.

Owns: which figures are kept, by which labels, in which buckets; and that a label cannot grow without end. Refuses to
know: Prometheus, OpenTelemetry, and who asks.

Everything is counted in whole nanoseconds, tokens and picodollars, so that sums are exact; only who writes them down
for others makes floats of them.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from taximeter.records import EXACT, Dialect, Outcome, Phase, Receipt, Usage

NOBODY: Final = "nobody"  # instead of an upstream, where none was reached
OTHER: Final = "other"  # instead of a model, where there are too many

MOST_MODELS: Final = 100
"""Models with figures of their own. Callers can send any name, and each would be a few hundred lines of the page."""

_NS_PER_S: Final = 1_000_000_000

# From a millisecond to eleven minutes; those of 0.01 s to 81.92 s are OpenTelemetry's own for the duration of an
# inference, so that its histogram is this one with the ends folded in.
DURATION_BOUNDS_S: Final = (
    *(0.001, 0.0025, 0.005),
    *(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
    *(163.84, 327.68, 655.36),
)
# OpenTelemetry's for the time per output token are those of 0.01 s to 2.5 s.
TOKEN_BOUNDS_S: Final = (
    *(0.0005, 0.001, 0.0025, 0.005),
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
    *(5.0, 10.0),
)
OVERHEAD_BOUNDS_S: Final = (
    *(0.0001, 0.0002, 0.0003, 0.0004, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.01),
    *(0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
# OpenTelemetry's, for tokens per operation.
TOKEN_COUNT_BOUNDS: Final = tuple(4**power for power in range(14))


class Histogram:
    """How often whole numbers came, by upper bounds (inclusive, as Prometheus has it), and their sum. `unit` is how
    many of them are one of what the bounds are in."""

    __slots__ = ("bounds", "counts", "largest", "smallest", "total", "unit")

    def __init__(self, bounds: Sequence[float], *, unit: int) -> None:
        self.bounds = tuple(round(bound * unit) for bound in bounds)
        self.unit = unit
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0
        self.smallest: int | None = None
        self.largest: int | None = None

    def add(self, value: int) -> None:
        """One more."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
        if self.smallest is None or value < self.smallest:
            self.smallest = value
        if self.largest is None or value > self.largest:
            self.largest = value

    def merge(self, other: Histogram) -> None:
        """All of `other`'s too, which has the same bounds."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.total += other.total
        self.smallest = min((end for end in (self.smallest, other.smallest) if end is not None), default=None)
        self.largest = max((end for end in (self.largest, other.largest) if end is not None), default=None)

    def copy(self) -> Histogram:
        """The same, apart."""
        copied = Histogram((), unit=self.unit)
        copied.bounds, copied.counts = self.bounds, self.counts.copy()
        copied.total, copied.smallest, copied.largest = self.total, self.smallest, self.largest
        return copied

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)


def _seconds(bounds: Sequence[float] = DURATION_BOUNDS_S) -> Histogram:
    return Histogram(bounds, unit=_NS_PER_S)


@dataclass(frozen=True, slots=True, order=True)
class Labels:
    """Whose figures: `upstream` is the receipt's `served_by`, `model` the name that was asked for."""

    upstream: str
    model: str
    dialect: Dialect
    outcome: Outcome


@dataclass(slots=True)
class Figures:
    """The sums over the receipts of one set of labels.

    Of each bucket `tokens` has what is known, and `unknown` counts the receipts on which it is not; `without_usage` are
    those of which the total is not known. Phases are counted where they took any time.
    """

    receipts: int = 0
    tokens: Counter[str] = field(default_factory=Counter[str])
    unknown: Counter[str] = field(default_factory=Counter[str])
    without_usage: int = 0
    unpriced: int = 0
    picodollars: int = 0
    total: Histogram = field(default_factory=_seconds)
    overhead: Histogram = field(default_factory=lambda: _seconds(OVERHEAD_BOUNDS_S))
    first_token: Histogram = field(default_factory=_seconds)
    first_chunk: Histogram = field(default_factory=_seconds)
    inter_token: Histogram = field(default_factory=lambda: _seconds(TOKEN_BOUNDS_S))
    phases: dict[Phase, Histogram] = field(default_factory=dict[Phase, Histogram])
    input_tokens: Histogram = field(default_factory=lambda: Histogram(TOKEN_COUNT_BOUNDS, unit=1))
    output_tokens: Histogram = field(default_factory=lambda: Histogram(TOKEN_COUNT_BOUNDS, unit=1))

    def add(self, receipt: Receipt) -> None:
        """One more."""
        self.receipts += 1
        if receipt.usage is None:
            self.without_usage += 1
        else:
            self._add_usage(receipt.usage)
        if receipt.cost is None:
            self.unpriced += 1
        else:
            self.picodollars += int(receipt.cost.total.scaleb(12, EXACT))
        timing = receipt.timing
        if timing is None:
            return
        self.total.add(timing.total_ns)
        self.overhead.add(timing.gateway_ns)
        if timing.first_token_ns is not None:
            self.first_token.add(timing.first_token_ns)
        first_chunk_ns = first_chunk_of(receipt)
        if first_chunk_ns is not None:
            self.first_chunk.add(first_chunk_ns)
        inter_token_ns = receipt.inter_token_ns
        if inter_token_ns is not None:
            self.inter_token.add(inter_token_ns)
        for phase, spent_ns in timing.phases().items():
            if spent_ns:
                if phase not in self.phases:
                    self.phases[phase] = _seconds()
                self.phases[phase].add(spent_ns)

    def copy(self) -> Figures:
        """The same, apart."""
        return replace(
            self,
            tokens=self.tokens.copy(),
            unknown=self.unknown.copy(),
            total=self.total.copy(),
            overhead=self.overhead.copy(),
            first_token=self.first_token.copy(),
            first_chunk=self.first_chunk.copy(),
            inter_token=self.inter_token.copy(),
            phases={phase: histogram.copy() for phase, histogram in self.phases.items()},
            input_tokens=self.input_tokens.copy(),
            output_tokens=self.output_tokens.copy(),
        )

    def _add_usage(self, usage: Usage) -> None:
        is_known = True
        for buckets, distribution in (
            (usage.INPUT_LEAVES, self.input_tokens),
            (usage.OUTPUT_LEAVES, self.output_tokens),
        ):
            total, is_side_known = 0, True
            for bucket in buckets:
                tokens: int | None = getattr(usage, bucket)
                if tokens is None:
                    self.unknown[bucket] += 1
                    is_side_known = False
                elif tokens:
                    self.tokens[bucket] += tokens
                    total += tokens
            if is_side_known:
                distribution.add(total)
            is_known = is_known and is_side_known
        self.without_usage += not is_known


def first_chunk_of(receipt: Receipt) -> int | None:
    """How long the first chunk of a stream took, in nanoseconds; None where it was not seen. Our own engine's first
    chunk is its first token."""
    timing = receipt.timing
    if timing is None or not receipt.request.stream:
        return None
    return timing.first_token_ns if receipt.work is not None else timing.first_chunk_ns


@dataclass(slots=True)
class Sums:
    """Everything at one moment. `tries` counts those at upstreams by the status that came back, None where nothing did.
    `decode_read_bytes` and `decode_ns` are what our own engine's decodes read, and took of the machine."""

    figures: dict[Labels, Figures] = field(default_factory=dict[Labels, Figures])
    tries: Counter[tuple[str, int | None]] = field(default_factory=Counter[tuple[str, int | None]])
    decode_read_bytes: int = 0
    decode_ns: int = 0
    read_ceiling_bytes_per_s: int | None = None


class Tally:
    """Adds up receipts. Safe to use from several threads."""

    def __init__(self, models: Collection[str] = ()) -> None:
        """`models` are known to be served, and have figures of their own from the start."""
        self._lock = threading.Lock()
        self._models = set(models)
        self._sums = Sums()

    def add(self, receipt: Receipt) -> None:
        """One more receipt."""
        with self._lock:
            labels = self._labels(receipt)
            figures = self._sums.figures.get(labels)
            if figures is None:
                figures = self._sums.figures[labels] = Figures()
            figures.add(receipt)
            for attempt in receipt.tries:
                self._sums.tries[attempt.upstream, attempt.status] += 1
            work = receipt.work
            if work is not None and work.decode_read_bytes is not None and work.decode_compute_ns is not None:
                self._sums.decode_read_bytes += work.decode_read_bytes
                self._sums.decode_ns += work.decode_compute_ns
                if work.ceiling is not None:
                    self._sums.read_ceiling_bytes_per_s = work.ceiling.read_bytes_per_s

    def sums(self) -> Sums:
        """A copy of all that was added until now."""
        with self._lock:
            figures = {labels: figures.copy() for labels, figures in self._sums.figures.items()}
            return replace(self._sums, figures=figures, tries=self._sums.tries.copy())

    def _labels(self, receipt: Receipt) -> Labels:
        model = receipt.request.model
        if model not in self._models:
            # A name that nothing was served under is perhaps nobody's, and would take the place of one that is.
            if receipt.outcome is Outcome.COMPLETED and len(self._models) < MOST_MODELS:
                self._models.add(model)
            else:
                model = OTHER
        return Labels(_text(receipt.served_by or NOBODY), _text(model), receipt.request.dialect, receipt.outcome)


def _text(name: str) -> str:
    """As it can be written in UTF-8: one name that could not would cost everybody the page."""
    return name.encode("utf-8", "replace").decode()
