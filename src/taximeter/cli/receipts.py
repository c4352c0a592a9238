"""`taximeter receipts` lists what is in the ledger, `taximeter receipt` shows one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer

from taximeter.cli.console import JsonFlag, out, print_json
from taximeter.errors import LedgerError
from taximeter.records import Receipt
from taximeter.settings import Settings

_GAP: Final = 2
_RIGHT: Final = ("in", "cached", "out", "TTFT", "total", "cost")
_LEAST_TELLING: Final = ("cached", "TTFT", "in", "out", "total", "cost", "model", "when, UTC", "outcome")


def receipts(
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many, newest first.")] = 20,
    before: Annotated[str | None, typer.Option(help="Only receipts older than this one.", metavar="ID")] = None,
    as_json: JsonFlag = False,
) -> None:
    """List the newest receipts."""
    from taximeter.ledger import Ledger  # noqa: PLC0415  # its database layer takes a tenth of a second to import

    settings = Settings.load()
    with Ledger.open(settings.ledger_url, spool=settings.spool_dir) as ledger:
        found = ledger.receipts(limit, before)
    if as_json:
        print_json({"receipts": found})
    elif found:
        _print_table(found)
    else:
        out().print('no receipts yet: `taximeter ask "..."` makes one')


def receipt(
    name: Annotated[
        str,
        typer.Argument(help="The id of a receipt or a request, the beginning of one, or `last`.", metavar="ID"),
    ] = "last",
    as_json: JsonFlag = False,
) -> None:
    """Show one receipt."""
    from taximeter.ledger import Ledger  # noqa: PLC0415

    settings = Settings.load()
    with Ledger.open(settings.ledger_url, spool=settings.spool_dir) as ledger:
        found = ledger.latest() if name == "last" else ledger.receipt(name)
    if found is None:
        if name == "last":
            raise LedgerError("there are no receipts yet", hint='`taximeter ask "..."` makes one')
        raise LedgerError(f"there is no receipt {name}", hint="`taximeter receipts` lists the newest")
    if as_json:
        print_json(found)
        return
    from taximeter.cli.receipt_view import ReceiptView  # noqa: PLC0415  # needs rich, and JSON does not

    out().print(ReceiptView(found))


def _print_table(found: Sequence[Receipt]) -> None:
    from rich.table import Table  # noqa: PLC0415  # as in `console`
    from rich.text import Text  # noqa: PLC0415

    from taximeter.cli.receipt_view import outcome_style  # noqa: PLC0415

    console = out()
    columns = fitting(_columns(found), console.width)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for heading in columns:
        table.add_column(
            heading,
            justify="right" if heading in _RIGHT else "left",
            style="dim" if heading == "receipt" else None,
            no_wrap=True,
        )
    for number, one in enumerate(found):
        table.add_row(
            *(
                Text(texts[number], style=outcome_style(one.outcome) if heading == "outcome" else "")
                for heading, texts in columns.items()
            )
        )
    console.print(table)


def _columns(found: Sequence[Receipt]) -> dict[str, list[str]]:
    """Every column there is, from left to right."""
    from taximeter.cli.receipt_view import count_text, duration_text, money_text  # noqa: PLC0415

    columns: dict[str, list[str]] = {}
    for one in found:
        usage, timing = one.usage, one.timing
        first_token_ns = None if timing is None else timing.first_token_ns
        row = {
            "when, UTC": f"{one.request.received_at:%m-%d %H:%M:%S}",
            "model": one.model_served or one.request.model,
            "in": count_text(usage and usage.input_tokens),
            "cached": count_text(usage and usage.input_cache_read_tokens),
            "out": count_text(usage and usage.output_tokens),
            "TTFT": "-" if first_token_ns is None else duration_text(first_token_ns),
            "total": "?" if timing is None else duration_text(timing.total_ns),
            "cost": "?" if one.cost is None else money_text(one.cost.total),
            "outcome": one.outcome,
            "receipt": one.id,
        }
        for heading, text in row.items():
            columns.setdefault(heading, []).append(text)
    return columns


def fitting(columns: Mapping[str, Sequence[str]], width: int) -> Mapping[str, Sequence[str]]:
    """As many of the columns as fit side by side, each of them whole: the least telling one goes first, then ids lose
    their random end, then the next columns go. What became of a request goes last; its id stays."""
    from taximeter.cli.receipt_view import SHORT_ID  # noqa: PLC0415

    def needed(shown: Mapping[str, Sequence[str]]) -> int:
        return sum(max(map(len, [heading, *texts])) + _GAP for heading, texts in shown.items()) - _GAP

    shown = dict(columns)
    for heading in _LEAST_TELLING:
        if needed(shown) <= width:
            break
        del shown[heading]
        if needed(shown) > width:
            shown["receipt"] = [text[:SHORT_ID] for text in shown["receipt"]]
    return shown
