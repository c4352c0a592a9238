"""Whether the client kept up, or measured itself.

Owns: how late the event loop was, whose fault that was, what processor time the client took, and when that is too much.
Refuses to know: requests. The loop is asked every few milliseconds whether it comes in time: what it is late for that,
it is late for tokens too.

A loop is late because it did something else, or because it had to wait for a processor. The first is the client's own,
and more client processes help; the second means that the machine is full, and they make it fuller. Linux counts for
each thread how long it waited while it could have run; where nobody counts, lateness is the client's own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from taximeter.clock import SYSTEM_CLOCK, Clock
from taximeter.measurement.asking.observation import Observation
from taximeter.measurement.load.arrivals import until

_EVERY_NS: Final = 10_000_000
_SCHEDULER_FILE: Final = Path("/proc/thread-self/schedstat")
MOST_LAG_OF_ITL: Final = 0.05
"""The loop is too late where its p99 is more than this share of the median time between tokens."""
MOST_BLOCK_NS: Final = 100_000_000
"""Once so late is too late, whatever p99 says."""
MOST_CPU: Final = 0.8
"""And the client is too busy above this share of a processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHealth:
    """How one client process fared. `due_ns` are the moments, since the run began, when its loop was asked, `lag_ns`
    how late it was for each, `own_lag_ns` that less what it waited for a processor. `cpu_ns` is the processor time that
    the process took within `wall_ns`, `waited_ns` how long its loop waited for one; None where nobody counts."""

    due_ns: tuple[int, ...] = field(repr=False)
    lag_ns: tuple[int, ...] = field(repr=False)
    own_lag_ns: tuple[int, ...] | None = field(default=None, repr=False)
    cpu_ns: int
    wall_ns: int
    waited_ns: int | None = None

    @property
    def cpu_share(self) -> float:
        """Of one processor. A client's event loop has no more than one."""
        return self.cpu_ns / self.wall_ns if self.wall_ns else 0.0

    @property
    def is_busy(self) -> bool:
        """Whether more of them would each have had less to do."""
        return self.cpu_share > MOST_CPU

    def complaint(self, median_itl_ns: float | None) -> Complaint | None:
        """What is wrong with the client, in words; None where nothing is. Where tokens come all at once there is no
        time between them that a lag could be compared with."""
        if self.is_busy:
            used = f"a client process used {self.cpu_share:.0%} of a processor".replace("%", " %")
            return Complaint(is_own=True, says=used)
        own_lag_ns = self.lag_ns if self.own_lag_ns is None else self.own_lag_ns
        own = _late(own_lag_ns, median_itl_ns)
        if own is not None:
            return Complaint(is_own=True, says=own)
        late = _late(self.lag_ns, median_itl_ns)
        if late is None:
            return None
        waited = f", waiting for a processor that others had ({(self.waited_ns or 0) / self.wall_ns:.0%} of the time)"
        return Complaint(is_own=False, says=late + waited.replace("%", " %"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """What is wrong with a client: its own doing, or the machine's that has no processor for it."""

    is_own: bool
    says: str


def _late(lag_ns: Sequence[int], median_itl_ns: float | None) -> str | None:
    """In words, where such lags are too much."""
    if not lag_ns:
        return None
    most_ns, p99_ns = max(lag_ns), sorted(lag_ns)[int(0.99 * (len(lag_ns) - 1))]
    if most_ns > MOST_BLOCK_NS:
        return f"the client's event loop stood still for {most_ns / 1e6:.0f} ms"
    if median_itl_ns and p99_ns > MOST_LAG_OF_ITL * median_itl_ns:
        share = f"{p99_ns / median_itl_ns:.0%}".replace("%", " %")
        return f"the client's event loop was {p99_ns / 1e6:.1f} ms late (p99), {share} of the time between two tokens"
    return None


def waited_for_a_processor_ns() -> int | None:
    """How long this thread has waited for a processor so far, while it could have run; None where nobody counts it."""
    try:
        return int(_SCHEDULER_FILE.read_bytes().split()[1])
    except (OSError, IndexError, ValueError):
        return None


class HealthWatch:
    """Watches the event loop that it is started in. `began_ns` is when the run began, on the clock's scale."""

    def __init__(
        self,
        *,
        began_ns: int,
        clock: Clock = SYSTEM_CLOCK,
        cpu_ns: Callable[[], int] = time.process_time_ns,
        waited_ns: Callable[[], int | None] = waited_for_a_processor_ns,
    ) -> None:
        self._clock = clock
        self._cpu_ns = cpu_ns
        self._waited_ns = waited_ns
        self._began_ns = began_ns
        self._due_ns: list[int] = []
        self._lag_ns: list[int] = []
        self._own_lag_ns: list[int] = []
        self._waited_at_start_ns = waited_ns()
        self._started_ns = clock.monotonic_ns()
        self._cpu_at_start_ns = cpu_ns()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin. From here processor time counts."""
        self._started_ns, self._cpu_at_start_ns = self._clock.monotonic_ns(), self._cpu_ns()
        self._waited_at_start_ns = self._waited_ns()
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> ClientHealth:
        """End, and say how it was."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        return ClientHealth(
            due_ns=tuple(self._due_ns),
            lag_ns=tuple(self._lag_ns),
            own_lag_ns=None if self._waited_at_start_ns is None else tuple(self._own_lag_ns),
            cpu_ns=self._cpu_ns() - self._cpu_at_start_ns,
            wall_ns=self._clock.monotonic_ns() - self._started_ns,
            waited_ns=self._waited_since(self._waited_at_start_ns),
        )

    def _waited_since(self, before_ns: int | None) -> int | None:
        now_ns = self._waited_ns()
        return None if before_ns is None or now_ns is None else now_ns - before_ns

    async def _watch(self) -> None:
        due_ns = self._clock.monotonic_ns()
        while True:
            due_ns += _EVERY_NS
            before_ns = self._waited_ns()
            await until(due_ns, self._clock)
            now_ns = self._clock.monotonic_ns()
            waited_ns = self._waited_since(before_ns) or 0
            # All the moments that went by while the loop did something else were late, each for its own time.
            while due_ns <= now_ns:
                self._due_ns.append(due_ns - self._began_ns)
                self._lag_ns.append(now_ns - due_ns)
                self._own_lag_ns.append(max(0, now_ns - due_ns - waited_ns))
                due_ns += _EVERY_NS
            due_ns -= _EVERY_NS


def with_lags(observations: Sequence[Observation], health: ClientHealth) -> list[Observation]:
    """The observations of one client, each with the latest that its loop was while that request was under way."""
    if not health.due_ns:
        return list(observations)
    due_ns, lag_ns = np.asarray(health.due_ns), np.asarray(health.lag_ns)
    served_ns = due_ns + lag_ns  # neither goes back
    marked: list[Observation] = []
    for seen in observations:
        first = int(np.searchsorted(served_ns, seen.sent_ns))
        last = int(np.searchsorted(due_ns, seen.ended_ns, side="right"))
        marked.append(replace(seen, client_lag_ns=int(lag_ns[first:last].max())) if last > first else seen)
    return marked
