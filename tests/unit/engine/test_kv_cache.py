"""Blocks are counted, shared and found again exactly."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.engine.kv_cache import BlockPool, GroupSize, KVCacheManager, PoolCensus
from taximeter.engine.request_state import SequenceState
from taximeter.errors import InvariantBroken


def sequence(tokens: list[int] | range, name: str = "r") -> SequenceState:
    return SequenceState(request_id=name, choice=0, prompt=tuple(tokens), max_output_tokens=8)


def compute(manager: KVCacheManager, state: SequenceState) -> None:
    """Pretend that the model computed everything known."""
    before = state.computed_tokens
    state.computed_tokens = state.known_tokens
    manager.note_computed(state, before)


def hit_of(manager: KVCacheManager, tokens: list[int] | range) -> int:
    """Admit a prompt, compute it, let it go; how many of its tokens were found."""
    state = sequence(tokens)
    assert manager.admit(state, sys.maxsize)
    hit = state.computed_tokens
    compute(manager, state)
    manager.release(state)
    return hit


def test_hits_are_whole_blocks_and_never_the_last_token() -> None:
    """48 tokens twice hit 0 then 32; 49 that begin with them hit 48; another 40 twice hit 0 then 32 (block of 16)."""
    manager = KVCacheManager([GroupSize(blocks=64)], block_tokens=16)
    first = range(1000, 1048)
    assert [hit_of(manager, first), hit_of(manager, first)] == [0, 32]
    assert hit_of(manager, [*first, 7]) == 48
    other = range(5000, 5040)
    assert [hit_of(manager, other), hit_of(manager, other)] == [0, 32]


def test_equal_tokens_after_different_beginnings_are_different_blocks() -> None:
    """A block is found by its whole history, not by its own tokens."""
    manager = KVCacheManager([GroupSize(blocks=64)], block_tokens=16)
    same = list(range(16))
    assert hit_of(manager, [1] * 16 + same + [0]) == 0
    assert hit_of(manager, [2] * 16 + same + [0]) == 0


@pytest.mark.parametrize(("apart", "found"), [(True, 16), (False, 48)])
def test_an_answer_is_found_in_a_prompt_where_both_are_computed_alike(apart: bool, found: int) -> None:
    """A prompt of 20 and an answer of 28, sent back as a prompt: what was computed as a prompt is there in any case."""
    manager = KVCacheManager([GroupSize(blocks=64)], block_tokens=16, tells_prompts_apart=apart)
    state = sequence(range(20))
    assert manager.admit(state, sys.maxsize)
    compute(manager, state)
    for token in range(100, 128):
        state.output.append(token)
        assert manager.grow(state, state.known_tokens)
        compute(manager, state)
    manager.release(state)
    assert hit_of(manager, [*range(20), *range(100, 128), 7]) == found
    assert manager.admit(
        state, sys.maxsize
    )  # who wrote it, having lost its memory, finds it all, but for the last token
    assert state.computed_tokens == 32
    manager.release(state)


def test_a_running_prefix_is_shared_not_copied() -> None:
    """Two live sequences with one prefix hold the same blocks, and letting one go leaves the other whole."""
    manager = KVCacheManager([GroupSize(blocks=8)], block_tokens=16)
    a, b = sequence([*range(32), 1], "a"), sequence([*range(32), 2], "b")
    assert manager.admit(a, sys.maxsize)
    compute(manager, a)
    assert manager.admit(b, sys.maxsize)
    assert b.block_tables[0][:2] == a.block_tables[0][:2]
    assert manager.audit([a, b]) == PoolCensus(free=4, cached=0, used=4)
    manager.release(a)
    assert manager.audit([b]) == PoolCensus(free=5, cached=0, used=3)


def test_the_tail_is_given_away_first_and_the_oldest_prefix_before_the_newest() -> None:
    """Eviction takes free blocks, then the tail of what was let go of longest ago; the head survives longest."""
    manager = KVCacheManager([GroupSize(blocks=6)], block_tokens=4)
    assert hit_of(manager, range(12)) == 0  # three full blocks cached
    assert hit_of(manager, range(100, 112)) == 0  # three more: the pool is full
    assert manager.audit([]) == PoolCensus(free=0, cached=6, used=0)
    assert hit_of(manager, range(200, 204)) == 0  # evicts one: the tail of the first
    assert hit_of(manager, [*range(8), 1]) == 8
    assert hit_of(manager, [*range(100, 112), 1]) >= 8


def test_a_sequence_that_does_not_fit_whole_is_not_admitted_and_changes_nothing() -> None:
    """Admission looks at all known tokens, and a refused one leaves no trace."""
    manager = KVCacheManager([GroupSize(blocks=4)], block_tokens=4)
    small, large = sequence(range(6), "small"), sequence(range(50, 63), "large")
    assert manager.admit(small, sys.maxsize)
    assert not manager.admit(large, sys.maxsize)
    assert large.block_tables == []
    assert manager.audit([small]) == PoolCensus(free=2, cached=0, used=2)


def test_cached_blocks_that_are_hits_do_not_count_as_room() -> None:
    """A prefix found in the cache uses up its own blocks: they cannot be promised a second time."""
    manager = KVCacheManager([GroupSize(blocks=3)], block_tokens=4)
    assert hit_of(manager, range(9)) == 0
    state = sequence([*range(8), *range(90, 97)])  # two hits + two new blocks, one too many
    assert not manager.admit(state, sys.maxsize)
    assert manager.audit([]).used == 0


def test_without_prefix_caching_nothing_is_found() -> None:
    """The switch switches off."""
    manager = KVCacheManager([GroupSize(blocks=16)], block_tokens=4, prefix_caching=False)
    assert [hit_of(manager, range(12)), hit_of(manager, range(12))] == [0, 0]
    assert manager.audit([]).cached == 0


def test_the_audit_sees_a_lost_block() -> None:
    """An audit that could not fail would prove nothing."""
    manager = KVCacheManager([GroupSize(blocks=8)], block_tokens=4)
    state = sequence(range(10))
    assert manager.admit(state, sys.maxsize)
    with pytest.raises(InvariantBroken):
        manager.audit([])
    with pytest.raises(InvariantBroken):
        manager.audit([state, state])
    lost = state.block_tables[0].pop()
    with pytest.raises(InvariantBroken):
        manager.audit([state])
    state.block_tables[0].append(lost)
    assert manager.audit([state]).used == 3


def test_a_block_cannot_be_released_twice() -> None:
    """Letting go of what one does not hold is a bug and says so."""
    pool = BlockPool(2)
    blocks = pool.take(1)
    pool.release(blocks)
    with pytest.raises(InvariantBroken):
        pool.release(blocks)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["admit", "grow", "compute", "release"]), st.integers(0, 5), st.integers(1, 40)),
        max_size=60,
    ),
    st.booleans(),
)
def test_free_cached_and_used_always_sum_to_the_pool(steps: list[tuple[str, int, int]], caching: bool) -> None:
    """Whatever happens in whatever order, every block is in exactly one state."""
    manager = KVCacheManager([GroupSize(blocks=12)], block_tokens=4, prefix_caching=caching)
    live: dict[int, SequenceState] = {}
    for action, who, size in steps:
        state = live.get(who)
        if action == "admit" and state is None:
            state = sequence([who % 2] * size, str(who))
            if manager.admit(state, sys.maxsize):
                live[who] = state
        elif state is not None and action == "grow":
            if manager.grow(state, state.known_tokens + 1):
                state.output.append(size % 3)
        elif state is not None and action == "compute":
            compute(manager, state)
        elif state is not None and action == "release":
            manager.release(live.pop(who))
        census = manager.audit(live.values())
        assert census.free + census.cached + census.used == 12
