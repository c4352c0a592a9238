"""Paged attention by the reference and every native level, in every cache format: close to float64, the same bits in
any company, and its bounds."""

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.engine import kernels
from taximeter.engine.kernels.contract import F32, I32

NATIVE = [name.removeprefix("native:") for name in kernels.levels()[1:]]
if NATIVE:
    from taximeter.engine.kernels import attention_packed as packed

FORMATS = ("f32", "bf16", "int8")
# Who computes: a native level on a cache format, or the reference.
PATHS = [("reference", "f32"), *((level, cache_format) for level in NATIVE for cache_format in FORMATS)]
NATIVE_PATHS = PATHS[1:]


def rounded(x: F32) -> F32:
    return packed.widen_bf16(packed.round_bf16(x))


def kept(x: F32, cache_format: str) -> F32:
    """What a cache gives back of vectors that were put into it."""
    match cache_format:
        case "bf16":
            return rounded(x)
        case "int8":
            return packed.widen_int8(*packed.round_int8(x))
        case _:
            return x


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
        """Lay everything out in blocks. What comes after the rows is NaN, and where no row may look, also before their
        windows, there is no block's number to follow."""
        per_sequence = [-(-length // self.block_size) for length in self.lengths]
        blocks = sum(per_sequence) + 3
        ids = iter(np.random.default_rng(self.placement).permutation(blocks).astype(np.int32))
        cache_shape = (blocks, self.kv_heads, self.block_size, self.head_dim)
        k_cache, v_cache = np.full(cache_shape, np.nan, np.float32), np.full(cache_shape, np.nan, np.float32)
        tables = np.full((len(self.lengths), max(per_sequence) + 2), -1, np.int32)
        for seq, count in enumerate(per_sequence):
            asked = [position for s, position in self.rows if s == seq]
            seen_from = 0 if self.window is None else max(0, min(asked, default=0) - self.window + 1)
            for i in range(seen_from // self.block_size, count):
                block = tables[seq, i] = next(ids)
                begin = i * self.block_size
                end = max(begin, min(begin + self.block_size, max(asked, default=-1) + 1))
                k_cache[block, :, : end - begin] = self.keys[seq][begin:end].swapaxes(0, 1)
                v_cache[block, :, : end - begin] = self.values[seq][begin:end].swapaxes(0, 1)
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

    def run(self, path: tuple[str, str]) -> F32:
        return attend(self.arguments(), path)

    def only(self, rows: list[int]) -> Self:
        return replace(self, rows=tuple(self.rows[r] for r in rows))

    def expected(self, cache_format: str, multiplies_bf16: bool) -> tuple[npt.NDArray[np.float64], float]:
        """The definition in float64, and the error that may be made: that of a score, times the values' size, and in
        levels that multiply bf16 that of a weight."""
        group, out = self.heads // self.kv_heads, np.empty(self.q.shape)
        keys, values = ([kept(x, cache_format).astype(np.float64) for x in each] for each in (self.keys, self.values))
        queries = self.q * np.float32(self.scale * np.log2(np.e))
        queries = (rounded(queries) if multiplies_bf16 else queries).astype(np.float64)
        largest_score = largest_value = 0.0
        for r, (seq, position) in enumerate(self.rows):
            first = 0 if self.window is None else max(0, position - self.window + 1)
            for h in range(self.heads):
                k, v = (each[seq][first : position + 1, h // group] for each in (keys, values))
                scores = k @ queries[r, h]
                weights = np.exp2(scores - scores.max())
                out[r, h] = weights @ v / weights.sum()
                largest_score = max(largest_score, np.abs(scores).max())
                largest_value = max(largest_value, np.abs(v).max())
        allowed = 2.0**-24 * (8.0 * np.sqrt(self.head_dim) * largest_score + 32.0) + 2.0**-8 * multiplies_bf16
        return out, allowed * largest_value


def attend(arguments: dict[str, Any], path: tuple[str, str]) -> F32:
    """The same arguments for everybody; native code gets its own layout of the same cache."""
    level, cache_format = path
    if level == "reference":
        return kernels.paged_attention(**arguments)
    rest = {name: value for name, value in arguments.items() if name not in ("k_cache", "v_cache")}
    blocks = packed.pack(arguments["k_cache"], arguments["v_cache"], cache_format)
    return packed.paged_attention(cache=blocks, level=level, **rest)


def assert_close(scene: Scene, paths: list[tuple[str, str]]) -> None:
    expectation = cache(scene.expected)
    for path in paths:
        level, cache_format = path
        expected, allowed = expectation(cache_format, cache_format != "f32" and level in ("avx512_bf16", "amx"))
        got = scene.run(path)
        assert got.dtype == np.float32, path
        assert np.abs(got - expected).max() <= allowed, path


@pytest.fixture(params=PATHS, ids=" ".join)
def path(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


EDGES = (0, 1, 15, 16, 62, 63, 64, 65, 126, 127, 128, 129, 255, 256, 299)


@pytest.mark.parametrize("window", [None, 1, 16, 63, 64, 65, 128, 1000])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_size"),
    [(9, 3, 64, 16), (4, 1, 256, 32), (6, 2, 20, 16), (50, 1, 34, 48), (2, 2, 128, 256), (3, 3, 2, 16)],
)
def test_agrees_with_float64(heads: int, kv_heads: int, head_dim: int, block_size: int, window: int | None) -> None:
    """Any grouping of heads, any head and block size, around every edge of blocks, chunks and windows."""
    scene = Scene(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        rows=(*((0, p) for p in EDGES), *((1, p) for p in range(30, 77)), (2, 0)),
        window=window,
    )
    assert_close(scene, PATHS)


@pytest.mark.parametrize(("head_dim", "block_size"), [(1, 1), (33, 5), (256, 16)])
def test_the_reference_takes_any_block_and_head_size(head_dim: int, block_size: int) -> None:
    """No layout limits it."""
    scene = Scene(head_dim=head_dim, block_size=block_size, rows=tuple((0, p) for p in EDGES))
    assert_close(scene, [("reference", "f32")])


@pytest.mark.parametrize("head_dim", [1, 3, 33])
def test_odd_heads_in_float32(head_dim: int) -> None:
    """Only bf16 needs pairs of features."""
    scene = Scene(head_dim=head_dim, rows=tuple((0, p) for p in EDGES))
    assert_close(scene, [(level, "f32") for level in NATIVE])


@pytest.mark.parametrize("window", [None, 600])
def test_agrees_with_float64_over_several_spans(window: int | None) -> None:
    """Around the edges of spans, whose states are merged."""
    edges = (511, 512, 513, 600, 1023, 1024, 1025, 1500, 1535, 1536)
    scene = Scene(lengths=(1600,), rows=tuple((0, p) for p in edges), block_size=32, window=window)
    assert_close(scene, PATHS)


def test_one_token_of_context_is_its_own_value(path: tuple[str, str]) -> None:
    """With nothing else to see, a row gets exactly its own value; where its scale is rounded, nearly."""
    scene = Scene(heads=2, kv_heads=2, rows=((2, 0),))
    value, got = kept(scene.values[2][0], path[1]), scene.run(path)[0]
    if path in (("avx512_bf16", "int8"), ("amx", "int8")):
        np.testing.assert_allclose(got, value, rtol=2**-8)
    else:
        np.testing.assert_array_equal(got, value)


@pytest.mark.parametrize("factor", [1e3, 1e-41])
def test_unfriendly_values(factor: float) -> None:
    """Scores so far apart that one key takes all, and denormal keys that leave all of them equal."""
    scene = Scene(rows=tuple((0, p) for p in range(180, 220)))
    scene.keys[0] *= np.float32(factor)
    assert_close(scene, PATHS)


@pytest.mark.parametrize("window", [64, 65])
def test_a_masked_outlier_changes_nothing(path: tuple[str, str], window: int) -> None:
    """A key that a row may not see leaves it alone, however large: a later one, and one that left the window."""
    scene = Scene(rows=((0, 150), (0, 299)), window=window)
    before = scene.run(path)
    for hidden in (151, 40):
        scene.keys[0][hidden], scene.values[0][hidden] = 1e6, 1e6
    np.testing.assert_array_equal(scene.run(path), before)


LONG = Scene(lengths=(700, 77, 1), rows=(*((0, p) for p in range(700)), *((1, p) for p in range(77)), (2, 0)))


def assert_alone_as_together(path: tuple[str, str], block_sizes: tuple[int, ...], data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(LONG.rows) - 1))
    run = list(range(begin, min(begin + data.draw(st.integers(1, 70)), len(LONG.rows))))
    strays = data.draw(st.lists(st.integers(0, len(LONG.rows) - 1), max_size=10))
    rows = data.draw(st.sampled_from([run + strays, strays + run, run]))
    scene = replace(LONG.only(rows), window=data.draw(st.sampled_from([None, 1, 60, 64, 100, 530])))
    block_size, placement = data.draw(st.sampled_from(block_sizes)), data.draw(st.integers(1, 1000))
    together = replace(scene, block_size=block_size, placement=placement).run(path)
    for place in {0, len(rows) // 2, len(rows) - 1}:
        assert scene.only([place]).run(path).tobytes() == together[place].tobytes()


@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_a_row_of_the_reference_never_depends_on_its_mates(data: st.DataObject) -> None:
    """A row gives the same bits alone, in any company, in any chunk of its prompt, with its blocks anywhere."""
    assert_alone_as_together(("reference", "f32"), (1, 16, 23), data)


@pytest.mark.parametrize("native_path", NATIVE_PATHS, ids=" ".join)
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_a_row_never_depends_on_its_mates(native_path: tuple[str, str], data: st.DataObject) -> None:
    """The same for native code, also where heads fill whole tiles of a matrix unit."""
    assert_alone_as_together(native_path, (16, 32, 48, 64), data)


@pytest.mark.parametrize("native_path", NATIVE_PATHS, ids=" ".join)
@pytest.mark.parametrize("heads_and_dim", [(9, 3, 64), (4, 1, 32)])
def test_a_prompt_in_one_piece_is_a_prompt_in_many(
    native_path: tuple[str, str], heads_and_dim: tuple[int, ...]
) -> None:
    """Whole, in chunks, and token by token: the same bits, in the shapes of real heads."""
    heads, kv_heads, head_dim = heads_and_dim
    whole = Scene(
        heads=heads, kv_heads=kv_heads, head_dim=head_dim, lengths=(600,), rows=tuple((0, p) for p in range(600))
    )
    expected = whole.run(native_path)
    for size in (7, 100):
        for begin in range(0, 600, size * 5):
            rows = list(range(begin, min(begin + size, 600)))
            assert whole.only(rows).run(native_path).tobytes() == expected[rows].tobytes()
    for row in (0, 31, 32, 127, 128, 511, 512, 599):
        assert whole.only([row]).run(native_path).tobytes() == expected[[row]].tobytes()


@pytest.mark.parametrize("threads", [1, 2, 5, 16])
@pytest.mark.parametrize("native_path", NATIVE_PATHS, ids=" ".join)
def test_threads_do_not_change_the_result(native_path: tuple[str, str], threads: int) -> None:
    """The number of threads decides who computes and where the work is cut, along keys and heads too, never what."""
    few_heads = Scene(heads=5, kv_heads=1, head_dim=64)  # threads share the query heads of one kv head
    scenes = (LONG, LONG.only([699]), LONG.only([699, 701]), few_heads.only([0]), few_heads.only([0, 2]))
    expected, before = [scene.run(native_path) for scene in scenes], kernels.threads()
    try:
        kernels.set_threads(threads)
        for scene, result in zip(scenes, expected, strict=True):
            assert scene.run(native_path).tobytes() == result.tobytes()
    finally:
        kernels.set_threads(before)


def test_no_rows(path: tuple[str, str]) -> None:
    """A call without rows is answered without rows."""
    arguments = Scene().arguments()
    for name in ("q", "row_seq", "row_pos"):
        arguments[name] = arguments[name][:0]
    assert attend(arguments, path).shape == (0, 6, 20)


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
def test_the_reference_refuses_wrong_arguments(name: str, spoil: Any, complaint: str) -> None:
    """An index that leads outside, a wrong dtype, shape or layout is a ValueError, never a read of foreign memory."""
    arguments = Scene().arguments()
    arguments[name] = spoil(arguments[name])
    with pytest.raises(ValueError, match=complaint):
        kernels.paged_attention(**arguments)


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
        ("q", lambda a: a[:, :0].copy(), "evenly"),
        ("q", lambda a: a[:, ::2], "contiguous"),
        ("q", lambda a: a[..., :19].copy(), "q"),
        ("cache", lambda a: a[:, :0].copy(), "evenly"),
        ("cache", lambda a: a[:, :, :1].copy(), "cache"),
        ("cache", lambda a: a[:, :, :, :15].copy(), "multiple of 16"),
        ("cache", lambda a: a[..., :0].copy(), "size"),
        ("cache", lambda a: np.zeros((*a.shape[:4], 262), a.dtype), "size"),
        ("cache", lambda a: a.astype(np.float64), "cache"),
        ("cache", lambda a: a.swapaxes(3, 4).copy().swapaxes(3, 4), "contiguous"),
        ("window", lambda _: 0, "window"),
        ("level", lambda _: "avx1024", "level"),
    ],
)
@pytest.mark.parametrize("cache_format", FORMATS if NATIVE else ())
def test_wrong_arguments_are_refused(cache_format: Any, name: str, spoil: Any, complaint: str) -> None:
    """The binding stands between Python and the kernel, whatever the format."""
    arguments = Scene().arguments()
    arguments["cache"] = packed.pack(arguments.pop("k_cache"), arguments.pop("v_cache"), cache_format)
    arguments["level"] = NATIVE[0]
    arguments[name] = spoil(arguments[name])
    with pytest.raises(ValueError, match=complaint):
        packed.paged_attention(**arguments)


@pytest.mark.parametrize("cache", [np.zeros((1, 1, 2, 16, 3), np.uint16), np.zeros((1, 1, 2, 16, 7), np.int8)])
def test_pairs_need_even_heads(cache: Any) -> None:
    """Half a pair is nothing that could be stored."""
    if NATIVE:
        with pytest.raises(ValueError, match="even"):
            packed.kv_put(
                np.zeros((0, 1, 3), np.float32),
                np.zeros((0, 1, 3), np.float32),
                cache,
                np.zeros(0, np.int64),
                NATIVE[0],
            )


@pytest.mark.parametrize("native_path", NATIVE_PATHS, ids=" ".join)
def test_kv_put_lays_out_and_rounds_as_numpy_does(native_path: tuple[str, Any]) -> None:
    """Each row lands in its slot and touches no other; ties, denormals, infinities and not-a-number too."""
    level, cache_format = native_path
    noise = np.random.default_rng(3)
    keys, values = (noise.standard_normal((4, 3, 32, 38), dtype=np.float32) for _ in range(2))
    special = np.array(
        [0x3F808000, 0x3F818000, 0x7F800000, 0x7F800001, 0xFFC00000, 0x7F7FFFFF, 1, 0x80008000], np.uint32
    )
    keys[1, 2, 5, :8] = values[1, 2, 5, :8] = special.view(np.float32)
    keys[1, 1, 5], values[1, 1, 5] = 1e-35, 0.0
    keys_before, values_before = noise.standard_normal(keys.shape, dtype=np.float32), np.zeros_like(values)
    written = noise.permutation(4 * 32)[:50]
    written[:1] = 32 + 5  # the special values, wherever the draw fell
    written = np.unique(written)
    block, offset = np.divmod(written, 32)
    cache = packed.pack(keys_before, values_before, cache_format)
    packed.kv_put(keys[block, :, offset].copy(), values[block, :, offset].copy(), cache, written, level)
    keys_before[block, :, offset], values_before[block, :, offset] = keys[block, :, offset], values[block, :, offset]
    expected = packed.pack(keys_before, values_before, cache_format)
    np.testing.assert_array_equal(cache.view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("level", NATIVE)
def test_a_vector_that_is_not_finite_spoils_only_who_sees_it(level: str) -> None:
    """int8 has no infinity: what was one is not-a-number to the rows from its position on, and to no row before."""
    scene = Scene(rows=tuple((0, p) for p in range(20, 60)))
    before = scene.run((level, "int8"))
    scene.keys[0][40, 0, 3] = np.inf
    after = scene.run((level, "int8"))
    np.testing.assert_array_equal(after[:20], before[:20])
    assert np.isnan(after[20:, :3]).all()
    np.testing.assert_array_equal(after[20:, 3:], before[20:, 3:])


@pytest.mark.parametrize("slot", [-1, 64])
@pytest.mark.parametrize("level", NATIVE)
def test_kv_put_refuses_a_slot_outside_the_cache(level: str, slot: int) -> None:
    """Nothing is written, not even the rows before the wrong one."""
    cache, row = np.zeros((4, 2, 2, 16, 6), np.float32), np.ones((2, 2, 6), np.float32)
    with pytest.raises(ValueError, match="slot"):
        packed.kv_put(row, row, cache, np.array([0, slot]), level)
    assert not cache.any()
