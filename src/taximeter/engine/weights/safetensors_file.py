"""One safetensors file, through the `safetensors` library, as mapped bytes.

Owns: which stored types are taken. Refuses to know: what the tensors are for.

The library checks the header and reads every type numpy has. It cannot hand over bfloat16, which numpy lacks, so bytes
come from the mapped file directly: the library has made sure that tensors follow one another without gaps up to the
file's last byte, so their places follow from their order and sizes.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from taximeter.engine.weights.dequantize import BF16, F16, F32, RawTensor
from taximeter.engine.weights.fields import shown
from taximeter.errors import ModelFileError

_TYPES = tuple(kind.name for kind in (F32, F16, BF16))  # safetensors calls them as GGML does
_BITS: Mapping[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Place:
    dtype: str
    shape: tuple[int, ...]
    start: int
    size_bytes: int


class SafetensorsFile:
    """One file's tensors by name. Raises `ModelFileError` for a damaged file; stored types are judged when read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.is_file():
            raise ModelFileError(f"{path.name} is missing", hint="fetch the model again")
        try:
            places = _places(path)
            with path.open("rb") as file:
                self._map: mmap.mmap | None = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (SafetensorError, OSError) as error:
            raise ModelFileError(
                f"{path.name} is not a sound safetensors file: {error}", hint="fetch the model again"
            ) from error
        self._places: Mapping[str, _Place] = places

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: place.shape for name, place in self._places.items()}

    def check_type(self, name: str) -> None:
        """Raise `ModelFileError` unless the tensor is stored in a type that can be read."""
        dtype = self._places[name].dtype
        if dtype not in _TYPES:
            raise ModelFileError(
                f"{self._path.name}: tensor {shown(name)} is stored as {dtype}, which is not supported",
                hint=f"supported: {', '.join(_TYPES)}",
            )

    def raw(self, name: str) -> RawTensor:
        """A read-only view of the mapped file. ValueError once the file is closed."""
        self.check_type(name)
        if self._map is None:
            raise ValueError(f"{self._path.name} has been closed")
        place = self._places[name]
        data = np.frombuffer(self._map, dtype=np.uint8, count=place.size_bytes, offset=place.start)
        return RawTensor.of(place.dtype, place.shape, data)

    def close(self) -> None:
        """Let go of the mapping; it ends with the last view of it."""
        self._map = None


def _places(path: Path) -> Mapping[str, _Place]:
    sizes: list[tuple[str, str, tuple[int, ...], int]] = []
    opened: Any = safe_open(path, framework="numpy")
    with opened as file:
        for name in file.offset_keys():
            part = file.get_slice(name)
            dtype, shape = str(part.get_dtype()), tuple(int(size) for size in part.get_shape())
            if dtype not in _BITS:
                raise ModelFileError(
                    f"{path.name}: tensor {shown(name)} has the unknown type {dtype}", hint="use another model"
                )
            weights = 1
            for size in shape:
                weights *= size
            sizes.append((name, dtype, shape, weights * _BITS[dtype] // 8))
    start = path.stat().st_size - sum(size_bytes for *_, size_bytes in sizes)
    places: dict[str, _Place] = {}
    for name, dtype, shape, size_bytes in sizes:
        places[name] = _Place(dtype, shape, start, size_bytes)
        start += size_bytes
    return places
