"""What all studies of one server have in common: a plan, what may be spent, how far it is, and how long it will take.

Owns: the beginning of a study under way, and the time that is left. Refuses to know: what is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from taximeter.measurement.asking.observation import Observation
from taximeter.measurement.asking.wire import Question

SPENT: Final = "the limit of what may be spent is reached"
_BEFORE: Final = "it was interrupted"


class Questions(Protocol):
    """Who makes prompts of exact lengths: `prompts.Prompts`."""

    @property
    def shortest_tokens(self) -> int: ...

    def question(
        self,
        shape: str,
        *,
        prompt_tokens: int,
        output_tokens: int,
        shared_tokens: int = 0,
        shared_seed: int = 0,
    ) -> Question: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is asked: each of `prompt_tokens`, `repeats` times, for `output_tokens`, in an order by `seed`."""

    prompt_tokens: tuple[int, ...]
    output_tokens: int = 64
    repeats: int = 5
    seed: int = 0

    @property
    def requests(self) -> int:
        """How many are sent, the warm-up among them."""
        return len(self.prompt_tokens) * (self.repeats + 1)

    def kinds(self) -> list[tuple[int, int, int]]:
        """For the estimate of what it costs: how often, prompt tokens, output tokens."""
        return [(self.repeats + 1, tokens, self.output_tokens) for tokens in self.prompt_tokens]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far it is: requests that are over, of all. `left_s` is the time that is left, by what was asked so far; None
    before that is known."""

    done: int
    of: int
    left_s: float | None
    says: str


Allows = Callable[[int, int], bool]
"""Is asked before each request, with its prompt and output tokens, whether it may still be sent."""
OnProgress = Callable[[Progress], object]
"""Is told after each request."""


def allow_all(_prompt_tokens: int, _output_tokens: int) -> bool:
    """Nothing costs anything."""
    return True


def tell_nobody(_progress: Progress) -> None:
    """Nobody looks."""


class Study:
    """A study under way. `observations` are those that count, in the order they were sent; `stopped` says why it ended
    before its end. `steps` is what it consists of: how often each kind of step is to be made, the warm-up among them.
    """

    def __init__(
        self, questions: Questions, plan: Plan, steps: Mapping[str, int], *, allows: Allows, on_progress: OnProgress
    ) -> None:
        self.plan = plan
        self.observations: list[Observation] = []
        self.stopped: str | None = _BEFORE
        self._questions = questions
        self._allows = allows
        self._on_progress = on_progress
        self._steps = dict(steps)
        self._of = sum(steps.values())
        self._made: Counter[str] = Counter()
        self._took_s: dict[str, float] = {}

    def _did(self, step: str, took_ns: int, says: str) -> None:
        """A step is over, and took so long."""
        self._made[step] += 1
        self._took_s[step] = self._took_s.get(step, 0.0) + took_ns / 1e9
        left = {each: self._steps[each] - self._made[each] for each in self._steps}
        self._on_progress(
            Progress(done=self._of - sum(left.values()), of=self._of, left_s=self._left_s(left), says=says)
        )

    def _leave_out(self, step: str) -> None:
        """This kind of step will not be made any more."""
        self._steps[step] = self._made[step]

    def _left_s(self, left: Mapping[str, int]) -> float | None:
        """By what each kind of step took so far; None before each has been made once."""
        if any(many and not self._made[step] for step, many in left.items()):
            return None
        return sum(many * self._took_s[step] / self._made[step] for step, many in left.items() if many)
