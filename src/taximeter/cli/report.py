"""`taximeter report`: where the time and the money went, by whatever one likes."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from taximeter.cli.console import JsonFlag, out, print_json
from taximeter.clock import SYSTEM_CLOCK
from taximeter.errors import RequestError
from taximeter.records import label_group
from taximeter.settings import Settings

if TYPE_CHECKING:
    from datetime import datetime

    from taximeter.reports import Question, Report
    from taximeter.reports.report import Receipts

_STYLES: Final = {"title": "bold", "span": "dim", "heading": "dim", "total": "bold", "note": "dim"}
_VIEWS: Final = ("tokens", "dollars", "time")

_Only = Annotated[str | None, typer.Option(help="Only requests of this one.", metavar="NAME")]


def report(
    by: Annotated[
        str | None,
        typer.Option(
            help="task, run, session, day, week, month, block, model, key, source or label:NAME; without it by task, or"
            " by session where there are no tasks.",
            metavar="KIND",
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="2026-11-23, 2026-11-23T14:30, 7d, 12h, today, yesterday.", metavar="WHEN")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="The same; a day is in the report itself. Without it until now.", metavar="WHEN")
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(help="Whose days these are: an IANA zone; else this machine's.", metavar="ZONE")
    ] = None,
    task: _Only = None,
    run: _Only = None,
    session: _Only = None,
    model: _Only = None,
    key: _Only = None,
    label: Annotated[str | None, typer.Option(help="Only requests with this label.", metavar="KEY=VALUE")] = None,
    show: Annotated[str, typer.Option(help="What the columns are of: tokens, dollars or time.")] = "tokens",
    limit: Annotated[int, typer.Option(min=2, max=100_000, help="Rows in the table; others come together.")] = 30,
    as_json: JsonFlag = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV: all rows, every digit.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write one HTML file with charts, which needs nothing else; - for stdout.")
    ] = None,
) -> None:
    """Tokens, dollars and time by task, session, day, model or label, and against the period before.

    Without options: the last seven days by task, or by session where nothing belongs to a task.
    """
    if sum((as_json, as_csv, as_markdown, html is not None)) > 1:
        raise RequestError("give one of --json, --csv, --markdown and --html", param="json")
    if show not in _VIEWS:
        raise RequestError(f"--show is one of {', '.join(_VIEWS)}, not {show!r}", param="show")
    only = _only(task=task, run=run, session=session, model=model, key=key, label=label)
    settings, now = Settings.load(), SYSTEM_CLOCK.utc_now()
    with _keeping_garbage():
        from taximeter.ledger import Ledger  # noqa: PLC0415  # its database layer takes a tenth of a second to import
        from taximeter.reports.report import answer  # noqa: PLC0415

        with Ledger.open_to_ask(settings.ledger_url, spool=settings.spool_dir) as ledger:
            question = _question(ledger, now, by=by, since=since, until=until, timezone=timezone, only=only)
            in_full = show == "time" or as_json or as_csv or html is not None
            most_rows = None if in_full else limit
            found = answer(ledger, question, now, timeline=html is not None, most_rows=most_rows)
            newest = None if found.rows else ledger.latest()
    if as_json:
        from taximeter.reports.as_json import as_json as to_json  # noqa: PLC0415  # one renderer is asked for

        print_json(to_json(found))
    elif as_csv:
        from taximeter.reports.as_csv import as_csv as to_csv  # noqa: PLC0415

        _write(to_csv(found))
    elif as_markdown:
        from taximeter.reports.as_markdown import as_markdown as to_markdown  # noqa: PLC0415
        from taximeter.reports.cells import View  # noqa: PLC0415

        _write(to_markdown(_folded(found, limit), View(show)))
    elif html is not None:
        _write_html(found, html)
    else:
        _print(_folded(found, limit), show)
        if not found.rows:
            out().print(_where_receipts_are(None if newest is None else newest.closed_at, question))


@contextmanager
def _keeping_garbage() -> Generator[None]:
    """Nearly all that a report makes is in the report: looking for what is not would take a fifth of its time."""
    was_collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_collected:
            gc.enable()


def _question(
    ledger: Receipts,
    now: datetime,
    *,
    by: str | None,
    since: str | None,
    until: str | None,
    timezone: str | None,
    only: tuple[tuple[str, str], ...],
) -> Question:
    """What the flags ask."""
    from taximeter.reports import periods  # noqa: PLC0415  # as in `report`
    from taximeter.reports.question import Question, default_since, kind_named  # noqa: PLC0415
    from taximeter.reports.report import telling_kind  # noqa: PLC0415

    zone = periods.own_zone(os.environ) if timezone is None else periods.zone_named(timezone)
    kind = None if by is None else kind_named(by)
    end = now if until is None else periods.instant_named(until, zone, now, end=True)
    start = default_since(kind or "day", end, zone) if since is None else periods.instant_named(since, zone, now)
    if kind is None:
        kind = telling_kind(ledger, start, end) if start < end else "task"
    return Question(by=kind, since=start, until=end, zone=zone, only=only)


def _only(*, label: str | None, **named: str | None) -> tuple[tuple[str, str], ...]:
    """Kinds and names that everything must belong to."""
    only = [(kind, name) for kind, name in named.items() if name is not None]
    if label is not None:
        group = label_group(label)
        if group is None:
            raise RequestError("--label must be KEY=VALUE", param="label")
        only.append(group)
    return tuple(only)


def _folded(found: Report, limit: int) -> Report:
    from taximeter.reports.report import folded  # noqa: PLC0415

    return folded(found, limit)


def _print(found: Report, show: str) -> None:
    from rich.text import Text  # noqa: PLC0415  # as in `console`

    from taximeter.reports.cells import View  # noqa: PLC0415
    from taximeter.reports.terminal import terminal_lines  # noqa: PLC0415

    console = out()
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    for kind, line in terminal_lines(found, console.width, View(show), bars=unicode):
        console.print(Text(line, style=_STYLES.get(kind, "")), soft_wrap=True)


def _where_receipts_are(newest: datetime | None, question: Question) -> str:
    if newest is None:
        return "no receipts yet: `taximeter import` reads logs that exist, `taximeter serve` makes new ones"
    if question.only:
        lists = " or ".join(f"`taximeter report --by {kind}`" for kind, _ in question.only)
        return f"no such receipts then: {lists} says which names there are; see --since and --until too"
    return (
        f"no receipts then; the newest is of {newest.astimezone(question.zone):%Y-%m-%d %H:%M}: see --since and --until"
    )


def _write(text: str) -> None:
    """Text for stdout as it is; what the terminal's encoding lacks becomes a question mark."""
    sys.stdout.write(text)
    sys.stdout.flush()


def _write_html(found: Report, path: Path) -> None:
    from taximeter.reports.as_html import as_html  # noqa: PLC0415

    page = as_html(found)
    if str(path) == "-":
        _write(page)
        return
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}", param="html") from error
    out().print(f"wrote {path}", soft_wrap=True)
