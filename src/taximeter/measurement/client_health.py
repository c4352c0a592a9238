"""Whether the client kept up, or measured itself.

Owns: how late the event loop was, what processor time the client took, and when that is too much. Refuses to know:
requests. The loop is asked every few milliseconds whether it comes in time: what it is late for that, it is late for
tokens too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from taximeter.clock import SYSTEM_CLOCK, Clock
from taximeter.measurement.arrivals import until
from taximeter.measurement.observation import Observation

_EVERY_NS: Final = 10_000_000
MOST_LAG_OF_ITL: Final = 0.05
"""The loop is too late where its p99 is more than this share of the median time between tokens."""
MOST_BLOCK_NS: Final = 100_000_000
"""Once so late is too late, whatever p99 says."""
MOST_CPU: Final = 0.8
"""And the client is too busy above this share of a processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHealth:
    """How one client process fared. `due_ns` are the moments, since the run began, when its loop was asked, `lag_ns`
    how late it was for each. `cpu_ns` is the processor time that the process took within `wall_ns`."""

    due_ns: tuple[int, ...] = field(repr=False)
    lag_ns: tuple[int, ...] = field(repr=False)
    cpu_ns: int
    wall_ns: int

    @property
    def cpu_share(self) -> float:
        """Of one processor. A client's event loop has no more than one."""
        return self.cpu_ns / self.wall_ns if self.wall_ns else 0.0

    @property
    def is_busy(self) -> bool:
        """Whether more of them would each have had less to do."""
        return self.cpu_share > MOST_CPU

    @property
    def p99_lag_ns(self) -> int:
        """The lag that it had at most 99 times in 100."""
        return sorted(self.lag_ns)[int(0.99 * (len(self.lag_ns) - 1))] if self.lag_ns else 0

    @property
    def most_lag_ns(self) -> int:
        return max(self.lag_ns, default=0)

    def complaint(self, median_itl_ns: float | None) -> str | None:
        """What is wrong with the client, in words; None where nothing is. Where tokens come all at once there is no
        time between them that a lag could be compared with."""
        if self.is_busy:
            return f"a client process used {self.cpu_share:.0%} of a processor".replace("%", " %")
        if self.most_lag_ns > MOST_BLOCK_NS:
            return f"the client's event loop stood still for {self.most_lag_ns / 1e6:.0f} ms"
        if median_itl_ns and self.p99_lag_ns > MOST_LAG_OF_ITL * median_itl_ns:
            return (
                f"the client's event loop was {self.p99_lag_ns / 1e6:.1f} ms late (p99), which is "
                f"{self.p99_lag_ns / median_itl_ns:.0%} of the time between two tokens".replace("%", " %")
            )
        return None


class HealthWatch:
    """Watches the event loop that it is started in. `began_ns` is when the run began, on the clock's scale."""

    def __init__(
        self, *, began_ns: int, clock: Clock = SYSTEM_CLOCK, cpu_ns: Callable[[], int] = time.process_time_ns
    ) -> None:
        self._clock = clock
        self._cpu_ns = cpu_ns
        self._began_ns = began_ns
        self._due_ns: list[int] = []
        self._lag_ns: list[int] = []
        self._started_ns = clock.monotonic_ns()
        self._cpu_at_start_ns = cpu_ns()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin. From here processor time counts."""
        self._started_ns, self._cpu_at_start_ns = self._clock.monotonic_ns(), self._cpu_ns()
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> ClientHealth:
        """End, and say how it was."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        return ClientHealth(
            due_ns=tuple(self._due_ns),
            lag_ns=tuple(self._lag_ns),
            cpu_ns=self._cpu_ns() - self._cpu_at_start_ns,
            wall_ns=self._clock.monotonic_ns() - self._started_ns,
        )

    async def _watch(self) -> None:
        due_ns = self._clock.monotonic_ns()
        while True:
            due_ns += _EVERY_NS
            await until(due_ns, self._clock)
            now_ns = self._clock.monotonic_ns()
            # All the moments that went by while the loop did something else were late, each for its own time.
            while due_ns <= now_ns:
                self._due_ns.append(due_ns - self._began_ns)
                self._lag_ns.append(now_ns - due_ns)
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
