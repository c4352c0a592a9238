"""`taximeter tasks`: what tasks cost, how they ended, and how to say that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from taximeter.cli.console import JsonFlag, out, print_json
from taximeter.clock import SYSTEM_CLOCK
from taximeter.errors import RequestError
from taximeter.figures import money_text
from taximeter.records import MOST_GROUP_NAME_CHARACTERS, Task, is_group_name
from taximeter.settings import Settings

if TYPE_CHECKING:
    from taximeter.ledger import GroupTotals, Ledger

app = typer.Typer(add_completion=False, help="List tasks; say how one ended.", invoke_without_command=True)

_RIGHT: Final = ("requests", "failed", "in", "out", "cost", "unpriced")
_LEAST_TELLING: Final = ("in", "out", "failed", "last, UTC", "requests", "unpriced", "cost")
_ENDS: Final = {True: ("succeeded", "green"), False: ("failed", "red"), None: ("open", "dim")}


@app.callback()
def tasks(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, those with the newest receipt first.")] = 20,
    as_json: JsonFlag = False,
) -> None:
    """The tasks that requests belong to: requests, tokens, cost, and how they ended."""
    if context.invoked_subcommand is not None:
        return
    with _ledger() as ledger:
        found = [(sums, ledger.task(sums.name) or Task(name=sums.name)) for sums in ledger.groups("task", limit=limit)]
    if as_json:
        print_json({"tasks": [{"task": task, "sums": sums} for sums, task in found]})
    elif found:
        _print_table(found)
    else:
        out().print("no receipt belongs to a task yet: `taximeter run --task NAME -- COMMAND` makes some")


@app.command()
def finish(
    name: Annotated[str, typer.Argument(help="What its requests call it.", metavar="NAME")],
    failed: Annotated[bool, typer.Option("--failed", help="It ended badly.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Say that a task has ended. Saying it again changes nothing; another word corrects the first."""
    if not (name.strip() and is_group_name(name)):
        raise RequestError(f"NAME must be 1 to {MOST_GROUP_NAME_CHARACTERS} printable characters", param="name")
    with _ledger() as ledger:
        ledger.finish_task(name, not failed, SYSTEM_CLOCK.utc_now()).result()
        task = ledger.task(name)
    if as_json:
        print_json(task)
    else:
        out().print(f"task {name} {'failed' if failed else 'succeeded'}", soft_wrap=True)


def _ledger() -> Ledger:
    from taximeter.ledger import Ledger  # noqa: PLC0415  # as in `receipts`

    settings = Settings.load()
    return Ledger.open(settings.ledger_url, spool=settings.spool_dir)


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
