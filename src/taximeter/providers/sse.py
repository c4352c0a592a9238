"""Server-sent events, as far as the dialects use them: one `data` line for each event.

Owns: the framing. Refuses to know: what the data says.
"""

from __future__ import annotations

MEDIA_TYPE = "text/event-stream; charset=utf-8"
DONE = b"data: [DONE]\n\n"


def event(data: bytes, name: bytes = b"") -> bytes:
    """`data` as one event, with a name where it has one. It must be a single line, as JSON without indentation is."""
    if name:
        return b"event: " + name + b"\ndata: " + data + b"\n\n"
    return b"data: " + data + b"\n\n"
