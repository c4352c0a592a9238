"""Many texts, as a GGUF file holds them: u64 length · UTF-8 bytes, one after the other.

Owns: where each one is, and making a `str` of one that is asked for. A vocabulary has hundreds of thousands, and an
answer says a few hundred. Refuses to know: what they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

LENGTH_BYTES = 8


class Texts(Sequence[str]):
    """A view: while it lives, so do the bytes, and the mapping of the file that they are in."""

    def __init__(self, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> None:
        """`starts` says where each text's length begins, and at last where the last text ends."""
        self.data = data
        self.starts = starts

    @classmethod
    def of(cls, texts: Iterable[str]) -> Texts:
        """Texts that no file holds."""
        encoded = [text.encode("utf-8", "replace") for text in texts]
        records = b"".join(len(one).to_bytes(LENGTH_BYTES, "little") + one for one in encoded)
        starts = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([LENGTH_BYTES + len(one) for one in encoded], out=starts[1:])
        return cls(np.frombuffer(records, np.uint8), starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        return str(self.data.data[self.starts[at] + LENGTH_BYTES : self.starts[at + 1]], "utf-8")

    def __iter__(self) -> Iterator[str]:
        data, starts = self.data.data, self.starts.tolist()
        for at in range(len(self)):
            yield str(data[starts[at] + LENGTH_BYTES : starts[at + 1]], "utf-8")
