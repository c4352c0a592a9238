"""A provider that answers from memory, in a process of its own: `python -m gateway_lab.mock PORT`.

Owns: OpenAI-shaped answers, whole or streamed, at the pace that a request asks for. Refuses to know: who asks. It has
to be much faster than anything that is put in front of it, so it looks at nothing but the first bytes of a body.

A request says what it wants in its prompt, which every gateway passes on: "100 events every 10 ms". Each event's text
is its number and the instant it was sent at, by the machine's monotonic clock, which all processes share: how long an
event was on its way can be read off at the other end.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from typing import Final

import httptools
import uvloop

_WISH: Final = re.compile(rb"(\d+) events every (\d+) ms")
_WISH_WITHIN_BYTES: Final = 2_000
_USAGE: Final = {"prompt_tokens": 250, "completion_tokens": 100, "total_tokens": 350}
_NAMES: Final = {"id": "chatcmpl-mock", "created": 1_790_000_000, "model": "gpt-4o-mini"}
_TEXT: Final = "The answer is as long as such answers often are. " * 14


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(delta: dict[str, str], *, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({**_NAMES, "object": "chat.completion.chunk", "choices": [choice]}).encode() + b"\n\n"


_MESSAGE: Final = {"index": 0, "message": {"role": "assistant", "content": _TEXT}, "finish_reason": "stop"}
_BODY: Final = json.dumps({**_NAMES, "object": "chat.completion", "choices": [_MESSAGE], "usage": _USAGE}).encode()
_WHOLE: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(_BODY),
    _BODY,
)
_STREAM: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_BEFORE, _, _AFTER = _event({"content": "@"}).partition(b"@")
_FINISH: Final = _chunk(_event({}, finish="stop"))
_LAST_USAGE: Final = _chunk(
    b"data: "
    + json.dumps({**_NAMES, "object": "chat.completion.chunk", "choices": [], "usage": _USAGE}).encode()
    + b"\n\n"
)
_END: Final = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._beginning = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the streams notice by themselves
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        if len(self._beginning) < _WISH_WITHIN_BYTES:
            self._beginning += data[:_WISH_WITHIN_BYTES]

    def on_message_complete(self) -> None:
        beginning, self._beginning = self._beginning, b""
        wish = _WISH.search(beginning)
        if wish is None:
            self._transport.write(_WHOLE)
            return
        self._transport.write(_STREAM)
        events, pause_s = int(wish[1]), int(wish[2]) / 1000
        self._send_event(0, events, pause_s, self._loop.time() + pause_s)

    def _send_event(self, number: int, events: int, pause_s: float, next_at: float) -> None:
        """The events have their instants, and a late one delays none behind it."""
        if self._transport is None:
            return
        if number == events:
            self._transport.write(_FINISH + _LAST_USAGE + _END)
            return
        self._transport.write(_chunk(b"%b%d %d %b" % (_BEFORE, number, time.perf_counter_ns(), _AFTER)))
        self._loop.call_at(next_at, self._send_event, number + 1, events, pause_s, next_at + pause_s)


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
