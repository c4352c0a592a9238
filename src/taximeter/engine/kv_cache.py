"""Paged KV memory as bookkeeping: which block belongs to whom, and which can be found again.

Owns: the pool of blocks, their reference counts, the hash chain over full blocks that makes prefixes shareable, and
the order in which blocks are given away. Refuses to know: tensors, models and time. Blocks are numbers here.

A block is in exactly one of three states, and `BlockPool.audit` proves it:

    used     somebody's block table holds it          (references > 0)
    cached   nobody holds it, but its hash finds it   (references = 0, hash)
    free     nobody holds it and nothing finds it     (references = 0, no hash)

Cached and free blocks are both there for the taking; a free one goes first, then the cached one that was let go of
longest ago.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from taximeter.engine.request_state import SequenceState
from taximeter.errors import InvariantBroken

BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCensus:
    """How many blocks are in each state. The three always sum to the pool's size."""

    free: int
    cached: int
    used: int


class BlockPool:
    """A fixed number of blocks, lent out with reference counts."""

    def __init__(self, blocks: int) -> None:
        if blocks < 1:
            raise ValueError(f"a pool needs at least one block, not {blocks}")
        self.blocks = blocks
        self._references = [0] * blocks
        self._hashes: list[bytes | None] = [None] * blocks
        self._by_hash: dict[bytes, int] = {}
        # Everything with no references, in the order it is given away.
        self._available: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))

    @property
    def available(self) -> int:
        """Blocks that `take` can hand out now, the cached ones among them."""
        return len(self._available)

    def find(self, block_hash: bytes) -> int | None:
        """The block that holds the tokens of `block_hash`, None when no block does."""
        return self._by_hash.get(block_hash)

    def is_idle(self, block: int) -> bool:
        """Whether nobody holds `block`, so that sharing it uses up an available one."""
        return self._references[block] == 0

    def take(self, count: int) -> list[int]:
        """`count` blocks with one reference each, forgetting what they cached. The caller has checked `available`."""
        if count > len(self._available):
            raise InvariantBroken(f"{count} blocks wanted, {len(self._available)} available")
        taken: list[int] = []
        for _ in range(count):
            block, _none = self._available.popitem(last=False)
            self._forget(block)
            self._references[block] = 1
            taken.append(block)
        return taken

    def share(self, block: int) -> None:
        """One more holder of a block that `find` gave."""
        if self._references[block] == 0:
            del self._available[block]
        self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One holder fewer of each of `blocks`, a block table in order. The tail is let go of first, so that it is
        also given away first: a prefix is worth more than what follows it."""
        for block in reversed(blocks):
            if self._references[block] < 1:
                raise InvariantBroken(f"block {block} released more often than held")
            self._references[block] -= 1
            if self._references[block] == 0:
                self._available[block] = None
                if self._hashes[block] is None:
                    self._available.move_to_end(block, last=False)

    def remember(self, block: int, block_hash: bytes) -> None:
        """Make a held, full block findable. Of two blocks with the same content the first stays findable."""
        if self._references[block] < 1:
            raise InvariantBroken(f"block {block} is nobody's, its content cannot be trusted")
        if self._hashes[block] is None and block_hash not in self._by_hash:
            self._hashes[block] = block_hash
            self._by_hash[block_hash] = block

    def _forget(self, block: int) -> None:
        block_hash = self._hashes[block]
        if block_hash is not None:
            del self._by_hash[block_hash]
            self._hashes[block] = None

    def audit(self, tables: Iterable[Sequence[int]]) -> PoolCensus:
        """Count every block once and compare with `tables`, the block tables of everybody who holds any.

        Raises InvariantBroken if a reference, a hash or a place in the queue is wrong.
        """
        held = Counter(block for table in tables for block in table)
        for block, references in enumerate(self._references):
            if held[block] != references:
                raise InvariantBroken(f"block {block}: {references} references, {held[block]} holders")
            if (references == 0) != (block in self._available):
                raise InvariantBroken(f"block {block}: {references} references, yet wrongly (un)available")
        for block_hash, block in self._by_hash.items():
            if self._hashes[block] != block_hash:
                raise InvariantBroken(f"block {block} is found under a hash that it does not have")
        if len(self._by_hash) != sum(block_hash is not None for block_hash in self._hashes):
            raise InvariantBroken("a block has a hash that does not find it")
        cached = sum(self._hashes[block] is not None for block in self._available)
        free, used = (len(self._available) - cached, sum(references > 0 for references in self._references))
        if free + cached + used != self.blocks:
            raise InvariantBroken(f"{free} free + {cached} cached + {used} used is not {self.blocks}")
        return PoolCensus(free=free, cached=cached, used=used)


class KVCacheManager:
    """Gives sequences the blocks they need, sharing full blocks of equal prefixes."""

    def __init__(self, pool: BlockPool, *, block_tokens: int = BLOCK_TOKENS, prefix_caching: bool = True) -> None:
        self.pool = pool
        self.block_tokens = block_tokens
        self.prefix_caching = prefix_caching

    @property
    def capacity_tokens(self) -> int:
        """The longest sequence that can be held at all."""
        return self.pool.blocks * self.block_tokens

    def admit(self, sequence: SequenceState) -> bool:
        """Give `sequence`, which holds nothing, blocks for *all* its known tokens, as many as possible from the
        prefix cache; False, with nothing changed, if it does not fit whole. Checking only the first chunk would
        admit too much and then thrash.

        Sets its block table and `computed_tokens` (the hit). The last token is never a hit: it has to be computed
        for its logits.
        """
        hits = self._find_prefix(sequence)
        wanted = self._blocks_for(sequence.known_tokens) - len(hits)
        if wanted > self.pool.available - sum(self.pool.is_idle(block) for block in hits):
            return False
        for block in hits:
            self.pool.share(block)
        sequence.blocks = hits + self.pool.take(wanted)
        sequence.computed_tokens = len(hits) * self.block_tokens
        return True

    def grow(self, sequence: SequenceState, tokens: int) -> bool:
        """Make room for `tokens` tokens in all; False, with nothing changed, if there is none."""
        wanted = self._blocks_for(tokens) - len(sequence.blocks)
        if wanted > self.pool.available:
            return False
        if wanted > 0:
            sequence.blocks.extend(self.pool.take(wanted))
        return True

    def note_computed(self, sequence: SequenceState, before: int) -> None:
        """Make the blocks findable that became full since `before` computed tokens."""
        if not self.prefix_caching:
            return
        first, last = (before // self.block_tokens, sequence.computed_tokens // self.block_tokens)
        for index in range(first, last):
            self.pool.remember(sequence.blocks[index], self._hash(sequence, index))

    def release(self, sequence: SequenceState) -> None:
        """Take all blocks back. What was computed stays findable until the memory is needed."""
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.computed_tokens = 0

    def reset(self) -> None:
        """A new pool: nobody holds anything, nothing is cached. For when whoever held something is gone."""
        self.pool = BlockPool(self.pool.blocks)

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def _find_prefix(self, sequence: SequenceState) -> list[int]:
        hits: list[int] = []
        if self.prefix_caching:
            for index in range((sequence.known_tokens - 1) // self.block_tokens):
                block = self.pool.find(self._hash(sequence, index))
                if block is None:
                    break
                hits.append(block)
        return hits

    def _hash(self, sequence: SequenceState, index: int) -> bytes:
        """The hash of full block `index`: of its tokens and, through its parent's hash, of all before it."""
        chain = sequence.block_hashes
        edges = range(len(chain) * self.block_tokens, (index + 2) * self.block_tokens, self.block_tokens)
        for start, end in pairwise(edges):
            parent = chain[-1] if chain else b""
            tokens = b"".join(token.to_bytes(4, "little") for token in sequence.tokens(start, end))
            chain.append(hashlib.blake2b(parent + tokens, digest_size=16).digest())
        return chain[index]
