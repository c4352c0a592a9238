"""Write a GGUF file as a Hugging Face folder in bf16, for the peers that read only those.

    PYTHON_WITH_TRANSFORMERS bench/peers/gguf_to_hf.py MODEL.gguf FOLDER

Owns: the names and habits of `llama` and `gemma3` checkpoints on both sides. Needs gguf, numpy, torch, safetensors and
transformers, and nothing of ours: it runs in the environment that also exports to OpenVINO.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers.decoders import ByteLevel
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LLAMA_NORMS = {"ffn_norm": "post_attention_layernorm"}
_GEMMA_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GEMMA_PATTERN = 6  # every sixth layer sees everything


class Source:
    """The GGUF file, with its fields by name."""

    def __init__(self, path: Path) -> None:
        self.reader = gguf.GGUFReader(path)
        self.architecture: str = self.get("general.architecture")
        self.is_gemma = self.architecture.startswith("gemma")

    def get(self, key: str, default: Any = None) -> Any:
        field = self.reader.fields.get(key)
        return default if field is None else field.contents()

    def own(self, key: str, default: Any = None) -> Any:
        """A field of the architecture."""
        return self.get(f"{self.architecture}.{key}", default)


def tensors(source: Source) -> dict[str, torch.Tensor]:
    """Every weight, dequantized, under its other name and in its other order."""
    names = _LAYER | (_GEMMA_NORMS if source.is_gemma else _LLAMA_NORMS)
    heads = source.own("attention.head_count")
    of_kind = {"attn_q": heads, "attn_k": source.own("attention.head_count_kv", heads)}
    found: dict[str, torch.Tensor] = {}
    for tensor in source.reader.tensors:
        weight = np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
        if tensor.name in _TOP:
            name = _TOP[tensor.name]
        elif tensor.name.startswith("blk."):
            _, layer, kind, _ = tensor.name.split(".")
            name = f"model.layers.{layer}.{names[kind]}.weight"
            if not source.is_gemma and kind in of_kind:  # llama files keep the pairs that turn together side by side
                rows = (of_kind[kind], weight.shape[0] // of_kind[kind] // 2, 2, weight.shape[1])
                weight = weight.reshape(rows).swapaxes(1, 2).reshape(weight.shape)
        else:
            continue  # rope factors: neither model has any
        if source.is_gemma and "norm" in tensor.name:
            weight = weight - 1
        found[name] = torch.from_numpy(np.ascontiguousarray(weight)).to(torch.bfloat16)
    return found


def config(source: Source, *, vocab_size: int, tied: bool) -> dict[str, object]:
    """config.json."""
    heads = source.own("attention.head_count")
    layers = source.own("block_count")
    common: dict[str, object] = {
        "hidden_size": source.own("embedding_length"),
        "intermediate_size": source.own("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": source.own("attention.head_count_kv", heads),
        "head_dim": source.own("attention.key_length", source.own("embedding_length") // heads),
        "vocab_size": vocab_size,
        "max_position_embeddings": min(source.own("context_length"), 8192),
        "rms_norm_eps": source.own("attention.layer_norm_rms_epsilon"),
        "rope_theta": source.own("rope.freq_base", 10000.0),
        "tie_word_embeddings": tied,
        "bos_token_id": source.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": source.get("tokenizer.ggml.eos_token_id"),
        "torch_dtype": "bfloat16",
    }
    if not source.is_gemma:
        return common | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"}
    return common | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": source.own("attention.sliding_window"),
        "rope_local_base_freq": 10000.0,
        "query_pre_attn_scalar": common["head_dim"],
        "layer_types": [
            "sliding_attention" if (layer + 1) % _GEMMA_PATTERN else "full_attention" for layer in range(layers)
        ],
    }


def tokenizer(source: Source, path: Path) -> Any:
    """As transformers reads it from the file, with the beginning of text that its reader forgets.

    Some versions read a vocabulary of bytes in a `llama` file as one of SentencePiece: then its decoder is a mixture of
    both, which OpenVINO cannot convert.
    """
    made = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    if source.get("tokenizer.ggml.model") == "gpt2":
        made.backend_tokenizer.decoder = ByteLevel()
        ends = {"bos_token": made.bos_token, "eos_token": made.eos_token, "unk_token": made.unk_token}
        made = PreTrainedTokenizerFast(tokenizer_object=made.backend_tokenizer, **ends)
    if source.get("tokenizer.ggml.add_bos_token"):
        begin_id = source.get("tokenizer.ggml.bos_token_id")
        begin = made.convert_ids_to_tokens(begin_id)
        made.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{begin} $A", pair=f"{begin} $A {begin} $B", special_tokens=[(begin, begin_id)]
        )
    if template := source.get("tokenizer.chat_template"):
        made.chat_template = template
    return made


def main() -> None:
    """Convert one file."""
    path, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    source = Source(path)
    found = tensors(source)
    embedding = found["model.embed_tokens.weight"]
    tied = "lm_head.weight" not in found or torch.equal(found["lm_head.weight"], embedding)
    if tied:
        found.pop("lm_head.weight", None)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(found, folder / "model.safetensors", metadata={"format": "pt"})
    settings = config(source, vocab_size=embedding.shape[0], tied=tied)
    (folder / "config.json").write_text(json.dumps(settings, indent=1))
    ends = {key: settings[key] for key in ("bos_token_id", "eos_token_id") if settings[key] is not None}
    (folder / "generation_config.json").write_text(json.dumps(ends))
    tokenizer(source, path).save_pretrained(folder)


if __name__ == "__main__":
    main()
