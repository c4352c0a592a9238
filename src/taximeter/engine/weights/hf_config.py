"""A Hugging Face config.json as a `ModelConfig`.

Owns: that file's key names, old spelling and new, and its defaults (those of transformers' configuration classes: a
key equal to its default may be left out). Refuses to know: tensors and tokenizers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from taximeter.engine.weights.config import (
    GEMMA3_SLIDING_PATTERN,
    GEMMA3_SLIDING_ROPE_BASE,
    LLAMA_ROPE_BASE,
    Architecture,
    ModelConfig,
    impossible,
    known_architecture,
    sliding_pattern,
)
from taximeter.engine.weights.fields import Fields, shown
from taximeter.errors import ModelFileError

_ACTIVATIONS: Mapping[Architecture, tuple[str, str]] = {
    "llama": ("hidden_act", "silu"),
    "gemma3": ("hidden_activation", "gelu_pytorch_tanh"),
}


def model_config(top: Fields, name: str) -> ModelConfig:
    """The model that config.json describes. For a gemma3 that also sees, the part that reads and writes text.

    The embedding scale is sqrt(hidden_size) to float32, in which we compute. transformers rounds it to whatever type it
    computes in: in bfloat16, 25.298 (hidden_size 640) becomes 25.25, and its answers are a little different ones.
    """
    kind = top.text("model_type")
    architecture = known_architecture("gemma3" if kind == "gemma3_text" else kind)
    config = (top.optional_section("text_config") if kind == "gemma3" else None) or top
    gemma3 = architecture == "gemma3"
    _refuse_what_is_not_computed(config, architecture)
    hidden_size = config.whole("hidden_size", 2304 if gemma3 else None)
    heads = config.whole("num_attention_heads", 8 if gemma3 else None)
    if heads <= 0:
        raise impossible(f"a model with {heads} attention heads")
    head_dim = config.whole("head_dim", 256 if gemma3 else hidden_size // heads)
    rope_base, rope_base_sliding, rope_scale = _rope(config, gemma3)
    window, sliding_layers = _sliding(config, gemma3)
    scale_like = config.number("query_pre_attn_scalar", 256) if gemma3 else head_dim
    return ModelConfig(
        architecture=architecture,
        name=name,
        context_length_tokens=config.whole("max_position_embeddings", 131_072 if gemma3 else 2048),
        hidden_size=hidden_size,
        layers=len(sliding_layers),
        heads=heads,
        kv_heads=config.whole("num_key_value_heads", 4 if gemma3 else heads),
        head_dim=head_dim,
        ff_size=config.whole("intermediate_size", 9216 if gemma3 else None),
        vocab_size=config.whole("vocab_size", 262_208 if gemma3 else None),
        rms_eps=config.number("rms_norm_eps", 1e-6),
        rope_base=rope_base,
        rope_base_sliding=rope_base_sliding,
        rope_scale=rope_scale,
        rope_dim=head_dim,
        attention_scale=1 / math.sqrt(scale_like) if scale_like > 0 else 0.0,
        sliding_window=window,
        sliding_layers=sliding_layers,
        embedding_scale=math.sqrt(max(hidden_size, 1)) if gemma3 else 1.0,
        logit_softcap=config.optional_number("final_logit_softcapping"),
        tied_embeddings=config.flag("tie_word_embeddings", top.flag("tie_word_embeddings", gemma3)),
    )


def _refuse_what_is_not_computed(config: Fields, architecture: Architecture) -> None:
    activation_key, activation = _ACTIVATIONS[architecture]
    named = config.optional_text(activation_key) or activation
    if named != activation:
        raise ModelFileError(f"the activation {shown(named)} is not supported", hint=f"supported here: {activation}")
    for name, what in (
        ("quantization_config", "quantized safetensors are not supported"),
        ("attn_logit_softcapping", "soft-capped attention scores are not supported"),
    ):
        if name in config:
            raise ModelFileError(what, hint="use the model in float16, bfloat16 or float32, or as GGUF")
    if config.flag("use_bidirectional_attention", False):
        raise ModelFileError("attention to later tokens is not supported", hint="use a model that generates text")


def _rope(config: Fields, gemma3: bool) -> tuple[float, float, float]:
    """(base, base of sliding layers, linear scale), from `rope_parameters` or from the keys it replaced."""
    parameters = config.optional_section("rope_parameters")
    nested = parameters is not None and "full_attention" in parameters
    whole = parameters.optional_section("full_attention") if parameters is not None and nested else parameters
    sliding = parameters.optional_section("sliding_attention") if parameters is not None else None
    scaling = whole or config.optional_section("rope_scaling") or Fields({}, "rope")
    if any(fields.number("partial_rotary_factor", 1.0) != 1.0 for fields in (config, scaling)):
        raise ModelFileError("partly rotated heads are not supported", hint="use another model")
    if sliding is not None and _rope_scale(sliding) != 1.0:
        raise ModelFileError("scaled positions in sliding layers are not supported", hint="use another model")
    base = scaling.number("rope_theta", config.number("rope_theta", 1_000_000.0 if gemma3 else LLAMA_ROPE_BASE))
    base_sliding = config.number("rope_local_base_freq", GEMMA3_SLIDING_ROPE_BASE)
    if sliding is not None:
        base_sliding = sliding.number("rope_theta", base_sliding)
    return base, base_sliding, _rope_scale(scaling)


def _rope_scale(scaling: Fields) -> float:
    kind = scaling.optional_text("rope_type") or scaling.optional_text("type") or "default"
    if kind == "default":
        return 1.0
    if kind != "linear":
        raise ModelFileError(
            f"rope scaling of kind {shown(kind)} is not supported", hint="supported kinds: default and linear"
        )
    return scaling.number("factor")


def _sliding(config: Fields, gemma3: bool) -> tuple[int | None, tuple[bool, ...]]:
    """(window, which layers slide), one entry per layer."""
    layers = config.whole("num_hidden_layers", 26 if gemma3 else None)
    if not gemma3:
        return None, sliding_pattern(layers, 1)
    pattern = config.whole("sliding_window_pattern", config.whole("_sliding_window_pattern", GEMMA3_SLIDING_PATTERN))
    sliding = sliding_pattern(layers, pattern)
    types = config.optional_texts("layer_types")
    if types is not None:
        if len(types) != layers or not set(types) <= {"sliding_attention", "full_attention"}:
            raise impossible("layer_types does not name one known kind of attention per layer")
        sliding = tuple(kind == "sliding_attention" for kind in types)
    return (config.whole("sliding_window", 4096) if any(sliding) else None), sliding
