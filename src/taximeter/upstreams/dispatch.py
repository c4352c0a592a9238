"""From a route to an answer that has begun: who is tried, in which order, how often.

Owns: tries, and the one rule that none comes after the first byte of an answer was passed on. Refuses to know:
dialects, and what becomes of the answer. What was tried is kept where whoever asked can see it at any time: a request
that is given up has tries too.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from taximeter.clock import SYSTEM_CLOCK, Clock
from taximeter.errors import UpstreamError
from taximeter.records import Attempt, Phase
from taximeter.upstreams.breaker import Breaker
from taximeter.upstreams.config import Upstream
from taximeter.upstreams.headers import Headers

if TYPE_CHECKING:
    from taximeter.upstreams.client import Asked, Client
    from taximeter.upstreams.incoming import Incoming

# What may go better a moment later, or elsewhere. 529 is Anthropic's word for overloaded.
_WORTH_ANOTHER_TRY: Final = frozenset({408, 429, 500, 502, 503, 504, 529})
# And what says that the upstream itself is ill: too many requests do not.
_ILL: Final = _WORTH_ANOTHER_TRY - {408, 429}
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 5.0  # an upstream that wants us to wait for longer is asked by the client itself, later

AFTER_THE_END_S: Final = 0.25
"""How long an answer may take to end once all of it was said: to say what it took, and to give its connection back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A request on its way: `path` with its query, headers as the client sent them, and the body for each upstream.
    Of one that is not `is_metered` no receipt is written, and nobody who pays for a machine is told."""

    method: str
    path: str
    headers: Headers = field(repr=False)
    body: bytes = field(repr=False)
    request_id: str
    received_ns: int
    is_metered: bool = True


@dataclass(slots=True)
class Trail:
    """What was tried for one request, in order; the one that is answered, or given up, is the last. Without `is_wanted`
    no further try begins."""

    tries: list[Attempt] = field(default_factory=list[Attempt])
    is_wanted: bool = True


class Listener(Protocol):
    """Who wants to know when a machine has something to do: somebody pays for its hours."""

    def sent(self, upstream: str, outgoing: Outgoing, at_ns: int) -> None:
        """A try begins."""
        ...

    def refused(self, outgoing: Outgoing, at_ns: int) -> None:
        """And has come to nothing. Of one that is answered the end is told by whoever reads the answer."""
        ...


class Stale(UpstreamError):
    """A connection that was kept from an earlier request was closed by the other end just as it was used again. That
    says nothing of the upstream, which closes idle connections when it likes."""


class NobodyAnswers(UpstreamError):
    """All tries are over, and none got an answer that could be passed on. `retry_after_s` is when the first of those
    that rest is tried again, None when none rests."""

    def __init__(self, tries: Sequence[Attempt], *, retry_after_s: float | None = None) -> None:
        names = ", ".join(dict.fromkeys(each.upstream for each in tries)) or "nobody"
        said = tries[-1].error if tries and tries[-1].error else "no upstream could be tried"
        super().__init__(f"no answer from {names}: {said}", hint="the receipt lists the tries")
        self.retry_after_s = retry_after_s


class Dispatcher:
    """Tries upstreams for all requests of a process, and remembers which of them rest. `pause` waits between tries."""

    def __init__(
        self,
        client: Client,
        *,
        listener: Listener | None = None,
        clock: Clock = SYSTEM_CLOCK,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._listener = listener
        self._clock = clock
        self._pause = pause
        self._breakers: dict[str, Breaker] = {}

    def breaker(self, upstream: str) -> Breaker:
        """The breaker of the upstream of that name."""
        return self._breakers.setdefault(upstream, Breaker())

    def ask_at_once(
        self, upstreams: Sequence[Upstream], outgoing: Outgoing, *, before: Callable[[], object]
    ) -> Asked | None:
        """Ask the first upstream and wait for nothing, where there is nothing to think about: it is well, a connection
        to it is kept, and nobody pays for its hours. Else None. `before` is called right before anything is sent.
        Whoever gets it gives it to `reach`, or closes it."""
        upstream = upstreams[0]
        if upstream.machine_rate is not None or not self.breaker(upstream.name).is_closed:
            return None
        return self._client.ask_at_once(
            upstream, outgoing.method, outgoing.path, outgoing.headers, outgoing.body, before=before
        )

    async def reach(
        self, upstreams: Sequence[Upstream], outgoing: Outgoing, trail: Trail, asked: Asked | None = None
    ) -> Incoming:
        """The first answer that is no reason to try again; or the last one that is, when all tries are over. The first
        upstream was `asked` already, or not.

        Raises NobodyAnswers when the last try got none. Cancel it to give up: nothing stays open.
        """
        last: Incoming | None = None
        rests_s: list[float] = []
        try:
            for upstream in upstreams:
                breaker = self.breaker(upstream.name)
                pause_s = 0.0
                tries_left, may_be_stale = 1 + upstream.retries, True
                while tries_left and (trail.is_wanted or asked is not None):
                    if pause_s:
                        await self._pause(pause_s)
                    now_ns = self._clock.monotonic_ns()
                    if asked is None and not breaker.allows(now_ns):
                        rests_s.append(breaker.retry_after_s(now_ns))
                        _note_rest(upstream, outgoing, trail, now_ns)
                        break
                    self._dropped(last, outgoing)
                    last = None
                    now_asked, asked = asked, None
                    try:
                        last = await self._try(upstream, breaker, outgoing, trail, now_asked)
                    except Stale:
                        if may_be_stale:  # at once and for free; a second one in a row is the upstream's own doing
                            may_be_stale = False
                            continue
                    tries_left -= 1
                    if last is not None and last.status not in _WORTH_ANOTHER_TRY:
                        return last
                    asked_s = (None if last is None else retry_after_s(last)) or 0.0
                    if asked_s > _LONGEST_PAUSE_S:
                        break
                    pause_s = max(asked_s, min(_LONGEST_PAUSE_S, (2 * pause_s or _FIRST_PAUSE_S) * _jitter()))
        except BaseException:
            self._dropped(last, outgoing)
            raise
        if last is None:
            raise NobodyAnswers(trail.tries, retry_after_s=min(rests_s, default=None))
        return last

    async def _try(
        self, upstream: Upstream, breaker: Breaker, outgoing: Outgoing, trail: Trail, asked: Asked | None
    ) -> Incoming | None:
        sent_ns = self._clock.monotonic_ns() if asked is None else asked.sent_ns
        status: int | None = None
        ended_ns: int | None = None
        error: str | None = "given up: nobody waits for the answer any more"
        listener = self._listener if outgoing.is_metered else None
        if listener is not None:
            listener.sent(upstream.name, outgoing, sent_ns)
        try:
            incoming = await self._client.send(
                upstream, outgoing.method, outgoing.path, outgoing.headers, outgoing.body, asked=asked
            )
            status, ended_ns = incoming.status, incoming.begun.arrived_ns
            error = f"status {status}" if status in _WORTH_ANOTHER_TRY else None
            if status in _ILL:
                breaker.failed(self._clock.monotonic_ns())
            else:
                breaker.succeeded()
            return incoming
        except Stale as stale:
            breaker.undecided()
            error = stale.message
            raise
        except UpstreamError as broken:
            breaker.failed(self._clock.monotonic_ns())
            error = broken.message
            return None
        except BaseException:
            breaker.undecided()
            raise
        finally:
            ended_ns = ended_ns or self._clock.monotonic_ns()
            if status is None and listener is not None:
                listener.refused(outgoing, ended_ns)
            trail.tries.append(
                Attempt(
                    upstream=upstream.name,
                    started_ns=sent_ns - outgoing.received_ns,
                    duration_ns=max(0, ended_ns - sent_ns),
                    status=status,
                    error=error,
                )
            )

    def _dropped(self, incoming: Incoming | None, outgoing: Outgoing) -> None:
        """An answer that another try takes the place of."""
        if incoming is not None:
            incoming.close()
            if self._listener is not None and outgoing.is_metered:
                self._listener.refused(outgoing, self._clock.monotonic_ns())


def phases_of(tries: Sequence[Attempt], received_ns: int, *, is_answered: bool) -> Iterator[tuple[Phase, int]]:
    """Where a request was from its first try on, and since when: at an upstream during each, here between them. An
    answered one is still there at the end."""
    for attempt in tries:
        started_ns = received_ns + attempt.started_ns
        yield Phase.UPSTREAM, started_ns
        if not is_answered or attempt is not tries[-1]:
            yield Phase.GATEWAY, started_ns + attempt.duration_ns


def _note_rest(upstream: Upstream, outgoing: Outgoing, trail: Trail, now_ns: int) -> None:
    if not any(each.upstream == upstream.name for each in trail.tries):
        why = "not tried: it failed several times just now"
        started_ns = now_ns - outgoing.received_ns
        trail.tries.append(Attempt(upstream=upstream.name, started_ns=started_ns, duration_ns=0, error=why))


def _jitter() -> float:
    """So that those who failed together do not come back together."""
    return random.uniform(0.75, 1.25)  # noqa: S311 - no secret


def retry_after_s(incoming: Incoming) -> float | None:
    """How long an upstream wants to be left alone, where it says so in seconds. A date is rare, and rarely close."""
    said = incoming.header("retry-after")
    try:
        wait_s = float(said or "")
    except ValueError:
        return None
    return wait_s if 0 <= wait_s < math.inf else None
