"""Memory of the next blocks is taken while nothing else is to be done."""

from __future__ import annotations

import numpy as np
import pytest

from taximeter.engine import kernels
from taximeter.engine.core import EngineCore
from taximeter.engine.kv_cache import BlockPool
from taximeter.engine.memory_ahead import MemoryAhead
from taximeter.engine.models import KVMemory
from tests.engine_harness import GOLDEN, TINY_LLAMA, add, core_of, drain, loaded


class Touched:
    def __init__(self, *pools: BlockPool, ahead: int) -> None:
        self.blocks: list[tuple[int, int]] = []
        self._ahead = MemoryAhead(
            pools, blocks=ahead, touch_block=lambda pool, block: self.blocks.append((pool, block))
        )

    def all(self) -> list[tuple[int, int]]:
        """What is touched until there is enough."""
        self.blocks.clear()
        while self._ahead.take():
            assert len(self.blocks) < 100
        return list(self.blocks)


def test_nothing_before_anybody_asked() -> None:
    assert Touched(BlockPool(8), ahead=4).all() == []


def test_as_many_blocks_as_were_lent_and_no_more_than_so_many() -> None:
    """Each once, in the order in which they will be lent, and none past the end."""
    pool = BlockPool(9)
    touched = Touched(pool, ahead=3)
    first = pool.take(2)
    assert touched.all() == [(0, 2), (0, 3)]
    assert touched.all() == []
    pool.take(1)
    assert touched.all() == [(0, 4), (0, 5)]
    pool.take(1)
    assert touched.all() == [(0, 6)], "three are enough"
    pool.release(first)
    assert touched.all() == [], "free blocks that were lent before have their memory"
    pool.take(5)
    assert touched.all() == [(0, 7), (0, 8)]


def test_what_was_lent_meanwhile_is_skipped() -> None:
    pool = BlockPool(16)
    touched = Touched(pool, ahead=2)
    pool.take(2)
    assert touched.all() == [(0, 2), (0, 3)]
    pool.take(6)
    assert touched.all() == [(0, 8), (0, 9)]


def test_a_pool_that_lends_its_cached_blocks_first_needs_no_others() -> None:
    """Nor does it keep the next pool from its own."""
    full, other = BlockPool(8, cached_blocks=1), BlockPool(8)
    lent = full.take(1)
    full.remember(lent[0], b"hash")
    full.release(lent)
    other.take(2)
    assert Touched(full, other, ahead=2).all() == [(1, 2), (1, 3)]


def test_the_core_takes_memory_behind_what_it_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until there is enough; what is in blocks that were lent stays, and a later answer is the same."""
    seen: list[tuple[int, int]] = []
    touch = KVMemory.touch_block

    def spy(memory: KVMemory, group: int, block: int) -> None:
        seen.append((group, block))
        touch(memory, group, block)

    monkeypatch.setattr(KVMemory, "touch_block", spy)
    core: EngineCore = core_of(TINY_LLAMA)
    assert not core.take_memory_ahead()
    before = add(core, "a", range(70), 5)
    drain(core)
    pool = core.kv.pools[0]
    while core.take_memory_ahead():
        pass
    assert seen == [(0, block) for block in range(pool.touched_blocks, pool.blocks)][: len(seen)]
    assert seen
    for block in range(pool.touched_blocks):
        spy(core._runner._kv, 0, block)  # pyright: ignore[reportPrivateUsage]
    after = add(core, "b", range(70), 5)
    drain(core)
    assert after.tokens() == before.tokens()
    assert after.served.usage is not None
    assert after.served.usage.input_cache_read_tokens == 69


@pytest.mark.skipif(kernels.native_level() is None, reason="asks the native memory")
def test_the_native_memory_refuses_what_is_not_there() -> None:
    config = loaded(GOLDEN / "tiny_gemma3")[0].config
    memory = KVMemory(config, blocks=[3, 2], block_tokens=16)
    memory.touch_block(0, 2)
    memory.touch_block(1, 1)
    for group, block in ((2, 0), (-1, 0), (1, 2), (0, -1), (0, 3)):
        with pytest.raises(IndexError):
            memory.native.touch_block(group, block)


def test_the_reference_has_its_memory_from_numpy() -> None:
    with kernels.use_level("reference"):
        memory = KVMemory(loaded(TINY_LLAMA)[0].config, blocks=[2], block_tokens=16)
        memory.keys[0][...] = 1
        memory.touch_block(0, 1)
        assert np.all(memory.keys[0] == 1)
