"""`rope`: rotary position embedding, half-split pairs."""

from __future__ import annotations

import numpy as np

from taximeter.engine.kernels.contract import F32, require


def rope(x: F32, cos: F32, sin: F32) -> F32:
    """Rotate each pair (i, i + rope_dim/2) of every head by its row's angle i; values past rope_dim pass unchanged.

    x (rows, heads, head_dim), cos and sin (rows, rope_dim/2) → a new array like x.
    """
    require("x", x, np.float32, None, None, None)
    rows, _heads, head_dim = x.shape
    require("cos", cos, np.float32, rows, None)
    require("sin", sin, np.float32, *cos.shape)
    half = cos.shape[1]
    if 2 * half > head_dim:
        raise ValueError(f"cos rotates {2 * half} values of a head that has {head_dim}")
    cos, sin = cos[:, None, :], sin[:, None, :]
    first, second = x[..., :half], x[..., half : 2 * half]
    out = np.empty_like(x)
    out[..., :half] = first * cos - second * sin
    out[..., half : 2 * half] = second * cos + first * sin
    out[..., 2 * half :] = x[..., 2 * half :]
    return out
