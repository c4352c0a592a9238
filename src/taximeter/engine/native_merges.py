"""Vocabularies in native memory, and merging there: built in a hundredth of the time that the library takes.

Owns: what is handed over, and in which form. Refuses to know: the rules of each kind of vocabulary (`pieces`). Import
it only where the native code was built.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from taximeter import _native
from taximeter.engine.names import Names
from taximeter.engine.weights.texts import Texts

_NONE = -1


class NativeNames(Names):
    """Names in a few bytes each, copied: the file that they came from can go."""

    def __init__(self, names: Sequence[str]) -> None:
        texts = names if isinstance(names, Texts) else Texts.of(names)
        self.texts = _native.Texts(texts.data, texts.starts)

    def __len__(self) -> int:
        return len(self.texts)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        return self.texts.utf8(range(len(self))[index]).decode("utf-8", "replace")

    def ids_of(self, names: Collection[str]) -> Sequence[int]:
        """See `Names.ids_of`."""
        return self.texts.ids_of(list(names))

    @property
    def longest_characters(self) -> int:
        return self.texts.longest_characters


def merge_by_score(
    names: Names,
    *,
    mergeable: npt.NDArray[np.bool_],
    scores: npt.NDArray[np.float32],
    of_bytes: npt.NDArray[np.int32],
    unknown: int | None,
    space_mark: str,
    word_end: str,
) -> tuple[Callable[[str], list[int]], bool]:
    """What merges a text by the scores of its pieces, and whether pieces reach from one word into the next: whether one
    has a `space_mark` right behind a character that matches `word_end`, as no character does but of ASCII.

    `of_bytes` has the id of each byte's token, or -1; a character that has neither a piece nor these is `unknown`.
    """
    texts = (names if isinstance(names, NativeNames) else NativeNames(names)).texts
    merges = _native.MergesByScore(texts, mergeable, scores, of_bytes, _NONE if unknown is None else unknown)
    ends = "".join(re.findall(word_end, "".join(map(chr, range(128)))))
    return merges.merge, merges.any_holds(space_mark, ends)
