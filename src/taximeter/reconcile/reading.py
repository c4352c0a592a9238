"""Usage and cost reports as Anthropic and OpenAI give them out, read without losing a digit.

Owns: which report a file is, its buckets, whose rows are cut off, and in which unit amounts are. Refuses to know: our
receipts, and prices.

Anthropic's amounts are texts in fractions of a cent, OpenAI's are numbers in dollars (or what they say). A bucket is
half-open. Anthropic gives at most a hundred groups for each bucket and leaves out the others without a word.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple, cast

from taximeter.errors import RequestError
from taximeter.records import EXACT, Basis, Usage

MOST_GROUPS: Final = 100
_LONG_CONTEXT: Final = 200_000
_MOST: Final = 10**15  # tokens: beyond any report
_LARGEST_EXPONENT: Final = 15
_FINEST_EXPONENT: Final = -30  # of an amount: decimals of a binary fraction, and more would cost memory
_NOTHING: Final[Mapping[str, object]] = {}

Object = Mapping[str, object]


class Kind(StrEnum):
    """What a report is about."""

    USAGE = "usage"
    COST = "cost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One group of one bucket.

    `model` is None where the report does not divide by it, or the row is of no model: then `of` says what it is of, if
    it says that. A cost row has an `amount` in `currency`, whose last digit is worth `digit`; `list_amount` is what it
    was before discounts, where that is told. A usage row has a `usage`, and `requests` where they are counted.
    `is_long` is whether its prompts are those beyond 200,000 tokens.
    """

    model: str | None
    of: str | None = None
    tier: str | None = None
    geography: str | None = None
    amount: Decimal | None = None
    list_amount: Decimal | None = None
    digit: Decimal = Decimal(0)
    currency: str | None = None
    usage: Usage | None = None
    requests: int | None = None
    is_long: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """The rows of one stretch of time, from `start` on and before `end`. Of one that `is_cut` some are missing, or may
    be: it has as many as there can be."""

    start: datetime
    end: datetime
    rows: tuple[Row, ...]

    @property
    def is_cut(self) -> bool:
        return len(self.rows) >= MOST_GROUPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A report, all of its pages together, in order of time. Of one that is not `is_whole` later pages are missing."""

    provider: str
    kind: Kind
    buckets: tuple[Bucket, ...]
    is_whole: bool = True
    notes: tuple[str, ...] = field(default=())


def read_reports(texts: Mapping[str, str]) -> list[Statement]:
    """The reports in files, by the files' names: pages of one kind of one provider are one report.

    Raises RequestError for a file that is none of them, naming it and what is wrong.
    """
    pages: dict[tuple[str, Kind], list[_Page]] = {}
    of_either: list[tuple[str, _Page]] = []
    for name, text in texts.items():
        for page in _pages(name, text):
            provider, kind, buckets = _page(name, page)
            read = _Page(buckets, page.get("has_more") is True, _endpoint(page))
            if kind is None:
                of_either.append((provider, read))
            else:
                pages.setdefault((provider, kind), []).append(read)
    for provider, read in of_either:
        kinds = [kind for owner, kind in pages if owner == provider] or [Kind.USAGE]
        for kind in kinds:  # of two reports it may be a page of either: then only that it is the last one is certain
            pages.setdefault((provider, kind), []).append(read if len(kinds) == 1 else read._replace(buckets=[]))
    return [_statement(provider, kind, found) for (provider, kind), found in pages.items()]


class _Page(NamedTuple):
    """The buckets of a page, whether others follow, and which of a provider's endpoints for the same gave it: OpenAI
    reports what completions and what embeddings used apart. None where nothing in it tells."""

    buckets: list[Bucket]
    has_more: bool
    endpoint: str | None


def _endpoint(page: Object) -> str | None:
    rows = [row for each in cast("list[object]", page["data"]) for row in _rows(_object(each))]
    return next((word for row in rows if (word := _word(row.get("object"))) is not None), None)


def _statement(provider: str, kind: Kind, pages: Sequence[_Page]) -> Statement:
    told: dict[tuple[datetime, datetime, str | None], Bucket] = {}
    repeated = 0
    for page in pages:
        for bucket in page.buckets:
            place = bucket.start, bucket.end, page.endpoint
            known = told.get(place)
            if known is not None and known.rows != bucket.rows:
                raise RequestError(
                    f"two of the files tell of {bucket.start:%Y-%m-%d %H:%M} to {bucket.end:%Y-%m-%d %H:%M}, and not "
                    "the same",
                    hint="give each page once, all of one report",
                )
            repeated += known is not None
            told[place] = bucket
    found: dict[tuple[datetime, datetime], Bucket] = {}
    for (start, end, _), bucket in told.items():
        others = found.get((start, end))
        found[start, end] = bucket if others is None else replace(others, rows=(*others.rows, *bucket.rows))
    ordered = sorted(found.values(), key=lambda bucket: bucket.start)
    for earlier, later in pairwise(ordered):
        if later.start < earlier.end:
            raise RequestError(
                f"the buckets from {earlier.start:%Y-%m-%d %H:%M} and from {later.start:%Y-%m-%d %H:%M} overlap",
                hint="give reports of one bucket width",
            )
    notes = [f"{repeated} buckets came twice, the same both times"] if repeated else []
    # The last page of a report says that nothing follows; the others that something does.
    endpoints = {page.endpoint for page in pages}
    is_whole = all(any(not page.has_more for page in pages if page.endpoint in (each, None)) for each in endpoints)
    return Statement(provider=provider, kind=kind, buckets=tuple(ordered), is_whole=is_whole, notes=tuple(notes))


def _pages(name: str, text: str) -> Iterator[Object]:
    """The pages in a file: one, a list of them, or one on each line."""
    try:
        documents = [json.loads(text, parse_float=Decimal)]
    except (ValueError, ArithmeticError):
        lines = [line for line in text.splitlines() if line.strip()]
        try:
            documents = [json.loads(line, parse_float=Decimal) for line in lines]
        except (ValueError, ArithmeticError) as error:
            raise RequestError(f"{name} is no JSON: {str(error)[:100]}") from error
        except RecursionError as error:
            raise RequestError(f"{name} is nested too deeply") from error
    except RecursionError as error:
        raise RequestError(f"{name} is nested too deeply") from error
    for document in documents:
        for page in cast("list[object]", document) if isinstance(document, list) else [document]:
            if not isinstance(page, dict) or not isinstance(cast(Object, page).get("data"), list):
                raise RequestError(
                    f"{name} is no usage or cost report: a page of one has a list `data`",
                    hint="save what the provider's admin API answers, as it is",
                )
            yield cast(Object, page)


def _page(name: str, page: Object) -> tuple[str, Kind | None, list[Bucket]]:
    """Whose page it is, of what (None where nothing was used and nothing tells), and its buckets."""
    data = [_object(each) for each in cast("list[object]", page["data"])]
    is_openai = page.get("object") == "page" or any("start_time" in each for each in data)
    rows = [row for each in data for row in _rows(each)]
    if is_openai:
        is_cost = any(row.get("object") == "organization.costs.result" for row in rows)
        provider, read = "openai", _openai_cost if is_cost else _openai_usage
    elif any("starting_at" in each for each in data) or not data:
        is_cost = any("amount" in row for row in rows)
        provider, read = "anthropic", _anthropic_cost if is_cost else _anthropic_usage
    else:
        raise RequestError(f"{name} is no report of Anthropic's or OpenAI's: its buckets have no start")
    try:
        buckets = [
            Bucket(start=_instant(each, "start"), end=_instant(each, "end"), rows=tuple(map(read, _rows(each))))
            for each in data
        ]
    except (ValueError, InvalidOperation, OverflowError, OSError) as error:
        raise RequestError(f"{name}: {error}", hint="save what the provider's admin API answers, as it is") from error
    if any(bucket.start >= bucket.end for bucket in buckets):
        raise RequestError(f"{name}: a bucket ends before it begins")
    kind = Kind.COST if is_cost else Kind.USAGE
    return provider, kind if rows else None, buckets


def _rows(bucket: Object) -> list[Object]:
    rows = bucket.get("results", bucket.get("result"))
    return [_object(row) for row in cast("list[object]", rows)] if isinstance(rows, list) else []


def _anthropic_cost(row: Object) -> Row:
    amount, digit = _cents(row, "amount")
    listed = _cents(row, "list_amount")[0] if row.get("list_amount") is not None else None
    kind = _word(row.get("cost_type")) or _word(row.get("description"))
    return Row(
        model=_word(row.get("model")),
        of=kind,
        tier=_tier(row),
        geography=_word(row.get("inference_geo")),
        amount=amount,
        list_amount=listed,
        digit=digit,
        currency=(_word(row.get("currency")) or "USD").upper(),
        requests=_maybe_count(row, "requests"),
        is_long=_is_long(row),
    )


def _anthropic_usage(row: Object) -> Row:
    created = _object(row.get("cache_creation"))
    used = _object(row.get("server_tool_use"))
    searches = _count(used, "web_search_requests")
    return Row(
        model=_word(row.get("model")),
        tier=_tier(row),
        geography=_word(row.get("inference_geo")),
        usage=Usage(
            input_fresh_tokens=_count(row, "uncached_input_tokens"),
            input_cache_read_tokens=_count(row, "cache_read_input_tokens"),
            input_cache_write_5m_tokens=_count(created, "ephemeral_5m_input_tokens"),
            input_cache_write_1h_tokens=_count(created, "ephemeral_1h_input_tokens"),
            output_text_tokens=_count(row, "output_tokens"),
            other_units={"web_searches": searches} if searches else {},
            basis=Basis.REPORTED,
        ),
        requests=_maybe_count(row, "requests"),
        is_long=_is_long(row),
    )


def _openai_cost(row: Object) -> Row:
    amount = _object(row.get("amount"))
    value = amount.get("value")
    if isinstance(value, bool) or not (value is None or isinstance(value, int | str | Decimal)):
        raise ValueError(f"an amount has the value {value!r}")
    number = _bounded(Decimal(0 if value is None else value), "value")
    item = _word(row.get("line_item"))
    model, comma, what = (item or "").strip().partition(",")
    is_model = bool(comma) or " " not in model  # `gpt-5-2025-08-07, cached input`, but `web search tool calls`
    return Row(
        model=model.strip() or None if is_model else None,
        of=what.strip() or item,
        tier=None,
        amount=number,
        digit=_last_digit(number),
        currency=(_word(amount.get("currency")) or "usd").upper(),
    )


def _openai_usage(row: Object) -> Row:
    """Its input includes what was cached and written. Where it says how it divides, that counts."""
    whole = _count(row, "input_tokens")
    cached = _count(row, "input_cached_tokens")
    written_30m, written_12h = (_count(row, f"input_cache_write_{ttl}_tokens") for ttl in ("30m", "12h"))
    written = max(_count(row, "input_cache_write_tokens"), written_30m + written_12h)
    audio, cached_audio = _count(row, "input_audio_tokens"), _count(row, "input_cached_audio_tokens")
    images, output = _count(row, "input_image_tokens"), _count(row, "output_tokens")
    audio_out, images_out = _count(row, "output_audio_tokens"), _count(row, "output_image_tokens")
    fresh = whole - cached - written - audio - images
    if fresh < 0 or audio_out + images_out > output or cached_audio > cached:
        raise ValueError(f"a row of {_word(row.get('model')) or 'no model'} has parts that exceed their total")
    return Row(
        model=_word(row.get("model")),
        tier="batch" if row.get("batch") is True else _word(row.get("service_tier")),
        usage=Usage(
            input_fresh_tokens=fresh,
            input_cache_read_tokens=cached - cached_audio,
            input_cache_write_30m_tokens=written_30m,
            input_cache_write_12h_tokens=written_12h,
            input_cache_write_unknown_tokens=written - written_30m - written_12h,
            input_image_tokens=images,
            input_audio_tokens=audio,
            input_audio_cache_read_tokens=cached_audio,
            output_text_tokens=output - audio_out - images_out,
            output_image_tokens=images_out,
            output_audio_tokens=audio_out,
            basis=Basis.REPORTED,
        ),
        requests=_maybe_count(row, "num_model_requests"),
    )


def _tier(row: Object) -> str | None:
    """Speed is a tier of its own in price lists."""
    return "fast" if row.get("speed") == "fast" else _word(row.get("service_tier"))


def _is_long(row: Object) -> bool:
    window = _word(row.get("context_window"))
    return window is not None and window.replace("_", "").lower().startswith("200k-")


def long_prompt_tokens(row: Row) -> int:
    """A length that stands for those of the row's prompts, to choose their prices by."""
    return _LONG_CONTEXT + 1 if row.is_long else 1


def _cents(row: Object, name: str) -> tuple[Decimal, Decimal]:
    """An amount in dollars, and what its last digit is worth."""
    said = row.get(name)
    if not isinstance(said, str):
        raise ValueError(f"`{name}` must be a text of cents, not {said!r}")  # noqa: TRY004 - see `_page`
    cents = _bounded(Decimal(said), name)
    return cents.scaleb(-2, context=EXACT), _last_digit(cents).scaleb(-2, context=EXACT)


def _bounded(number: Decimal, name: str) -> Decimal:
    """The amount, if it is one: sums are exact, so what is of another size would be digits without end."""
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int) or number.adjusted() > _LARGEST_EXPONENT or exponent < _FINEST_EXPONENT:
        raise ValueError(f"`{name}` is {str(number)[:40]}, no amount of money")
    return number


def _last_digit(number: Decimal) -> Decimal:
    exponent = number.as_tuple().exponent
    return Decimal(1).scaleb(min(exponent, 0) if isinstance(exponent, int) else 0, context=EXACT)


def _instant(bucket: Object, edge: str) -> datetime:
    """Seconds since 1970, or RFC 3339."""
    said = bucket.get(f"{edge}_time", bucket.get(f"{edge}ing_at"))
    if isinstance(said, str):
        instant = datetime.fromisoformat(said)
        if instant.tzinfo is None:
            raise ValueError(f"a bucket's {edge} has no time zone: {said!r}")
        return instant.astimezone(UTC)
    if isinstance(said, int) and not isinstance(said, bool):
        return datetime.fromtimestamp(said, UTC)
    raise ValueError(f"a bucket has no {edge}")


def _object(said: object) -> Object:
    return cast(Object, said) if isinstance(said, dict) else _NOTHING


def _word(said: object) -> str | None:
    return said if isinstance(said, str) and said else None


def _maybe_count(row: Object, name: str) -> int | None:
    return None if row.get(name) is None else _count(row, name)


def _count(row: Object, name: str) -> int:
    said = row.get(name)
    if said is None:
        return 0
    if not isinstance(said, int) or isinstance(said, bool) or not 0 <= said <= _MOST:
        raise ValueError(f"`{name}` is {str(said)[:40]}, no count")
    return said
