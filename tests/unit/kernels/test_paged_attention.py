"""paged_attention at every level against float64, row invariance to the bit, and its bounds."""

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.engine import kernels
from taximeter.engine.kernels.contract import F32, I32


@dataclass
class Scene:
    """Sequences with keys and values in scattered blocks, and the rows that ask."""

    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 20
    block_size: int = 16
    lengths: tuple[int, ...] = (300, 77, 1)
    rows: tuple[tuple[int, int], ...] = ((0, 299), (1, 0), (1, 76), (2, 0))  # (sequence, position)
    window: int | None = None
    scale: float = 0.3
    placement: int = 0  # seed of where blocks lie
    keys: list[F32] = field(init=False)
    values: list[F32] = field(init=False)
    q: F32 = field(init=False)

    def __post_init__(self) -> None:
        noise = np.random.default_rng(7)
        shapes = [(length, self.kv_heads, self.head_dim) for length in self.lengths]
        self.keys = [noise.standard_normal(shape, dtype=np.float32) for shape in shapes]
        self.values = [noise.standard_normal(shape, dtype=np.float32) for shape in shapes]
        # A row's query depends on who asks, not on the row's place.
        self.q = np.stack(
            [
                np.random.default_rng([seq, position]).standard_normal((self.heads, self.head_dim), dtype=np.float32)
                for seq, position in self.rows
            ]
        )

    def arguments(self) -> dict[str, Any]:
        """Lay everything out in blocks. Whatever no row may see is NaN, and no block's number is one to follow."""
        per_sequence = [-(-length // self.block_size) for length in self.lengths]
        blocks = sum(per_sequence) + 3
        ids = iter(np.random.default_rng(self.placement).permutation(blocks).astype(np.int32))
        cache_shape = (blocks, self.kv_heads, self.block_size, self.head_dim)
        k_cache, v_cache = np.full(cache_shape, np.nan, np.float32), np.full(cache_shape, np.nan, np.float32)
        tables = np.full((len(self.lengths), max(per_sequence) + 2), -1, np.int32)
        for seq, count in enumerate(per_sequence):
            asked = [position for s, position in self.rows if s == seq]
            for i in range(count):
                block = tables[seq, i] = next(ids)
                for j in range(i * self.block_size, min((i + 1) * self.block_size, max(asked, default=-1) + 1)):
                    k_cache[block, :, j % self.block_size] = self.keys[seq][j]
                    v_cache[block, :, j % self.block_size] = self.values[seq][j]
        return {
            "q": self.q,
            "k_cache": k_cache,
            "v_cache": v_cache,
            "block_tables": tables,
            "row_seq": np.array([seq for seq, _ in self.rows], np.int32),
            "row_pos": np.array([position for _, position in self.rows], np.int32),
            "scale": self.scale,
            "window": self.window,
        }

    def run(self) -> F32:
        return kernels.paged_attention(**self.arguments())

    def only(self, rows: list[int]) -> Self:
        return replace(self, rows=tuple(self.rows[r] for r in rows))

    def expected(self) -> tuple[npt.NDArray[np.float64], float]:
        """The definition in float64, and the error that float32 may make: that of a score, times the values' size."""
        group, out = self.heads // self.kv_heads, np.empty(self.q.shape)
        largest_score = largest_value = 0.0
        for r, (seq, position) in enumerate(self.rows):
            first = 0 if self.window is None else max(0, position - self.window + 1)
            for h in range(self.heads):
                k = self.keys[seq][first : position + 1, h // group].astype(np.float64)
                v = self.values[seq][first : position + 1, h // group].astype(np.float64)
                scores = k @ self.q[r, h].astype(np.float64) * self.scale
                weights = np.exp(scores - scores.max())
                out[r, h] = weights @ v / weights.sum()
                largest_score = max(largest_score, np.abs(scores).max())
                largest_value = max(largest_value, np.abs(v).max())
        return out, 2.0**-24 * (8.0 * np.sqrt(self.head_dim) * largest_score + 32.0) * largest_value


def assert_close_at_every_level(scene: Scene) -> None:
    expected, allowed = scene.expected()
    for name in kernels.levels():
        with kernels.use_level(name):
            got = scene.run()
        assert got.dtype == np.float32, name
        assert np.abs(got - expected).max() <= allowed, name


@pytest.mark.parametrize("window", [None, 1, 16, 63, 64, 65, 128, 1000])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_size"),
    [(9, 3, 64, 16), (4, 1, 256, 16), (6, 2, 20, 5), (1, 1, 1, 1), (50, 1, 33, 16), (2, 2, 128, 256)],
)
def test_agrees_with_float64(heads: int, kv_heads: int, head_dim: int, block_size: int, window: int | None) -> None:
    """Any grouping of heads, any head and block size, around every edge of blocks, chunks and windows."""
    edges = (0, 1, 15, 16, 62, 63, 64, 65, 126, 127, 128, 129, 255, 256, 299)
    scene = Scene(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        rows=(*((0, p) for p in edges), *((1, p) for p in range(30, 77)), (2, 0)),
        window=window,
    )
    assert_close_at_every_level(scene)


def test_one_token_of_context_is_its_own_value(level: str) -> None:
    """With nothing else to see, a row gets exactly its own value."""
    scene = Scene(heads=2, kv_heads=2, rows=((2, 0),))
    np.testing.assert_array_equal(scene.run()[0], scene.values[2][0])


@pytest.mark.parametrize("factor", [1e3, 1e-41])
def test_unfriendly_values(factor: float) -> None:
    """Scores so far apart that one key takes all, and denormal keys that leave all of them equal."""
    scene = Scene(rows=tuple((0, p) for p in range(180, 220)))
    scene.keys[0] *= np.float32(factor)
    assert_close_at_every_level(scene)


def test_a_masked_outlier_changes_nothing(level: str) -> None:
    """A key that a row may not see leaves it alone, however large: a later one, and one that left the window."""
    scene = Scene(rows=((0, 150), (0, 299)), window=64)
    before = scene.run()
    for hidden in (151, 40):
        scene.keys[0][hidden], scene.values[0][hidden] = 1e6, 1e6
    np.testing.assert_array_equal(scene.run(), before)


LONG = Scene(rows=(*((0, p) for p in range(300)), *((1, p) for p in range(77)), (2, 0)))


@pytest.mark.parametrize("name", kernels.levels())
@settings(deadline=None, max_examples=40)
@given(
    window=st.sampled_from([None, 1, 60, 64, 100]),
    block_size=st.sampled_from([1, 16, 23]),
    placement=st.integers(1, 1000),
    data=st.data(),
)
def test_a_row_never_depends_on_its_mates(
    name: str, window: int | None, block_size: int, placement: int, data: st.DataObject
) -> None:
    """A row gives the same bits alone, in any company, in any chunk of its prompt, with its blocks anywhere."""
    begin = data.draw(st.integers(0, len(LONG.rows) - 1))
    run = list(range(begin, min(begin + data.draw(st.integers(1, 70)), len(LONG.rows))))
    strays = data.draw(st.lists(st.integers(0, len(LONG.rows) - 1), max_size=10))
    rows = data.draw(st.sampled_from([run + strays, strays + run, run]))
    scene = replace(LONG.only(rows), window=window)
    with kernels.use_level(name):
        together = replace(scene, block_size=block_size, placement=placement).run()
        for place in {0, len(rows) // 2, len(rows) - 1}:
            np.testing.assert_array_equal(scene.only([place]).run()[0], together[place])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_do_not_change_the_result(level: str, threads: int) -> None:
    """The number of threads decides who computes, never what."""
    expected, before = LONG.run(), kernels.threads()
    try:
        kernels.set_threads(threads)
        np.testing.assert_array_equal(LONG.run(), expected)
    finally:
        kernels.set_threads(before)


def test_no_rows(level: str) -> None:
    """A call without rows is answered without rows."""
    arguments = Scene().arguments()
    for name in ("q", "row_seq", "row_pos"):
        arguments[name] = arguments[name][:0]
    assert kernels.paged_attention(**arguments).shape == (0, 6, 20)


def changed(array: I32, index: tuple[int, ...], value: int) -> I32:
    copy = array.copy()
    copy[index] = value
    return copy


@pytest.mark.parametrize(
    ("name", "spoil", "complaint"),
    [
        ("block_tables", lambda a: changed(a, (0, 18), -1), "outside the cache"),
        ("block_tables", lambda a: changed(a, (1, 0), 10_000), "outside the cache"),
        ("row_seq", lambda a: changed(a, (0,), 3), "outside the 3"),
        ("row_seq", lambda a: changed(a, (3,), -1), "outside the 3"),
        ("row_pos", lambda a: changed(a, (0,), 10_000), "row_pos"),
        ("row_pos", lambda a: changed(a, (0,), -1), "row_pos"),
        ("row_pos", lambda a: a[:-1].copy(), "row_pos"),
        ("row_pos", lambda a: a.astype(np.int64), "row_pos"),
        ("block_tables", lambda a: a.astype(np.int64), "block_tables"),
        ("block_tables", np.asfortranarray, "contiguous"),
        ("q", lambda a: a.astype(np.float64), "q"),
        ("q", lambda a: a[:, :5].copy(), "evenly"),
        ("q", lambda a: a[:, ::2], "contiguous"),
        ("k_cache", lambda a: a[..., :19].copy(), "k_cache"),
        ("v_cache", lambda a: a[:-1], "v_cache"),
        ("v_cache", lambda a: a.swapaxes(1, 2).copy().swapaxes(1, 2), "contiguous"),
        ("window", lambda _: 0, "window"),
    ],
)
def test_wrong_arguments_are_refused(level: str, name: str, spoil: Any, complaint: str) -> None:
    """An index that leads outside, a wrong dtype, shape or layout is a ValueError, never a read of foreign memory."""
    arguments = Scene().arguments()
    arguments[name] = spoil(arguments[name])
    with pytest.raises(ValueError, match=complaint):
        kernels.paged_attention(**arguments)
