"""A GGUF file as a checkpoint: what its metadata says about the model, and its tensors in our order.

Owns: GGUF's names for architectures, its key names and defaults (where a key is absent, what llama.cpp assumes), and
permuted rows. Refuses to know: the container's layout and the arithmetic of block types.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from taximeter.engine.weights.config import (
    GEMMA3_SLIDING_PATTERN,
    GEMMA3_SLIDING_ROPE_BASE,
    TRAITS,
    USUAL_ROPE_BASE,
    Architecture,
    ModelConfig,
    check_tensors,
    impossible,
    sliding_pattern,
    unknown_architecture,
)
from taximeter.engine.weights.dequantize import RawTensor
from taximeter.engine.weights.fields import Fields, shown
from taximeter.engine.weights.gguf import GGUFFile
from taximeter.engine.weights.vocabulary import Vocabulary
from taximeter.errors import ModelFileError

# Most mistrals are called llama here, without their window: converters leave it out, and then nothing slides. Since
# 2025 those whose scores may be scaled by position have a name of their own.
_ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": "llama",
    "gemma3": "gemma3",
    "mistral3": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
}
_PERMUTED: frozenset[Architecture] = frozenset({"llama", "mistral"})  # made for rotating neighbours (2i, 2i + 1)
# Every how many layers one is global, where a file has a window but no pattern: none of them in a mistral. A qwen's
# file would have to say.
_SLIDING_PATTERNS: Mapping[Architecture, int] = {"llama": 0, "mistral": 0, "gemma3": GEMMA3_SLIDING_PATTERN}
_BEGUN_BY_RULE = frozenset({"llama-bpe", "llama-v3", "llama3", "tekken"})  # splitting rules that imply a BOS
_EMBEDDING = "token_embd.weight"
_ROPE_FACTORS = "rope_freqs.weight"  # not a weight: what each rotary frequency is divided by
_MOST_ROPE_FACTORS = 1 << 15
_GEMMA3_27B = ("gemma3", 62)  # by its layers; the one size whose query scale is not its head's, which has no key


class GGUFCheckpoint:
    """See `Checkpoint`."""

    def __init__(self, path: Path) -> None:
        self._file = GGUFFile(path)
        self._is_closed = False
        self._config = _config(self._fields(), self._file)
        self._tensors = {name: tensor for name, tensor in self._file.tensors.items() if name != _ROPE_FACTORS}
        check_tensors(self._config, {name: tensor.shape for name, tensor in self._tensors.items()})
        for name, tensor in self._tensors.items():
            if len(tensor.shape) == 1 and tensor.kind.block_weights > 1:
                raise ModelFileError(
                    f"tensor {name} is stored as {tensor.kind.name}, which is for matrices", hint="use another file"
                )

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def config(self) -> ModelConfig:
        return self._config

    def names(self) -> Sequence[str]:
        return tuple(self._tensors)

    def raw(self, name: str) -> RawTensor:
        tensor = self._tensors[name]
        data = self._file.raw(tensor)
        if self._config.architecture in _PERMUTED:
            match name.split(".")[-2]:
                case "attn_q":
                    data = data.reshape(tensor.shape[0], -1)[_half_split_rows(self._config, self._config.heads)]
                case "attn_k":
                    data = data.reshape(tensor.shape[0], -1)[_half_split_rows(self._config, self._config.kv_heads)]
                case _:
                    pass
        return RawTensor.of(tensor.kind.name, tensor.shape, data)

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        return self.raw(name).dequantized()

    def close(self) -> None:
        self._file.close()
        self._is_closed = True

    def vocabulary(self) -> Vocabulary:
        if self._is_closed:
            raise ValueError(f"{self.path.name} has been closed")
        return _vocabulary(self._fields(), self._config.vocab_size)

    def _fields(self) -> Fields:
        return Fields(self._file.metadata, self.path.name)


def _half_split_rows(config: ModelConfig, heads: int) -> npt.NDArray[np.intp]:
    """For each row of a half-split projection (a bias has rows of one), the row of a permuted file that holds it."""
    turned = config.rope_dim
    order = np.concatenate([np.arange(0, turned, 2), np.arange(1, turned, 2), np.arange(turned, config.head_dim)])
    return (np.arange(heads)[:, None] * config.head_dim + order).reshape(-1)


def _config(fields: Fields, file: GGUFFile) -> ModelConfig:
    if fields.whole("split.count", 1) > 1:
        raise ModelFileError(
            f"{file.path.name} is one part of a split model", hint="join the parts with `llama-gguf-split --merge`"
        )
    named = fields.text("general.architecture")
    architecture = _ARCHITECTURES.get(named)
    if architecture is None:
        raise unknown_architecture(named, _ARCHITECTURES)
    traits = TRAITS[architecture]
    keys = fields.under(named)
    _refuse_what_is_not_computed(keys)
    layers = keys.whole("block_count")
    hidden_size = keys.whole("embedding_length")
    heads = _same_in_all_layers(keys, "attention.head_count")
    if heads <= 0:
        raise impossible(f"a model with {heads} attention heads")
    head_dim = keys.whole("attention.key_length", hidden_size // heads)
    if keys.whole("attention.value_length", head_dim) != head_dim:
        raise ModelFileError("keys and values of different sizes are not supported", hint="use another model")
    window, sliding_layers = _sliding(keys, layers, _SLIDING_PATTERNS.get(architecture))
    scale_like = hidden_size / heads if (architecture, layers) == _GEMMA3_27B else head_dim
    rope_base = keys.number("rope.freq_base", USUAL_ROPE_BASE)
    return ModelConfig(
        architecture=architecture,
        name=fields.optional_text("general.name") or file.path.stem,
        context_length_tokens=keys.whole("context_length"),
        hidden_size=hidden_size,
        layers=layers,
        heads=heads,
        kv_heads=_same_in_all_layers(keys, "attention.head_count_kv", heads),
        head_dim=head_dim,
        ff_size=_same_in_all_layers(keys, "feed_forward_length"),
        vocab_size=keys.whole("vocab_size", file.tensors[_EMBEDDING].shape[0] if _EMBEDDING in file.tensors else None),
        rms_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope_base=rope_base,
        rope_base_sliding=keys.number(
            "rope.freq_base_swa", GEMMA3_SLIDING_ROPE_BASE if traits.local_rope else rope_base
        ),
        rope_scale=_rope_scale(keys),
        rope_divisors=_rope_divisors(file),
        rope_dim=keys.whole("rope.dimension_count", head_dim),
        attention_scale=keys.number("attention.scale", 1 / math.sqrt(max(scale_like, 1))),
        sliding_window=window,
        sliding_layers=sliding_layers,
        embedding_scale=math.sqrt(max(hidden_size, 1)) if traits.scaled_embedding else 1.0,
        logit_softcap=keys.number("final_logit_softcapping", 0.0) or None,
        tied_embeddings="output.weight" not in file.tensors,
        qkv_bias=traits.qkv_bias or "blk.0.attn_q.bias" in file.tensors,  # some llamas have them and no key to say so
        qk_norm=traits.qk_norm,
        sandwich_norms=traits.sandwich_norms,
        gated_activation=traits.gated_activation,
    )


def _same_in_all_layers(keys: Fields, name: str, default: int | None = None) -> int:
    """A number that may be given once or per layer, but must then be the same in all."""
    if not keys.is_list(name):
        return keys.whole(name, default)
    values = set(keys.optional_wholes(name) or ())
    if len(values) != 1:
        raise ModelFileError(f"{name} differs between layers, which is not supported", hint="use another model")
    return values.pop()


def _refuse_what_is_not_computed(keys: Fields) -> None:
    if keys.whole("expert_count", 0):
        raise ModelFileError("mixtures of experts are not supported", hint="use a dense model")
    if keys.number("attn_logit_softcapping", 0.0):
        raise ModelFileError("soft-capped attention scores are not supported", hint="use another model")
    if keys.number("attention.temperature_scale", 0.0):
        raise ModelFileError("attention scores scaled by position are not supported", hint="use another model")
    if keys.number("rope.scaling.attn_factor", 1.0) != 1.0:
        raise ModelFileError("rotations that also stretch are not supported", hint="use another model")


def _rope_scale(keys: Fields) -> float:
    kind = keys.optional_text("rope.scaling.type") or "linear"
    if kind == "none":
        return 1.0
    if kind != "linear":
        raise ModelFileError(
            f"rope scaling of kind {shown(kind)} is not supported",
            hint="supported kinds: none, linear, and llama3 by its tensor rope_freqs.weight",
        )
    return keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 0.0)) or 1.0


def _rope_divisors(file: GGUFFile) -> tuple[float, ...] | None:
    tensor = file.tensors.get(_ROPE_FACTORS)
    if tensor is None:
        return None
    if len(tensor.shape) != 1 or tensor.shape[0] > _MOST_ROPE_FACTORS:
        raise impossible(f"tensor {_ROPE_FACTORS} has shape {tensor.shape}")
    return tuple(RawTensor.of(tensor.kind.name, tensor.shape, file.raw(tensor)).dequantized().tolist())


def _sliding(keys: Fields, layers: int, usual_pattern: int | None) -> tuple[int | None, tuple[bool, ...]]:
    """(window, which layers slide). The pattern is a period or one flag per layer."""
    window = keys.whole("attention.sliding_window", 0)
    name = "attention.sliding_window_pattern"
    if window == 0:
        sliding = sliding_pattern(layers, 1)
    elif keys.is_list(name):
        sliding = tuple(bool(slides) for slides in keys.optional_wholes(name) or ())
    else:
        sliding = sliding_pattern(layers, keys.whole(name, usual_pattern))
    return (window if any(sliding) else None), sliding


def _vocabulary(fields: Fields, vocab_size: int) -> Vocabulary:
    tokenizer = fields.under("tokenizer")
    keys = tokenizer.under("ggml")
    model = keys.optional_text("model")
    if model not in ("gpt2", "llama"):
        raise ModelFileError(
            "the file has no tokenizer" if model is None else f"the tokenizer kind {shown(model)} is not supported",
            hint="supported kinds: gpt2 (byte-level BPE) and llama (SentencePiece)",
        )
    tokens = keys.optional_texts("tokens") or ()
    scores = keys.optional_array("scores", "f", "a list of numbers")
    token_types = keys.optional_array("token_type", "iu", "a list of whole numbers")
    if not 0 < len(tokens) <= vocab_size:
        raise impossible(f"{len(tokens)} tokens for an embedding of {vocab_size} rows")
    for what, values in (("scores", scores), ("token types", token_types)):
        if values is not None and len(values) not in (0, len(tokens)):
            raise impossible(f"{len(values)} {what} for {len(tokens)} tokens")
    if model == "llama" and (scores is None or not len(scores)):
        raise impossible("a SentencePiece vocabulary without scores")

    def token_id(name: str) -> int | None:
        value = keys.optional_whole(f"{name}_token_id")
        if value is not None and not 0 <= value < len(tokens):
            raise impossible(f"the {name} token is {value}, of {len(tokens)} tokens")
        return value

    eos_id, eot_id, eom_id = token_id("eos"), token_id("eot"), token_id("eom")
    spm, pre = model == "llama", keys.optional_text("pre")
    return Vocabulary(
        kind="spm" if spm else "bpe",
        tokens=tokens,
        merges=keys.optional_texts("merges") or (),
        scores=() if scores is None else scores,
        token_types=() if token_types is None else token_types,
        pre=pre,
        bos_id=token_id("bos"),
        eos_id=eos_id,
        eot_id=eot_id,
        unk_id=token_id("unknown"),
        stop_ids=tuple(dict.fromkeys(stop for stop in (eos_id, eot_id, eom_id) if stop is not None)),
        add_bos=keys.flag("add_bos_token", spm or pre in _BEGUN_BY_RULE),
        add_space_prefix=keys.flag("add_space_prefix", spm),
        chat_template=tokenizer.optional_text("chat_template"),
    )
