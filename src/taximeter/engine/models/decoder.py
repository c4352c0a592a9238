"""A decoder-only transformer as its config describes it: the reference, every step of it a kernel on float32 rows.

Owns: the order of the steps, and what a batch and its KV memory look like. Refuses to know: architectures by name (what
they differ in stands in the config) and how tokens become requests. All arrays are float32 and C-contiguous; a *row* is
one token of one sequence, and the rows of a batch may belong to many sequences in any mix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from taximeter.engine import kernels
from taximeter.engine.models.kv_memory import KVMemory
from taximeter.engine.models.layer_groups import layer_groups
from taximeter.engine.weights import Checkpoint, ModelConfig, tensor_shapes
from taximeter.errors import ModelFileError

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One step's rows, of which `logit_rows` are those whose logits are wanted. For each group of layers
    (`layer_groups`), `slots[group][r]` is where row r's key and value go (block × block tokens + offset), and
    `block_tables[group]` (sequences × blocks, one shape for all groups) has row r's sequence in its row `row_seq[r]`.
    Entries before the first row's window, or after the last row, name no block. The first `generated_rows` are tokens
    that a model wrote, and the others those of a prompt: see `Model.forward`."""

    token_ids: I64
    positions: I32
    row_seq: I32
    slots: tuple[I64, ...]
    block_tables: tuple[I32, ...]
    logit_rows: I64
    generated_rows: int = 0


def inverse_frequencies(config: ModelConfig, *, sliding: bool) -> npt.NDArray[np.float64]:
    """Radians that pair (i, i + rope_dim/2) of a head turns from one position to the next: (rope_dim / 2,)."""
    base = config.rope_base_sliding if sliding else config.rope_base
    frequencies = base ** (-np.arange(0, config.rope_dim, 2, dtype=np.float64) / config.rope_dim)
    if sliding:
        return frequencies
    return frequencies / config.rope_scale / np.asarray(config.rope_divisors or 1.0, np.float64)


class Rotary:
    """Rotation angles for positions: cos and sin of position × inverse frequency, computed in double precision.

    The table grows by doubling, so that a long context costs memory only once it is used.
    """

    def __init__(self, inverse: npt.NDArray[np.float64]) -> None:
        self._inverse = inverse
        self._cos: F32 = np.empty((0, len(inverse)), np.float32)
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
    """What a layer needs to know about a step's rows: where they stand and what they may see."""

    batch: Batch
    group: int
    keys: F32
    values: F32
    cos: F32
    sin: F32
    window: int | None


Step = Callable[[F32], F32]  # rows to rows


def finite(checkpoint: Checkpoint, name: str) -> F32:
    """A tensor. Raises ModelFileError where a number of it is infinite or none: then so is every answer."""
    weights = checkpoint.tensor(name)
    if not np.isfinite(weights).all():
        raise ModelFileError(
            f"tensor {name} holds numbers that are infinite or none at all", hint="it is damaged; fetch the model again"
        )
    return weights


class Projection:
    """weight · x, + bias where the checkpoint has one."""

    def __init__(self, checkpoint: Checkpoint, name: str) -> None:
        self._weight = finite(checkpoint, f"{name}.weight")
        self._bias = finite(checkpoint, f"{name}.bias") if f"{name}.bias" in checkpoint.names() else None

    def __call__(self, x: F32) -> F32:
        product = kernels.matmul(x, self._weight)
        return product if self._bias is None else product + self._bias


def norm(checkpoint: Checkpoint, name: str) -> Step:
    """The RMS norm of that name; where the model has none there, nothing is changed."""
    if f"{name}.weight" not in checkpoint.names():
        return lambda x: x
    weight, eps = finite(checkpoint, f"{name}.weight"), checkpoint.config.rms_eps
    return lambda x: kernels.rms_norm(x, weight, eps)


class Attention:
    """Grouped-query attention of one layer over the paged cache."""

    def __init__(self, checkpoint: Checkpoint, prefix: str) -> None:
        config = checkpoint.config
        self._head_dim, self._scale = config.head_dim, config.attention_scale
        self._q, self._k, self._v, self._out = (
            Projection(checkpoint, f"{prefix}.attn_{part}") for part in ("q", "k", "v", "output")
        )
        self._q_norm, self._k_norm = (norm(checkpoint, f"{prefix}.attn_{part}_norm") for part in ("q", "k"))

    def __call__(self, x: F32, rows: RowContext) -> F32:
        """(rows, hidden) → (rows, hidden); also writes the rows' keys and values into the cache."""
        q = self._turned(self._q(x), self._q_norm, rows)
        k = self._turned(self._k(x), self._k_norm, rows)
        v = self._v(x).reshape(len(x), -1, self._head_dim)
        kernels.kv_write(k, v, rows.keys, rows.values, rows.batch.slots[rows.group])
        mixed = kernels.paged_attention(
            q,
            rows.keys,
            rows.values,
            rows.batch.block_tables[rows.group],
            rows.batch.row_seq,
            rows.batch.positions,
            scale=self._scale,
            window=rows.window,
        )
        return self._out(mixed.reshape(len(x), -1))

    def _turned(self, projected: F32, head_norm: Step, rows: RowContext) -> F32:
        """Queries or keys as heads (rows, heads, head dim), normed head by head, turned to their positions."""
        heads = head_norm(projected.reshape(-1, self._head_dim))
        return kernels.rope(heads.reshape(len(projected), -1, self._head_dim), rows.cos, rows.sin)


class FeedForward:
    """down(activation(gate(x)) × up(x))"""

    def __init__(self, checkpoint: Checkpoint, prefix: str) -> None:
        self._gate, self._up, self._down = (
            Projection(checkpoint, f"{prefix}.ffn_{part}") for part in ("gate", "up", "down")
        )
        self._activated = {"silu": kernels.silu_mul, "gelu_tanh": kernels.gelu_tanh_mul}[
            checkpoint.config.gated_activation
        ]

    def __call__(self, x: F32) -> F32:
        """(rows, hidden) → (rows, hidden)"""
        return self._down(self._activated(self._gate(x), self._up(x)))


class Layer:
    """x + after(attention(before(x))), then x + after(feed_forward(before(x))), with norms before and after."""

    def __init__(self, checkpoint: Checkpoint, number: int) -> None:
        prefix = f"blk.{number}"
        self.sliding = checkpoint.config.sliding_layers[number]
        self._before_attention = norm(checkpoint, f"{prefix}.attn_norm")
        self._attention = Attention(checkpoint, prefix)
        self._after_attention = norm(checkpoint, f"{prefix}.post_attention_norm")
        self._before_feed_forward = norm(checkpoint, f"{prefix}.ffn_norm")
        self._feed_forward = FeedForward(checkpoint, prefix)
        self._after_feed_forward = norm(checkpoint, f"{prefix}.post_ffw_norm")

    def __call__(self, x: F32, rows: RowContext) -> F32:
        """(rows, hidden) → (rows, hidden)"""
        x = x + self._after_attention(self._attention(self._before_attention(x), rows))
        return x + self._after_feed_forward(self._feed_forward(self._before_feed_forward(x)))


class Decoder:
    """Embedding, layers, and the language-model head: the embedding table once more where a checkpoint ties them."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.config = config = checkpoint.config
        self._embedding = checkpoint.tensor("token_embd.weight")
        self._layers = [Layer(checkpoint, number) for number in range(config.layers)]
        self._groups = layer_groups(config)
        self._group_of = {layer: number for number, group in enumerate(self._groups) for layer in group.layers}
        self._last_norm = norm(checkpoint, "output_norm")
        self._head = self._embedding if config.tied_embeddings else checkpoint.tensor("output.weight")
        self._rotary: Mapping[bool, Rotary] = {
            sliding: Rotary(inverse_frequencies(config, sliding=sliding)) for sliding in (False, True)
        }

    @property
    def read_bytes(self) -> int:
        """See `models.Model.read_bytes`: every matrix in float32; an embedding that is no head is looked up."""
        looked_up = set[str]() if self.config.tied_embeddings else {"token_embd.weight"}
        shapes = tensor_shapes(self.config).items()
        values = sum(math.prod(shape) for name, shape in shapes if len(shape) > 1 and name not in looked_up)
        return values * np.dtype(np.float32).itemsize

    def forward(self, batch: Batch, kv: KVMemory) -> F32:
        """See `models.Model.forward`."""
        angles = {sliding: rotary.at(batch.positions) for sliding, rotary in self._rotary.items()}
        x = self._embedding[batch.token_ids] * np.float32(self.config.embedding_scale)
        for number, (layer, keys, values) in enumerate(zip(self._layers, kv.keys, kv.values, strict=True)):
            cos, sin = angles[layer.sliding]
            group = self._group_of[number]
            window = self._groups[group].window
            rows = RowContext(batch=batch, group=group, keys=keys, values=values, cos=cos, sin=sin, window=window)
            x = layer(x, rows)
        return self._logits(x[batch.logit_rows])

    def _logits(self, x: F32) -> F32:
        """(logit rows, hidden) → (logit rows, vocabulary)"""
        if not len(x):  # a step of nothing but beginnings and middles of prompts
            return np.empty((0, len(self._head)), np.float32)
        logits = kernels.matmul(self._last_norm(x), self._head)
        if (cap := self.config.logit_softcap) is not None:
            logits = np.float32(cap) * np.tanh(logits / np.float32(cap))
        return logits
