"""Merging that remembers: of a long text that begins like one before, only what is new is merged again.

Owns: where a text may be cut so that the tokens of its parts, one after the other, are the tokens of the whole; and how
much is remembered. Refuses to know: how text is merged.

A conversation comes back with every turn, and many prompts begin alike. Texts are cut by their own characters from the
beginning on, so that equal beginnings fall into equal parts.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from functools import lru_cache

_PART_CHARACTERS = 1024
_MOST_PARTS = 1024  # of two to three kilobytes each
# Between two words of letters every splitting rule splits, whatever is around: no rule has a word of letters go on with
# a space, and none looks back. Letters of other scripts would do too, but these are cheap to find.
_BETWEEN_WORDS = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])")
_Merge = Callable[[str], list[int]]


def remembering(merge: _Merge) -> _Merge:
    """`merge`, for long texts a part at a time, with the parts of lately remembered. It must be one for which the cuts
    between words make no difference. Thread-safe if `merge` is."""

    @lru_cache(maxsize=_MOST_PARTS)
    def merged(part: str) -> array[int]:
        return array("I", merge(part))  # an eighth of what a list and its integers take

    def merge_by_parts(text: str) -> list[int]:
        ids: list[int] = []
        start = 0
        while cut := _cut(text, start):
            ids.extend(merged(text[start:cut]))
            start = cut
        return ids + merge(text[start:])

    return merge_by_parts


def _cut(text: str, start: int) -> int | None:
    """Where the part that begins at `start` ends; None where the text ends first, or goes on without words."""
    found = _BETWEEN_WORDS.search(text, start + _PART_CHARACTERS, start + 2 * _PART_CHARACTERS)
    return None if found is None else found.start()
