"""From a route to an answer that has begun: who is tried, in which order, how often.

Owns: tries, and the one rule that none comes after the first byte of an answer was passed on. Refuses to know:
dialects, and what becomes of the answer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from taximeter.clock import SYSTEM_CLOCK, Clock
from taximeter.errors import UpstreamError
from taximeter.records import Attempt
from taximeter.upstreams.breaker import Breaker
from taximeter.upstreams.config import Upstream
from taximeter.upstreams.headers import Headers

if TYPE_CHECKING:
    from taximeter.upstreams.client import Client, Incoming

# What may go better a moment later, or elsewhere. 529 is Anthropic's word for overloaded.
_WORTH_ANOTHER_TRY: Final = frozenset({408, 429, 500, 502, 503, 504, 529})
# And what says that the upstream itself is ill: too many requests do not.
_ILL: Final = _WORTH_ANOTHER_TRY - {408, 429}
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 5.0  # an upstream that wants us to wait for longer is asked by the client itself, later


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A request on its way: `path` with its query, headers as the client sent them, and the body for each upstream."""

    method: str
    path: str
    headers: Headers
    body: bytes
    request_id: str
    received_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """Somebody answers: `sent_ns` is when that try began, `tries` are all of them, the answered one last."""

    incoming: Incoming
    sent_ns: int
    tries: tuple[Attempt, ...]


class Listener(Protocol):
    """Who wants to know when a machine has something to do: somebody pays for its hours."""

    def sent(self, upstream: str, outgoing: Outgoing, at_ns: int) -> None:
        """A try begins."""
        ...

    def refused(self, outgoing: Outgoing, at_ns: int) -> None:
        """And has come to nothing. Of one that is answered the end is told by whoever reads the answer."""
        ...


class NobodyAnswers(UpstreamError):
    """All tries are over, and none got an answer that could be passed on."""

    def __init__(self, tries: Sequence[Attempt], *, retry_after_s: float | None = None) -> None:
        names = ", ".join(dict.fromkeys(each.upstream for each in tries)) or "nobody"
        said = tries[-1].error if tries and tries[-1].error else "no upstream could be tried"
        super().__init__(f"no answer from {names}: {said}", hint="the receipt lists the tries")
        self.tries = tuple(tries)
        self.retry_after_s = retry_after_s


class Dispatcher:
    """Tries upstreams for all requests of a process, and remembers which of them rest."""

    def __init__(self, client: Client, *, listener: Listener | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._client = client
        self._listener = listener
        self._clock = clock
        self._breakers: dict[str, Breaker] = {}

    async def reach(self, upstreams: Sequence[Upstream], outgoing: Outgoing) -> Reached:
        """The first answer that is no reason to try again; or the last one that is, when all tries are over.

        Raises NobodyAnswers when the last try got none. Cancel it to give up: nothing stays open.
        """
        tries: list[Attempt] = []
        last: Reached | None = None
        rests_s: float | None = None
        for upstream in upstreams:
            breaker = self._breakers.setdefault(upstream.name, Breaker())
            pause_s = 0.0
            for _ in range(1 + upstream.retries):
                if pause_s:
                    await _pause(pause_s, last)
                now_ns = self._clock.monotonic_ns()
                if not breaker.allows(now_ns):
                    rests_s = min(breaker.retry_after_s(now_ns), rests_s or _LONGEST_PAUSE_S)
                    if not any(each.upstream == upstream.name for each in tries):
                        started_ns = now_ns - outgoing.received_ns
                        why = "not tried: it failed several times just now"
                        tries.append(Attempt(upstream=upstream.name, started_ns=started_ns, duration_ns=0, error=why))
                    break
                if last is not None:
                    last.incoming.close()
                    last = None
                tried = await self._try(upstream, breaker, outgoing, tries)
                if tried is not None and tried.incoming.status not in _WORTH_ANOTHER_TRY:
                    return tried
                last = tried
                asked_s = None if tried is None else _retry_after_s(tried.incoming)
                if asked_s is not None and asked_s > _LONGEST_PAUSE_S:
                    break
                pause_s = max(asked_s or 0.0, min(_LONGEST_PAUSE_S, (2 * pause_s or _FIRST_PAUSE_S) * _jitter()))
        if last is None:
            raise NobodyAnswers(tries, retry_after_s=rests_s)
        return Reached(incoming=last.incoming, sent_ns=last.sent_ns, tries=tuple(tries))

    async def _try(
        self, upstream: Upstream, breaker: Breaker, outgoing: Outgoing, tries: list[Attempt]
    ) -> Reached | None:
        sent_ns = self._clock.monotonic_ns()
        status: int | None = None
        error: str | None = None
        if self._listener is not None:
            self._listener.sent(upstream.name, outgoing, sent_ns)
        try:
            incoming = await self._client.send(
                upstream, outgoing.method, outgoing.path, outgoing.headers, outgoing.body
            )
        except UpstreamError as broken:
            breaker.failed(self._clock.monotonic_ns())
            incoming, error = None, broken.message
        except BaseException:
            breaker.undecided()
            raise
        else:
            status = incoming.status
            error = f"status {status}" if status in _WORTH_ANOTHER_TRY else None
            if status in _ILL:
                breaker.failed(self._clock.monotonic_ns())
            else:
                breaker.succeeded()
        if self._listener is not None and error is not None:
            self._listener.refused(outgoing, self._clock.monotonic_ns())
        tries.append(
            Attempt(
                upstream=upstream.name,
                started_ns=sent_ns - outgoing.received_ns,
                duration_ns=self._clock.monotonic_ns() - sent_ns,
                status=status,
                error=error,
            )
        )
        return None if incoming is None else Reached(incoming=incoming, sent_ns=sent_ns, tries=tuple(tries))


async def _pause(pause_s: float, holding: Reached | None) -> None:
    try:
        await asyncio.sleep(pause_s)
    except BaseException:
        if holding is not None:
            holding.incoming.close()
        raise


def _jitter() -> float:
    """So that those who failed together do not come back together."""
    return random.uniform(0.75, 1.25)  # noqa: S311 - no secret


def _retry_after_s(incoming: Incoming) -> float | None:
    said = incoming.header("retry-after")
    try:
        return None if said is None else max(0.0, float(said))
    except ValueError:
        return None  # a date: rare, and rarely close
