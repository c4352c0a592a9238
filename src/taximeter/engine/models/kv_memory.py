"""The memory that keys and values live in, as whichever arithmetic reads it wants it laid out.

Owns: the allocation. Refuses to know: which block belongs to whom (`kv_cache`) and what is written (`Model.forward`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from taximeter.engine import kernels
from taximeter.engine.models.formats import KVFormat
from taximeter.engine.models.layer_groups import layer_groups
from taximeter.engine.weights import ModelConfig

if TYPE_CHECKING:
    from taximeter import _native


class KVMemory:
    """Keys and values of all layers in blocks of `block_tokens` tokens, `blocks[g]` of them for each layer of group g
    (`layer_groups`), committed by the operating system page by page as they are written. The reference keeps float32
    whatever `kv_format` says.

    Raises MemoryError or ValueError for more than there can be, ValueError for another number of groups than the model
    has, and for blocks that the native layout cannot have (it wants a multiple of 16 tokens).
    """

    def __init__(
        self, config: ModelConfig, *, blocks: Sequence[int], block_tokens: int, kv_format: KVFormat = "f32"
    ) -> None:
        self._config = config
        self._groups = layer_groups(config)
        if len(blocks) != len(self._groups):
            raise ValueError(f"{config.name} has {len(self._groups)} groups of layers, not {len(blocks)}")
        self._blocks = tuple(blocks)
        self._block_tokens = block_tokens
        self._kv_format = kv_format
        _ = (self.keys, self.values) if kernels.native_level() is None else self.native

    @cached_property
    def keys(self) -> list[npt.NDArray[np.float32]]:
        """For each layer (blocks of its group, kv heads, block tokens, head dim): the reference's."""
        return self._arrays()

    @cached_property
    def values(self) -> list[npt.NDArray[np.float32]]:
        return self._arrays()

    @cached_property
    def native(self) -> _native.KVCache:
        """The native pass's own."""
        from taximeter import _native  # noqa: PLC0415 - absent where it was not built

        return _native.KVCache(
            self._kv_format,
            self._config.kv_heads,
            self._config.head_dim,
            self._block_tokens,
            [len(group.layers) for group in self._groups],
            list(self._blocks),
        )

    def copy_block(self, group: int, source: int, target: int) -> None:
        """What block `source` of a group holds, of all its layers, into block `target`. Not during a pass."""
        if "native" in vars(self):
            self.native.copy_block(group, source, target)
        for arrays in (self.keys if "keys" in vars(self) else [], self.values if "values" in vars(self) else []):
            for layer in self._groups[group].layers if arrays else ():
                arrays[layer][target] = arrays[layer][source]

    def touch_block(self, group: int, block: int) -> None:
        """Have a block's memory committed before it is needed, which the native pass gains by. Not during a pass."""
        if "native" in vars(self):
            self.native.touch_block(group, block)

    def _arrays(self) -> list[npt.NDArray[np.float32]]:
        shape = (self._config.kv_heads, self._block_tokens, self._config.head_dim)
        pairs = zip(self._groups, self._blocks, strict=True)
        blocks = {layer: count for group, count in pairs for layer in group.layers}
        return [np.zeros((blocks[layer], *shape), np.float32) for layer in range(self._config.layers)]
