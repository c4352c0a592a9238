"""GGUF files made byte by byte, sound ones and others: the tests' own writer, so that it can also write nonsense."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 4, 5, 6, 7, 8, 9, 10

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FF, VOCAB = 8, 2, 1, 4, 8, 4

METADATA: Mapping[str, object] = {
    "general.architecture": "llama",
    "general.name": "small",
    "llama.context_length": 64,
    "llama.embedding_length": HIDDEN,
    "llama.block_count": 1,
    "llama.feed_forward_length": FF,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["<s>", "</s>", "a", "b"],
    "tokenizer.ggml.token_type": [3, 3, 1, 1],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 1,
}


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(text: str | bytes) -> bytes:
    encoded = text if isinstance(text, bytes) else text.encode()
    return u64(len(encoded)) + encoded


def typed(value: object) -> bytes:
    """Type number, then the value, as GGUF writes both."""
    match value:
        case bool():
            return u32(BOOL) + bytes([value])
        case int():
            return u32(UINT32) + u32(value)
        case float():
            return u32(FLOAT32) + struct.pack("<f", value)
        case str():
            return u32(STRING) + string(value)
        case [str(), *_]:
            return u32(ARRAY) + u32(STRING) + u64(len(value)) + b"".join(string(item) for item in value)
        case [bool(), *_]:
            return u32(ARRAY) + u32(BOOL) + u64(len(value)) + bytes(value)
        case [int(), *_]:
            return u32(ARRAY) + u32(INT32) + u64(len(value)) + struct.pack(f"<{len(value)}i", *value)
        case [float(), *_]:
            return u32(ARRAY) + u32(FLOAT32) + u64(len(value)) + struct.pack(f"<{len(value)}f", *value)
        case _:
            raise TypeError(value)


def key(name: str | bytes, value: bytes) -> bytes:
    return string(name) + value


def tensor(name: str, dims: Sequence[int], kind: int, offset: int) -> bytes:
    """`dims` in GGUF's order, fastest first."""
    return string(name) + u32(len(dims)) + b"".join(u64(dim) for dim in dims) + u32(kind) + u64(offset)


def container(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: bytes = b"\x03\0\0\0",
    key_count: int | None = None,
    tensor_count: int | None = None,
    alignment: int = 32,
) -> bytes:
    counts = u64(len(tensors) if tensor_count is None else tensor_count)
    counts += u64(len(keys) if key_count is None else key_count)
    header = magic + version + counts + b"".join(keys) + b"".join(tensors)
    return header + bytes(-len(header) % alignment) + data


def small_weights(seed: int = 0) -> dict[str, npt.NDArray[np.float32]]:
    """Random tensors of the llama that `METADATA` describes, in numpy's shapes."""
    shapes = {
        "token_embd.weight": (VOCAB, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, HEADS * HEAD_DIM),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.ffn_gate.weight": (FF, HIDDEN),
        "blk.0.ffn_up.weight": (FF, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, FF),
    }
    generator = np.random.default_rng(seed)
    return {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def small_gemma_weights() -> dict[str, npt.NDArray[np.float32]]:
    weights = small_weights()
    for name in ("attn_q_norm", "attn_k_norm"):
        weights[f"blk.0.{name}.weight"] = np.ones(HEAD_DIM, dtype=np.float32)
    for name in ("post_attention_norm", "post_ffw_norm"):
        weights[f"blk.0.{name}.weight"] = np.ones(HIDDEN, dtype=np.float32)
    return weights


def gemma_metadata(**changes: object) -> dict[str, object]:
    """`METADATA` as a gemma3's; `changes` are keys below `gemma3.`, with __ for a dot."""
    metadata = {name.replace("llama.", "gemma3."): value for name, value in METADATA.items()}
    metadata["general.architecture"] = "gemma3"
    metadata["gemma3.attention.sliding_window"] = 16
    return metadata | {f"gemma3.{name.replace('__', '.')}": value for name, value in changes.items()}


def small_model(
    metadata: Mapping[str, object] = METADATA, weights: Mapping[str, npt.NDArray[np.float32]] | None = None
) -> bytes:
    """A whole model of float32 tensors."""
    tensors: list[bytes] = []
    data = b""
    for name, array in (small_weights() if weights is None else weights).items():
        tensors.append(tensor(name, array.shape[::-1], 0, len(data)))
        data += array.tobytes() + bytes(-array.nbytes % 32)
    return container([key(name, typed(value)) for name, value in metadata.items()], tensors, data)
