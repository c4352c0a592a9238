"""Receipts of requests that were sent to be measured: they are traffic, and stand in the ledger like all other.

Owns: turning what the asker saw into a receipt, and waiting for the ledger at the end only, so that no write of it
stands between two stamps. Refuses to know: why a request was sent.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import Final

from taximeter.errors import LedgerError
from taximeter.ledger import Ledger
from taximeter.measurement.asking.asker import Sent
from taximeter.measurement.asking.spending import Purse
from taximeter.measurement.asking.wire import Question
from taximeter.pricing import Settler
from taximeter.pricing.shared_machine import SharedMachineTariff
from taximeter.records import Outcome, Request, new_id

_PATIENCE_S: Final = 30.0
_LOOKS: Final = 10  # a gateway's receipts are in its ledger for others a tenth of a second later
_BETWEEN_LOOKS_S: Final = 0.1


class Books:
    """Writes receipts to `ledger`, priced by `settler`. `server` is the name of its tariff.

    A gateway of ours (`may_be_kept_there`) writes a receipt for each request itself, with the engine's own phases. If
    that comes into this same ledger it is the request's receipt, and no second one is written: the first request shows
    it. `machine` divides the hours of a server that is paid by them, and is its tariff. `purse` is told of receipts.
    """

    def __init__(
        self,
        ledger: Ledger,
        settler: Settler,
        *,
        server: str,
        machine: SharedMachineTariff | None = None,
        purse: Purse | None = None,
        may_be_kept_there: bool = False,
    ) -> None:
        self._ledger = ledger
        self._settler = settler
        self._server = server
        self._machine = machine
        self._purse = purse
        self._is_kept_there = None if may_be_kept_there else False
        self._writing: list[Future[None]] = []
        self.written = 0

    def begun(self, request: Request, question: Question) -> None:
        """See `asking.Bookkeeper`."""
        if self._machine is not None:
            self._machine.begin(request.id, request.received_ns, prompt_tokens=question.asked_prompt_tokens or 0)

    def keep(self, sent: Sent) -> str | None:
        """See `asking.Bookkeeper`."""
        observation, found = sent.observation, sent.found
        if observation.receipt_id is not None:
            if self._is_kept_there is None:
                self._is_kept_there = self._has(observation.receipt_id)
            if self._is_kept_there:
                return observation.receipt_id
        # Other processes' requests are told of when all of them are over.
        took = timedelta(microseconds=(sent.ended_ns - sent.request.received_ns) // 1000)
        closed_at = sent.request.received_at + took
        timing = sent.watch.stop(sent.ended_ns)
        is_answered = observation.status is not None and observation.status < 300
        usage = found.usage if found is not None and is_answered else None
        if observation.outcome is Outcome.COMPLETED:
            timing = timing.divided(observation.reported_ns)
        if self._machine is not None:
            self._machine.end(sent.request.id, sent.ended_ns, usage=usage, spent_ns=observation.reported_ns)
        receipt = self._settler.settle(
            receipt_id=new_id("rcpt", sent.request.received_at),
            request=sent.request,
            closed_at=closed_at,
            outcome=observation.outcome,
            timing=timing,
            usage=usage,
            served_by=self._server,
            model_served=None if found is None else found.model,
            finish_reasons=observation.finish_reasons,
            error=observation.error,
            unmeasured_reason=None if usage is not None else observation.error or "the answer did not say",
            terms=None if found is None else found.terms,
            tries=sent.tries,
            upstream_request_id=sent.upstream_request_id,
        )
        self._writing.append(self._ledger.append(receipt))
        self.written += 1
        if self._purse is not None:
            self._purse.add(receipt)
        return receipt.id

    def _has(self, receipt_id: str) -> bool:
        """Whether the ledger has the receipt that the server wrote, or gets it in a moment: asked once."""
        for _ in range(_LOOKS):
            if self._ledger.receipt(receipt_id) is not None:
                return True
            time.sleep(_BETWEEN_LOOKS_S)
        return False

    def settle_up(self) -> None:
        """Wait until all receipts are durable. Raises LedgerError where some are not."""
        _, late = wait(self._writing, timeout=_PATIENCE_S)
        lost = len(late) + sum(writing.exception() is not None for writing in self._writing if writing.done())
        self._writing.clear()
        if lost:
            raise LedgerError(f"{lost} receipts of this measurement could not be written to the ledger")
