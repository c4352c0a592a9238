"""What every kind of model file offers the engine, and the one door to open any of them.

Owns: the `Checkpoint` protocol, `open_checkpoint`, and that errors name the model. Refuses to know: how any format is
laid out.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from taximeter.engine.weights.config import ModelConfig
from taximeter.engine.weights.dequantize import RawTensor
from taximeter.engine.weights.gguf_checkpoint import GGUFCheckpoint
from taximeter.engine.weights.vocabulary import Vocabulary
from taximeter.errors import ModelFileError


class Checkpoint(Protocol):
    """A model on disk, opened and checked: it has the tensors its config calls for, in the right shapes, and no others.

    Names are GGUF's: `token_embd.weight`, `output_norm.weight`, `output.weight` (absent when tied to the embedding),
    and for each layer N `blk.N.PART.weight`, PART being `attn_norm`, `attn_q`, `attn_k`, `attn_v`, `attn_output`,
    `ffn_norm`, `ffn_gate`, `ffn_up`, `ffn_down`. As the config says there are also `blk.N.attn_{q,k,v}.bias`
    (`qkv_bias`), `attn_q_norm` and `attn_k_norm` (`qk_norm`), `post_attention_norm` and `post_ffw_norm`
    (`sandwich_norms`). Whatever the file's own habits, rows of `attn_q` and `attn_k`, biases too, come in half-split
    order (dimension i turns with i + rope_dim/2), and norm weights are what the normed row is multiplied by.
    """

    @property
    def path(self) -> Path: ...

    @property
    def config(self) -> ModelConfig: ...

    def names(self) -> Sequence[str]:
        """Every tensor's name."""
        ...

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """A fresh C-contiguous float32 array, (out_features, in_features) or (size,). KeyError for a name not in
        `names()`."""
        ...

    def raw(self, name: str) -> RawTensor:
        """The same numbers as the file stores them: a view of the mapped file, a copy only where rows had to be put in
        order or where the file does not hold the numbers themselves. What has one dimension, norms and biases, is F32,
        F16 or BF16. Errors as for `tensor`."""
        ...

    def close(self) -> None:
        """Let go of the mapped files, so that their pages leave this process once the last raw view and vocabulary are
        gone. Config stays; asking for another tensor is a ValueError, and asking a GGUF file for a vocabulary."""
        ...

    def vocabulary(self) -> Vocabulary:
        """What to build the tokenizer from. `ModelFileError` when the model comes without one."""
        ...


@contextmanager
def naming(path: Path) -> Generator[None]:
    """What is wrong with a model's files is told with the model's path: somebody may be serving several."""
    try:
        yield
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error.message}", hint=error.hint) from error


def open_checkpoint(path: Path) -> Checkpoint:
    """The model at `path`: a GGUF file, or a folder with config.json, safetensors files and tokenizer.json.

    Reads headers only; tensors are read when asked for. Raises `ModelFileError`, naming the path, for whatever cannot
    be served: never another exception, whatever the bytes are.
    """
    with naming(path):
        try:
            if path.is_dir():
                from taximeter.engine.weights.hf_folder import (  # noqa: PLC0415  # brings a library
                    HuggingFaceCheckpoint,
                )

                return HuggingFaceCheckpoint(path)
            if path.is_file():
                return GGUFCheckpoint(path)
        except OSError as error:  # not even to be asked what it is
            raise ModelFileError(f"it cannot be read: {error}", hint="check the path of the model") from error
    raise ModelFileError(f"{path} is neither a file nor a folder", hint="check the path of the model")
