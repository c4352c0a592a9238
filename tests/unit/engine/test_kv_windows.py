"""Where a window slides, memory is kept for what it still reaches, and everything it reaches is there."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from taximeter.engine.kv_cache import BlockPool, GroupSize, KVCacheManager, blocks_at_once
from taximeter.engine.request_state import HOLE, SequenceState
from taximeter.engine.scheduler import Chunk, Scheduler
from taximeter.errors import InvariantBroken

BLOCK = 4
WINDOW = 10


def manager_of(*sizes: GroupSize) -> KVCacheManager:
    return KVCacheManager(sizes, block_tokens=BLOCK)


def two_groups(sliding_blocks: int = 300, cached_blocks: int | None = None) -> KVCacheManager:
    """Layers that see everything, with memory enough, and layers that see ten tokens."""
    sliding = GroupSize(blocks=sliding_blocks, window=WINDOW, cached_blocks=cached_blocks)
    return manager_of(GroupSize(blocks=300), sliding)


def sequence(tokens: Sequence[int], name: str = "r") -> SequenceState:
    return SequenceState(request_id=name, choice=0, prompt=tuple(tokens), max_output_tokens=1000)


def held(state: SequenceState, group: int) -> int:
    return sum(block != HOLE for block in state.block_tables[group])


def compute(manager: KVCacheManager, state: SequenceState, count: int) -> None:
    """Pretend that the model computed the next `count` tokens."""
    before = state.computed_tokens
    assert manager.grow(state, before + count)
    state.computed_tokens = before + count
    manager.note_computed(state, before)


def read(manager: KVCacheManager, tokens: Sequence[int], *, step: int = 8) -> SequenceState:
    """Admit a prompt and compute it step by step."""
    state = sequence(tokens)
    assert manager.admit(state, step)
    while state.computed_tokens < state.known_tokens:
        compute(manager, state, min(step, state.known_tokens - state.computed_tokens))
    return state


def hit_of(manager: KVCacheManager, tokens: Sequence[int]) -> int:
    """How much of a prompt is found."""
    state = sequence(tokens)
    assert manager.admit(state, 8)
    hit = state.computed_tokens
    manager.release(state)
    return hit


def evict(pool: BlockPool, cached: int) -> None:
    """Have the free blocks and the next `cached` cached ones used for something else."""
    free = pool.available - pool.audit([]).cached
    pool.release(pool.take(free + cached))


def test_a_sequence_that_grows_holds_no_more_than_its_window() -> None:
    """A thousand tokens, eight at a time: 250 blocks where everything is seen, five at most where ten tokens are."""
    manager = two_groups()
    state = sequence(range(1000))
    assert manager.admit(state, 8)
    assert (held(state, 0), held(state, 1)) == (250, 5)
    while state.computed_tokens < 1000:
        compute(manager, state, 8)
        assert held(state, 1) <= 5  # nine keys before a step and its eight, wherever they begin
        manager.audit([state])
    assert [held(state, 0), held(state, 1)] == [250, 3]
    assert state.block_tables[1][:247] == [HOLE] * 247


def test_used_memory_is_lent_again_before_new_memory_is_touched() -> None:
    """With room for three cached blocks, a thousand tokens touch eight blocks of the 300; without a limit, 250."""
    limited, unlimited = two_groups(cached_blocks=3), two_groups()
    for manager in (limited, unlimited):
        read(manager, range(1000))
    assert limited.pools[1].touched_blocks <= 5 + 3
    assert unlimited.pools[1].touched_blocks == 250
    assert [manager.pools[0].touched_blocks for manager in (limited, unlimited)] == [250, 250]


def test_running_sequences_may_use_memory_that_the_cache_may_not() -> None:
    """The limit is on what is cached, not on what is lent."""
    pool = BlockPool(10, cached_blocks=1)
    assert sorted(pool.take(10)) == list(range(10))


def test_admission_asks_for_a_window_and_a_step_not_for_the_whole_prompt() -> None:
    """Five blocks are enough for any prompt, read eight tokens at a time; four are not."""
    five, four = two_groups(sliding_blocks=5), two_groups(sliding_blocks=4)
    assert five.audit([read(five, range(1000))]).used == 250 + 3
    state = sequence(range(1000))
    assert not four.admit(state, 8)
    assert state.block_tables == []
    assert four.audit([]).used == 0


def test_the_longest_sequence_is_limited_by_layers_that_keep_everything() -> None:
    """A window has no limit when it and a step fit; when they do not, its memory must hold the whole sequence."""
    assert two_groups(sliding_blocks=5).capacity_tokens(8) == 300 * BLOCK
    assert two_groups(sliding_blocks=4).capacity_tokens(8) == 4 * BLOCK
    assert two_groups(sliding_blocks=200).capacity_tokens(sys.maxsize) == 200 * BLOCK
    assert manager_of(GroupSize(blocks=5, window=WINDOW)).capacity_tokens(8) == sys.maxsize


def test_growing_checks_every_group_before_it_changes_one() -> None:
    """No room in the second group leaves the first as it was."""
    manager = two_groups(sliding_blocks=5)
    state = read(manager, range(8))
    others = manager.pools[1].take(manager.pools[1].available)
    before = [list(table) for table in state.block_tables]
    assert not manager.grow(state, 9)
    assert state.block_tables == before
    manager.pools[1].release(others)
    assert manager.grow(state, 9)


def test_admitting_checks_every_group_before_it_changes_one() -> None:
    """Neither group's memory may stay with a sequence for which the other has none."""
    manager = two_groups(sliding_blocks=5)
    others = manager.pools[1].take(4)
    assert not manager.admit(sequence(range(40)), 8)
    assert manager.pools[0].audit([]).used == 0
    assert manager.pools[1].audit([others]).used == 4


@pytest.mark.parametrize(
    ("evicted", "shared", "hit"),
    [
        (0, 40, 40),
        (7, 40, 40),  # all that slid out while 40 tokens were read; the window is left
        (8, 40, 0),  # the last block: 36 tokens would need one that slid out
        (0, 30, 28),
        (4, 30, 28),  # blocks 4, 5 and 6 are seen from position 28 on
        (5, 30, 0),
        (0, 9, 8),
        (1, 9, 0),
    ],
)
def test_a_prefix_is_a_hit_only_with_the_window_that_follows_from_it(evicted: int, shared: int, hit: int) -> None:
    """The layers that see everything have it all; how much can be used is what the others still have."""
    manager = two_groups(sliding_blocks=20)
    manager.release(read(manager, range(40)))
    evict(manager.pools[1], evicted)
    assert hit_of(manager, [*range(shared), *range(900, 950)]) == hit


def test_what_slid_out_of_a_running_sequence_is_still_found() -> None:
    """A second prompt with the beginning of the first goes on where they part, though the first is far past it."""
    manager = two_groups()
    first = read(manager, range(100))
    second = sequence([*range(50), 900, 901])
    assert manager.admit(second, 8)
    assert second.computed_tokens == 48
    assert second.block_tables[1][:9] == [HOLE] * 9  # positions up to 38 are in no later row's window
    assert manager.audit([first, second]).used == 25 + 3 + 1 + 3 + 1


def test_the_last_token_is_never_a_hit() -> None:
    """It has to be computed for its logits."""
    manager = two_groups()
    manager.release(read(manager, range(40)))
    assert hit_of(manager, range(40)) == 36


@settings(max_examples=200, deadline=None)
@given(
    window=st.integers(1, 30),
    blocks=st.integers(1, 12),
    kept=st.sets(st.integers(0, 11)),
    extra=st.integers(1, 2 * BLOCK),
)
def test_the_longest_possible_prefix_is_the_hit(window: int, blocks: int, kept: set[int], extra: int) -> None:
    """Against the definition: the most tokens, whole blocks, of which the last and the next one's window are there."""
    manager = manager_of(GroupSize(blocks=blocks + 3, window=window))
    pool = manager.pools[0]
    tokens = range(blocks * BLOCK)
    state = sequence(tokens)
    assert manager.admit(state, sys.maxsize)
    table = list(state.block_tables[0])
    compute(manager, state, len(tokens))
    manager.release(state)
    kept = {index for index in kept if index < blocks}
    for index in kept:  # lent once more, so that they are the last to go
        pool.share(table[index])
        pool.release([table[index]])
    evict(pool, blocks - len(kept))

    def is_hit(length: int) -> bool:
        seen = {length - 1, *range(max(0, length - window + 1), length)}
        return all(position // BLOCK in kept for position in seen)

    longest = max((length for length in range(BLOCK, len(tokens) + 1, BLOCK) if is_hit(length)), default=0)
    assert hit_of(manager, [*tokens, *range(900, 900 + extra)]) == longest


def test_the_audit_sees_a_hole_where_a_row_looks_and_a_block_where_none_does() -> None:
    """Either would be a wrong answer or lost memory."""
    manager = two_groups()
    state = read(manager, range(40))
    assert manager.audit([state]).used == 10 + 3
    state.computed_tokens -= BLOCK
    with pytest.raises(InvariantBroken):
        manager.audit([state])
    state.computed_tokens += 2 * BLOCK
    with pytest.raises(InvariantBroken):
        manager.audit([state])


def test_groups_come_in_one_order() -> None:
    """As layer_groups gives them: everything that is laid out by group relies on it."""
    everything, sliding = GroupSize(blocks=4), GroupSize(blocks=4, window=WINDOW)
    for wrong in ((), (sliding, everything), (everything, everything), (everything, sliding, sliding)):
        with pytest.raises(ValueError, match="order"):
            manager_of(*wrong)


class Contents:
    """What lies in the memory of every group: of each slot, the whole history that its key was computed from."""

    def __init__(self, windows: Sequence[int | None], *, tells_prompts_apart: bool = False) -> None:
        self._groups = [(window, dict[int, int]()) for window in windows]
        self._tells_prompts_apart = tells_prompts_apart

    def copy_block(self, group: int, source: int, target: int) -> None:
        """What the engine has the memory do."""
        slots = self._groups[group][1]
        for offset in range(BLOCK):
            slots[target * BLOCK + offset] = slots.get(source * BLOCK + offset, 0)

    def _history(self, state: SequenceState, position: int) -> int:
        prompt = min(len(state.prompt), position + 1) if self._tells_prompts_apart else 0
        return hash((prompt, *state.tokens(0, position + 1)))

    def compute(self, chunk: Chunk) -> None:
        """Write the chunk's keys, then check that each of its rows finds its own history, all of its window."""
        state = chunk.sequence
        history = [self._history(state, position) for position in range(chunk.end)]
        for (window, slots), table in zip(self._groups, state.block_tables, strict=True):
            for position in range(chunk.start, chunk.end):
                slots[self._slot(table, position)] = history[position]
            for position in range(chunk.start, chunk.end):
                for seen in range(0 if window is None else max(0, position - window + 1), position + 1):
                    assert slots[self._slot(table, seen)] == history[seen]

    @staticmethod
    def _slot(table: Sequence[int], position: int) -> int:
        block = table[position // BLOCK]
        assert block != HOLE, f"a row looks for position {position}, which was let go of"
        return block * BLOCK + position % BLOCK


class Requests(RuleBasedStateMachine):
    """Requests come, are computed, preempted and cancelled, and share prefixes, in memory of any size."""

    @initialize(
        windows=st.sampled_from([(None,), (WINDOW,), (None, WINDOW), (None, 1), (None, BLOCK), (None, 2 * BLOCK + 1)]),
        blocks=st.tuples(st.integers(10, 50), st.integers(5, 40)),
        cached_blocks=st.integers(1, 30),
        step_tokens=st.integers(1, 30) | st.none(),
        prefix_caching=st.booleans(),
        copies=st.booleans(),
        tells_prompts_apart=st.booleans(),
    )
    def begin(
        self,
        windows: tuple[int | None, ...],
        blocks: tuple[int, int],
        cached_blocks: int,
        step_tokens: int | None,
        prefix_caching: bool,
        copies: bool,
        tells_prompts_apart: bool,
    ) -> None:
        sizes = [
            GroupSize(blocks=count, window=window, cached_blocks=None if window is None else cached_blocks)
            for count, window in zip(blocks, windows, strict=False)
        ]
        self.step_tokens = step_tokens or sys.maxsize
        self.windows = windows
        self.contents = Contents(windows, tells_prompts_apart=tells_prompts_apart)
        self.manager = KVCacheManager(
            sizes,
            block_tokens=BLOCK,
            prefix_caching=prefix_caching,
            tells_prompts_apart=tells_prompts_apart,
            copy_block=self.contents.copy_block if copies else None,
        )
        self.scheduler = Scheduler(self.manager, step_tokens=step_tokens, max_running=4)
        self.alive: list[SequenceState] = []

    @rule(kind=st.integers(0, 1), shared=st.integers(0, 40), own=st.lists(st.integers(1, 20), min_size=1, max_size=4))
    def add(self, kind: int, shared: int, own: list[int]) -> None:
        """Some that begin alike, go on for some tokens more, and ask for as many in answer."""
        for count in own:
            tokens = [*range(100 * kind, 100 * kind + shared), *range(1000, 1000 + count)]
            room = self.manager.capacity_tokens(self.step_tokens) - len(tokens)
            if room >= 1:
                state = sequence(tokens, str(len(self.alive)))
                state.max_output_tokens = min(count, room)
                self.alive.append(state)
                self.scheduler.add(state)

    @rule(steps=st.integers(1, 20))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            plan = self.scheduler.schedule()
            self.audit()
            for chunk in plan.chunks:
                self.contents.compute(chunk)
            for chunk in plan.chunks:
                self.scheduler.update(chunk)
                if chunk.catches_up:
                    self._answer(chunk.sequence)

    def _answer(self, state: SequenceState) -> None:
        state.output.append(len(state.output) % 3)
        if len(state.output) == state.max_output_tokens:
            self._drop(state)

    @precondition(lambda self: self.alive)
    @rule(which=st.integers(0, 100))
    def cancel(self, which: int) -> None:
        self._drop(self.alive[which % len(self.alive)])

    @precondition(lambda self: self.scheduler.running)
    @rule(which=st.integers(0, 100))
    def preempt(self, which: int) -> None:
        running = self.scheduler.running
        self.scheduler.preempt(running[which % len(running)])

    @rule(luck=st.integers(1, 10))
    def abandon(self, luck: int) -> None:
        if luck == 10:  # seldom, for the cache has to fill
            self.scheduler.abandon()
            self.alive.clear()

    def _drop(self, state: SequenceState) -> None:
        self.scheduler.finish(state)
        self.alive.remove(state)

    @invariant()
    def audit(self) -> None:
        if not hasattr(self, "manager"):
            return
        census = self.manager.audit(self.alive)
        assert census.free + census.cached + census.used == sum(pool.blocks for pool in self.manager.pools)
        for state in self.alive:
            for window, table in zip(self.windows, state.block_tables, strict=False):
                at_most = blocks_at_once((window or 1) - 1 + min(state.known_tokens, self.step_tokens), BLOCK)
                assert window is None or sum(block != HOLE for block in table) <= at_most

    def teardown(self) -> None:
        """Whatever was left is answered in the end: nobody waits for memory that never comes."""
        if hasattr(self, "manager"):
            steps = 0
            while self.scheduler.has_work:
                self.step(1)
                steps += 1
                assert steps < 5000
            assert self.manager.audit([]).used == 0


TestRequests = Requests.TestCase
TestRequests.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
