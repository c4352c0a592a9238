"""How much memory keys and values take, and how it is divided among groups of layers."""

from __future__ import annotations

import dataclasses

import pytest

from taximeter.engine.kv_cache import GroupSize, KVCacheManager
from taximeter.engine.kv_sizing import group_sizes
from taximeter.engine.models import KVMemory, LayerGroup, kv_bytes, kv_bytes_per_token, layer_groups
from taximeter.engine.weights import ModelConfig
from tests.engine_harness import GOLDEN, loaded

GEMMA_270M = dataclasses.replace(
    loaded(GOLDEN / "tiny_gemma3")[0].config,
    layers=18,
    heads=4,
    kv_heads=1,
    head_dim=256,
    rope_dim=256,
    sliding_window=512,
    sliding_layers=tuple(layer % 6 != 5 for layer in range(18)),
    context_length_tokens=32_768,
)
LLAMA, MISTRAL = (loaded(GOLDEN / name)[0].config for name in ("tiny_llama", "tiny_mistral"))


def sizes_of(config: ModelConfig, tokens: int, *, step_tokens: int = 512, max_running: int = 64) -> list[GroupSize]:
    return list(group_sizes(config, tokens, block_tokens=16, step_tokens=step_tokens, max_running=max_running))


def test_layers_that_see_everything_come_first() -> None:
    """Slots, block tables and native memory follow this order; a model of one kind has one group."""
    everything, sliding = layer_groups(GEMMA_270M)
    assert everything == LayerGroup(window=None, layers=(5, 11, 17))
    assert (sliding.window, len(sliding.layers)) == (512, 15)
    assert layer_groups(LLAMA) == (LayerGroup(window=None, layers=(0, 1, 2)),)
    assert layer_groups(MISTRAL) == (LayerGroup(window=16, layers=(0, 1, 2)),)


def test_what_gemma_keeps_of_2048_tokens() -> None:
    """37,748,736 bytes where every layer keeps everything, 14,155,776 with windows; all the same up to 512 tokens."""
    assert 2048 * kv_bytes_per_token(GEMMA_270M, "bf16") == 37_748_736
    assert kv_bytes(GEMMA_270M, 2048, "bf16") == 14_155_776
    assert kv_bytes(GEMMA_270M, 2048, "f32") == 2 * 14_155_776
    assert kv_bytes(GEMMA_270M, 2048, "int8") == 14_155_776 // 2 + (3 * 2048 + 15 * 512) * 2 * 4  # a scale a vector
    assert kv_bytes(GEMMA_270M, 512, "bf16") == 512 * 18_432
    assert kv_bytes(GEMMA_270M, 513, "bf16") == 512 * 18_432 + 3_072
    assert kv_bytes(LLAMA, 1000, "bf16") == 1000 * kv_bytes_per_token(LLAMA, "bf16")


def test_without_windows_there_is_one_pool_of_all_tokens() -> None:
    """And nothing limits what it caches."""
    assert sizes_of(LLAMA, 1000) == [GroupSize(blocks=62)]
    assert sizes_of(LLAMA, 3) == [GroupSize(blocks=1)]


def test_a_sliding_pool_is_never_larger_than_what_can_be_needed() -> None:
    """Two sequences of 33 + 1 blocks, a step of 513 tokens at most in 33 + 1, and the cached 66."""
    everything, sliding = sizes_of(GEMMA_270M, 1 << 20, max_running=2)
    assert everything.blocks == 1 << 16
    assert sliding == GroupSize(blocks=2 * 34 + 33 + (1 << 13), window=512, cached_blocks=1 << 13)
    assert sizes_of(GEMMA_270M, 8192)[1] == GroupSize(blocks=512, window=512, cached_blocks=66)


@pytest.mark.parametrize("max_running", [1, 64])
@pytest.mark.parametrize("tokens", [16, 4096, 8192, 100_000])
@pytest.mark.parametrize("step_tokens", [1, 512, 1 << 40])
@pytest.mark.parametrize("config", [GEMMA_270M, MISTRAL, LLAMA], ids=["gemma", "mistral", "llama"])
def test_windows_never_make_the_longest_sequence_shorter(
    config: ModelConfig, tokens: int, step_tokens: int, max_running: int
) -> None:
    """Whatever the options, the layers that slide hold what the others hold."""
    sizes = sizes_of(config, tokens, step_tokens=step_tokens, max_running=max_running)
    assert KVCacheManager(sizes).capacity_tokens(step_tokens) >= tokens // 16 * 16


def test_memory_is_wanted_for_each_group() -> None:
    """One number for a model with two groups is a mistake, not a default."""
    with pytest.raises(ValueError, match="2 groups"):
        KVMemory(GEMMA_270M, blocks=[4], block_tokens=16)
