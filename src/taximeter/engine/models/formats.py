"""In which numbers weights and the KV cache are kept. Owns: the names that people type, and what they cost."""

from __future__ import annotations

from typing import Literal, get_args

from taximeter.engine.models.layer_groups import layer_groups
from taximeter.engine.weights import ModelConfig

WeightFormat = Literal["int4", "int8", "bf16", "f32"]
"""Weights quantized when they are loaded; without one, they stay as their file has them."""

KVFormat = Literal["bf16", "int8", "f32"]
"""int8 has a float32 scale for each head's key and value of a token."""

Arithmetic = Literal["int8", "bf16", "f32"]
"""In which numbers a product is computed."""

WEIGHT_FORMATS: tuple[WeightFormat, ...] = get_args(WeightFormat)
KV_FORMATS: tuple[KVFormat, ...] = get_args(KVFormat)

_VALUE_BYTES: dict[KVFormat, int] = {"bf16": 2, "int8": 1, "f32": 4}
_SCALE_BYTES: dict[KVFormat, int] = {"bf16": 0, "int8": 4, "f32": 0}


def kv_bytes_per_token(config: ModelConfig, kv_format: KVFormat) -> int:
    """Key and value of every layer, while all of them keep a token."""
    return config.layers * _bytes_per_layer(config, kv_format)


def kv_bytes(config: ModelConfig, tokens: int, kv_format: KVFormat) -> int:
    """What a sequence of `tokens` tokens keeps: in a layer that slides, no more than its window."""
    kept = sum(
        len(group.layers) * (tokens if group.window is None else min(tokens, group.window))
        for group in layer_groups(config)
    )
    return kept * _bytes_per_layer(config, kv_format)


def _bytes_per_layer(config: ModelConfig, kv_format: KVFormat) -> int:
    """One token's key and value in one layer."""
    return 2 * config.kv_heads * (config.head_dim * _VALUE_BYTES[kv_format] + _SCALE_BYTES[kv_format])
