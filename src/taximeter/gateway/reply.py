"""The one response to a request: begun when there is something to send, and ended once.

Owns: the headers that every answer has, and where an error goes before and after the first byte. Refuses to know: what
is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from starlette.responses import Response
from starlette.types import Send

from taximeter.gateway.errors import Headers, as_http
from taximeter.providers import sse
from taximeter.providers.door import AnswerWriter, Endpoint

if TYPE_CHECKING:
    from taximeter.gateway.ahead import Ahead

_JSON: Final[Headers] = [(b"content-type", b"application/json")]
_STREAM: Final[Headers] = [(b"content-type", sse.MEDIA_TYPE.encode()), (b"cache-control", b"no-store")]


def json_response(body: bytes, status: int = 200) -> Response:
    """A page of its own: JSON that is written already."""
    return Response(body, status, media_type="application/json")


def encoded(value: object) -> Response:
    """The same for plain JSON values."""
    return json_response(msgspec.json.encode(value))


def head_of_body(headers: Headers, body: bytes) -> Headers:
    """Somebody else's headers, with the length of their body."""
    return [*headers, (b"content-length", str(len(body)).encode())]


def named(headers: Headers, request_id: str, receipt_id: str | None = None) -> Headers:
    """With our names for the request and its receipt. An upstream's own id keeps its name: its support asks for it."""
    receipt = [] if receipt_id is None else [(b"x-taximeter-receipt", receipt_id.encode())]
    is_taken = any(name == b"x-request-id" for name, _ in headers)
    return [*headers, *receipt, (b"x-taximeter-request" if is_taken else b"x-request-id", request_id.encode())]


class Reply:
    """A response in the dialect of `endpoint`. `ahead` is where the beginning of it may have been shown already."""

    def __init__(self, send: Send, endpoint: Endpoint, request_id: str, ahead: Ahead | None = None) -> None:
        self.receipt_id: str | None = None
        self.writer: AnswerWriter | None = None  # of a stream that we write ourselves
        self._send = send
        self._endpoint = endpoint
        self._request_id = request_id
        self._ahead = ahead
        self._has_begun = False
        self._takes_events = True
        self._ended = False

    async def stream(self, data: bytes, *, more: bool = True) -> None:
        """Send a piece of an event stream; without `more` it is the last."""
        if not self._is_begun:
            if not data:
                return
            await self._begin(200, [*_STREAM, *self._own_id()])
        if data or not more:
            await self._write(data, more=more)

    async def whole(self, status: int, body: bytes, headers: Headers | None = None) -> None:
        """Send everything at once."""
        length = (b"content-length", str(len(body)).encode())
        await self._begin(status, [*_JSON, length, *(headers or []), *self._own_id()])
        await self._write(body, more=False)

    async def pass_on(self, status: int, headers: Headers) -> None:
        """Begin as somebody else began, with their headers."""
        media_types = [value for name, value in headers if name == b"content-type"]
        self._takes_events = any(each.startswith(b"text/event-stream") for each in media_types)
        await self._begin(status, headers)

    async def more(self, data: bytes, *, is_last: bool = False) -> None:
        """Go on."""
        await self._write(data, more=not is_last)

    async def end(self, data: bytes = b"") -> None:
        """Send the last piece."""
        if not self._ended:
            await self._write(data, more=False)

    async def fail(self, error: Exception) -> None:
        """Tell the client: with a status if there is still time, else as the last event of the stream. What is neither
        is left without its end, and the server then cuts the connection: it must not look whole."""
        http = as_http(error, self._request_id)
        if not self._is_begun:
            await self.whole(http.status, self._endpoint.error_body(http.fault), http.headers)
        elif self._has_begun and not self._ended and self._takes_events:  # what was shown ahead are no events
            last = None if self.writer is None else self.writer.broken(http.fault)
            await self._write(last or self._endpoint.error_event(http.fault), more=False)

    def _own_id(self) -> Headers:
        name = self._endpoint.request_id_header
        return [] if name is None else [(name, self._request_id.encode())]

    @property
    def _is_begun(self) -> bool:
        return self._has_begun or (self._ahead is not None and self._ahead.hold_back())

    async def _begin(self, status: int, headers: Headers) -> None:
        self._has_begun = True
        if self.receipt_id is not None:
            headers = [*headers, (b"x-taximeter-receipt", self.receipt_id.encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _write(self, data: bytes, *, more: bool) -> None:
        self._ended = not more
        await self._send({"type": "http.response.body", "body": data, "more_body": more})
