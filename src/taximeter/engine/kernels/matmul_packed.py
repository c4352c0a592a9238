"""`matmul_packed`: rows of activations times a matrix that stays in its weight file's own quantized values.

Owns: the products as single calls, for tests and benchmarks (the forward pass makes them itself), and the definition of
every bit of them in numpy. Needs the native code. Refuses to know: where a matrix comes from.

A quantized weight is code × scale + minimum. Activations are quantized too, 32 at a time: x ≈ d × (q + z). Without
`zeros`, z = 0 and d = max|x| / 127; with them, 256 codes reach from the least x (or zero) to the largest (or zero).
With Σ exact in integers, an output is, group after group (q6_k: half group after half group),

    acc = fma(float(Σ code·(q + z)) × scale, d, acc);  acc = fma(minimum, d × Σ (q + z), acc)

and for float weights, feature after feature, acc = fma(w, x, acc). So a row never depends on its batch, and levels with
fused multiply-add agree bit for bit; `portable` rounds product and sum one by one.

Where a level `multiplies_bf16`, there is `matmul_bf16` too: weights and activations, each rounded to bf16, multiplied
by units made for it, whose order of adding is theirs. That of tile units (`amx`) is, group of 32 after group,

    acc = acc + (Σ over even features + Σ over odd features), each Σ by fused multiply-add in ascending order from zero

with denormals taken for zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from taximeter import _native
from taximeter.engine.kernels.contract import F32, require

I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]

PackedMatrix = _native.PackedMatrix

GROUP = 32
_TILE_ROWS = 16


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Activations as int8: q (rows, k rounded up to 32), d, z and s (rows, groups), s_half (rows, 2 × groups).

    s is d × Σ (q + z) of the group, s_half that of the half group.
    """

    q: I8
    d: F32
    z: I32
    s: F32
    s_half: F32


@dataclass(frozen=True, slots=True)
class GroupedWeights:
    """What a quantized matrix means: codes (n, k), scales and minimums (n, k / span), span being 32, or 16 for q6_k."""

    codes: U8
    scales: F32
    minimums: F32


def pack(kind: str, rows: U8, k: int) -> PackedMatrix:
    """A matrix from rows (n, bytes per row) in the file's layout; `kind` is GGUF's name, for example "Q4_K".

    ValueError when that is no known kind, or rows of k weights are not whole blocks of it.
    """
    return PackedMatrix(kind, rows, k)


def unpack_rows(w: PackedMatrix, indices: npt.NDArray[np.int64]) -> F32:
    """Those rows of a matrix as float32, bit for bit what dequantizing the file gives."""
    out = np.empty((len(indices), w.k), np.float32)
    w.unpack_rows(indices, out)
    return out


def matmul_packed(x: F32, w: PackedMatrix, level: str, *, zeros: bool = False) -> F32:
    """x @ w.T at a native level, for example `avx2`: (rows, k) × (n, k) → a new array (rows, n)."""
    out = np.empty((len(x), w.n), np.float32)
    _native.matmul_packed(level, w, x, out, bf16=False, zeros=zeros)
    return out


def matmul_bf16(x: F32, w: PackedMatrix, level: str) -> F32:
    """`matmul_packed` by the units for bf16. ValueError where a level has none for it: see `multiplies_bf16`."""
    out = np.empty((len(x), w.n), np.float32)
    _native.matmul_packed(level, w, x, out, bf16=True, zeros=False)
    return out


def multiplies_bf16(level: str, kind: str) -> bool:
    """Whether a level has `matmul_bf16` for matrices of a kind."""
    return _native.multiplies_bf16(level, kind)


def quantize_activations(x: F32, level: str, *, zeros: bool = False) -> QuantizedRows:
    """What `matmul_packed` makes of x first, where weights are quantized. Every level gives the same bits."""
    to = _room_for(x)
    _native.quantize_activations(level, x, to.q, to.d, to.z, to.s, to.s_half, zeros=zeros)
    return to


def round_activations(x: F32, level: str) -> U16:
    """What `matmul_bf16` makes of x first: bf16, padded with zeros to a multiple of 32 features."""
    rows, groups = len(x), -(-x.shape[1] // GROUP)
    tiles = np.zeros((-(-rows // _TILE_ROWS), groups, _TILE_ROWS, GROUP), np.uint16)
    _native.round_activations(level, x, tiles)
    return tiles.swapaxes(1, 2).reshape(-1, groups * GROUP)[:rows]


def reference_quantize(x: F32, *, zeros: bool = False) -> QuantizedRows:
    """`quantize_activations` in numpy. A group that holds an infinity or not-a-number has such a d, q and z are 0."""
    require("x", x, np.float32, None, None)
    to = _room_for(x)
    rows, groups = to.d.shape
    padded = np.zeros((rows, groups, GROUP), np.float32)
    padded.reshape(rows, -1)[:, : x.shape[1]] = x
    with np.errstate(all="ignore"):
        high, below = np.maximum(padded.max(axis=2), 0), np.maximum(-padded.min(axis=2), 0)
        even, end_to_end = np.maximum(high, below) / np.float32(127), high / np.float32(255) + below / np.float32(255)
        to.d[:] = end_to_end if zeros else even
        some = (to.d > 0) & (to.d < np.inf)
        if zeros:
            to.z[:] = np.where(some, 128 - np.minimum(np.rint(below / to.d), 255), 0)
        whole = np.rint(padded / to.d[:, :, None]) - to.z[:, :, None]
        held = np.where(some[:, :, None], np.clip(whole, -128, 127), 0)
        to.q[:] = held.reshape(rows, -1)
        standing = held + to.z[:, :, None]
        to.s[:] = to.d * standing.sum(axis=2)
        to.s_half[:] = np.repeat(to.d, 2, axis=1) * standing.reshape(rows, 2 * groups, GROUP // 2).sum(axis=2)
    return to


def reference_matmul(x: F32, w: GroupedWeights, *, zeros: bool = False, fused: bool = True) -> F32:
    """`matmul_packed` for quantized weights in numpy, bit for bit. `fused` is false for the portable level."""
    quantized = reference_quantize(x, zeros=zeros)
    rows, (n, spans) = len(x), w.scales.shape
    span = w.codes.shape[1] // spans
    sums = quantized.s if span == GROUP else quantized.s_half
    acc = np.zeros((rows, n), np.float32)
    for i in range(spans):
        part = slice(i * span, (i + 1) * span)
        group = i * span // GROUP
        whole = quantized.q[:, part].astype(np.float64) + quantized.z[:, group, None]
        products = whole @ w.codes[:, part].T.astype(np.float64)  # exact
        d = quantized.d[:, group, None]
        acc = _fma(products.astype(np.float32) * w.scales[:, i], d, acc, fused)
        acc = _fma(w.minimums[:, i], sums[:, i, None], acc, fused)
    return acc


def reference_float_matmul(x: F32, w: F32, *, fused: bool = True) -> F32:
    """`matmul_packed` for float weights in numpy, bit for bit."""
    require("x", x, np.float32, None, None)
    require("w", w, np.float32, None, x.shape[1])
    acc = np.zeros((len(x), len(w)), np.float32)
    for i in range(x.shape[1]):
        acc = _fma(w[:, i], x[:, i, None], acc, fused)
    return acc


def reference_tile_matmul(x: F32, w: F32) -> F32:
    """`matmul_bf16` of tile units in numpy, bit for bit where no denormal turns up; x and w hold bf16 values."""
    require("x", x, np.float32, None, None)
    require("w", w, np.float32, None, x.shape[1])
    acc = np.zeros((len(x), len(w)), np.float32)
    for start in range(0, x.shape[1], GROUP):
        sums = np.zeros((2, *acc.shape), np.float32)
        for i in range(start, min(start + GROUP, x.shape[1])):
            sums[i % 2] = _fma(w[:, i], x[:, i, None], sums[i % 2], fused=True)
        acc = acc + (sums[0] + sums[1])
    return acc


def round_weights(w: GroupedWeights) -> F32:
    """The bf16 values, as float32 (n, k), that `matmul_bf16` takes weights for: code × scale + minimum rounded once to
    float32, then to nearest in bf16, halves away from zero."""
    span = w.codes.shape[1] // w.scales.shape[1]
    scales, minimums = (np.repeat(values, span, axis=1) for values in (w.scales, w.minimums))
    return (
        (_fma(w.codes.astype(np.float32), scales, minimums, fused=True).view(np.uint32) + 0x8000) & 0xFFFF0000
    ).view(np.float32)


def _fma(a: F32, b: F32, c: F32, fused: bool) -> F32:
    """a × b + c rounded once. Products of two float32 are exact in float64; their sum with c is rounded to odd there,
    which leaves the second rounding as good as a first."""
    if not fused:
        return a * b + c
    product, addend = a.astype(np.float64) * b, c.astype(np.float64)
    total = product + addend
    back = total - product
    lost = (product - (total - back)) + (addend - back)
    bits = total.view(np.int64)
    even = (lost != 0.0) & (bits & 1 == 0)
    bits += np.where(even, np.where((lost > 0.0) == (total > 0.0), 1, -1), 0)
    return total.astype(np.float32)


def _room_for(x: F32) -> QuantizedRows:
    rows, groups = len(x), -(-x.shape[1] // GROUP)
    return QuantizedRows(
        q=np.empty((rows, groups * GROUP), np.int8),
        d=np.empty((rows, groups), np.float32),
        z=np.zeros((rows, groups), np.int32),
        s=np.empty((rows, groups), np.float32),
        s_half=np.empty((rows, 2 * groups), np.float32),
    )
