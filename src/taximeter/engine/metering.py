"""Who pays for a step: machine time divided among the requests that shared it, to the nanosecond.

The work a request brings to a step is counted in floating point operations of the algorithm, not of a machine:
every token goes through all weight matrices once, attends to its own context, and the rows whose next token is picked
also go through the language-model head. Reading the weights is thereby shared by tokens, and attention is paid by
each one's own context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taximeter.engine.weights import ModelConfig


def divide_exactly(total: int, weights: Sequence[int]) -> list[int]:
    """`total` in whole parts proportional to `weights`, summing to it exactly (largest remainders get the rest,
    earlier ones first). Raises ValueError if there is no positive weight or a negative one."""
    whole = sum(weights)
    if whole <= 0 or min(weights) < 0:
        raise ValueError(f"cannot divide by the weights {list(weights)}")
    parts = [total * weight // whole for weight in weights]
    remainders = sorted(range(len(weights)), key=lambda i: -(total * weights[i] % whole))
    for index in remainders[: total - sum(parts)]:
        parts[index] += 1
    return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Floating point operations of one model: per token through the weights, per token and layer per key attended
    to, and per row of logits."""

    linear_flop_per_token: int
    head_flop_per_row: int
    attention_flop_per_key: int
    global_layers: int
    sliding_layers: int
    sliding_window: int

    @classmethod
    def of(cls, config: ModelConfig) -> StepCosts:
        """Formulas: 2 operations per weight; 4 per head, head dimension and key (scores and weighted sum)."""
        width = config.heads * config.head_dim
        attention = config.hidden_size * (2 * width + 2 * config.kv_heads * config.head_dim)
        feed_forward = 3 * config.hidden_size * config.ff_size
        sliding = sum(config.sliding_layers) if config.sliding_window is not None else 0
        return cls(
            linear_flop_per_token=2 * config.layers * (attention + feed_forward),
            head_flop_per_row=2 * config.hidden_size * config.vocab_size,
            attention_flop_per_key=4 * width,
            global_layers=config.layers - sliding,
            sliding_layers=sliding,
            sliding_window=config.sliding_window or 0,
        )

    def of_chunk(self, start: int, end: int, logit_rows: int) -> int:
        """Operations to compute positions `start` to `end` (exclusive) of a sequence, causally."""
        keys = self.global_layers * (_triangle(end) - _triangle(start))
        if self.sliding_layers:
            keys += self.sliding_layers * (self._windowed(end) - self._windowed(start))
        return (
            (end - start) * self.linear_flop_per_token
            + keys * self.attention_flop_per_key
            + logit_rows * self.head_flop_per_row
        )

    def _windowed(self, tokens: int) -> int:
        """Keys that the first `tokens` positions attend to in a sliding layer: sum of min(i, window)."""
        inside = min(tokens, self.sliding_window)
        return _triangle(inside) + (tokens - inside) * self.sliding_window


def _triangle(tokens: int) -> int:
    return tokens * (tokens + 1) // 2
