"""When requests are due, fixed before the first one is sent.

Owns: arrival processes, ramps, and waiting for a moment. Refuses to know: what is asked. Times are absolute, in
nanoseconds since the run began: who waits for each of them is late for that one at most, while gaps slept one after the
other add up their delays, and the rate drifts down.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.random import Generator

from taximeter.clock import Clock
from taximeter.errors import RequestError

NS_PER_S: Final = 1_000_000_000
MOST_ARRIVALS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """An arrival process. The gaps between requests are gamma-distributed, with shape `burstiness`: 1 is Poisson, less
    comes in bursts, more is steadier, infinity is a constant gap. During the first `ramp_s` the rate grows from
    nothing."""

    burstiness: float = 1.0
    ramp_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.burstiness > 0:
            raise RequestError("--burstiness must be more than 0: 1 is Poisson", param="burstiness")
        if not 0 <= self.ramp_s < math.inf:
            raise RequestError("--ramp must be a number of seconds", param="ramp")

    @property
    def name(self) -> str:
        if self.burstiness == math.inf:
            return "constant"
        return "Poisson" if self.burstiness == 1.0 else f"gamma, burstiness {self.burstiness:g}"

    def times_ns(self, rate_per_s: float, duration_s: float, rng: Generator) -> tuple[int, ...]:
        """When requests are due, at `rate_per_s` for `duration_s`, which follow the ramp.

        How many there are is certain, the rate times the time (during the ramp half of that), so that the rate is just
        what was asked for; when they come is drawn. For Poisson arrivals that is their distribution given their number.
        Raises RequestError for a rate that is none, and for more than a million.
        """
        if not 0 < rate_per_s < math.inf or not 0 < duration_s < math.inf:
            raise RequestError("a rate and a duration must be more than 0", param="rate")
        load = rate_per_s * (duration_s + self.ramp_s / 2)  # requests, in all
        if load > MOST_ARRIVALS:
            raise RequestError(f"{load:,.0f} requests are too many: {MOST_ARRIVALS:,} at most", param="rate")
        count = max(1, round(load))
        if self.burstiness == math.inf:
            passed = (np.arange(count) + 0.5) / count
        else:
            gaps = rng.gamma(self.burstiness, size=count + 1)
            passed = np.cumsum(gaps[:-1]) / gaps.sum()
        return tuple(self._at_ns(float(share) * load, rate_per_s) for share in passed)

    def _at_ns(self, due: float, rate_per_s: float) -> int:
        """When so many requests are due: the rate, added up, turned around."""
        of_ramp = rate_per_s * self.ramp_s / 2
        if due < of_ramp:
            return round(math.sqrt(2 * self.ramp_s * due / rate_per_s) * NS_PER_S)
        return round((self.ramp_s + (due - of_ramp) / rate_per_s) * NS_PER_S)


def replayed_ns(recorded_ns: Sequence[int], rate_per_s: float | None = None) -> tuple[int, ...]:
    """Recorded times as a schedule: in order, from 0, and as fast as recorded, or stretched so that the mean rate is
    `rate_per_s`. Raises RequestError where a rate is asked for and all came at once."""
    first_ns, last_ns = min(recorded_ns), max(recorded_ns)
    times_ns = sorted(at_ns - first_ns for at_ns in recorded_ns)
    if rate_per_s is None:
        return tuple(times_ns)
    if last_ns == first_ns:
        raise RequestError("all requests of the trace come at once: they cannot be given a rate", param="rate")
    stretch = (len(times_ns) - 1) * NS_PER_S / rate_per_s / (last_ns - first_ns)
    return tuple(round(at_ns * stretch) for at_ns in times_ns)


async def until(at_ns: int, clock: Clock) -> None:
    """Wait until `clock` shows `at_ns`; at once when it does already."""
    while (left_ns := at_ns - clock.monotonic_ns()) > 0:  # noqa: ASYNC110 - the clock is what is waited for
        await asyncio.sleep(left_ns / NS_PER_S)
