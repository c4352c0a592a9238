"""What follows a prefix in memory, token by token: of the blocks behind it, the one that begins most like a prompt.

A hash finds whole blocks. Where a prompt leaves what is known in the middle of a block, or the last block of an answer
was never filled, what it shares with one of the blocks there can still be copied.

Owns: the order in which such a block is found. Refuses to know: who holds it, and whether it is still there.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from struct import pack

_TOKEN_BYTES = 4


def packed(tokens: list[int]) -> bytes:
    """Tokens as `Continuations` compares them."""
    return pack(f"<{len(tokens)}I", *tokens)


class Continuations:
    """Blocks by the hash of what is before them and by their own tokens (`packed`)."""

    def __init__(self) -> None:
        # Sorted: whoever shares most with some tokens stands beside the place where these would be.
        self._behind: dict[bytes, list[tuple[bytes, int]]] = {}

    def __len__(self) -> int:
        return sum(len(blocks) for blocks in self._behind.values())

    def add(self, parent: bytes, tokens: bytes, block: int) -> None:
        """From now on `block` is found."""
        insort(self._behind.setdefault(parent, []), (tokens, block))

    def remove(self, parent: bytes, tokens: bytes, block: int) -> None:
        """Undo `add`. Raises ValueError for what was not added."""
        if not self.has(parent, tokens, block):
            raise ValueError(f"block {block} is not among those that follow there")
        blocks = self._behind[parent]
        del blocks[bisect_left(blocks, (tokens, block))]
        if not blocks:
            del self._behind[parent]

    def has(self, parent: bytes, tokens: bytes, block: int) -> bool:
        """Whether `block` is found there."""
        blocks = self._behind.get(parent, [])
        at = bisect_left(blocks, (tokens, block))
        return blocks[at : at + 1] == [(tokens, block)]

    def nearest(self, parent: bytes, tokens: bytes) -> tuple[int, int]:
        """The block behind `parent` that has most of the first of `tokens`, and how many of these it has: none, and any
        number for a block, where it is 0."""
        blocks = self._behind.get(parent, [])
        at = bisect_left(blocks, (tokens, -1))
        beside = blocks[max(0, at - 1) : at + 1]
        shared, block = max(((_shared_tokens(theirs, tokens), block) for theirs, block in beside), default=(0, -1))
        return block, shared


def _shared_tokens(a: bytes, b: bytes) -> int:
    shortest = min(len(a), len(b))
    different = next((at for at in range(shortest) if a[at] != b[at]), shortest)
    return different // _TOKEN_BYTES
