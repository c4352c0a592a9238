r"""The lines of a transcript that say what a call took, found and read in native code where that was built.

Owns: which lines are usual, so that their facts come without their being decoded here. Refuses to know: what is to be
made of them.

A line is usual if it is strict JSON of which no known field comes twice or with an escape (but for `\"`, `\\` and
`\/` in names), its `message` has an id, a model and a usage object of which `plain.plain_leaves` would make leaves, its
`timestamp` is an instant of the calendar since 2015, as `2026-10-29T12:00:00.000Z`, and it says nothing of costs. Then
`usage_lines` gives what decoding it would have given. Lines that tell of one call, one behind the other and alike in
all else, come as one: with the earliest instant, and the leaves of the last of those that sum to the most. Every other
line with the mark in it comes as the place where it stands, unless it is usual but for having no usage of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from taximeter.importers.lines import marked_in

MARK = b'"usage"'

Place = tuple[int, int]
"""Where in the buffer a line begins and ends."""

Common = tuple[str | None, str | None, str | None, str | None, bool, str, str | None, str | None, str | None]
"""Session, folder, branch, agent, whether it is a sidechain, model, service tier, speed, geography. One object for
lines in a row that have it in common."""

UsualLine = tuple[int, str, str, str | None, tuple[int, ...], Common]
"""Where it begins, the instant as the ledger has it, the message's id, the request's, leaves, and the rest."""


if TYPE_CHECKING:
    from taximeter._native import FoundFile

    UsageCalls = Callable[[str, list[tuple[bytes, int]], int, int, int, int], list[FoundFile]]


def places_only(buffer: bytearray, first: int, end: int) -> Sequence[Place | UsualLine]:
    """Of `buffer[first:end]`, whole lines, each that has the mark: none of them is read here."""
    return list(marked_in(buffer, first, end, MARK))


def _fastest() -> Callable[[bytearray, int, int], Sequence[Place | UsualLine]]:
    try:
        from taximeter._native import usage_lines  # noqa: PLC0415 - absent where it was not built
    except ImportError:
        return places_only
    return usage_lines


usage_lines = _fastest()
"""The lines of `buffer[first:end]`, whole ones, that have the mark."""


def _fastest_of_files() -> UsageCalls | None:
    try:
        from taximeter._native import usage_calls  # noqa: PLC0415 - as above
    except ImportError:
        return None
    return usage_calls


usage_calls = _fastest_of_files()
"""What whole files of a source say, given by their paths and the places to begin at: as far as they have nothing but
usual lines, and no call in two places. They are read in blocks of so many bytes, and no line may be longer than so
many; then so many of a file's first bytes are told, and so many before its last call. None where that was not built."""
