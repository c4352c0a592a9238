"""What a model's shape says about its work: operations and bytes of a prompt and of a step, and what they come to
beside a machine's limits.

Owns: the counting. Refuses to know: model files, and what anybody measured.

Multiplying and adding are two operations. Attention is causal: position i looks back on i positions, in a layer with a
window on as many as that at most. The output matrix is applied to the last token only. A query head is as wide as the
model says, which is not always the model's width divided by its heads.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder's dimensions. `sliding_layers` of its `layers` look back on `window` positions at most.

    `step_weight_bytes` is what one step of one request reads of the weights: every layer and the output matrix, as they
    are stored; of an embedding only a row. `kv_value_bytes` is what one key or value takes: 2 for f16.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int
    sliding_layers: int = 0
    window: int | None = None
    step_weight_bytes: int | None = None
    kv_value_bytes: float = 2.0

    def __post_init__(self) -> None:
        if not 0 <= self.sliding_layers <= self.layers or (self.sliding_layers > 0) != (self.window is not None):
            raise ValueError("layers slide by a window, and there are not more of them than layers")

    @property
    def linear_weights(self) -> int:
        """Weights of all matrix products in the layers; the embedding and the output matrix are not among them."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (2 * queries + 2 * keys)
        return self.layers * (attention + 3 * self.hidden * self.feed_forward)

    def linear_operations(self, tokens: int) -> int:
        """Of the layers' matrix products, for `tokens` rows."""
        return 2 * self.linear_weights * tokens

    def attention_operations(self, tokens: int) -> int:
        """Of reading a prompt of `tokens`, causally."""
        full = tokens * (tokens + 1) // 2
        return self._attention(full, self._seen_in_window(tokens))

    def output_operations(self) -> int:
        """Of the output matrix, for one row."""
        return 2 * self.hidden * self.vocabulary

    def prefill_operations(self, tokens: int) -> int:
        """All of reading a prompt of `tokens`, up to its first token."""
        return self.linear_operations(tokens) + self.attention_operations(tokens) + self.output_operations()

    def step_operations(self, depth: int) -> int:
        """Of writing one token that looks back on `depth` positions, itself among them."""
        attention = self._attention(depth, depth if self.window is None else min(depth, self.window))
        return self.linear_operations(1) + attention + self.output_operations()

    def kv_bytes(self, depth: int) -> float:
        """What the keys and values of `depth` positions take; in layers with a window not more than it holds."""
        in_window = depth if self.window is None else min(depth, self.window)
        values = 2 * self.kv_heads * self.head_dim
        global_layers = self.layers - self.sliding_layers
        return values * (global_layers * depth + self.sliding_layers * in_window) * self.kv_value_bytes

    def step_bytes(self, depth: int) -> float | None:
        """What one step of one request reads at `depth`; None where the weights' size is not known."""
        return None if self.step_weight_bytes is None else self.step_weight_bytes + self.kv_bytes(depth)

    def _attention(self, full: int, sliding: int) -> int:
        seen = (self.layers - self.sliding_layers) * full + self.sliding_layers * sliding
        return 4 * self.heads * self.head_dim * seen

    def _seen_in_window(self, tokens: int) -> int:
        if self.window is None or tokens <= self.window:
            return tokens * (tokens + 1) // 2
        return self.window * (self.window + 1) // 2 + (tokens - self.window) * self.window


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLimit:
    """What a machine can do at most: operations and bytes read, a second. `says` of what: the unit and threads."""

    operations_per_s: float
    read_bytes_per_s: float
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a measured time comes to: `amount` of operations or bytes in `seconds`, and its share of the limit, where
    that is known."""

    amount: float
    per_s: float
    limit_ratio: float | None


def prefill_work(shape: ModelShape, tokens: int, seconds: float, limit: MachineLimit | None) -> Work:
    """Operations of a prompt of `tokens` that took `seconds`. Reading prompts is bound by arithmetic."""
    return _work(shape.prefill_operations(tokens), seconds, None if limit is None else limit.operations_per_s)


def step_work(shape: ModelShape, depth: int, seconds: float, limit: MachineLimit | None) -> Work | None:
    """Bytes of a step at `depth` that took `seconds`. Writing alone is bound by memory. None where the weights' size is
    not known."""
    read = shape.step_bytes(depth)
    return None if read is None else _work(read, seconds, None if limit is None else limit.read_bytes_per_s)


def _work(amount: float, seconds: float, limit_per_s: float | None) -> Work:
    per_s = amount / seconds
    return Work(amount=amount, per_s=per_s, limit_ratio=None if limit_per_s is None else per_s / limit_per_s)
