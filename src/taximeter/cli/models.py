"""`taximeter models`: which models there are, and how to have one here."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from taximeter.cli.console import JsonFlag, err, out, print_json
from taximeter.settings import Settings

if TYPE_CHECKING:
    from taximeter.engine.model_store import KnownModel, ModelStore, PullProgress, Report, Stage

app = typer.Typer(
    add_completion=False, help="List the models known by name; pull, find or remove one.", invoke_without_command=True
)

_Name = Annotated[str, typer.Argument(help="A name from `taximeter models`.", metavar="NAME", show_default=False)]


@app.callback()
def models(context: typer.Context, as_json: JsonFlag = False) -> None:
    """The models known by name: pulled or not, how large, under which licence."""
    if context.invoked_subcommand is not None:
        return
    known = _store().known()
    if as_json:
        print_json({"models": [_fields(model) for model in known]})
        return
    _print_table(known)


@app.command()
def pull(
    name: _Name,
    verify: Annotated[bool, typer.Option("--verify", help="Read a model that is here, and check every byte.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Fetch a model, unless it is here already. Safe to interrupt: there is all of it or nothing."""
    store = _store()
    was_here = store.find(name).pulled
    with _shown(name, quiet=as_json) as report:
        path = store.pull(name, report, verify=verify)
    if as_json:
        print_json(_fields(store.find(name)))
    elif was_here:
        out().print(f"{name} is here{', and whole' if verify else ''}: {path}", soft_wrap=True)
    else:
        out().print(f"{name} is ready: {path}", soft_wrap=True)


@app.command()
def path(name: _Name, as_json: JsonFlag = False) -> None:
    """Print where a model is. Also takes a path or hf:owner/repo/file."""
    found = _store().resolve(name)
    if as_json:
        print_json({"path": str(found)})
    else:
        sys.stdout.write(f"{found}\n")


@app.command()
def remove(name: _Name, as_json: JsonFlag = False) -> None:
    """Delete a pulled model."""
    removed = _store().remove(name)
    if as_json:
        print_json({"name": name, "removed": removed})
    else:
        out().print(f"{name} is removed" if removed else f"{name} was not here")


def _store() -> ModelStore:
    from taximeter.engine.model_store import ModelStore  # noqa: PLC0415  # as in `main`: --help stays fast

    return ModelStore(Settings.load().models_dir)


def _fields(model: KnownModel) -> dict[str, object]:
    return {**dataclasses.asdict(model), "path": str(model.path)}


def _print_table(known: list[KnownModel]) -> None:
    from rich.table import Table  # noqa: PLC0415  # as in `console`

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("model", style="bold", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("here", no_wrap=True)
    table.add_column("licence", no_wrap=True)
    table.add_column("what it is")
    for model in known:
        table.add_row(
            model.name,
            _megabytes(model.size_bytes),
            "yes" if model.pulled else f"no, {_megabytes(model.download_bytes)} to pull",
            model.licence,
            model.description,
        )
    console = out()
    console.print(table)
    folders = {model.path.parent for model in known}
    console.print(f"\nkept in {', '.join(map(str, folders))}", style="dim", soft_wrap=True)
    console.print("also served: a .gguf file, a Hugging Face folder, hf:owner/repo/file", style="dim")


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.0f} MB"


@contextmanager
def _shown(name: str, *, quiet: bool) -> Generator[Report]:
    """Shows a pull's progress on stderr: as a bar on a terminal, else a line for each stage."""
    console = err()
    if quiet:
        yield lambda _: None
    elif console.is_terminal:
        with _bar(name) as report:
            yield report
    else:
        told: set[Stage] = set()

        def tell(progress: PullProgress) -> None:
            if progress.stage not in told:
                told.add(progress.stage)
                size = f" {_megabytes(progress.total_bytes)}" if progress.total_bytes else ""
                console.print(f"{name}: {progress.stage}{size}")

        yield tell


@contextmanager
def _bar(name: str) -> Generator[Report]:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err(), transient=True) as bars:
        task = bars.add_task(name, total=None)
        stage: Stage | None = None

        def show(progress: PullProgress) -> None:
            nonlocal stage
            if progress.stage is not stage:
                stage = progress.stage
                total = progress.total_bytes or None
                bars.reset(task, total=total, description=f"{name}: {stage}")
            bars.update(task, completed=progress.done_bytes)

        yield show
