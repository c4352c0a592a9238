"""The command `taximeter`: its subcommands, and nothing else.

Command modules import what they need when they run, so that `--help` and shell completion stay fast.
"""

from __future__ import annotations

from typing import Annotated

import typer

from taximeter.cli import ask, evaluate, machine, models, price, receipts, serve
from taximeter.cli.console import EXIT_WRONG_CALL, Boundary

app = typer.Typer(
    cls=Boundary,
    name="taximeter",
    help="Follows one language-model request from start to finish, and puts its time and its money on one receipt.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)
app.command()(ask.ask)
app.command()(serve.serve)
app.command()(receipts.receipts)
app.command()(receipts.receipt)
app.command()(price.price)
app.command()(machine.machine)
app.add_typer(models.app, name="models")
app.add_typer(evaluate.app, name="eval")


def _show_version(value: bool) -> None:
    if value:
        from taximeter import __version__  # noqa: PLC0415  # reads the installation's metadata

        typer.echo(f"taximeter {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(EXIT_WRONG_CALL)
