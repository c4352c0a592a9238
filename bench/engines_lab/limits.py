"""How fast a model can be at most on a machine of given rates, by counting bytes and operations.

Owns: the cost formulas. A step reads every weight once and each stream's keys and values once, and multiplies each
token with each weight; it takes the longer of the two, as if reading and arithmetic overlapped fully. Refuses to know:
how anybody computes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engines_lab.yardstick import Machine

from taximeter.engine.weights import open_checkpoint
from taximeter.engine.weights.config import ModelConfig

KV_BYTES_PER_NUMBER = 2  # bf16
_HEAD = "output.weight"
_EMBEDDING = "token_embd.weight"


@dataclass(frozen=True, slots=True)
class Costs:
    """What a model costs: its bytes as packaged and its multiplications."""

    config: ModelConfig
    weights_bytes: int
    body_weights: int
    head_weights: int

    @classmethod
    def of(cls, model: Path) -> Costs:
        checkpoint = open_checkpoint(model)
        config = checkpoint.config
        # An embedding that is not tied is read by the row, not as a whole.
        read = [name for name in checkpoint.names() if name != _EMBEDDING or config.tied_embeddings]
        raw = {name: checkpoint.raw(name) for name in read}
        head = _EMBEDDING if config.tied_embeddings else _HEAD
        matrices = {name: tensor.shape[0] * tensor.shape[1] for name, tensor in raw.items() if len(tensor.shape) == 2}
        return cls(
            config=config,
            weights_bytes=sum(tensor.data.nbytes for tensor in raw.values()),
            body_weights=sum(matrices.values()) - matrices[head],
            head_weights=matrices[head],
        )

    def decode_s(self, machine: Machine, *, streams: int, context_tokens: float) -> float | None:
        """One step in which each of `streams` gets its next token behind `context_tokens`."""
        seen = streams * self._seen_layers(context_tokens)
        return self._step_s(machine, tokens=streams, head_rows=streams, pairs=seen, keys_read=seen)

    def prefill_s(self, machine: Machine, *, prompt_tokens: int, cached_tokens: int = 0) -> float | None:
        """A prompt up to its first token, of which the cache has `cached_tokens`."""
        pairs = sum(self._seen_layers(position) for position in range(cached_tokens, prompt_tokens))
        cached = self._seen_layers(cached_tokens)
        tokens = prompt_tokens - cached_tokens
        return self._step_s(machine, tokens=tokens, head_rows=1, pairs=pairs, keys_read=cached)

    def _step_s(self, machine: Machine, *, tokens: int, head_rows: int, pairs: float, keys_read: float) -> float | None:
        """`pairs` are those of query and key, `keys_read` keys of one layer that are read from memory."""
        if machine.int8_gop_per_s is None or machine.bf16_gflop_per_s is None:
            return None
        linear = 2.0 * (tokens * self.body_weights + head_rows * self.head_weights)
        attention = 4.0 * self.config.heads * self.config.head_dim * pairs
        arithmetic_ns = linear / machine.int8_gop_per_s + attention / machine.bf16_gflop_per_s
        kv_bytes = 2 * self.config.kv_heads * self.config.head_dim * KV_BYTES_PER_NUMBER * keys_read
        reading_ns = self.weights_bytes / machine.read_weights_gb_per_s + kv_bytes / machine.read_gb_per_s
        return max(arithmetic_ns, reading_ns) / 1e9

    def _seen_layers(self, context_tokens: float) -> float:
        """Keys that a token behind `context_tokens` looks at, over all layers."""
        config = self.config
        sliding = sum(config.sliding_layers)
        window = config.sliding_window if config.sliding_window is not None else context_tokens
        return context_tokens * (config.layers - sliding) + min(context_tokens, window) * sliding
