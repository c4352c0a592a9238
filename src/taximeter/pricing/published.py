"""Published prices: the `genai-prices` package, in this project's words.

Owns: its model names, its unit names, the words it uses for service tiers, and its dates. Refuses to know: overlays,
and what was used. It never answers with a price that is not the one asked for: a tier that the data does not price
at that date is None, where the package itself would quietly fall back to the standard price.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from importlib.metadata import version
from types import MappingProxyType

from genai_prices.data_snapshot import get_snapshot
from genai_prices.data_units import unit_data
from genai_prices.types import (
    ClauseEquals,
    ClauseOr,
    ConditionalPrice,
    MatchLogic,
    ModelInfo,
    ModelPrice,
    PriceVariant,
    Provider,
    StartDateConstraint,
    TieredPrices,
    TimeOfDateConstraint,
)

from taximeter.pricing.periods import Period, midnight, period_around
from taximeter.records import Basis, PriceList, Rate

SOURCE = f"genai-prices {version('genai-prices')}"

# Our leaves, each with the data's names for it, the most specific first. A cache write whose lifetime the data does
# not name is the provider's shortest one: five minutes at Anthropic, half an hour at OpenAI. There is no such step down
# to it for an hour or for twelve, which cost more. An image is input like any other unless it has a price of its own,
# as its sellers say; audio costs several times as much wherever it is priced, so without one of its own it has none.
_LEAVES: Mapping[str, tuple[str, ...]] = {
    "input_fresh_tokens": ("input_text_tokens", "input_tokens"),
    "input_cache_read_tokens": ("cache_text_read_tokens", "cache_read_tokens"),
    "input_cache_write_5m_tokens": (
        "cache_text_write_5m_tokens",
        "cache_write_5m_tokens",
        "cache_text_write_tokens",
        "cache_write_tokens",
    ),
    "input_cache_write_30m_tokens": ("cache_text_write_tokens", "cache_write_tokens"),
    "input_cache_write_1h_tokens": ("cache_text_write_1h_tokens", "cache_write_1h_tokens"),
    "input_image_tokens": ("input_image_tokens", "input_tokens"),
    "input_audio_tokens": ("input_audio_tokens",),
    "input_audio_cache_read_tokens": ("cache_audio_read_tokens",),
    "output_text_tokens": ("output_text_tokens", "output_tokens"),
    "output_reasoning_tokens": (
        "output_text_reasoning_tokens",
        "output_reasoning_tokens",
        "output_text_tokens",
        "output_tokens",
    ),
    "output_image_tokens": ("output_image_tokens",),
    "output_audio_tokens": ("output_audio_tokens",),
}
_LEAF_NAMES_IN_DATA = {name for names in _LEAVES.values() for name in names}

# Minutes of audio are left out: providers round them up by rules that a price list does not carry.
_OTHER_FAMILIES = {"tokens", "tool_calls", "requests", "characters", "pixels", "document_pages", "rerank"}
OTHER_UNITS: Mapping[str, int] = MappingProxyType(
    {
        name: int(unit["per"])
        for name, unit in unit_data.items()
        if name not in _LEAF_NAMES_IN_DATA and unit["dimensions"]["family"] in _OTHER_FAMILIES
    }
)
"""Units beside the token leaves that a price list may have, with the quantity their published prices are for."""

_USAGE_NAMES = {str(unit["price_key"]): name for name, unit in unit_data.items()}

# The wire says `service_tier: batch`, the data `processing: batch`; and so on.
_TIER_CONTEXTS: Mapping[str, tuple[Mapping[str, str], ...]] = {
    "batch": ({"processing": "batch"},),
    "flex": ({"service_tier": "flex"},),
    "priority": ({"service_tier": "priority"},),
    "fast": ({"service_tier": "fast"}, {"speed": "fast"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One model in the data. `own` is False where a provider resells another one's model at that one's prices."""

    name: str
    info: ModelInfo
    own: bool


def provider_known(provider: str) -> bool:
    return _provider(provider) is not None


def listing(provider: str, model: str) -> Listing | None:
    """The model that `provider` knows under the name or alias `model`, None when it knows none."""
    found = _provider(provider)
    return None if found is None else _listing(found, model)


def listings_by_name(model: str) -> list[Listing]:
    """Who sells a model of this name: its maker alone where one claims the name, else everybody who has it."""
    providers = get_snapshot().providers
    makers = [each for each in providers if each.model_match is not None and each.model_match.is_match(model)]
    sellers = [each for each in providers if any(info.is_match(model) for info in each.models)]
    for group in (makers, sellers):
        found = [entry for each in group if (entry := _listing(each, model)) is not None]
        if found:
            return found
    return []


def names() -> Iterator[str]:
    """Every `provider/model` in the data."""
    for provider in get_snapshot().providers:
        for info in provider.models:
            yield f"{provider.id}/{info.id}"


def tiers(entry: Listing, at: datetime) -> list[str]:
    """The tiers that the data prices at `at`, standard first."""
    priced = [tier for tier in _TIER_CONTEXTS if _pieces(entry, at, tier) is not None]
    return (["standard"] if _pieces(entry, at, "standard") is not None else []) + priced


def price_list(entry: Listing, *, at: datetime, tier: str, input_tokens: int) -> PriceList | None:
    """The published rates at `at`, None when the data has none for that tier or that date.

    A context threshold is compared with the whole prompt, once, and holds for every bucket; exactly on it is below.
    """
    pieces = _pieces(entry, at, tier)
    if pieces is None:
        return None
    prices: dict[str, Decimal] = {}
    for piece in pieces:
        for key, price in _prices(piece).items():
            if key in _USAGE_NAMES:
                prices.setdefault(_USAGE_NAMES[key], _at_context(price, input_tokens))
    period = period_around(at, lambda instant: _pieces(entry, instant, tier), _boundaries(entry.info, at))
    return PriceList(
        model=entry.name,
        rates=tuple(_rates(prices)),
        source=SOURCE,
        tier=tier,
        valid_from=period.start,
        valid_until=period.end,
    )


def unpriced(entry: Listing, *, at: datetime, tier: str) -> Period:
    """The period around `at` in which the data have no price for that tier, where they have none at `at`."""
    return period_around(at, lambda instant: _pieces(entry, instant, tier) is None, _boundaries(entry.info, at))


def backdated(entry: Listing, *, at: datetime, tier: str, input_tokens: int) -> PriceList | None:
    """What a tier is assumed to have cost before the first day that the data know it: what it costs then, if the
    standard price was the same already. Most tiers are dated from the day on which somebody entered them; those who
    were served in one before were, all the same. None where the standard price has changed since, or is not known."""
    first = _first_priced(entry, tier)
    if first is None or not _is_before(entry, at, first):
        return None
    prices = price_list(entry, at=first, tier=tier, input_tokens=input_tokens)
    if prices is None:
        return None
    period = period_around(at, lambda instant: _is_before(entry, instant, first), [*_boundaries(entry.info, at), first])
    return replace(
        prices,
        source=f"{SOURCE}, which knows this tier from {first:%Y-%m-%d} on",
        valid_from=period.start,
        valid_until=period.end,
        basis=Basis.ASSUMED,
    )


def backdated_tiers(entry: Listing, at: datetime) -> list[str]:
    """The tiers that `backdated` has a price for at `at`."""
    first = {tier: _first_priced(entry, tier) for tier in _TIER_CONTEXTS}
    return [tier for tier, day in first.items() if day is not None and _is_before(entry, at, day)]


def _first_priced(entry: Listing, tier: str) -> datetime | None:
    """The instant from which on the data price a tier, None where they always did, or never do."""
    dated = [
        each.constraint
        for each in entry.info.price_variants or ()
        if entry.own and each.when in _TIER_CONTEXTS.get(tier, ())
    ]
    days = [each.start_date for each in dated if isinstance(each, StartDateConstraint)]
    return midnight(min(days)) if days and len(days) == len(dated) else None


def _is_before(entry: Listing, at: datetime, first: datetime) -> bool:
    """Whether `at` lies before `first`, and the standard price was the same."""
    standard = _standard(entry.info, at)
    return at < first and standard is not None and standard == _standard(entry.info, first)


def thresholds(entry: Listing) -> set[int]:
    """The lengths of prompts beyond which the model has, at some time and in some tier, other prices."""
    info = entry.info
    dated: list[ConditionalPrice | PriceVariant] = list(info.price_variants or ())
    pieces = [each.prices for each in dated]
    pieces += [info.prices] if isinstance(info.prices, ModelPrice) else [each.prices for each in info.prices]
    tiered = [price for piece in pieces for price in _prices(piece).values() if isinstance(price, TieredPrices)]
    return {tier.start for price in tiered for tier in price.tiers}


def newest_change(today: date) -> date:
    """The latest day up to `today` on which a price in the data begins: till then at least they were kept up."""
    days = [date.min]
    for provider in get_snapshot().providers:
        for info in provider.models:
            dated: list[ConditionalPrice | PriceVariant] = list(info.price_variants or ())
            dated += [] if isinstance(info.prices, ModelPrice) else info.prices
            days += [each.constraint.start_date for each in dated if isinstance(each.constraint, StartDateConstraint)]
    return max(day for day in days if day <= today)


def _provider(name: str) -> Provider | None:
    return next((each for each in get_snapshot().providers if each.id == name), None)


class _Catchwords:
    """Which of a provider's models a name may be of, in the data's order: those that are called just so, and those that
    say it in another way. Most say it by whole names, of which one provider may have a thousand."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._by_name: dict[str, list[int]] = {}
        self._others: list[int] = []
        for place, info in enumerate(provider.models):
            called = _whole_names(info.match)
            if called is None:
                self._others.append(place)
            for name in called or ():
                self._by_name.setdefault(name, []).append(place)

    def find(self, model: str) -> ModelInfo | None:
        """The first that has this name; None where that takes more than looking at names."""
        places = sorted({*self._by_name.get(model.lower(), ()), *self._others})
        models = self._provider.models
        return next((models[place] for place in places if models[place].is_match(model)), None)


def _whole_names(match: MatchLogic) -> set[str] | None:
    """All names that match, None where they cannot be listed."""
    if isinstance(match, ClauseEquals):
        return {match.equals.lower()}
    if not isinstance(match, ClauseOr):
        return None
    parts = [_whole_names(part) for part in match.or_]
    return None if None in parts else {name for part in parts if part is not None for name in part}


_catchwords: dict[int, tuple[Provider, _Catchwords]] = {}  # by `id`, which stays the provider's as long as it is kept


def _listing(provider: Provider, model: str) -> Listing | None:
    if id(provider) not in _catchwords:
        _catchwords[id(provider)] = provider, _Catchwords(provider)
    _, catchwords = _catchwords[id(provider)]
    # Some models do not go by the name that the data itself gives them, but by others alone.
    info = catchwords.find(model) or next((each for each in provider.models if each.id.lower() == model.lower()), None)
    if info is not None:
        return Listing(name=f"{provider.id}/{info.id}", info=info, own=True)
    info = provider.find_model(model, all_providers=get_snapshot().providers)
    if info is None:
        return None
    own = any(each is info for each in provider.models)
    return Listing(name=f"{provider.id}/{info.id}", info=info, own=own)


def _pieces(entry: Listing, at: datetime, tier: str) -> tuple[ModelPrice, ...] | None:
    """The price entries that make up a tier at `at`, the decisive first: a variant lies over the standard price."""
    standard = _standard(entry.info, at)
    if standard is None or tier == "standard":
        return None if standard is None else (standard,)
    contexts = _TIER_CONTEXTS.get(tier, ())
    variants = tuple(
        variant.prices
        for variant in entry.info.price_variants or ()
        if entry.own and variant.when in contexts and _active(variant, at)
    )
    return (*variants, standard) if variants else None


def _standard(info: ModelInfo, at: datetime) -> ModelPrice | None:
    if isinstance(info.prices, ModelPrice):
        return info.prices
    return next((each.prices for each in reversed(info.prices) if _active(each, at)), None)


def _active(entry: ConditionalPrice | PriceVariant, at: datetime) -> bool:
    return entry.constraint is None or entry.constraint.active(at)


def _boundaries(info: ModelInfo, at: datetime) -> list[datetime]:
    """Every instant at which the model's price may change: its start dates, and daily hours around `at`."""
    dated: list[ConditionalPrice | PriceVariant] = list(info.price_variants or ())
    if not isinstance(info.prices, ModelPrice):
        dated += info.prices
    edges: list[datetime] = []
    for entry in dated:
        match entry.constraint:
            case StartDateConstraint(start_date=day):
                edges.append(midnight(day))
            case TimeOfDateConstraint(start_time=opens, end_time=closes):
                today = at.astimezone(UTC).date()
                days = [today + timedelta(days=offset) for offset in (-1, 0, 1, 2)]
                edges += [datetime.combine(day, _utc(hour)) for day in days for hour in (opens, closes)]
            case None:
                pass
    return edges


def _utc(hour: time) -> time:
    return hour if hour.tzinfo is not None else hour.replace(tzinfo=UTC)


def _prices(piece: ModelPrice) -> dict[str, Decimal | TieredPrices]:
    return {key: price for key, price in vars(piece).items() if price is not None}


def _at_context(price: Decimal | TieredPrices, input_tokens: int) -> Decimal:
    if isinstance(price, Decimal):
        return price
    reached = [tier.price for tier in price.tiers if input_tokens > tier.start]  # the package sorts them by start
    return reached[-1] if reached else price.base


def _rates(prices: Mapping[str, Decimal]) -> Iterator[Rate]:
    for leaf, names_in_data in _LEAVES.items():
        amount = next((prices[name] for name in names_in_data if name in prices), None)
        if amount is not None:
            yield Rate(unit=leaf, amount=amount, per=1_000_000)
    for unit, per in OTHER_UNITS.items():
        if unit in prices:
            yield Rate(unit=unit, amount=prices[unit], per=per)
