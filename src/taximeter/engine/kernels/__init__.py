"""The arithmetic of a forward pass: one contract per kernel, one numpy reference, and native code where it was built.

Owns: which code runs, and the promise that a row's result never depends on the other rows of a call, on how many there
are, or on where among them it stands, bit for bit, within one level. Refuses to know: models, requests, memory plans.

All floats are float32 and all arrays C-contiguous; a wrong dtype, shape or index is a `ValueError`. Levels, slow to
fast: `reference` (numpy, the oracle of the tests), `native:portable`, `native:avx2`, `native:avx512`. The fastest one
that this processor runs is chosen at the first call; `TAXIMETER_CPU_LEVEL` may lower it and never raises it.
"""

from taximeter.engine.kernels.choice import (
    is_built,
    level,
    levels,
    native_level,
    reason,
    set_threads,
    threads,
    use_level,
)
from taximeter.engine.kernels.gated import gelu_tanh_mul, silu_mul
from taximeter.engine.kernels.kv_write import kv_write
from taximeter.engine.kernels.matmul import matmul
from taximeter.engine.kernels.paged_attention import paged_attention
from taximeter.engine.kernels.rms_norm import rms_norm
from taximeter.engine.kernels.rope import rope

__all__ = [
    "gelu_tanh_mul",
    "is_built",
    "kv_write",
    "level",
    "levels",
    "matmul",
    "native_level",
    "paged_attention",
    "reason",
    "rms_norm",
    "rope",
    "set_threads",
    "silu_mul",
    "threads",
    "use_level",
]
