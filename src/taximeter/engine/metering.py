"""Who pays for a step: machine time, bytes read and energy, divided among the requests that shared it, exactly.

The work a request brings to a step is counted in operations of the algorithm, not of a machine: every token goes
through all weight matrices once, attends to its own context, and the rows whose next token is picked also go through
the language-model head. Time and energy are divided by that. Bytes are those that the step had to read: of the weights
each once for all rows, which share them, and keys and values for each row's own sequence.
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
class Span:
    """Positions `start` to `end` (exclusive) of one sequence, in one step, `logit_rows` of them with logits."""

    start: int
    end: int
    logit_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a span is charged of its step. `energy_uj` is None where the step's was not known."""

    compute_ns: int
    operations: int
    read_bytes: int
    energy_uj: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Floating point operations of one model: per token through the weights, per token and layer per key attended
    to, and per row of logits. And bytes of one key with its value in one layer."""

    linear_flop_per_token: int
    head_flop_per_row: int
    attention_flop_per_key: int
    global_layers: int
    sliding_layers: int
    sliding_window: int
    kv_bytes_per_key: int = 0

    @classmethod
    def of(cls, config: ModelConfig, *, kv_bytes_per_token: int) -> StepCosts:
        """Formulas: 2 operations per weight; 4 per head, head dimension and key (scores and weighted sum).
        `kv_bytes_per_token` is that of all layers together."""
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
            kv_bytes_per_key=kv_bytes_per_token // config.layers,
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

    def kv_read_bytes(self, start: int, end: int) -> int:
        """Keys and values that positions `start` to `end` (exclusive) attend to, each read once for all of them."""
        first = max(0, start - self.sliding_window + 1)
        return self.kv_bytes_per_key * (self.global_layers * end + self.sliding_layers * (end - first))

    def shares(self, spans: Sequence[Span], *, step_ns: int, weight_bytes: int, energy_uj: int | None) -> list[Share]:
        """What each span is charged of a step. Everything sums to the step's total: `step_ns`, `energy_uj`, and the
        `weight_bytes` that it read with every span's keys and values."""
        operations = [self.of_chunk(span.start, span.end, span.logit_rows) for span in spans]
        weights = divide_exactly(weight_bytes, [span.end - span.start for span in spans])
        energy = [None] * len(spans) if energy_uj is None else divide_exactly(energy_uj, operations)
        return [
            Share(
                compute_ns=compute_ns,
                operations=count,
                read_bytes=weight_bytes + self.kv_read_bytes(span.start, span.end),
                energy_uj=uj,
            )
            for span, compute_ns, count, weight_bytes, uj in zip(
                spans, divide_exactly(step_ns, operations), operations, weights, energy, strict=True
            )
        ]

    def _windowed(self, tokens: int) -> int:
        """Keys that the first `tokens` positions attend to in a sliding layer: sum of min(i, window)."""
        inside = min(tokens, self.sliding_window)
        return _triangle(inside) + (tokens - inside) * self.sliding_window


def _triangle(tokens: int) -> int:
    return tokens * (tokens + 1) // 2
