"""A request as it comes in: when, and its body within its limits.

Owns: the stamp at the door, how much of a body is read, which bodies no browser may send. Refuses to know: what bodies
say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, ParamSpec, Protocol, TypeVar

from starlette.types import Receive, Scope

from taximeter.gateway.errors import DoorError

MAX_BODY_BYTES: Final = 32 * 1024 * 1024  # what Anthropic takes; OpenAI takes less
LONG_BODY_BYTES: Final = 64 * 1024
"""Reading what is longer takes milliseconds or more, in which no stream would move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """When a request came to the door, by both clocks, and its id. `key` is what whoever shows that key is called, None
    where no key was shown."""

    request_id: str
    at: datetime
    at_ns: int
    key: str | None = None


ARRIVAL: Final = "taximeter.arrival"  # where the door leaves it in the ASGI scope
ARRIVED_NS: Final = "taximeter.arrived_ns"  # where the server leaves when the first byte came, if it knows


class ClientGone(Exception):
    """The client went away before its request was whole: there is nobody to answer, and nothing was asked."""


class Wanted(Protocol):
    """Something that a client waits for."""

    def let_go(self) -> None:
        """It does not any more."""
        ...


async def let_go_when_gone(receive: Receive, wanted: Wanted) -> None:
    """Wait until the client has hung up, and say so."""
    while (await receive())["type"] != "http.disconnect":
        pass
    wanted.let_go()


def check_body(scope: Scope) -> None:
    """Raises DoorError for a body that is too long or not JSON, by the word of its headers."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    # A browser names the page it sends for, and may send other types from any page unasked: no page shall spend
    # somebody's machine. `curl -d` names a form when it is told nothing else; it is read as the JSON it is meant to be.
    if media_type != b"application/json" and (b"origin" in headers or b"sec-fetch-site" in headers):
        raise DoorError(
            415, "unsupported_media_type", "the body must be JSON", hint="send content-type: application/json"
        )
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise DoorError(415, "unsupported_media_type", "the body must not be compressed")
    declared = headers.get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
        raise _too_long()


async def read_body(scope: Scope, receive: Receive) -> bytes:
    """The whole body. Raises DoorError as `check_body` does, and ClientGone."""
    check_body(scope)
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        body = message.get("body", b"")  # most come in one piece
        if len(body) > MAX_BODY_BYTES:
            raise _too_long()
        return body
    pieces = bytearray()
    while True:
        if message["type"] == "http.disconnect":
            raise ClientGone
        pieces += message.get("body", b"")
        if len(pieces) > MAX_BODY_BYTES:
            raise _too_long()
        if not message.get("more_body", False):
            return bytes(pieces)
        message = await receive()


def _too_long() -> DoorError:
    return DoorError(413, "body_too_large", f"the body is longer than {MAX_BODY_BYTES} bytes")


_P = ParamSpec("_P")
_T = TypeVar("_T")


async def beside_streams(body: bytes, read: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """What `read` makes of the body: at once of a short one, on a thread of a long one, while other answers go on."""
    if len(body) > LONG_BODY_BYTES:
        return await asyncio.to_thread(read, *args, **kwargs)
    return read(*args, **kwargs)
