"""The smallest application behind an HTTP server: `gateway_lab.echo:answer`, for ASGI.

Owns: an answer that costs nothing to make, whole, or as a stream where the body asks for one as `gateway_lab.mock` is
asked. Refuses to know: who serves it, so that what is measured is the server alone.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

_WISH: Final = re.compile(rb"(\d+) events every (\d+) ms")
_BODY: Final = b'{"answer": "' + b"x" * 988 + b'"}'
_WHOLE: Final = [(b"content-type", b"application/json"), (b"content-length", str(len(_BODY)).encode())]
_STREAM: Final = [(b"content-type", b"text/event-stream")]

_Message = dict[str, Any]


async def answer(
    scope: _Message, receive: Callable[[], Awaitable[_Message]], send: Callable[[_Message], Awaitable[None]]
) -> None:
    """One request. Its body comes in one piece or in several."""
    if scope["type"] != "http":
        return
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    wish = _WISH.search(body[:2_000])
    if wish is None:
        await send({"type": "http.response.start", "status": 200, "headers": _WHOLE})
        await send({"type": "http.response.body", "body": _BODY})
        return
    await send({"type": "http.response.start", "status": 200, "headers": _STREAM})
    for number in range(int(wish[1])):
        await asyncio.sleep(int(wish[2]) / 1000)
        event = b'data: {"content": "%d %d "}\n\n' % (number, time.perf_counter_ns())
        await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
