"""Who computes what in the next step.

One rule: every request catches up from its computed tokens to its known tokens, within the step's token budget;
running ones first, then waiting ones. There is no prefill mode and no decode mode: a decode is a request that is one
token behind, a long prompt is one that is many behind and gets as much of the budget as is left. Continuous batching
and chunked prefill both follow.

Owns: the order, the budget, admission and preemption. Refuses to know: models, sampling, clocks.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass, field
from typing import Self

from taximeter.engine.kv_cache import KVCacheManager
from taximeter.engine.request_state import SequenceState, SequenceStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Tokens `start` to `start + count` of one sequence, to be computed in this step.

    `catches_up` says whether the sequence will then be level with the tokens it had when this was planned, so that
    its next one can be picked.
    """

    sequence: SequenceState
    start: int
    count: int
    catches_up: bool

    @classmethod
    def next_of(cls, sequence: SequenceState, budget: int) -> Self:
        """As much of what `sequence` is behind as fits into `budget` tokens: of its prompt, or of what follows it."""
        start, known = sequence.computed_tokens, sequence.known_tokens
        prompt = len(sequence.prompt)
        end = min(start + budget, prompt if start < prompt else known)
        return cls(sequence=sequence, start=start, count=end - start, catches_up=end == known)

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def is_generated(self) -> bool:
        """Whether these are tokens that the model wrote; else they are the prompt's."""
        return self.start >= len(self.sequence.prompt)


@dataclass(slots=True, kw_only=True)
class SchedulerOutput:
    """One step's plan. Chunks of generated tokens come first."""

    chunks: list[Chunk] = field(default_factory=list[Chunk])
    admitted: list[SequenceState] = field(default_factory=list[SequenceState])
    preempted: list[SequenceState] = field(default_factory=list[SequenceState])


class Scheduler:
    """Holds the running and the waiting sequences. `step_tokens` None means no budget."""

    def __init__(self, kv: KVCacheManager, *, step_tokens: int | None = 512, max_running: int = 64) -> None:
        if step_tokens is not None and step_tokens < 1:
            raise ValueError(f"a step needs a budget of at least one token, not {step_tokens}")
        if max_running < 1:
            raise ValueError(f"at least one sequence must be allowed to run, not {max_running}")
        self._kv = kv
        self._step_tokens = sys.maxsize if step_tokens is None else step_tokens
        self._max_running = max_running
        self.running: list[SequenceState] = []
        self.waiting: deque[SequenceState] = deque()

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, sequence: SequenceState) -> None:
        """Queue a new sequence, last."""
        self.waiting.append(sequence)

    def schedule(self) -> SchedulerOutput:
        """Plan the next step. Memory for all of its chunks is allocated when this returns."""
        plan = SchedulerOutput()
        budget = self._continue_running(plan, self._step_tokens)
        if not plan.preempted:
            # A step that had to throw somebody out has no room to let somebody in.
            self._admit_waiting(plan, budget)
        plan.chunks.sort(key=lambda chunk: not chunk.is_generated)
        return plan

    def _continue_running(self, plan: SchedulerOutput, budget: int) -> int:
        index = 0
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            chunk = Chunk.next_of(sequence, budget)
            while not self._kv.grow(sequence, chunk.end):
                victim = self.running[-1]
                self.preempt(victim)
                plan.preempted.append(victim)
                if victim is sequence:
                    return budget
            plan.chunks.append(chunk)
            budget -= chunk.count
            index += 1
        return budget

    def _admit_waiting(self, plan: SchedulerOutput, budget: int) -> None:
        passed_over: list[SequenceState] = []
        while self.waiting and budget > 0 and len(self.running) < self._max_running:
            sequence = self.waiting.popleft()
            if self._waits_for_leader(sequence):
                passed_over.append(sequence)
                continue
            if not self._kv.admit(sequence, self._step_tokens):
                # First come, first served: nobody smaller overtakes, or the large one would starve.
                passed_over.append(sequence)
                break
            sequence.status = SequenceStatus.RUNNING
            self.running.append(sequence)
            plan.admitted.append(sequence)
            chunk = Chunk.next_of(sequence, budget)
            plan.chunks.append(chunk)
            budget -= chunk.count
        self.waiting.extendleft(reversed(passed_over))

    def preempt(self, sequence: SequenceState) -> None:
        """Take a running sequence's memory; it goes to the front of the queue and will be computed again. What it
        has written so far it keeps."""
        self.running.remove(sequence)
        self._kv.release(sequence)
        sequence.status = SequenceStatus.PREEMPTED
        sequence.preemptions += 1
        self.waiting.appendleft(sequence)

    def update(self, chunk: Chunk) -> None:
        """A chunk of the last plan was computed."""
        sequence = chunk.sequence
        sequence.computed_tokens = chunk.end
        sequence.high_water_tokens = max(sequence.high_water_tokens, chunk.end)
        self._kv.note_computed(sequence, before=chunk.start)

    def finish(self, sequence: SequenceState) -> None:
        """A sequence is done or unwanted, wherever it is. Idempotent."""
        if sequence.status is SequenceStatus.RUNNING:
            self.running.remove(sequence)
            self._kv.release(sequence)
        elif sequence.status is not SequenceStatus.FINISHED:
            self.waiting.remove(sequence)
        sequence.status = SequenceStatus.FINISHED

    def abandon(self) -> None:
        """Forget every sequence and all of the memory's bookkeeping, whatever state they are in."""
        self.running.clear()
        self.waiting.clear()
        self._kv.reset()

    @staticmethod
    def _waits_for_leader(sequence: SequenceState) -> bool:
        leader = sequence.leader
        return leader is not None and leader.status is not SequenceStatus.FINISHED and not leader.prompt_is_read
