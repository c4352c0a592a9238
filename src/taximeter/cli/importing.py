"""`taximeter import`: logs that are there already, as receipts.

Owns: which logs are meant, the bar while they are read, and how what was found is shown. Refuses to know: formats, and
what a call costs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from taximeter.cli.console import JsonFlag, err, out, print_json
from taximeter.clock import SYSTEM_CLOCK
from taximeter.errors import RequestError
from taximeter.figures import money_text
from taximeter.settings import Settings

if TYPE_CHECKING:
    from rich.text import Text

    from taximeter.importers.booking import Books
    from taximeter.importers.importing import Plan, Progress
    from taximeter.importers.summary import ImportSummary, ModelSums
    from taximeter.ledger import Ledger

_RIGHT: Final = ("calls", "in", "out", "cost", "log says", "difference", "unpriced")
_LEAST_TELLING: Final = ("in", "out", "calls", "unpriced", "difference")
_UNITS: Final = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
_MOST_REASONS: Final = 12
_MOST_READERS: Final = 3


class Mode(StrEnum):
    """Whose figures are shown."""

    CALCULATE = "calculate"
    REPORTED = "reported"
    BOTH = "both"


def import_logs(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Files, and folders of them. Without any: the usual places.")
    ] = None,
    source: Annotated[
        str | None, typer.Option("--from", help="What they are, where that cannot be seen.", metavar="SOURCE")
    ] = None,
    columns: Annotated[
        Path | None,
        typer.Option("--map", exists=True, dir_okay=False, help="A TOML file that says what a table's columns are."),
    ] = None,
    mode: Annotated[Mode, typer.Option(help="Show our figures, the log's own, or both and their difference.")] = (
        Mode.CALCULATE
    ),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and price, and write nothing down.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Read what was spent out of logs that are there already: of coding agents, gateways, batches and traces.

    What was read before is not read again, and a call counts once, whatever files it is in.
    """
    from taximeter.importers.importing import plan  # noqa: PLC0415  # as in `receipts`
    from taximeter.importers.summary import ImportSummary  # noqa: PLC0415
    from taximeter.ledger import Ledger  # noqa: PLC0415

    settings = Settings.load()
    opened = Ledger.open_to_ask if dry_run else Ledger.open
    with opened(settings.ledger_url, spool=settings.spool_dir) as ledger:
        planned = plan(ledger, paths or [], source, environ=os.environ, home=Path.home(), columns=columns)
        if not paths and not planned.tasks and not planned.unchanged:
            raise RequestError("no logs lie in the usual places", hint="say where: taximeter import PATH...")
        if planned.tasks:
            summary = _imported(ledger, planned, settings, dry_run=dry_run, quiet=as_json)
        else:
            summary = ImportSummary(files_unchanged=planned.unchanged, notes=planned.notes)
    if as_json:
        print_json({"mode": mode, "dry_run": dry_run, "import": summary})
    else:
        _print(summary, mode, dry_run=dry_run)


def _imported(ledger: Ledger, planned: Plan, settings: Settings, *, dry_run: bool, quiet: bool) -> ImportSummary:
    """Read what is new. Only this needs prices, and they take half a second to load."""
    from taximeter.importers.importing import Importer  # noqa: PLC0415

    def books() -> Books:
        from taximeter.importers.booking import Books  # noqa: PLC0415
        from taximeter.pricing.catalog import Catalog  # noqa: PLC0415

        return Books(Catalog.load(settings.prices_overlay))

    with _bar(planned.size_bytes, quiet=quiet) as progress:
        importer = Importer(
            ledger,
            books,
            now=SYSTEM_CLOCK.utc_now(),
            dry_run=dry_run,
            # One beside this one reads about as fast as this one books.
            processes=min(_MOST_READERS, max(1, (os.cpu_count() or 1) - 1)),
            on_progress=progress,
        )
        try:
            return importer.run(planned)
        except KeyboardInterrupt:
            left = "nothing was written" if dry_run else "what was written stays, the next import reads the rest"
            err().print(f"interrupted: {left}", soft_wrap=True)
            raise


@contextmanager
def _bar(total_bytes: int, *, quiet: bool) -> Generator[Progress | None]:
    """A bar on stderr while bytes are read, on a terminal only."""
    if quiet or not sys.stderr.isatty() or not total_bytes:
        yield None
        return
    from rich import progress  # noqa: PLC0415
    from rich.table import Column  # noqa: PLC0415

    # Nothing is read while a batch of receipts is written: what turns says that all is well.
    columns = (
        progress.SpinnerColumn("line"),
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(table_column=Column(no_wrap=True)),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=err(), transient=True) as bars:
        bar = bars.add_task("reading logs", total=total_bytes)

        def show(read_bytes: int, total: int) -> None:
            doing = "reading logs" if read_bytes < total else "writing them"
            bars.update(bar, completed=read_bytes, total=total, description=doing)

        yield show


def _print(summary: ImportSummary, mode: Mode, *, dry_run: bool) -> None:
    console = out()
    total = summary.total
    files = f"{summary.files_read:,} {_plural(summary.files_read, 'file')} read"
    if summary.files_unchanged:
        files += f", {summary.files_unchanged:,} unchanged"
    calls = f"{total.calls:,} new {_plural(total.calls, 'call')}{_days(summary)}"
    console.print(f"{calls}; {files}, {_bytes_text(summary.read_bytes)}", soft_wrap=not console.is_terminal)
    if total.calls:
        _print_table(summary, total, mode)
    for line in _lines(summary):
        console.print(line, soft_wrap=not console.is_terminal, markup=False, highlight=False)
    if dry_run:
        console.print("nothing was written: this was a dry run", soft_wrap=not console.is_terminal)


def _print_table(summary: ImportSummary, total: ModelSums, mode: Mode) -> None:
    from rich.text import Text  # noqa: PLC0415  # as in `console`

    from taximeter.cli.tables import print_table  # noqa: PLC0415

    ordered = sorted(summary.models.values(), key=lambda each: (-each.cost, -each.reported, each.model))
    rows: list[dict[str, Text]] = []
    for sums in [*ordered, *([total] if len(ordered) > 1 else [])]:
        row = {
            "model": sums.model,
            "calls": f"{sums.calls:,}",
            "in": f"{sums.input_tokens:,}",
            "out": f"{sums.output_tokens:,}",
            **_money(sums, mode),
            "unpriced": f"{sums.unpriced:,}" if sums.unpriced and mode is not Mode.REPORTED else "",
        }
        rows.append({heading: Text(text, style="bold" if sums is total else "") for heading, text in row.items()})
    print_table(rows, right=_RIGHT, least_telling=_LEAST_TELLING, names="model")


def _money(sums: ModelSums, mode: Mode) -> Mapping[str, str]:
    cost = "?" if sums.unpriced == sums.calls else money_text(sums.cost)
    reported = money_text(sums.reported) if sums.reported_calls else "?"
    if sums.reported_calls < sums.calls and sums.reported_calls:
        reported += f" of {sums.reported_calls:,}"
    match mode:
        case Mode.CALCULATE:
            return {"cost": cost}
        case Mode.REPORTED:
            return {"log says": reported}
        case Mode.BOTH:
            difference = sums.difference
            signed = "" if difference is None else f"{'+' if difference > 0 else ''}{money_text(difference)}"
            return {"cost": cost, "log says": reported, "difference": signed}


def _lines(summary: ImportSummary) -> Sequence[str]:
    """What else there is to say, one thing a line."""
    lines: list[str] = []
    if summary.present:
        lines.append(f"{summary.present:,} more were known already, or stood in several files")
    if summary.through_gateway:
        lines.append(f"{summary.through_gateway:,} calls are on receipts of the gateway already: they went through it")
    if summary.corrected:
        lines.append(
            f"{summary.corrected:,} receipts were corrected: their answers went on since, or are read otherwise now"
        )
    if summary.smaller:
        lines.append(f"{summary.smaller:,} are left as they are: the ledger has them with more tokens")
    for counted, words in ((summary.unpriced, "unpriced"), (summary.notes, "")):
        shown = counted.most_common(_MOST_REASONS)
        lines += [f"{count:,} {words + ': ' if words else 'x '}{reason}" for reason, count in shown]
        if len(counted) > len(shown):
            lines.append(f"and {len(counted) - len(shown):,} other reasons: --json has them all")
    return lines


def _days(summary: ImportSummary) -> str:
    if summary.first_at is None or summary.last_at is None:
        return ""
    first, last = summary.first_at[:10], summary.last_at[:10]
    return f" of {first}" if first == last else f", {first} to {last}"


def _plural(count: int, word: str) -> str:
    return word if count == 1 else f"{word}s"


def _bytes_text(count: int) -> str:
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{count} bytes"
