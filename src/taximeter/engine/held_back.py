"""Text that must wait: the end of what is there may be the beginning of something that is looked for."""

from __future__ import annotations

from collections.abc import Iterable


def possible_beginning(text: str, wanted: Iterable[str]) -> int:
    """Length of the longest end of `text` that one of `wanted` begins with, without being all of it."""
    longest = 0
    for word in wanted:
        for length in range(min(len(word) - 1, len(text)), longest, -1):
            if text.endswith(word[:length]):
                longest = length
                break
    return longest
