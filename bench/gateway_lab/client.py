"""The client that everybody is measured with, in a process of its own: `python -m gateway_lab.client`.

Owns: connections that are kept, a closed loop on each, and the stamps: taken when bytes are read, before anything is
made of them. Refuses to know: who answers, and what figures mean. It reads jobs from its input, one JSON document a
line, and writes what came of each.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

import httptools
import uvloop

_PATIENCE_S: Final = 120.0
_STAMPED: Final = re.compile(rb'"content": ?"(\d+) (\d+) "')
_MOST_ERRORS: Final = 5


@dataclass(frozen=True, kw_only=True)
class Job:
    """So many requests in all over so many connections, each of which asks again when it has its answer; or as many as
    there is time for in `seconds`. `events` is how many each answer has to have, 0 for one that is no stream."""

    port: int
    path: str
    headers: Mapping[str, str]
    body: str
    connections: int = 1
    requests: int | None = None
    seconds: float | None = None
    events: int = 0


@dataclass(kw_only=True)
class Result:
    """Times in nanoseconds: from sending a request to the first and the last byte of its answer, and of each event from
    when it was sent to when it was read. `reads` are pieces that the streams came in."""

    first_byte_ns: list[int] = field(default_factory=list[int])
    last_byte_ns: list[int] = field(default_factory=list[int])
    event_ns: list[int] = field(default_factory=list[int])
    reads: int = 0
    lost_events: int = 0
    failed: int = 0
    errors: list[str] = field(default_factory=list[str])
    wall_s: float = 0.0


class _Connection(asyncio.Protocol):
    """One loop. `done` resolves when there is nothing more to ask."""

    def __init__(self, job: Job, left: _Left, result: Result) -> None:
        self.done = asyncio.get_running_loop().create_future()
        self._job = job
        self._left = left
        self._result = result
        head = f"POST {job.path} HTTP/1.1\r\nhost: 127.0.0.1:{job.port}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in job.headers.items())
        body = job.body.encode()
        self._request = f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self._fail(f"the connection ended: {error}")
            self.done.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._now_ns = time.perf_counter_ns()
        if not self._first_byte_ns:
            self._first_byte_ns = self._now_ns
        self._result.reads += 1
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        if not self._job.events:
            self._text = data
            return
        *events, self._text = (self._text + data).split(b"\n\n")
        for event in events:
            stamped = _STAMPED.search(event)
            if stamped is not None:
                self._events += int(stamped[1]) == self._events  # in order, each once
                self._result.event_ns.append(self._now_ns - int(stamped[2]))

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status == 200:
            self._result.first_byte_ns.append(self._first_byte_ns - self._sent_ns)
            self._result.last_byte_ns.append(self._now_ns - self._sent_ns)
            self._result.lost_events += self._job.events - self._events
        else:
            self._fail(f"status {status}: {self._text[:200].decode('utf-8', 'replace')}")
        self._ask()

    def _ask(self) -> None:
        if not self._left.take():
            self.done.set_result(None)
            self._transport.close()
            return
        self._parser = httptools.HttpResponseParser(self)
        self._text = b""
        self._events = 0
        self._first_byte_ns = 0
        self._sent_ns = time.perf_counter_ns()
        self._transport.write(self._request)

    def _fail(self, why: str) -> None:
        self._result.failed += 1
        if len(self._result.errors) < _MOST_ERRORS:
            self._result.errors.append(why)


class _Left:
    """What there is still to ask, over all connections."""

    def __init__(self, job: Job) -> None:
        self._requests = job.requests
        self._until_ns = None if job.seconds is None else time.perf_counter_ns() + round(job.seconds * 1e9)

    def take(self) -> bool:
        if self._until_ns is not None:
            return time.perf_counter_ns() < self._until_ns
        if not self._requests:
            return False
        self._requests -= 1
        return True


async def _carry_out(job: Job) -> Result:
    result, left, loop = Result(), _Left(job), asyncio.get_running_loop()
    began_at = time.perf_counter()
    opened = await asyncio.gather(
        *(
            loop.create_connection(lambda: _Connection(job, left, result), "127.0.0.1", job.port)
            for _ in range(job.connections)
        )
    )
    _, late = await asyncio.wait([protocol.done for _, protocol in opened], timeout=_PATIENCE_S)
    result.wall_s = time.perf_counter() - began_at
    if late:
        result.failed += len(late)
        result.errors.append(f"{len(late)} connections had no answer after {_PATIENCE_S:.0f} s")
    for transport, protocol in opened:
        protocol.done.cancel()
        transport.abort()
    return result


def main() -> None:
    """Carry out jobs until there are none."""
    for line in sys.stdin:
        result = uvloop.run(_carry_out(Job(**json.loads(line))))
        print(json.dumps(asdict(result)), flush=True)


if __name__ == "__main__":
    main()
