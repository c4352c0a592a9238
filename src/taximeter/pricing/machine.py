"""What our own machine costs: an hourly rate, divided among requests by the time they took of it.

Owns: the running total of machine time charged, and the statement that shows that receipts, requests in flight and
idle time are the whole bill. Refuses to know: how a step's time was divided (the engine did that, in nanoseconds).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from decimal import Decimal

from taximeter.errors import InvariantBroken
from taximeter.pricing.charge import dollars, picodollars
from taximeter.records import NS_PER_HOUR, Basis, Cost, CostLine, MachineRate, MachineTime, Rate, weakest


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineStatement:
    """Where a machine's time and money went since it came up, in nanoseconds and dollars.

    `charged` is on receipts, `in_flight` on requests that have no receipt yet, `idle` on nobody. The three sum to
    `total`, which is the rate times wall time, to the last picodollar.
    """

    rate: MachineRate
    wall_ns: int
    busy_ns: int
    charged_ns: int
    in_flight_ns: int
    idle_ns: int
    charged: Decimal
    in_flight: Decimal
    idle: Decimal
    total: Decimal


class MachineMeter:
    """Charges machine time at an hourly rate. Safe to use from several threads.

    Rounding each receipt by itself would lose or gain up to half a picodollar each time. Instead there is one rounded
    function, `bill(t)` = the rate times `t` nanoseconds, and every amount is a difference of two of its values: the
    differences telescope, so that any number of receipts sum to exactly `bill(their time)`.
    """

    def __init__(self, rate: MachineRate, *, basis: Basis = Basis.DERIVED) -> None:
        """`basis` is how well it is known which request took how much of the time."""
        self.rate = rate
        self._rate = Rate(unit="compute_ns", amount=rate.amount_per_hour, per=NS_PER_HOUR)
        self._basis = weakest((rate.basis, basis))
        self._lock = threading.Lock()
        self._charged_ns = 0

    @property
    def charged_ns(self) -> int:
        """Machine time charged until now."""
        with self._lock:
            return self._charged_ns

    def charge(self, compute_ns: int) -> Cost:
        """The cost of `compute_ns` more nanoseconds. Call it once for each receipt: it moves the meter."""
        if compute_ns < 0:
            raise InvariantBroken(f"a request took {compute_ns} ns of the machine: time is never negative")
        with self._lock:
            before_ns = self._charged_ns
            self._charged_ns = after_ns = before_ns + compute_ns
        line = CostLine(
            unit="compute_ns",
            quantity=compute_ns,
            rate=self._rate,
            amount=self._between(before_ns, after_ns),
            basis=self._basis,
        )
        return Cost(lines=(line,), basis=self._basis)

    def statement(self, time: MachineTime, *, charged_ns: int | None = None) -> MachineStatement:
        """The whole bill for `time`.

        While requests are being served, the meter may run ahead of a `time` that was read a moment ago: read
        `charged_ns` first, then `time`, and pass both. Without it the meter's present reading is taken, which is
        right once the machine is at rest.

        Raises InvariantBroken when more was charged than the machine was busy, or it was busy longer than it was up.
        """
        charged_ns = self.charged_ns if charged_ns is None else charged_ns
        if not 0 <= charged_ns <= time.busy_ns <= time.wall_ns:
            raise InvariantBroken(
                f"machine time does not add up: {charged_ns} ns charged, {time.busy_ns} ns busy, {time.wall_ns} ns up",
            )
        return MachineStatement(
            rate=self.rate,
            wall_ns=time.wall_ns,
            busy_ns=time.busy_ns,
            charged_ns=charged_ns,
            in_flight_ns=time.busy_ns - charged_ns,
            idle_ns=time.wall_ns - time.busy_ns,
            charged=self._between(0, charged_ns),
            in_flight=self._between(charged_ns, time.busy_ns),
            idle=self._between(time.busy_ns, time.wall_ns),
            total=self._between(0, time.wall_ns),
        )

    def _between(self, from_ns: int, to_ns: int) -> Decimal:
        return dollars(picodollars(to_ns, self._rate) - picodollars(from_ns, self._rate))
