"""What every command shares: where its output goes, and what becomes of its errors.

Owns: the two consoles, JSON on stdout, and the boundary where exceptions turn into one line and an exit code. Refuses
to know: any command.

Exit codes: 0 done, 1 failed, 2 called wrongly, 3 a comparison may not be ranked, 130 interrupted by Ctrl-C, 141 the
reader of our output went away.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from taximeter.errors import RequestError, TaximeterError
from taximeter.records import to_json

if TYPE_CHECKING:
    from rich.console import Console

EXIT_FAILED: Final = 1
EXIT_WRONG_CALL: Final = 2
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]
"""The `--json` flag that every command takes."""

MachineRateOption = Annotated[str | None, typer.Option(help="What an hour of this machine costs: 0.50/h.")]
PricedAsOption = Annotated[
    str | None, typer.Option(help="A hosted model whose price is put beside ours: provider/model.")
]
WeightsOption = Annotated[
    str | None, typer.Option(help="Make the weights int8, int4, bf16 or f32 at load; without it they stay as packaged.")
]
KVFormatOption = Annotated[str | None, typer.Option(help="What keys and values are kept in: bf16, int8 or f32.")]
ThreadsOption = Annotated[int | None, typer.Option(min=1, help="Threads that compute; all processors without it.")]

_UNWRITABLE: Final = frozenset({errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC})
_CONTROLS: Final = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
_PIPED_WIDTH: Final = 200  # a file has no width; tables must not be folded for it


def out() -> Console:
    """Stdout, with colours only where a terminal shows them."""
    return _console(to_stderr=False)


def err() -> Console:
    """Stderr, likewise."""
    return _console(to_stderr=True)


@contextmanager
def waiting(text: str) -> Generator[Callable[[str], None]]:
    """Shows on a terminal's stderr that something takes its time, and what; gives a function that changes the text."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.text import Text  # noqa: PLC0415  # as in `_console`; a plain string would be read as markup

    with err().status(Text(text)) as status:
        yield lambda changed: status.update(Text(changed))


def print_json(value: object, *, one_line: bool = False) -> None:
    """A record, or anything made of records, as one JSON document on stdout."""
    is_ascii = not _is_unicode(sys.stdout.encoding)
    sys.stdout.write(json.dumps(to_json(value), indent=None if one_line else 2, ensure_ascii=is_ascii) + "\n")
    sys.stdout.flush()


def printable(text: str) -> str:
    """Text of a model for stdout: a terminal gets no control characters, since it would obey them."""
    return text.translate(_CONTROLS) if sys.stdout.isatty() else text


def without_password(url: str) -> str:
    """A database's URL as anybody may see it."""
    return re.sub(r"(?<=://)([^/@:]*):[^/@]*@", r"\1:***@", url)


class Boundary(TyperGroup):
    """The outermost command: whatever happens inside leaves as one clear line on stderr and an exit code."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run the command line and exit. With `standalone_mode` off, give the exit code instead."""
        arguments = list(sys.argv[1:] if args is None else args)
        run = functools.partial(super().main, arguments, *rest, standalone_mode=False, **extra)
        ours = arguments[: arguments.index("--")] if "--" in arguments else arguments  # the rest is another program's
        code = run_guarded(run, as_json="--json" in ours)
        if standalone_mode:
            sys.exit(code)
        return code

    def invoke(self, ctx: Any) -> Any:
        """Typer has its own idea of a broken pipe; ours comes first."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            _abandon_stdout()
            raise typer.Exit(EXIT_BROKEN_PIPE) from error


def run_guarded(command: Callable[[], object], *, as_json: bool) -> int:
    """The exit code of `command`, its errors told on stderr. An exception that is not ours is a bug and gets out."""
    _tolerate_narrow_encodings()
    if not _has_streams():
        _tell("stdout is closed, so there is nowhere to print", None, kind="OutputFailed", as_json=as_json)
        return EXIT_FAILED
    try:
        code = _run(command, as_json=as_json)
        sys.stdout.flush()  # here, since nobody can catch what the interpreter's own flush at exit raises
    except BrokenPipeError:
        _abandon_stdout()
        return EXIT_BROKEN_PIPE
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        with contextlib.suppress(OSError):  # stderr may be on the same full disk
            _tell(f"the output could not be written: {error.strerror}", None, kind="OutputFailed", as_json=as_json)
        _abandon_stdout()
        return EXIT_FAILED
    return code


def _run(command: Callable[[], object], *, as_json: bool) -> int:
    try:
        result = command()
    except TaximeterError as error:
        _tell(error.message, error.hint, kind=type(error).__name__, as_json=as_json)
        return EXIT_WRONG_CALL if isinstance(error, RequestError) else EXIT_FAILED
    except typer.TyperException as error:
        _tell(_sentence(error.format_message()), _where_help_is(error), kind="WrongCall", as_json=as_json)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    return result if isinstance(result, int) else 0


def _tell(message: str, hint: str | None, *, kind: str, as_json: bool) -> None:
    if as_json:
        sys.stderr.write(json.dumps({"error": {"type": kind, "message": message, "hint": hint}}) + "\n")
        return
    from rich.text import Text  # noqa: PLC0415  # an error has time; --help has not

    err().print(Text.assemble(("taximeter: ", "bold red"), message), soft_wrap=True)
    if hint:
        err().print(Text.assemble(("  hint: ", "dim"), hint), soft_wrap=True)


def _sentence(text: str) -> str:
    """Typer's message in the form of ours: one line, a small letter first, no full stop."""
    line = " ".join(text.split()).rstrip(".")
    return line[:1].lower() + line[1:]


def _where_help_is(error: typer.TyperException) -> str | None:
    context = getattr(error, "ctx", None)
    return None if context is None else f"see {context.command_path} --help"


def _has_streams() -> bool:
    """Whether there is a stdout. Python has None where the caller closed one; a missing stderr is only silent."""
    if getattr(sys, "stderr", None) is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # until the program ends
    return getattr(sys, "stdout", None) is not None


def _abandon_stdout() -> None:
    """Nobody takes what we print. Stdout must point somewhere, or the interpreter complains when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tolerate_narrow_encodings() -> None:
    """A model's answer may hold what the terminal cannot show: that becomes a question mark, not an error."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Callable[..., None] | None = getattr(stream, "reconfigure", None)
        if reconfigure is not None and not _is_unicode(stream.encoding):
            reconfigure(errors="replace")


def _console(*, to_stderr: bool) -> Console:
    from rich.console import Console  # noqa: PLC0415  # its import is a third of the time of --help

    class Plain(Console):
        """Strings are what they are: a model may be called `m[1]`, and a folder `:smile:`."""

        def __init__(self) -> None:
            super().__init__(stderr=to_stderr, markup=False, emoji=False, highlight=False)

        def on_broken_pipe(self) -> NoReturn:
            raise BrokenPipeError  # rich would end the program right here; `run_guarded` decides that

    console = Plain()
    if not console.is_terminal:
        # Not COLUMNS either: whoever was started by a program that reads lines has it, and no say in it.
        console.width = _PIPED_WIDTH
    return console


def _is_unicode(encoding: str | None) -> bool:
    return (encoding or "").lower().replace("-", "").startswith("utf")
