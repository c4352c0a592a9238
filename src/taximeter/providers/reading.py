"""The other direction: what a provider of some dialect answers, read as events.

Owns: the face that all readers have in common. Refuses to know: any dialect; who asked, and in which dialect; usage and
terms, which a `Tap` finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from taximeter.records import Event


class AnswerReader(Protocol):
    """Reads one streamed answer. It is told every event in order, then that the stream is over."""

    def event(self, name: bytes, data: bytes, at_ns: int) -> Sequence[Event]:
        """What one event of the stream comes to, stamped `at_ns`: tokens and the ends of choices, never `Served`. Of an
        event that it does not know, nothing. Raises UpstreamError for an event that says that the provider broke, and
        for one that cannot be read."""
        ...

    def end(self, at_ns: int) -> Sequence[Event]:
        """The stream is over: the end of every choice that has none yet, cancelled where the stream broke off."""
        ...
