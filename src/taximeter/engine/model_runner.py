"""From a plan to logits: lays a step's chunks out as rows, runs the model, and hands back one row of logits for each
sequence that caught up. Owns: the model and its KV memory. Refuses to know: order, sampling, requests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from taximeter.engine.models import Batch, KVMemory, Model
from taximeter.engine.models.decoder import F32
from taximeter.engine.scheduler import Chunk


class ModelRunner:
    """Runs steps of one model over one pool of blocks."""

    def __init__(self, model: Model, *, blocks: int, block_tokens: int) -> None:
        self._model = model
        self._block_tokens = block_tokens
        self._kv = KVMemory(model.config, blocks=blocks, block_tokens=block_tokens)

    def run(self, chunks: Sequence[Chunk]) -> F32:
        """Compute all chunks in one pass; logits (chunks that catch up, vocabulary), in the order of `chunks`."""
        return self._model.forward(self._lay_out(chunks), self._kv)

    def _lay_out(self, chunks: Sequence[Chunk]) -> Batch:
        token_ids = np.concatenate([chunk.sequence.tokens(chunk.start, chunk.end) for chunk in chunks])
        positions = np.concatenate([np.arange(chunk.start, chunk.end, dtype=np.int32) for chunk in chunks])
        row_seq = np.repeat(np.arange(len(chunks), dtype=np.int32), [chunk.count for chunk in chunks])
        block_tables = np.zeros((len(chunks), max(len(chunk.sequence.blocks) for chunk in chunks)), np.int32)
        for row, chunk in enumerate(chunks):
            block_tables[row, : len(chunk.sequence.blocks)] = chunk.sequence.blocks
        blocks = block_tables[row_seq, positions // self._block_tokens].astype(np.int64)
        last_rows = np.cumsum([chunk.count for chunk in chunks], dtype=np.int64) - 1
        return Batch(
            token_ids=token_ids.astype(np.int64),
            positions=positions,
            row_seq=row_seq,
            slots=blocks * self._block_tokens + positions % self._block_tokens,
            block_tables=block_tables,
            logit_rows=last_rows[[chunk.catches_up for chunk in chunks]],
        )
