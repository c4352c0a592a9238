"""The GGUF container: a memory-mapped file read as metadata and tensors.

Owns: the layout (little-endian, versions 2 and 3) and every check a hostile file calls for, all made before any
memory is set aside: a count is believed only if the bytes it promises are there. Refuses to know: what the metadata
means and which tensors a model needs.

    magic "GGUF" · u32 version · u64 tensors · u64 keys
    keys:    string name · u32 type · value            string: u64 length · UTF-8 bytes
    tensors: string name · u32 rank · u64 dims[rank] (fastest first) · u32 type · u64 offset
    padding to `general.alignment` · data: offsets count from here
"""

from __future__ import annotations

import mmap
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from taximeter.engine import kernels
from taximeter.engine.weights.dequantize import GGML_TYPES, TensorType
from taximeter.engine.weights.fields import shown
from taximeter.engine.weights.texts import LENGTH_BYTES, Texts
from taximeter.errors import ModelFileError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_HIGHEST_RANK = 4

# Far above any real model, and low enough that a hostile header cannot make us build much: the largest vocabularies
# have some 300,000 tokens, the largest models a few thousand tensors.
_MOST_KEYS = 1 << 14
_MOST_TENSORS = 1 << 17
_MOST_VALUES = 1 << 22
_LONGEST_STRING_BYTES = 1 << 24
_SMALLEST_KEY_BYTES = 8 + 4 + 1
_SMALLEST_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: Mapping[int, np.dtype[np.generic]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    _BOOL: np.dtype("u1"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}

_UNSUPPORTED_TYPES: Mapping[int, str] = {
    10: "Q2_K",
    11: "Q3_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFTensor:
    """Where a tensor lies. `shape` is in numpy's order (last dimension contiguous), `start` counts from the file's."""

    name: str
    shape: tuple[int, ...]
    kind: TensorType
    start: int
    size_bytes: int


class GGUFFile:
    """One GGUF file, mapped until `close` or for as long as this object lives.

    `metadata` values are bool, int, float, str, an array of numbers or flags, or `Texts`. Lists are views of the file:
    take what is wanted of them before `close`. Raises `ModelFileError` for anything that is
    not a sound GGUF file of a supported version holding supported tensor types.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                opened = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise ModelFileError(f"the file cannot be read: {error}", hint="check its size and permissions") from error
        self._map: mmap.mmap | None = opened
        reader = _HeaderReader(opened)
        tensor_count, key_count = reader.preamble()
        self.metadata: Mapping[str, object] = reader.metadata(key_count)
        self.tensors: Mapping[str, GGUFTensor] = reader.tensors(tensor_count, self.metadata)

    def raw(self, tensor: GGUFTensor) -> npt.NDArray[np.uint8]:
        """The tensor's bytes as they lie in the file: a read-only view. ValueError once the file is closed."""
        if self._map is None:
            raise ValueError(f"{self.path.name} has been closed")
        return np.frombuffer(self._map, dtype=np.uint8, count=tensor.size_bytes, offset=tensor.start)

    def close(self) -> None:
        """Let go of the mapping and of all metadata; the mapping ends with the last view of it. Tensors stay known."""
        self._map = None
        self.metadata = {}


class _HeaderReader:
    """A cursor over the header. Every read is checked against the end of the file first."""

    def __init__(self, buffer: mmap.mmap) -> None:
        self._buffer = buffer
        self._bytes = np.frombuffer(buffer, np.uint8)
        self._size = len(buffer)
        self._at = 0

    def preamble(self) -> tuple[int, int]:
        """(tensors, keys), both small enough to be in a file of this size."""
        magic = self._buffer[:4]
        if magic != _MAGIC:
            raise ModelFileError("this is not a GGUF file", hint="its first four bytes should be GGUF")
        self._at = 4
        version = self._u32()
        if version not in _VERSIONS:
            if version.to_bytes(4, "big") in {known.to_bytes(4, "little") for known in (1, *_VERSIONS)}:
                raise ModelFileError("this GGUF file is big-endian", hint="use the little-endian file of this model")
            raise ModelFileError(f"GGUF version {version} is not supported", hint="supported versions: 2 and 3")
        tensor_count, key_count = self._u64(), self._u64()
        self._promised(key_count, _SMALLEST_KEY_BYTES, _MOST_KEYS, "keys")
        self._promised(tensor_count, _SMALLEST_TENSOR_BYTES, _MOST_TENSORS, "tensors")
        return tensor_count, key_count

    def metadata(self, count: int) -> Mapping[str, object]:
        metadata: dict[str, object] = {}
        for _ in range(count):
            key = self._string()
            if key in metadata:
                raise _damaged(f"the key {shown(key)} appears twice")
            kind = self._u32()
            if kind == _STRING:
                metadata[key] = self._string()
            elif kind == _ARRAY:
                metadata[key] = self._array(key)
            else:
                metadata[key] = self._scalars(kind, 1, key)[0].item()
        return metadata

    def tensors(self, count: int, metadata: Mapping[str, object]) -> Mapping[str, GGUFTensor]:
        headers: dict[str, tuple[tuple[int, ...], TensorType, int]] = {}
        for _ in range(count):
            name = self._string()
            if not name or name in headers:
                raise _damaged(f"the tensor name {shown(name)} is empty or appears twice")
            headers[name] = self._tensor_header(name)
        alignment = _alignment(metadata)
        data_start = -(-self._at // alignment) * alignment
        tensors: dict[str, GGUFTensor] = {}
        for name, (shape, kind, offset) in headers.items():
            size_bytes = _product(shape) // kind.block_weights * kind.block_bytes
            start = data_start + offset
            if offset % alignment:
                raise _damaged(f"tensor {shown(name)} starts at byte {offset}, off the alignment of {alignment}")
            if start + size_bytes > self._size:
                raise _damaged(f"tensor {shown(name)} ends after the file does")
            tensors[name] = GGUFTensor(name=name, shape=shape, kind=kind, start=start, size_bytes=size_bytes)
        by_start = sorted(tensors.values(), key=lambda tensor: tensor.start)
        for before, after in pairwise(by_start):
            if before.start + before.size_bytes > after.start:
                raise _damaged(f"tensors {shown(before.name)} and {shown(after.name)} overlap")
        return tensors

    def _tensor_header(self, name: str) -> tuple[tuple[int, ...], TensorType, int]:
        rank = self._u32()
        if not 1 <= rank <= _HIGHEST_RANK:
            raise _damaged(f"tensor {shown(name)} has {rank} dimensions")
        shape = tuple(self._u64() for _ in range(rank))[::-1]
        code = self._u32()
        offset = self._u64()
        kind = GGML_TYPES.get(code)
        if kind is None:
            stored = _UNSUPPORTED_TYPES.get(code, f"type {code}")
            known = ", ".join(known.name for known in GGML_TYPES.values())
            raise ModelFileError(
                f"tensor {shown(name)} is stored as {stored}, which is not supported",
                hint=f"supported: {known}; many models come in several, Q4_K_M and Q8_0 among them",
            )
        if 0 in shape:
            raise _damaged(f"tensor {shown(name)} has a dimension of size 0")
        if shape[-1] % kind.block_weights:
            raise _damaged(f"tensor {shown(name)} has rows of {shape[-1]}, not whole blocks of {kind.name}")
        return shape, kind, offset

    def _array(self, key: str) -> Texts | npt.NDArray[np.generic]:
        kind = self._u32()
        count = self._u64()
        if kind == _ARRAY:
            raise ModelFileError(f"the key {shown(key)} holds arrays in an array", hint="no known model file does")
        return self._strings(count, key) if kind == _STRING else self._scalars(kind, count, key)

    def _scalars(self, kind: int, count: int, key: str) -> npt.NDArray[np.generic]:
        dtype = _SCALARS.get(kind)
        if dtype is None:
            raise _damaged(f"the key {shown(key)} has the unknown type {kind}")
        self._promised(count, dtype.itemsize, _MOST_VALUES, f"values of {shown(key)}")
        values = np.frombuffer(self._buffer, dtype=dtype, count=count, offset=self._at)
        self._at += count * dtype.itemsize
        if kind == _BOOL:
            if count and values.max() > 1:
                raise _damaged(f"the key {shown(key)} is neither true nor false")
            values = values.astype(np.bool_)
        return values

    def _strings(self, count: int, key: str) -> Texts:
        """The one place that matters for speed: a vocabulary and its merges are hundreds of thousands of strings."""
        self._promised(count, LENGTH_BYTES, _MOST_VALUES, f"values of {shown(key)}")
        starts = self._starts_natively(count)
        if starts is None:  # no native code, or something is wrong, and this says what
            starts = self._starts(count, key)
        self._at = int(starts[-1])
        return Texts(self._bytes, starts)

    def _starts_natively(self, count: int) -> npt.NDArray[np.int64] | None:
        if not kernels.is_built():
            return None
        from taximeter import _native  # noqa: PLC0415  # it may be missing

        return _native.string_starts(self._bytes, self._at, count, _LONGEST_STRING_BYTES)

    def _starts(self, count: int, key: str) -> npt.NDArray[np.int64]:
        """Where each string's length begins, and where the last string ends."""
        buffer, size, at = self._buffer, self._size, self._at
        length_at = struct.Struct("<Q").unpack_from
        starts = array("q")
        try:
            for _ in range(count):
                starts.append(at)
                start = at + LENGTH_BYTES
                at = start + length_at(buffer, at)[0]
                if at > size:
                    raise _truncated(f"values of {shown(key)}")
                if at - start > _LONGEST_STRING_BYTES:
                    raise _damaged(
                        f"a value of {shown(key)} is longer than the {_LONGEST_STRING_BYTES} bytes any needs"
                    )
                buffer[start:at].decode()
        except struct.error as error:
            raise _truncated(f"values of {shown(key)}") from error
        except UnicodeDecodeError as error:
            raise _damaged(f"a value of {shown(key)} is not UTF-8") from error
        starts.append(at)
        return np.array(starts, np.int64)

    def _string(self) -> str:
        length = self._u64()
        self._promised(length, 1, _LONGEST_STRING_BYTES, "bytes of a string")
        start, self._at = self._at, self._at + length
        try:
            return self._buffer[start : self._at].decode()
        except UnicodeDecodeError as error:
            raise _damaged(f"the string at byte {start} is not UTF-8") from error

    def _u32(self) -> int:
        self._promised(1, 4, 1, "header")
        self._at += 4
        return int.from_bytes(self._buffer[self._at - 4 : self._at], "little")

    def _u64(self) -> int:
        self._promised(1, 8, 1, "header")
        self._at += 8
        return int.from_bytes(self._buffer[self._at - 8 : self._at], "little")

    def _promised(self, count: int, each_bytes: int, most: int, what: str) -> None:
        """Raise unless `count` things of at least `each_bytes` still fit into the file, and are at most `most`."""
        if count * each_bytes > self._size - self._at:
            raise _truncated(what)
        if count > most:
            raise _damaged(f"the file announces {count} {what}, more than the {most} any model needs")


def _alignment(metadata: Mapping[str, object]) -> int:
    value = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0 or value & (value - 1):
        raise _damaged("general.alignment is not a power of two")
    return value


def _product(shape: tuple[int, ...]) -> int:
    """In Python's integers, which do not wrap as a 64-bit product would."""
    product = 1
    for dimension in shape:
        product *= dimension
    return product


def _truncated(what: str) -> ModelFileError:
    return ModelFileError(
        f"the file ends before its {what} do", hint="it is truncated or damaged; fetch the model again"
    )


def _damaged(why: str) -> ModelFileError:
    return ModelFileError(why, hint="the file is damaged; fetch the model again")
