"""`taximeter tasks`: what tasks cost, and how they ended."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from taximeter.cli.console import JsonFlag, out, print_json
from taximeter.clock import SYSTEM_CLOCK
from taximeter.figures import money_text
from taximeter.records import Task, Usage
from taximeter.settings import Settings

if TYPE_CHECKING:
    from taximeter.ledger import GroupTotals, Ledger

_RIGHT: Final = ("requests", "failed", "in", "out", "cost", "unpriced")
_LEAST_TELLING: Final = ("in", "out", "failed", "last, UTC", "requests", "unpriced", "cost")
_BEGINNING: Final = datetime(1970, 1, 2, tzinfo=UTC)
_ENDS: Final = {True: ("succeeded", "green"), False: ("failed", "red"), None: ("open", "dim")}


def tasks(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, those with the newest receipt first.")] = 20,
    as_json: JsonFlag = False,
) -> None:
    """The tasks that requests belong to: requests, tokens, cost, and how they ended."""
    from taximeter.ledger import Ledger  # noqa: PLC0415  # as in `receipts`

    settings = Settings.load()
    with Ledger.open(settings.ledger_url, spool=settings.spool_dir) as ledger:
        sums = ledger.groups("task", limit=limit) if ledger.task_rules().is_empty else _by_rule(ledger, limit)
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


def _by_rule(ledger: Ledger, limit: int) -> list[GroupTotals]:
    """The same sums where people said whose requests are a task's: kept sums do not know that."""
    from taximeter.ledger import GroupTotals  # noqa: PLC0415  # as in `tasks`
    from taximeter.reports.sums import Sums  # noqa: PLC0415

    slices = ledger.slices("task", [_BEGINNING, SYSTEM_CLOCK.utc_now()], percentiles=False)
    newest = sorted(slices, key=lambda part: (part.last_at, part.name or ""), reverse=True)
    return [
        GroupTotals(
            kind="task",
            name=part.name,
            receipts=part.receipts,
            failures=Sums.of(part).failures,
            input_tokens=sum(part.tokens.get(leaf, 0) for leaf in Usage.INPUT_LEAVES),
            output_tokens=sum(part.tokens.get(leaf, 0) for leaf in Usage.OUTPUT_LEAVES),
            uncounted=Sums.of(part).uncounted,
            cost=part.cost,
            unpriced=part.unpriced,
            off_scale=part.off_scale,
            first_at=part.first_at,
            last_at=part.last_at,
        )
        for part in newest
        if part.name is not None
    ][:limit]


def _print_table(found: Sequence[tuple[GroupTotals, Task]]) -> None:
    from rich.text import Text  # noqa: PLC0415  # as in `console`

    from taximeter.cli.tables import print_table  # noqa: PLC0415

    rows: list[dict[str, Text]] = []
    for sums, task in found:
        end, style = _ENDS[task.succeeded]
        row = {
            "task": sums.name,
            "last, UTC": f"{sums.last_at:%m-%d %H:%M:%S}",
            "requests": f"{sums.receipts:,}",
            "failed": f"{sums.failures:,}" if sums.failures else "",
            "in": f"{sums.input_tokens:,}",
            "out": f"{sums.output_tokens:,}",
            "cost": "?" if sums.unpriced == sums.receipts else money_text(sums.cost),
            "unpriced": f"{sums.unpriced:,}" if sums.unpriced else "",
            "ended": end,
        }
        rows.append({key: Text(text, style=style if key == "ended" else "") for key, text in row.items()})
    print_table(rows, right=_RIGHT, least_telling=_LEAST_TELLING)
