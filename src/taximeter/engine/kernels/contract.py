"""What every kernel asks of an array, checked the same way for all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]


def require(name: str, array: npt.NDArray[Any], dtype: type[np.generic], *shape: int | None) -> None:
    """Raise ValueError unless `array` is C-contiguous, of `dtype`, and of `shape` (None: any size on that axis).

    It runs a thousand times per step, so it is written for the case that nothing is wrong.
    """
    if array.dtype.type is not dtype:
        raise ValueError(f"{name} is {array.dtype}, not {np.dtype(dtype)}")
    have = array.shape
    fits = len(have) == len(shape)
    for size, wanted in zip(have, shape, strict=False):
        if wanted is not None and size != wanted:
            fits = False
    if not fits:
        sizes = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} has shape {have}, not ({sizes})")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} is not C-contiguous")
