"""Everything that is known of a model's price, for people who ask.

Owns: what it costs in each tier and beyond each length of a prompt, and how that changed. Refuses to know: usage. It
asks the catalog as a charge does, so what is shown is what is billed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final

from taximeter.errors import PricingError
from taximeter.pricing import published
from taximeter.pricing.catalog import Catalog
from taximeter.records import PriceList

_MOST_PERIODS: Final = 24
_MOST_SHORT_PERIODS: Final = 4  # some prices change with the hour, each day alike
_SHORT: Final = timedelta(days=1)
_SMALLEST_STEP: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The prices for prompts of more than `above_tokens` tokens, up to the next step."""

    above_tokens: int
    prices: PriceList


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A model, by the name that was `asked` for and by its own, at an instant. `tiers` are its prices in each tier, by
    length of the prompt; `history` is the standard tier through time, oldest first."""

    asked: str
    model: str
    at: datetime
    tiers: Mapping[str, Sequence[Step]]
    history: Sequence[Sequence[Step]]


def explain(catalog: Catalog, model: str, at: datetime) -> Explanation:
    """What `model` costs at `at`. Raises PricingError when nobody knows the model; one without a price then has no
    tiers."""
    return Explanation(
        asked=model,
        model=catalog.resolve(model),
        at=at,
        tiers={tier: steps(catalog, model, at, tier) for tier in catalog.tiers(model, at)},
        history=history(catalog, model, at),
    )


def steps(catalog: Catalog, model: str, at: datetime, tier: str) -> Sequence[Step]:
    """The prices of a tier by the length of the prompt; none where it has no price, or nobody can ask for the model by
    this name: some entries of the data stand for others' names only."""
    found: list[Step] = []
    if not catalog.knows(model):
        return ()
    for above in (0, *catalog.thresholds(model)):
        try:
            prices = catalog.price_list(model, at=at, tier=tier, input_tokens=above + (above > 0))
        except PricingError:
            continue
        if not found or found[-1].prices.rates != prices.rates:
            found.append(Step(above_tokens=above, prices=prices))
    return found


def history(catalog: Catalog, model: str, at: datetime) -> Sequence[Sequence[Step]]:
    """The standard prices around `at`, oldest first, as far as they follow each other."""
    now = _standard(catalog, model, at)
    if now is None:
        return ()
    found = [now]
    while _may_go_on(found[:_MOST_SHORT_PERIODS], len(found)) and (start := found[0].valid_from) is not None:
        before = _standard(catalog, model, start - _SMALLEST_STEP)
        if before is None:
            break
        found.insert(0, before)
    earlier = len(found) - 1
    while (
        _may_go_on(found[earlier:][-_MOST_SHORT_PERIODS:], len(found) - earlier)
        and (end := found[-1].valid_until) is not None
    ):
        after = _standard(catalog, model, end)
        if after is None:
            break
        found.append(after)
    within = [prices.valid_from or (prices.valid_until or at) - _SMALLEST_STEP for prices in found]
    return [steps(catalog, model, instant, "standard") for instant in within]


def _may_go_on(last: Sequence[PriceList], found: int) -> bool:
    """Whether there may be more to tell than the `found` periods, of which these are the last ones in one direction."""
    short = [prices for prices in last if _is_short(prices)]
    return found < _MOST_PERIODS and len(short) < _MOST_SHORT_PERIODS


def _is_short(prices: PriceList) -> bool:
    start, end = prices.valid_from, prices.valid_until
    return start is not None and end is not None and end - start < _SHORT


def _standard(catalog: Catalog, model: str, at: datetime) -> PriceList | None:
    try:
        return catalog.price_list(model, at=at, input_tokens=0)
    except PricingError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """How old prices are. `newest_change_on` is the latest day on which a published price begins: the data is at least
    as young. `unchecked` are the models of the user's overlay of which nobody noted when they were checked, or so long
    ago that they are stale too."""

    source: str
    newest_change_on: date
    age_days: int
    unchecked: Sequence[str]

    def is_stale(self, most_days: int) -> bool:
        """Whether somebody should look."""
        return self.age_days > most_days or bool(self.unchecked)


def freshness(catalog: Catalog, today: date, most_days: int) -> Freshness:
    """How old the prices are on `today`."""
    newest = published.newest_change(today)
    limit = today - timedelta(days=most_days)
    return Freshness(
        source=published.SOURCE,
        newest_change_on=newest,
        age_days=(today - newest).days,
        unchecked=[name for name, day in catalog.checked() if day is None or day < limit],
    )
