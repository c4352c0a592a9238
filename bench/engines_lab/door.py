"""The load generator: requests by token ids over raw HTTP, with the moment each piece of an answer arrived.

Owns: how a request is sent, when its tokens came, and whether the server counted what it was asked to count. Refuses to
know: which engine is behind the door, and what a figure is made of.

It shares the cores with the server it measures, so it does little while it listens: bytes and stamps are kept, and read
after the answer is complete. Prompts are token ids, so that every engine gets the same ones whatever its tokenizer does
with text, and no engine's tokenizer is in the time.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec


class Void(Exception):
    """A point that counts for nothing, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One whole answer. Times are in seconds on one monotonic clock."""

    sent_at: float
    first_token_at: float
    last_token_at: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None

    @property
    def first_token_s(self) -> float:
        return self.first_token_at - self.sent_at

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens after the first, over the time between first and last. Raises Void where all came at once."""
        if self.last_token_at == self.first_token_at:
            raise Void("all tokens came at once")
        return (self.output_tokens - 1) / (self.last_token_at - self.first_token_at)


@dataclass(frozen=True, slots=True)
class Door:
    """An OpenAI-style server on this machine. `extra` goes into every body: what an engine needs for plain greedy."""

    port: int
    model: str
    extra: Mapping[str, object] = field(default_factory=dict[str, object])
    timeout_s: float = 300.0

    async def ask(self, prompt: Sequence[int], output_tokens: int) -> Answer:
        """Send one prompt, read its answer to the end, and check the server's own count against what was asked.

        Raises Void for every answer that is not exactly `output_tokens` long or not to exactly this prompt.
        """
        body = {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.extra,
        }
        try:
            async with asyncio.timeout(self.timeout_s):
                sent_at, pieces = await self._exchange(msgspec.json.encode(body))
        except TimeoutError:
            raise Void(f"no whole answer within {self.timeout_s:.0f} s") from None
        except OSError as error:
            raise Void(f"the connection failed: {error}") from error
        try:
            answer = _read(sent_at, pieces)
        except ValueError as error:  # msgspec's too
            raise Void(f"the answer cannot be read: {error}") from error
        if answer.prompt_tokens != len(prompt) or answer.output_tokens != output_tokens:
            raise Void(
                f"asked {len(prompt)} + {output_tokens} tokens,"
                f" the server counted {answer.prompt_tokens} + {answer.output_tokens}"
            )
        return answer

    async def ask_together(self, prompts: Sequence[Sequence[int]], output_tokens: int) -> list[Answer]:
        """One stream for each prompt, all at once."""
        return await asyncio.gather(*(self.ask(prompt, output_tokens) for prompt in prompts))

    async def _exchange(self, body: bytes) -> tuple[float, list[tuple[float, bytes]]]:
        # A connection for each request: some servers close a stream's connection, and reuse would race with that.
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            head = (
                f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nConnection: close\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            sent_at = time.perf_counter()
            writer.write(head.encode() + body)
            pieces: list[tuple[float, bytes]] = []
            while piece := await reader.read(1 << 16):
                pieces.append((time.perf_counter(), piece))
                if piece.endswith(b"\r\n0\r\n\r\n"):  # the last chunk: not every server hurries to hang up
                    break
            return sent_at, pieces
        finally:
            writer.close()


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    choices: list[object] = []
    usage: _Usage | None = None
    error: object = None


def _read(sent_at: float, pieces: Sequence[tuple[float, bytes]]) -> Answer:
    """What the bytes say. The moment of an event is the moment its last byte was there."""
    token_moments: list[float] = []
    usage: _Usage | None = None
    for moment, event in _events(pieces):
        if event.error is not None:
            raise Void(f"the server answered {str(event.error)[:300]}")
        if event.choices:
            token_moments.append(moment)
        usage = event.usage or usage
    if not token_moments or usage is None:
        raise Void("an answer without a token or without usage")
    return Answer(
        sent_at=sent_at,
        first_token_at=token_moments[0],
        last_token_at=token_moments[-1],
        prompt_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        cached_tokens=None if usage.prompt_tokens_details is None else usage.prompt_tokens_details.cached_tokens,
    )


def _events(pieces: Sequence[tuple[float, bytes]]) -> Iterator[tuple[float, _Event]]:
    """The JSON of each `data:` line, with its moment."""
    rest = b""
    for moment, data in _body(pieces):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                yield moment, msgspec.json.decode(line[6:], type=_Event)


def _body(pieces: Sequence[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """The body as it came: each HTTP chunk with the moment it was complete. Raises Void for anything but a 200."""
    whole = b"".join(data for _, data in pieces)
    ends = list(itertools.accumulate(len(data) for _, data in pieces))
    head, mark, _ = whole.partition(b"\r\n\r\n")
    at = len(head) + len(mark)
    status = head.split(b" ", 2)[1:2]
    if status != [b"200"]:
        raise Void(f"the server answered {whole[:40].decode('latin-1')!r} {whole[at : at + 300].decode('latin-1')!r}")
    if b"transfer-encoding: chunked" not in head.lower():
        yield pieces[-1][0], whole[at:]
        return
    while at < len(whole):
        size, mark, _ = whole[at : at + 20].partition(b"\r\n")
        at += len(size) + len(mark)
        if not (length := int(size, 16)):
            return
        if at + length > len(whole):
            break
        yield pieces[bisect.bisect_left(ends, at + length)][0], whole[at : at + length]
        at += length + 2
    raise Void("the answer broke off")
