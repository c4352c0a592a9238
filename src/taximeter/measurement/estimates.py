"""A figure from samples, with what is not known of it: every estimate says how many samples it has, and how far off it
may be.

Owns: percentiles, means, medians, ratios and shares with 95 % intervals, and when there are too few samples for one.
Refuses to know: what is estimated, and in which unit.

Percentiles are interpolated linearly between the two nearest samples: of 10, 20, 30 and 40 p50 is 25 and p90 is 37.
Intervals are those of the bootstrap, widened for few samples as Student's t is (expanded percentiles, Hesterberg 2015).
A percentile has an interval only where it is 95 % sure that some sample lies beyond it: 5 samples for the median, 29
for p90, 59 for p95, 299 for p99.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from numpy import float64
    from numpy.random import Generator
    from numpy.typing import NDArray

    Floats = NDArray[float64]

CONFIDENCE: Final = 0.95
DRAWS: Final = 4000
"""How often the bootstrap draws. A percentile's draws are made without drawing samples, so many are cheap."""

_MOST_RESAMPLED: Final = 1000  # samples; the mean of more is normally distributed, whatever they are
_TAIL: Final = (1 - CONFIDENCE) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure with its 95 % interval, all in the unit of the samples. `n` is how many samples there were.

    An interval that is not known is None at both ends, with a reason.
    """

    value: float
    low: float | None = None
    high: float | None = None
    n: int
    unknown_reason: str | None = None

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None) or (self.low is None) == (self.unknown_reason is None):
            raise ValueError("an interval has two ends, or a reason why it has none")

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends, or None."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def scaled(self, factor: float) -> Estimate:
        """The same in another unit; `factor` is positive."""
        if self.low is None or self.high is None:
            return replace(self, value=self.value * factor)
        return replace(self, value=self.value * factor, low=self.low * factor, high=self.high * factor)


def samples_needed(share: float) -> int:
    """How many samples it takes to be 95 % sure that one of them lies beyond the true percentile at `share`."""
    if not 0 < share < 1:
        raise ValueError(f"a percentile lies between 0 and 1, not at {share}")
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(max(share, 1 - share)))


def percentile(samples: Sequence[float], share: float, *, rng: Generator) -> Estimate:
    """The percentile at `share` (0.99 for p99), interpolated linearly. Samples may be infinite (what never came), but
    there is at least one. With too few of them it has no interval, and says how many are needed."""
    ordered = _ordered(samples)
    n, needed = len(ordered), samples_needed(share)
    value = _interpolated(ordered, share)
    if n < needed:
        return Estimate(value=value, n=n, unknown_reason=f"n too small: {percentile_name(share)} needs {needed}")
    return of_draws(value, _percentile_draws(ordered, share, rng), n=n)


def percentile_name(share: float) -> str:
    """What a percentile is called: p50, p99, p99.9."""
    return f"p{share * 100:.6g}"


def median(samples: Sequence[float], *, rng: Generator) -> Estimate:
    """The middle one."""
    return percentile(samples, 0.5, rng=rng)


def mean(samples: Sequence[float], *, rng: Generator) -> Estimate:
    """The mean. One sample has no interval."""
    import numpy as np  # noqa: PLC0415  # commands that measure nothing do not load it

    values = _array(samples)
    n, value = len(values), float(values.mean())
    if n < 2:
        return Estimate(value=value, n=n, unknown_reason="n too small: a mean needs 2")
    if n > _MOST_RESAMPLED:
        spread = -NormalDist().inv_cdf(_TAIL) * float(values.std(ddof=1)) / math.sqrt(n)
        return Estimate(value=value, low=value - spread, high=value + spread, n=n)
    drawn = values[rng.integers(0, n, size=(DRAWS, n), dtype=np.int64)]
    return of_draws(value, drawn.mean(axis=1), n=n)


def ratio_of_medians(above: Sequence[float], below: Sequence[float], *, rng: Generator) -> Estimate:
    """How many times as large the first's median is; `n` is the smaller number of samples. The second's is not 0."""
    return _of_two_medians(above, below, rng, lambda one, other: one / other)


def difference_of_medians(one: Sequence[float], other: Sequence[float], *, rng: Generator) -> Estimate:
    """The first's median less the second's; `n` is the smaller number of samples."""
    return _of_two_medians(one, other, rng, lambda one, other: one - other)


def share(k: int, n: int) -> Estimate:
    """`k` of `n`, with Wilson's interval, which is right at 0 and at 1 too."""
    if not 0 <= k <= n or n == 0:
        raise ValueError(f"{k} of {n} is no share")
    z = -NormalDist().inv_cdf(_TAIL)
    part, weight = k / n, z * z / n
    middle = (part + weight / 2) / (1 + weight)
    spread = z * math.sqrt(part * (1 - part) / n + weight / n / 4) / (1 + weight)
    return Estimate(value=part, low=max(0.0, middle - spread), high=min(1.0, middle + spread), n=n)


def of_draws(
    value: float, draws: Floats, *, n: int, drawn_from: int | None = None, degrees: int | None = None
) -> Estimate:
    """An estimate whose interval is that of bootstrap draws of the same figure.

    They were drawn from `n` samples; where that was done in groups, from `drawn_from` in the smallest one, and
    `degrees` of freedom are left in all.
    """
    import numpy as np  # noqa: PLC0415

    # An interval of draws from few samples is too narrow twice over: their spread has n in its denominator where n - 1
    # belongs, and their tails are a normal distribution's.
    group = n if drawn_from is None else drawn_from
    widening = math.sqrt(group / (group - 1)) * _students_t(group - 1 if degrees is None else degrees)
    tail = NormalDist().cdf(-widening)
    low, high = np.quantile(draws, [tail, 1 - tail], method="closest_observation")
    return Estimate(value=value, low=min(float(low), value), high=max(float(high), value), n=n)


def _of_two_medians(
    one: Sequence[float], other: Sequence[float], rng: Generator, of: Callable[[Any, Any], Any]
) -> Estimate:
    first, second = _ordered(one), _ordered(other)
    n, needed = min(len(first), len(second)), samples_needed(0.5)
    value = float(of(_interpolated(first, 0.5), _interpolated(second, 0.5)))
    if n < needed:
        return Estimate(value=value, n=n, unknown_reason=f"n too small: p50 needs {needed}")
    return of_draws(value, of(_percentile_draws(first, 0.5, rng), _percentile_draws(second, 0.5, rng)), n=n)


def _array(samples: Sequence[float]) -> Floats:
    import numpy as np  # noqa: PLC0415

    values = np.asarray(samples, dtype=np.float64)
    if not len(values):
        raise ValueError("there is not one sample")
    if np.isnan(values).any():
        raise ValueError("a sample is not a number")
    return values


def _ordered(samples: Sequence[float]) -> Floats:
    values = _array(samples).copy()
    values.sort()
    return values


def _place(n: int, share: float) -> tuple[int, float]:
    """Between which two samples in order a percentile lies: the first one's index, and how far beyond it."""
    place = share * (n - 1)
    return int(place), place - int(place)


def _interpolated(ordered: Floats, share: float) -> float:
    index, beyond = _place(len(ordered), share)
    lower = float(ordered[index])
    return lower if beyond == 0 or lower == math.inf else lower + beyond * (float(ordered[index + 1]) - lower)


def _percentile_draws(ordered: Floats, share: float, rng: Generator) -> Floats:
    """A percentile of `DRAWS` samples with replacement, without drawing them: the r-th of n uniform numbers in order
    has a beta distribution, and that number times n is where the r-th of a drawn sample lies in the given one."""
    import numpy as np  # noqa: PLC0415

    n = len(ordered)
    index, beyond = _place(n, share)
    first = rng.beta(index + 1, n - index, size=DRAWS)
    last = n - 1
    lower = ordered[np.minimum((first * n).astype(np.int64), last)]
    if beyond == 0:
        return lower
    second = first + (1 - first) * rng.beta(1, n - index - 1, size=DRAWS)
    upper = ordered[np.minimum((second * n).astype(np.int64), last)]
    steps = np.zeros(DRAWS)
    np.subtract(upper, lower, out=steps, where=upper != lower)  # infinite less infinite is no number
    return lower + beyond * steps


def _students_t(degrees: int) -> float:
    """Student's t beyond which a tail of half of what the confidence leaves lies, by its expansion around the normal
    distribution (Abramowitz and Stegun 26.7.5). Right to 1 % from three degrees on; below, the widened interval is all
    draws anyway."""
    z = -NormalDist().inv_cdf(_TAIL)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    fourth = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160
    return z + first / degrees + second / degrees**2 + third / degrees**3 + fourth / degrees**4
