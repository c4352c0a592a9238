"""`taximeter task`: say when a task starts and ends, and whose requests are a task's.

Whoever sends requests may say what they are for; who cannot, says it here, before or afterwards. Receipts stay as they
are: reports apply what was said. Owns: the words. Refuses to know: how they are applied (`records.TaskWords`).
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer

from taximeter.cli.console import JsonFlag, out, print_json
from taximeter.clock import SYSTEM_CLOCK
from taximeter.errors import RequestError
from taximeter.figures import money_text
from taximeter.records import (
    LABEL_KIND,
    MOST_GROUP_NAME_CHARACTERS,
    TaskVerb,
    TaskWord,
    is_group_name,
    label_group,
)
from taximeter.settings import Settings

if TYPE_CHECKING:
    from taximeter.ledger import CostTotals, Ledger

app = typer.Typer(
    add_completion=False, help="Say when a task starts and ends, and which requests are a task's.", no_args_is_help=True
)

_PLAIN_KINDS: Final = ("session", "run")
_SPAN: Final = re.compile(r"(\d{1,6})\s*(m|h|d)", re.ASCII)
_SPANS_S: Final = {"m": 60, "h": 3600, "d": 86_400}

_Name = Annotated[str, typer.Argument(help="What the task is called.", metavar="NAME")]
_Session = Annotated[str | None, typer.Option(help="Requests of one session.", metavar="NAME")]
_Run = Annotated[str | None, typer.Option(help="Requests of this run.", metavar="NAME")]
_Label = Annotated[str | None, typer.Option(help="Requests with this label.", metavar="KEY=VALUE")]


@app.command()
def start(
    name: _Name,
    session: _Session = None,
    run: _Run = None,
    label: _Label = None,
    as_json: JsonFlag = False,
) -> None:
    """Say that a task starts: what is asked from now on and names no task itself is this one's, until it is finished.

    With --session, --run or --label only such requests, and these before any task that takes everything. Of two tasks
    that both take a request, the last one that started has it.
    """
    _checked(name)
    group = _group(session=session, run=run, label=label)
    kind, value = group or (None, None)
    now = SYSTEM_CLOCK.utc_now()
    with _ledger() as ledger:
        ledger.say(TaskWord(verb=TaskVerb.START, said_at=now, task=name, kind=kind, name=value))
    if as_json:
        print_json({"task": name, "started_at": now, "kind": kind, "name": value})
        return
    whose = "" if kind is None else f" and belongs to {kind.removeprefix(LABEL_KIND)} {value}"
    out().print(f"task {name} has started: what is asked from now on{whose} is its own", soft_wrap=True)


@app.command()
def finish(
    name: Annotated[
        str | None,
        typer.Argument(help="What the task is called; without it the last one that started.", metavar="NAME"),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="It ended badly.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Say that a task has ended. Saying it again changes nothing; another word corrects the first."""
    now = SYSTEM_CLOCK.utc_now()
    with _ledger() as ledger:
        named = _last_started(ledger) if name is None else _checked(name)
        ledger.finish_task(named, not failed, now).result()
        task = ledger.task(named)
        sums = ledger.task_costs([named], now)
    if as_json:
        print_json(task)
    else:
        out().print(f"task {named} {'failed' if failed else 'succeeded'}: {_sums_text(sums)}", soft_wrap=True)


@app.command()
def assign(
    name: Annotated[
        str | None, typer.Argument(help="The task; without it the requests' own word counts again.", metavar="NAME")
    ] = None,
    session: _Session = None,
    run: _Run = None,
    label: _Label = None,
    task: Annotated[str | None, typer.Option(help="Requests of this other task.", metavar="NAME")] = None,
    each: Annotated[
        str | None,
        typer.Option(
            help="Every session, run or label:NAME is a task by itself, unless something else is said; none is the end"
            " of that.",
            metavar="KIND",
        ),
    ] = None,
    done_after: Annotated[
        str | None,
        typer.Option(
            help="With --each: a task that was silent for so long has ended, such as 30m, 2h or 1d.", metavar="SPAN"
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Say whose requests are a task's, also those of the past. The last word on each thing counts.

    Nothing is rewritten: reports apply what was said, and taking it back takes it back everywhere.
    """
    group = _group(session=session, run=run, label=label, task=task)
    now = SYSTEM_CLOCK.utc_now()
    if (group is None) == (each is None) or (each is not None and name is not None):
        raise RequestError(
            "say whose requests: --session, --run, --label or --task, or --each by itself",
            param="session",
            hint="taximeter task assign NAME --session SESSION",
        )
    if done_after is not None and each is None:
        raise RequestError("--done-after goes with --each", param="done_after")
    if each is not None:
        word = TaskWord(verb=TaskVerb.EACH, said_at=now, kind=_each_kind(each), idle_s=_seconds(done_after))
    else:
        kind, value = group or ("", "")
        word = TaskWord(
            verb=TaskVerb.ASSIGN, said_at=now, task=None if name is None else _checked(name), kind=kind, name=value
        )
    with _ledger() as ledger:
        ledger.say(word)
        sums = [] if name is None else ledger.task_costs([name], now)
    if as_json:
        print_json(word)
    elif name is not None:
        out().print(f"task {name}: {_sums_text(sums)}", soft_wrap=True)
    else:
        out().print(_told(word), soft_wrap=True)


@app.command()
def rules(as_json: JsonFlag = False) -> None:
    """Show what was said and counts."""
    from taximeter.ledger import Ledger  # noqa: PLC0415  # as in `receipts`

    settings = Settings.load()
    with Ledger.open_to_ask(settings.ledger_url, spool=settings.spool_dir) as ledger:
        found = ledger.task_rules()
    if as_json:
        assigned = [{"kind": kind, "name": name, "task": task} for (kind, name), task in found.assigned.items()]
        print_json({"assigned": assigned, "windows": found.windows, "each": found.each, "idle_s": found.idle_s})
        return
    lines = [f"{_kind(kind)} {name} is task {task}'s" for (kind, name), task in found.assigned.items()]
    for window in found.windows:
        until = "" if window.until is None else f" until {_instant(window.until)}"
        whose = "" if window.kind is None else f", of {_kind(window.kind)} {window.name}"
        lines.append(f"task {window.task} has what names no task from {_instant(window.since)}{until}{whose}")
    if found.each is not None:
        ended = "" if found.idle_s is None else f", which has ended after {timedelta(seconds=found.idle_s)} of silence"
        lines.append(f"each {_kind(found.each)} is a task by itself{ended}")
    for line in lines or ["nothing was said: requests belong to the tasks that they name"]:
        out().print(line, soft_wrap=not out().is_terminal)


def _ledger() -> Ledger:
    from taximeter.ledger import Ledger  # noqa: PLC0415  # as in `receipts`

    settings = Settings.load()
    return Ledger.open(settings.ledger_url, spool=settings.spool_dir)


def _checked(name: str) -> str:
    if not (name.strip() and is_group_name(name)):
        raise RequestError(f"NAME must be 1 to {MOST_GROUP_NAME_CHARACTERS} printable characters", param="name")
    return name


def _last_started(ledger: Ledger) -> str:
    """The task whose window is open, the newest of them."""
    found = [window.task for window in ledger.task_rules().windows if window.until is None]
    if not found:
        raise RequestError("no task has started", param="name", hint="taximeter task finish NAME")
    return found[-1]


def _group(*, label: str | None, **named: str | None) -> tuple[str, str] | None:
    """The kind and the name of what was asked for."""
    given = [(kind, name) for kind, name in named.items() if name is not None]
    if label is not None:
        group = label_group(label)
        if group is None:
            raise RequestError("--label must be KEY=VALUE", param="label")
        given.append(group)
    if len(given) > 1:
        raise RequestError("give one of --session, --run, --label and --task", param=given[1][0])
    return given[0] if given else None


def _each_kind(text: str) -> str | None:
    kind, colon, key = text.partition(":")
    if text == "none":
        return None
    if text in _PLAIN_KINDS:
        return text
    if f"{kind}:" == LABEL_KIND and colon and key:
        return LABEL_KIND + key.lower()
    raise RequestError(f"--each is session, run, label:NAME or none, not {text!r}", param="each")


def _seconds(text: str | None) -> int | None:
    if text is None:
        return None
    match = _SPAN.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise RequestError(f"--done-after is a span such as 30m, 2h or 1d, not {text!r}", param="done_after")
    return int(match[1]) * _SPANS_S[match[2]]


def _told(word: TaskWord) -> str:
    """A word that names no task."""
    if word.verb is TaskVerb.ASSIGN:
        return f"{_kind(word.kind or '')} {word.name} belongs to the tasks that its requests name"
    if word.kind is None:
        return "requests that name no task belong to none"
    return f"each {_kind(word.kind)} is a task by itself, where its requests name none"


def _kind(kind: str) -> str:
    return kind.removeprefix(LABEL_KIND)


def _instant(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _sums_text(sums: list[CostTotals]) -> str:
    """What a task cost so far, in one line."""
    if not sums:
        return "no requests yet"
    (part,) = sums
    unpriced = f" + {part.unpriced:,} unpriced" if part.unpriced else ""
    return f"{part.receipts:,} request{'' if part.receipts == 1 else 's'}, {money_text(part.cost)}{unpriced}"
