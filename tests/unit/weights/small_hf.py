"""Configs and tensors of Hugging Face folders small enough to write down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from taximeter.engine.weights import Checkpoint
from tests.unit.weights.small_gguf import FF, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, VOCAB

Arrays = Mapping[str, npt.NDArray[Any]]
Open = Callable[..., Checkpoint]

LLAMA: Mapping[str, object] = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "intermediate_size": FF,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
GEMMA3: Mapping[str, object] = {
    "model_type": "gemma3_text",
    "hidden_size": HIDDEN,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "intermediate_size": FF,
    "vocab_size": VOCAB,
    "query_pre_attn_scalar": 16,
    "sliding_window": 16,
}
TOKENIZER: Mapping[str, object] = {
    "added_tokens": [{"id": 0, "content": "<s>"}, {"id": 1, "content": "</s>"}, {"id": 2, "content": "<end>"}],
    "model": {"type": "BPE", "vocab": {}, "merges": []},
}


def llama_arrays() -> dict[str, npt.NDArray[np.float32]]:
    layer = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        f"{layer}input_layernorm.weight": (HIDDEN,),
        f"{layer}self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
        f"{layer}self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        f"{layer}self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        f"{layer}self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
        f"{layer}post_attention_layernorm.weight": (HIDDEN,),
        f"{layer}mlp.gate_proj.weight": (FF, HIDDEN),
        f"{layer}mlp.up_proj.weight": (FF, HIDDEN),
        f"{layer}mlp.down_proj.weight": (HIDDEN, FF),
    }
    generator = np.random.default_rng(5)
    return {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def gemma_arrays(prefix: str = "model.") -> dict[str, npt.NDArray[np.float32]]:
    arrays = llama_arrays()
    for name in ("q_norm", "k_norm"):
        arrays[f"model.layers.0.self_attn.{name}.weight"] = np.full(HEAD_DIM, 0.5, dtype=np.float32)
    for name in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
        arrays[f"model.layers.0.{name}.weight"] = np.zeros(HIDDEN, dtype=np.float32)
    return {prefix + name.removeprefix("model."): array for name, array in arrays.items()}


def bias_arrays() -> dict[str, npt.NDArray[np.float32]]:
    sizes = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}
    return {
        f"model.layers.0.self_attn.{part}_proj.bias": np.arange(size, dtype=np.float32) for part, size in sizes.items()
    }


def head_norm_arrays() -> dict[str, npt.NDArray[np.float32]]:
    return {f"model.layers.0.self_attn.{part}_norm.weight": np.full(HEAD_DIM, 0.5, np.float32) for part in "qk"}


ARRAYS: Mapping[str, Callable[[], Arrays]] = {
    "llama": llama_arrays,
    "mistral": llama_arrays,
    "qwen2": lambda: llama_arrays() | bias_arrays(),
    "qwen3": lambda: llama_arrays() | head_norm_arrays(),
}


def as_architecture(model_type: str, **changes: object) -> dict[str, object]:
    """`LLAMA` as a config of another architecture."""
    return dict(LLAMA) | {"model_type": model_type} | changes
