"""Make the tiny models in this folder and the logits that transformers computes for them.

    python tests/golden/make_transformers_goldens.py [FOLDER]

Needs torch, transformers, safetensors and gguf; the tests that read the results need neither of the first two. Each
model is random (seeded), written as a Hugging Face folder and, with the same weights, as `model.gguf`. For each prompt
i, `expected.npz` holds `prompt_i` (token ids), `logits_i` (float32, one row per prompt position) and `greedy_i` (the 24
likeliest tokens that follow, one after the other).

Weights are large enough for attention to be sharp and for logits to spread: with transformers' own small random ones a
wrong rotation or window would hardly show.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

GREEDY_TOKENS = 24
PROMPT_TOKENS = (5, 17, 44)  # the last one is far longer than a window of 16
SMALLEST_MARGIN = 0.01  # between the two likeliest tokens, so that rounding cannot change the greedy answer

SPECIALS = ["<pad>", "<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>"]
MERGES = [("h", "e"), ("Ġ", "t"), ("Ġt", "he")]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOKENS = SPECIALS + sorted(pre_tokenizers.ByteLevel.alphabet()) + ["".join(pair) for pair in MERGES]
PAD, BOS, EOS, UNK, IM_END = 0, 1, 2, 3, 5

GGUF_NAMES = {"gemma3_text": "gemma3", "mistral": "mistral3"}  # where they differ from transformers' model types
PERMUTED = ("llama", "mistral3")


def tiny_llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(TOKENS), hidden_size=64, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0}, bos_token_id=BOS, eos_token_id=EOS,
    )  # fmt: skip
    return randomized(LlamaForCausalLM(config), seed=1, dtype=torch.bfloat16)


def tiny_llama_untied() -> LlamaForCausalLM:
    """One key-value head, its own output matrix, and positions divided by four."""
    config = LlamaConfig(
        vocab_size=len(TOKENS), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=1, max_position_embeddings=512, rms_norm_eps=1e-6, tie_word_embeddings=False,
        rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}, bos_token_id=BOS,
        eos_token_id=EOS,
    )  # fmt: skip
    return randomized(LlamaForCausalLM(config), seed=2, dtype=torch.float32)


def tiny_gemma3() -> Gemma3ForCausalLM:
    """Seven layers, of which one is global; heads that are not hidden_size / heads wide; a query scale of its own."""
    config = Gemma3TextConfig(
        vocab_size=len(TOKENS), hidden_size=48, intermediate_size=48, num_hidden_layers=7, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, query_pre_attn_scalar=24, sliding_window=16, max_position_embeddings=512,
        pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS,
    )  # fmt: skip
    return randomized(Gemma3ForCausalLM(config), seed=3, dtype=torch.bfloat16)


def tiny_qwen2() -> Qwen2ForCausalLM:
    """Biases on queries, keys and values."""
    config = Qwen2Config(
        vocab_size=len(TOKENS), hidden_size=64, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0}, bos_token_id=BOS, eos_token_id=EOS,
    )  # fmt: skip
    return randomized(Qwen2ForCausalLM(config), seed=4, dtype=torch.bfloat16)


def tiny_qwen3() -> Qwen3ForCausalLM:
    """Queries and keys normed by head; four heads of 24 in a model of 48; its own output matrix."""
    config = Qwen3Config(
        vocab_size=len(TOKENS), hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=24, max_position_embeddings=512, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0}, bos_token_id=BOS, eos_token_id=EOS,
    )  # fmt: skip
    return randomized(Qwen3ForCausalLM(config), seed=5, dtype=torch.bfloat16)


def tiny_mistral() -> MistralForCausalLM:
    """Every layer sees the last 16 tokens only."""
    config = MistralConfig(
        vocab_size=len(TOKENS), hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, sliding_window=16, max_position_embeddings=512, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0}, bos_token_id=BOS, eos_token_id=EOS,
    )  # fmt: skip
    return randomized(MistralForCausalLM(config), seed=6, dtype=torch.bfloat16)


def tiny_llama3_rope() -> LlamaForCausalLM:
    """Made for 64 tokens, stretched eight times: of eight frequencies one stays, two are in between, five slow down."""
    config = LlamaConfig(
        vocab_size=len(TOKENS), hidden_size=64, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
        },
        bos_token_id=BOS, eos_token_id=EOS,
    )  # fmt: skip
    return randomized(LlamaForCausalLM(config), seed=7, dtype=torch.bfloat16)


def randomized(model: Any, *, seed: int, dtype: torch.dtype) -> Any:
    """Random weights that `dtype` can hold exactly, in a float32 model."""
    generator = torch.Generator().manual_seed(seed)
    gemma = isinstance(model, Gemma3ForCausalLM)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight"):
                value = 0.2 * noise + (0.0 if gemma else 1.0)  # gemma stores the distance from one
            elif name.endswith(".bias"):
                value = 0.5 * noise
            else:
                value = noise * 1.5 / math.sqrt(parameter.shape[1])
            parameter.copy_(value.to(dtype).float())
    model.config._attn_implementation = "eager"
    return model.eval()


def write_folder(model: PreTrainedModel, folder: Path, *, dtype: torch.dtype, shard: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(bos_token_id=BOS, eos_token_id=[EOS, IM_END], pad_token_id=PAD)
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)
    model.to(torch.float32)
    vocabulary = {token: number for number, token in enumerate(TOKENS)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"], chat_template=CHAT_TEMPLATE,
    ).save_pretrained(folder)  # fmt: skip


def write_gguf(model: PreTrainedModel, path: Path, *, kind: gguf.GGMLQuantizationType) -> None:
    """As llama.cpp's converter does it: llama's and mistral's query and key rows reordered, gemma's norms with one
    added, llama 3's rope scaling as factors. One difference: the converter leaves out a mistral's window."""
    config: Any = model.config
    gemma = isinstance(model, Gemma3ForCausalLM)
    architecture = GGUF_NAMES.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(path.parent.name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if gemma:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_attention_scale(config.query_pre_attn_scalar**-0.5)
        writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
        writer.add_sliding_window(config.sliding_window)
    else:
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(head_dim(config))
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        if head_dim(config) * config.num_attention_heads != config.hidden_size:
            writer.add_key_length(config.head_dim)
            writer.add_value_length(config.head_dim)
        if config.model_type == "mistral":
            writer.add_sliding_window(config.sliding_window)
        if config.rope_parameters["rope_type"] == "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(config.rope_parameters["factor"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(TOKENS)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if token in SPECIALS else normal for token in TOKENS])
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_eot_token_id(IM_END)
    writer.add_pad_token_id(PAD)
    writer.add_unk_token_id(UNK)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    if not gemma and config.rope_parameters["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(config))
    number = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    for stored, parameter in model.named_parameters():
        name = names.get_name(stored, try_suffixes=(".weight", ".bias"))
        assert name is not None, stored
        weights = parameter.detach().numpy()
        if architecture in PERMUTED and ".q_proj." in stored:
            weights = permuted(weights, config.num_attention_heads)
        if architecture in PERMUTED and ".k_proj." in stored:
            weights = permuted(weights, config.num_key_value_heads)
        if gemma and stored.endswith("norm.weight"):
            weights = weights + np.float32(1)
        stored_as = kind if weights.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(weights, stored_as), raw_dtype=stored_as)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def llama3_factors(config: Any) -> np.ndarray:
    """What each frequency is divided by, from those that transformers itself arrives at."""
    plain = config.rope_parameters["rope_theta"] ** (-torch.arange(0, head_dim(config), 2) / head_dim(config))
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    return (plain / scaled).numpy()


def permuted(weights: np.ndarray, heads: int) -> np.ndarray:
    """Rows so that the dimensions rotated together are neighbours."""
    rows, columns = weights.shape
    return weights.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns).copy()


def expected(model: PreTrainedModel, *, seed: int) -> dict[str, np.ndarray]:
    """Prompts, drawn until their greedy continuation is clear at every step, with their logits."""
    generator = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    for index, length in enumerate(PROMPT_TOKENS):
        greedy = None
        while greedy is None:
            prompt = generator.integers(len(SPECIALS), len(TOKENS), length)
            greedy = clear_continuation(model, prompt)
        arrays |= {f"prompt_{index}": prompt, f"logits_{index}": logits(model, prompt), f"greedy_{index}": greedy}
    return arrays


def clear_continuation(model: PreTrainedModel, prompt: np.ndarray) -> np.ndarray | None:
    """Every position computed afresh, without a cache. None when two tokens come too close."""
    ids = prompt
    for _ in range(GREEDY_TOKENS):
        last = logits(model, ids)[-1]
        second, best = np.argsort(last)[-2:]
        if last[best] - last[second] < SMALLEST_MARGIN:
            return None
        ids = np.append(ids, best)
    return ids[len(prompt) :]


def logits(model: PreTrainedModel, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(ids)[None], use_cache=False).logits[0].float().numpy()


def main(root: Path) -> None:
    torch.set_num_threads(1)  # sums in one order
    bf16, f32 = gguf.GGMLQuantizationType.BF16, gguf.GGMLQuantizationType.F32
    for name, model, dtype, shard, kind, seed in (
        ("tiny_llama", tiny_llama(), torch.bfloat16, "1GB", f32, 11),
        ("tiny_llama_untied", tiny_llama_untied(), torch.float32, "60KB", f32, 12),
        ("tiny_gemma3", tiny_gemma3(), torch.bfloat16, "1GB", bf16, 13),
        ("tiny_qwen2", tiny_qwen2(), torch.bfloat16, "1GB", bf16, 14),
        ("tiny_qwen3", tiny_qwen3(), torch.bfloat16, "60KB", bf16, 15),
        ("tiny_mistral", tiny_mistral(), torch.bfloat16, "1GB", bf16, 16),
        ("tiny_llama3_rope", tiny_llama3_rope(), torch.bfloat16, "1GB", bf16, 17),
    ):
        folder = root / name
        arrays = expected(model, seed=seed)
        write_folder(model, folder, dtype=dtype, shard=shard)
        write_gguf(model, folder / "model.gguf", kind=kind)
        np.savez(folder / "expected.npz", **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
