"""From a plan to logits: lays a step's chunks out as rows, runs the model, and hands back one row of logits, or the
best token, for each sequence that caught up. Owns: the model and its KV memory. Refuses to know: order, sampling,
requests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from taximeter.engine.models import Batch, KVFormat, KVMemory, Model
from taximeter.engine.models.decoder import F32, I32, I64
from taximeter.engine.request_state import HOLE
from taximeter.engine.scheduler import Chunk


class ModelRunner:
    """Runs steps of one model over a pool of blocks for each group of its layers."""

    def __init__(self, model: Model, *, blocks: Sequence[int], block_tokens: int, kv_format: KVFormat) -> None:
        self._model = model
        self._block_tokens = block_tokens
        # Kept from step to step: so large an array is new pages each time, and those cost more than writing to them.
        self._logits = np.empty((0, model.config.vocab_size), np.float32)
        self._kv = KVMemory(model.config, blocks=blocks, block_tokens=block_tokens, kv_format=kv_format)

    def run(self, chunks: Sequence[Chunk]) -> F32:
        """Compute all chunks, of which generated ones come first, in one pass; logits (chunks that catch up,
        vocabulary), in the order of `chunks`. The next run writes over them."""
        batch = self._lay_out(chunks)
        rows = len(batch.logit_rows)
        if len(self._logits) < rows:
            self._logits = np.empty((rows, self._model.config.vocab_size), np.float32)
        return self._model.forward(batch, self._kv, out=self._logits[:rows])

    def best(self, chunks: Sequence[Chunk]) -> I64:
        """As `run`, but of each row of logits only the token with the greatest, of equal ones the lowest."""
        return self._model.best(self._lay_out(chunks), self._kv)

    @property
    def read_bytes(self) -> int:
        """See `Model.read_bytes`."""
        return self._model.read_bytes

    def copy_block(self, group: int, source: int, target: int) -> None:
        """See `KVMemory.copy_block`."""
        self._kv.copy_block(group, source, target)

    def touch_block(self, group: int, block: int) -> None:
        """See `KVMemory.touch_block`."""
        self._kv.touch_block(group, block)

    def _lay_out(self, chunks: Sequence[Chunk]) -> Batch:
        # Lists, and each made an array once: a step of one row costs a dozen conversions less, one of hundreds no more.
        positions = [position for chunk in chunks for position in range(chunk.start, chunk.end)]
        row_seq = [row for row, chunk in enumerate(chunks) for _ in range(chunk.count)]
        ends = itertools.accumulate(chunk.count for chunk in chunks)
        return Batch(
            token_ids=np.array(
                [token for chunk in chunks for token in chunk.sequence.tokens(chunk.start, chunk.end)], np.int64
            ),
            positions=np.array(positions, np.int32),
            row_seq=np.array(row_seq, np.int32),
            slots=tuple(np.array(slots, np.int64) for slots in self._slots(chunks)),
            block_tables=self._block_tables(chunks),
            logit_rows=np.array(
                [end - 1 for chunk, end in zip(chunks, ends, strict=True) if chunk.catches_up], np.int64
            ),
            generated_rows=sum(chunk.count for chunk in chunks if chunk.is_generated),
        )

    def _slots(self, chunks: Sequence[Chunk]) -> Iterator[list[int]]:
        """For each group of layers, where each row's key and value go."""
        size = self._block_tokens
        for tables in zip(*(chunk.sequence.block_tables for chunk in chunks), strict=True):
            yield [
                table[position // size] * size + position % size
                for chunk, table in zip(chunks, tables, strict=True)
                for position in range(chunk.start, chunk.end)
            ]

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
