"""The command `taximeter`: its subcommands, and nothing else.

A command's module is imported when that command is called, or all of them are listed; and command modules import what
they need when they run. So `--help` and shell completion stay fast, and a server waits for nobody else's command.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, MutableMapping
from typing import Annotated, Any

import typer
import typer.main

from taximeter.cli.console import EXIT_WRONG_CALL, Boundary

# In the order of --help: where each one's function, or its own commands, are.
_COMMANDS = {
    "ask": ("ask", "ask"),
    "serve": ("serve", "serve"),
    "report": ("report", "report"),
    "receipts": ("receipts", "receipts"),
    "receipt": ("receipts", "receipt"),
    "statusline": ("statusline", "statusline"),
    "run": ("run", "app"),
    "task": ("task", "app"),
    "tasks": ("tasks", "tasks"),
    "import": ("importing", "import_logs"),
    "price": ("price", "price"),
    "prices": ("prices", "app"),
    "reprice": ("reprice", "reprice"),
    "reconcile": ("reconcile", "reconcile"),
    "config": ("config", "app"),
    "sweep": ("sweep", "sweep"),
    "load": ("load", "load"),
    "compare": ("compare", "compare"),
    "machine": ("machine", "machine"),
    "models": ("models", "app"),
    "eval": ("evaluate", "app"),
}


class _OnDemand(MutableMapping[str, Any]):
    """The commands by their names, each made of its function when it is asked for."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            module, what = _COMMANDS[name]
            found = getattr(importlib.import_module(f"taximeter.cli.{module}"), what)
            if not isinstance(found, typer.Typer):
                alone = typer.Typer(add_completion=False)
                alone.command()(found)
                found = alone
            self._made[name] = typer.main.get_command(found)
            self._made[name].name = name
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]


class _Commands(Boundary):
    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _OnDemand()


app = typer.Typer(
    cls=_Commands,
    name="taximeter",
    help="Follows one language-model request from start to finish, and puts its time and its money on one receipt.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)


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
