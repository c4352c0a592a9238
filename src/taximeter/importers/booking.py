"""From a logged call to what the ledger keeps: a receipt, priced as of the day of the call.

Owns: a receipt's id, which follows from the call's identity and nothing else; whose prices hold; and the forms that
calls share. Refuses to know: where calls come from, and what the ledger has already.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import blake2b

from taximeter.errors import PricingError
from taximeter.importers.instants import instant_of
from taximeter.importers.logged import LoggedCall, Origin
from taximeter.ledger import Call, Form
from taximeter.ledger.forms import NO_PRICE
from taximeter.pricing.catalog import Catalog
from taximeter.pricing.tariff import PublishedTariff
from taximeter.providers.metering.plain import LEAVES
from taximeter.records import Cost, Outcome, PriceList, Receipt, Request, Terms, Usage

_log = logging.getLogger(__name__)

_ID_BYTES = 11  # 88 bits: of ten million calls, two have the same in one of 10^12 ledgers
_MOST_KEPT = 50_000
_INPUTS = len(Usage.INPUT_LEAVES)
_UNKNOWN_WRITES = LEAVES.index("input_cache_write_unknown_tokens")

Entry = Call | Receipt


@dataclass(slots=True)
class _Shape:
    """What calls of one origin have in common; `unpriced` are the places of leaves that the form has no rate for."""

    form: Form | None
    unpriced: tuple[int, ...]
    origin: Origin
    prices: PriceList | str | None


class Books:
    """Makes entries of calls. It remembers what calls have in common, so that a plain one takes microseconds."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._tariffs: dict[str, PublishedTariff] = {}
        self._providers: dict[tuple[str | None, str], str | PricingError] = {}
        # By the ids of an origin and of a price list, which the shapes keep alive.
        self._shapes: dict[tuple[int, str, Terms | None, int | str, bool], _Shape] = {}

    def entry(self, call: LoggedCall) -> Entry:
        """What to append for a call. Never raises: a price that is not known is a reason on the receipt."""
        if call.leaves is None or call.is_told_in_full:
            return self.receipt(call)
        leaves, prices = call.leaves, self._plain_prices(call)
        # What was written for nobody knows how long is priced by assumption. A form made of such a call says so.
        key = (
            id(call.origin),
            call.model,
            call.terms,
            prices if isinstance(prices, str) else id(prices),
            leaves[_UNKNOWN_WRITES] > 0,
        )
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= _MOST_KEPT:
                self._shapes.clear()
            shape = self._shapes[key] = self._shape(call, prices)
        form = shape.form
        if form is None or any(map(leaves.__getitem__, shape.unpriced)):
            return self.receipt(call)
        digest = call_digest(call)
        return Call(
            form,
            f"rcpt_{digest}",
            f"req_{digest}",
            call.at,
            call.at,
            leaves,
            reported=call.reported,
            upstream_request_id=call.request_id,
        )

    def receipt(self, call: LoggedCall) -> Receipt:
        """The whole receipt of a call."""
        origin, usage, timing = call.origin, call.as_usage(), call.timing
        digest, at = call_digest(call), instant_of(call.at)
        request = Request(
            id=f"req_{digest}",
            received_at=at,
            received_ns=0,
            dialect=origin.dialect,
            model=call.model_asked or call.model,
            stream=origin.stream,
            task=origin.task,
            run=origin.run,
            session=origin.session,
            tier=origin.tier,
            labels=origin.labels,
            trace=origin.trace,
            key=origin.key,
        )
        untimed = origin.untimed if timing is None else None
        uncounted = "the log has no usage of the call" if usage is None else None
        receipt = Receipt(
            id=f"rcpt_{digest}",
            request=request,
            closed_at=at if timing is None else at + timedelta(microseconds=timing.total_ns // 1_000),
            outcome=call.outcome,
            timing=timing,
            usage=usage,
            uncosted_reason="not priced yet",
            unmeasured_reason="; ".join(filter(None, (untimed, uncounted))) or None,
            served_by=self._provider(call),
            model_served=call.model,
            finish_reasons=() if call.finish_reason is None else (call.finish_reason,),
            error=call.error,
            terms=call.terms,
            upstream_request_id=call.request_id,
            source=origin.source,
            cost_reported=call.reported,
        )
        cost, reason = self._cost(call, receipt)
        return replace(receipt, cost=cost, uncosted_reason=reason)

    def _cost(self, call: LoggedCall, receipt: Receipt) -> tuple[Cost | None, str | None]:
        if call.uncosted is not None:
            return None, call.uncosted
        if receipt.usage is None:
            return None, "refused before any work was done" if call.outcome is Outcome.REFUSED else "no usage is known"
        try:
            cost = self._tariff(self._priced_by(call)).cost(
                receipt_id=receipt.id,
                request=receipt.request,
                model_served=receipt.model_served,
                usage=receipt.usage,
                terms=receipt.terms,
                at=receipt.request.received_at,
            )
        except PricingError as error:
            return None, str(error)
        except Exception:  # noqa: BLE001 - one call must not end an import of a million
            _log.exception("%s is not priced, for a bug in here", receipt.id)
            return None, "the cost could not be computed: see the log"
        return cost, None

    def _plain_prices(self, call: LoggedCall) -> PriceList | str | None:
        """The list that prices the call's buckets, or why there is none; None where they are not all of its bill."""
        leaves = call.leaves
        if leaves is None:
            return None
        if call.uncosted is not None:
            return call.uncosted
        try:
            return self._tariff(self._priced_by(call)).plain_prices(
                model_served=call.model,
                asked=call.model_asked or call.model,
                terms=call.terms,
                tier=call.origin.tier,
                input_tokens=sum(leaves[:_INPUTS]),
                at=instant_of(call.at),
            )
        except PricingError as error:
            return str(error)

    def _shape(self, call: LoggedCall, prices: PriceList | str | None) -> _Shape:
        """What calls like this one share. They have no form where each needs a receipt of its own."""
        receipt, form = self.receipt(call), None
        if prices is not None and prices == (
            receipt.uncosted_reason if receipt.cost is None else receipt.cost.price_list
        ):
            with suppress(ValueError):
                form = Form.of(replace(receipt, upstream_request_id=None, cost_reported=None), LEAVES)
        unpriced: tuple[int, ...] = ()
        if form is not None and form.rates is not None:
            unpriced = tuple(place for place, rate in enumerate(form.rates) if rate == NO_PRICE)
        return _Shape(form, unpriced, call.origin, prices)

    def _priced_by(self, call: LoggedCall) -> str:
        """The provider whose prices hold. Raises PricingError where nobody can say."""
        key = (call.origin.provider, call.model)
        known = self._providers.get(key)
        if known is None:
            if len(self._providers) >= _MOST_KEPT:
                self._providers.clear()
            known = self._providers[key] = self._find_provider(*key)
        if isinstance(known, PricingError):
            raise PricingError(known.message, hint=known.hint)
        return known

    def _find_provider(self, provider: str | None, model: str) -> str | PricingError:
        error: PricingError | None = None
        for name in ([] if provider is None else [f"{provider}/{model}"]) + [model]:
            try:
                return self._catalog.resolve(name).partition("/")[0]
            except PricingError as raised:
                error = error or raised
        return error or PricingError(f"no prices for a model called {model!r}")

    def _provider(self, call: LoggedCall) -> str | None:
        try:
            return self._priced_by(call)
        except PricingError:
            return call.origin.provider

    def _tariff(self, provider: str) -> PublishedTariff:
        tariff = self._tariffs.get(provider)
        if tariff is None:
            tariff = self._tariffs[provider] = PublishedTariff(self._catalog, provider)
        return tariff


def call_digest(call: LoggedCall) -> str:
    """What the call's ids end with. It names the call, whatever file it was found in."""
    name = f"{call.origin.source}\0{call.identity}".encode("utf-8", "surrogatepass")
    return blake2b(name, digest_size=_ID_BYTES).hexdigest()
