"""`taximeter price`: what a request costs and how long it takes, from the price list and two timings.

Owns: the arithmetic of one imagined request, and how it is shown. Refuses to know: where prices come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taximeter.cli.console import JsonFlag, out, print_json
from taximeter.clock import SYSTEM_CLOCK
from taximeter.errors import RequestError
from taximeter.records import Basis, Cost, PriceList, Usage, decimal_text
from taximeter.settings import Settings

if TYPE_CHECKING:
    from rich.console import RenderableType

_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTime:
    """How long an answer takes: its first token, then one gap for each token after it."""

    first_token_ns: int
    inter_token_ns: int | None
    decode_ns: int
    total_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What `taximeter price` says, and the shape of its JSON.

    `shares` holds two ratios and two whole percentages, summing to 100, for each of tokens, cost and time; None for a
    whole that is unknown or zero.
    """

    model: str
    at: datetime
    usage: Usage
    cost: Cost
    timing: AnswerTime | None
    timing_reason: str | None
    shares: Mapping[str, Mapping[str, float | int] | None]


def price(
    model: Annotated[str, typer.Option(help="provider/model, or a model's name where only one can be meant.")],
    input_tokens: Annotated[int, typer.Option("--input", min=0, help="The whole prompt, cached or not.")],
    output_tokens: Annotated[int, typer.Option("--output", min=0, help="The whole answer.")],
    cache_read: Annotated[int, typer.Option(min=0, help="Prompt tokens read from a cache.")] = 0,
    cache_write: Annotated[int, typer.Option(min=0, help="Prompt tokens written to a cache for 5 minutes.")] = 0,
    cache_write_1h: Annotated[
        int, typer.Option("--cache-write-1h", min=0, help="Prompt tokens written to a cache for 1 hour.")
    ] = 0,
    tier: Annotated[str | None, typer.Option(help="Service tier: standard, batch, flex, priority.")] = None,
    batch: Annotated[bool, typer.Option("--batch", help="The same as --tier batch.")] = False,
    at: Annotated[
        str | None, typer.Option(help="A day (from its start in UTC) or an instant, in ISO 8601. Default: now.")
    ] = None,
    ttft_ms: Annotated[str | None, typer.Option(help="Time to the first token, in milliseconds.")] = None,
    itl_ms: Annotated[str | None, typer.Option(help="Time from one token to the next, in milliseconds.")] = None,
    prices: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="An overlay file with prices of your own.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """What a request costs and how long it takes, from published prices and two timings."""
    if batch and tier not in (None, "batch"):
        raise RequestError(f"--batch and --tier {tier} contradict each other", param="tier")
    if not model.strip():
        raise RequestError("--model is empty", param="model", hint="provider/model: anthropic/claude-sonnet-5-5")
    estimate = estimate_request(
        model=model,
        at=SYSTEM_CLOCK.utc_now() if at is None else parse_instant(at),
        tier="batch" if batch else tier or "standard",
        usage=prompt_usage(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cache_read_tokens=cache_read,
            cache_write_5m_tokens=cache_write,
            cache_write_1h_tokens=cache_write_1h,
        ),
        first_token_ns=None if ttft_ms is None else parse_ms(ttft_ms, "ttft-ms"),
        inter_token_ns=None if itl_ms is None else parse_ms(itl_ms, "itl-ms"),
        overlay=Settings.load(prices=None if prices is None else str(prices)).prices_overlay,
    )
    if as_json:
        print_json(estimate)
    else:
        console = out()
        console.print(_page(estimate, is_now=at is None, ascii_only=console.options.ascii_only))


def prompt_usage(
    *,
    input_tokens: int,
    output_tokens: int,
    cache_read_tokens: int = 0,
    cache_write_5m_tokens: int = 0,
    cache_write_1h_tokens: int = 0,
) -> Usage:
    """Exclusive buckets from a whole prompt and its cached parts. Raises RequestError when the parts exceed it."""
    cached_tokens = cache_read_tokens + cache_write_5m_tokens + cache_write_1h_tokens
    if cached_tokens > input_tokens:
        raise RequestError(
            f"{cached_tokens:,} cached and written tokens cannot be parts of a prompt of {input_tokens:,}",
            param="input",
            hint="--input is the whole prompt",
        )
    return Usage(
        input_fresh_tokens=input_tokens - cached_tokens,
        input_cache_read_tokens=cache_read_tokens,
        input_cache_write_5m_tokens=cache_write_5m_tokens,
        input_cache_write_1h_tokens=cache_write_1h_tokens,
        output_text_tokens=output_tokens,
        basis=Basis.ASSUMED,
    )


def estimate_request(
    *,
    model: str,
    at: datetime,
    tier: str,
    usage: Usage,
    first_token_ns: int | None,
    inter_token_ns: int | None,
    overlay: Path | None,
) -> Estimate:
    """Price the usage and add up the time. Raises PricingError, and RequestError for half of the timings."""
    from taximeter.pricing import charge  # noqa: PLC0415
    from taximeter.pricing.catalog import Catalog  # noqa: PLC0415  # loading the price data takes a quarter second

    input_tokens, output_tokens = usage.input_tokens or 0, usage.output_tokens or 0
    prices = Catalog.load(overlay).price_list(model, at=at, tier=tier, input_tokens=input_tokens)
    cost = charge(usage, prices)
    timing, timing_reason = answer_time(output_tokens, first_token_ns, inter_token_ns)
    return Estimate(
        model=prices.model,
        at=at,
        usage=usage,
        cost=cost,
        timing=timing,
        timing_reason=timing_reason,
        shares={
            "tokens": _shares("input", input_tokens, "output", output_tokens),
            "cost": _shares("input", cost.input, "output", cost.output),
            "time": None
            if timing is None
            else _shares("first_token", timing.first_token_ns, "decode", timing.decode_ns),
        },
    )


def answer_time(
    output_tokens: int, first_token_ns: int | None, inter_token_ns: int | None
) -> tuple[AnswerTime | None, str | None]:
    """The time of an answer: one wait for the first token and one gap for each token after it; or why it is unknown."""
    if output_tokens == 0:
        return None, "an answer without tokens has no first one"
    if first_token_ns is None and inter_token_ns is None:
        return None, "no timings given: --ttft-ms and --itl-ms"
    if first_token_ns is None or (inter_token_ns is None and output_tokens > 1):
        missing = "ttft-ms" if first_token_ns is None else "itl-ms"
        raise RequestError(f"--{missing} is missing: time needs both timings", param=missing)
    decode_ns = (output_tokens - 1) * (inter_token_ns or 0)
    return (
        AnswerTime(
            first_token_ns=first_token_ns,
            inter_token_ns=inter_token_ns,
            decode_ns=decode_ns,
            total_ns=first_token_ns + decode_ns,
        ),
        None,
    )


def parse_instant(text: str, flag: str = "at") -> datetime:
    """A day or an instant in ISO 8601; a day is its start, and without an offset it is UTC. Raises RequestError."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        try:
            instant = datetime.fromisoformat(text)
        except ValueError:
            raise RequestError(
                f"--{flag} is {text!r}, neither a day nor an instant",
                param=flag,
                hint="2026-10-29 or 2026-10-29T12:00Z",
            ) from None
    else:
        instant = datetime(day.year, day.month, day.day, tzinfo=UTC)
    if instant.tzinfo is None:
        return instant.replace(tzinfo=UTC)
    try:
        return instant.astimezone(UTC)
    except OverflowError:
        raise RequestError(f"--{flag} is {text!r}, which in UTC is outside the years 1 to 9999", param=flag) from None


def parse_ms(text: str, flag: str) -> int:
    """Milliseconds, possibly with decimals, as whole nanoseconds. Raises RequestError."""
    try:
        milliseconds = Decimal(text)
    except InvalidOperation:
        raise RequestError(f"--{flag} is {text!r}, not a number of milliseconds", param=flag) from None
    if not milliseconds.is_finite() or milliseconds < 0 or abs(milliseconds.adjusted()) > 15:
        raise RequestError(f"--{flag} is {text!r}: no time to wait", param=flag)
    numerator, denominator = milliseconds.as_integer_ratio()
    nanoseconds, rest = divmod(numerator * _NS_PER_MS, denominator)
    if rest:
        raise RequestError(f"--{flag} is {text!r}, finer than a nanosecond", param=flag)
    return nanoseconds


def _shares(
    first: str, first_part: int | Decimal | None, second: str, second_part: int | Decimal | None
) -> dict[str, float | int] | None:
    """Two parts of a whole, as ratios and as whole percentages that sum to 100."""
    if first_part is None or second_part is None or (first_part == 0 and second_part == 0):
        return None
    ratio = Fraction(first_part) / (Fraction(first_part) + Fraction(second_part))
    percent = round(ratio * 100)
    return {
        f"{first}_ratio": float(ratio),
        f"{second}_ratio": float(1 - ratio),
        f"{first}_percent": percent,
        f"{second}_percent": 100 - percent,
    }


_LABELS = {
    "input_fresh_tokens": "input",
    "input_cache_read_tokens": "cache read",
    "input_cache_write_5m_tokens": "cache write, 5 min",
    "input_cache_write_1h_tokens": "cache write, 1 h",
    "output_text_tokens": "output",
}
_SHARE_LABELS = {"input": "input", "output": "output", "first_token": "first token", "decode": "decode"}
_BAR_CELLS = 32


def _page(estimate: Estimate, *, is_now: bool, ascii_only: bool) -> RenderableType:
    """The estimate as one aligned block: the bill, the three bars, the time, and where the price is from."""
    from rich.console import Group  # noqa: PLC0415  # as in `console`
    from rich.text import Text  # noqa: PLC0415

    prices = estimate.cost.price_list
    assert prices is not None  # noqa: S101  # `charge` always names its list
    moment = f"{estimate.at:%Y-%m-%d %H:%M} UTC" + (" (now)" if is_now else "")
    tier = "" if prices.tier == "standard" else f"  {prices.tier}"
    return Group(
        Text.assemble((estimate.model, "bold"), tier, (f"  {moment}", "dim")),
        "",
        _bill(estimate),
        "",
        _bars(estimate, ascii_only=ascii_only),
        "",
        _time_line(estimate),
        Text(f"price from {_provenance(prices)}; the cost is {estimate.cost.basis}", style="dim"),
    )


def _bill(estimate: Estimate) -> RenderableType:
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("")
    for heading in ("tokens", "$ per million", "cost"):
        table.add_column(heading, justify="right")
    decimals = max((_decimals(line.amount) for line in estimate.cost.lines), default=4)
    for line in estimate.cost.lines:
        per_million = line.rate.amount * 1_000_000 / line.rate.per
        table.add_row(
            _LABELS.get(line.unit, line.unit.replace("_", " ")),
            f"{line.quantity:,}",
            dollars_text(per_million, decimals=2).removeprefix("$"),
            dollars_text(line.amount, decimals=decimals),
        )
    total = dollars_text(estimate.cost.total, decimals=decimals)
    table.add_row("total", f"{estimate.usage.total_tokens or 0:,}", "", total, style="bold")
    return table


def _decimals(amount: Decimal) -> int:
    return max(4, len(decimal_text(amount).partition(".")[2]))


def _bars(estimate: Estimate, *, ascii_only: bool) -> RenderableType:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    full, empty = ("#", ".") if ascii_only else ("█", "░")
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, share in estimate.shares.items():
        if share is None:
            continue
        first, second = (key.removesuffix("_percent") for key in share if key.endswith("_percent"))
        cells = round(share[f"{first}_ratio"] * _BAR_CELLS)
        bar = Text.assemble((full * cells, "cyan"), (empty * (_BAR_CELLS - cells), "magenta"))
        words = [
            f"{'<1' if not share[f'{part}_percent'] and share[f'{part}_ratio'] else share[f'{part}_percent']:>3} %"
            f" {_SHARE_LABELS[part]}"
            for part in (first, second)
        ]
        grid.add_row(name, bar, *words)
    return grid


def _time_line(estimate: Estimate) -> str:
    timing = estimate.timing
    if timing is None:
        return f"time unknown: {estimate.timing_reason}"
    answer = f"first token after {seconds_text(timing.first_token_ns)}"
    gaps = (estimate.usage.output_tokens or 1) - 1
    if gaps and timing.inter_token_ns is not None:
        answer += f", then {gaps:,} x {seconds_text(timing.inter_token_ns)} = {seconds_text(timing.decode_ns)}"
    return f"{answer}; {seconds_text(timing.total_ns)} in all"


def _provenance(prices: PriceList) -> str:
    dates = [
        f"{word} {moment:%Y-%m-%d}"
        for word, moment in (("from", prices.valid_from), ("until", prices.valid_until), ("checked", prices.checked_on))
        if moment is not None
    ]
    return f"{prices.source} ({', '.join(dates) or 'it gives no dates'})"


def dollars_text(amount: Decimal, *, decimals: int = 4) -> str:
    """Every digit of an amount, at least `decimals` of them: `$0.0060`, `$0.00125`."""
    whole, _, fraction = decimal_text(amount).partition(".")
    return f"${int(whole):,}.{fraction.ljust(decimals, '0')}"


def seconds_text(duration_ns: int) -> str:
    """Every digit of a duration, in milliseconds below a second: `20 ms`, `8.48 s`."""
    if duration_ns < 1_000_000_000:
        return f"{decimal_text(Decimal(duration_ns) / 1_000_000)} ms"
    seconds, rest_ns = divmod(duration_ns, 1_000_000_000)
    fraction = f"{rest_ns:09}".rstrip("0")
    return f"{seconds:,}{'.' if fraction else ''}{fraction} s"
