"""`taximeter tasks`: what tasks cost, and how they ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from taximeter.cli.console import JsonFlag, out, print_json
from taximeter.figures import sum_text
from taximeter.records import Task
from taximeter.settings import Settings

if TYPE_CHECKING:
    from taximeter.ledger import GroupTotals

_RIGHT: Final = ("requests", "failed", "in", "out", "cost")
_LEAST_TELLING: Final = ("in", "out", "failed", "last, UTC", "requests", "ended", "cost")
_ENDS: Final = {True: ("succeeded", "green"), False: ("failed", "red"), None: ("open", "dim")}


def tasks(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, those with the newest receipt first.")] = 20,
    as_json: JsonFlag = False,
) -> None:
    """The tasks that requests belong to: requests, tokens, cost, and how they ended."""
    from taximeter.ledger import Ledger  # noqa: PLC0415  # as in `receipts`

    settings = Settings.load()
    with Ledger.open_to_ask(settings.ledger_url, spool=settings.spool_dir) as ledger:
        sums = ledger.groups("task", limit=limit)
        standing = ledger.tasks_named([each.name for each in sums])
        found = [(each, standing.get(each.name) or Task(name=each.name)) for each in sums]
    if as_json:
        print_json({"tasks": [{"task": task, "sums": sums} for sums, task in found]})
    elif found:
        _print_table(found)
    else:
        out().print(
            "no receipt belongs to a task yet: `taximeter run --task NAME -- COMMAND` makes some, `taximeter task` says"
            " which ones do"
        )


def _print_table(found: Sequence[tuple[GroupTotals, Task]]) -> None:
    from rich.text import Text  # noqa: PLC0415  # as in `console`

    from taximeter.cli.tables import print_table  # noqa: PLC0415
    from taximeter.reports.cells import tokens_text  # noqa: PLC0415

    rows: list[dict[str, Text]] = []
    for sums, task in found:
        end, style = _ENDS[task.succeeded]
        row = {
            "task": sums.name,
            "last, UTC": f"{sums.last_at:%m-%d %H:%M:%S}",
            "requests": f"{sums.receipts:,}",
            "failed": f"{sums.failures:,}" if sums.failures else "",
            "in": tokens_text(sums.input_tokens, sums.uncounted, sums.receipts) or "0",
            "out": tokens_text(sums.output_tokens, sums.uncounted, sums.receipts) or "0",
            "cost": sum_text(sums.cost, sums.unpriced, of=sums.receipts),
            "ended": end,
        }
        rows.append({key: Text(text, style=style if key == "ended" else "") for key, text in row.items()})
    print_table(rows, right=_RIGHT, least_telling=_LEAST_TELLING, names="task")
