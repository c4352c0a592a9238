"""A rest for an upstream that is down: nobody waits for what failed for everybody before.

Owns: when it is left alone and when it is tried again. Refuses to know: what a failure is.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

_FAILURES_UNTIL_OPEN: Final = 5
_FIRST_REST_NS: Final = 5_000_000_000
_LONGEST_REST_NS: Final = 60_000_000_000


class BreakerState(StrEnum):
    """How a breaker stands."""

    CLOSED = "closed"  # requests go there
    OPEN = "open"  # none does
    HALF_OPEN = "half-open"  # the rest is over: one tries for all


class Breaker:
    """Closed while things go well; open after five failures in a row, for five seconds at first, each time twice as
    long, at most a minute; then one request tries for all. For one event loop."""

    def __init__(self) -> None:
        self._failures = 0
        self._rest_ns = _FIRST_REST_NS
        self._rests_until_ns: int | None = None
        self._somebody_tries = False

    def allows(self, now_ns: int) -> bool:
        """Whether a request may try now. Who may reports `succeeded`, `failed` or `undecided`."""
        if self._rests_until_ns is None:
            return True
        if now_ns < self._rests_until_ns or self._somebody_tries:
            return False
        self._somebody_tries = True
        return True

    @property
    def is_closed(self) -> bool:
        """Whether requests go there, and nobody has to say so."""
        return self._rests_until_ns is None

    def state(self, now_ns: int) -> BreakerState:
        """How it stands."""
        if self._rests_until_ns is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now_ns < self._rests_until_ns else BreakerState.HALF_OPEN

    def retry_after_s(self, now_ns: int) -> float:
        """How long it will rest yet."""
        return 0.0 if self._rests_until_ns is None else max(0.0, (self._rests_until_ns - now_ns) / 1e9)

    def succeeded(self) -> None:
        """It answered."""
        self._failures = 0
        self._rest_ns = _FIRST_REST_NS
        self._rests_until_ns = None
        self._somebody_tries = False

    def failed(self, now_ns: int) -> None:
        """It did not."""
        self._failures += 1
        was_open = self._rests_until_ns is not None
        if was_open and self._somebody_tries:
            self._rest_ns = min(2 * self._rest_ns, _LONGEST_REST_NS)
        if was_open or self._failures >= _FAILURES_UNTIL_OPEN:
            self._rests_until_ns = now_ns + self._rest_ns
        self._somebody_tries = False

    def undecided(self) -> None:
        """Whoever tried went away before it was known."""
        self._somebody_tries = False
