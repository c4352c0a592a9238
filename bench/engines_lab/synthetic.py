"""Model files of any size with random weights: the shapes of models that people run, for measuring speed only.

Owns: shapes, and how to write a GGUF file of one without quantizing anything: the bytes of the blocks are drawn, with
scales that keep activations in range. Refuses to know: who reads the file, and what it answers.

One pool of random blocks is drawn for each format and every tensor is cut from it, at another place each time: drawing
gigabytes would take longer than measuring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import numpy.typing as npt

from taximeter.engine.weights.gguf import GGUFFile

_Blocks = npt.NDArray[np.uint8]

_POOL_BYTES: Final = 64 << 20
_SPREAD: Final = 0.02
"""The standard deviation of the weights, as models are initialized."""
_NORMAL: Final = int(gguf.TokenType.NORMAL)
_SPACE: Final = "\u0120"
"""As byte-level tokenizers write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """A transformer's sizes. `rope_scaled`: the frequencies of Llama 3.1 and later."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int
    rope_base: float
    rms_eps: float
    tied: bool
    qk_norm: bool = False
    rope_factor: float | None = None


SHAPES: Final[Mapping[str, Sizes]] = {
    "llama-3.2-1b": Sizes(
        architecture="llama",
        layers=16,
        hidden=2048,
        heads=32,
        kv_heads=8,
        head_dim=64,
        feed_forward=8192,
        vocabulary=128_256,
        rope_base=500_000.0,
        rms_eps=1e-5,
        tied=True,
        rope_factor=32.0,
    ),
    "qwen3-4b": Sizes(
        architecture="qwen3",
        layers=36,
        hidden=2560,
        heads=32,
        kv_heads=8,
        head_dim=128,
        feed_forward=9728,
        vocabulary=151_936,
        rope_base=1_000_000.0,
        rms_eps=1e-6,
        tied=True,
        qk_norm=True,
    ),
    "llama-3.1-8b": Sizes(
        architecture="llama",
        layers=32,
        hidden=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        feed_forward=14_336,
        vocabulary=128_256,
        rope_base=500_000.0,
        rms_eps=1e-5,
        tied=False,
        rope_factor=8.0,
    ),
}


def write_model(path: Path, shape: Sizes, kind: str, *, tokenizer_of: Path) -> None:
    """A whole GGUF file: every matrix in `kind` (a key of `FORMATS`), and the tokenizer of another file, padded."""
    writer = gguf.GGUFWriter(path, shape.architecture)
    _describe(writer, shape)
    _copy_tokenizer(writer, tokenizer_of, shape.vocabulary)
    chance = np.random.default_rng(0)
    quantized, draw = gguf.GGMLQuantizationType[kind], FORMATS[kind]
    block_weights, block_bytes = gguf.GGML_QUANT_SIZES[quantized]
    pool = draw(chance, _POOL_BYTES // block_bytes).reshape(-1)
    contents: list[Iterable[memoryview]] = []
    for name, size in _tensors(shape):
        if len(size) == 1:
            content = _rope_divisors(shape) if name == "rope_freqs.weight" else np.ones(size, np.float32)
            writer.add_tensor_info(name, size, content.dtype, content.nbytes)
            contents.append([content.data.cast("B")])
        else:
            row_bytes = size[1] // block_weights * block_bytes
            writer.add_tensor_info(
                name, (size[0], row_bytes), np.dtype(np.uint8), size[0] * row_bytes, raw_dtype=quantized
            )
            start = int(chance.integers(len(pool) // block_bytes)) * block_bytes
            contents.append(_cut(pool, start, size[0] * row_bytes))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("ab", buffering=0) as file:
        for pieces in contents:
            for piece in (bytes(-file.tell() % writer.data_alignment), *pieces):
                file.write(piece)


def size_bytes(shape: Sizes, kind: str) -> int:
    """About the size of the file that `write_model` makes."""
    block_weights, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    weights = sum(size[0] * size[1] for _, size in _tensors(shape) if len(size) == 2)
    return weights // block_weights * block_bytes


def _tensors(shape: Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and (out_features, in_features), in the order of the file."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "token_embd.weight", (shape.vocabulary, shape.hidden)
    for layer in range(shape.layers):
        at = f"blk.{layer}"
        yield f"{at}.attn_norm.weight", (shape.hidden,)
        yield f"{at}.attn_q.weight", (queries, shape.hidden)
        yield f"{at}.attn_k.weight", (keys, shape.hidden)
        yield f"{at}.attn_v.weight", (keys, shape.hidden)
        yield f"{at}.attn_output.weight", (shape.hidden, queries)
        if shape.qk_norm:
            yield f"{at}.attn_q_norm.weight", (shape.head_dim,)
            yield f"{at}.attn_k_norm.weight", (shape.head_dim,)
        yield f"{at}.ffn_norm.weight", (shape.hidden,)
        yield f"{at}.ffn_gate.weight", (shape.feed_forward, shape.hidden)
        yield f"{at}.ffn_up.weight", (shape.feed_forward, shape.hidden)
        yield f"{at}.ffn_down.weight", (shape.hidden, shape.feed_forward)
    yield "output_norm.weight", (shape.hidden,)
    if not shape.tied:
        yield "output.weight", (shape.vocabulary, shape.hidden)
    if shape.rope_factor is not None:
        yield "rope_freqs.weight", (shape.head_dim // 2,)


def _describe(writer: gguf.GGUFWriter, shape: Sizes) -> None:
    writer.add_name("random weights")
    writer.add_context_length(8192)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.rms_eps)
    writer.add_vocab_size(shape.vocabulary)


def _copy_tokenizer(writer: gguf.GGUFWriter, source: Path, vocabulary: int) -> None:
    """The tokenizer's fields of `source`, with words nobody writes for the ids it lacks: a model that picks one at
    random must be heard, token by token, and not every server sends those that are no text."""
    file = GGUFFile(source)

    def get(key: str) -> Any:
        return file.metadata.get(f"tokenizer.ggml.{key}")

    tokens: list[str] = list(get("tokens"))
    types: list[int] = get("token_type").tolist()
    spare = vocabulary - len(tokens)
    writer.add_tokenizer_model(str(get("model")))
    writer.add_tokenizer_pre(str(get("pre")))
    writer.add_token_list([*tokens, *(f"{_SPACE}spare{number}" for number in range(spare))])
    writer.add_token_types([*types, *([_NORMAL] * spare)])
    writer.add_token_merges(list(get("merges")))
    writer.add_bos_token_id(get("bos_token_id"))
    writer.add_eos_token_id(get("eos_token_id"))
    writer.add_add_bos_token(False)
    file.close()


def _rope_divisors(shape: Sizes) -> npt.NDArray[np.float32]:
    """Llama 3.1's: long waves are slowed by the factor, short ones not at all, those between in part."""
    assert shape.rope_factor is not None  # noqa: S101 - whoever asks has looked
    low, high, trained = 1.0, 4.0, 8192.0
    waves = 2 * np.pi * shape.rope_base ** (np.arange(0, shape.head_dim, 2) / shape.head_dim)
    smooth = np.clip((trained / waves - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1.0 - smooth) / shape.rope_factor + smooth)).astype(np.float32)


def _cut(pool: _Blocks, start: int, size: int) -> Iterator[memoryview]:
    """`size` bytes from `start` on, round and round. A tensor longer than the pool repeats it."""
    while size:
        piece = pool[start : start + size]
        yield piece.data
        start, size = 0, size - len(piece)


def _half(number: float, blocks: int) -> _Blocks:
    return np.full((blocks, 1), number, np.float16).view(np.uint8)


def _draw_q4_0(chance: np.random.Generator, blocks: int) -> _Blocks:
    """d (f16), then 32 nibbles q: d * (q - 8)."""
    quants = chance.integers(0, 256, (blocks, 16), np.uint8)
    return np.hstack([_half(_SPREAD / 4.6, blocks), quants])


def _draw_q8_0(chance: np.random.Generator, blocks: int) -> _Blocks:
    """d (f16), then 32 bytes q: d * q."""
    quants = chance.integers(0, 256, (blocks, 32), np.uint8)
    return np.hstack([_half(_SPREAD / 74, blocks), quants])


def _draw_q4_k(chance: np.random.Generator, blocks: int) -> _Blocks:
    """d and m (f16), 8 pairs of six-bit scales s and minima t in 12 bytes, then 256 nibbles q: d * s * q - m * t."""
    step = _SPREAD / 260
    rest = chance.integers(0, 256, (blocks, 12 + 128), np.uint8)
    return np.hstack([_half(step, blocks), _half(step * 7.5, blocks), rest])


FORMATS: Final[Mapping[str, Callable[[np.random.Generator, int], _Blocks]]] = {
    "Q4_0": _draw_q4_0,
    "Q4_K": _draw_q4_k,
    "Q8_0": _draw_q8_0,
}
