"""`taximeter prices`: which prices are known, where one comes from, how it changed, and whether they are stale.

Owns: how prices are shown. Refuses to know: where they are kept, and what anybody used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from taximeter.cli.console import JsonFlag, out, print_json
from taximeter.cli.price import parse_instant
from taximeter.clock import SYSTEM_CLOCK
from taximeter.errors import PricingError, RequestError
from taximeter.figures import rate_text
from taximeter.records import PriceList, Rate
from taximeter.settings import Settings

if TYPE_CHECKING:
    from rich.console import RenderableType

    from taximeter.pricing.catalog import Catalog
    from taximeter.pricing.overview import Explanation, Step

EXIT_STALE: Final = 1
_MILLION: Final = 1_000_000
_MIDNIGHT: Final = time()
_RIGHT: Final = ("fresh", "read", "write", "out", "above")
_LEAST_TELLING: Final = ("since", "write", "above", "read", "fresh", "out")
_COLUMNS: Final = {
    "fresh": "input_fresh_tokens",
    "read": "input_cache_read_tokens",
    "write": "input_cache_write_5m_tokens",
    "out": "output_text_tokens",
}

app = typer.Typer(add_completion=False, help="List, search and explain prices; check their age.")

At = Annotated[str | None, typer.Option(help="A day (from its start in UTC) or an instant, in ISO 8601. Default: now.")]
Prices = Annotated[
    Path | None, typer.Option(exists=True, dir_okay=False, help="An overlay file with prices of your own.")
]


@app.callback(invoke_without_command=True)
def prices(context: typer.Context, as_json: JsonFlag = False) -> None:
    """Who sells models whose prices are known, and how many."""
    if context.invoked_subcommand is not None:
        return
    owners = Counter(name.partition("/")[0] for name in _catalog(None).models())
    if as_json:
        print_json({"models": owners})
        return
    from rich.text import Text  # noqa: PLC0415  # as in `console`

    from taximeter.cli.tables import print_table  # noqa: PLC0415

    rows = [{"provider": Text(name), "models": Text(f"{count:,}")} for name, count in sorted(owners.items())]
    print_table(rows, right=("models",), least_telling=())
    out().print("`taximeter prices list --provider NAME`, `… search WORDS`, `… explain MODEL`, `… check`", style="dim")


@app.command("list")
def listed(
    provider: Annotated[str | None, typer.Option(help="Only one provider's models.", metavar="NAME")] = None,
    tier: Annotated[str, typer.Option(help="Service tier: standard, batch, flex, priority, fast.")] = "standard",
    at: At = None,
    prices: Prices = None,
    as_json: JsonFlag = False,
) -> None:
    """Every model with a price, a line each."""
    catalog = _catalog(prices)
    names = [name for name in catalog.models() if provider is None or name.startswith(f"{provider.lower()}/")]
    if not names:
        owners = ", ".join(dict.fromkeys(name.partition("/")[0] for name in catalog.models()))
        raise RequestError(f"nobody called {provider!r} has a price", param="provider", hint=f"there are: {owners}")
    _show(catalog, names, _instant(at), tier, as_json=as_json)


@app.command()
def search(
    words: Annotated[list[str], typer.Argument(help="Parts of a model's name; all of them have to be in it.")],
    tier: Annotated[str, typer.Option(help="Service tier: standard, batch, flex, priority, fast.")] = "standard",
    at: At = None,
    prices: Prices = None,
    as_json: JsonFlag = False,
) -> None:
    """The models whose names have all of these words in them."""
    catalog = _catalog(prices)
    wanted = [word.lower() for word in words]
    names = [name for name in catalog.models() if all(word in name for word in wanted)]
    if not names:
        # It may be an alias, which is in no list.
        try:
            names = [catalog.resolve("-".join(words))]
        except PricingError as error:
            raise PricingError(
                f"no model with {' and '.join(words)} in its name has a price", hint=error.hint
            ) from None
    _show(catalog, names, _instant(at), tier, as_json=as_json)


@app.command()
def explain(
    model: Annotated[str, typer.Argument(help="provider/model, or a model's name where only one can be meant.")],
    at: At = None,
    prices: Prices = None,
    as_json: JsonFlag = False,
) -> None:
    """One model: its prices by tier and by length of the prompt, where they are from, and how they changed."""
    from taximeter.pricing.overview import explain as explained  # noqa: PLC0415  # as `_catalog`

    explanation = explained(_catalog(prices), model, _instant(at))
    if as_json:
        print_json(explanation)
    else:
        out().print(_page(explanation))


@app.command()
def check(
    most_days: Annotated[
        int, typer.Option("--most-days", min=1, help="How old prices may be before somebody should look.")
    ] = 60,
    prices: Prices = None,
    as_json: JsonFlag = False,
) -> None:
    """Whether the prices are stale: exit code 1 if they are."""
    from taximeter.pricing.overview import freshness  # noqa: PLC0415

    found = freshness(_catalog(prices), SYSTEM_CLOCK.utc_now().date(), most_days)
    is_stale = found.is_stale(most_days)
    if as_json:
        print_json({"is_stale": is_stale, "most_days": most_days, "prices": found})
    else:
        console = out()
        age = f"{found.source}: the newest price in it is of {found.newest_change_on}, {found.age_days} days ago"
        console.print(age, soft_wrap=True)
        if found.age_days > most_days:
            console.print("  install a newer genai-prices, or append what has changed to your overlay", soft_wrap=True)
        for name in found.unchecked:
            told = f"your overlay: {name} has no checked_on within {most_days} days"
            console.print(told, soft_wrap=True)
        console.print("stale" if is_stale else "fresh enough", style="bold red" if is_stale else "green")
    if is_stale:
        raise typer.Exit(EXIT_STALE)


def _catalog(prices: Path | None) -> Catalog:
    from taximeter.pricing.catalog import Catalog  # noqa: PLC0415  # the price data take an eighth of a second

    return Catalog.load(Settings.load(prices=None if prices is None else str(prices)).prices_overlay)


def _instant(at: str | None) -> datetime:
    return SYSTEM_CLOCK.utc_now() if at is None else parse_instant(at)


def _show(catalog: Catalog, names: Sequence[str], at: datetime, tier: str, *, as_json: bool) -> None:
    from taximeter.pricing.overview import steps  # noqa: PLC0415

    found = {name: each for name in names if (each := steps(catalog, name, at, tier))}
    if as_json:
        print_json({"at": at, "tier": tier, "models": found})
        return
    if not found:
        out().print(f"none of {len(names):,} models has a price for the tier {tier!r} on {at:%Y-%m-%d}", soft_wrap=True)
        return
    from rich.text import Text  # noqa: PLC0415  # as in `console`

    from taximeter.cli.tables import print_table  # noqa: PLC0415

    rows: list[dict[str, Text]] = []
    for name, (first, *later) in found.items():
        since = first.prices.valid_from
        cells = {
            "model": name,
            **{heading: _amount(first.prices, unit) for heading, unit in _COLUMNS.items()},
            "above": _thousands(later[0].above_tokens) if later else "",
            "since": "" if since is None else f"{since:%Y-%m-%d}",
        }
        rows.append({heading: Text(text) for heading, text in cells.items()})
    print_table(rows, right=_RIGHT, least_telling=_LEAST_TELLING, names="model", whole_names=True)
    out().print(f"{len(rows):,} models; dollars for a million tokens, {tier} tier, {at:%Y-%m-%d}", style="dim")


def _amount(prices: PriceList, unit: str) -> str:
    rate = prices.rate(unit)
    return "" if rate is None else per_million_text(rate)


def per_million_text(rate: Rate) -> str:
    """What a million of a unit costs, every digit of it: a list's own amount, where it is for a million already."""
    return rate_text(rate.amount * Decimal(_MILLION) / rate.per).removeprefix("$")


def _thousands(tokens: int) -> str:
    return f"{tokens // 1_000:,}k" if tokens % 1_000 == 0 else f"{tokens:,}"


def _page(explanation: Explanation) -> RenderableType:
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    known_as = "" if explanation.asked == explanation.model else f"  (asked for as {explanation.asked})"
    parts: list[RenderableType] = [
        Text.assemble((explanation.model, "bold"), (f"{known_as}  {explanation.at:%Y-%m-%d %H:%M} UTC", "dim"))
    ]
    if not explanation.tiers:
        parts += ["", "it has no price at that time"]
    for tier, steps in explanation.tiers.items():
        parts += ["", Text(tier, style="bold"), _step_table(steps)]
        parts += [Text(_provenance(step.prices), style="dim") for step in steps[:1]]
    if len(explanation.history) > 1:
        parts += ["", Text("standard price through time", style="bold"), _history_table(explanation.history)]
    return Group(*parts)


def _step_table(steps: Sequence[Step]) -> RenderableType:
    """A line for each unit, a column for each length of prompt."""
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("")
    for step in steps:
        above = f"prompt above {step.above_tokens:,}" if step.above_tokens else "$ per million"
        table.add_column(above, justify="right")
    units = dict.fromkeys(rate.unit for step in steps for rate in step.prices.rates)
    for unit in units:
        rates = [step.prices.rate(unit) for step in steps]
        if unit.endswith("_tokens"):
            name, amounts = unit.removesuffix("_tokens"), [rate and per_million_text(rate) for rate in rates]
        else:
            per = max(rate.per for rate in rates if rate is not None)
            name, amounts = (
                f"{unit}, per {per:,}",
                [rate and rate_text(rate.amount).removeprefix("$") for rate in rates],
            )
        table.add_row(f"  {name.replace('_', ' ')}", *(amount or "" for amount in amounts))
    return table


def _history_table(history: Sequence[Sequence[Step]]) -> RenderableType:
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("  from")
    for heading in (*_COLUMNS, "more above"):
        table.add_column(heading, justify="right")
    for first, *later in history:
        since = first.prices.valid_from
        told = (
            "always"
            if since is None
            else f"{since:%Y-%m-%d}"
            if since.time() == _MIDNIGHT
            else f"{since:%Y-%m-%d %H:%M}"
        )
        above = _thousands(later[0].above_tokens) if later else ""
        table.add_row(f"  {told}", *(_amount(first.prices, unit) for unit in _COLUMNS.values()), above)
    return table


def _provenance(prices: PriceList) -> str:
    dates = [
        f"{word} {moment:%Y-%m-%d}"
        for word, moment in (("from", prices.valid_from), ("until", prices.valid_until), ("checked", prices.checked_on))
        if moment is not None
    ]
    basis = "" if prices.basis == "reported" else f"; {prices.basis}"
    return f"  {prices.source} ({', '.join(dates) or 'it gives no dates'}{basis})"
