"""How long running answers stand still when a long prompt comes: their largest gap before, during and after.

Owns: getting answers to run, sending a prompt into them, and which gap belongs where. Refuses to know: why a server
would make them wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from taximeter.errors import UpstreamError
from taximeter.figures import duration_text
from taximeter.measurement import estimates
from taximeter.measurement.asking.asker import Asker
from taximeter.measurement.asking.observation import Observation
from taximeter.measurement.asking.wire import Question
from taximeter.measurement.estimates import Estimate
from taximeter.measurement.sweep.study import SPENT, Allows, OnProgress, Plan, Questions, Study, allow_all, tell_nobody

if TYPE_CHECKING:
    from numpy.random import Generator

STREAM: Final = "stream"
LONG: Final = "long prompt"
ALONE: Final = "long prompt alone"
PHASES: Final = ("before", "during", "after")
_SHORT_TOKENS: Final = 64
_RUNNING_TOKENS: Final = 8  # a stream that has so many is running
_HARM: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Encounter:
    """One long prompt among running answers: the largest gap of any of them by phase, in nanoseconds. `during` is from
    when it was sent to its first token; a gap belongs to each phase that it reaches into, and long ones to `during`."""

    prompt: Observation
    streams: tuple[Observation, ...]
    largest_ns: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """What was found. `largest_ns` are the medians of the largest gaps by phase; `ratio` how many times as long the one
    during it is as the one before; `alone_ns` and `among_ns` the long prompt's own time to the first token."""

    plan: Plan
    streams: int
    encounters: tuple[Encounter, ...]
    largest_ns: dict[str, Estimate]
    ratio: Estimate | None
    alone_ns: Estimate | None
    among_ns: Estimate | None
    says: str
    warnings: tuple[str, ...]
    observations: tuple[Observation, ...] = field(repr=False)
    stopped: str | None = None


class Interfering(Study):
    """The study under way. `asker_for` gives an asker that tells of each arrival; all of them count from the same
    beginning. `plan` has the long prompt as its only length; running answers have `plan.output_tokens`."""

    def __init__(
        self,
        asker_for: Callable[[Callable[[int], object]], Asker],
        questions: Questions,
        plan: Plan,
        *,
        streams: int,
        allows: Allows = allow_all,
        on_progress: OnProgress = tell_nobody,
    ) -> None:
        rounds = {ALONE: plan.repeats + 1, LONG: plan.repeats + 1}
        super().__init__(questions, plan, rounds, allows=allows, on_progress=on_progress)
        self._asker_for = asker_for
        self._streams = streams
        self._encounters: list[Encounter] = []
        self._alone: list[Observation] = []
        self._void: list[str] = []

    async def run(self) -> None:
        """In each round once alone, then among running answers; the first round is a warm-up. Raises UpstreamError
        where that is not answered."""
        for round_ in range(self.plan.repeats + 1):
            if not self._allows(self._prompt_tokens, self.plan.output_tokens * (self._streams + 1)):
                self.stopped = SPENT
                return
            alone = await self._asker_for(lambda _: None).ask(self._long(ALONE))
            self._did(ALONE, alone.ended_ns - alone.sent_ns, "a prompt alone")
            streams, prompt = await self._meet()
            met = (prompt, *streams)
            took_ns = max(seen.ended_ns for seen in met) - min(seen.sent_ns for seen in met)
            self._did(LONG, took_ns, "a prompt among answers")
            failed = next((seen for seen in (alone, prompt, *streams) if not seen.is_complete), None)
            if round_ == 0:
                if failed is not None:
                    raise UpstreamError(f"not everything is answered: {failed.error}")
                continue
            self.observations += [alone, *streams, prompt]
            if failed is not None:
                self._void.append(failed.error or failed.outcome.value)
                continue
            self._alone.append(alone)
            largest = largest_gaps(streams, prompt)
            if largest is None:
                self._void.append("an answer was over before the prompt was read: longer answers are needed")
                continue
            self._encounters.append(Encounter(prompt=prompt, streams=tuple(streams), largest_ns=largest))
        self.stopped = None

    def conclude(self, rng: Generator) -> Interference:
        """What it found so far."""
        by_phase = {phase: [float(met.largest_ns[phase]) for met in self._encounters] for phase in PHASES}
        has_any = bool(self._encounters)
        largest = {phase: estimates.median(of, rng=rng) for phase, of in by_phase.items() if of}
        ratio = estimates.ratio_of_medians(by_phase["during"], by_phase["before"], rng=rng) if has_any else None
        warnings: list[str] = []
        if self._void:
            warnings.append(f"{len(self._void)} of {self.plan.repeats} rounds do not count: {self._void[0]}")
        return Interference(
            plan=self.plan,
            streams=self._streams,
            encounters=tuple(self._encounters),
            largest_ns=largest,
            ratio=ratio,
            alone_ns=_ttft(self._alone, rng),
            among_ns=_ttft([met.prompt for met in self._encounters], rng),
            says=self._said(largest, ratio),
            warnings=tuple(warnings),
            observations=tuple(self.observations),
            stopped=self.stopped,
        )

    @property
    def _prompt_tokens(self) -> int:
        return self.plan.prompt_tokens[-1]

    def _long(self, shape: str) -> Question:
        return self._questions.question(shape, prompt_tokens=self._prompt_tokens, output_tokens=2)

    async def _meet(self) -> tuple[list[Observation], Observation]:
        """Running answers, and a long prompt among them."""
        running = [asyncio.Event() for _ in range(self._streams)]
        short = max(self._questions.shortest_tokens, min(_SHORT_TOKENS, self._prompt_tokens))
        async with asyncio.TaskGroup() as group:
            streams = [
                group.create_task(
                    self._asker_for(_when_running(event)).ask(
                        self._questions.question(STREAM, prompt_tokens=short, output_tokens=self.plan.output_tokens)
                    )
                )
                for event in running
            ]
            waiting = [group.create_task(event.wait()) for event in running]
            # A stream that fails never runs; then its end is what is waited for.
            for stream, event in zip(streams, running, strict=True):
                stream.add_done_callback(lambda _, event=event: event.set())
            await asyncio.wait(waiting)
            prompt = await self._asker_for(lambda _: None).ask(self._long(LONG))
        return [stream.result() for stream in streams], prompt

    def _said(self, largest: dict[str, Estimate], ratio: Estimate | None) -> str:
        if ratio is None:
            return "Nothing can be said: no round counts."
        before, during = (duration_text(round(largest[phase].value)) for phase in ("before", "during"))
        what = (
            f"while a prompt of {self._prompt_tokens:,} tokens is read, the largest gap of {self._streams} running "
            f"answers is {during}; before it, it was {before}"
        )
        if ratio.low is None or ratio.high is None:
            return f"Cannot tell ({ratio.unknown_reason}): {what}."
        times = f"{ratio.value:.1f} times as long ({ratio.low:.1f} to {ratio.high:.1f})"
        if ratio.low > _HARM:
            return f"Running answers stand still: {what}, {times}."
        if ratio.high < _HARM:
            return f"Running answers are not held up: {what}, {times}."
        return f"Cannot tell whether running answers are held up: {what}, {times}."


def largest_gaps(streams: Sequence[Observation], prompt: Observation) -> dict[str, int] | None:
    """The largest gap of any of `streams` before `prompt` was sent, until its first token, and after that. None where
    one of them was not running all the while."""
    if not prompt.arrivals_ns:
        return None
    sent_ns, read_ns = prompt.sent_ns, prompt.arrivals_ns[0]
    largest: dict[str, int] = dict.fromkeys(PHASES, 0)
    for stream in streams:
        if not stream.arrivals_ns or stream.arrivals_ns[0] >= sent_ns or stream.arrivals_ns[-1] <= read_ns:
            return None
        for began_ns, ended_ns in pairwise(stream.arrivals_ns):
            phase = "before" if ended_ns <= sent_ns else "after" if began_ns >= read_ns else "during"
            largest[phase] = max(largest[phase], ended_ns - began_ns)
    return largest


def _when_running(event: asyncio.Event) -> Callable[[int], object]:
    count = 0

    def arrived(_at_ns: int) -> None:
        nonlocal count
        count += 1
        if count >= _RUNNING_TOKENS:
            event.set()

    return arrived


def _ttft(observations: Sequence[Observation], rng: Generator) -> Estimate | None:
    found = [float(ttft) for seen in observations if (ttft := seen.ttft_ns()) is not None]
    return estimates.median(found, rng=rng) if found else None
