"""Models that run: from a checkpoint to logits.

Owns: the door, and which of the two forward passes computes: the native one at the level in use, or the numpy
reference. Refuses to know: files, requests, and which tokens are drawn from the logits.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from taximeter.engine import kernels
from taximeter.engine.models.decoder import F32, I64, Batch, Decoder
from taximeter.engine.models.formats import (
    KV_FORMATS,
    WEIGHT_FORMATS,
    Arithmetic,
    KVFormat,
    WeightFormat,
    kv_bytes,
    kv_bytes_per_token,
)
from taximeter.engine.models.kv_memory import KVMemory
from taximeter.engine.models.layer_groups import LayerGroup, layer_groups
from taximeter.engine.weights import Checkpoint, ModelConfig, naming
from taximeter.errors import ModelFileError

if TYPE_CHECKING:
    from taximeter.engine.models.native import NativeDecoder

__all__ = [
    "KV_FORMATS",
    "WEIGHT_FORMATS",
    "Arithmetic",
    "Batch",
    "KVFormat",
    "KVMemory",
    "LayerGroup",
    "Model",
    "WeightFormat",
    "kv_bytes",
    "kv_bytes_per_token",
    "layer_groups",
    "load_model",
]


class Model(Protocol):
    """A loaded model."""

    config: ModelConfig

    @property
    def read_bytes(self) -> int:
        """What the last pass read of the weights: each once, however many rows it had, and less where some could not
        change what was asked for."""
        ...

    @property
    def arithmetic(self) -> Arithmetic:
        """In which numbers most of the weights are multiplied with a prompt, where the processor has units for them."""
        ...

    @property
    def tells_prompts_apart(self) -> bool:
        """Whether a token gets slightly other numbers as part of a prompt than where the model wrote it."""
        ...

    def profile_ns(self) -> Mapping[str, int]:
        """Nanoseconds of all passes by kind of work, if the model was loaded to count them; else nothing."""
        ...

    def forward(self, batch: Batch, kv: KVMemory, *, out: F32 | None = None) -> F32:
        """Compute all rows, write their keys and values, and return logits (logit rows, vocabulary): in `out`, or in a
        new array.

        The rows of a sequence follow each other in ascending position, and logit rows ascend. A row's logits depend on
        its own sequence only: not on the other rows, nor on how its prompt was cut; and if the model
        `tells_prompts_apart`, on which of its tokens are generated. Rows that are come first.
        """
        ...

    def best(self, batch: Batch, kv: KVMemory) -> I64:
        """What `forward` computes, but of the logits only each row's greatest: its token, of equal ones the lowest, and
        -1 where it is infinite or not a number (logit rows,)."""
        ...


class LoadedModel:
    """A checkpoint whose weights are read when the first pass needs them, in the form that its arithmetic wants."""

    def __init__(self, checkpoint: Checkpoint, weights: WeightFormat | None, *, profile: bool) -> None:
        self.config = checkpoint.config
        self._profile = profile
        self._checkpoint = checkpoint
        self._weights: WeightFormat | None = weights

    @property
    def read_bytes(self) -> int:
        return self._reference.read_bytes if kernels.native_level() is None else self._native.read_bytes

    @property
    def arithmetic(self) -> Arithmetic:
        level = kernels.native_level()
        return "f32" if level is None else self._native.arithmetic(level)

    @property
    def tells_prompts_apart(self) -> bool:
        level = kernels.native_level()
        return level is not None and self._native.tells_prompts_apart(level)

    def profile_ns(self) -> Mapping[str, int]:
        """See `Model.profile_ns`. The reference does not count."""
        return self._native.profile_ns() if self._profile and kernels.native_level() is not None else {}

    def forward(self, batch: Batch, kv: KVMemory, *, out: F32 | None = None) -> F32:
        """See `Model.forward`."""
        if out is None:
            out = np.empty((len(batch.logit_rows), self.config.vocab_size), np.float32)
        level = kernels.native_level()
        if level is None:
            out[:] = self._reference.forward(batch, kv)
        else:
            self._native.forward(batch, kv, level, out)
        return out

    def best(self, batch: Batch, kv: KVMemory) -> I64:
        """See `Model.best`."""
        level = kernels.native_level()
        if level is None:
            logits = self._reference.forward(batch, kv)
            best = logits.argmax(axis=1)
            return np.where(np.isfinite(logits[np.arange(len(best)), best]), best, -1)
        tokens = np.empty(len(batch.logit_rows), np.int64)
        self._native.forward(batch, kv, level, tokens)
        return tokens

    def read(self) -> None:
        """Read the weights now, for the level in use. Raises ModelFileError."""
        _ = self._reference if kernels.native_level() is None else self._native

    @cached_property
    def _reference(self) -> Decoder:
        return Decoder(self._checkpoint)

    @cached_property
    def _native(self) -> NativeDecoder:
        native = importlib.import_module("taximeter.engine.models.native")
        try:
            return native.NativeDecoder(self._checkpoint, self._weights, profile=self._profile)
        except ValueError as error:
            raise ModelFileError(
                f"it cannot be computed here: {error}",
                hint="the file is damaged, or of a kind that is not supported",
            ) from error


def load_model(checkpoint: Checkpoint, *, weights: WeightFormat | None = None, profile: bool = False) -> Model:
    """Read a checkpoint's weights into a model that computes what its config describes: as the file has them, or in
    another format (which the reference path does not do). With `profile` it counts where its time goes. Raises
    ModelFileError."""
    model = LoadedModel(checkpoint, weights, profile=profile)
    with naming(checkpoint.path):
        model.read()
    return model
