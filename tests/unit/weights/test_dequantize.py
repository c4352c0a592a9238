"""Block types: the same bits as GGML's own package, for every block there can be."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.engine.weights.dequantize import GGML_TYPES, TensorType, dequantize

HALF_AT = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}
HOSTILE_HALVES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFFFF, 0x3C00]
every_type = pytest.mark.parametrize("code", sorted(GGML_TYPES), ids=lambda code: GGML_TYPES[code].name)


def by_the_gguf_package(code: int, raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(raw.reshape(1, -1), gguf.GGMLQuantizationType(code)).reshape(-1)


def assert_same_bits(ours: npt.NDArray[np.float32], theirs: npt.NDArray[np.float32]) -> None:
    """Equal bit by bit, signs of zero included; of what is not a number only that it is none."""
    assert ours.dtype == theirs.dtype == np.float32
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
    known = ~np.isnan(ours)
    np.testing.assert_array_equal(ours[known].view(np.uint32), theirs[known].view(np.uint32))


def random_blocks(kind: TensorType, count: int, seed: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, count * kind.block_bytes, dtype=np.uint8)


@every_type
def test_random_blocks_come_out_as_the_gguf_package_has_them(code: int) -> None:
    """Enough blocks to cross the borders of the chunks they are worked in, the last one ragged."""
    kind = GGML_TYPES[code]
    raw = random_blocks(kind, 70_001 // kind.block_weights, seed=code)
    ours = dequantize(kind, raw)
    assert ours.shape == (raw.size // kind.block_bytes * kind.block_weights,)
    assert ours.flags.c_contiguous
    assert_same_bits(ours, by_the_gguf_package(code, raw))


@every_type
def test_hostile_scales_come_out_as_the_gguf_package_has_them(code: int) -> None:
    """Zeros of both signs, denormals, the largest half, infinities and not-a-numbers, in every scale."""
    kind = GGML_TYPES[code]
    places = HALF_AT.get(kind.name, [0])
    halves = np.array(HOSTILE_HALVES, dtype="<u2")
    blocks = random_blocks(kind, halves.size ** len(places), seed=100 + code).reshape(-1, kind.block_bytes)
    for turn, place in enumerate(places):
        chosen = halves[np.arange(len(blocks)) // halves.size**turn % halves.size]
        blocks[:, place : place + 2] = chosen.view(np.uint8).reshape(-1, 2)
    assert_same_bits(dequantize(kind, blocks.reshape(-1)), by_the_gguf_package(code, blocks.reshape(-1)))


@every_type
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_block_comes_out_as_the_gguf_package_has_it(code: int, data: st.DataObject) -> None:
    """Whatever bytes hypothesis thinks of."""
    kind = GGML_TYPES[code]
    raw = np.frombuffer(data.draw(st.binary(min_size=kind.block_bytes, max_size=kind.block_bytes)), dtype=np.uint8)
    assert_same_bits(dequantize(kind, raw), by_the_gguf_package(code, raw))


def test_q4_0_of_a_ramp() -> None:
    """The ramp -16 .. 15 is quantized to these bytes, and these bytes are these weights: steps of two."""
    raw = bytes.fromhex("0040 8091 91a2 a2b3 b3c4 c4d5 d5e6 e6f7 f7f8")
    ramp = np.arange(-16, 16, dtype=np.float32).reshape(1, 32)
    assert gguf.quants.quantize(ramp, gguf.GGMLQuantizationType.Q4_0).tobytes() == raw
    weights = dequantize(GGML_TYPES[2], np.frombuffer(raw, dtype=np.uint8))
    expected = [-16.0] + [float(even) for even in range(-14, 16, 2) for _ in range(2)] + [14.0]
    assert weights.tolist() == expected


def test_q4_k_of_one_block() -> None:
    """d = 1, dmin = 0.5, scales 1 and 33, mins 2 and 2: 1 x 3 - 0.5 x 2 = 2 and 1 x 5 - 0.5 x 2 = 4, by turns."""
    raw = np.float16([1, 0.5]).tobytes() + b"\x01" * 4 + b"\x02" * 4 + b"\x21" * 4 + b"\x53" * 128
    weights = dequantize(GGML_TYPES[12], np.frombuffer(raw, dtype=np.uint8))
    assert weights.tolist() == ([2.0] * 32 + [4.0] * 32) * 4


def test_a_part_of_a_block_is_refused() -> None:
    """Bytes that are no whole number of blocks are a caller's mistake, not weights."""
    with pytest.raises(ValueError, match="reshape"):
        dequantize(GGML_TYPES[8], np.zeros(35, dtype=np.uint8))
