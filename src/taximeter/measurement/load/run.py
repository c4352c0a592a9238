"""One level of load, as it was driven and as it was answered.

Owns: what a run at one rate or one concurrency is, its parts put together, and the words for what is wrong with it.
Refuses to know: how requests were sent, and what their figures are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from taximeter.measurement.asking.observation import Observation
from taximeter.measurement.load.client_health import ClientHealth


class Trouble(StrEnum):
    """What may be wrong with a run."""

    CLIENT_BOUND = "client bound"
    MACHINE_FULL = "machine full"
    NOT_OPEN_LOOP = "not open loop"
    NOT_STEADY = "not steady"
    NO_WINDOW = "no steady window"
    COUNTS_DIFFER = "counts differ"
    REPEATED = "prompts repeat"
    CUT_SHORT = "cut short"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A trouble, and a sentence with its figures."""

    trouble: Trouble
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of time, in nanoseconds since the run began."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9

    def has(self, at_ns: int) -> bool:
        """Whether a moment lies in it; its first one does not, its last one does."""
        return self.start_ns < at_ns <= self.end_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun:
    """Everything that was seen at one level.

    An open loop has a rate, and sends when requests are due, whatever became of the others. A closed loop has a
    concurrency: each of so many slots sends its next request when its last one has ended. That shows what a server can
    do, and not what its users wait, since a slow server is asked less.

    `due_ns` is the whole schedule of an open loop, sent or not; `most_in_flight` a cap that was put on it. `ramp_ns` is
    how long its rate grew. `busy_ns` and `idle_ns` are when all slots of a closed loop were first busy, and when the
    first one found nothing more to do; None where that never was. `clients` are the processes that sent, `repeated` is
    how many prompts had been sent before, word for word.
    """

    is_open_loop: bool
    rate_per_s: float | None = None
    concurrency: int | None = None
    most_in_flight: int | None = None
    due_ns: tuple[int, ...] = field(default=(), repr=False)
    ramp_ns: int = 0
    busy_ns: int | None = None
    idle_ns: int | None = None
    ended_ns: int
    observations: tuple[Observation, ...] = field(repr=False)
    clients: tuple[ClientHealth, ...]
    was_stopped: bool = False
    repeated: int = 0

    @property
    def level(self) -> float:
        """The rate or the concurrency."""
        level = self.rate_per_s if self.is_open_loop else self.concurrency
        assert level is not None  # noqa: S101 - one of them is there
        return level


def merged(parts: Sequence[LoadRun]) -> LoadRun:
    """What several clients did at the same time, as one run. Their stamps count from the same moment."""
    first = parts[0]
    rates = [part.rate_per_s for part in parts if part.rate_per_s is not None]
    slots = [part.concurrency for part in parts if part.concurrency is not None]
    caps = [part.most_in_flight for part in parts if part.most_in_flight is not None]
    busy = [part.busy_ns for part in parts]
    idle = [part.idle_ns for part in parts if part.idle_ns is not None]
    seen = [one for part in parts for one in part.observations]
    return LoadRun(
        is_open_loop=first.is_open_loop,
        rate_per_s=sum(rates) if rates else None,
        concurrency=sum(slots) if slots else None,
        most_in_flight=sum(caps) if caps else None,
        due_ns=tuple(sorted(at_ns for part in parts for at_ns in part.due_ns)),
        ramp_ns=max(part.ramp_ns for part in parts),
        busy_ns=None if None in busy else max(at_ns for at_ns in busy if at_ns is not None),
        idle_ns=min(idle, default=None),
        ended_ns=max(part.ended_ns for part in parts),
        observations=tuple(sorted(seen, key=lambda one: (one.scheduled_ns, one.id))),
        clients=tuple(client for part in parts for client in part.clients),
        was_stopped=any(part.was_stopped for part in parts),
        repeated=sum(part.repeated for part in parts),
    )
