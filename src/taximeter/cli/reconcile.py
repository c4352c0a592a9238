"""`taximeter reconcile`: a provider's own usage or cost report beside our receipts.

Owns: reading files, and how the comparison is shown. Refuses to know: what reports mean, and why sums differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from taximeter.cli.console import JsonFlag, out, print_json
from taximeter.cli.reprice import pages, sellers
from taximeter.clock import SYSTEM_CLOCK
from taximeter.errors import RequestError
from taximeter.figures import money_text, sum_text
from taximeter.settings import Settings

if TYPE_CHECKING:
    from rich.text import Text

    from taximeter.reconcile.comparing import Cause, Line, Reconciliation

_LARGEST_FILE_BYTES: Final = 256 << 20
_RIGHT: Final = ("theirs", "ours", "difference", "requests", "receipts")
_LEAST_TELLING: Final = ("requests", "receipts", "ours", "theirs")
_WORDS: Final = {
    "unfinished": "the bucket is not over yet",
    "discount": "discounts: ours are list prices",
    "not_tokens": "charged for other things than tokens",
    "no_receipts": "no receipts of it: asked past the gateway, or lost",
    "missing_receipts": "more tokens than our receipts have",
    "unpriced": "without a price here",
    "estimated": "our tokens are a lower bound there, or our price is assumed",
    "other_tier": "other rates: another tier, or prompts beyond a threshold",
    "not_reported": "not in the report",
    "cut_off": "not in the report, which is cut off there",
    "rounding": "rounding",
    "unexplained": "unexplained",
}


def reconcile(
    reports: Annotated[
        list[Path],
        typer.Argument(
            help="Pages of a usage or a cost report, as the provider's admin API gives them. Both together say more.",
            metavar="REPORT...",
        ),
    ],
    by_line: Annotated[
        bool, typer.Option("--lines", help="Each model in each bucket, also where nothing differs.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Compare our receipts with a provider's own usage and cost reports, and explain what differs."""
    texts = {str(path): _text(path) for path in reports}
    from taximeter.ledger import Ledger  # noqa: PLC0415  # as in `receipts`
    from taximeter.pricing.catalog import Catalog  # noqa: PLC0415
    from taximeter.pricing.repricing import seller_of  # noqa: PLC0415
    from taximeter.reconcile.books import Books, Names  # noqa: PLC0415
    from taximeter.reconcile.comparing import reconcile as compared  # noqa: PLC0415
    from taximeter.reconcile.reading import read_reports  # noqa: PLC0415

    statements = [each for each in read_reports(texts) if each.buckets]
    if not statements:
        raise RequestError("the report has no buckets: there is nothing to compare", param="reports")
    settings = Settings.load()
    catalog, sold_by = Catalog.load(settings.prices_overlay), sellers(settings)
    books = [
        Books(each, Names(catalog, each.provider), lambda receipt: seller_of(receipt, sold_by)) for each in statements
    ]
    since = min(each.buckets[0].start for each in statements)
    until = max(each.buckets[-1].end for each in statements)
    with Ledger.open_to_ask(settings.ledger_url, spool=settings.spool_dir) as ledger:
        for page in pages(ledger, since, until):
            for receipt in page:
                for book in books:
                    book.add(receipt)
    done = compared(books, catalog=catalog, now=SYSTEM_CLOCK.utc_now())
    if as_json:
        print_json({"reconciliations": [_fields(each) for each in done]})
        return
    for number, each in enumerate(done):
        if number:
            out().print("")
        _print(each, by_line=by_line)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _LARGEST_FILE_BYTES:
            raise RequestError(f"{path} is larger than {_LARGEST_FILE_BYTES >> 20} MiB", param="reports")
        return path.read_text("utf-8")
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}", param="reports") from error
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{path} is no text in UTF-8", param="reports", hint="save what the provider's admin API answers, as it is"
        ) from error


def _fields(found: Reconciliation) -> dict[str, object]:
    return {
        "provider": found.provider,
        "kind": found.kind,
        "theirs": found.theirs,
        "ours": found.ours,
        "difference": found.difference,
        "causes": found.causes,
        "unpriced_receipts": sum(line.unpriced for line in found.lines),
        "other_currencies": found.other_currencies,
        "unpriced_rows": found.unpriced_rows,
        "notes": found.notes,
        "lines": [
            {
                "start": line.start,
                "end": line.end,
                "model": line.model,
                "theirs": line.theirs,
                "ours": line.ours,
                "difference": line.difference,
                "causes": line.causes,
                "requests": line.requests,
                "receipts": line.receipts,
                "unpriced": line.unpriced,
                "estimated": line.estimated,
            }
            for line in found.lines
        ],
    }


def _print(found: Reconciliation, *, by_line: bool) -> None:
    from rich.text import Text  # noqa: PLC0415  # as in `console`

    from taximeter.cli.tables import print_table  # noqa: PLC0415

    console = out()
    what = "usage report, its tokens at our prices" if found.kind == "usage" else "cost report"
    first, last = found.lines[0].start, found.lines[-1].end
    console.print(Text(f"{found.provider}'s {what}, {first:%Y-%m-%d} to {last:%Y-%m-%d}", style="bold"), soft_wrap=True)
    rows: list[dict[str, Text]] = []
    for line in found.lines:
        if not (by_line or line.difference):
            continue
        rows.append(_row(line))
    if rows:
        print_table(rows, right=_RIGHT, least_telling=_LEAST_TELLING, names="model")
        console.print("")
    unpriced = sum(line.unpriced for line in found.lines)
    console.print(f"theirs      {money_text(found.theirs)}", soft_wrap=True)
    console.print(f"ours        {sum_text(found.ours, unpriced)}", soft_wrap=True)
    console.print(f"difference  {_signed(found.difference)}", soft_wrap=True)
    for cause, amount in found.causes.items():
        console.print(f"  {_signed(amount):>12}  {_WORDS[cause.value]}", soft_wrap=True)
    for currency, amount in found.other_currencies.items():
        console.print(f"and {amount:f} {currency}, which is in no sum", style="bold yellow", soft_wrap=True)
    for reason, count in found.unpriced_rows.items():
        console.print(f"{count:,} rows of the report have no price: {reason}", style="dim", soft_wrap=True)
    for note in found.notes:
        console.print(note, style="bold yellow", soft_wrap=True)


def _row(line: Line) -> dict[str, Text]:
    from rich.text import Text  # noqa: PLC0415

    hours = "" if line.start.hour == line.start.minute == 0 else f" {line.start:%H:%M}"
    cells = {
        "from, UTC": f"{line.start:%Y-%m-%d}{hours}",
        "model": line.model.partition("/")[2] or line.model,
        "theirs": money_text(line.theirs),
        "ours": sum_text(line.ours, line.unpriced),
        "difference": _signed(line.difference),
        "requests": "" if line.requests is None else f"{line.requests:,}",
        "receipts": f"{line.receipts:,}",
        "because of": _because(line.causes),
    }
    return {heading: Text(text) for heading, text in cells.items()}


def _because(causes: Mapping[Cause, Decimal]) -> str:
    """The causes by weight, the heaviest first."""
    heaviest = sorted(causes, key=lambda cause: -abs(causes[cause]))
    return ", ".join(cause.value.replace("_", " ") for cause in heaviest)


def _signed(amount: Decimal) -> str:
    return f"+{money_text(amount)}" if amount > 0 else money_text(amount)
