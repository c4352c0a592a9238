"""`silu_mul` and `gelu_tanh_mul`: the two gated activations, element by element."""

from __future__ import annotations

import math

import numpy as np

from taximeter.engine.kernels.contract import F32, require

_SQRT_2_OVER_PI = np.float32(math.sqrt(2.0 / math.pi))
_CUBIC = np.float32(0.044715)
_ONE, _HALF = np.float32(1.0), np.float32(0.5)


def silu_mul(gate: F32, up: F32) -> F32:
    """gate / (1 + exp(-gate)) × up: two (rows, k) → a new array of the same shape."""
    _require_pair(gate, up)
    with np.errstate(over="ignore"):  # exp(-gate) may reach infinity, and the quotient is then zero, as it should be
        out = np.exp(-gate)
    out += _ONE
    np.divide(gate, out, out=out)
    return np.multiply(out, up, out=out)


def gelu_tanh_mul(gate: F32, up: F32) -> F32:
    """gate / 2 × (1 + tanh(sqrt(2/π) × (gate + 0.044715 gate³))) × up, the tanh form of GELU."""
    _require_pair(gate, up)
    with np.errstate(over="ignore"):  # the cube of an outlier; tanh of infinity is one
        out = gate * gate
        out *= _CUBIC
        out += _ONE
        out *= gate
    out *= _SQRT_2_OVER_PI
    np.tanh(out, out=out)
    out += _ONE
    out *= gate
    out *= _HALF
    return np.multiply(out, up, out=out)


def _require_pair(gate: F32, up: F32) -> None:
    require("gate", gate, np.float32, None, None)
    require("up", up, np.float32, *gate.shape)
