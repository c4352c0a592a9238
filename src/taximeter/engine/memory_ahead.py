"""Memory for the blocks that come next, taken from the operating system while the engine has nothing to do.

Owns: how far ahead, and which block is next. Refuses to know: the memory itself.

A page that was never used has to be found and zeroed first. A virtual machine may have to ask its host for it, which
can take milliseconds for each 2 MB: a tenth of the time of a prompt, while somebody waits for its first token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from taximeter.engine.kv_cache import BlockPool

AHEAD_BYTES: Final = 48 << 20
"""Of keys and values: a long prompt's for a small model, and little beside the weights of a large one."""


class MemoryAhead:
    """Keeps the memory of as many never lent blocks of each pool ready as were lent until now, at most `blocks`: a
    model that is asked little takes little. `touch_block` is called with the number of a pool and a block's."""

    def __init__(self, pools: Sequence[BlockPool], *, blocks: int, touch_block: Callable[[int, int], None]) -> None:
        self._pools = pools
        self._blocks = blocks
        self._touch_block = touch_block
        self._ready = [0] * len(pools)  # the first so many have their memory

    def take(self) -> bool:
        """Take the memory of one more block. False: as much as there should be is ready."""
        for number, pool in enumerate(self._pools):
            following = max(self._ready[number], pool.touched_blocks)
            enough = min(pool.blocks, pool.touched_blocks + min(pool.touched_blocks, self._blocks))
            if pool.lends_untouched and following < enough:
                self._touch_block(number, following)
                self._ready[number] = following + 1
                return True
        return False
