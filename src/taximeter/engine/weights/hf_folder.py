"""A Hugging Face folder as a checkpoint.

Owns: which files hold the weights, transformers' tensor names and ours, and gemma's norm weights. Refuses to know: what
config.json and the tokenizer's files say, and the safetensors layout.

transformers rotates half-split pairs, as the engine does: no rows are ever put in another order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from taximeter.engine.weights.config import ModelConfig, check_tensors
from taximeter.engine.weights.dequantize import RawTensor
from taximeter.engine.weights.fields import read_json, shown
from taximeter.engine.weights.hf_config import model_config
from taximeter.engine.weights.hf_vocabulary import vocabulary
from taximeter.engine.weights.safetensors_file import SafetensorsFile
from taximeter.engine.weights.vocabulary import Vocabulary
from taximeter.errors import ModelFileError

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"

_OUTER_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_PLAIN_NORM_NAMES = {"post_attention_layernorm": "ffn_norm"}
_SANDWICH_NORM_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_LAYER = re.compile(r"model\.layers\.(\d{1,6})\.(.+)\.(weight|bias)")
_TEXT_PREFIX = re.compile(r"(?:model\.language_model|language_model\.model)\.")  # gemma3 beside its eyes
_IGNORED = re.compile(
    r"(?:model\.)?(?:vision_tower|multi_modal_projector)\..+"  # gemma3's eyes
    r"|.+\.rotary_emb\.inv_freq"  # older exports: follows from the rope base
)


class HuggingFaceCheckpoint:
    """See `Checkpoint`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fields = read_json(path / "config.json")
        self._config = model_config(self._fields, path.resolve().name)
        self._tensors = self._find_tensors()
        check_tensors(self._config, {name: file.shapes[stored] for name, (file, stored) in self._tensors.items()})
        for file, stored in self._tensors.values():
            file.check_type(stored)

    @property
    def path(self) -> Path:
        return self._path

    @property
    def config(self) -> ModelConfig:
        return self._config

    def names(self) -> Sequence[str]:
        return tuple(self._tensors)

    def raw(self, name: str) -> RawTensor:
        file, stored = self._tensors[name]
        raw = file.raw(stored)
        if self._config.architecture == "gemma3" and name.endswith("norm.weight"):  # stored as the distance from one
            weight = raw.dequantized() + np.float32(1)
            return RawTensor.of("F32", raw.shape, weight.view(np.uint8))
        return raw

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        return self.raw(name).dequantized()

    def close(self) -> None:
        for file, _ in self._tensors.values():
            file.close()

    def vocabulary(self) -> Vocabulary:
        return vocabulary(self._path, self._fields, self._config.vocab_size)

    def _find_tensors(self) -> Mapping[str, tuple[SafetensorsFile, str]]:
        tensors: dict[str, tuple[SafetensorsFile, str]] = {}
        for stored, file in _stored_tensors(self._path).items():
            name = _canonical_name(stored, self._config)
            if name is None or (name == "output.weight" and self._config.tied_embeddings):
                continue
            if name in tensors:
                raise ModelFileError(f"tensor {name} is there twice", hint="fetch the model again")
            tensors[name] = (file, stored)
        return tensors


def _stored_tensors(folder: Path) -> Mapping[str, SafetensorsFile]:
    """Every tensor of the folder, by the name it is stored under."""
    if not (folder / _INDEX).is_file():
        if not (folder / _WEIGHTS).is_file():
            raise ModelFileError(
                f"the folder holds neither {_WEIGHTS} nor {_INDEX}", hint="weights in other formats are not read"
            )
        single = SafetensorsFile(folder / _WEIGHTS)
        return dict.fromkeys(single.shapes, single)
    weight_map = read_json(folder / _INDEX).optional_section("weight_map")
    if weight_map is None:
        raise ModelFileError(f"{_INDEX} has no weight_map", hint="fetch the model again")
    shards: dict[str, SafetensorsFile] = {}
    stored: dict[str, SafetensorsFile] = {}
    for name in weight_map.names():
        shard = weight_map.text(name)
        if shard not in shards:
            if not re.fullmatch(r"[\w.-]+\.safetensors", shard, re.ASCII):
                raise ModelFileError(
                    f"{_INDEX} names a shard outside the folder or of another kind",
                    hint="do not use this model: an honest index names files beside it",
                )
            shards[shard] = SafetensorsFile(folder / shard)
        if name not in shards[shard].shapes:
            raise ModelFileError(f"{shard} does not hold {shown(name)}", hint="fetch the model again")
        stored[name] = shards[shard]
    return stored


def _canonical_name(stored: str, config: ModelConfig) -> str | None:
    """GGUF's name for a tensor; None for one that text needs not; the stored name itself for one unknown."""
    if _IGNORED.fullmatch(stored):
        return None
    plain = _TEXT_PREFIX.sub("model.", stored).removeprefix("language_model.")
    if plain in _OUTER_NAMES:
        return _OUTER_NAMES[plain]
    if match := _LAYER.fullmatch(plain):
        layer, part, kind = match.groups()
        norms = _SANDWICH_NORM_NAMES if config.sandwich_norms else _PLAIN_NORM_NAMES
        name = _LAYER_NAMES.get(part) or norms.get(part)
        if name is not None:
            return f"blk.{int(layer)}.{name}.{kind}"
    return stored
