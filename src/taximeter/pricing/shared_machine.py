"""What a machine costs that several requests share: an engine of ours behind the gateway, at an hourly rate.

Owns: dividing the time in which anything was being served among those requests, by the work that can be seen of each.
Refuses to know: how the engine works inside, and what time it is (callers stamp by one monotonic clock).

Our own engine knows what each step cost it. Of another one we see when requests come and go, the tokens that pass, and
perhaps what it says of its times; so the division is *modelled*, and yet exact: receipts, requests in flight and idle
time are the rate times the wall time, to the last picodollar.

While at least one request is in flight, the machine's time goes into a pool. A request that ends with work W, while the
others have been seen to do V until then, takes W ÷ (W + V) of the pool; what is left there is what the others have
earned by now. The last one out takes all of it. Where the price of work does not change, that is what each used.

Work is counted in prompt tokens: one for each that came from no cache, none for one that did, and `output_weight` for
a generated one. Where an engine says how long it worked for a request, in prefill and decode, that counts instead,
brought to the same unit by what both come to over all requests that said it. Until a request ends, its prompt is what
its caller estimated.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from taximeter.errors import PricingError
from taximeter.pricing.machine import MachineMeter, MachineStatement
from taximeter.records import Basis, Cost, MachineRate, MachineTime, Phase, Request, Terms, Usage

OUTPUT_WEIGHT = 4
"""Prompt tokens that a generated one counts for: about the ratio at which hosted models are priced."""


@dataclass(slots=True)
class _InFlight:
    prompt_tokens: int
    output_tokens: int = 0


class SharedMachineTariff:
    """A `Tariff` for one such machine. Safe to use from several threads.

    `begin`, `progress` and `end` are told of each request that goes there, by its id, and once more for each time it is
    tried again; `cost` charges what it took in all.
    """

    def __init__(self, rate: MachineRate, *, started_ns: int, output_weight: int = OUTPUT_WEIGHT) -> None:
        """`started_ns` is since when the machine is paid for, on the clock of all later stamps."""
        self._meter = MachineMeter(rate, basis=Basis.MODELLED)
        self._output_weight = output_weight
        self._lock = threading.Lock()
        self._started_ns = self._last_ns = started_ns
        self._busy_ns = 0
        self._pool_ns = 0
        self._in_flight: dict[str, _InFlight] = {}
        self._shares_ns: dict[str, int] = {}  # of requests that ended and have no receipt yet
        self._timed_ns = 0
        self._timed_work = 0

    def begin(self, request_id: str, at_ns: int, *, prompt_tokens: int = 0) -> None:
        """A request goes to the machine; `prompt_tokens` is a guess at the length of its prompt."""
        with self._lock:
            self._advance(at_ns)
            self._in_flight.setdefault(request_id, _InFlight(prompt_tokens))

    def progress(self, request_id: str, tokens: int = 1) -> None:
        """So many more generated tokens were seen of it."""
        with self._lock:
            request = self._in_flight.get(request_id)
            if request is not None:
                request.output_tokens += tokens

    def end(
        self,
        request_id: str,
        at_ns: int,
        *,
        usage: Usage | None = None,
        spent_ns: Mapping[Phase, int] | None = None,
    ) -> None:
        """The machine is done with the request, however it ended. Idempotent: a second word changes nothing.

        `usage` is what its answer said it took, `spent_ns` what the engine said of its times.
        """
        with self._lock:
            self._advance(at_ns)
            request = self._in_flight.pop(request_id, None)
            if request is None:
                return
            work = self._work(request, usage, spent_ns or {})
            others = sum(self._seen(other) for other in self._in_flight.values())
            if not self._in_flight:
                share_ns = self._pool_ns
            elif work + others == 0:
                share_ns = self._pool_ns // (1 + len(self._in_flight))
            else:
                share_ns = self._pool_ns * work // (work + others)
            self._pool_ns -= share_ns
            self._shares_ns[request_id] = self._shares_ns.get(request_id, 0) + share_ns

    def waive(self, request_id: str) -> None:
        """Nobody pays for what a request took here that has ended: it counts as idle."""
        with self._lock:
            self._busy_ns -= self._shares_ns.pop(request_id, 0)

    def cost(
        self,
        *,
        receipt_id: str,
        request: Request,
        model_served: str | None,  # noqa: ARG002 - a machine costs the same whatever it serves
        usage: Usage | None,  # noqa: ARG002 - it was told when the request ended
        terms: Terms | None,  # noqa: ARG002
        at: datetime,  # noqa: ARG002 - and whenever it does
    ) -> Cost:
        """See `Tariff.cost`. Raises PricingError for a request whose beginning or end the machine was not told of."""
        with self._lock:
            share_ns = self._shares_ns.pop(request.id, None)
            if share_ns is None:
                raise PricingError(f"the machine's time is not known for {receipt_id}: it never began or ended there")
            return self._meter.charge(share_ns)

    def statement(self, at_ns: int) -> MachineStatement:
        """The whole bill until `at_ns`. What has ended and has no receipt yet counts as in flight."""
        with self._lock:
            self._advance(at_ns)
            return self._meter.statement(MachineTime(wall_ns=self._last_ns - self._started_ns, busy_ns=self._busy_ns))

    def _advance(self, at_ns: int) -> None:
        # Two threads may stamp the same moment in either order: time stands still for the later comer.
        passed_ns = max(0, at_ns - self._last_ns)
        self._last_ns += passed_ns
        if self._in_flight:
            self._busy_ns += passed_ns
            self._pool_ns += passed_ns

    def _seen(self, request: _InFlight) -> int:
        return request.prompt_tokens + self._output_weight * request.output_tokens

    def _work(self, request: _InFlight, usage: Usage | None, spent_ns: Mapping[Phase, int]) -> int:
        work = self._seen(request)
        if usage is not None and usage.input_tokens is not None and usage.output_tokens is not None:
            cached = (usage.input_cache_read_tokens or 0) + (usage.input_audio_cache_read_tokens or 0)
            work = usage.input_tokens - cached + self._output_weight * usage.output_tokens
        worked_ns = spent_ns.get(Phase.PREFILL, 0) + spent_ns.get(Phase.DECODE, 0)
        if not worked_ns or not work:
            return work
        self._timed_ns += worked_ns
        self._timed_work += work
        return worked_ns * self._timed_work // self._timed_ns


_BYTES_OF_A_TOKEN = 4  # of English; a guess until the answer says how long its prompt was


class Asked(Protocol):
    """As much of a request on its way as a machine's meter wants to know."""

    @property
    def request_id(self) -> str: ...

    @property
    def body(self) -> bytes: ...


class Machines:
    """All machines that are paid by the hour, by the upstream that runs on each, and which of them a request is at.

    It hears of tries as they begin and fail, of tokens and of ends, and passes it on to the tariff concerned."""

    def __init__(self, tariffs: Mapping[str, SharedMachineTariff]) -> None:
        self._tariffs = tariffs
        self._at: dict[str, SharedMachineTariff] = {}
        self._tried: dict[str, set[str]] = {}  # machines that each request without a receipt has been at

    def sent(self, upstream: str, outgoing: Asked, at_ns: int) -> None:
        """A try at `upstream` begins."""
        tariff = self._tariffs.get(upstream)
        if tariff is not None:
            self._at[outgoing.request_id] = tariff
            self._tried.setdefault(outgoing.request_id, set()).add(upstream)
            tariff.begin(outgoing.request_id, at_ns, prompt_tokens=len(outgoing.body) // _BYTES_OF_A_TOKEN)

    def refused(self, outgoing: Asked, at_ns: int) -> None:
        """And has come to nothing."""
        self._leave(outgoing.request_id, at_ns, None, None)

    def progress(self, request_id: str, tokens: int = 1) -> None:
        """So many more generated tokens were seen."""
        tariff = self._at.get(request_id)
        if tariff is not None:
            tariff.progress(request_id, tokens)

    def ended(
        self,
        request_id: str,
        at_ns: int,
        *,
        served_by: str | None = None,
        usage: Usage | None = None,
        spent_ns: Mapping[Phase, int] | None = None,
    ) -> None:
        """It is over, however it ended. The receipt is that of `served_by`: what a request took of other machines that
        it was tried at in vain is on none, and idle there."""
        self._leave(request_id, at_ns, usage, spent_ns)
        for name in self._tried.pop(request_id, set()):
            if name != served_by:
                self._tariffs[name].waive(request_id)

    def statements(self, at_ns: int) -> dict[str, MachineStatement]:
        """Each machine's whole bill until `at_ns`."""
        return {name: tariff.statement(at_ns) for name, tariff in self._tariffs.items()}

    def _leave(self, request_id: str, at_ns: int, usage: Usage | None, spent_ns: Mapping[Phase, int] | None) -> None:
        tariff = self._at.pop(request_id, None)
        if tariff is not None:
            tariff.end(request_id, at_ns, usage=usage, spent_ns=spent_ns)
