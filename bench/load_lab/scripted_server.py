"""A server whose answers come by a script: the first token after so long, each further one so much later.

It speaks as much of the OpenAI API as a client needs to be measured by it, over HTTP/1.1, and counts a prompt's words
as its tokens. Times are absolute, so nothing drifts. It is there to hold thousands of slow streams with little of a
processor; every second it prints, on stderr, how many there are and how late it was.

    python bench/load_lab/scripted_server.py --port 8300 --ttft-ms 500 --itl-ms 200
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import Any, cast

from taximeter.measurement.load.punctual import punctual_loop

_CHUNK = (
    b"data: "
    + json.dumps(
        {
            "id": "c",
            "object": "chat.completion.chunk",
            "model": "scripted",
            "choices": [{"index": 0, "delta": {"content": " a"}}],
        }
    ).encode()
)
_PLAIN = (
    b"data: "
    + json.dumps(
        {"id": "c", "object": "text_completion", "model": "scripted", "choices": [{"index": 0, "text": " a"}]}
    ).encode()
)


def framed(data: bytes) -> bytes:
    """As a chunk of an HTTP body."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


class Server:
    """`slots` is how many are answered at a time; the others wait in the order in which they came."""

    def __init__(self, ttft_s: float, itl_s: float, slots: int | None) -> None:
        self.ttft_s, self.itl_s = ttft_s, itl_s
        self.slots = slots
        self.busy = self.most = 0
        self.waiting: list[Stream] = []
        self.late_s = 0.0

    def asked(self, stream: Stream) -> None:
        if self.slots is not None and self.busy >= self.slots:
            self.waiting.append(stream)
            return
        self.busy += 1
        self.most = max(self.most, self.busy)
        stream.begin(time.perf_counter())

    def left(self) -> None:
        self.busy -= 1
        if self.waiting:
            self.asked(self.waiting.pop(0))


class Stream:
    """One answer."""

    def __init__(self, server: Server, transport: asyncio.Transport, asked: dict[str, Any]) -> None:
        self.server, self.transport = server, transport
        self.is_chat = "messages" in asked
        self.tokens = int(asked.get("max_completion_tokens") or asked.get("max_tokens") or 16)
        prompt = asked["messages"][0]["content"] if self.is_chat else asked["prompt"]
        self.prompt = len(prompt.split())
        self.done = 0
        self.event = framed((_CHUNK if self.is_chat else _PLAIN) + b"\n\n")
        self.began_s = 0.0

    def begin(self, now_s: float) -> None:
        self.began_s = now_s
        self.next()

    def next(self) -> None:
        due_s = self.began_s + self.server.ttft_s + self.done * self.server.itl_s
        loop = asyncio.get_running_loop()
        loop.call_at(loop.time() + due_s - time.perf_counter(), self.write, due_s)

    def write(self, due_s: float) -> None:
        self.server.late_s = max(self.server.late_s, time.perf_counter() - due_s)
        if self.transport.is_closing():
            self.server.left()
            return
        self.done += 1
        if self.done < self.tokens:
            self.transport.write(self.event)
            self.next()
            return
        used = {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.tokens,
            "total_tokens": self.prompt + self.tokens,
        }
        used["prompt_tokens_details"] = {"cached_tokens": 0}
        empty: dict[str, Any] = {"delta": {}} if self.is_chat else {"text": ""}
        end = {"id": "c", "model": "scripted", "choices": [{"index": 0, "finish_reason": "length", **empty}]}
        last = {"id": "c", "model": "scripted", "choices": [], "usage": used}
        events = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in (end, last)) + b"data: [DONE]\n\n"
        self.transport.write(self.event + framed(events) + b"0\r\n\r\n")
        self.server.left()


class Connection(asyncio.Protocol):
    """Reads requests; one after the other on each connection."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.read = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.read += data
        head, gap, body = self.read.partition(b"\r\n\r\n")
        if not gap:
            return
        lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        length = int(headers.get("content-length", "0"))
        if len(body) < length:
            return
        self.read = body[length:]
        path = lines[0].split(" ")[1]
        if path.endswith("/completions"):
            self.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            self.server.asked(Stream(self.server, self.transport, json.loads(body[:length])))
            return
        is_list = path.endswith("/models")
        listed = {"object": "list", "data": [{"id": "scripted", "object": "model", "owned_by": "vllm"}]}
        page = json.dumps(listed).encode() if is_list else b"{}"
        status = b"200 OK" if is_list else b"404 Not Found"
        kind = b"\r\ncontent-type: application/json\r\ncontent-length: "
        self.transport.write(b"HTTP/1.1 " + status + kind + str(len(page)).encode() + b"\r\n\r\n" + page)


async def serve(port: int, server: Server) -> None:
    """Until it is killed."""
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: Connection(server), "127.0.0.1", port, backlog=4096)
    print(f"listening on 127.0.0.1:{port}", flush=True)
    async with listening:
        while True:
            server.late_s = 0.0
            await asyncio.sleep(1)
            if server.busy:
                late = f"{server.late_s * 1e3:.1f} ms late at most"
                print(f"{server.busy} streams ({server.most} at most), {late}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8300)
    parser.add_argument("--ttft-ms", type=float, default=100.0)
    parser.add_argument("--itl-ms", type=float, default=20.0)
    parser.add_argument("--slots", type=int)
    asked = parser.parse_args()
    with asyncio.Runner(loop_factory=punctual_loop) as runner:
        runner.run(serve(asked.port, Server(asked.ttft_ms / 1e3, asked.itl_ms / 1e3, asked.slots)))


if __name__ == "__main__":
    main()
