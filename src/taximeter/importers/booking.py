"""From a logged call to what the ledger keeps: a receipt, priced as of the day of the call.

Owns: a receipt's id, which follows from the call's identity and nothing else; whose prices hold; and the forms that
calls share. Refuses to know: where calls come from, and what the ledger has already.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as with_fields
from datetime import datetime, timedelta
from typing import cast

import numpy as np
from msgspec.structs import replace

from taximeter.errors import PricingError
from taximeter.importers.alike import Alike, Kind, call_digest
from taximeter.importers.instants import instant_of, text_of
from taximeter.importers.logged import LoggedCall, Origin
from taximeter.importers.once import Entry
from taximeter.ledger import Form
from taximeter.ledger.calls import Calls, Counts, texts_of
from taximeter.ledger.forms import NO_PRICE
from taximeter.pricing.catalog import Catalog
from taximeter.pricing.tariff import PublishedTariff
from taximeter.providers.metering.plain import INPUTS, LEAVES
from taximeter.records import Cost, Outcome, PriceList, Receipt, Request, Timing

_log = logging.getLogger(__name__)

_NAMELESS = ""  # what a prototype's ids end with
_MOST_KEPT = 50_000
_EVER, _FOR_EVER = np.datetime64("0000-01-01", "us"), np.datetime64("10000-01-01", "us")
_DAY_US = 24 * 3_600 * 10**6
_INPUTS = len(INPUTS)
_UNKNOWN_WRITES = LEAVES.index("input_cache_write_unknown_tokens")


@dataclass(slots=True)
class _Shape:
    """What calls have in common whose instants lie from `begin` on and before `end`. They have no form where each needs
    a receipt of its own; `unpriced` are the places of leaves that the form has no rate for."""

    form: Form | None
    unpriced: list[int]
    begin: np.datetime64
    end: np.datetime64


@dataclass(slots=True)
class _Shapes:
    """Of calls of one kind: their shapes, by how many thresholds the prompt exceeds, and
    whether it wrote to a cache for nobody knows how long. That is priced by assumption, and a form of such a call says
    so."""

    thresholds: Counts
    by_rates: dict[tuple[int, int], list[_Shape]]


class Books:
    """Makes entries of calls. It remembers what calls have in common, so that a plain one takes microseconds."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._tariffs: dict[str, PublishedTariff] = {}
        self._providers: dict[tuple[str | None, str], str | PricingError] = {}
        self._kinds: dict[Kind, _Shapes] = {}

    def entry(self, call: LoggedCall) -> Receipt:
        """What to append for a call that is like no other. Never raises: a price that is not known is a reason on the
        receipt."""
        return self._receipt(call, call_digest(call))

    def entries(self, alike: Alike) -> list[Entry]:
        """The same for calls that are alike."""
        shapes = self._shapes_of(alike)
        inputs = alike.leaves[:_INPUTS].sum(axis=0)
        exceeded = cast("Counts", np.searchsorted(shapes.thresholds, inputs))
        rates = 2 * exceeded + (alike.leaves[_UNKNOWN_WRITES] > 0)
        entries: list[Entry] = []
        # Which of them is first says how the calls go on being in the order of the log.
        for key in dict.fromkeys(rates.tolist()):
            places = np.flatnonzero(rates == key)
            some = alike if len(places) == len(alike) else alike.part(places)
            entries += self._at_the_same_rates(shapes.by_rates.setdefault(divmod(key, 2), []), some)
        return entries

    def _shapes_of(self, alike: Alike) -> _Shapes:
        shapes = self._kinds.get(alike.kind)
        if shapes is None:
            if len(self._kinds) >= _MOST_KEPT:
                self._kinds.clear()
            thresholds = np.array(self._thresholds(alike.call(0)), dtype=np.int64)
            shapes = self._kinds[alike.kind] = _Shapes(thresholds, {})
        return shapes

    def _at_the_same_rates(self, shapes: list[_Shape], alike: Alike) -> list[Entry]:
        """Entries of calls that differ in when they were made, and how that changes prices."""
        earliest = alike.at.min()
        for shape in shapes:
            if shape.begin <= earliest < shape.end:
                break
        else:
            shape = self._shape(alike.call(int(alike.at.argmin())))
            shapes.append(shape)
        is_later = alike.at >= shape.end
        if is_later.any():
            then, later = alike.part(np.flatnonzero(~is_later)), alike.part(np.flatnonzero(is_later))
            return [*self._at_the_same_rates(shapes, then), *self._at_the_same_rates(shapes, later)]
        if shape.form is None:
            return self._receipts(alike)
        forms = _belonging(shape.form, alike.origins)
        is_odd = alike.leaves[shape.unpriced].any(axis=0)
        is_odd |= np.isin(alike.origin_of, [place for place, form in enumerate(forms) if form is None])
        if is_odd.any():
            odd, others = np.flatnonzero(is_odd), np.flatnonzero(~is_odd)
            entries = self._receipts(alike.part(odd))
            return [*entries, *self._at_the_same_rates(shapes, alike.part(others))] if len(others) else entries
        return [_calls([form for form in forms if form is not None], alike)]

    def _receipts(self, alike: Alike) -> list[Entry]:
        return [self._receipt(alike.call(place), digest) for place, digest in enumerate(texts_of(alike.digests))]

    def _receipt(self, call: LoggedCall, digest: str) -> Receipt:
        """The whole receipt of a call."""
        origin, usage, at = call.origin, call.as_usage(), instant_of(call.at_us)
        timing = None if call.timing is None else call.timing.as_timing()
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
            key=origin.key,
        )
        untimed = origin.untimed if timing is None else None
        uncounted = "the log has no usage of the call" if usage is None else None
        receipt = Receipt(
            id=f"rcpt_{digest}",
            request=request,
            closed_at=at if timing is None else _end(at, timing),
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
        return with_fields(receipt, cost=cost, uncosted_reason=reason)

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
                at=instant_of(call.at_us),
            )
        except PricingError as error:
            return str(error)

    def _shape(self, call: LoggedCall) -> _Shape:
        """What calls like this one share, and when."""
        prices = self._plain_prices(call)
        if isinstance(prices, PriceList):
            begin = _EVER if prices.valid_from is None else _instant(prices.valid_from)
            end = _FOR_EVER if prices.valid_until is None else _instant(prices.valid_until)
        else:  # on another day there may be a price
            begin = np.datetime64(call.at_us - call.at_us % _DAY_US, "us")
            end = begin + np.timedelta64(_DAY_US, "us")
        form = self._form(call, prices)
        unpriced: list[int] = []
        if form is not None and form.rates is not None:
            unpriced = [place for place, rate in enumerate(form.rates) if rate == NO_PRICE]
        return _Shape(form, unpriced, begin, end)

    def _form(self, call: LoggedCall, prices: PriceList | str | None) -> Form | None:
        """The form of calls like this one, of whatever origins; None where each needs a receipt of its own."""
        if call.leaves is None or prices is None:
            return None
        nobodys = replace(call, origin=replace(call.origin, task=None, run=None, session=None, key=None, labels={}))
        receipt = self._receipt(nobodys, _NAMELESS)
        if prices != (receipt.uncosted_reason if receipt.cost is None else receipt.cost.price_list):
            return None
        try:
            return Form.of(receipt, LEAVES)
        except ValueError:
            return None

    def _thresholds(self, call: LoggedCall) -> tuple[int, ...]:
        try:
            provider = self._priced_by(call)
            return self._tariff(provider).thresholds(model_served=call.model, asked=call.model)
        except PricingError:
            return ()

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


def _belonging(form: Form, origins: Sequence[Origin]) -> list[Form | None]:
    """The form, of calls of each origin; None where columns cannot hold its names."""
    forms: list[Form | None] = []
    for each in origins:
        try:
            form_of_each = form.belonging_to(
                task=each.task, run=each.run, session=each.session, key=each.key, labels=each.labels
            )
        except ValueError:
            form_of_each = None
        forms.append(form_of_each)
    return forms


def _end(at: datetime, timing: Timing) -> datetime:
    """When a call was over; the last days that a calendar has are not gone past."""
    try:
        return at + timedelta(microseconds=timing.total_ns // 1_000)
    except OverflowError:
        return at


def _instant(at: datetime) -> np.datetime64:
    return np.datetime64(text_of(at), "us")


def _calls(forms: Sequence[Form], alike: Alike) -> Calls:
    closed_at = alike.at
    if alike.total_ns is not None:
        ends = alike.at + (np.array(alike.total_ns, dtype=np.int64) // 1_000).astype("timedelta64[us]")
        closed_at = np.where(ends < _FOR_EVER, ends, alike.at)
    return Calls(
        forms=forms,
        form_of=alike.origin_of,
        ids=np.strings.add(b"rcpt_", alike.digests),
        request_ids=np.strings.add(b"req_", alike.digests),
        received_at=alike.at,
        closed_at=closed_at,
        tokens=alike.leaves,
        total_ns=alike.total_ns,
        first_token_ns=alike.first_token_ns,
        reported=alike.reported,
        upstream_request_ids=alike.request_ids,
    )
