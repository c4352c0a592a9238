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
WORD_ENDS = "[A-Za-z0-9.,;:!?]"
# Before a space and a word every splitting rule splits, whatever is around: what begins with a letter, digit or mark
# goes on with a space by no rule, and none looks back. There are other such places; these are many, and easy to find.
_BEFORE_A_WORD = re.compile(rf"(?<={WORD_ENDS})(?= [A-Za-z])")
_Merge = Callable[[str], list[int]]


def remembering(merge: _Merge) -> _Merge:
    """`merge`, for long texts a part at a time, with the parts of lately remembered. It must be one for which cuts
    before words make no difference. Thread-safe if `merge` is."""

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
    found = _BEFORE_A_WORD.search(text, start + _PART_CHARACTERS, start + 2 * _PART_CHARACTERS)
    return None if found is None else found.start()
