"""`taximeter reprice`: what receipts would cost by another price list, and, if so wished, corrections that say it.

Owns: which receipts are looked at, and that both figures are shown. Refuses to know: prices. History is never changed:
a correction is a new receipt, the old one stays with its own figure.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from taximeter.cli.console import JsonFlag, out, print_json
from taximeter.cli.price import parse_instant
from taximeter.clock import SYSTEM_CLOCK
from taximeter.errors import LedgerError, RequestError
from taximeter.figures import money_text, sum_text
from taximeter.records import Receipt, new_id
from taximeter.settings import Settings

if TYPE_CHECKING:
    from taximeter.ledger import Ledger
    from taximeter.pricing.catalog import Catalog
    from taximeter.pricing.repricing import Repricing, Sums

_CURRENT: Final = "current"
_PAGE: Final = 500
_RIGHT: Final = ("receipts", "corrected", "by its own list", "by the other", "difference")
_LEAST_TELLING: Final = ("receipts", "corrected", "by its own list", "by the other")

Since = Annotated[str | None, typer.Option(help="From this day on (its start in UTC), or an instant.", metavar="WHEN")]
Until = Annotated[str | None, typer.Option(help="Before this day, or instant.", metavar="WHEN")]


def reprice(
    with_list: Annotated[
        str,
        typer.Option(
            "--with", help="An overlay file, or `current`: the prices that are in force here today.", metavar="LIST"
        ),
    ],
    since: Since = None,
    until: Until = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show both figures, and write nothing.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Price receipts anew by another list, each at its own day's price; both figures are shown, and kept."""
    start, end = period(since, until)
    settings = Settings.load()
    catalog = _catalog(with_list, settings)
    from taximeter.ledger import Ledger  # noqa: PLC0415  # as in `receipts`
    from taximeter.pricing.repricing import Repricer, Repricing  # noqa: PLC0415

    repricer, repricing, failed = Repricer(catalog, sellers(settings)), Repricing(), list[str]()
    opened = Ledger.open_to_ask if dry_run else Ledger.open
    with opened(settings.ledger_url, spool=settings.spool_dir) as ledger:
        made: set[str] = set()
        for page in pages(ledger, start, end):
            corrections: list[tuple[Receipt, Future[None]]] = []
            for receipt in page:
                if receipt.id in made:
                    continue
                found = repricer.look(receipt)
                repricing.add(found)
                correction = found.correction(new_id("rcpt", SYSTEM_CLOCK.utc_now()))
                if correction is not None and not dry_run:
                    made.add(correction.id)
                    corrections.append((correction, ledger.append(correction)))
            failed += [f"{one.supersedes}: {error}" for one, done in corrections if (error := done.exception())]
    if as_json:
        print_json({"list": with_list, "since": start, "until": end, "dry_run": dry_run, **_fields(repricing)})
    else:
        _print(repricing, with_list, dry_run=dry_run)
    if failed:
        raise LedgerError(
            f"{len(failed)} corrections were not written; the first is {failed[0]}", hint="run it again: it goes on"
        )


def period(since: str | None, until: str | None) -> tuple[datetime | None, datetime | None]:
    """Two instants as people write them, None where open. Raises RequestError when nothing lies between them."""
    start = None if since is None else parse_instant(since, "since")
    end = None if until is None else parse_instant(until, "until")
    if start is not None and end is not None and start >= end:
        raise RequestError(f"nothing is since {start:%Y-%m-%d %H:%M} and before {end:%Y-%m-%d %H:%M}", param="until")
    return start, end


def pages(ledger: Ledger, since: datetime | None, until: datetime | None) -> Iterator[list[Receipt]]:
    """The receipts of requests that were received from `since` and before `until`, newest first, without those that
    another one corrects."""
    before: str | None = None
    while page := ledger.receipts(_PAGE, before, since=since, until=until):
        before = page[-1].id
        yield page


def sellers(settings: Settings) -> dict[str, str]:
    """Whose published prices hold for each upstream. What is wrong elsewhere in the configuration does not matter
    here, and neither does a key that is not at hand."""
    found: dict[str, str] = {}
    for name, table in settings.upstream_tables.items():
        provider = cast(dict[str, object], table).get("provider") if isinstance(table, dict) else None
        if isinstance(provider, str):
            found[name] = provider
    return found


def _catalog(with_list: str, settings: Settings) -> Catalog:
    from taximeter.pricing.catalog import Catalog  # noqa: PLC0415  # as in `prices`

    if with_list == _CURRENT:
        return Catalog.load(settings.prices_overlay)
    path = Path(with_list).expanduser()
    if not path.is_file():
        raise RequestError(
            f"--with names {with_list!r}, which is no file", param="with", hint="an overlay file, or `current`"
        )
    return Catalog.load(path)


def _fields(repricing: Repricing) -> dict[str, object]:
    return {
        "changes": {change.value: count for change, count in repricing.changes.items()},
        "total": _sums(repricing.total),
        "models": {model: _sums(sums) for model, sums in sorted(repricing.models.items())},
        "left": dict(repricing.left),
    }


def _sums(sums: Sums) -> dict[str, object]:
    return {
        "receipts": sums.receipts,
        "corrected": sums.corrected,
        "before": sums.before,
        "unpriced_before": sums.unpriced_before,
        "after": sums.after,
        "unpriced_after": sums.unpriced_after,
        "difference": sums.difference,
    }


def _print(repricing: Repricing, with_list: str, *, dry_run: bool) -> None:
    from rich.text import Text  # noqa: PLC0415  # as in `console`

    from taximeter.cli.tables import print_table  # noqa: PLC0415

    console, total = out(), repricing.total
    if total.receipts:
        rows: list[dict[str, Text]] = []
        for model, sums in [*sorted(repricing.models.items()), ("all", total)]:
            cells = {
                "model": model,
                "receipts": f"{sums.receipts:,}",
                "corrected": f"{sums.corrected:,}",
                "by its own list": sum_text(sums.before, sums.unpriced_before),
                "by the other": sum_text(sums.after, sums.unpriced_after),
                "difference": money_text(sums.difference),
            }
            rows.append({name: Text(text, style="bold" if sums is total else "") for name, text in cells.items()})
        print_table(rows, right=_RIGHT, least_telling=_LEAST_TELLING, names="model")
    for reason, count in repricing.left.most_common():
        console.print(f"{count:,} stay as they are: {reason}", style="dim", soft_wrap=not console.is_terminal)
    from taximeter.pricing.repricing import Change  # noqa: PLC0415

    if elsewhere := repricing.changes[Change.ELSEWHERE]:
        told = f"{elsewhere:,} are not paid by the token, or nobody says by whose prices or how many tokens they had"
        console.print(told, style="dim", soft_wrap=not console.is_terminal)
    if not total.corrected:
        console.print(f"nothing differs by {with_list}", soft_wrap=not console.is_terminal)
    elif dry_run:
        console.print(f"{total.corrected:,} would be corrected; nothing was written", soft_wrap=not console.is_terminal)
    else:
        console.print(
            f"{total.corrected:,} corrected: each old receipt stays, with its own figure",
            soft_wrap=not console.is_terminal,
        )
