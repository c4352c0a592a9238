"""Model files: from bytes on disk to a config, a vocabulary and float32 arrays.

Owns: every file format a model comes in. Refuses to know: how to compute with any of it.
"""

from taximeter.engine.weights.checkpoint import Checkpoint, naming, open_checkpoint
from taximeter.engine.weights.config import ModelConfig, tensor_shapes
from taximeter.engine.weights.dequantize import RawTensor
from taximeter.engine.weights.vocabulary import Vocabulary

__all__ = ["Checkpoint", "ModelConfig", "RawTensor", "Vocabulary", "naming", "open_checkpoint", "tensor_shapes"]
