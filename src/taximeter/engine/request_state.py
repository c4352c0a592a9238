"""What the engine knows of a request while it lives: its sequences, its tokens, its work so far.

A request asks for one or more choices; each choice is one *sequence* of tokens that goes through the scheduler on its
own. Owns: counters and token lists. Refuses to know: how tokens are computed, picked or sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from taximeter.engine.metering import Share
from taximeter.records import Basis, Ceiling, FinishReason, Phase, Usage, Work

HOLE = -1  # in a block table: the place of a block that was let go of


class SequenceStatus(Enum):
    """Where a sequence is."""

    WAITING = auto()  # never taken up yet
    RUNNING = auto()
    PREEMPTED = auto()  # was running, gave its memory back, waits to be computed again
    FINISHED = auto()


@dataclass(slots=True, eq=False, kw_only=True)
class SequenceState:
    """One choice of one request: a list of known tokens, of which the first `computed_tokens` are in the KV cache, in
    the blocks of `block_tables`: a table for each group of layers, or none while it holds no memory.

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
    block_tables: list[list[int]] = field(default_factory=list[list[int]])
    block_hashes: list[bytes] = field(default_factory=list[bytes])
    status: SequenceStatus = SequenceStatus.WAITING
    preemptions: int = 0
    finish_reason: FinishReason | None = None
    stop: str | None = None  # the stop string that ended it

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
    decode_compute_ns: int = 0
    decode_read_bytes: int = 0
    prefill_operations: int = 0
    energy_uj: int | None = 0
    peak_kv_blocks: int = 0
    counted_places: int = 0  # in all block tables, when blocks were last counted; 0 where tables are new

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
        """Update the peak of KV blocks: those of all groups of layers, a shared block counted once. As long as no table
        grows it stays as it is: a hole takes the place of a block."""
        places = sum(len(table) for sequence in self.sequences for table in sequence.block_tables)
        if places == self.counted_places:
            return
        self.counted_places = places
        tables = ((group, table) for sequence in self.sequences for group, table in enumerate(sequence.block_tables))
        held = {(group, block) for group, table in tables for block in table if block != HOLE}
        self.peak_kv_blocks = max(self.peak_kv_blocks, len(held))

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

    def charge(self, share: Share, *, is_prefill: bool) -> None:
        """Add what one of its spans is charged of a step. Energy that is unknown once stays so."""
        self.compute_ns += share.compute_ns
        if is_prefill:
            self.prefill_operations += share.operations
        else:
            self.decode_compute_ns += share.compute_ns
            self.decode_read_bytes += share.read_bytes
        if self.energy_uj is None or share.energy_uj is None:
            self.energy_uj = None
        else:
            self.energy_uj += share.energy_uj

    def work(self, kernels: str, *, ceiling: Ceiling | None, unknown_reasons: Mapping[str, str]) -> Work:
        """What it took until now. `ceiling` and the reasons are of the machine that computed."""
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
            decode_compute_ns=self.decode_compute_ns,
            decode_read_bytes=self.decode_read_bytes,
            prefill_operations=self.prefill_operations,
            ceiling=ceiling,
            energy_uj=None if "energy_uj" in unknown_reasons else self.energy_uj,
            unknown_reasons=unknown_reasons,
        )
