"""Server-sent events, as far as the dialects use them: one `data` line for each event.

Owns: the framing. Refuses to know: what the data says.
"""

from __future__ import annotations

MEDIA_TYPE = "text/event-stream; charset=utf-8"
DONE = b"data: [DONE]\n\n"


def event(data: bytes) -> bytes:
    """`data` as one event. It must be a single line, which JSON without indentation always is."""
    return b"data: " + data + b"\n\n"
