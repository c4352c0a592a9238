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
    TRAITS,
    USUAL_ROPE_BASE,
    Architecture,
    GatedActivation,
    ModelConfig,
    impossible,
    llama3_rope_divisors,
    sliding_pattern,
    unknown_architecture,
)
from taximeter.engine.weights.fields import Fields, shown
from taximeter.errors import ModelFileError

_ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": "llama",
    "gemma3": "gemma3",  # with eyes; the part that reads and writes text lies inside
    "gemma3_text": "gemma3",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
}
_QWEN = {"max_position_embeddings": 32_768, "sliding_window": 4096, "max_window_layers": 28, "vocab_size": 151_936}
_DEFAULTS: Mapping[Architecture, Mapping[str, object]] = {
    "llama": {"max_position_embeddings": 2048},
    "gemma3": {
        "max_position_embeddings": 131_072,
        "hidden_size": 2304,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "intermediate_size": 9216,
        "vocab_size": 262_208,
        "query_pre_attn_scalar": 256,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": GEMMA3_SLIDING_ROPE_BASE,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
    },
    "mistral": {"max_position_embeddings": 131_072, "num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": _QWEN,
    "qwen3": _QWEN | {"head_dim": 128},
}
_ACTIVATIONS: Mapping[GatedActivation, tuple[str, str]] = {
    "silu": ("hidden_act", "silu"),
    "gelu_tanh": ("hidden_activation", "gelu_pytorch_tanh"),
}


def model_config(top: Fields, name: str) -> ModelConfig:
    """The model that config.json describes. For a gemma3 that also sees, the part that reads and writes text.

    The embedding scale is sqrt(hidden_size) to float32, in which we compute. transformers rounds it to whatever type it
    computes in: in bfloat16, 25.298 (hidden_size 640) becomes 25.25, and its answers are a little different ones.
    """
    kind = top.text("model_type")
    architecture = _ARCHITECTURES.get(kind)
    if architecture is None:
        raise unknown_architecture(kind, _ARCHITECTURES)
    traits, defaults = TRAITS[architecture], _DEFAULTS[architecture]
    inner = top.optional_section("text_config") if kind == "gemma3" else None
    config = (inner or top).over(defaults)
    tied = (inner or top).flag("tie_word_embeddings", top.over(defaults).flag("tie_word_embeddings", False))
    _refuse_what_is_not_computed(config, *_ACTIVATIONS[traits.gated_activation])
    hidden_size = config.whole("hidden_size")
    heads = config.whole("num_attention_heads")
    if heads <= 0:
        raise impossible(f"a model with {heads} attention heads")
    head_dim = config.whole("head_dim", hidden_size // heads)
    window, sliding_layers = _sliding(config, architecture)
    rope = _Rope(config, head_dim)
    scale_like = config.number("query_pre_attn_scalar", head_dim)
    return ModelConfig(
        architecture=architecture,
        name=name,
        context_length_tokens=config.whole("max_position_embeddings"),
        hidden_size=hidden_size,
        layers=len(sliding_layers),
        heads=heads,
        kv_heads=config.whole("num_key_value_heads", heads),
        head_dim=head_dim,
        ff_size=config.whole("intermediate_size"),
        vocab_size=config.whole("vocab_size"),
        rms_eps=config.number("rms_norm_eps", 1e-6),
        rope_base=rope.base,
        rope_base_sliding=rope.base_sliding,
        rope_scale=rope.scale,
        rope_divisors=rope.divisors,
        rope_dim=head_dim,
        attention_scale=1 / math.sqrt(scale_like) if scale_like > 0 else 0.0,
        sliding_window=window,
        sliding_layers=sliding_layers,
        embedding_scale=math.sqrt(max(hidden_size, 1)) if traits.scaled_embedding else 1.0,
        logit_softcap=config.optional_number("final_logit_softcapping"),
        tied_embeddings=tied,
        qkv_bias=traits.qkv_bias,
        qk_norm=traits.qk_norm,
        sandwich_norms=traits.sandwich_norms,
        gated_activation=traits.gated_activation,
    )


def _refuse_what_is_not_computed(config: Fields, activation_key: str, activation: str) -> None:
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


class _Rope:
    """How positions turn: from `rope_parameters`, or from the keys it replaced (`rope_theta`, `rope_scaling`)."""

    def __init__(self, config: Fields, head_dim: int) -> None:
        parameters = config.optional_section("rope_parameters")
        sliding: Fields | None = None
        if parameters is not None and ("full_attention" in parameters or "sliding_attention" in parameters):
            sliding = parameters.optional_section("sliding_attention")
            parameters = parameters.optional_section("full_attention")
        scaling = parameters or config.optional_section("rope_scaling") or Fields({}, "rope")
        if any(fields.number("partial_rotary_factor", 1.0) != 1.0 for fields in (config, scaling)):
            raise ModelFileError("partly rotated heads are not supported", hint="use another model")
        if sliding is not None and _rope_kind(sliding) != "default":
            raise ModelFileError("scaled positions in sliding layers are not supported", hint="use another model")
        self.base = scaling.number("rope_theta", config.number("rope_theta", USUAL_ROPE_BASE))
        self.base_sliding = config.number("rope_local_base_freq", self.base)
        if sliding is not None:
            self.base_sliding = sliding.number("rope_theta", self.base_sliding)
        self.scale = 1.0
        self.divisors: tuple[float, ...] | None = None
        match _rope_kind(scaling):
            case "default":
                pass
            case "linear":
                self.scale = scaling.number("factor")
            case "llama3":
                key = "original_max_position_embeddings"
                self.divisors = llama3_rope_divisors(
                    base=self.base,
                    dim=head_dim,
                    factor=scaling.number("factor"),
                    low_freq_factor=scaling.number("low_freq_factor"),
                    high_freq_factor=scaling.number("high_freq_factor"),
                    original_tokens=config.number(key, scaling.number(key, config.number("max_position_embeddings"))),
                )
            case kind:
                raise ModelFileError(
                    f"rope scaling of kind {shown(kind)} is not supported",
                    hint="supported kinds: default, linear and llama3",
                )


def _rope_kind(scaling: Fields) -> str:
    return scaling.optional_text("rope_type") or scaling.optional_text("type") or "default"


def _sliding(config: Fields, architecture: Architecture) -> tuple[int | None, tuple[bool, ...]]:
    """(window, which layers slide), one entry per layer."""
    layers = config.whole("num_hidden_layers")
    everywhere = sliding_pattern(layers, 1)
    window = config.optional_whole("sliding_window")
    match architecture:
        case "llama":
            window, sliding = None, everywhere
        case "mistral":
            sliding = everywhere if window is None else sliding_pattern(layers, 0)
        case "qwen2" | "qwen3":
            window = window if config.flag("use_sliding_window", False) else None
            first = layers if window is None else config.whole("max_window_layers")
            sliding = tuple(layer >= first for layer in range(len(everywhere)))
        case "gemma3":
            pattern = config.whole("_sliding_window_pattern", GEMMA3_SLIDING_PATTERN)
            sliding = sliding_pattern(layers, config.whole("sliding_window_pattern", pattern))
    named = _sliding_by_name(config, layers)
    if named is not None and named != sliding:
        if architecture == "mistral":  # transformers computes all its layers alike, whatever they are called
            raise ModelFileError("a mistral whose layers differ is not supported", hint="use another model")
        sliding = named
    return (window if any(sliding) else None), sliding


def _sliding_by_name(config: Fields, layers: int) -> tuple[bool, ...] | None:
    types = config.optional_texts("layer_types")
    if types is None:
        return None
    if len(types) != layers or not set(types) <= {"sliding_attention", "full_attention"}:
        raise impossible("layer_types does not name one known kind of attention per layer")
    return tuple(kind == "sliding_attention" for kind in types)
