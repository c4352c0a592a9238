"""From a plan to logits: lays a step's chunks out as rows, runs the model, and hands back one row of logits for each
sequence that caught up. Owns: the model and its KV memory. Refuses to know: order, sampling, requests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from taximeter.engine.models import Batch, KVFormat, KVMemory, Model
from taximeter.engine.models.decoder import F32, I32
from taximeter.engine.request_state import HOLE
from taximeter.engine.scheduler import Chunk


class ModelRunner:
    """Runs steps of one model over a pool of blocks for each group of its layers."""

    def __init__(self, model: Model, *, blocks: Sequence[int], block_tokens: int, kv_format: KVFormat) -> None:
        self._model = model
        self._block_tokens = block_tokens
        self._kv = KVMemory(model.config, blocks=blocks, block_tokens=block_tokens, kv_format=kv_format)

    def run(self, chunks: Sequence[Chunk]) -> F32:
        """Compute all chunks, of which generated ones come first, in one pass; logits (chunks that catch up,
        vocabulary), in the order of `chunks`."""
        return self._model.forward(self._lay_out(chunks), self._kv)

    def _lay_out(self, chunks: Sequence[Chunk]) -> Batch:
        token_ids = np.concatenate([chunk.sequence.tokens(chunk.start, chunk.end) for chunk in chunks])
        positions = np.concatenate([np.arange(chunk.start, chunk.end, dtype=np.int32) for chunk in chunks])
        row_seq = np.repeat(np.arange(len(chunks), dtype=np.int32), [chunk.count for chunk in chunks])
        block_tables = self._block_tables(chunks)
        block_index, offset = np.divmod(positions, np.int32(self._block_tokens))
        last_rows = np.cumsum([chunk.count for chunk in chunks], dtype=np.int64) - 1
        return Batch(
            token_ids=token_ids.astype(np.int64),
            positions=positions,
            row_seq=row_seq,
            slots=tuple(
                table[row_seq, block_index].astype(np.int64) * self._block_tokens + offset for table in block_tables
            ),
            block_tables=block_tables,
            logit_rows=last_rows[[chunk.catches_up for chunk in chunks]],
            generated_rows=sum(chunk.count for chunk in chunks if chunk.is_generated),
        )

    @staticmethod
    def _block_tables(chunks: Sequence[Chunk]) -> tuple[I32, ...]:
        """For each group of layers (chunks, blocks): one width for all, with holes where a table ends."""
        width = max(len(table) for chunk in chunks for table in chunk.sequence.block_tables)
        groups: list[I32] = []
        for tables in zip(*(chunk.sequence.block_tables for chunk in chunks), strict=True):
            padded = np.full((len(chunks), width), HOLE, np.int32)
            for row, table in enumerate(tables):
                padded[row, : len(table)] = table
            groups.append(padded)
        return tuple(groups)
