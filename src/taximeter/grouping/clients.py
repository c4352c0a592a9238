"""Other people's clients, taught to say what their requests are for.

Owns: where the official `openai` and `anthropic` clients, and those of httpx, let somebody add headers. Refuses to
know: what is asked. Nothing global is changed: only the client that is handed over, through hooks that its HTTP client
has for everybody.
"""

from __future__ import annotations

import inspect
import logging
import os
from typing import Any, Final, Protocol, TypeVar

from taximeter.errors import RequestError
from taximeter.grouping.context import ambient_groups, current_groups, current_scope
from taximeter.grouping.door import OWN_KEY_HEADER, GatewayDoor, base_of, header_fields

_log = logging.getLogger("taximeter")

_KEY_HEADERS: Final = (OWN_KEY_HEADER, "authorization", "x-api-key")
_Client = TypeVar("_Client")


class _Headers(Protocol):
    """httpx writes values in the encoding that it found in those that are there."""

    encoding: str

    def get(self, key: str, /) -> str | None: ...
    def __setitem__(self, key: str, value: str, /) -> None: ...
    def __getitem__(self, key: str, /) -> str: ...
    def __contains__(self, key: object, /) -> bool: ...


class _Request(Protocol):
    @property
    def url(self) -> object: ...
    @property
    def headers(self) -> _Headers: ...


class _Response(Protocol):
    @property
    def request(self) -> _Request: ...
    @property
    def headers(self) -> _Headers: ...


def instrument(client: _Client) -> _Client:
    """Have `client` say with each request what it is for: the task it is made in, run, session and labels. Gives the
    client back.

    It is one of the official `openai` and `anthropic` clients, sync or async, or an httpx client that is handed to
    another. Copies that it makes of itself (`with_options`) say so too. Raises RequestError for any other: those can
    send `taximeter.headers()`.
    """
    # The official clients keep theirs under this name; httpx's own have hooks themselves.
    http: Any = client if hasattr(client, "event_hooks") else getattr(client, "_client", None)
    hooks = getattr(http, "event_hooks", None)
    if not isinstance(hooks, dict):
        raise RequestError(
            f"{type(client).__name__} is no client of openai, anthropic or httpx",
            hint="send taximeter.headers() with its requests",
        )
    is_async = inspect.iscoroutinefunction(http.send)
    before, after = (_say_async, _note_async) if is_async else (_say, _note)
    if before not in hooks["request"]:
        http.event_hooks = {
            **hooks,
            "request": [*hooks["request"], before],
            "response": [*hooks["response"], after],
        }
    return client


def _say(request: _Request) -> None:
    try:
        _add_headers(request.headers)
    except Exception:  # noqa: BLE001 - the request is somebody else's, and goes on without
        _log.warning("a request could not be told what it is for", exc_info=True)


def _add_headers(headers: _Headers) -> None:
    ambient = header_fields(ambient_groups(os.environ))
    for name, value in header_fields(current_groups()).items():
        # Who says it with the call itself knows better. What the whole program was started for does not count as that.
        if headers.get(name) in (None, ambient.get(name)):
            if not value.isascii() and headers.encoding == "ascii":
                headers.encoding = "utf-8"
            is_latin = headers.encoding == "iso-8859-1"
            headers[name] = value.encode().decode("iso-8859-1") if is_latin else value


def _note(response: _Response) -> None:
    """Who answers with a receipt is the gateway, and wants to hear how the task ends."""
    scope = current_scope()
    if scope is None or "x-taximeter-receipt" not in response.headers:
        return
    request = response.request
    # The key that opened it for this request opens it for the task's end.
    key = next(((name, request.headers[name]) for name in _KEY_HEADERS if name in request.headers), None)
    scope.answered_by(GatewayDoor(url=base_of(str(request.url)), key=key))


async def _say_async(request: _Request) -> None:
    _say(request)


async def _note_async(response: _Response) -> None:
    _note(response)
