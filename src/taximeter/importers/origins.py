"""One object for all calls that have the same origin. Owns: finding it again. Refuses to know: where its parts come
from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from taximeter.importers.logged import Origin
from taximeter.importers.strangers import group_name
from taximeter.records import MOST_LABELS

_MOST_KEPT = 10_000
_COMPARABLE = frozenset({str, type(None)})


class Origins:
    """The origins of one file."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Origin] = {}
        self._told: dict[tuple[object, ...], Origin] = {}

    def told_by(self, cells: tuple[object, ...], made: Callable[[], Origin]) -> Origin:
        """The origin that is `made` of these cells, remembered by them: most rows have those of one before."""
        if not _COMPARABLE.issuperset(map(type, cells)):  # 1, 1.0 and True would be the same
            return made()
        origin = self._told.get(cells)
        if origin is None:
            if len(self._told) >= _MOST_KEPT:
                self._told.clear()
            origin = self._told[cells] = made()
        return origin

    def of(self, *, labels: Mapping[str, object] | None = None, **parts: Any) -> Origin:
        """The origin with these parts, see `Origin`. Of labels those count that are names, the first sixteen."""
        named = {
            name: value for key, given in (labels or {}).items() if (name := _key(key)) and (value := group_name(given))
        }
        kept = dict(list(named.items())[:MOST_LABELS])
        key = (*parts.values(), *kept.items())
        origin = self._known.get(key)
        if origin is None:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            origin = self._known[key] = Origin(**parts, labels=kept)
        return origin


def tagged(labels: dict[str, object], tags: list[Any]) -> dict[str, object]:
    """`labels` and the tags, which are `name:value` or a word alone; what has a label already keeps it."""
    for tag in tags:
        name, _, value = str(tag).partition(":")
        key = name if value else "tag"
        if labels.get(key) is None:
            labels[key] = value or name
    return labels


@lru_cache(maxsize=1_000)
def _key(name: str) -> str | None:
    named = group_name(name)
    return None if named is None else named.lower().replace("=", "-")
