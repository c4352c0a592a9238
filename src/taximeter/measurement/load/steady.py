"""What of a run may be measured: the time in which it was under the load that was asked for, and steadily so.

Owns: the window, how fast was really sent, how many tokens came when, and whether the second half was like the first.
Refuses to know: targets, and how requests were sent.

The window of a closed loop lies between the moment when all slots were busy and the one when the first had nothing more
to do. That of an open loop begins when the rate is the full one and the first requests have been through the server
(half of all latencies after that, but at most after a quarter of the schedule), and ends with the last arrival.
Latencies are those of requests that were due in the window, whenever they ended, so that long ones are not left out;
tokens are those that came in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from taximeter.errors import InvariantBroken
from taximeter.measurement.asking.observation import Observation, Origin
from taximeter.measurement.estimates import Estimate, mean, ratio_of_medians
from taximeter.measurement.load.run import LoadRun, Window
from taximeter.records import Outcome

_LATEST_START: Final = 0.25  # of the schedule
_BIN_NS: Final = 100_000_000
_PEAK_NS: Final = 1_000_000_000
SLICES: Final = 10
"""Into so many parts a window is cut, to see by how much its throughput may be off."""
_LEAST_DRIFT: Final = 1.2  # a change of the median that is worth a word


def window_of(run: LoadRun) -> Window | None:
    """See the module's docstring. None where there was no such time."""
    if not run.is_open_loop:
        return _window(run.busy_ns, run.idle_ns)
    if not run.due_ns:
        return None
    last_ns = run.due_ns[-1]
    if run.was_stopped:
        last_ns = max((seen.scheduled_ns for seen in run.observations), default=0)
    latencies = [seen.end_to_end_ns() for seen in run.observations if seen.scheduled_ns >= run.ramp_ns]
    known = [taken for taken in latencies if taken is not None]
    settling_ns = min(median(known) if known else 0, (last_ns - run.ramp_ns) * _LATEST_START)
    # One that was due at the very start of a window is not in it.
    return _window(run.ramp_ns + round(settling_ns) - 1, last_ns)


def _window(start_ns: int | None, end_ns: int | None) -> Window | None:
    if start_ns is None or end_ns is None or end_ns <= start_ns:
        return None
    return Window(start_ns=start_ns, end_ns=end_ns)


def in_window(run: LoadRun, window: Window) -> list[Observation]:
    """Requests that were due in it. Of a run that was stopped, those that were cut by it say nothing of the server."""
    return [
        seen
        for seen in run.observations
        if window.has(seen.scheduled_ns) and not (run.was_stopped and seen.outcome is Outcome.ABORTED)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRate:
    """How fast requests left the client. Peaks are of tenths of a second."""

    mean_per_s: float
    peak_per_s: float
    due_peak_per_s: float
    waited: int  # were sent late, because no slot was free

    @property
    def is_a_burst(self) -> bool:
        """Whether more left within a tenth of a second than were ever due in one."""
        return self.peak_per_s > self.due_peak_per_s


def send_rate(run: LoadRun) -> SendRate:
    """Of the whole run. `waited` needs a cap: without one a request waits for nobody but the client itself."""
    sent_ns = np.asarray([seen.sent_ns for seen in run.observations], dtype=np.int64)
    due_ns = np.asarray([seen.scheduled_ns for seen in run.observations], dtype=np.int64)
    waited = 0
    if run.most_in_flight is not None:
        # Who waited was due while as many as may be were under way.
        ended_ns = np.sort([seen.ended_ns for seen in run.observations])
        left = np.searchsorted(np.sort(sent_ns), due_ns, side="right") - (sent_ns <= due_ns)
        under_way = left - np.searchsorted(ended_ns, due_ns, side="right")
        waited = int((under_way >= run.most_in_flight).sum())
    return SendRate(
        mean_per_s=_mean_per_s(sent_ns),
        peak_per_s=_peak_per_s(sent_ns),
        due_peak_per_s=_peak_per_s(due_ns),
        waited=waited,
    )


def _mean_per_s(at_ns: NDArray[np.int64]) -> float:
    span_ns = int(at_ns.max() - at_ns.min()) if len(at_ns) else 0
    return (len(at_ns) - 1) / span_ns * 1e9 if span_ns else 0.0


def _peak_per_s(at_ns: NDArray[np.int64]) -> float:
    return float(np.bincount(at_ns // _BIN_NS).max()) * 1e9 / _BIN_NS if len(at_ns) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Tokens of answers that came in a window, by the server's count. `peak_per_s` is of the best second. Tokens of
    `uncounted` requests, whose server did not say how many there were, are in neither. `interval_per_s` is the mean's
    95 % interval, by `SLICES` equal parts of the window; None where fewer events than twice that came."""

    mean_per_s: float
    peak_per_s: float
    uncounted: int
    interval_per_s: tuple[float, float] | None = None


def throughput(observations: Iterable[Observation], window: Window, *, rng: Generator) -> Throughput:
    """Where the server counts only at the end, an answer's tokens are shared out evenly among the events that brought
    them: their sum is what it says. Raises InvariantBroken for a peak below the mean."""
    at_ns: list[int] = []
    tokens: list[float] = []
    uncounted = 0
    for seen in observations:
        brought = tokens_brought(seen)
        if brought is None:
            uncounted += 1
            continue
        at_ns += seen.arrivals_ns
        tokens += brought
    stamps, counts = np.asarray(at_ns, dtype=np.int64), np.asarray(tokens, dtype=np.float64)
    inside = (stamps > window.start_ns) & (stamps <= window.end_ns)
    edges = np.append(np.arange(window.start_ns, window.end_ns, _PEAK_NS), window.end_ns)
    # The last second may be a part of one, and counts as such: so no peak is below the mean of all.
    places = np.searchsorted(edges, stamps[inside], side="left") - 1
    sums = np.bincount(places, weights=counts[inside], minlength=len(edges) - 1)
    mean_per_s = float(counts[inside].sum()) / window.seconds
    peak_per_s = float((sums / (np.diff(edges) / 1e9)).max())
    slices, _ = np.histogram(
        stamps[inside], np.linspace(window.start_ns, window.end_ns, SLICES + 1), weights=counts[inside]
    )
    found = mean(list(slices * (SLICES / window.seconds)), rng=rng)
    return checked(
        Throughput(
            mean_per_s=mean_per_s,
            peak_per_s=peak_per_s,
            uncounted=uncounted,
            interval_per_s=found.interval if int(inside.sum()) >= 2 * SLICES else None,
        )
    )


def checked(found: Throughput) -> Throughput:
    """What cannot be is an error, and no figure."""
    if found.peak_per_s < found.mean_per_s * (1 - 1e-9):
        raise InvariantBroken(f"the peak is {found.peak_per_s:.1f} tokens/s, and the mean {found.mean_per_s:.1f}")
    return found


def tokens_brought(seen: Observation) -> Sequence[float] | None:
    """How many tokens each event brought; None where nobody knows."""
    if seen.arrival_tokens is not None:
        return seen.arrival_tokens
    if seen.output_tokens is None:
        return None
    events = len(seen.arrivals_ns)
    return [seen.output_tokens / events] * events if events else []


def in_flight(observations: Iterable[Observation], window: Window) -> tuple[float, int]:
    """How many requests were under way in the window, on average and at most."""
    changes: dict[int, int] = {}
    spent_ns = 0
    for seen in observations:
        start_ns, end_ns = max(seen.sent_ns, window.start_ns), min(seen.ended_ns, window.end_ns)
        if end_ns > start_ns:
            spent_ns += end_ns - start_ns
            changes[start_ns] = changes.get(start_ns, 0) + 1
            changes[end_ns] = changes.get(end_ns, 0) - 1
    now = most = 0
    for _, change in sorted(changes.items()):
        now += change
        most = max(most, now)
    return spent_ns / 1e9 / window.seconds, most


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The second half of a window beside the first: the ratio of the medians of `what`."""

    what: str
    ratio: Estimate
    first_ns: float
    second_ns: float

    @property
    def is_sure(self) -> bool:
        """Whether the whole interval says that it changed, and by enough to speak of."""
        interval = self.ratio.interval
        return interval is not None and (interval[0] > _LEAST_DRIFT or interval[1] < 1 / _LEAST_DRIFT)

    @property
    def is_growing(self) -> bool:
        return self.is_sure and self.ratio.value > 1


_SERIES: Final[Mapping[str, Callable[[Observation], int | None]]] = {
    "TTFT": lambda seen: seen.ttft_ns(Origin.SCHEDULED),
    "ITL": lambda seen: seen.itl_ns,
}


def drifts(observations: Sequence[Observation], window: Window, *, rng: Generator) -> list[Drift]:
    """How TTFT and ITL of requests that were due in the second half of the window compare with those of the first. A
    load that a server can bear makes no difference; one that it cannot makes its queue grow all the time."""
    middle_ns = (window.start_ns + window.end_ns) // 2
    found: list[Drift] = []
    for what, figure in _SERIES.items():
        halves: tuple[list[float], list[float]] = ([], [])
        for seen in observations:
            value = figure(seen)
            if value is not None and window.has(seen.scheduled_ns):
                halves[seen.scheduled_ns > middle_ns].append(value)
        first, second = halves
        if first and second and min(first) > 0:  # tokens that come all at once have no time between them to compare
            ratio = ratio_of_medians(second, first, rng=rng)
            found.append(Drift(what=what, ratio=ratio, first_ns=median(first), second_ns=median(second)))
    return found
