"""The way to who is measured: one question goes out, bytes come back, each with the time when it came.

Owns: what a question is, and that it is sent once. Refuses to know: what the bytes say, when questions are sent. The
protocol is there so that everything above it runs against a scripted server on a virtual clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from taximeter.records import Dialect
from taximeter.upstreams.config import Upstream
from taximeter.upstreams.dispatch import Stale

if TYPE_CHECKING:
    from taximeter.upstreams.client import Client
    from taximeter.upstreams.incoming import Read


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request to be measured: `body` goes to `path` as it is. `shape` names what it is a sample of; `asked_*` is
    what its answer will be held to, `counted_prompt_tokens` how many tokens the client believes it sends."""

    shape: str
    dialect: Dialect
    model: str
    path: str
    body: bytes = field(repr=False)
    asked_prompt_tokens: int | None = None
    asked_output_tokens: int | None = None
    counted_prompt_tokens: int | None = None
    prompt_fingerprint: tuple[str, ...] = ()


class Reply(Protocol):
    """An answer that has begun."""

    @property
    def status(self) -> int: ...

    @property
    def begun(self) -> Read:
        """When its head came; no bytes."""
        ...

    def header(self, name: str) -> str | None: ...

    async def read(self) -> Read | None:
        """The next bytes, None at the end. Raises UpstreamError when they stop coming before it."""
        ...

    def close(self) -> None:
        """Let go of it, read or not."""
        ...


class Wire(Protocol):
    """Connections to one server."""

    async def send(self, question: Question) -> Reply:
        """Ask, and return when the answer's head is there. Raises UpstreamError when nobody answers, and Stale when a
        connection that was kept had died: that says nothing of the server, and the question may be sent again."""
        ...

    async def aclose(self) -> None: ...


class HTTPWire:
    """A `Wire` to a real server, through the one HTTP client. Nothing is tried twice, nothing is unpacked or cached.

    `upstream` says where it is, its key and its patience; `headers` go with every question, whatever they are called.
    """

    def __init__(self, client: Client, upstream: Upstream, *, headers: Mapping[str, str] | None = None) -> None:
        self._client = client
        self._upstream = replace(upstream, headers={**upstream.headers, **(headers or {})})
        self._sent = [(b"content-type", b"application/json"), (b"accept", b"text/event-stream")]

    async def send(self, question: Question) -> Reply:
        headers = list(self._sent)
        if question.dialect is Dialect.ANTHROPIC_MESSAGES:
            headers.append((b"anthropic-version", b"2023-06-01"))
        return await self._client.send(self._upstream, "POST", question.path, headers, question.body)

    async def aclose(self) -> None:
        await self._client.aclose()


__all__ = ["HTTPWire", "Question", "Reply", "Stale", "Wire"]
