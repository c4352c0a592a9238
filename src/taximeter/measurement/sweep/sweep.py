"""The same request at several prompt lengths, one at a time: what was seen at each, and what it says together.

Owns: which lengths, in which order, what makes a request count or not, whether the server's caches were cold, and what
is concluded. Refuses to know: what a prompt's words are, and who shows the result.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from taximeter.errors import UpstreamError
from taximeter.measurement import estimates
from taximeter.measurement.asking.asker import Asker
from taximeter.measurement.asking.observation import Observation
from taximeter.measurement.estimates import Estimate
from taximeter.measurement.sweep.fit import ITL, TTFT, Fit, fit
from taximeter.measurement.sweep.study import SPENT, Allows, OnProgress, Plan, Questions, Study, allow_all, tell_nobody
from taximeter.measurement.sweep.verdict import Split, Verdict, split, verdict
from taximeter.telemetry.engines import EngineState

if TYPE_CHECKING:
    from numpy.random import Generator

WARM_RATIO: Final = 0.01
"""From which share of prompt tokens out of a cache on a run is no cold one."""

_MOST_FAILURES: Final = 5  # in a row: a server that is away does not come back by being asked
_DRIFT: Final = 0.10  # of a duration, before it is worth a warning
_SHORTEST: Final = 2  # lengths of which differences between equal requests are waiting
_TRIPS: Final = 2  # round trips measured in each round


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One length. `observations` count, `void` says how many do not and why. Figures are None where nothing counts."""

    prompt_tokens: int
    observations: tuple[Observation, ...]
    void: Mapping[str, int]
    ttft_ns: Estimate | None
    itl_ns: Estimate | None
    total_ns: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdCheck:
    """Whether prompts were read anew. `is_cold` None is not known. `by` is who counted: the server's usage, or the
    counters of its page; of both, the larger share counts."""

    is_cold: bool | None
    hit_ratio: float | None
    by: tuple[str, ...]
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What a sweep found. `observations` are all requests that were measured, in the order they were sent, void ones
    too. A fit is None where there are too few lengths for one. `stopped` says why it ended before its end."""

    plan: Plan
    observations: tuple[Observation, ...] = field(repr=False)
    points: tuple[Point, ...]
    ttft_fit: Fit | None
    itl_fit: Fit | None
    splits: tuple[Split, ...]
    verdict: Verdict | None
    cold: ColdCheck
    network_ns: Estimate | None
    warnings: tuple[str, ...]
    stopped: str | None = None

    @property
    def is_valid(self) -> bool:
        """Whether it is what it says it is. One that claims to be cold and was not is none."""
        return self.cold.is_cold is not False and self.verdict is not None


def geometric(low: int, high: int) -> tuple[int, ...]:
    """Lengths from `low` to `high`, each about twice the one before; both ends are among them."""
    steps = round(math.log2(high / low)) if high > low else 0
    return tuple(dict.fromkeys([*(round(low * (high / low) ** (step / max(1, steps))) for step in range(steps)), high]))


class Sweeping(Study):
    """A sweep under way. `ping` measures a round trip in nanoseconds, None where it cannot; `counters` reads the
    server's page."""

    def __init__(
        self,
        asker: Asker,
        questions: Questions,
        plan: Plan,
        *,
        ping: Callable[[], Awaitable[int | None]] | None = None,
        counters: Callable[[], Awaitable[EngineState]] | None = None,
        allows: Allows = allow_all,
        on_progress: OnProgress = tell_nobody,
    ) -> None:
        lengths = dict.fromkeys(map(str, plan.prompt_tokens), plan.repeats + 1)
        super().__init__(questions, plan, lengths, allows=allows, on_progress=on_progress)
        self.warnings: list[str] = []
        self._asker = asker
        self._ping = ping
        self._counters = counters
        self._trips_ns: list[int] = []
        self._before: EngineState | None = None
        self._after: EngineState | None = None

    async def run(self) -> None:
        """Warm up with one request of every length, then ask. Cancelling it ends the sweep; what was measured stays.

        Raises UpstreamError where no length at all is answered.
        """
        lengths = await self._warm_up()
        if lengths is None:
            self.stopped = SPENT
            return
        self._before = await self._read_counters()
        await self._measure_trip()
        chance = random.Random(self.plan.seed)  # noqa: S311 - an order, not a key
        failures = 0
        for _ in range(self.plan.repeats):
            # By rounds, so that a machine that grows slow is slow for all lengths, and what is cut off is balanced.
            for tokens in chance.sample(lengths, len(lengths)):
                if not self._allows(tokens, self.plan.output_tokens):
                    self.stopped = SPENT
                    return
                seen = await self._ask(tokens)
                self.observations.append(seen)
                failures = 0 if seen.is_complete else failures + 1
                if failures == _MOST_FAILURES:
                    self.stopped = f"{failures} requests in a row failed: {seen.error}"
                    return
            self._after = await self._read_counters()
            await self._measure_trip()
        self.stopped = None

    def conclude(self, rng: Generator, *, at: int | None = None) -> Sweep:
        """What it found so far. `at` is the prompt length that the verdict is about; the middle one without it."""
        points = tuple(self._point(tokens, rng) for tokens in self.plan.prompt_tokens)
        counted = [point for point in points if point.observations]
        ttft, itl = _fits(counted, self.plan.output_tokens, rng)
        splits = tuple(
            split(
                point.observations,
                output_tokens=self.plan.output_tokens,
                fit=ttft,
                network_ns=self._trips_ns,
                waits_ns=_waits_ns(counted),
                rng=rng,
            )
            for point in counted
            if point.total_ns is not None
        )
        cold = check_cold(self.observations, self._before, self._after)
        return Sweep(
            plan=self.plan,
            observations=tuple(self.observations),
            points=points,
            ttft_fit=ttft,
            itl_fit=itl,
            splits=splits,
            verdict=verdict(splits, at=at) if splits else None,
            cold=cold,
            network_ns=estimates.median(self._trips_ns, rng=rng) if self._trips_ns else None,
            warnings=(*self.warnings, *self._complaints(points, ttft, cold, rng)),
            stopped=self.stopped,
        )

    async def _warm_up(self) -> list[int] | None:
        """The lengths that are answered; None where not even this may be spent."""
        answered: list[int] = []
        error: str | None = None
        for tokens in self.plan.prompt_tokens:
            if not self._allows(tokens, self.plan.output_tokens):
                return None
            seen = await self._ask(tokens, shape=f"warm-up {tokens}")
            if seen.is_complete:
                answered.append(tokens)
            else:
                error = seen.error
                self._leave_out(str(tokens))
                self.warnings.append(f"{tokens:,} prompt tokens are not answered: {error}")
        if error is not None and not answered:
            raise UpstreamError(f"no prompt was answered: {error}")
        return answered

    async def _ask(self, tokens: int, *, shape: str | None = None) -> Observation:
        question = self._questions.question(
            shape or f"{tokens}", prompt_tokens=tokens, output_tokens=self.plan.output_tokens
        )
        seen = await self._asker.ask(question)
        says = f"{tokens:,} prompt tokens" if shape is None else "warming up"
        self._did(str(tokens), seen.ended_ns - seen.sent_ns, says)
        return seen

    async def _read_counters(self) -> EngineState | None:
        return None if self._counters is None else await self._counters()

    async def _measure_trip(self) -> None:
        for _ in range(_TRIPS):
            trip_ns = None if self._ping is None else await self._ping()
            if trip_ns is not None:
                self._trips_ns.append(trip_ns)

    def _point(self, tokens: int, rng: Generator) -> Point:
        counted: list[Observation] = []
        void: Counter[str] = Counter()
        for seen in self.observations:
            if seen.asked_prompt_tokens != tokens:
                continue
            if (reason := void_reason(seen)) is None:
                counted.append(seen)
            else:
                void[reason[0]] += 1
        ttfts = [ttft for seen in counted if (ttft := seen.ttft_ns()) is not None]
        itls = [itl for seen in counted if (itl := seen.itl_ns) is not None]
        steps = self.plan.output_tokens - 1
        totals = [
            ttft + (itl or 0) * steps
            for seen in counted
            if (ttft := seen.ttft_ns()) is not None and ((itl := seen.itl_ns) is not None or steps == 0)
        ]
        return Point(
            prompt_tokens=tokens,
            observations=tuple(counted),
            void=dict(void),
            ttft_ns=estimates.median(ttfts, rng=rng) if ttfts else None,
            itl_ns=estimates.median(itls, rng=rng) if itls else None,
            total_ns=estimates.median(totals, rng=rng) if totals else None,
        )

    def _complaints(self, points: Sequence[Point], ttft: Fit | None, cold: ColdCheck, rng: Generator) -> list[str]:
        said: list[str] = []
        if cold.is_cold is False:
            said.append(f"this was no cold run: {cold.says}")
        for point in points:
            for reason, count in point.void.items():
                said.append(f"{count} at {point.prompt_tokens:,} prompt tokens do not count: {reason}")
        for seen in self.observations:
            if (reason := void_reason(seen)) is not None:
                said.append(f"the first that does not count is request {seen.receipt_id or seen.id}: {reason[1]}")
                break
        counted = [seen for point in points for seen in point.observations]
        if any(seen.prompt_tokens is None for seen in counted):
            said.append("the server does not say how many tokens a prompt has: lengths are what was asked for")
        short = [
            seen for seen in counted if seen.output_tokens is not None and seen.output_tokens != self.plan.output_tokens
        ]
        if short:
            said.append(
                f"{len(short)} of {len(counted)} answers had another length than {self.plan.output_tokens:,} tokens: "
                "totals are for answers of that length, from each one's own time per token"
            )
        if twice := sum(seen.attempts > 1 for seen in counted):
            said.append(
                f"{twice} of {len(counted)} were sent again because the server had closed a kept connection: their "
                "times count from the first attempt"
            )
        if counted and all(seen.output_tokens is None for seen in counted):
            said.append("the server does not count its answers' tokens: nothing can be said of decode")
        if (drift := _drift(counted, rng)) is not None:
            said.append(f"the second half of the run took {drift:+.0%} of the first: something else changed meanwhile")
        if ttft is not None and ttft.residual_ratio is not None and ttft.residual_ratio > _DRIFT:
            said.append(f"the curve misses the points by {ttft.residual_ratio:.0%}: time does not grow as it says")
        return said


def void_reason(seen: Observation) -> tuple[str, str] | None:
    """Why an observation does not count, in general and in its own words; None where it does."""
    if not seen.is_complete:
        return seen.outcome.value, seen.error or seen.outcome.value
    if seen.prompt_is_exact is False:
        return (
            "the prompt had another length",
            f"{seen.prompt_tokens:,} prompt tokens by the server's count, {seen.asked_prompt_tokens:,} were asked for",
        )
    if not seen.arrivals_ns:
        return "no token was seen", "its answer had no token that could be seen"
    if len(seen.arrivals_ns) == 1 and (seen.output_tokens or 1) > 1:
        return "the answer came in one piece", "all of its tokens came at once: something on the way keeps them back"
    return None


def check_cold(
    observations: Sequence[Observation], before: EngineState | None = None, after: EngineState | None = None
) -> ColdCheck:
    """Whether prompts were read anew, by what usages say and by the counters of the server's page, where there are any.

    Not cold is a run of whose prompt tokens a hundredth or more came from a cache.
    """
    ratios: dict[str, float] = {}
    told = [
        (seen.cached_tokens, seen.prompt_tokens)
        for seen in observations
        if seen.cached_tokens is not None and seen.prompt_tokens and _tells_of_caches(seen.usage.reported)
    ]
    if told:
        ratios["usage"] = sum(cached for cached, _ in told) / sum(prompt for _, prompt in told)
    if before is not None and after is not None:
        hits, asked = (
            _grown(before.prefix_hit_tokens, after.prefix_hit_tokens),
            _grown(before.prefix_asked_tokens, after.prefix_asked_tokens),
        )
        if hits is not None and asked:
            ratios["counters"] = hits / asked
    if not ratios:
        return ColdCheck(
            is_cold=None,
            hit_ratio=None,
            by=(),
            says="not known: the server says of no prompt whether it was in a cache; each prompt was a new one",
        )
    by = {"usage": "the server's usage", "counters": "the counters of its page"}
    named = " and ".join(by[source] for source in ratios)
    worst = max(ratios.values())
    return ColdCheck(
        is_cold=worst < WARM_RATIO,
        hit_ratio=worst,
        by=tuple(ratios),
        says=f"{worst:.1%} of prompt tokens came from a cache, by {named}",
    )


def _tells_of_caches(reported: object) -> bool:
    """Whether a usage has a word for caches at all: one that has none is no proof that nothing was in one."""
    if not isinstance(reported, Mapping):
        return False
    said = cast("Mapping[str, object]", reported)
    return any(("cache" in name and value is not None) or _tells_of_caches(value) for name, value in said.items())


def _grown(before: float | None, after: float | None) -> float | None:
    """How much a counter grew; None where it is not there, or began anew."""
    return None if before is None or after is None or after < before else after - before


def _fits(points: Sequence[Point], output_tokens: int, rng: Generator) -> tuple[Fit | None, Fit | None]:
    ttfts = {
        float(point.prompt_tokens): [ttft for seen in point.observations if (ttft := seen.ttft_ns())]
        for point in points
    }
    itls = {
        point.prompt_tokens + output_tokens / 2: found
        for point in points
        if (found := [itl for seen in point.observations if (itl := seen.itl_ns)])
    }
    ttft = fit(ttfts, TTFT[: len(ttfts)], rng=rng) if len(ttfts) > 1 else None
    return ttft, fit(itls, ITL, rng=rng) if len(itls) > 1 else None


def _waits_ns(points: Sequence[Point]) -> list[float]:
    """What requests of the shortest lengths took longer to their first token than the fastest of the same length."""
    waits: list[float] = []
    for point in points[:_SHORTEST]:
        ttfts = [ttft for seen in point.observations if (ttft := seen.ttft_ns()) is not None]
        if len(ttfts) > 1:
            waits += [float(ttft - min(ttfts)) for ttft in ttfts]
    return waits


def _drift(counted: Sequence[Observation], rng: Generator) -> float | None:
    """By how much the later half took longer, relative to what is usual at each length, where that is certain and
    large; else None."""
    usual: dict[int | None, list[float]] = defaultdict(list)
    for seen in counted:
        usual[seen.asked_prompt_tokens].append(float(seen.ended_ns - seen.sent_ns))
    middles = {tokens: estimates.percentile(of, 0.5, rng=rng).value for tokens, of in usual.items()}
    in_order = sorted(counted, key=lambda seen: seen.sent_ns)
    relative = [(seen.ended_ns - seen.sent_ns) / middles[seen.asked_prompt_tokens] for seen in in_order]
    half = len(relative) // 2
    if half == 0:
        return None
    found = estimates.difference_of_medians(relative[half:], relative[:half], rng=rng)
    is_certain = found.low is not None and found.high is not None and (found.low > 0 or found.high < 0)
    return found.value if is_certain and abs(found.value) > _DRIFT else None
