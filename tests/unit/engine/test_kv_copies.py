"""A prefix that ends within a block is found to the token, and copied."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.engine import kernels
from taximeter.engine.continuations import Continuations, packed
from taximeter.engine.kv_cache import GroupSize, KVCacheManager
from taximeter.engine.models import KVMemory
from taximeter.engine.request_state import SequenceState
from tests.engine_harness import GOLDEN, loaded

BLOCK = 4


class Memory:
    """A manager, and the copies that it asked for."""

    def __init__(self, *sizes: GroupSize, tells_prompts_apart: bool = False) -> None:
        self.copies: list[tuple[int, int, int]] = []
        self.manager = KVCacheManager(
            sizes or (GroupSize(blocks=40),),
            block_tokens=BLOCK,
            tells_prompts_apart=tells_prompts_apart,
            copy_block=self._copy_block,
        )

    def _copy_block(self, group: int, source: int, target: int) -> None:
        self.copies.append((group, source, target))

    def admit(self, prompt: Sequence[int], output: Sequence[int] = ()) -> SequenceState:
        state = SequenceState(request_id="r", choice=0, prompt=tuple(prompt), max_output_tokens=100)
        state.output.extend(output)
        assert self.manager.admit(state, sys.maxsize)
        return state

    def compute(self, state: SequenceState) -> None:
        """Pretend that the model computed all tokens that are known."""
        before, state.computed_tokens = state.computed_tokens, state.known_tokens
        self.manager.note_computed(state, before)

    def read(self, prompt: Sequence[int], output: Sequence[int] = ()) -> SequenceState:
        """A prompt and its answer computed and let go of."""
        state = self.admit(prompt, output)
        self.compute(state)
        self.manager.release(state)
        return state

    def hit(self, prompt: Sequence[int], output: Sequence[int] = ()) -> int:
        """How much of a prompt is found; then it is let go of without having been computed any further."""
        state = self.admit(prompt, output)
        hit = state.computed_tokens
        self.manager.audit([state])
        self.manager.release(state)
        self.manager.audit([])
        return hit


def test_a_prompt_that_leaves_within_a_full_block_copies_what_it_shares() -> None:
    """Ten tokens are known and six are shared: a block, and two tokens of the next."""
    memory = Memory()
    first = memory.admit(range(10))
    memory.compute(first)
    second = memory.admit([*range(6), 77, 78])
    assert second.computed_tokens == 6
    assert second.block_tables[0][0] == first.block_tables[0][0]
    assert memory.copies == [(0, first.block_tables[0][1], second.block_tables[0][1])]
    assert first.block_tables[0][1] != second.block_tables[0][1]
    memory.manager.audit([first, second])


def test_what_a_finished_answer_left_half_full_is_found() -> None:
    """The next turn of a conversation begins with the last one, to its last computed token."""
    memory = Memory()
    memory.read(range(10), [50])
    assert memory.hit([*range(10), 50, 90, 91]) == 11
    assert memory.hit([*range(10), 51, 90]) == 10
    assert memory.hit(range(9)) == 8


def test_the_same_prompt_again_computes_one_token() -> None:
    """For its logits; also where the prompt ends with a block."""
    for tokens in (7, 8, 9):
        memory = Memory()
        memory.read(range(tokens))
        assert memory.hit(range(tokens)) == tokens - 1


def test_the_block_that_shares_most_is_copied() -> None:
    """Of several that follow the same prefix."""
    memory = Memory()
    for own in ([10, 11, 12], [10, 20, 21], [10, 20, 30], [40]):
        memory.read([*range(4), *own])
    assert memory.hit([*range(4), 10, 20, 30, 99]) == 7
    assert memory.hit([*range(4), 10, 20, 99]) == 6
    assert memory.hit([*range(4), 10, 99]) == 5
    assert memory.hit([*range(4), 99]) == 4


def test_where_prompts_are_told_apart_only_their_own_tokens_are_copied() -> None:
    """A token that was generated is not what the same token of a prompt would be."""
    memory = Memory(tells_prompts_apart=True)
    memory.read(range(6), [50, 51, 52])
    assert memory.hit([*range(6), 50, 51]) == 6
    memory.read([*range(6), 50])
    assert memory.hit([*range(6), 50, 51]) == 7
    assert memory.hit(range(6), [50, 51]) == 6


def test_all_groups_have_what_is_copied() -> None:
    """A window's pool that has forgotten a block decides for both."""
    memory = Memory(GroupSize(blocks=40), GroupSize(blocks=5, window=6))
    memory.read(range(10))
    assert memory.hit([*range(10), 70]) == 10
    assert [group for group, _source, _target in memory.copies] == [0, 1]
    sliding = memory.manager.pools[1]
    sliding.release(sliding.take(5))
    assert memory.hit([*range(10), 70]) == 0


def test_where_there_is_no_room_for_both_the_block_to_copy_is_used_instead() -> None:
    """Three blocks: a prompt of nine tokens needs them all, the one that it could copy among them."""
    memory = Memory(GroupSize(blocks=3))
    memory.read(range(6))
    state = memory.admit([*range(6), 7, 8, 9])
    assert state.computed_tokens == 4
    assert memory.copies == []
    memory.manager.audit([state])


def test_a_block_that_is_lent_again_is_not_found_any_more() -> None:
    """What it held is gone."""
    memory = Memory(GroupSize(blocks=2))
    memory.read(range(7))
    pool = memory.manager.pools[0]
    pool.release(pool.take(2))
    assert memory.hit(range(7)) == 0


few_tokens = st.lists(st.integers(0, 2), max_size=5)


@settings(deadline=None)
@given(
    blocks=st.lists(st.tuples(st.sampled_from([b"a", b"b"]), few_tokens), max_size=12),
    gone=st.sets(st.integers(0, 11)),
    asked=few_tokens,
)
def test_the_nearest_is_what_looking_at_all_finds(
    blocks: list[tuple[bytes, list[int]]], gone: set[int], asked: list[int]
) -> None:
    """Whatever was added and removed."""
    continuations = Continuations()
    for block, (parent, tokens) in enumerate(blocks):
        continuations.add(parent, packed(tokens), block)
    for block in gone & set(range(len(blocks))):
        continuations.remove(blocks[block][0], packed(blocks[block][1]), block)
    left = {block: tokens for block, (parent, tokens) in enumerate(blocks) if parent == b"a" and block not in gone}

    def shared(tokens: list[int]) -> int:
        return next(
            (at for at, (x, y) in enumerate(zip(tokens, asked, strict=False)) if x != y), min(len(tokens), len(asked))
        )

    block, count = continuations.nearest(b"a", packed(asked))
    assert count == max(map(shared, left.values()), default=0)
    assert count == 0 or shared(left[block]) == count
    assert len(continuations) == len(blocks) - len(gone & set(range(len(blocks))))


def test_what_was_not_added_cannot_be_removed() -> None:
    """A bookkeeping that has gone wrong says so."""
    continuations = Continuations()
    continuations.add(b"a", packed([1]), 1)
    with pytest.raises(ValueError, match="block 2"):
        continuations.remove(b"a", packed([1]), 2)
    with pytest.raises(ValueError, match="block 1"):
        continuations.remove(b"b", packed([1]), 1)


def test_the_reference_copies_all_layers_of_one_group() -> None:
    """And nothing of the others."""
    config = loaded(GOLDEN / "tiny_gemma3")[0].config
    with kernels.use_level("reference"):
        memory = KVMemory(config, blocks=[3, 3], block_tokens=16)
        chance = np.random.default_rng(0)
        for array in (*memory.keys, *memory.values):
            array[...] = chance.standard_normal(array.shape)
        before = [array.copy() for array in (*memory.keys, *memory.values)]
        memory.copy_block(1, 0, 2)
    for layer, (array, was) in enumerate(zip((*memory.keys, *memory.values), before, strict=True)):
        slides = config.sliding_layers[layer % config.layers]
        np.testing.assert_array_equal(array[2], was[0] if slides else was[2])
        np.testing.assert_array_equal(array[:2], was[:2])


@pytest.mark.skipif(kernels.native_level() is None, reason="asks the native memory")
def test_the_native_memory_refuses_what_is_not_there() -> None:
    """A wrong number would be somebody else's memory."""
    memory = KVMemory(loaded(GOLDEN / "tiny_gemma3")[0].config, blocks=[3, 2], block_tokens=16)
    memory.copy_block(0, 0, 2)
    for group, source, target in ((2, 0, 0), (-1, 0, 0), (1, 0, 2), (1, 2, 0), (0, -1, 0), (0, 0, 3)):
        with pytest.raises(IndexError):
            memory.native.copy_block(group, source, target)
