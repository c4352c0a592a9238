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


def merge_by_rank(
    names: Names,
    *,
    mergeable: npt.NDArray[np.bool_],
    merges: Sequence[str],
    alphabet: Sequence[str],
    steps: Sequence[str],
    whole_words_first: bool,
) -> Callable[[str], list[int]]:
    """Byte-level BPE. `alphabet` has the character that stands for each byte, `merges` two tokens with a space between,
    the best first, `steps` how text is cut into words. See `library_merges.merge_by_rank`."""
    texts = _texts(names)
    of_bytes = np.full(256, _NONE, np.int32)
    byte_of = {character: byte for byte, character in enumerate(alphabet)}
    for token_id in names.ids_of(alphabet):
        if mergeable[token_id]:
            of_bytes[byte_of[names[token_id]]] = token_id
    return _native.MergesByRank(
        texts, mergeable, _texts(merges), of_bytes, _texts(alphabet), list(steps), whole_words_first
    ).merge


def _texts(texts: Sequence[str]) -> _native.Texts:
    return (texts if isinstance(texts, NativeNames) else NativeNames(texts)).texts


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
    merges = _native.MergesByScore(_texts(names), mergeable, scores, of_bytes, _NONE if unknown is None else unknown)
    ends = "".join(re.findall(word_end, "".join(map(chr, range(128)))))
    return merges.merge, merges.any_holds(space_mark, ends)
