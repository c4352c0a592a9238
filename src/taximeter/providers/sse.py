"""Server-sent events: the framing, both ways.

Owns: how an event is written, and where each one ends in a stream of bytes that may be cut anywhere. Refuses to know:
what the data says.
"""

from __future__ import annotations

import re

import msgspec

MEDIA_TYPE = "text/event-stream; charset=utf-8"
DONE = b"data: [DONE]\n\n"

MOST_EVENT_BYTES = 16 * 2**20  # a Responses stream ends with an event that repeats the whole answer

# Two line ends in a row. `?+` never gives back, or the two bytes of one `\r\n` would count as two line ends.
_END = re.compile(rb"(?:\r\n?+|\n)(?:\r\n?+|\n)")
_LONGEST_END = 4
_BOM = b"\xef\xbb\xbf"


def event(data: bytes, name: bytes = b"") -> bytes:
    """`data` as one event, with a name where it has one. It must be a single line, as JSON without indentation is."""
    if name:
        return b"event: " + name + b"\ndata: " + data + b"\n\n"
    return b"data: " + data + b"\n\n"


def looks_like_events(begun: bytes) -> bool:
    """Whether what begins like this can be events. No JSON begins so, and neither does a page."""
    return begun.removeprefix(_BOM).lstrip(b"\r\n").startswith((b"data:", b"event:", b"id:", b"retry:", b":"))


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One event as it came. `raw` is every byte of it, its empty line included, to be forwarded as it is; `name` is
    its `event:` field and `data` its `data:` lines, both empty where it has none, as a comment has."""

    raw: bytes
    name: bytes
    data: bytes


class Framer:
    """Finds the events in a stream of bytes. What comes out is, joined, what went in, and how the bytes were cut into
    pieces makes no difference to it.

    An event of more than `max_bytes` is given through in frames of at most that many, without name and data, so that
    one that never ends fills no memory.
    """

    def __init__(self, *, max_bytes: int = MOST_EVENT_BYTES) -> None:
        """Raises ValueError for a bound that the end of an event would not fit in."""
        if max_bytes < 2 * _LONGEST_END:
            raise ValueError(f"an event may need more than {max_bytes} bytes")
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._searched = 0  # no event ends before here
        self._is_oversized = False  # the buffer begins inside an event whose beginning was given through
        self._is_first = True
        self._has_returns = False

    def feed(self, chunk: bytes) -> list[Frame]:
        """The events that are complete now."""
        buffer = self._buffer
        buffer += chunk
        self._has_returns = self._has_returns or b"\r" in chunk
        frames: list[Frame] = []
        start = 0
        while True:
            end = self._end(max(start, self._searched))
            length = (len(buffer) if end is None else end) - start
            if length > self._max_bytes:
                # Not between two line ends: there the event's end could no longer be seen.
                cut = start + self._max_bytes
                while buffer[cut - 1] in b"\r\n":
                    cut -= 1
                frames.append(Frame(bytes(buffer[start:cut]), b"", b""))
                start = self._searched = cut
                self._is_oversized = True
                self._is_first = False
            elif end is None:
                break
            else:
                frames.append(self._frame(bytes(buffer[start:end])))
                start = self._searched = end
        if start:
            del buffer[:start]
        self._searched = max(0, len(buffer) - _LONGEST_END)
        return frames

    def rest(self) -> Frame | None:
        """What is left at the end of the stream: an event without its empty line, which not every server writes after
        the last one. None when nothing is."""
        raw = bytes(self._buffer)
        self._buffer.clear()
        self._searched = 0
        return self._frame(raw) if raw else None

    def _end(self, start: int) -> int | None:
        """Where the next event from `start` on ends, None where that is not known yet."""
        if not self._has_returns:  # as almost always, and many times faster
            end = self._buffer.find(b"\n\n", start)
            return None if end < 0 else end + 2
        found = _END.search(self._buffer, start)
        if found is None or (found.end() == len(self._buffer) and self._buffer.endswith(b"\r")):
            return None  # after a `\r` its `\n` may be next
        return found.end()

    def _frame(self, raw: bytes) -> Frame:
        is_first, self._is_first = self._is_first, False
        if self._is_oversized:
            self._is_oversized = False
            return Frame(raw, b"", b"")
        name = b""
        data: bytes | None = None
        for line in (raw.removeprefix(_BOM) if is_first else raw).splitlines():
            if line.startswith(b"data:"):
                value = line[6:] if line.startswith(b" ", 5) else line[5:]
                data = value if data is None else data + b"\n" + value
            elif line.startswith(b"event:"):
                name = line[7:] if line.startswith(b" ", 6) else line[6:]
            elif line == b"data" and data is not None:
                data += b"\n"
        return Frame(raw, name, data or b"")
