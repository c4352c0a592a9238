"""The architectures this engine can run: one file each."""

from __future__ import annotations

from collections.abc import Callable

from taximeter.engine.models.decoder import Batch, KVMemory, Model
from taximeter.engine.models.gemma3 import Gemma3
from taximeter.engine.models.llama import Llama
from taximeter.engine.weights import Checkpoint
from taximeter.errors import ModelFileError

__all__ = ["ARCHITECTURES", "Batch", "KVMemory", "Model", "load_model"]

ARCHITECTURES: dict[str, Callable[[Checkpoint], Model]] = {"llama": Llama, "gemma3": Gemma3}


def load_model(checkpoint: Checkpoint) -> Model:
    """Read a checkpoint's weights into the model that its architecture names. Raises ModelFileError."""
    architecture = checkpoint.config.architecture
    if architecture not in ARCHITECTURES:
        raise ModelFileError(
            f"{checkpoint.path.name} is of the architecture {architecture!r}, which this engine does not run",
            hint=f"it runs {', '.join(sorted(ARCHITECTURES))}",
        )
    return ARCHITECTURES[architecture](checkpoint)
