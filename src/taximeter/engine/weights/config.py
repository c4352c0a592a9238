"""The shape of a model: every number the forward pass needs, whichever file it came from.

Owns: `ModelConfig`, what an architecture's name alone says, what makes a config impossible, and which tensors of which
shape it calls for. Refuses to know: file formats and their key names, and how the numbers are used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from taximeter.engine.weights.fields import shown
from taximeter.errors import ModelFileError

Architecture = Literal["llama", "gemma3", "mistral", "qwen2", "qwen3"]
GatedActivation = Literal["silu", "gelu_tanh"]

GEMMA3_SLIDING_PATTERN = 6  # layers 5, 11, 17, ... see everything, the others a window
GEMMA3_SLIDING_ROPE_BASE = 10_000.0
USUAL_ROPE_BASE = 10_000.0

_LARGEST_SIZE = 2**31 - 1
_MOST_LAYERS = 10_000  # far above any model, as is the next; both bound what a hostile header can make us build
_WIDEST_HEAD = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What an architecture's name says by itself, because no kind of file has a key for it.

    With `local_rope`, sliding layers have a rotary base of their own and are never scaled; without, they turn as the
    others do. The rest as in `ModelConfig`.
    """

    qkv_bias: bool = False
    qk_norm: bool = False
    sandwich_norms: bool = False
    gated_activation: GatedActivation = "silu"
    scaled_embedding: bool = False
    local_rope: bool = False


TRAITS: Mapping[Architecture, Traits] = {
    "llama": Traits(),
    "gemma3": Traits(
        qk_norm=True, sandwich_norms=True, gated_activation="gelu_tanh", scaled_embedding=True, local_rope=True
    ),
    "mistral": Traits(),
    "qwen2": Traits(qkv_bias=True),
    "qwen3": Traits(qk_norm=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One model's shape. Raises `ModelFileError` when the numbers cannot belong together.

    A layer is *global* or *sliding*: in a sliding one (`sliding_layers[layer]`) position q sees key k only if
    q - k < `sliding_window`. Global layers turn queries and keys by `rope_base`, each frequency divided by `rope_scale`
    and by its own one of `rope_divisors` (rope_dim / 2 of them; None: all one); sliding layers by `rope_base_sliding`,
    never divided. `rope_dim` is how many of a head's dimensions turn, the first ones. Scores are multiplied by
    `attention_scale`, embeddings (not the tied output) by `embedding_scale`; logits are
    `logit_softcap * tanh(logits / logit_softcap)` unless it is None.

    `qkv_bias`: queries, keys and values have biases. `qk_norm`: queries and keys are normed head by head before they
    turn. `sandwich_norms`: what attention and feed-forward give is normed again before it is added to the row.

    Floats are rounded to float32, in which the engine computes, so that a GGUF file and a Hugging Face folder of the
    same model give equal configs.
    """

    architecture: Architecture
    name: str
    context_length_tokens: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ff_size: int
    vocab_size: int
    rms_eps: float
    rope_base: float
    rope_base_sliding: float
    rope_scale: float
    rope_divisors: tuple[float, ...] | None
    rope_dim: int
    attention_scale: float
    sliding_window: int | None
    sliding_layers: tuple[bool, ...]
    embedding_scale: float
    logit_softcap: float | None
    tied_embeddings: bool
    qkv_bias: bool
    qk_norm: bool
    sandwich_norms: bool
    gated_activation: GatedActivation

    def __post_init__(self) -> None:
        for field in ("rms_eps", "rope_base", "rope_base_sliding", "rope_scale", "attention_scale", "embedding_scale"):
            object.__setattr__(self, field, _positive_float32(field, getattr(self, field)))
        if self.logit_softcap is not None:
            object.__setattr__(self, "logit_softcap", _positive_float32("logit_softcap", self.logit_softcap))
        for field in ("context_length_tokens", "hidden_size", "heads", "kv_heads", "head_dim", "ff_size", "vocab_size"):
            _check_size(field, getattr(self, field), _LARGEST_SIZE)
        _check_size("layers", self.layers, _MOST_LAYERS)
        if self.heads % self.kv_heads:
            raise impossible(f"{self.heads} attention heads cannot share {self.kv_heads} key-value heads evenly")
        if self.head_dim % 2:
            raise impossible(f"a head of {self.head_dim} dimensions cannot be rotated in pairs")
        if self.rope_dim % 2 or not 0 < self.rope_dim <= self.head_dim:
            raise impossible(f"{self.rope_dim} rotated dimensions do not fit a head of {self.head_dim}")
        if self.rope_divisors is not None:
            if len(self.rope_divisors) != self.rope_dim // 2:
                raise impossible(
                    f"{len(self.rope_divisors)} rope factors for {self.rope_dim} dimensions rotated in pairs"
                )
            divisors = tuple(_positive_float32("a rope factor", divisor) for divisor in self.rope_divisors)
            object.__setattr__(self, "rope_divisors", divisors)
        if len(self.sliding_layers) != self.layers:
            raise impossible(
                f"the attention pattern names {len(self.sliding_layers)} layers, the model has {self.layers}"
            )
        if any(self.sliding_layers):
            if self.sliding_window is None:
                raise impossible("some layers slide, but the window has no size")
            _check_size("sliding_window", self.sliding_window, _LARGEST_SIZE)
            scaled = self.rope_scale != 1.0 or self.rope_divisors is not None
            if scaled and not TRAITS[self.architecture].local_rope:
                raise ModelFileError(
                    "scaled positions in sliding layers are not supported", hint="use a model without a window"
                )


def tensor_shapes(config: ModelConfig) -> Mapping[str, tuple[int, ...]]:
    """Every tensor the model needs, by its canonical name, with its shape: (out_features, in_features) or (size,)."""
    hidden, ff = config.hidden_size, config.ff_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (config.vocab_size, hidden),
        "output_norm.weight": (hidden,),
    }
    if not config.tied_embeddings:
        shapes["output.weight"] = (config.vocab_size, hidden)
    per_layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "attn_q": (queries, hidden),
        "attn_k": (keys, hidden),
        "attn_v": (keys, hidden),
        "attn_output": (hidden, queries),
        "ffn_norm": (hidden,),
        "ffn_gate": (ff, hidden),
        "ffn_up": (ff, hidden),
        "ffn_down": (hidden, ff),
    }
    if config.qk_norm:
        per_layer |= {"attn_q_norm": (config.head_dim,), "attn_k_norm": (config.head_dim,)}
    if config.sandwich_norms:
        per_layer |= {"post_attention_norm": (hidden,), "post_ffw_norm": (hidden,)}
    biases = {"attn_q": (queries,), "attn_k": (keys,), "attn_v": (keys,)} if config.qkv_bias else {}
    for layer in range(config.layers):
        shapes |= {f"blk.{layer}.{part}.weight": shape for part, shape in per_layer.items()}
        shapes |= {f"blk.{layer}.{part}.bias": shape for part, shape in biases.items()}
    return shapes


def check_tensors(config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `ModelFileError`, naming the tensor, unless `shapes` are exactly what `config` calls for.

    A tensor too many is refused too: a bias or a factor that the forward pass would not apply changes the answer.
    """
    wanted = tensor_shapes(config)
    for name, shape in wanted.items():
        if name not in shapes:
            raise ModelFileError(
                f"tensor {name} is missing", hint="the file is incomplete or of a variant that is not supported"
            )
        if shapes[name] != shape:
            raise ModelFileError(
                f"tensor {name} has shape {shapes[name]}, the model's configuration calls for {shape}",
                hint="weights and configuration do not belong together; fetch the model again",
            )
    for name in shapes:
        if name not in wanted:
            raise ModelFileError(
                f"tensor {shown(name)} has no place in a {config.architecture} model as it is computed here",
                hint="ignoring it would change answers; this variant of the architecture is not supported",
            )


def unknown_architecture(name: str, known: Iterable[str]) -> ModelFileError:
    """The error for an architecture we do not compute, with the names, as its kind of file has them, of those we do."""
    return ModelFileError(
        f"the architecture {shown(name)} is not supported", hint=f"supported architectures: {', '.join(known)}"
    )


def llama3_rope_divisors(
    *, base: float, dim: int, factor: float, low_freq_factor: float, high_freq_factor: float, original_tokens: float
) -> tuple[float, ...]:
    """What llama 3.1 divides each of its dim / 2 frequencies by, so that it can read on past `original_tokens`.

    Frequencies that turn more than `high_freq_factor` times within the original context stay as they are, those that
    turn less than `low_freq_factor` times are divided by `factor`, and between the two one passes into the other. The
    formula is transformers' (rope type "llama3"); raises `ModelFileError` for parameters it has no meaning for.
    """
    if not (0 < low_freq_factor < high_freq_factor < math.inf and 0 < factor < math.inf):
        raise impossible(
            f"rope scaling by {factor} between the frequency factors {low_freq_factor} and {high_freq_factor}"
        )
    if not (0 < original_tokens < math.inf and 0 < base < math.inf):
        raise impossible(f"rope scaling from {original_tokens} original tokens at the base {base}")
    _check_size("rope_dim", dim, _WIDEST_HEAD)
    frequencies = base ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    turns = original_tokens * frequencies / (2 * math.pi)
    kept = np.clip((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0.0, 1.0)
    return tuple((1 / ((1 - kept) / factor + kept)).tolist())


def sliding_pattern(layers: int, pattern: int) -> tuple[bool, ...]:
    """Which of `layers` slide when every `pattern`-th is global. 0: all slide; 1: none does."""
    _check_size("layers", layers, _MOST_LAYERS)
    if pattern < 0:
        raise impossible(f"every {pattern}-th layer global, which no model can have")
    return tuple(pattern == 0 or layer % pattern < pattern - 1 for layer in range(layers))


def impossible(why: str) -> ModelFileError:
    """The error for a configuration that contradicts itself."""
    return ModelFileError(why, hint="the model's configuration is damaged or of a kind that is not supported")


def _check_size(field: str, value: int, largest: int) -> None:
    if not 0 < value <= largest:
        raise impossible(f"{field} is {value}, which no model can have")


def _positive_float32(field: str, value: float) -> float:
    rounded = float(np.float32(value)) if 0 < value < 3e38 else 0.0
    if rounded == 0.0:
        raise impossible(f"{field} is {value}, which no model can have")
    return rounded
