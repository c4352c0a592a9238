"""What a vocabulary's files call its tokens, by id.

Owns: what is asked of all names at once. Refuses to know: what a name stands for.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import overload


class Names(Sequence[str]):
    """Names by id. See `native_merges.NativeNames` for those that take less memory."""

    @abstractmethod
    def ids_of(self, names: Collection[str]) -> Sequence[int]:
        """The ids, ascending, of all that are called one of `names`."""

    @property
    @abstractmethod
    def longest_characters(self) -> int:
        """How long the longest one is; 0 where there are none."""


class ListedNames(Names):
    """A `str` for each."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self._names[index]

    def ids_of(self, names: Collection[str]) -> Sequence[int]:
        """See `Names.ids_of`."""
        return [token_id for token_id, name in enumerate(self._names) if name in names]

    @property
    def longest_characters(self) -> int:
        return max(map(len, self._names), default=0)
