"""Routes, and what every response has in common.

Owns: the paths, the stamp at the door, the request id on every response, and the last net under unexpected errors.
Refuses to know: how answers are made; what is inside a receipt.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from taximeter.errors import CapacityError, LedgerError, RequestError, UpstreamError
from taximeter.gateway.ahead import AHEAD, Caller
from taximeter.gateway.arrival import ARRIVAL, ARRIVED_NS, Arrival, ClientGone, beside_streams, read_body
from taximeter.gateway.errors import DoorError, as_http
from taximeter.gateway.group_pages import GroupPages, receipts_asked_for
from taximeter.gateway.groups import split_path
from taximeter.gateway.inference import InferenceDoor, Ways, outgoing_of
from taximeter.gateway.peek import spliced
from taximeter.gateway.relay import Relay
from taximeter.gateway.reply import encoded, json_response, named
from taximeter.ledger import Ledger
from taximeter.pricing import MachineMeter, MachineStatement
from taximeter.providers import anthropic, openai
from taximeter.providers.bodies import model_named_in
from taximeter.records import Dialect, Receipt, new_id, to_json
from taximeter.upstreams.config import Route as Way
from taximeter.upstreams.dispatch import Dispatcher, Trail
from taximeter.upstreams.headers import KEY_HEADERS, Headers
from taximeter.upstreams.secrets import caller_named, concealed, keys_shown

_log = logging.getLogger(__name__)

_MAX_PAGE_RECEIPTS = 1000
_ID = re.compile(r"[a-z]+_[0-9a-z]{22}")  # as `records.new_id` makes them
_PORT = re.compile(r":[0-9]*$")
_KEY_HEADER = b"x-taximeter-key"
_ANSWERER = "taximeter.answerer"  # where the door leaves in the ASGI scope who answers, once it has let somebody in
_HEALTH_PATHS = ("/healthz", "/health")  # the second is what other engines call it, and what their clients look for


def build_app(
    *,
    ways: Ways,
    ledger: Ledger,
    machine: MachineMeter | None,
    hosts: Collection[str] | None = None,
    key: str | None = None,
    more: Sequence[Route] = (),
) -> Door:
    """The whole door as one ASGI application. `machine` is the meter of our own machine, None without a rate. `key` is
    what callers have to show, None where none is asked for. `more` are pages of other rooms.

    `hosts` are the names, as in a URL and without port, under which requests may ask for this server; None is any. A
    server that only its own machine can reach needs them: a web page may give its own name this machine's address, and
    would then be let in by the browser as if it came from here.
    """
    pages = _Pages(ways, ledger, machine)
    doors = {
        "/v1/chat/completions": InferenceDoor(openai.CHAT, ways),
        "/v1/completions": InferenceDoor(openai.COMPLETIONS, ways),
        "/v1/messages": InferenceDoor(anthropic.MESSAGES, ways),
        "/v1/responses": InferenceDoor(openai.RESPONSES, ways),
        "/v1/embeddings": InferenceDoor(openai.EMBEDDINGS, ways),
    }
    groups = GroupPages(ledger, ways.relay.clock)
    routes = [
        *(Route(path, door, methods=["POST"]) for path, door in doors.items()),
        Route("/v1/messages/count_tokens", pages.count_tokens, methods=["POST"]),
        Route("/v1/models", pages.models),
        Route("/v1/models/{id:path}", pages.model),
        *(Route(path, pages.health) for path in _HEALTH_PATHS),
        Route("/api/receipts", pages.receipts),
        Route("/api/receipts/{id}", pages.receipt),
        Route("/api/tasks/{id:path}/finish", groups.finish, methods=["POST"]),
        Route("/api/tasks/{id:path}", groups.task),
        Route("/api/runs/{id:path}", groups.run),
        Route("/api/sessions/{id:path}", groups.session),
        Route("/api/machine", pages.machine),
        Route("/api/machines", pages.machines),
        *more,
    ]
    app = Starlette(routes=routes, exception_handlers=_ERRORS)
    app.router.redirect_slashes = False
    return Door(app, doors, ways.relay, hosts, key)


class Door:
    """Around everything: stamps a request before anything else happens to it, and turns away strange pages, and
    strangers."""

    def __init__(
        self,
        app: ASGIApp,
        doors: Mapping[str, InferenceDoor],
        relay: Relay,
        hosts: Collection[str] | None,
        key: str | None,
    ) -> None:
        self._app = app
        self._doors = doors
        self._hosts = hosts
        self._key = None if key is None else key.encode()
        self._relay = relay
        self._clock = relay.clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        app: ASGIApp = scope.get(_ANSWERER) or self._let_in(scope)
        arrival: Arrival = scope[ARRIVAL]

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = named(message.get("headers", []), arrival.request_id)
            await send(message)

        try:
            await app(scope, receive, send_with_id)
        except asyncio.CancelledError:
            # The server ends connections that outlast its patience. The exchange has its own task, and its receipt.
            _log.warning("request %s: its client was cut off, the server is going down", arrival.request_id)
        except Exception:  # noqa: BLE001 - the last net: the server outlives every request
            _log.exception("request %s broke the gateway", arrival.request_id)

    def ask_ahead(self, scope: Scope, body: bytes, caller: Caller) -> bool:
        """Whether the whole request, whose head is in `scope`, was plain enough to be sent on at once. If so, the
        caller is told when to call this with the scope; else it does so at once."""
        try:
            door = scope[_ANSWERER] = self._let_in(scope)
            if isinstance(door, InferenceDoor) and (ahead := door.ask_ahead(scope, body, caller)) is not None:
                scope[AHEAD] = ahead
        except Exception:  # noqa: BLE001 - it has its ordinary way, and that has its nets
            _log.exception("a request could not be asked ahead")
        return AHEAD in scope

    def _let_in(self, scope: Scope) -> ASGIApp:
        """Stamp it, and say who answers it: also those who are turned away get an answer. Once for each request."""
        at_ns, at = scope.get(ARRIVED_NS) or self._clock.monotonic_ns(), self._clock.utc_now()
        key = _caller(scope["headers"], self._key)
        scope[ARRIVAL] = Arrival(request_id=new_id("req", at), at=at, at_ns=at_ns, key=key)
        wrong = _read_groups_of_path(scope)
        if not self._is_meant(scope):
            return _respond(scope, _strange_host())
        if self._key is not None and scope["path"] not in _HEALTH_PATHS:
            is_open, scope["headers"] = _unlocked(scope["headers"], self._key)
            if not is_open:
                return _respond(scope, _no_key())
        if wrong is not None:
            return _respond(scope, wrong)
        # Doors answer their own errors: they are reached past the router and its nets, which take as long as a door.
        if scope["method"] == "POST" and (door := self._doors.get(scope["path"])) is not None:
            return door
        self._relay.show_due()  # pages tell of every answer that has ended
        return self._app

    def _is_meant(self, scope: Scope) -> bool:
        """Whether every name the request has for this server is one of ours. Browsers give one, always."""
        if self._hosts is None:
            return True
        return all(_host_named(value) in self._hosts for name, value in scope["headers"] if name == b"host")


@lru_cache(maxsize=64)  # most requests ask for the host that the one before asked for
def _host_named(value: bytes) -> str:
    """The name in a `host` header."""
    return _PORT.sub("", value.decode("latin-1").lower())


class _Pages:
    """Everything that is only looked at."""

    def __init__(self, ways: Ways, ledger: Ledger, machine: MachineMeter | None) -> None:
        self._ways = ways
        self._relay = relay = ways.relay
        self._ledger = ledger
        self._meter = machine
        self._up_since = relay.clock.utc_now()

    async def models(self, http: HttpRequest) -> Response:
        infos = self._relay.backend.models()
        if _is_anthropic(http.scope):
            return json_response(anthropic.models_body(infos, created_at=self._up_since))
        return json_response(openai.models_body(infos, created=int(self._up_since.timestamp())))

    async def model(self, http: HttpRequest) -> Response:
        wanted: str = http.path_params["id"]
        for info in self._relay.backend.models():
            if info.id == wanted:
                if _is_anthropic(http.scope):
                    return json_response(anthropic.model_body(info, created_at=self._up_since))
                return json_response(openai.model_body(info, created=int(self._up_since.timestamp())))
        raise DoorError(404, "model_not_found", "no such model is served here", hint="GET /v1/models lists them")

    async def count_tokens(self, http: HttpRequest) -> Response:
        """How long a prompt is: nothing is made of it, so there is no receipt."""
        body = await read_body(http.scope, http.receive)
        way = self._ways.passage(model_named_in(body) or "", Dialect.ANTHROPIC_MESSAGES)
        if way is not None:
            return await self._ask_elsewhere(http.scope, body, *way)
        model, prompt = await beside_streams(body, anthropic.parse_count, body)
        tokens = await self._relay.backend.count_tokens(model, prompt)
        if tokens is None:
            raise RequestError("whoever serves this model does not count tokens without answering", param="model")
        return json_response(anthropic.count_body(tokens))

    async def _ask_elsewhere(self, scope: Scope, body: bytes, route: Way, dispatcher: Dispatcher) -> Response:
        """Nothing is metered, so nothing is looked at."""
        if route.send_as is not None:
            body = spliced(body, {"model": route.send_as})
        outgoing = replace(outgoing_of(scope, body), is_metered=False)
        incoming = await dispatcher.reach(route.upstreams, outgoing, Trail())
        try:
            answer = b"".join([read.data async for read in incoming])
        finally:
            incoming.close()
        if incoming.status >= 300:
            answer = concealed(answer, keys_shown(incoming.upstream.key, outgoing.headers))
        response = Response(answer, incoming.status)
        response.raw_headers += incoming.headers
        return response

    async def health(self, _http: HttpRequest) -> Response:
        from taximeter import __version__  # noqa: PLC0415  # reads the installation's metadata

        relay, counts = self._relay, self._ledger.counts()
        lost = counts.lost + relay.receipts_lost
        return encoded(
            {
                # Answers go on when the books do not; whoever watches shall know.
                "status": "degraded" if lost or self._ledger.away else "ok",
                "version": __version__,
                "backend": relay.backend.name,
                "models": [info.id for info in relay.backend.models()],
                "up_since": self._up_since.isoformat(),
                "in_flight": relay.in_flight,
                "receipts": {
                    "accepted": counts.accepted + relay.receipts_lost,
                    "written": counts.written,
                    "spooled": counts.spooled,
                    "lost": lost,
                    "lost_before": self._ledger.lost_before,
                },
            }
        )

    async def receipts(self, http: HttpRequest) -> Response:
        text = http.query_params.get("limit", "50")
        limit = int(text) if re.fullmatch(r"[0-9]{1,4}", text) else 0
        if not 1 <= limit <= _MAX_PAGE_RECEIPTS:
            raise RequestError(f"`limit` must be a number from 1 to {_MAX_PAGE_RECEIPTS}", param="limit")
        before = http.query_params.get("before")
        if before is not None and await self._find(before) is None:
            raise RequestError("`before` must be the id of a receipt", param="before")

        def page() -> Response:  # a long one takes a while to write out, too
            return encoded({"receipts": to_json(receipts_asked_for(http, self._ledger, limit, before))})

        return await asyncio.to_thread(page)

    async def receipt(self, http: HttpRequest) -> Response:
        found = await self._find(http.path_params["id"])
        if found is None:
            raise DoorError(404, "receipt_not_found", "no such receipt", hint="GET /api/receipts lists the newest")
        return encoded(to_json(found))

    async def _find(self, name: str) -> Receipt | None:
        # Whole ids only: the ledger's search by a beginning is for people at a terminal, and may be ambiguous.
        return await asyncio.to_thread(self._ledger.receipt, name) if _ID.fullmatch(name) else None

    async def machine(self, _http: HttpRequest) -> Response:
        if self._meter is None:
            raise DoorError(404, "no_machine_rate", "no rate is set for this machine", hint="set --machine-rate")
        statement = self._own_statement()
        if statement is None:
            raise DoorError(404, "no_machine", "answers come from somebody else's machine")
        return encoded(to_json(statement))

    async def machines(self, _http: HttpRequest) -> Response:
        """All that are paid by the hour, by who serves there: upstreams, and our own engine."""
        shared = self._relay.machines
        statements = {} if shared is None else shared.statements(self._relay.clock.monotonic_ns())
        if (own := self._own_statement()) is not None:
            statements[self._relay.backend.name] = own
        return encoded({"machines": to_json(statements)})

    def _own_statement(self) -> MachineStatement | None:
        if self._meter is None:
            return None
        # In this order: the meter may run ahead of a machine time read before it, never behind.
        charged_ns = self._meter.charged_ns
        time = self._relay.backend.machine_time()
        return None if time is None else self._meter.statement(time, charged_ns=charged_ns)


def _unlocked(headers: Headers, key: bytes) -> tuple[bool, Headers]:
    """Whether `key` is among the headers, and all but it: it is ours, and nobody else's business. Under a name of our
    own it leaves those under which keys usually come to the caller's key for whoever answers; else they are dropped."""
    named = [value for name, value in headers if name == _KEY_HEADER]
    shown = named or [_bare(name, value) for name, value in headers if name in KEY_HEADERS]
    matches = [hmac.compare_digest(each, key) for each in shown]  # all of them, so that it takes the same time
    kept = [
        (name, value)
        for name, value in headers
        if name not in KEY_HEADERS or (named and not hmac.compare_digest(_bare(name, value), key))
    ]
    return any(matches), kept


def _caller(headers: Headers, key: bytes | None) -> str | None:
    """Who called, by the key that was shown: the caller's own where there is one beside `key`, which all of them
    have."""
    shown = [bare for name, value in headers if name in KEY_HEADERS and (bare := _bare(name, value))]
    own = [each for each in shown if key is None or not hmac.compare_digest(each, key)]
    named = [value for name, value in headers if name == _KEY_HEADER and value]
    return next(map(caller_named, (*own, *shown, *named)), None)


def _bare(name: bytes, value: bytes) -> bytes:
    return value[7:].strip() if name == b"authorization" and value[:7].lower() == b"bearer " else value


def _read_groups_of_path(scope: Scope) -> RequestError | None:
    """Take what a request belongs to out of its path and lay it to its headers, where those say nothing else. Gives
    what is wrong with it."""
    raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
    try:
        path, named = split_path(raw_path)
    except RequestError as error:
        return error
    if named:
        scope["raw_path"], scope["path"] = path, unquote(path.decode("latin-1"))
        scope["headers"] = [*named, *scope["headers"]]  # of two that name the same, the later counts
    return None


async def _http_error(http: HttpRequest, error: Exception) -> Response:
    """Starlette's own: no such path, or not with this method."""
    if not isinstance(error, HTTPException):
        raise error
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    told = DoorError(error.status_code, code, f"{http.method} {http.scope['path'][:200]}: {error.detail.lower()}")
    return _respond(http.scope, told, error.headers)


async def _error(http: HttpRequest, error: Exception) -> Response:
    return _respond(http.scope, error)


async def _to_nobody(_http: HttpRequest, _error: Exception) -> Response:
    return Response(status_code=400)


# A caller's mistake is answered here; what is left over reaches the door, which logs it, and is answered all the same.
_ERRORS = {
    HTTPException: _http_error,
    ClientGone: _to_nobody,
    RequestError: _error,
    CapacityError: _error,
    UpstreamError: _error,
    LedgerError: _error,
    Exception: _error,
}


def _strange_host() -> DoorError:
    return DoorError(
        403,
        "unknown_host",
        "the request asks for another host than this one",
        hint="ask for localhost or 127.0.0.1, or serve with --host and an address that others may reach",
    )


def _no_key() -> DoorError:
    return DoorError(
        401,
        "invalid_api_key",
        "this gateway asks for a key, and the request shows none or a wrong one",
        hint="send the key that the gateway was started with as `authorization: Bearer KEY` or `x-api-key: KEY`, or as "
        "`x-taximeter-key: KEY` beside a key of your own for whoever answers",
    )


def _is_anthropic(scope: Scope) -> bool:
    """Whether who asks expects Anthropic's words, also where both dialects have the same path."""
    path: str = scope["path"]
    return path.startswith("/v1/messages") or any(name == b"anthropic-version" for name, _ in scope["headers"])


def _respond(scope: Scope, error: Exception, headers: Mapping[str, str] | None = None) -> Response:
    arrival: Arrival = scope[ARRIVAL]
    http = as_http(error, arrival.request_id)
    write = anthropic.error_body if _is_anthropic(scope) else openai.error_body
    response = json_response(write(http.fault), http.status)
    for name, value in http.headers:
        response.headers[name.decode()] = value.decode()
    response.headers.update(headers or {})
    return response
