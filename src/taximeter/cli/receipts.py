"""`taximeter receipts` lists what is in the ledger, `taximeter receipt` shows one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from taximeter.cli.console import JsonFlag, out, print_json
from taximeter.errors import LedgerError, RequestError
from taximeter.figures import SHORT_ID, count_text, duration_text, money_text
from taximeter.records import Receipt, label_group
from taximeter.settings import Settings

if TYPE_CHECKING:
    from rich.text import Text

_RIGHT: Final = ("in", "cached", "out", "TTFT", "total", "tries", "cost")
_LEAST_TELLING: Final = ("tries", "by", "cached", "TTFT", "in", "out", "total", "model", "when, UTC", "cost", "outcome")


def receipts(
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many, newest first.")] = 20,
    before: Annotated[str | None, typer.Option(help="Only receipts older than this one.", metavar="ID")] = None,
    task: Annotated[str | None, typer.Option(help="Only those of one task.", metavar="NAME")] = None,
    run: Annotated[str | None, typer.Option(help="Only those of one run.", metavar="NAME")] = None,
    session: Annotated[str | None, typer.Option(help="Only those of one session.", metavar="NAME")] = None,
    label: Annotated[str | None, typer.Option(help="Only those with this label.", metavar="KEY=VALUE")] = None,
    as_json: JsonFlag = False,
) -> None:
    """List the newest receipts, all or those of one task, run, session or label."""
    group = _group(task=task, run=run, session=session, label=label)
    from taximeter.ledger import Ledger  # noqa: PLC0415  # its database layer takes a tenth of a second to import

    settings = Settings.load()
    with Ledger.open_to_ask(settings.ledger_url, spool=settings.spool_dir) as ledger:
        found = ledger.receipts(limit, before) if group is None else ledger.receipts_of(*group, limit, before)
    if as_json:
        print_json({"receipts": found})
    elif found:
        _print_table(found)
    elif group is not None:
        out().print(f"no receipts of {' '.join(group)}")
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
    with Ledger.open_to_ask(settings.ledger_url, spool=settings.spool_dir) as ledger:
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


def _group(**asked: str | None) -> tuple[str, str] | None:
    """The kind and the name of the group that was asked for, as the ledger has them."""
    given = [(kind, name) for kind, name in asked.items() if name is not None]
    if not given:
        return None
    if len(given) > 1:
        raise RequestError("give one of --task, --run, --session and --label", param=given[1][0])
    kind, name = given[0]
    if kind != "label":
        return kind, name
    group = label_group(name)
    if group is None:
        raise RequestError("--label must be KEY=VALUE", param="label")
    return group


def _print_table(found: Sequence[Receipt]) -> None:
    from taximeter.cli.tables import print_table  # noqa: PLC0415

    rows = [_row(one) for one in found]
    # Ids lose their random end before much else is left out; what became of a request goes last, and its id stays.
    ids, fixed = ("receipt",), {"receipt": SHORT_ID}
    print_table(rows, right=_RIGHT, least_telling=_LEAST_TELLING, shorten=fixed, names="model", dim=ids)


def _row(one: Receipt) -> dict[str, Text]:
    """Every column there is, from left to right."""
    from rich.text import Text  # noqa: PLC0415  # as in `console`

    from taximeter.cli.receipt_view import outcome_style  # noqa: PLC0415

    usage, timing = one.usage, one.timing
    first_token_ns = None if timing is None else timing.first_token_ns
    row = {
        "when, UTC": f"{one.request.received_at:%m-%d %H:%M:%S}",
        "model": one.model_served or one.request.model,
        "by": one.served_by or "-",
        "in": count_text(usage and usage.input_tokens),
        "cached": count_text(usage and usage.input_cache_read_tokens),
        "out": count_text(usage and usage.output_tokens),
        "TTFT": "-" if first_token_ns is None else duration_text(first_token_ns),
        "total": "?" if timing is None else duration_text(timing.total_ns),
        "tries": f"{len(one.tries)}" if len(one.tries) > 1 else "",
        "cost": "?" if one.cost is None else money_text(one.cost.total),
        "outcome": one.outcome.value,
        "receipt": one.id,
    }
    style = outcome_style(one.outcome)
    return {heading: Text(text, style=style if heading == "outcome" else "") for heading, text in row.items()}
