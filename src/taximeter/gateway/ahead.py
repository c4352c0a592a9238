"""Asking ahead: a plain request is on its way to its upstream before its books are opened.

Owns: what is known of such a request until then, when the rest is done, and showing the beginning of an answer that was
sooner. Refuses to know: sockets and HTTP towards the client, which the server's edge has (`Caller`); where requests
may go, and whether they are plain (the doors); receipts.

What a request needs before it can go on is little. All else (its records, tasks, the note in the ledger, who watches)
takes several times as long, and has time while the upstream is at work. A body that is here before that is shown at
once but for its last byte, as ever; then the request goes its ordinary way, which finds it asked, and perhaps shown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from taximeter.gateway.arrival import Arrival, Wanted
from taximeter.gateway.peek import Peek
from taximeter.gateway.reply import head_of_body, named
from taximeter.records import Groups, new_id
from taximeter.upstreams.config import Route
from taximeter.upstreams.dispatch import Dispatcher, Outgoing
from taximeter.upstreams.headers import Headers, crossing_back

if TYPE_CHECKING:  # who has no upstreams needs none of it
    from taximeter.upstreams.client import Asked

_log = logging.getLogger(__name__)

AHEAD: Final = "taximeter.ahead"  # where the door leaves it in the ASGI scope
# An upstream that is sooner than this is sooner than its books. Longer than the quickest take, and much shorter than
# what anybody waits for.
_BOOKS_AFTER_S: Final = 0.003
_MOST_SHOWN_BYTES: Final = 256 * 1024  # what is longer goes its ordinary way, which reads while it comes
_EVENTS: Final = b"text/event-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Passing:
    """A body that passes through: what was seen of it, and how it goes on, where to."""

    seen: Peek
    body: bytes
    route: Route
    dispatcher: Dispatcher


class Caller(Protocol):
    """The client's side of one request, at the edge of the server."""

    @property
    def takes_more(self) -> bool:
        """Whether it is there, and not behind with reading."""
        ...

    def show(self, status: int, headers: Headers, data: bytes, *, left_bytes: int) -> None:
        """Begin the response. What follows, of the length, comes the ordinary way."""
        ...

    def carry_on(self) -> None:
        """Begin the ordinary way."""
        ...

    def when_gone(self, tell: Callable[[], object]) -> None:
        """Call `tell` once it has hung up, which may be now."""
        ...


class Ahead:
    """One request that was asked ahead. Its `receipt_id` may have been told to the client."""

    def __init__(
        self, caller: Caller, arrival: Arrival, groups: Groups, passing: Passing, outgoing: Outgoing, asked: Asked
    ) -> None:
        self.groups = groups
        self.passing = passing
        self.outgoing = outgoing
        self.asked = asked
        self.receipt_id = new_id("rcpt", arrival.at)
        self.is_shown = False
        self._arrival = arrival
        self._caller = caller
        self._may_show = True
        self._carries_on = False
        self._timer = asyncio.get_running_loop().call_later(_BOOKS_AFTER_S, self._carry_on)
        asked.answer.on_news = self._look

    def let_go_when_gone(self, wanted: Wanted) -> None:
        """As the function of that name, without a task that waits for it."""
        self._caller.when_gone(wanted.let_go)

    def hold_back(self) -> bool:
        """Show nothing from now on. Gives whether all but the last byte was shown."""
        self._may_show = False
        return self.is_shown

    def _look(self) -> None:
        """More of the answer is here, or nothing more comes."""
        try:
            if self._may_show:
                self._show()
        except Exception:  # noqa: BLE001 - the connection of the upstream does not break for it
            _log.exception("request %s: the beginning of its answer could not be shown", self._arrival.request_id)
        if not self._carries_on:
            self._timer.cancel()
            self._carry_on()

    def _show(self) -> None:
        answer = self.asked.answer
        body = answer.body if answer.status == 200 else None
        if not body or len(body) > _MOST_SHOWN_BYTES or not self._caller.takes_more:
            return
        for name, value in answer.headers:
            if name == b"content-encoding" or (name == b"content-type" and value.lstrip().lower().startswith(_EVENTS)):
                return
        headers = named(head_of_body(crossing_back(answer.headers), body), self._arrival.request_id, self.receipt_id)
        self._may_show, self.is_shown = False, True
        self._caller.show(200, headers, body[:-1], left_bytes=1)

    def _carry_on(self) -> None:
        if not self._carries_on:
            self._carries_on = True
            self._caller.carry_on()
