"""How large a model's KV cache is made. Owns: the numbers that decide it, and this machine's memory. Refuses to know:
what the blocks are used for."""

from __future__ import annotations

import os

from taximeter.engine.kv_cache import GroupSize, blocks_at_once
from taximeter.engine.models import KVFormat, kv_bytes_per_token, layer_groups
from taximeter.engine.weights import ModelConfig

MOST_TOKENS = 1 << 20
_LEAST_TOKENS = 16_384
_SHARE_OF_MEMORY = 4  # at most one part in this many of the machine's memory
_ASSUMED_MEMORY_BYTES = 4 << 30  # where the system does not say

# Of a conversation of so many windows, layers that slide keep one: with this share of the tokens that the other layers
# keep, they remember as many such conversations. Never fewer than two: a prefix, and what was said after it.
_WINDOWS_PER_CONVERSATION = 8


def cache_tokens(config: ModelConfig, kv_format: KVFormat) -> int:
    """How much KV cache a model gets unless somebody says otherwise. Its context length is a word of the file's, and
    no reason to allocate more than there is."""
    wanted = max(config.context_length_tokens, _LEAST_TOKENS)
    affordable = _memory_bytes() // _SHARE_OF_MEMORY // kv_bytes_per_token(config, kv_format)
    return max(1, min(wanted, affordable, MOST_TOKENS))


def group_sizes(
    config: ModelConfig, tokens: int, *, block_tokens: int, step_tokens: int, max_running: int
) -> tuple[GroupSize, ...]:
    """What each group of layers gets of a cache of `tokens` tokens: all of them, or where a window slides, no more than
    all that may run need at most, and what remains cached. Memory that nobody needed yet is not touched for the latter,
    so that the size costs only what is needed."""
    whole = max(1, tokens // block_tokens)
    sizes: list[GroupSize] = []
    for group in layer_groups(config):
        if group.window is None:
            sizes.append(GroupSize(blocks=whole))
            continue
        window = blocks_at_once(group.window, block_tokens)
        cached = max(2 * window, whole // _WINDOWS_PER_CONVERSATION)
        needed = max_running * (window + 1) + blocks_at_once(step_tokens, block_tokens) + cached
        sizes.append(GroupSize(blocks=min(whole, needed), window=group.window, cached_blocks=cached))
    return tuple(sizes)


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return _ASSUMED_MEMORY_BYTES
