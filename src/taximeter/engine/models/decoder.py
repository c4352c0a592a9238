"""What decoder-only transformers have in common: a batch, its KV memory, attention over it, and the feed-forward part.

Owns: the shapes. Refuses to know: which norms an architecture puts where. All arrays are float32 and C-contiguous; a
*row* is one token of one sequence, and the rows of a batch may belong to many sequences in any mix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from taximeter.engine import kernels
from taximeter.engine.weights import Checkpoint, ModelConfig

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One step's rows. `slots[r]` is where row r's key and value go (block × block tokens + offset), `row_seq[r]` its
    row in `block_tables` (sequences × blocks, padded), `logit_rows` the rows whose logits are wanted."""

    token_ids: I64
    positions: I32
    row_seq: I32
    slots: I64
    block_tables: I32
    logit_rows: I64


class KVMemory:
    """Keys and values of all layers: each (blocks, kv heads, block tokens, head dim), committed by the operating
    system page by page as it is written."""

    def __init__(self, config: ModelConfig, *, blocks: int, block_tokens: int) -> None:
        shape = (blocks, config.kv_heads, block_tokens, config.head_dim)
        self.keys: list[F32] = [np.zeros(shape, np.float32) for _ in range(config.layers)]
        self.values: list[F32] = [np.zeros(shape, np.float32) for _ in range(config.layers)]

    @staticmethod
    def bytes_per_token(config: ModelConfig) -> int:
        """Key and value of every layer, in float32."""
        return 2 * config.layers * config.kv_heads * config.head_dim * np.dtype(np.float32).itemsize


class Model(Protocol):
    """A loaded model."""

    config: ModelConfig

    def forward(self, batch: Batch, kv: KVMemory) -> F32:
        """Compute all rows, write their keys and values, and return logits (logit rows, vocabulary).

        A row's logits depend on its own sequence only: not on the other rows, nor on how its prompt was cut.
        """
        ...


class Rotary:
    """Rotation angles for positions: cos and sin of position / scale × base^(-2i/dim), computed in double precision.

    The table grows by doubling, so that a long context costs memory only once it is used.
    """

    def __init__(self, *, base: float, dim: int, scale: float = 1.0) -> None:
        self._inverse: npt.NDArray[np.float64] = base ** (-np.arange(0, dim, 2, dtype=np.float64) / dim) / scale
        self._cos: F32 = np.empty((0, dim // 2), np.float32)
        self._sin: F32 = self._cos

    def at(self, positions: I32) -> tuple[F32, F32]:
        """(cos, sin), each (rows, dim / 2)."""
        needed = int(positions.max()) + 1
        if needed > len(self._cos):
            size = max(512, 1 << (needed - 1).bit_length())
            angles = np.arange(size, dtype=np.float64)[:, None] * self._inverse
            self._cos, self._sin = (np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))
        return self._cos[positions], self._sin[positions]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowContext:
    """What every layer of a step needs to know about the rows."""

    batch: Batch
    keys: F32
    values: F32
    cos: F32
    sin: F32
    window: int | None


class Attention:
    """Grouped-query attention of one layer over the paged cache, with optional norms of queries and keys per head."""

    def __init__(self, checkpoint: Checkpoint, layer: int) -> None:
        config = checkpoint.config
        prefix = f"blk.{layer}"
        self._head_dim, self._scale, self._eps = config.head_dim, config.attention_scale, config.rms_eps
        self._q, self._k, self._v = (checkpoint.tensor(f"{prefix}.attn_{part}.weight") for part in "qkv")
        self._out = checkpoint.tensor(f"{prefix}.attn_output.weight")
        self._q_norm, self._k_norm = (_optional(checkpoint, f"{prefix}.attn_{part}_norm.weight") for part in "qk")

    def __call__(self, x: F32, rows: RowContext) -> F32:
        """(rows, hidden) → (rows, hidden); also writes the rows' keys and values into the cache."""
        q = self._normed(self._per_head(x, self._q), self._q_norm)
        k = self._normed(self._per_head(x, self._k), self._k_norm)
        v = self._per_head(x, self._v)
        q, k = kernels.rope(q, rows.cos, rows.sin), kernels.rope(k, rows.cos, rows.sin)
        kernels.kv_write(k, v, rows.keys, rows.values, rows.batch.slots)
        mixed = kernels.paged_attention(
            q,
            rows.keys,
            rows.values,
            rows.batch.block_tables,
            rows.batch.row_seq,
            rows.batch.positions,
            scale=self._scale,
            window=rows.window,
        )
        return kernels.matmul(mixed.reshape(len(x), -1), self._out)

    def _per_head(self, x: F32, weight: F32) -> F32:
        return kernels.matmul(x, weight).reshape(len(x), -1, self._head_dim)

    def _normed(self, heads: F32, weight: F32 | None) -> F32:
        if weight is None:
            return heads
        return kernels.rms_norm(heads.reshape(-1, self._head_dim), weight, self._eps).reshape(heads.shape)


def _optional(checkpoint: Checkpoint, name: str) -> F32 | None:
    return checkpoint.tensor(name) if name in checkpoint.names() else None


class GatedFeedForward:
    """down(activation(gate(x)) × up(x)); `gated_activation` is the kernel of activation and product."""

    def __init__(self, checkpoint: Checkpoint, layer: int, gated_activation: Callable[[F32, F32], F32]) -> None:
        prefix = f"blk.{layer}.ffn"
        self._gate, self._up, self._down = (
            checkpoint.tensor(f"{prefix}_{part}.weight") for part in ("gate", "up", "down")
        )
        self._gated_activation = gated_activation

    def __call__(self, x: F32) -> F32:
        """(rows, hidden) → (rows, hidden)"""
        gated = self._gated_activation(kernels.matmul(x, self._gate), kernels.matmul(x, self._up))
        return kernels.matmul(gated, self._down)


class Head:
    """The last norm and the language-model head, which is the embedding table where a checkpoint ties them."""

    def __init__(self, checkpoint: Checkpoint, embedding: F32) -> None:
        config = checkpoint.config
        self._eps, self._softcap = config.rms_eps, config.logit_softcap
        self._norm = checkpoint.tensor("output_norm.weight")
        self._weight = embedding if config.tied_embeddings else checkpoint.tensor("output.weight")

    def __call__(self, x: F32, logit_rows: I64) -> F32:
        """Logits (logit rows, vocabulary) of some of the rows of `x` (rows, hidden)."""
        if not len(logit_rows):  # a step of nothing but beginnings and middles of prompts
            return np.empty((0, len(self._weight)), np.float32)
        logits = kernels.matmul(kernels.rms_norm(x[logit_rows], self._norm, self._eps), self._weight)
        if self._softcap is not None:
            logits = np.float32(self._softcap) * np.tanh(logits / np.float32(self._softcap))
        return logits
