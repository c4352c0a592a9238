"""`matmul`: the product of a batch of rows with a weight matrix.

Tolerance against float64: a reduction of k terms, about sqrt(k) × 2⁻²⁴ of the product of the norms.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from taximeter.engine.kernels.contract import F32, require

# Rows of a tile, the one that others must agree with first: the largest is faster for a long prompt, and a BLAS with
# kernels for AVX-512 may have nothing but the smallest.
_SIZES = (16, 8, 128)


def matmul(x: F32, w: F32) -> F32:
    """x @ w.T: (rows, k) × (n, k) → a new array (rows, n), row-invariant although a BLAS product need not be.

    Every product has one of a few fixed numbers of rows (the last tile is padded with zeros), and `_tiles` has seen
    that for this weight shape each place in each of these tiles gives the same bits. Where no tile does, rows are
    computed one by one.
    """
    require("x", x, np.float32, None, None)
    rows, k = x.shape
    require("w", w, np.float32, None, k)
    out = np.empty((rows, len(w)), np.float32)
    tiles = _tiles(*w.shape)
    # BLAS takes another path when both factors are one array, so the tile is always a copy.
    buffer = np.zeros((tiles[0], k), np.float32)
    start = 0
    while start < rows:
        size = next((tile for tile in tiles if tile <= rows - start), tiles[-1])
        end = min(start + size, rows)
        tile = buffer[:size]
        tile[: end - start] = x[start:end]
        tile[end - start :] = 0.0
        out[start:end] = np.matmul(tile, w.T)[: end - start]
        start = end
    return out


@cache
def _tiles(n: int, k: int) -> tuple[int, ...]:
    """Numbers of rows, large to small, whose products with an (n, k) matrix agree bit for bit at every place."""
    noise = np.random.default_rng(n * 31 + k)
    # A short prime period keeps the probe cheap for a large matrix without making any two of its columns alike.
    w = np.resize(noise.standard_normal(4099, dtype=np.float32), (n, k))
    row = noise.standard_normal(k, dtype=np.float32)
    products = {size: np.matmul(np.tile(row, (size, 1)), w.T) for size in _SIZES}
    alike = [product[0] for product in products.values() if (product == product[0]).all()]
    if not alike:
        return (1,)
    return tuple(size for size in sorted(products, reverse=True) if (products[size] == alike[0]).all())
