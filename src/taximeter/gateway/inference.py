"""The endpoints that cost money: one HTTP request, one answer in its dialect, one receipt.

Owns: which way a request goes (our own engine, an upstream of its own dialect, one of another), when a response begins
and how it ends. Refuses to know: fields and shapes of the dialect, clocks of the answer, receipts' contents.

A response begins with the first token, not before: until then an error can still have its own status.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

from starlette.types import Receive, Scope, Send

from taximeter.errors import RequestError, TaximeterError
from taximeter.gateway.ahead import AHEAD, Ahead, Caller, Passing
from taximeter.gateway.arrival import (
    ARRIVAL,
    LONG_BODY_BYTES,
    Arrival,
    ClientGone,
    beside_streams,
    check_body,
    let_go_when_gone,
    read_body,
)
from taximeter.gateway.groups import groups_of
from taximeter.gateway.passage import Head, Passage
from taximeter.gateway.peek import Peek, peek, sent
from taximeter.gateway.relay import Exchange, Relay, ShuttingDown
from taximeter.gateway.reply import Reply
from taximeter.providers.bodies import model_named_in
from taximeter.providers.door import Call, Endpoint
from taximeter.providers.metering import tap_for
from taximeter.records import (
    ChoiceFinished,
    Dialect,
    Groups,
    Outcome,
    PromptRead,
    Request,
    Sampling,
    Served,
    TokensGenerated,
    new_id,
)
from taximeter.upstreams.config import Family, Network, Route
from taximeter.upstreams.dispatch import Dispatcher, Outgoing

_log = logging.getLogger(__name__)

_NEUTRAL: Final = Sampling()
_FAMILIES: Final = {
    Dialect.OPENAI_CHAT: Family.OPENAI,
    Dialect.OPENAI_COMPLETIONS: Family.OPENAI,
    Dialect.OPENAI_RESPONSES: Family.OPENAI,
    Dialect.OPENAI_EMBEDDINGS: Family.OPENAI,
    Dialect.ANTHROPIC_MESSAGES: Family.ANTHROPIC,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """Where requests can go: through `relay` to a backend, and past that, through `dispatcher`, to those upstreams of
    `network` that speak the request's own dialect. Without upstreams there is no dispatcher."""

    relay: Relay
    dispatcher: Dispatcher | None = None
    network: Network = field(default_factory=Network)

    def passage(self, model: str, dialect: Dialect) -> tuple[Route, Dispatcher] | None:
        """The route of a model whose upstreams speak `dialect` themselves, and who tries them."""
        route = self.network.route(model)
        if route is None or self.dispatcher is None or route.speaks is not _FAMILIES[dialect]:
            return None
        return route, self.dispatcher


def outgoing_of(scope: Scope, body: bytes) -> Outgoing:
    """The request in `scope`, to be sent on with `body`."""
    arrival: Arrival = scope[ARRIVAL]
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    return Outgoing(
        method=scope["method"],
        path=(path + b"?" + query if query else path).decode("latin-1"),
        headers=scope["headers"],
        body=body,
        request_id=arrival.request_id,
        received_ns=arrival.at_ns,
    )


class InferenceDoor:
    """One endpoint, as an ASGI application."""

    def __init__(self, endpoint: Endpoint, ways: Ways) -> None:
        self._endpoint = endpoint
        self._ways = ways
        self._relay = ways.relay

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrival: Arrival = scope[ARRIVAL]
        ahead: Ahead | None = scope.get(AHEAD)
        reply = Reply(send, self._endpoint, arrival.request_id, ahead)
        try:
            if ahead is None:
                await self._serve(scope, receive, reply, arrival)
            else:
                request = self._seen(arrival, ahead.passing.seen, ahead.groups)
                reply.receipt_id = ahead.receipt_id
                await self._pass(receive, reply, ahead.passing, request, ahead.outgoing, ahead)
        except ClientGone:
            return
        except TaximeterError as error:
            await reply.fail(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            _log.exception("request %s broke the gateway", arrival.request_id)
            await reply.fail(error)

    def ask_ahead(self, scope: Scope, body: bytes, caller: Caller) -> Ahead | None:
        """Ask an upstream for what is in `body` before anything else is done, where there is nothing to think about.
        Whoever gets it leaves it in the `scope` that this is called with when the caller carries on."""
        if self._relay.is_closed or len(body) > LONG_BODY_BYTES:
            return None
        try:
            check_body(scope)
            groups = groups_of(scope["headers"])
            _, passing = self._passing(body)
        except RequestError:
            return None  # it is told so on its ordinary way
        if passing is None:
            return None
        arrival: Arrival = scope[ARRIVAL]
        outgoing = outgoing_of(scope, passing.body)
        asked = passing.dispatcher.ask_at_once(
            passing.route.upstreams, outgoing, before=lambda: self._relay.expect(arrival.request_id)
        )
        if asked is None:
            return None
        return Ahead(caller, arrival, groups, passing, outgoing, asked)

    async def _serve(self, scope: Scope, receive: Receive, reply: Reply, arrival: Arrival) -> None:
        body = await read_body(scope, receive)
        receipt_id = new_id("rcpt", arrival.at)
        model = None
        groups = Groups()
        try:
            groups = groups_of(scope["headers"])
            model, passing = await beside_streams(body, self._passing, body)
            if passing is not None:
                request = self._seen(arrival, passing.seen, groups)
                reply.receipt_id = receipt_id
                await self._pass(receive, reply, passing, request, outgoing_of(scope, passing.body))
                return
            call, request = await beside_streams(body, self._understand, body, arrival, groups)
        except RequestError as error:
            model = model or await beside_streams(body, model_named_in, body)
            if model is not None:
                reply.receipt_id = receipt_id
                await self._relay.refuse(self._request(arrival, model, groups), error, receipt_id=receipt_id)
            raise
        reply.receipt_id = receipt_id
        exchange = await self._relay.open(request, call.prompt, receipt_id=receipt_id)
        watching = asyncio.create_task(let_go_when_gone(receive, exchange))
        try:
            await (self._stream if call.stream else self._whole)(exchange, reply, call)
        finally:
            exchange.let_go()
            watching.cancel()

    def _passing(self, body: bytes) -> tuple[str | None, Passing | None]:
        """The model, and how a body for it passes through, if it does. Raises RequestError."""
        if self._ways.dispatcher is None:
            return None, None
        try:
            seen = peek(body)
        except RequestError:
            model = model_named_in(body)
            if model is None or self._ways.passage(model, self._endpoint.dialect) is None:
                return model, None  # whoever it is for has words of its own for what is wrong with it
            raise
        way = self._ways.passage(seen.model, self._endpoint.dialect)
        if way is None:
            return seen.model, None
        route, dispatcher = way
        asked = sent(body, seen, self._endpoint.dialect, send_as=route.send_as)
        return seen.model, Passing(seen=seen, body=asked, route=route, dispatcher=dispatcher)

    async def _pass(
        self,
        receive: Receive,
        reply: Reply,
        passing: Passing,
        request: Request,
        outgoing: Outgoing,
        ahead: Ahead | None = None,
    ) -> None:
        dialect, receipt_id = self._endpoint.dialect, reply.receipt_id or ""
        if self._relay.is_closed:
            if ahead is not None:
                ahead.asked.close()
            error = ShuttingDown()
            await self._relay.refuse(request, error, receipt_id=receipt_id)
            raise error
        passage = Passage(
            self._relay,
            passing.dispatcher,
            passing.route,
            outgoing,
            request,
            receipt_id,
            tap=lambda streamed: tap_for(dialect, streamed=streamed),
            strips_usage=passing.seen.stream and not passing.seen.wants_usage,
            ahead=ahead,
        )
        if ahead is not None:
            watching = None
            ahead.let_go_when_gone(passage)
        else:
            watching = asyncio.create_task(let_go_when_gone(receive, passage))
        try:
            async for piece in passage:
                if isinstance(piece, Head):
                    await reply.pass_on(piece.status, piece.headers)
                else:
                    await reply.more(piece, is_last=passage.is_over)
            if not passage.was_cut:
                await reply.end()
        finally:
            passage.let_go()
            if watching is not None:
                watching.cancel()

    async def _stream(self, exchange: Exchange, reply: Reply, call: Call) -> None:
        writer = reply.writer = self._endpoint.writer(exchange.request, call)
        async for event in exchange:
            match event:
                case PromptRead():
                    writer.prompt_read(event.usage)
                case TokensGenerated():
                    await reply.stream(writer.tokens(event))
                case ChoiceFinished():
                    await reply.stream(writer.finished(event))
                case Served() if exchange.receipt.outcome is Outcome.COMPLETED:
                    await reply.stream(writer.end(event.usage), more=False)
                case _:
                    pass

    async def _whole(self, exchange: Exchange, reply: Reply, call: Call) -> None:
        writer = self._endpoint.writer(exchange.request, call)
        async for event in exchange:
            match event:
                case TokensGenerated() | ChoiceFinished():
                    writer.keep(event)
                case Served() if exchange.receipt.outcome is Outcome.COMPLETED:
                    await reply.whole(200, writer.whole(event.usage))
                case _:
                    pass

    def _understand(self, body: bytes, arrival: Arrival, groups: Groups) -> tuple[Call, Request]:
        call = self._endpoint.parse(body)
        return call, self._request(
            arrival,
            call.model,
            groups,
            sampling=call.sampling,
            max_output_tokens=call.max_output_tokens,
            stream=call.stream,
            fingerprint=call.prompt.fingerprint(),
            tier=call.tier,
        )

    def _seen(self, arrival: Arrival, seen: Peek, groups: Groups) -> Request:
        return self._request(
            arrival,
            seen.model,
            groups,
            sampling=Sampling(choices=seen.choices),
            max_output_tokens=seen.max_output_tokens,
            stream=seen.stream,
            fingerprint=seen.fingerprint,
            tier=seen.tier,
        )

    def _request(
        self,
        arrival: Arrival,
        model: str,
        groups: Groups,
        *,
        sampling: Sampling = _NEUTRAL,
        max_output_tokens: int | None = None,
        stream: bool = False,
        fingerprint: tuple[str, ...] = (),
        tier: str | None = None,
    ) -> Request:
        """Of one that is refused no more is known than its model, and where it belongs."""
        return Request(
            id=arrival.request_id,
            received_at=arrival.at,
            received_ns=arrival.at_ns,
            dialect=self._endpoint.dialect,
            model=model,
            sampling=sampling,
            max_output_tokens=max_output_tokens,
            stream=stream,
            prompt_fingerprint=fingerprint,
            task=groups.task,
            run=groups.run,
            session=groups.session,
            tier=tier,
            labels=groups.labels,
            trace=groups.trace,
            traceparent=groups.traceparent,
            key=arrival.key,
        )
