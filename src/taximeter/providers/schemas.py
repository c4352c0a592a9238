"""JSON schemas in bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from taximeter.errors import RequestError

_MOST_LEVELS = 100


def check_depth(schema: object, at: str) -> None:
    """Raises RequestError for one that is nested so deeply that whoever walks through it later might fall."""
    level: list[Any] = [schema]
    for _ in range(_MOST_LEVELS):
        level = [item for value in level for item in _inside(value)]
        if not level:
            return
    raise RequestError(f"`{at}` is nested more than {_MOST_LEVELS} levels deep", param=at)


def _inside(value: object) -> list[Any]:
    match value:
        case Mapping():
            return list(cast(Mapping[str, Any], value).values())
        case list():
            return cast(list[Any], value)
        case _:
            return []
