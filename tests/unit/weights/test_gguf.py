"""The GGUF container: sound files are read, hostile ones get a clear error and cost nothing."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from taximeter.engine.weights import open_checkpoint
from taximeter.engine.weights.gguf import GGUFFile
from taximeter.errors import ModelFileError
from tests.unit.weights.small_gguf import (
    ARRAY,
    BOOL,
    STRING,
    UINT32,
    UINT64,
    container,
    gemma_metadata,
    key,
    small_gemma_weights,
    small_model,
    string,
    tensor,
    typed,
    u32,
    u64,
)

F32, Q8_0 = 0, 8
HUGE = 2**64 - 1

Write = Callable[[bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(content: bytes) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        return path

    return write


def test_metadata_and_tensors_come_back_as_written_by_the_gguf_package(tmp_path: Path) -> None:
    """Every scalar type, arrays, an alignment of its own, and bytes of tensors of several types."""
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "test")
    writer.add_custom_alignment(64)
    numbers = {"uint8": 200, "int8": -3, "uint16": 60_000, "int16": -30_000, "uint32": 2**32 - 1, "int32": -(2**31)}
    for kind, value in (numbers | {"uint64": 2**64 - 1, "int64": -(2**63)}).items():
        getattr(writer, f"add_{kind}")(f"a.{kind}", value)
    writer.add_float32("a.float32", 0.25)
    writer.add_float64("a.float64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.string", "größer")
    writer.add_array("a.strings", ["", "x", "▁ß"])
    writer.add_array("a.ints", [1, -2, 3])
    writer.add_array("a.floats", [0.5, -1.0])
    plain = np.arange(6, dtype=np.float32).reshape(2, 3)
    blocks = gguf.quants.quantize(np.ones((3, 64), dtype=np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("plain", plain)
    writer.add_tensor("blocks", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    file = GGUFFile(path)
    assert file.metadata["a.uint64"] == 2**64 - 1
    assert file.metadata["a.int64"] == -(2**63)
    assert {kind: file.metadata[f"a.{kind}"] for kind in numbers} == numbers
    assert (file.metadata["a.float32"], file.metadata["a.float64"]) == (0.25, 0.1)
    assert file.metadata["a.bool"] is True
    assert file.metadata["a.string"] == "größer"
    assert [*file.metadata["a.strings"]] == ["", "x", "▁ß"]
    assert [*file.metadata["a.ints"]] == [1, -2, 3]
    assert [*file.metadata["a.floats"]] == [0.5, -1.0]
    assert file.tensors["plain"].shape == (2, 3)
    assert file.tensors["plain"].start % 64 == 0
    assert file.raw(file.tensors["plain"]).tobytes() == plain.tobytes()
    assert file.tensors["blocks"].shape == (3, 64)
    assert file.tensors["blocks"].kind.name == "Q8_0"
    assert file.raw(file.tensors["blocks"]).tobytes() == blocks.tobytes()


def test_version_2_reads_like_version_3(write: Write) -> None:
    """Both little-endian versions have one layout."""
    keys = [key("a", typed(7))]
    assert GGUFFile(write(container(keys, version=u32(2)))).metadata == {"a": 7}
    assert GGUFFile(write(container(keys, version=u32(3)))).metadata == {"a": 7}


def test_a_file_cut_anywhere_is_refused(write: Write) -> None:
    """Each of its lengths but the whole one gives an error with a hint, and nothing else."""
    path = write(small_model())
    open_checkpoint(path)
    for length in reversed(range(path.stat().st_size)):
        os.truncate(path, length)
        with pytest.raises(ModelFileError) as caught:
            open_checkpoint(path)
        assert caught.value.hint


def one_tensor(dims: list[int], kind: int = F32, offset: int = 0, *, data: bytes = bytes(64)) -> bytes:
    return container(tensors=[tensor("t", dims, kind, offset)], data=data)


def two_tensors(second_name: str, second_offset: int) -> bytes:
    return container(tensors=[tensor("t", [16], F32, 0), tensor(second_name, [8], F32, second_offset)], data=bytes(128))


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "cannot be read"),
    "another format": (b"PK\x03\x04" + bytes(64), "not a GGUF file"),
    "version 1": (container(version=u32(1)), "version 1"),
    "version 4": (container(version=u32(4)), "version 4"),
    "big-endian": (container(version=b"\0\0\0\x03"), "big-endian"),
    "more tensors than bytes": (container(tensor_count=HUGE), "ends before its tensors"),
    "more keys than bytes": (container(key_count=2**40), "ends before its keys"),
    "more tensors than any model": (container(data=bytes(1 << 23), tensor_count=(1 << 17) + 1), "more than the"),
    "more keys than any model": (container(data=bytes(1 << 20), key_count=(1 << 14) + 1), "more than the"),
    "key name past the end": (container([u64(HUGE)], data=bytes(8)), "ends before its bytes of a string"),
    "string past the end": (container([key("a", u32(STRING) + u64(1 << 40))]), "ends before its bytes of a string"),
    "string too long": (container([key("a", u32(STRING) + u64(1 << 25))], data=bytes(1 << 25)), "more than the"),
    "array past the end": (container([key("a", u32(ARRAY) + u32(UINT64) + u64(2**61))]), "values of 'a'"),
    "array too long": (
        container([key("a", u32(ARRAY) + u32(0) + u64((1 << 22) + 1))], data=bytes(1 << 23)),
        "more than the",
    ),
    "strings past the end": (container([key("a", u32(ARRAY) + u32(STRING) + u64(2**60))]), "values of 'a'"),
    "a string of an array past the end": (
        container([key("a", u32(ARRAY) + u32(STRING) + u64(2) + string("x") + u64(HUGE))]),
        "values of 'a'",
    ),
    "a string of an array too long": (
        container([key("a", u32(ARRAY) + u32(STRING) + u64(1) + u64((1 << 24) + 1))], data=bytes((1 << 24) + 1)),
        "a value of 'a' is longer than",
    ),
    "arrays in arrays": (
        container([key("a", (u32(ARRAY) + u64(1)) * 10_000 + u32(UINT32) + u64(0))], data=bytes(64)),
        "values|arrays in an array",
    ),
    "an array of arrays": (container([key("a", u32(ARRAY) + u32(ARRAY) + u64(1) + u32(0) + u64(0))]), "in an array"),
    "unknown value type": (container([key("a", u32(13))], data=bytes(8)), "unknown type 13"),
    "neither true nor false": (container([key("a", u32(BOOL) + b"\x02")]), "neither true nor false"),
    "key not UTF-8": (container([key(b"\xff\xfe", typed(1))]), "not UTF-8"),
    "value not UTF-8": (container([key("a", u32(STRING) + string(b"\xc3"))]), "not UTF-8"),
    "array value not UTF-8": (
        container([key("a", u32(ARRAY) + u32(STRING) + u64(1) + string(b"\xed\xa0\x80"))]),
        "not UTF-8",
    ),
    "key twice": (container([key("a", typed(1)), key("a", typed(2))]), "'a' appears twice"),
    "alignment 0": (container([key("general.alignment", typed(0))]), "power of two"),
    "alignment 24": (container([key("general.alignment", typed(24))]), "power of two"),
    "alignment in words": (container([key("general.alignment", typed("32"))]), "power of two"),
    "alignment past the end": (
        container([key("general.alignment", u32(UINT64) + u64(2**63))], [tensor("t", [1], F32, 0)], bytes(8)),
        "ends after the file",
    ),
    "rank 0": (one_tensor([]), "0 dimensions"),
    "rank 5": (one_tensor([1] * 5), "5 dimensions"),
    "rank beyond counting": (container(tensors=[string("t") + u32(2**32 - 1)], data=bytes(64)), "dimensions"),
    "zero dimension": (one_tensor([8, 0]), "size 0"),
    "dimensions whose product wraps to 0": (one_tensor([2**32, 2**32]), "ends after the file"),
    "dimensions whose product wraps to 4": (one_tensor([2**62 + 1, 4]), "ends after the file"),
    "half a block": (one_tensor([33], Q8_0), "not whole blocks of Q8_0"),
    "unknown tensor type": (one_tensor([8], 999), "type 999"),
    "unsupported tensor type": (one_tensor([256], 10), "Q2_K"),
    "offset off the alignment": (one_tensor([4], offset=4), "off the alignment"),
    "offset past the end": (one_tensor([4], offset=2**63), "ends after the file"),
    "size past the end": (one_tensor([17]), "ends after the file"),
    "tensor without a name": (container(tensors=[tensor("", [4], F32, 0)], data=bytes(64)), "empty"),
    "tensor twice": (two_tensors("t", 64), "'t' is empty or appears twice"),
    "tensors overlap": (two_tensors("u", 32), "overlap"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_gets_a_clear_error_and_little_memory(case: str, write: Write) -> None:
    """The message says what is wrong, a hint what to do; nothing is set aside that the file merely promises."""
    content, message = HOSTILE[case]
    path = write(content)
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match=message) as caught:
            GGUFFile(path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.hint
    assert peak_bytes < 1 << 20


def test_an_error_shows_a_hostile_name_harmlessly(write: Write) -> None:
    """A name from the file is quoted, escaped and cut before it reaches a terminal."""
    with pytest.raises(ModelFileError) as caught:
        GGUFFile(write(container([key("\x1b[2J" + "x" * 5_000, u32(99))], data=bytes(8))))
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 200


def test_a_large_vocabulary_is_read_quickly(write: Write) -> None:
    """262,144 tokens with their scores and types: linear work, some tenths of a second on any machine."""
    count = 262_144
    tokens = [f"token {number}" for number in range(count)]
    file = GGUFFile(write(container([key("t", typed(tokens)), key("s", typed([0.5] * count))])))
    assert [*file.metadata["t"]] == tokens
    assert [*file.metadata["s"]] == [0.5] * count


SOUND = (small_model(), small_model(gemma_metadata(), small_gemma_weights()))
HEADER_BYTES = 1_700  # of both, about; beyond lie weights, where any byte is as good as another
INTERESTING = st.sampled_from([0, 1, 2, 7, 8, 9, 31, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, HUGE])


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A sound model with a few changes: bytes set, numbers replaced, pieces cut out, doubled or cut off."""
    content = bytearray(draw(st.sampled_from(SOUND)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, HEADER_BYTES))
        match draw(st.sampled_from(["byte", "u32", "u64", "cut out", "double", "cut off"])):
            case "byte":
                content[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case "u32":
                content[at : at + 4] = u32(draw(INTERESTING) % 2**32)
            case "u64":
                content[at : at + 8] = u64(draw(INTERESTING))
            case "cut out":
                del content[at : at + draw(st.integers(1, 64))]
            case "double":
                content[at:at] = content[at : at + draw(st.integers(1, 64))]
            case _:
                del content[draw(st.integers(0, len(content))) :]
    return bytes(content)


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(content=SOUND[0])
@example(content=SOUND[1])
@given(content=damaged())
def test_a_damaged_model_either_opens_whole_or_is_refused(content: bytes, write: Write) -> None:
    """Whatever is changed: a `ModelFileError`, or a model all of whose tensors and vocabulary can be read."""
    path = write(content)
    try:
        checkpoint = open_checkpoint(path)
        checkpoint.vocabulary()
    except ModelFileError:
        return
    for name in checkpoint.names():
        assert checkpoint.tensor(name).dtype == np.float32
