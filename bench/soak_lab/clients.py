"""Who asks, and what: the mixture of requests, and clients that read an answer, hang up, or are told what is wrong.

Owns: the words, the wire, and what each client saw. Refuses to know: how the server is judged.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from taximeter.clock import SYSTEM_CLOCK

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PATIENCE_S = 300.0  # the longest that any answer may take here
TEXT = """
    the a one old new small river meter clock price engine street morning taxi token answers counts carries keeps
    writes turns under over beside before slowly never always bright cold seven twelve because while and but
"""
WORDS = TEXT.split()


@dataclass
class Tally:
    """What the clients saw. `finished` has the receipt of every answer that was read to its end, `refused` that of
    every error, `left` the labels of the requests whose client hung up."""

    asked: int = 0
    finished: list[str] = field(default_factory=list[str])
    refused: list[str] = field(default_factory=list[str])
    left: list[str] = field(default_factory=list[str])
    kinds: Counter[str] = field(default_factory=Counter[str])
    answers: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    repeats: int = 0
    wrong: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request. `key` names a greedy one whose answer has to be the same each time; `status` is what must come;
    `leaves_after` so many pieces of the answer, or seconds, the client hangs up."""

    kind: str
    path: str
    body: bytes
    key: str | None = None
    status: int = 200
    leaves_after_pieces: int | None = None
    leaves_after_s: float | None = None


def text_of(chance: random.Random, words: int) -> str:
    return " ".join(chance.choices(WORDS, k=words))


class Mixture:
    """What is asked: the same for the same seed, client by client."""

    def __init__(self, model: str, seed: int, kv_tokens: int) -> None:
        fixed = random.Random(seed)  # noqa: S311 - prompts to measure with
        self._model = model
        self._prefixes = [text_of(fixed, words) for words in (60, 150, 300, 450, 600, 900)]
        self._too_long = text_of(fixed, kv_tokens)

    def ask(self, chance: random.Random) -> Ask:
        """The next one."""
        kind = chance.choices(("greedy", "sampled", "chat", "hangup", "bad"), (25, 20, 25, 20, 10))[0]
        match kind:
            case "greedy":
                prefix, tail = chance.randrange(len(self._prefixes)), chance.randrange(4)
                tokens = (4, 24, 80)[tail % 3]
                prompt = f"{self._prefixes[prefix]} {WORDS[tail]}"
                return self._completion(
                    kind, chance, prompt, key=f"{prefix}/{tail}", max_tokens=tokens, temperature=0, ignore_eos=True
                )
            case "sampled":
                prompt = text_of(chance, chance.choice((3, 30, 120, 500)))
                return self._completion(
                    kind, chance, prompt, n=chance.choice((1, 1, 2)), max_tokens=chance.randint(1, 60), temperature=1
                )
            case "chat":
                return self._chat(chance, kind)
            case "hangup":
                ask = self._chat(chance, kind, stream=True, max_tokens=400)
                if chance.random() < 0.5:
                    return dataclasses.replace(ask, leaves_after_pieces=chance.randint(1, 20))
                return dataclasses.replace(ask, leaves_after_s=chance.choice((0.0, 0.05, 0.5, 3.0)))
            case _:
                return self._bad(chance)

    def _completion(
        self, kind: str, chance: random.Random, prompt: str, *, key: str | None = None, **fields: object
    ) -> Ask:
        body = {"model": self._model, "prompt": prompt, "stream": chance.random() < 0.5, **fields}
        return Ask(kind=kind, path=COMPLETIONS, body=json.dumps(body).encode(), key=key)

    def _chat(self, chance: random.Random, kind: str, **fields: object) -> Ask:
        turns = [{"role": "system", "content": self._prefixes[chance.randrange(4)]}]
        for _ in range(chance.randint(0, 2)):
            turns.append({"role": "user", "content": text_of(chance, chance.randint(1, 60))})
            turns.append({"role": "assistant", "content": text_of(chance, chance.randint(1, 60))})
        turns.append({"role": "user", "content": text_of(chance, chance.randint(1, 60))})
        body = {"model": self._model, "messages": turns, "max_tokens": chance.randint(1, 80)}
        body |= {"stream": chance.random() < 0.7, "temperature": chance.choice((0, 0.7, 1.5)), **fields}
        return Ask(kind=kind, path=CHAT, body=json.dumps(body).encode())

    def _bad(self, chance: random.Random) -> Ask:
        status, body = chance.choice(
            (
                (404, {"model": "nobody", "prompt": "hello"}),
                (400, {"model": self._model, "prompt": self._too_long}),
                (400, {"model": self._model, "prompt": "hello", "temperature": -7}),
                (400, {"model": self._model, "prompt": ""}),
                (400, {"model": self._model, "prompt": "hello", "logit_bias": {"999999999": 1}}),
            )
        )
        return Ask(kind="bad", path=COMPLETIONS, body=json.dumps(body).encode(), status=status)


async def client(url: str, mixture: Mixture, tally: Tally, chance: random.Random, until_ns: int) -> None:
    """Ask one thing after the other. Any failure is written down, and the next thing asked."""
    while SYSTEM_CLOCK.monotonic_ns() < until_ns:
        ask = mixture.ask(chance)
        tally.asked += 1
        tally.kinds[ask.kind] += 1
        label = f"soak-{tally.asked}"
        try:
            async with asyncio.timeout(PATIENCE_S):
                await put(url, ask, label, tally)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            tally.wrong.append(f"{label} ({ask.kind}): {type(error).__name__}: {error}")


async def put(url: str, ask: Ask, label: str, tally: Tally) -> None:
    """Put one request on the wire, by a connection of its own, and see how it ends."""
    async with connection(url, ask, label) as reader:
        if ask.leaves_after_s is not None:
            tally.left.append(label)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ask.leaves_after_s):
                    await reader.read()
            return
        status, headers = await read_head(reader)
        if status != ask.status:
            raise ValueError(f"status {status} instead of {ask.status}: {(await read_whole(reader, headers))[:300]}")
        if status != 200:
            await read_whole(reader, headers)
            tally.refused.append(headers["x-taximeter-receipt"])
            return
        if "event-stream" in headers["content-type"]:
            answer = ""
            pieces = 0
            async for data in events(reader):
                answer += "".join(said(choice) for choice in data.get("choices", ()))
                pieces += 1
                if pieces == ask.leaves_after_pieces:
                    tally.left.append(label)
                    return
        else:
            whole = json.loads(await read_whole(reader, headers))
            answer = "".join(said(choice) for choice in whole["choices"])
        tally.finished.append(headers["x-taximeter-receipt"])
        if ask.key is not None:
            known = tally.answers.setdefault(ask.key, set())
            tally.repeats += bool(known)
            known.add(answer)


@contextlib.asynccontextmanager
async def connection(url: str, ask: Ask, label: str) -> AsyncGenerator[asyncio.StreamReader]:
    """A connection with the request on its way; at the end it is closed, whatever is still to come."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    head = (
        f"POST {ask.path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
        f"x-taximeter-task: {label}\r\ncontent-length: {len(ask.body)}\r\n\r\n"
    )
    writer.write(head.encode() + ask.body)
    try:
        await writer.drain()
        yield reader
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in head[1:] if line)
    return int(head[0].split()[1]), {name.lower(): value for name, value in headers.items()}


async def read_whole(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    return await reader.readexactly(int(headers["content-length"]))


async def events(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The events of a chunked stream up to its [DONE]. Raises ValueError for an error in it, or one that just ends."""
    stream = b""
    while (size := int(await reader.readline(), 16)) > 0:
        stream += await reader.readexactly(size)
        await reader.readline()
        *whole, stream = stream.split(b"\n\n")
        for event in whole:
            data = event.removeprefix(b"data: ")
            if data == b"[DONE]":
                return
            if b'"error"' in data[:20]:
                raise ValueError(f"the stream broke: {data[:300]}")
            yield json.loads(data)
    raise ValueError("the stream ended without [DONE]")


def said(choice: dict[str, Any]) -> str:
    return choice.get("text") or (choice.get("delta") or choice.get("message") or {}).get("content") or ""
