"""Paged KV memory as bookkeeping: which block belongs to whom, and which can be found again.

Owns: the pools of blocks, their reference counts, the hash chain over full blocks that makes prefixes shareable, and
the order in which blocks are given away. Refuses to know: tensors, models and time. Blocks are numbers here.

A model's layers come in groups that see the same keys, and each group has a pool and block tables of its own. Where a
window slides, a block that no later row of its sequence can see is let go of; a hole stays in its place in the table.

A block is in exactly one of three states, and `BlockPool.audit` proves it:

    used     somebody's block table holds it          (references > 0)
    cached   nobody holds it, but its hash finds it   (references = 0, hash)
    free     nobody holds it and nothing finds it     (references = 0, no hash)

Cached and free blocks are both there for the taking; a free one goes first, then the cached one that was let go of
longest ago.

Full blocks of equal prefixes are shared. Of the block behind them, which a prompt leaves in its middle or which nobody
has filled, a sequence gets a copy.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from struct import pack
from typing import TypeAlias

from taximeter.engine.continuations import Continuations, packed
from taximeter.engine.request_state import HOLE, SequenceState
from taximeter.errors import InvariantBroken

BLOCK_TOKENS = 32

CopyBlock: TypeAlias = Callable[[int, int, int], None]  # the number of a group of layers, where from, where to


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCensus:
    """How many blocks are in each state. The three always sum to the size of the pool, or of all pools."""

    free: int
    cached: int
    used: int

    def __add__(self, other: PoolCensus) -> PoolCensus:
        return PoolCensus(free=self.free + other.free, cached=self.cached + other.cached, used=self.used + other.used)


class BlockPool:
    """A fixed number of blocks, lent out with reference counts.

    A block needs no memory until it is first lent. When `cached_blocks` are cached, the oldest of them are lent again
    before any that was never lent; None is no such limit.
    """

    def __init__(self, blocks: int, *, cached_blocks: int | None = None) -> None:
        if blocks < 1:
            raise ValueError(f"a pool needs at least one block, not {blocks}")
        if cached_blocks is not None and cached_blocks < 1:
            raise ValueError(f"at least one block must be allowed to be cached, not {cached_blocks}")
        self.blocks = blocks
        self.touched_blocks = 0  # those that were ever lent are the first so many
        self._cached_blocks = blocks if cached_blocks is None else cached_blocks
        self._references = [0] * blocks
        self._hashes: list[bytes | None] = [None] * blocks
        self._by_hash: dict[bytes, int] = {}
        self._begins: list[tuple[bytes, bytes] | None] = [None] * blocks  # what `_continuations` has of each
        self._continuations = Continuations()
        self._free = list(reversed(range(blocks)))  # the last one goes first
        self._cached: OrderedDict[int, None] = OrderedDict()  # the first one goes first

    @property
    def available(self) -> int:
        """Blocks that `take` can hand out now, the cached ones among them."""
        return len(self._free) + len(self._cached)

    @property
    def lends_untouched(self) -> bool:
        """Whether a block that was never lent may be lent before a cached one is."""
        return self.touched_blocks < self.blocks and len(self._cached) < self._cached_blocks

    def census(self) -> PoolCensus:
        """How many blocks are in each state. From another thread than the pool's it is a glance, which may be off by
        what is changing hands at that moment."""
        free, cached = len(self._free), len(self._cached)
        return PoolCensus(free=free, cached=cached, used=max(0, self.blocks - free - cached))

    def find(self, block_hash: bytes) -> int | None:
        """The block that holds the tokens of `block_hash`, None when no block does."""
        return self._by_hash.get(block_hash)

    def nearest(self, parent: bytes, tokens: bytes) -> tuple[int, int]:
        """See `Continuations.nearest`."""
        return self._continuations.nearest(parent, tokens)

    def is_idle(self, block: int) -> bool:
        """Whether nobody holds `block`, so that sharing it uses up an available one."""
        return self._references[block] == 0

    def take(self, count: int) -> list[int]:
        """`count` blocks with one reference each, forgetting what they cached. The caller has checked `available`."""
        if count > self.available:
            raise InvariantBroken(f"{count} blocks wanted, {self.available} available")
        taken = [self._next() for _ in range(count)]
        for block in taken:
            self._references[block] = 1
        return taken

    def _next(self) -> int:
        untouched = bool(self._free) and self._free[-1] >= self.touched_blocks
        if self._free and not (untouched and len(self._cached) >= self._cached_blocks):
            block = self._free.pop()
            self.touched_blocks = max(self.touched_blocks, block + 1)
        else:
            block, _none = self._cached.popitem(last=False)
            self._forget(block)
        return block

    def share(self, block: int) -> None:
        """One more holder of a block that `find` gave."""
        if self._references[block] == 0:
            del self._cached[block]
        self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One holder fewer of each of `blocks`, a block table in order. The tail is let go of first, so that it is
        also given away first: a prefix is worth more than what follows it."""
        for block in reversed(blocks):
            if self._references[block] < 1:
                raise InvariantBroken(f"block {block} released more often than held")
            self._references[block] -= 1
            if self._references[block] == 0:
                if self._hashes[block] is None:
                    self._free.append(block)
                else:
                    self._cached[block] = None

    def remember(self, block: int, block_hash: bytes, *, begins: tuple[bytes, bytes] | None = None) -> None:
        """Make a held block findable: what it holds does not change any more, except behind what is named here. Of two
        blocks with the same content the first stays findable. `begins`: under what `nearest` finds it, too."""
        if self._references[block] < 1:
            raise InvariantBroken(f"block {block} is nobody's, its content cannot be trusted")
        if self._hashes[block] is None and block_hash not in self._by_hash:
            self._hashes[block] = block_hash
            self._by_hash[block_hash] = block
            if begins is not None:
                self._begins[block] = begins
                self._continuations.add(*begins, block)

    def _forget(self, block: int) -> None:
        block_hash, begins = self._hashes[block], self._begins[block]
        if block_hash is not None:
            del self._by_hash[block_hash]
            self._hashes[block] = None
        if begins is not None:
            self._continuations.remove(*begins, block)
            self._begins[block] = None

    def audit(self, tables: Iterable[Sequence[int]]) -> PoolCensus:
        """Count every block once and compare with `tables`, the block tables of everybody who holds any.

        Raises InvariantBroken if a reference, a hash or a place in the queue is wrong.
        """
        held = Counter(block for table in tables for block in table)
        free = set(self._free)
        for block, references in enumerate(self._references):
            if held[block] != references:
                raise InvariantBroken(f"block {block}: {references} references, {held[block]} holders")
            places = (block in free) + (block in self._cached)
            if places != (references == 0) or (block in self._cached and self._hashes[block] is None):
                raise InvariantBroken(f"block {block}: {references} references, yet wrongly (un)available")
            if block in free and self._hashes[block] is not None:
                raise InvariantBroken(f"block {block} is free, yet a hash finds it")
        for block_hash, block in self._by_hash.items():
            if self._hashes[block] != block_hash:
                raise InvariantBroken(f"block {block} is found under a hash that it does not have")
        if len(self._by_hash) != sum(block_hash is not None for block_hash in self._hashes):
            raise InvariantBroken("a block has a hash that does not find it")
        begun = [(block, begins) for block, begins in enumerate(self._begins) if begins is not None]
        if len(begun) != len(self._continuations):
            raise InvariantBroken("blocks are found by their beginnings that have none")
        for block, (parent, tokens) in begun:
            if self._hashes[block] is None or not self._continuations.has(parent, tokens, block):
                raise InvariantBroken(f"block {block} is not found by how it begins")
        census = PoolCensus(
            free=len(self._free), cached=len(self._cached), used=sum(references > 0 for references in self._references)
        )
        if census.free + census.cached + census.used != self.blocks:
            raise InvariantBroken(f"{census} does not sum to {self.blocks}")
        return census


def blocks_at_once(tokens: int, block_tokens: int) -> int:
    """The most blocks in which so many tokens (one at least) in a row lie, wherever in a block they begin."""
    return (tokens - 2) // block_tokens + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSize:
    """What one group of layers is given: see `BlockPool` for the blocks, `LayerGroup` for the window."""

    blocks: int
    window: int | None = None
    cached_blocks: int | None = None


class _Group:
    """The pool of one group of layers, and how far back its rows see."""

    def __init__(self, size: GroupSize, block_tokens: int) -> None:
        self.size = size
        self.pool = BlockPool(size.blocks, cached_blocks=size.cached_blocks)
        self._block_tokens = block_tokens

    def first_seen(self, position: int) -> int:
        """The first block that rows at `position` and later see."""
        return 0 if self.size.window is None else max(0, position - self.size.window + 1) // self._block_tokens

    def most_blocks(self, known: int, step_tokens: int) -> int:
        """The most blocks that a sequence of `known` tokens needs at once, `step_tokens` at a time."""
        whole = -(-known // self._block_tokens)
        if self.size.window is None:
            return whole
        return min(whole, blocks_at_once(self.size.window - 1 + min(known, step_tokens), self._block_tokens))

    def longest_hit(self, hashes: Sequence[bytes]) -> int:
        """How many blocks, of those with these hashes, the next token can follow: all that it sees are there, and the
        last one, if only to say that it was computed."""
        longest = run_start = 0  # the blocks from run_start on are there
        for index, block_hash in enumerate(hashes):
            if self.pool.find(block_hash) is None:
                run_start = index + 1
            elif run_start <= self.first_seen((index + 1) * self._block_tokens):
                longest = index + 1
        return longest


@dataclass(frozen=True, slots=True)
class _Share:
    """What a sequence is to get of one group."""

    group: _Group
    holes: int
    hits: list[int]
    source: int | None  # whose beginning the first of `wanted` blocks is to have
    wanted: int

    @property
    def fits(self) -> bool:
        pool = self.group.pool
        pinned = self.hits if self.source is None else [*self.hits, self.source]
        return self.wanted <= pool.available - sum(pool.is_idle(block) for block in pinned)


@dataclass(frozen=True, slots=True)
class _Beginning:
    """Of the block behind a hit: how many tokens of it are there already, and in which block of each group."""

    tokens: int
    sources: list[int]


class KVCacheManager:
    """Gives sequences the blocks they need, sharing full blocks of equal prefixes.

    `groups`: one for each group of layers, at most one that sees everything and then at most one that slides. Step
    tokens, wherever they are asked for, are the most tokens of one sequence that a step computes. With a model that
    `tells_prompts_apart`, a block with generated tokens is not what the same tokens in a prompt would be, and is found
    only by who has generated them too: a sequence that lost its memory, or one that got the same answer.

    `copy_block` is called while blocks are given away, between two steps; without it, only whole blocks are shared.
    """

    def __init__(
        self,
        groups: Sequence[GroupSize],
        *,
        block_tokens: int = BLOCK_TOKENS,
        prefix_caching: bool = True,
        tells_prompts_apart: bool = False,
        copy_block: CopyBlock | None = None,
    ) -> None:
        kinds = [size.window is not None for size in groups]
        if kinds not in ([False], [True], [False, True]):
            raise ValueError(f"layers see everything or slide, in this order; not {groups}")
        self.block_tokens = block_tokens
        self.prefix_caching = prefix_caching
        self._tells_prompts_apart = tells_prompts_apart
        self._copy_block = copy_block
        self._groups = [_Group(size, block_tokens) for size in groups]

    @property
    def pools(self) -> tuple[BlockPool, ...]:
        """The pool of each group."""
        return tuple(group.pool for group in self._groups)

    def capacity_tokens(self, step_tokens: int) -> int:
        """The longest sequence that can be held at all: no limit where only a window is kept, and there is room for
        it and a step."""
        return min(
            sys.maxsize
            if group.most_blocks(sys.maxsize, step_tokens) <= group.pool.blocks
            else group.pool.blocks * self.block_tokens
            for group in self._groups
        )

    def admit(self, sequence: SequenceState, step_tokens: int) -> bool:
        """Give `sequence`, which holds nothing, blocks for *all* its known tokens, and where a window slides, the most
        it needs at once until they are computed; as many as possible from the prefix cache. False, with nothing
        changed, if it does not fit whole. Checking only the first chunk would admit too much and then thrash.

        Sets its block tables and `computed_tokens` (the hit). The last token is never a hit: it has to be computed
        for its logits.
        """
        hashes = self._hashes_of_hit(sequence)
        beginning = self._beginning_behind(sequence, hashes)
        shares = self._shares(sequence, step_tokens, hashes, beginning)
        if beginning is not None and not all(share.fits for share in shares):
            beginning = None  # the block to copy may be the very one that is needed
            shares = self._shares(sequence, step_tokens, hashes, beginning)
        if not all(share.fits for share in shares):
            return False
        for number, share in enumerate(shares):
            pool = share.group.pool
            held = share.hits if share.source is None else [*share.hits, share.source]
            for block in held:
                pool.share(block)
            taken = pool.take(share.wanted)
            sequence.block_tables.append([HOLE] * share.holes + share.hits + taken)
            if share.source is not None and self._copy_block is not None:
                self._copy_block(number, share.source, taken[0])
                pool.release([share.source])
        sequence.computed_tokens = self._hit_tokens(hashes, beginning)
        return True

    def _hit_tokens(self, hashes: Sequence[bytes], beginning: _Beginning | None) -> int:
        return len(hashes) * self.block_tokens + (0 if beginning is None else beginning.tokens)

    def _shares(
        self, sequence: SequenceState, step_tokens: int, hashes: Sequence[bytes], beginning: _Beginning | None
    ) -> list[_Share]:
        shares: list[_Share] = []
        for number, group in enumerate(self._groups):
            # A window may have slid past a block of the hit by the end of the beginning behind it.
            holes = group.first_seen(self._hit_tokens(hashes, beginning))
            hits = [block for block_hash in hashes[holes:] if (block := group.pool.find(block_hash)) is not None]
            needed = group.most_blocks(sequence.known_tokens, step_tokens)
            wanted = min(holes + needed, self._blocks_for(sequence.known_tokens)) - len(hashes)
            shares.append(_Share(group, holes, hits, None if beginning is None else beginning.sources[number], wanted))
        return shares

    def grow(self, sequence: SequenceState, tokens: int) -> bool:
        """Make room for `tokens` tokens in all; False, with nothing changed, if there is none."""
        blocks = self._blocks_for(tokens)
        wanted = [max(0, blocks - len(table)) for table in sequence.block_tables]
        if not any(wanted):
            return True
        if any(count > pool.available for count, pool in zip(wanted, self.pools, strict=True)):
            return False
        for table, count, pool in zip(sequence.block_tables, wanted, self.pools, strict=True):
            table.extend(pool.take(count))
        return True

    def note_computed(self, sequence: SequenceState, before: int) -> None:
        """Make the blocks findable that became full since `before` computed tokens, and let go of those that no later
        row sees."""
        indexes = range(before // self.block_tokens, sequence.computed_tokens // self.block_tokens)
        full = [
            (index, self._hash(sequence, index), self._begins(sequence, index, self.block_tokens))
            for index in (indexes if self.prefix_caching else ())
        ]
        for group, table in zip(self._groups, sequence.block_tables, strict=True):
            for index, block_hash, begins in full:
                group.pool.remember(table[index], block_hash, begins=begins)
            first, end = group.first_seen(before), group.first_seen(sequence.computed_tokens)
            # The latest are worth most, for they lie beside what is still held.
            group.pool.release(table[first:end][::-1])
            table[first:end] = [HOLE] * (end - first)

    def release(self, sequence: SequenceState) -> None:
        """Take all blocks back. What was computed stays findable until the memory is needed."""
        if sequence.block_tables:
            self._remember_last(sequence)
            for group, table in zip(self._groups, sequence.block_tables, strict=True):
                group.pool.release(table[group.first_seen(sequence.computed_tokens) :])
        sequence.block_tables = []
        sequence.computed_tokens = 0

    def reset(self) -> None:
        """New pools: nobody holds anything, nothing is cached. For when whoever held something is gone."""
        self._groups = [_Group(group.size, self.block_tokens) for group in self._groups]

    def audit(self, sequences: Iterable[SequenceState]) -> PoolCensus:
        """Audit every pool against `sequences`, all that hold any block; the census of all groups together.

        Raises InvariantBroken for what `BlockPool.audit` finds, and for a sequence with a hole where one of its later
        rows looks, or a block where none does.
        """
        holders = [sequence for sequence in sequences if sequence.block_tables]
        census = PoolCensus(free=0, cached=0, used=0)
        for number, group in enumerate(self._groups):
            held: list[list[int]] = []
            for sequence in holders:
                table = sequence.block_tables[number]
                holes = group.first_seen(sequence.computed_tokens)
                if any(block != HOLE for block in table[:holes]) or HOLE in table[holes:]:
                    raise InvariantBroken(f"{sequence.request_id} holds {table} at {sequence.computed_tokens} tokens")
                held.append(table[holes:])
            census += group.pool.audit(held)
        return census

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def _hashes_of_hit(self, sequence: SequenceState) -> list[bytes]:
        """Of the full blocks of the longest prefix that all groups can go on from."""
        if not self.prefix_caching:
            return []
        hashes = [self._hash(sequence, index) for index in range((sequence.known_tokens - 1) // self.block_tokens)]
        for group in self._groups:  # a hit of the first, cut short, is one too
            hashes = hashes[: group.longest_hit(hashes)]
        return hashes

    def _beginning_behind(self, sequence: SequenceState, hashes: Sequence[bytes]) -> _Beginning | None:
        """The most tokens behind a hit of full blocks that all groups have in one block or another."""
        if self._copy_block is None or not self.prefix_caching:
            return None
        start = len(hashes) * self.block_tokens
        tokens = self._copyable(sequence, start, min(start + self.block_tokens, sequence.known_tokens - 1))
        found = [group.pool.nearest(hashes[-1] if hashes else b"", tokens) for group in self._groups]
        shared = min(tokens for _block, tokens in found)
        return _Beginning(shared, [block for block, _tokens in found]) if shared else None

    def _copyable(self, sequence: SequenceState, start: int, end: int) -> bytes:
        """Tokens as a beginning has them. Where prompts are told apart, those of a prompt alone."""
        if self._tells_prompts_apart:
            end = min(end, len(sequence.prompt))
        return packed(sequence.tokens(start, max(start, end)))

    def _begins(self, sequence: SequenceState, index: int, tokens: int) -> tuple[bytes, bytes] | None:
        """Under what `BlockPool.nearest` is to find the first so many tokens of block `index`."""
        start = index * self.block_tokens
        begins = b"" if self._copy_block is None else self._copyable(sequence, start, start + tokens)
        return (self._hash(sequence, index - 1) if index else b"", begins) if begins else None

    def _remember_last(self, sequence: SequenceState) -> None:
        """The block that a sequence lets go of half full: later ones may copy it."""
        index, tokens = divmod(sequence.computed_tokens, self.block_tokens)
        begins = self._begins(sequence, index, tokens)
        if begins is None or not self.prefix_caching:
            return
        name = hashlib.blake2b(b"".join(begins), digest_size=16, person=b"half full").digest()
        for group, table in zip(self._groups, sequence.block_tables, strict=True):
            group.pool.remember(table[index], name, begins=begins)

    def _hash(self, sequence: SequenceState, index: int) -> bytes:
        """The hash of full block `index`: of its tokens, where it matters of who wrote them, and, through its parent's
        hash, of all before it."""
        chain = sequence.block_hashes
        edges = range(len(chain) * self.block_tokens, (index + 2) * self.block_tokens, self.block_tokens)
        for start, end in pairwise(edges):
            parent = chain[-1] if chain else b""
            tokens = sequence.tokens(start, end)
            content = parent + pack(f"<{len(tokens)}I", *tokens)
            if self._tells_prompts_apart and end > len(sequence.prompt):
                content += pack("<I", max(0, len(sequence.prompt) - start))
            chain.append(hashlib.blake2b(content, digest_size=16).digest())
        return chain[index]
