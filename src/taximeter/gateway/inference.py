"""The endpoints that cost money: one HTTP request, one exchange, one answer in its dialect.

Owns: reading a body within its limits, the headers of an answer, when a response begins and how it ends, and noticing
that the client has gone. Refuses to know: fields and shapes of the dialect, clocks of the answer, receipts' contents.

A response begins with the first token, not before: until then an error can still have its own status.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import ParamSpec, TypeVar

from starlette.types import Receive, Scope, Send

from taximeter.errors import RequestError, TaximeterError
from taximeter.gateway.errors import DoorError, Headers, as_http
from taximeter.gateway.relay import Exchange, Relay
from taximeter.providers import sse
from taximeter.providers.bodies import model_named_in
from taximeter.providers.door import AnswerWriter, Call, Endpoint
from taximeter.records import (
    MOST_GROUP_NAME_CHARACTERS,
    ChoiceFinished,
    Outcome,
    Request,
    Served,
    TokensGenerated,
    is_group_name,
    new_id,
)

_log = logging.getLogger(__name__)

MAX_BODY_BYTES = 10 * 1024 * 1024
_LONG_BODY_BYTES = 64 * 1024  # reading one takes milliseconds or more, in which no stream would move
_JSON: Headers = [(b"content-type", b"application/json")]
_STREAM: Headers = [(b"content-type", sse.MEDIA_TYPE.encode()), (b"cache-control", b"no-store")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """When a request came to the door, by both clocks, and its id."""

    request_id: str
    at: datetime
    at_ns: int


ARRIVAL = "taximeter.arrival"  # where the door leaves it in the ASGI scope


class ClientGone(Exception):
    """The client went away before its request was whole: there is nobody to answer, and nothing was asked."""


class InferenceDoor:
    """One endpoint, as an ASGI application."""

    def __init__(self, endpoint: Endpoint, relay: Relay) -> None:
        self._endpoint = endpoint
        self._relay = relay

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrival: Arrival = scope[ARRIVAL]
        reply = _Reply(send, self._endpoint, arrival.request_id)
        try:
            await self._serve(scope, receive, reply, arrival, new_id("rcpt", arrival.at))
        except ClientGone:
            return
        except TaximeterError as error:
            await reply.fail(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            _log.exception("request %s broke the gateway", arrival.request_id)
            await reply.fail(error)

    async def _serve(self, scope: Scope, receive: Receive, reply: _Reply, arrival: Arrival, receipt_id: str) -> None:
        body = await read_body(scope, receive)
        try:
            groups = _groups(scope)
            call, request = await beside_streams(body, self._understand, body, arrival, groups)
        except RequestError as error:
            model = await beside_streams(body, model_named_in, body)
            if model is not None:
                reply.receipt_id = receipt_id
                await self._relay.refuse(self._refused_request(arrival, model), error, receipt_id=receipt_id)
            raise
        reply.receipt_id = receipt_id
        exchange = await self._relay.open(request, call.prompt, receipt_id=receipt_id)
        watching = asyncio.create_task(_let_go_when_gone(receive, exchange))
        try:
            await (self._stream if call.stream else self._whole)(exchange, reply, call)
        finally:
            exchange.let_go()
            watching.cancel()

    async def _stream(self, exchange: Exchange, reply: _Reply, call: Call) -> None:
        writer = reply.writer = self._endpoint.writer(exchange.request, call)
        async for event in exchange:
            match event:
                case TokensGenerated():
                    await reply.stream(writer.tokens(event))
                case ChoiceFinished():
                    await reply.stream(writer.finished(event))
                case Served() if exchange.receipt.outcome is Outcome.COMPLETED:
                    await reply.stream(writer.end(event.usage), more=False)
                case _:
                    pass

    async def _whole(self, exchange: Exchange, reply: _Reply, call: Call) -> None:
        writer = self._endpoint.writer(exchange.request, call)
        async for event in exchange:
            match event:
                case TokensGenerated() | ChoiceFinished():
                    writer.keep(event)
                case Served() if exchange.receipt.outcome is Outcome.COMPLETED:
                    await reply.whole(200, writer.whole(event.usage))
                case _:
                    pass

    def _understand(self, body: bytes, arrival: Arrival, groups: _Groups) -> tuple[Call, Request]:
        call = self._endpoint.parse(body)
        return call, Request(
            id=arrival.request_id,
            received_at=arrival.at,
            received_ns=arrival.at_ns,
            dialect=self._endpoint.dialect,
            model=call.model,
            sampling=call.sampling,
            max_output_tokens=call.max_output_tokens,
            stream=call.stream,
            prompt_fingerprint=call.prompt.fingerprint(),
            task=groups.task,
            run=groups.run,
            session=groups.session,
            tier=call.tier,
        )

    def _refused_request(self, arrival: Arrival, model: str) -> Request:
        return Request(
            id=arrival.request_id,
            received_at=arrival.at,
            received_ns=arrival.at_ns,
            dialect=self._endpoint.dialect,
            model=model,
        )


class _Reply:
    """The one response to a request: begun when there is something to send, and ended once."""

    def __init__(self, send: Send, endpoint: Endpoint, request_id: str) -> None:
        self.receipt_id: str | None = None
        self.writer: AnswerWriter | None = None  # of a stream
        self._send = send
        self._endpoint = endpoint
        self._request_id = request_id
        self._begun = False
        self._ended = False

    async def stream(self, data: bytes, *, more: bool = True) -> None:
        """Send a piece of an event stream; without `more` it is the last."""
        if not self._begun:
            if not data:
                return
            await self._begin(200, _STREAM)
        if data or not more:
            await self._write(data, more=more)

    async def whole(self, status: int, body: bytes, headers: Headers | None = None) -> None:
        """Send everything at once."""
        await self._begin(status, [*_JSON, (b"content-length", str(len(body)).encode()), *(headers or [])])
        await self._write(body, more=False)

    async def fail(self, error: Exception) -> None:
        """Tell the client: with a status if there is still time, else as the last event of the stream."""
        http = as_http(error, self._request_id)
        if not self._begun:
            await self.whole(http.status, self._endpoint.error_body(http.fault), http.headers)
        elif not self._ended:
            last = None if self.writer is None else self.writer.broken(http.fault)
            await self._write(last or self._endpoint.error_event(http.fault), more=False)

    async def _begin(self, status: int, headers: Headers) -> None:
        self._begun = True
        if self.receipt_id is not None:
            headers = [*headers, (b"x-taximeter-receipt", self.receipt_id.encode())]
        if self._endpoint.request_id_header is not None:
            headers = [*headers, (self._endpoint.request_id_header, self._request_id.encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _write(self, data: bytes, *, more: bool) -> None:
        self._ended = not more
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


async def _let_go_when_gone(receive: Receive, exchange: Exchange) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    exchange.let_go()


async def read_body(scope: Scope, receive: Receive) -> bytes:
    """The whole body. Raises DoorError for one that is too long or not JSON by its own word."""
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
    too_long = DoorError(413, "body_too_large", f"the body is longer than {MAX_BODY_BYTES} bytes")
    declared = headers.get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
        raise too_long
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise too_long
        if not message.get("more_body", False):
            return bytes(body)


_P = ParamSpec("_P")
_T = TypeVar("_T")


async def beside_streams(body: bytes, read: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """What `read` makes of the body: at once of a short one, on a thread of a long one, while other answers go on."""
    if len(body) > _LONG_BODY_BYTES:
        return await asyncio.to_thread(read, *args, **kwargs)
    return read(*args, **kwargs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Groups:
    task: str | None
    run: str | None
    session: str | None


def _groups(scope: Scope) -> _Groups:
    """What the request belongs to, by its headers. Raises RequestError for names that no report could show."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    return _Groups(
        task=_group(headers, "x-taximeter-task"),
        run=_group(headers, "x-taximeter-run"),
        session=_group(headers, "x-taximeter-session"),
    )


def _group(headers: dict[bytes, bytes], name: str) -> str | None:
    value = headers.get(name.encode(), b"").decode("utf-8", "replace").strip()
    if not is_group_name(value):
        raise RequestError(
            f"the header {name} must be at most {MOST_GROUP_NAME_CHARACTERS} printable characters in UTF-8", param=name
        )
    return value or None
