"""Makes a receipt: what is known about a finished request, and what it cost.

Owns: which price applies to a request, and the reason where none does. Refuses to know: how the request was served,
and where the receipt goes.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from taximeter.errors import PricingError
from taximeter.pricing.charge import charge
from taximeter.pricing.machine import MachineMeter
from taximeter.records import Attempt, Cost, Outcome, Receipt, Request, Terms, Timing, Usage, Work

if TYPE_CHECKING:
    from taximeter.pricing.catalog import Catalog

_log = logging.getLogger(__name__)

_NO_RATE = "no machine rate: set --machine-rate"


class Comparison:
    """A model of the catalog whose published price for the same usage is put beside our own cost."""

    def __init__(self, catalog: Catalog, priced_as: str) -> None:
        """Raises PricingError when `priced_as` names no model, so that a typo stops the server at its start."""
        self._catalog = catalog
        self._model = catalog.resolve(priced_as)

    def cost(self, receipt_id: str, request: Request, usage: Usage | None) -> Cost | None:
        """A comparison that cannot be made is left out and logged: it never keeps a receipt from being written."""
        if usage is None:
            return None
        try:
            # Where a bucket is unknown the length of the prompt is too, and `charge` says which bucket it is.
            prices = self._catalog.price_list(self._model, at=request.received_at, input_tokens=usage.input_tokens or 0)
            return charge(dataclasses.replace(usage, by_model={}), prices)
        except PricingError as error:
            _log.warning("%s is not priced as %s: %s", receipt_id, self._model, error)
            return None
        except Exception:  # noqa: BLE001 - the comparison is a courtesy, the receipt is not
            _log.exception("%s is not priced as %s, for a bug in here", receipt_id, self._model)
            return None


class Tariff(Protocol):
    """How one of those who serve requests charges for them."""

    def cost(
        self,
        *,
        receipt_id: str,
        request: Request,
        model_served: str | None,
        usage: Usage | None,
        terms: Terms | None,
        at: datetime,
    ) -> Cost:
        """What the request costs. `at` is the instant whose prices hold, `usage` None where it is not known at all.

        Called once for each request, as the last thing before its receipt. Raises PricingError with the reason where
        the cost is not known.
        """
        ...


class Settler:
    """Settles requests, by who served them: at the tariff of that name, or else as our own machine's. `machine` charges
    the latter's time, None when no rate is set."""

    def __init__(
        self,
        *,
        machine: MachineMeter | None = None,
        comparison: Comparison | None = None,
        tariffs: Mapping[str, Tariff] | None = None,
    ) -> None:
        self._machine = machine
        self._comparison = comparison
        self._tariffs: Mapping[str, Tariff] = tariffs or {}

    def settle(
        self,
        *,
        receipt_id: str,
        request: Request,
        closed_at: datetime,
        outcome: Outcome,
        timing: Timing | None,
        usage: Usage | None,
        work: Work | None = None,
        served_by: str | None = None,
        model_served: str | None = None,
        finish_reasons: tuple[str, ...] = (),
        error: str | None = None,
        unmeasured_reason: str | None = None,
        terms: Terms | None = None,
        tries: tuple[Attempt, ...] = (),
        upstream_request_id: str | None = None,
    ) -> Receipt:
        """The receipt. Call it once for each request: machine time that is charged stays charged."""
        tariff = None if served_by is None else self._tariffs.get(served_by)
        receipt = Receipt(
            id=receipt_id,
            request=request,
            closed_at=closed_at,
            outcome=outcome,
            timing=timing,
            usage=usage,
            work=work,
            cost_priced_as=None if self._comparison is None else self._comparison.cost(receipt_id, request, usage),
            uncosted_reason=_why_no_work(outcome, unmeasured_reason) if work is None else _NO_RATE,
            unmeasured_reason=unmeasured_reason,
            served_by=served_by,
            model_served=model_served,
            finish_reasons=finish_reasons,
            error=error,
            attempts=max(1, len(tries)),
            tries=tries,
            terms=terms,
            upstream_request_id=upstream_request_id,
        )
        if tariff is not None:
            return _at_tariff(receipt, tariff)
        if work is None or self._machine is None:
            return receipt
        # The very last thing: time on the meter that is on no receipt would make their sum wrong for good.
        return dataclasses.replace(receipt, cost=self._machine.charge(work.compute_ns), uncosted_reason=None)


def _at_tariff(receipt: Receipt, tariff: Tariff) -> Receipt:
    """The receipt with what the tariff charges for it, or with the reason why that is not known."""
    try:
        cost = tariff.cost(
            receipt_id=receipt.id,
            request=receipt.request,
            model_served=receipt.model_served,
            usage=receipt.usage,
            terms=receipt.terms,
            at=receipt.request.received_at,
        )
    except PricingError as error:
        if receipt.outcome is Outcome.REFUSED and receipt.usage is None:
            return dataclasses.replace(receipt, uncosted_reason="refused before any work was done")
        why = f": {receipt.unmeasured_reason}" if receipt.usage is None and receipt.unmeasured_reason else ""
        return dataclasses.replace(receipt, uncosted_reason=f"{error}{why}")
    except Exception:  # noqa: BLE001 - a receipt without a cost is better than none
        _log.exception("%s is not priced, for a bug in here", receipt.id)
        return dataclasses.replace(receipt, uncosted_reason="the cost could not be computed: see the log")
    return dataclasses.replace(receipt, cost=cost, uncosted_reason=None)


def _why_no_work(outcome: Outcome, unmeasured_reason: str | None) -> str:
    if outcome is Outcome.REFUSED:
        return "refused before any work was done"
    return "machine time unknown" if unmeasured_reason is None else f"machine time unknown: {unmeasured_reason}"
