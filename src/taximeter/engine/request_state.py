"""What the engine knows of a request while it lives: its sequences, its tokens, its work so far.

A request asks for one or more choices; each choice is one *sequence* of tokens that goes through the scheduler on its
own. Owns: counters and token lists. Refuses to know: how tokens are computed, picked or sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from taximeter.records import Basis, FinishReason, Phase, Usage, Work


class SequenceStatus(Enum):
    """Where a sequence is."""

    WAITING = auto()  # never taken up yet
    RUNNING = auto()
    PREEMPTED = auto()  # was running, gave its memory back, waits to be computed again
    FINISHED = auto()


@dataclass(slots=True, eq=False, kw_only=True)
class SequenceState:
    """One choice of one request: a list of known tokens, of which the first `computed_tokens` are in the KV cache.

    `leader` is the request's first sequence for all others: they wait until it has read the prompt they share.
    `high_water_tokens` is the most that was ever computed: below it, computing is recomputing.
    """

    request_id: str
    choice: int
    prompt: tuple[int, ...]
    max_output_tokens: int
    leader: SequenceState | None = None
    output: list[int] = field(default_factory=list[int])
    computed_tokens: int = 0
    high_water_tokens: int = 0
    blocks: list[int] = field(default_factory=list[int])
    block_hashes: list[bytes] = field(default_factory=list[bytes])
    status: SequenceStatus = SequenceStatus.WAITING
    preemptions: int = 0
    finish_reason: FinishReason | None = None

    @property
    def known_tokens(self) -> int:
        return len(self.prompt) + len(self.output)

    @property
    def prompt_is_read(self) -> bool:
        """Whether the whole prompt went through the model at least once."""
        return self.high_water_tokens >= len(self.prompt)

    @property
    def is_stalled(self) -> bool:
        """Preempted, and not yet back where it was."""
        return self.status is SequenceStatus.PREEMPTED or (
            self.status is SequenceStatus.RUNNING and self.computed_tokens < self.high_water_tokens
        )

    def tokens(self, start: int, end: int) -> list[int]:
        """Known tokens `start` to `end` (exclusive), prompt and output as one list."""
        split = len(self.prompt)
        return [*self.prompt[start:end], *self.output[max(0, start - split) : max(0, end - split)]]


@dataclass(slots=True, eq=False, kw_only=True)
class RequestState:
    """One request: its sequences and what they took together."""

    request_id: str
    sequences: list[SequenceState]
    phase: Phase = Phase.QUEUE
    cache_hit_tokens: int | None = None
    prefill_passes: int = 0
    decode_passes: int = 0
    computed_tokens: int = 0
    reused_tokens: int = 0
    recomputed_tokens: int = 0
    compute_ns: int = 0
    peak_kv_blocks: int = 0

    @property
    def is_finished(self) -> bool:
        return all(sequence.status is SequenceStatus.FINISHED for sequence in self.sequences)

    def current_phase(self) -> Phase:
        """What the request as a whole is doing. It is stalled when all that is left of it is, and back in the queue
        when all that is left are choices that were never taken up."""
        alive = [sequence for sequence in self.sequences if sequence.status is not SequenceStatus.FINISHED]
        started = [sequence for sequence in alive if sequence.status is not SequenceStatus.WAITING]
        if not started:
            return Phase.QUEUE
        if all(sequence.is_stalled for sequence in started):
            return Phase.STALLED
        if any(sequence.output for sequence in self.sequences):
            return Phase.DECODE
        return Phase.PREFILL

    def note_held_blocks(self) -> None:
        """Update the peak of KV blocks, a shared block counted once."""
        held = len({block for sequence in self.sequences for block in sequence.blocks})
        self.peak_kv_blocks = max(self.peak_kv_blocks, held)

    def usage(self) -> Usage:
        """What is charged until now: the prompt once, as far as it was read, and the tokens of all choices."""
        leader = self.sequences[0]
        hit = self.cache_hit_tokens or 0
        read = max(hit, min(leader.high_water_tokens, len(leader.prompt)))
        return Usage(
            input_fresh_tokens=read - hit,
            input_cache_read_tokens=hit,
            output_text_tokens=sum(len(sequence.output) for sequence in self.sequences),
            basis=Basis.MEASURED,
        )

    def work(self, kernels: str) -> Work:
        """What it took until now."""
        return Work(
            prefill_passes=self.prefill_passes,
            decode_passes=self.decode_passes,
            computed_tokens=self.computed_tokens,
            reused_tokens=self.reused_tokens,
            recomputed_tokens=self.recomputed_tokens,
            preemptions=sum(sequence.preemptions for sequence in self.sequences),
            compute_ns=self.compute_ns,
            peak_kv_blocks=self.peak_kv_blocks,
            kernels=kernels,
        )
