"""`rms_norm`: each row divided by its root mean square, then weighted."""

from __future__ import annotations

import numpy as np

from taximeter.engine.kernels.contract import F32, require


def rms_norm(x: F32, weight: F32, eps: float) -> F32:
    """x / sqrt(mean(x²) + eps) × weight: (rows, k), (k,) → a new array (rows, k). The mean is taken in float64."""
    require("x", x, np.float32, None, None)
    require("weight", weight, np.float32, x.shape[1])
    squares = np.add.reduce(np.square(x, dtype=np.float64), axis=1, keepdims=True)
    scaled = x * (1.0 / np.sqrt(squares / x.shape[1] + eps)).astype(np.float32)
    return np.multiply(scaled, weight, out=scaled)
