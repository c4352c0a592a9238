"""What a prompt's beginning saves that was seen before: each prompt is asked cold, and then with another end.

Owns: the pairs, and what they say of a server's cache. Refuses to know: how anybody keeps one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from taximeter.errors import UpstreamError
from taximeter.measurement import estimates
from taximeter.measurement.asking.asker import Asker
from taximeter.measurement.asking.observation import Observation
from taximeter.measurement.estimates import Estimate
from taximeter.measurement.sweep.study import SPENT, Allows, OnProgress, Plan, Questions, Study, allow_all, tell_nobody
from taximeter.measurement.sweep.sweep import WARM_RATIO, void_reason

if TYPE_CHECKING:
    from numpy.random import Generator

COLD: Final = "cold"
WARM: Final = "warm"
_TAIL_TOKENS: Final = 16  # what is new in a warm prompt, at least: a block may be as large
_TAIL_SHARE: Final = 8  # or an eighth of it
_USELESS: Final = 0.9  # a warm prompt that takes nearly as long as a cold one found nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePoint:
    """One length: the time to the first token cold and warm, how many times as long warm takes, and the share of the
    warm prompts' tokens that the server says it had. None is unknown."""

    prompt_tokens: int
    shared_tokens: int
    cold_ns: Estimate | None
    warm_ns: Estimate | None
    ratio: Estimate | None
    hit_ratio: float | None
    cold_hit_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStudy:
    """What was found. `has_cache` is whether warm prompts are certainly faster; None where it cannot be told."""

    plan: Plan
    points: tuple[CachePoint, ...]
    has_cache: bool | None
    says: str
    warnings: tuple[str, ...]
    observations: tuple[Observation, ...] = field(repr=False)
    stopped: str | None = None


class CacheStudying(Study):
    """The study under way."""

    def __init__(
        self,
        asker: Asker,
        questions: Questions,
        plan: Plan,
        *,
        allows: Allows = allow_all,
        on_progress: OnProgress = tell_nobody,
    ) -> None:
        pairs = {_shape(tokens, kind): plan.repeats + 1 for tokens in plan.prompt_tokens for kind in (COLD, WARM)}
        super().__init__(questions, plan, pairs, allows=allows, on_progress=on_progress)
        self._asker = asker

    async def run(self) -> None:
        """Ask every length cold and then warm, in rounds; the first round is a warm-up. Raises UpstreamError where that
        is not answered at all."""
        chance = random.Random(self.plan.seed)  # noqa: S311 - an order, not a key
        for round_ in range(self.plan.repeats + 1):
            for tokens in chance.sample(self.plan.prompt_tokens, len(self.plan.prompt_tokens)):
                if not self._allows(2 * tokens, 2 * self.plan.output_tokens):
                    self.stopped = SPENT
                    return
                beginning = chance.getrandbits(48)
                for kind in (COLD, WARM):
                    question = self._questions.question(
                        _shape(tokens, kind),
                        prompt_tokens=tokens,
                        output_tokens=self.plan.output_tokens,
                        shared_tokens=shared_of(tokens),
                        shared_seed=beginning,
                    )
                    seen = await self._asker.ask(question)
                    took_ns = seen.ended_ns - seen.sent_ns
                    self._did(_shape(tokens, kind), took_ns, f"{tokens:,} prompt tokens, {kind}")
                    if round_:
                        self.observations.append(seen)
                    elif not seen.is_complete:
                        raise UpstreamError(f"{tokens:,} prompt tokens are not answered: {seen.error}")
        self.stopped = None

    def conclude(self, rng: Generator) -> CacheStudy:
        """What it found so far."""
        points = tuple(self._point(tokens, rng) for tokens in self.plan.prompt_tokens)
        voids = [reason for seen in self.observations if (reason := void_reason(seen)) is not None]
        warnings = [f"{len(voids)} requests do not count; the first: {voids[0][1]}"] if voids else []
        if any((point.cold_hit_ratio or 0) >= WARM_RATIO for point in points):
            warnings.append("prompts that were to be cold came from a cache in part: what it saves is more than this")
        has_cache, says = _said(points)
        return CacheStudy(
            plan=self.plan,
            points=points,
            has_cache=has_cache,
            says=says,
            warnings=tuple(warnings),
            observations=tuple(self.observations),
            stopped=self.stopped,
        )

    def _point(self, tokens: int, rng: Generator) -> CachePoint:
        counted = [
            seen for seen in self.observations if seen.asked_prompt_tokens == tokens and void_reason(seen) is None
        ]
        cold = [seen for seen in counted if seen.shape.endswith(COLD)]
        warm = [seen for seen in counted if seen.shape.endswith(WARM)]
        colds, warms = _ttfts(cold), _ttfts(warm)
        return CachePoint(
            prompt_tokens=tokens,
            shared_tokens=shared_of(tokens),
            cold_ns=estimates.median(colds, rng=rng) if colds else None,
            warm_ns=estimates.median(warms, rng=rng) if warms else None,
            ratio=estimates.ratio_of_medians(warms, colds, rng=rng) if colds and warms else None,
            hit_ratio=_hit_ratio(warm),
            cold_hit_ratio=_hit_ratio(cold),
        )


def _shape(tokens: int, kind: str) -> str:
    return f"{tokens} {kind}"


def shared_of(tokens: int) -> int:
    """How many of a warm prompt's tokens were in the cold one."""
    return max(0, tokens - max(_TAIL_TOKENS, tokens // _TAIL_SHARE))


def _ttfts(observations: Sequence[Observation]) -> list[float]:
    return [float(ttft) for seen in observations if (ttft := seen.ttft_ns()) is not None]


def _hit_ratio(observations: Sequence[Observation]) -> float | None:
    told = [(seen.cached_tokens, seen.prompt_tokens) for seen in observations]
    known = [(cached, prompt) for cached, prompt in told if cached is not None and prompt]
    return sum(cached for cached, _ in known) / sum(prompt for _, prompt in known) if known else None


def _said(points: Sequence[CachePoint]) -> tuple[bool | None, str]:
    compared = [point for point in points if point.ratio is not None]
    if not compared:
        return None, "Nothing can be said: no pair of requests counts."
    longest = compared[-1]
    ratio = longest.ratio
    assert ratio is not None  # noqa: S101 - they were chosen so
    hits = "" if longest.hit_ratio is None else f"; the server says it had {longest.hit_ratio:.0%} of it"
    at = f"at {longest.prompt_tokens:,} tokens, of which {longest.shared_tokens:,} were seen before"
    if ratio.low is None or ratio.high is None:
        return None, f"Cannot tell what a cache saves ({ratio.unknown_reason}) {at}{hits}."
    interval = f"{ratio.value:.0%} ({ratio.low * 100:.0f} to {ratio.high:.0%})"
    if ratio.high < 1 and ratio.value < _USELESS:
        return True, f"A warm prompt takes {interval} of a cold one's time to the first token, {at}{hits}."
    if ratio.low > _USELESS:
        return False, f"Nothing is saved: a warm prompt takes {interval} of a cold one's time, {at}{hits}."
    return None, f"Cannot tell what a cache saves: a warm prompt takes {interval} of a cold one's time, {at}{hits}."
