"""The logs that can be read, by name, and which of them a file is.

Owns: the list of sources. Refuses to know: their formats, which each has a module for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from taximeter.importers import claude_code, codex
from taximeter.importers.lines import first_lines
from taximeter.importers.logged import LogFile, LoggedCall
from taximeter.importers.strangers import UNREADABLE

HEAD_BYTES = 1 << 18
"""As much of a file is looked at to tell what it is."""

_MOST_LINES = 50

Environ = Mapping[str, str]


def _nowhere(environ: Environ, home: Path) -> list[Path]:  # noqa: ARG001 - as the others
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One kind of log. `read` gives a log's calls from where it stands; `edition` changes when it reads more or other
    things than before, so that what was read is read again. `places` are where such logs usually lie.

    `is_mine` tells by one object in it, a line for most, whether a file is of this kind. `in_pieces` says that a log
    only grows, and can be read on where it was left.
    """

    name: str
    words: str
    suffixes: tuple[str, ...]
    edition: str
    read: Callable[[LogFile], Iterator[LoggedCall]]
    is_mine: Callable[[Mapping[str, Any]], bool]
    places: Callable[[Environ, Path], list[Path]] = _nowhere
    in_pieces: bool = False


SOURCES: Mapping[str, Source] = {
    source.name: source
    for source in (
        Source(
            name=claude_code.NAME,
            words="Claude Code's transcripts",
            suffixes=claude_code.SUFFIXES,
            edition=claude_code.EDITION,
            read=claude_code.read,
            is_mine=claude_code.is_mine,
            places=claude_code.places,
            in_pieces=True,
        ),
        Source(
            name=codex.NAME,
            words="Codex's rollouts",
            suffixes=codex.SUFFIXES,
            edition=codex.EDITION,
            read=codex.read,
            is_mine=codex.is_mine,
            places=codex.places,
            in_pieces=True,
        ),
    )
}


def source_of(head: bytes, suffix: str) -> Source | None:
    """Which log the first bytes of a file are of, by its name's end; None where they could be anything."""
    for entry in _objects(head):
        for source in SOURCES.values():
            if source.is_mine(entry):
                return source
    return None


def _objects(head: bytes) -> Iterator[Mapping[str, Any]]:
    """Objects that a file begins with, one a line."""
    for line in list(first_lines(head))[:_MOST_LINES]:
        try:
            entry = msgspec.json.decode(line)
        except UNREADABLE:
            continue
        if isinstance(entry, dict):
            yield cast("Mapping[str, Any]", entry)


def suffixes(sources: Sequence[Source]) -> tuple[str, ...]:
    """How the names of their files end."""
    return tuple(dict.fromkeys(suffix for source in sources for suffix in source.suffixes))
