"""matmul at every level against float64, and row invariance to the bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.engine import kernels
from taximeter.engine.kernels.contract import F32


def normal(*shape: int, seed: int = 0) -> F32:
    return np.random.default_rng([seed, *shape]).standard_normal(shape, dtype=np.float32)


def assert_close(x: F32, w: F32, y: F32) -> None:
    """The error of a sum of k products grows with sqrt(k) and with the sum of their sizes, not with the result's."""
    wide_x, wide_w = x.astype(np.float64), w.astype(np.float64)
    sizes = np.abs(wide_x) @ np.abs(wide_w).T
    k = x.shape[1]
    allowed = (2.0 * np.sqrt(k) + 4.0) * 2.0**-24 * sizes + k * 2.0**-126
    assert y.dtype == np.float32
    assert y.flags.c_contiguous
    assert (np.abs(y - wide_x @ wide_w.T) <= allowed).all()


# One of everything; fewer values than a vector; around one vector, one tile, one part of k; the shapes of small models.
HOSTILE = [
    (1, 1, 1),
    (1, 3, 2),
    (2, 15, 5),
    (3, 16, 4),
    (5, 17, 3),
    (6, 31, 33),
    (7, 64, 31),
    (13, 100, 129),
    (1, 1023, 7),
    (2, 1024, 9),
    (9, 1025, 130),
    (97, 33, 257),
    (130, 576, 192),
    (1, 2049, 640),
]


@pytest.mark.parametrize(("rows", "k", "n"), HOSTILE)
def test_agrees_with_float64(level: str, rows: int, k: int, n: int) -> None:
    """Every shape, however ragged, is within the rounding error of a float32 sum."""
    x, w = normal(rows, k), normal(n, k, seed=1)
    assert_close(x, w, kernels.matmul(x, w))


@pytest.mark.parametrize("spoiled", ["outliers", "denormals", "cancellation", "large"])
def test_agrees_with_float64_on_unfriendly_values(level: str, spoiled: str) -> None:
    """Outliers, denormals, huge values and sums that cancel stay within the same bound."""
    x, w = normal(8, 345), normal(70, 345, seed=1)
    match spoiled:
        case "outliers":
            x[:, ::50] *= 3e4
        case "denormals":
            x *= np.float32(1e-41)
        case "large":
            x *= np.float32(1e30)
            w *= np.float32(1e5)
        case _:
            x[:, 172:344], w[:, 172:344] = x[:, :172], -w[:, :172]
    assert_close(x, w, kernels.matmul(x, w))


def test_no_rows_and_no_depth(level: str) -> None:
    """No rows give no rows; sums of nothing are zero."""
    assert kernels.matmul(normal(0, 8), normal(5, 8)).shape == (0, 5)
    assert not kernels.matmul(normal(3, 0), normal(5, 0)).any()
    assert kernels.matmul(normal(3, 8), normal(0, 8)).shape == (3, 0)


def test_one_array_on_both_sides(level: str) -> None:
    """The product of a matrix with itself follows the same order of summation as any other."""
    x = normal(16, 40)
    np.testing.assert_array_equal(kernels.matmul(x, x), kernels.matmul(x, x.copy()))


def test_weights_may_be_read_only(level: str) -> None:
    """Weights that lie in a mapped file are not written to, nor copied to be read."""
    x, w = normal(3, 20), normal(7, 20)
    expected = kernels.matmul(x, w)
    w.flags.writeable = False
    np.testing.assert_array_equal(kernels.matmul(x, w), expected)


@pytest.mark.parametrize("name", kernels.levels())
@settings(deadline=None, max_examples=40)
@given(
    k=st.sampled_from([1, 7, 16, 33, 64, 576, 1100]),
    n=st.sampled_from([1, 3, 4, 30, 64, 133]),
    rows=st.integers(1, 40),
    data=st.data(),
)
def test_a_row_never_depends_on_its_mates(name: str, k: int, n: int, rows: int, data: st.DataObject) -> None:
    """A row gives the same bits alone, in any company, at any place, and however the call is cut."""
    x, w = normal(rows, k), normal(n, k, seed=1)
    order = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=150))
    with kernels.use_level(name):
        alone = np.concatenate([kernels.matmul(x[r : r + 1], w) for r in range(rows)])
        np.testing.assert_array_equal(kernels.matmul(x, w), alone)
        np.testing.assert_array_equal(kernels.matmul(x[order], w), alone[order])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_do_not_change_the_result(level: str, threads: int) -> None:
    """The number of threads decides who computes, never what."""
    x, w = normal(70, 300), normal(500, 300, seed=1)
    expected, before = kernels.matmul(x, w), kernels.threads()
    try:
        kernels.set_threads(threads)
        np.testing.assert_array_equal(kernels.matmul(x, w), expected)
    finally:
        kernels.set_threads(before)


@pytest.mark.parametrize(
    ("x", "w", "complaint"),
    [
        (normal(2, 4).astype(np.float64), normal(3, 4), "x"),
        (normal(2, 4), normal(3, 4).astype(np.float16), "w"),
        (normal(2, 4), normal(3, 5), "w"),
        (normal(8), normal(3, 8), "x"),
        (normal(2, 8)[:, ::2], normal(3, 4), "contiguous"),
        (normal(2, 4), normal(4, 3).T, "contiguous"),
    ],
)
def test_wrong_arrays_are_refused(level: str, x: F32, w: F32, complaint: str) -> None:
    """A wrong dtype, shape or layout is a ValueError that names it, never a copy behind the caller's back."""
    with pytest.raises(ValueError, match=complaint):
        kernels.matmul(x, w)
