"""`taximeter run`: a program, in whatever language, whose requests all belong to one task.

Owns: what the program is told by its environment, its signals, and what is said at its end. Refuses to know: what the
program does. Its output is its own; we say one line on stderr, at the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Annotated, Any, Final

import typer

from taximeter.cli.console import err
from taximeter.clock import SYSTEM_CLOCK
from taximeter.errors import RequestError, TaximeterError, UpstreamError
from taximeter.figures import count_text, duration_text, money_text
from taximeter.grouping.context import ambient_environment, ambient_groups, groups_named, groups_within
from taximeter.grouping.door import GatewayDoor, header_fields, path_prefix
from taximeter.records import Groups, new_id
from taximeter.settings import Settings

_KILLED: Final = 128  # and the signal's number, as a shell says it
_PASSED_ON: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_FROM_THE_TERMINAL: Final = (signal.SIGINT, signal.SIGQUIT)
_CUSTOM_HEADERS: Final = ("ANTHROPIC_CUSTOM_HEADERS", "OPENAI_CUSTOM_HEADERS")

app = typer.Typer(add_completion=False)


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(help="The program, and what it is given.", metavar="COMMAND...")],
    task: Annotated[str, typer.Option(help="What its requests are for.", metavar="NAME")],
    run_name: Annotated[
        str | None, typer.Option("--run", help="This run of it; without a name it gets one.", metavar="NAME")
    ] = None,
    session: Annotated[str | None, typer.Option(help="The session it is a part of.", metavar="NAME")] = None,
    labels: Annotated[
        list[str] | None, typer.Option("--label", help="KEY=VALUE; may be given several times.", metavar="KEY=VALUE")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="The gateway; else TAXIMETER_URL, else where `taximeter serve` listens.")
    ] = None,
) -> int:
    """Run a program whose requests all belong to one task, which ends with it.

    The program is told where the gateway is by the environment: OPENAI_BASE_URL, OPENAI_API_BASE and
    ANTHROPIC_BASE_URL. The task ends well if the program exits with 0. Its exit code is ours.
    """
    settings = Settings.load()
    own = groups_named(task=task, run=run_name, session=session, labels=labels_from(labels or []))
    groups = groups_within(ambient_groups(os.environ), own)
    groups = groups if groups.run else groups_within(groups, Groups(run=new_id("run", SYSTEM_CLOCK.utc_now())))
    for name in (groups.task, groups.run, groups.session):
        if name in (".", ".."):
            raise RequestError(f"{name!r} cannot be a name: it would be lost in an address", param="task")
    door = GatewayDoor.from_environment(url or os.environ.get("TAXIMETER_URL") or _own_url(settings), os.environ)
    code = _exit_code(command, {**os.environ, **told(groups, door.url, os.environ)})
    _sum_up(door, groups, code)
    return code


def labels_from(texts: Sequence[str]) -> dict[str, str]:
    """Labels as flags have them. Raises RequestError for one that is none."""
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise RequestError(f"--label must be KEY=VALUE, not {text!r}", param="label")
        labels[key] = value
    return labels


def told(groups: Groups, url: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that send a program to the gateway at `url`, and say what for.

    Most programs can only be told where the API is, so the groups are a part of that address. Some take an address
    apart, and lose them; for those that take headers from the environment they are there too.
    """
    base = url + path_prefix(groups)
    ours = [f"{name}: {value}" for name, value in header_fields(groups).items() if value.isascii()]
    custom: dict[str, str] = {}
    for variable in _CUSTOM_HEADERS:
        theirs = [line for line in environ.get(variable, "").split("\n") if line.strip()]
        kept = [line for line in theirs if not line.strip().lower().startswith("x-taximeter-")]
        custom[variable] = "\n".join([*kept, *ours])
    return {
        "OPENAI_BASE_URL": f"{base}/v1",
        "OPENAI_API_BASE": f"{base}/v1",
        "ANTHROPIC_BASE_URL": base,
        "TAXIMETER_URL": url,
        **ambient_environment(groups),
        **custom,
    }


def _own_url(settings: Settings) -> str:
    host = settings.host
    if host in ("0.0.0.0", "::"):  # noqa: S104 - recognized, not bound
        host = "127.0.0.1"
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def _exit_code(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run it to its end; signals that we get are its signals."""
    with _handing_on() as hand_to:
        try:
            process = subprocess.Popen(command, env=environ)  # noqa: S603 - the user's own
        except FileNotFoundError as error:
            raise RequestError(f"there is no program {command[0]!r}", param="command") from error
        except OSError as error:
            raise RequestError(f"{command[0]!r} cannot be run: {error.strerror}", param="command") from error
        hand_to(process)
        code = process.wait()
    return code if code >= 0 else _KILLED - code


@contextmanager
def _handing_on() -> Generator[Any]:
    """Hand signals on to a program. What somebody types on a terminal reaches it without us, so that it would come
    twice; and what we were started to ignore, it ignores too."""
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def obey(number: int, _frame: object) -> None:
        if process is None:
            early.append(number)
        elif not (number in _FROM_THE_TERMINAL and _is_in_front()):
            process.send_signal(number)

    def hand_to(started: subprocess.Popen[bytes]) -> None:
        nonlocal process
        process = started
        for number in early:
            process.send_signal(number)

    wanted = [number for number in _PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, obey) for number in wanted}
    try:
        yield hand_to
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_in_front() -> bool:
    """Whether keys that make signals make ours, and with that our program's."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _sum_up(door: GatewayDoor, groups: Groups, code: int) -> None:
    """Say how it ended, there and here. A gateway that does not answer does not change that."""
    ended = f"task {groups.task} {'succeeded' if code == 0 else f'failed (exit code {code})'}"
    try:
        door.finish(groups.task or "", succeeded=code == 0, labels=groups.labels)
    except TaximeterError as error:
        _say(f"{ended}, but the gateway does not know: {error}")
        return
    try:
        sums = door.sums("run", groups.run or "")
    except UpstreamError as error:
        why = "no request of it came through the gateway" if error.status == 404 else str(error)
        _say(f"{ended}: {why}")
        return
    _say(f"{ended}: {sums_text(sums)}; run {groups.run}")


def sums_text(sums: Mapping[str, Any]) -> str:
    """A group's page in one line: requests, tokens, cost, time."""
    count: int = sums["receipts"]
    parts = [f"{count:,} request{'' if count == 1 else 's'}"]
    if sums["failures"]:
        parts[0] += f" ({sums['failures']:,} not completed)"
    at_least = "at least " if sums["uncounted"] else ""
    parts.append(f"{at_least}{count_text(sums['input_tokens'])} tokens in, {count_text(sums['output_tokens'])} out")
    unpriced: int = sums["unpriced"]
    if unpriced == count:
        parts.append("cost unknown")
    else:
        rest = f" ({unpriced:,} of {count:,} unpriced)" if unpriced else ""
        parts.append(money_text(Decimal(sums["cost"])) + rest)
    parts.append(f"{duration_text(sums['total_ns'])} of answers")
    return ", ".join(parts)


def _say(text: str) -> None:
    err().print(f"taximeter: {text}", soft_wrap=True)
