"""How a duration grows with a number of tokens: curves through measured points, with what is not known of them.

Owns: the fits TTFT = a + b·n + c·n² and time per token = d + e·depth, their intervals, and what follows from the
coefficients. Refuses to know: how the samples came about.

Each length counts by its median, so that one hiccup bends nothing, and by relative error, so that long prompts do not
silence short ones. No coefficient is negative: no work takes less time than none. Intervals come from drawing each
length's samples again; where the curve misses the medians by more than their spread explains, that is in them too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Final

from taximeter.measurement.estimates import DRAWS, Estimate, of_draws

if TYPE_CHECKING:
    from numpy import float64
    from numpy.random import Generator
    from numpy.typing import NDArray

    Floats = NDArray[float64]

TTFT: Final = ("a", "b", "c")
"""TTFT by prompt tokens: fixed time, time for each token, and time for each pair of tokens."""

ITL: Final = ("d", "e")
"""Time per token by depth, which is how many tokens a step looks back on, the prompt and half of the answer: time of a
step whatever its depth, and time for each of those tokens."""

_LEAST_REPEATS: Final = 3  # of one length, for a spread that says anything


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedPoint:
    """One length as the fit used it: its median, and how far the curve lies beside it, as a share of the median."""

    tokens: float
    median: float
    residual_ratio: float
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A polynomial in tokens, `names` by ascending power, in the unit of the samples.

    `residual_ratio` is the root mean square of the points' relative residuals, None where there are as many
    coefficients as points. `draws` are the coefficients of each bootstrap draw, None where there is no interval.
    """

    names: tuple[str, ...]
    coefficients: tuple[Estimate, ...]
    points: tuple[FittedPoint, ...]
    residual_ratio: float | None
    draws: Floats | None = field(repr=False, compare=False)
    unknown_reason: str | None = None

    def __getitem__(self, name: str) -> Estimate:
        return self.coefficients[self.names.index(name)]

    def values(self) -> Floats:
        import numpy as np  # noqa: PLC0415  # as in `estimates`

        return np.array([coefficient.value for coefficient in self.coefficients])

    def at(self, tokens: float) -> Estimate:
        """The curve at `tokens`, with its band."""
        return self._derived(lambda of: of @ self._powers(tokens))

    def part(self, names: Sequence[str], tokens: float) -> Estimate:
        """What the terms `names` come to at `tokens`."""
        chosen = self._chosen(names)
        return self._derived(lambda of: of[..., chosen] @ self._powers(tokens)[chosen])

    def share(self, name: str, within: Sequence[str], tokens: float) -> Estimate:
        """The term `name` as a share of the terms `within` at `tokens`; 0 where they are all 0."""
        one, whole = self._chosen([name]), self._chosen(within)

        def of_all(of: Floats) -> Floats:
            import numpy as np  # noqa: PLC0415

            powers = self._powers(tokens)
            part, total = of[..., one] @ powers[one], of[..., whole] @ powers[whole]
            return np.divide(part, total, out=np.zeros_like(part), where=total > 0)

        return self._derived(of_all)

    def overtakes(self, higher: str, lower: str) -> Estimate:
        """The number of tokens from which on the term `higher`, of one more power, is larger than `lower`; infinite
        where it never is."""
        above, below = self.names.index(higher), self.names.index(lower)
        return self._derived(lambda of: _divided(of[..., below], of[..., above]))

    def per_second(self, name: str, *, unit_s: float) -> Estimate:
        """1 / coefficient, of samples whose unit is `unit_s` seconds; infinite where the coefficient is 0."""
        index = self.names.index(name)
        return self._derived(lambda of: _divided(1 / unit_s, of[..., index]))

    def drawn(self, names: Sequence[str], tokens: float) -> Floats:
        """What the terms `names` come to at `tokens` in each draw; the value alone where there are none."""
        import numpy as np  # noqa: PLC0415

        chosen = self._chosen(names)
        of = np.atleast_2d(self.values()) if self.draws is None else self.draws
        return of[:, chosen] @ self._powers(tokens)[chosen]

    def _derived(self, of: Callable[[Floats], Floats]) -> Estimate:
        n = sum(point.n for point in self.points)
        value = float(of(self.values()))
        if self.draws is None:
            return Estimate(value=value, n=n, unknown_reason=self.unknown_reason or "no interval")
        return _estimate(value, of(self.draws), self.points)

    def _powers(self, tokens: float) -> Floats:
        import numpy as np  # noqa: PLC0415

        return np.array([float(tokens) ** power for power in range(len(self.names))], dtype=np.float64)

    def _chosen(self, names: Sequence[str]) -> list[int]:
        return [self.names.index(name) for name in names]


def fit(samples: Mapping[float, Sequence[float]], names: tuple[str, ...], *, rng: Generator) -> Fit:
    """The polynomial with as many coefficients as `names` through `samples`, each length's durations by its tokens.

    Raises ValueError where there are fewer lengths than coefficients. With fewer than three samples of any length the
    coefficients have no intervals.
    """
    import numpy as np  # noqa: PLC0415

    if len(samples) < len(names):
        raise ValueError(f"{len(names)} coefficients need as many lengths, there are {len(samples)}")
    by_length = [(float(tokens), np.asarray(of, dtype=np.float64)) for tokens, of in sorted(samples.items())]
    if any(not len(of) or not np.isfinite(of).all() or (of <= 0).any() for _, of in by_length):
        raise ValueError("durations are numbers above 0, at least one of each length")
    tokens = np.array([tokens for tokens, _ in by_length])
    medians = np.array([np.median(of) for _, of in by_length])
    solve = _Solver(tokens, medians, len(names))
    values = solve(medians[None, :])[0]
    residuals = (tokens[:, None] ** np.arange(len(names)) @ values - medians) / medians
    free = len(tokens) - int(np.count_nonzero(values))
    misfit = math.sqrt(float((residuals**2).sum()) / free) if free > 0 else None
    points = tuple(
        FittedPoint(tokens=at, median=float(median), residual_ratio=float(residual), n=len(of))
        for (at, of), median, residual in zip(by_length, medians, residuals, strict=True)
    )
    fewest = min(len(of) for _, of in by_length)
    reason = None if fewest >= _LEAST_REPEATS else f"n too small: {_LEAST_REPEATS} repeats of each length are needed"
    draws = None if reason else _draws([of for _, of in by_length], solve, medians, misfit, rng)
    n = sum(point.n for point in points)
    coefficients = tuple(
        Estimate(value=float(value), n=n, unknown_reason=reason)
        if draws is None
        else _estimate(float(value), draws[:, index], points)
        for index, value in enumerate(values)
    )
    root = float(np.sqrt((residuals**2).mean())) if free > 0 else None
    return Fit(
        names=names, coefficients=coefficients, points=points, residual_ratio=root, draws=draws, unknown_reason=reason
    )


def _draws(samples: list[Floats], solve: _Solver, medians: Floats, misfit: float | None, rng: Generator) -> Floats:
    import numpy as np  # noqa: PLC0415

    drawn = np.stack(
        [np.median(of[rng.integers(0, len(of), size=(DRAWS, len(of)), dtype=np.int64)], axis=1) for of in samples],
        axis=1,
    )
    noise = float(((drawn.std(axis=0) / medians) ** 2).mean())
    # What the medians' own spread does not explain is the curve's: a server need not be a polynomial.
    excess = math.sqrt(max(0.0, (misfit or 0.0) ** 2 - noise))
    drawn = drawn * (1 + excess * rng.standard_normal(drawn.shape))
    return solve(np.maximum(drawn, 0.0))


def _estimate(value: float, draws: Floats, points: Sequence[FittedPoint]) -> Estimate:
    n = sum(point.n for point in points)
    return of_draws(value, draws, n=n, drawn_from=min(point.n for point in points), degrees=n - len(points))


def _divided(above: Floats | float, below: Floats) -> Floats:
    import numpy as np  # noqa: PLC0415

    return np.divide(above, below, out=np.full_like(np.asarray(below, dtype=np.float64), np.inf), where=below > 0)


class _Solver:
    """Non-negative least squares, exactly and for many right-hand sides at once: with so few coefficients each set of
    those that are not 0 can be tried, and the best one without a negative coefficient is the solution."""

    def __init__(self, tokens: Floats, scale: Floats, terms: int) -> None:
        import numpy as np  # noqa: PLC0415

        self._scale = scale
        largest = float(tokens.max()) or 1.0
        self._units = largest ** np.arange(terms)  # columns of like size
        self._columns = (tokens[:, None] / largest) ** np.arange(terms) / scale[:, None]
        kept = [list(chosen) for size in range(1, terms + 1) for chosen in combinations(range(terms), size)]
        self._solved = [(chosen, np.linalg.pinv(self._columns[:, chosen])) for chosen in kept]

    def __call__(self, durations: Floats) -> Floats:
        """`durations` is (draws, lengths); gives (draws, coefficients)."""
        import numpy as np  # noqa: PLC0415

        relative: Floats = durations / self._scale
        best = np.zeros((len(durations), len(self._units)))
        least = (relative**2).sum(axis=1)
        for chosen, inverse in self._solved:
            found: Floats = relative @ inverse.T
            missed: Floats = ((found @ self._columns[:, chosen].T - relative) ** 2).sum(axis=1)
            better = np.flatnonzero((found >= 0).all(axis=1) & (missed < least))
            least[better] = missed[better]
            best[better] = 0.0
            for column, index in enumerate(chosen):
                best[better, index] = found[better, column]
        return best / self._units
