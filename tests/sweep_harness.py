"""A scripted server whose true times are known, and everything a study needs to be run against it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from taximeter.measurement.asking.asker import Asker
from taximeter.measurement.asking.wire import Question
from taximeter.measurement.sweep.study import Plan
from taximeter.measurement.sweep.sweep import Sweep, Sweeping
from tests.measurement_harness import Script, ScriptedServer, VirtualClock, chat, question, virtually

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)


class Asked:
    """Questions that say how long they are, and nothing else."""

    shortest_tokens = 1

    def question(
        self, shape: str, *, prompt_tokens: int, output_tokens: int, shared_tokens: int = 0, shared_seed: int = 0
    ) -> Question:
        plain = question(shape, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        return replace(plain, body=f"{shared_seed} {shared_tokens}".encode())


@dataclass(kw_only=True)
class Truth:
    """What the server truly takes, in milliseconds: `fixed` + `per_token` · n + `per_pair` · n² for a prompt, `step` +
    `per_depth` · depth for a token, `network` for the way there and back, `queue` (the mean of an exponential, if it
    `is_random`). Each is off by `spread` of itself. `says` lets it tell its own times, as vLLM does."""

    fixed: float = 0.0
    per_token: float = 0.1
    per_pair: float = 0.0
    step: float = 10.0
    per_depth: float = 0.0
    network: float = 0.0
    queue: float = 0.0
    is_random: bool = False
    spread: float = 0.02
    says: bool = False
    seed: int = 3

    def __post_init__(self) -> None:
        self._source = np.random.default_rng(self.seed)

    def answer(self, question: Question, _number: int = 0, **last: Any) -> Script:
        """An answer of this server."""
        n, m = question.asked_prompt_tokens or 1, question.asked_output_tokens or 1
        off = self._source.lognormal(0, self.spread, size=3) if self.spread else np.ones(3)
        queue = self.queue * (float(self._source.exponential()) if self.is_random else 1.0)
        prefill = (self.per_token * n + self.per_pair * n * n) * float(off[0])
        first = self.network + queue + self.fixed * float(off[1]) + prefill
        gaps = [(self.step + self.per_depth * (n + done)) * float(off[2]) for done in range(1, m)]
        arrivals = [first, *(first + sum(gaps[: done + 1]) for done in range(len(gaps)))]
        if self.says:
            last["metrics"] = {
                "queue_time_ms": queue,
                "time_to_first_token_ms": prefill,
                "generation_time_ms": arrivals[-1] - first,
            }
        return chat(arrivals, prompt_tokens=n, **last)


def swept(
    answer: Callable[[Question, int], Script],
    *,
    plan: Plan | None = None,
    at: int | None = None,
    run: Callable[[Sweeping, VirtualClock, ScriptedServer], Any] | None = None,
    **options: Any,
) -> Sweep:
    """A whole sweep of a server that answers by `answer`. `run` may do it otherwise than to its end."""

    async def work(clock: VirtualClock) -> Sweep:
        server = ScriptedServer(clock, answer)
        asker = Asker(server, name="server", run="run", clock=clock)
        sweeping = Sweeping(asker, Asked(), plan or Plan(prompt_tokens=LENGTHS, output_tokens=16), **options)
        await (sweeping.run() if run is None else run(sweeping, clock, server))
        return sweeping.conclude(np.random.default_rng(7), at=at)

    return virtually(work)


async def round_trip(ms: float) -> int:
    """What opening a connection took."""
    return round(ms * 1e6)
