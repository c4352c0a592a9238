"""Types of the native extension (native/bindings.cpp). It is absent where it could not be built."""

import numpy as np
import numpy.typing as npt

def levels() -> list[str]:
    """Levels that were built and that this processor and its operating system run, slow to fast."""

def usable_processors(root: str) -> int:
    """What `threads` begins with. Reads the process's limits below `root`, which is "" but in tests."""

def threads() -> int: ...
def set_threads(count: int) -> None: ...

class Kernels:
    """The kernels of one level. Every argument is checked (ValueError), and the GIL is released while they run."""

    def __init__(self, level: str) -> None: ...
    def matmul_f32(
        self, x: npt.NDArray[np.float32], w: npt.NDArray[np.float32], out: npt.NDArray[np.float32]
    ) -> None: ...
    def paged_attention_f32(
        self,
        q: npt.NDArray[np.float32],
        k_cache: npt.NDArray[np.float32],
        v_cache: npt.NDArray[np.float32],
        block_tables: npt.NDArray[np.int32],
        row_seq: npt.NDArray[np.int32],
        row_pos: npt.NDArray[np.int32],
        scale: float,
        window: int | None,
        out: npt.NDArray[np.float32],
    ) -> None: ...
