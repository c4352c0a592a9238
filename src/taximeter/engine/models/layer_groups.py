"""Which layers keep their tokens for how long: the one place that says so.

Owns: the groups and their order, which block tables, slots and native memory follow. Refuses to know: blocks and bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from taximeter.engine.weights import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers in which a row sees the same keys: the last `window` of its sequence, its own among them; None is all."""

    window: int | None
    layers: tuple[int, ...]


def layer_groups(config: ModelConfig) -> tuple[LayerGroup, ...]:
    """The layers that see everything, then those that slide; a model of one kind has one group."""
    layers = {
        sliding: tuple(layer for layer, slides in enumerate(config.sliding_layers) if slides is sliding)
        for sliding in (False, True)
    }
    groups = (
        LayerGroup(window=None, layers=layers[False]),
        LayerGroup(window=config.sliding_window, layers=layers[True]),
    )
    return tuple(group for group in groups if group.layers)
