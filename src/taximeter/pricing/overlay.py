"""Price lists that people write: contracts, discounts, and what the catalog lacks.

Owns: the overlay file's format, every check on it, and which of its entries holds at an instant. Refuses to know: the
catalog beneath it. The format is described in docs/prices.md.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, cast

from taximeter.errors import ConfigError
from taximeter.pricing.periods import ALWAYS, Period, midnight, period_around
from taximeter.pricing.published import OTHER_UNITS
from taximeter.records import Basis, Rate

# What a price in the file may be called, before `_per_million_usd` and its like, and the units it then prices.
_STEMS: Mapping[str, tuple[str, ...]] = {
    "input_fresh": ("input_fresh_tokens",),
    "input_cache_read": ("input_cache_read_tokens",),
    "input_cache_write_5m": ("input_cache_write_5m_tokens",),
    "input_cache_write_30m": ("input_cache_write_30m_tokens",),
    "input_cache_write_1h": ("input_cache_write_1h_tokens",),
    "input_cache_write_12h": ("input_cache_write_12h_tokens",),
    "input_image": ("input_image_tokens",),
    "input_audio": ("input_audio_tokens",),
    "input_audio_cache_read": ("input_audio_cache_read_tokens",),
    "output": ("output_text_tokens", "output_reasoning_tokens"),
    "output_text": ("output_text_tokens",),
    "output_reasoning": ("output_reasoning_tokens",),
    "output_image": ("output_image_tokens",),
    "output_audio": ("output_audio_tokens",),
    **{unit.removesuffix("_tokens"): (unit,) for unit in OTHER_UNITS},
}
_PER: Mapping[str, int] = {"million": 1_000_000, "thousand": 1_000, "token": 1, "one": 1}
_PRICE_FIELD = re.compile(r"(?P<stem>\w+)_per_(?P<per>million|thousand|token|one)_usd")

_ENTRY_FIELDS = {
    "model",
    "tier",
    "valid_from",
    "valid_until",
    "source",
    "checked_on",
    "basis",
    "times_standard",
    "above",
    "confirm_unusual_prices",
}
_ABOVE_FIELDS = {"input_tokens"}

# Outside these, somebody probably mixed up tokens and millions of tokens.
_HIGHEST_PER_MILLION = Decimal(1_000)
_LOWEST_PER_MILLION = Decimal("0.001")
_MOST_DIGITS = 15  # before or behind the point of any number; sums are exact, and must stay short

# Wire words for service tiers, and ours. A word that is not here is its own name.
_TIER_WORDS: Mapping[str, str] = {"default": "standard", "on_demand": "standard", "on-demand": "standard"}


def tier_name(word: str) -> str:
    """Our name for a service tier, from the word that a provider, a file or a user has for it."""
    word = word.strip().lower()
    return _TIER_WORDS.get(word, word)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayPrice:
    """One entry of a file. It has either rates of its own or `times_standard`, a factor on other rates.

    `contexts` are the rates by prompt length: each pair holds for prompts of more than so many tokens, ascending; the
    first is 0 tokens and holds for the empty prompt too. `model` is `provider/model`, or `provider/*` for a factor.
    """

    model: str
    tier: str
    period: Period
    source: str
    checked_on: date | None
    basis: Basis
    contexts: tuple[tuple[int, tuple[Rate, ...]], ...]
    times_standard: Decimal | None

    def rates(self, input_tokens: int) -> tuple[Rate, ...]:
        """The rates for a prompt of that length, all of it; exactly on a threshold is below."""
        return [rates for above, rates in self.contexts if above == 0 or input_tokens > above][-1]


class Overlay:
    """The entries of one file."""

    def __init__(self, entries: Sequence[OverlayPrice]) -> None:
        self._entries = entries

    @classmethod
    def load(cls, path: Path, problems: list[ConfigError] | None = None) -> Overlay:
        """Read a file. Raises ConfigError when it cannot be read, or when anything in it is not understood. What is
        wrong in single prices is added to `problems` instead, if that is given."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the price overlay {path} cannot be read: {error}") from error
        return cls.parse(text, name=path.name, problems=problems)

    @classmethod
    def parse(cls, text: str, *, name: str, problems: list[ConfigError] | None = None) -> Overlay:
        """Read the text of a file called `name`. Raises ConfigError as `load` does."""
        try:
            document = tomllib.loads(text, parse_float=Decimal)  # through its text: 0.1 stays a tenth
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{name} is not TOML: {error}") from error
        unknown = sorted(document.keys() - {"price"})
        if unknown:
            raise ConfigError(
                f"{name}: unknown entry {unknown[0]!r}", hint="prices are [[price]] tables", place=(unknown[0],)
            )
        tables = _tables(document.get("price", []))
        if tables is None:
            raise ConfigError(
                f"{name}: `price` is no list of tables", hint="write [[price]], with two brackets", place=("price",)
            )
        entries: list[OverlayPrice] = []
        for number, table in enumerate(tables, 1):
            try:
                entries.append(_EntryReader(table, f"{name}, price {number}", name).read())
            except ConfigError as error:
                placed = ConfigError(error.message, hint=error.hint, place=("price", number - 1))
                if problems is None:
                    raise placed from error
                problems.append(placed)
        _refuse_twins(entries, name)
        return cls(entries)

    def models(self) -> list[str]:
        """Every model that has an entry of its own, once."""
        return list(dict.fromkeys(entry.model for entry in self._entries if not entry.model.endswith("/*")))

    def thresholds(self, names: Sequence[str]) -> set[int]:
        """The lengths of prompts beyond which some entry for a model known under `names` has other rates."""
        known = {name.lower() for name in names}
        return {above for entry in self._entries if entry.model in known for above, _ in entry.contexts}

    def written(self) -> list[str]:
        """Every model as it is written there, once."""
        return list(dict.fromkeys(entry.model for entry in self._entries))

    def checked(self) -> list[tuple[str, date | None]]:
        """Every model as it is written there, with the last day on which one of its entries was checked, if any was."""
        days: dict[str, date | None] = {}
        for entry in self._entries:
            known = days.setdefault(entry.model, entry.checked_on)
            if known is not None and entry.checked_on is not None:
                days[entry.model] = max(known, entry.checked_on)
            elif known is None:
                days[entry.model] = entry.checked_on
        return list(days.items())

    def tiers(self, names: Sequence[str], at: datetime) -> list[str]:
        """The tiers that have an entry at `at` for a model known under `names`."""
        tiers = dict.fromkeys(entry.tier for entry in self._entries)
        return [tier for tier in tiers if self.select(names, tier, at)[0] is not None]

    def select(self, names: Sequence[str], tier: str, at: datetime) -> tuple[OverlayPrice | None, Period]:
        """The entry that holds at `at`, None when none does, and the period in which that stays so.

        `names` are the model's names, the decisive first. An entry for the model beats one for all of its provider;
        among equals the one that began last wins.
        """
        ranks = {name.lower(): rank for rank, name in enumerate(names)}
        ranks.update({f"{name.partition('/')[0]}/*": len(names) for name in ranks})
        matching = [entry for entry in self._entries if entry.tier == tier and entry.model in ranks]
        if not matching:
            return None, ALWAYS

        def chosen(instant: datetime) -> OverlayPrice | None:
            holding = [entry for entry in matching if entry.period.holds(instant)]
            return min(holding, key=lambda entry: (ranks[entry.model], -_began(entry)), default=None)

        edges = [edge for entry in matching for edge in (entry.period.start, entry.period.end) if edge is not None]
        return chosen(at), period_around(at, chosen, edges)


def _began(entry: OverlayPrice) -> float:
    return float("-inf") if entry.period.start is None else entry.period.start.timestamp()


def _refuse_twins(entries: Iterable[OverlayPrice], name: str) -> None:
    seen: set[tuple[str, str, datetime | None]] = set()
    for entry in entries:
        key = (entry.model, entry.tier, entry.period.start)
        if key in seen:
            raise ConfigError(
                f"{name}: two prices for {entry.model} ({entry.tier}) begin at the same time",
                hint="append a changed price with the date from which it holds: valid_from = 2026-11-01",
            )
        seen.add(key)


def _tables(value: object) -> list[dict[str, Any]] | None:
    """`value` as the array of tables that TOML's double brackets make, None when it is something else."""
    if isinstance(value, list) and all(isinstance(item, dict) for item in cast("list[object]", value)):
        return cast("list[dict[str, Any]]", value)
    return None


class _EntryReader:
    """Reads one [[price]] table; every complaint says which."""

    def __init__(self, table: dict[str, Any], where: str, file: str) -> None:
        self._where = where
        self._file = file
        self._table = table
        self._confirmed = self._table.get("confirm_unusual_prices", False) is True

    def read(self) -> OverlayPrice:
        model = self._model()
        self._where = f"{self._where} ({model})"
        period = Period(start=self._instant("valid_from"), end=self._instant("valid_until"))
        if period.start is not None and period.end is not None and period.start >= period.end:
            raise self._error("it ends before it begins")
        base = self._rates(self._table, _ENTRY_FIELDS)
        factor = self._factor()
        if factor is None and not base:
            raise self._error("it has no price", "give input_fresh_per_million_usd and output_per_million_usd, or more")
        if factor is not None and (base or "above" in self._table):
            raise self._error("times_standard stands for all of its prices: give either the one or the others")
        if factor is None and model.endswith("/*"):
            raise self._error("a price for every model of a provider can only be a factor", 'times_standard = "0.5"')
        return OverlayPrice(
            model=model,
            tier=tier_name(self._text("tier", "standard")),
            period=period,
            source=self._text("source", self._file),
            checked_on=self._day("checked_on"),
            basis=self._basis(),
            contexts=() if factor is not None else ((0, base), *self._contexts(base)),
            times_standard=factor,
        )

    def _error(self, problem: str, hint: str | None = None) -> ConfigError:
        return ConfigError(f"{self._where}: {problem}", hint=hint)

    def _text(self, field: str, default: str | None = None) -> str:
        value = self._table.get(field, default)
        if not isinstance(value, str) or not value.strip():
            raise self._error(f"{field} must be text")
        return value.strip()

    def _model(self) -> str:
        model = self._text("model").lower()
        provider, slash, name = model.partition("/")
        if not (provider and slash and name):
            raise self._error(f"model {model!r} does not say whose it is", 'write "provider/model"')
        return model

    def _instant(self, field: str) -> datetime | None:
        value = self._table.get(field)
        if value is None:
            return None
        if isinstance(value, datetime):
            if value.tzinfo is None:
                raise self._error(f"{field} has a time of day without a time zone", "append Z for UTC")
            return value.astimezone(UTC)
        if isinstance(value, date):
            return midnight(value)
        raise self._error(f"{field} must be a date", f"{field} = 2026-10-29, without quotes; the day begins in UTC")

    def _day(self, field: str) -> date | None:
        value = self._table.get(field)
        if value is None or (isinstance(value, date) and not isinstance(value, datetime)):
            return value
        raise self._error(f"{field} must be a date", f"{field} = 2026-10-29, without quotes")

    def _basis(self) -> Basis:
        word = self._text("basis", Basis.REPORTED)
        if word not in list(Basis):
            raise self._error(f"basis {word!r} is none of {', '.join(Basis)}")
        return Basis(word)

    def _factor(self) -> Decimal | None:
        if "times_standard" not in self._table:
            return None
        factor = self._number("times_standard", self._table["times_standard"])
        if factor == 0:
            raise self._error("times_standard is 0: nothing is free by a factor")
        return factor

    def _contexts(self, base: tuple[Rate, ...]) -> list[tuple[int, tuple[Rate, ...]]]:
        tables = _tables(self._table.get("above", []))
        if tables is None:
            raise self._error("`above` is no list of tables", "write [[price.above]], with two brackets")
        contexts: list[tuple[int, tuple[Rate, ...]]] = []
        for table in tables:
            threshold = table.get("input_tokens")
            if type(threshold) is not int or threshold <= 0:
                raise self._error("`above` needs input_tokens, the longest prompt that still costs less")
            if contexts and threshold <= contexts[-1][0]:
                raise self._error("`above` tables must ascend in input_tokens")
            rates = self._rates(table, _ABOVE_FIELDS)
            if {rate.unit for rate in rates} != {rate.unit for rate in base}:
                raise self._error(f"above {threshold:,} tokens it must price the same units as below")
            contexts.append((threshold, rates))
        return contexts

    def _rates(self, table: Mapping[str, Any], other_fields: set[str]) -> tuple[Rate, ...]:
        rates: dict[str, Rate] = {}
        # `output` first, so that a price for reasoning alone lies over it.
        for field in sorted(table.keys() - other_fields, key=len):
            match = _PRICE_FIELD.fullmatch(field)
            if match is None or match["stem"] not in _STEMS:
                known = [*other_fields, *(f"{stem}_per_million_usd" for stem in _STEMS)]
                close = difflib.get_close_matches(field, known, n=1)
                raise self._error(f"unknown field {field!r}", f"did you mean {close[0]}?" if close else None)
            amount, per = self._number(field, table[field]), _PER[match["per"]]
            for unit in _STEMS[match["stem"]]:
                if unit.endswith("_tokens"):
                    self._check_usual(field, amount * 1_000_000 / per)
                rates[unit] = Rate(unit=unit, amount=amount, per=per)
        return tuple(rates.values())

    def _check_usual(self, field: str, per_million: Decimal) -> None:
        if self._confirmed or _LOWEST_PER_MILLION <= per_million <= _HIGHEST_PER_MILLION:
            return
        raise self._error(
            f"{field} comes to ${per_million.normalize():,f} per million tokens",
            "if that is right, add confirm_unusual_prices = true",
        )

    def _number(self, field: str, value: object) -> Decimal:
        if not isinstance(value, str | int | Decimal) or isinstance(value, bool):
            raise self._error(f"{field} must be a number", f'{field} = "2.50"')
        try:
            number = Decimal(value)
        except InvalidOperation:
            raise self._error(f"{field} is {value!r}, not a number", f'{field} = "2.50"') from None
        if not number.is_finite() or number < 0:
            raise self._error(f"{field} is {number}: a price is finite and not negative")
        if number.adjusted() > _MOST_DIGITS or (number and number.adjusted() < -_MOST_DIGITS):
            raise self._error(f"{field} is {number}, which is no price")
        return number
