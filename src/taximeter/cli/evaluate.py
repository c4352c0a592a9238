"""`taximeter eval`: how well a model predicts a text, and how far two versions of one are apart."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taximeter.cli.console import JsonFlag, ThreadsOption, err, out, print_json, waiting
from taximeter.errors import RequestError
from taximeter.settings import Settings

if TYPE_CHECKING:
    from taximeter.engine.evaluate import Divergence, Mean, Perplexity, Progress
    from taximeter.engine.logit_source import Subject

app = typer.Typer(
    add_completion=False, help="Measure how well models predict, and how far quantized ones are from the original."
)

_VARIANT_HELP = (
    "A known name, a path, or hf:owner/repo/file. Behind a comma, how to compute it: level=reference (numpy, float32) "
    "or a native level, weights=int8, kv=f32."
)
_TextOption = Annotated[
    Path | None, typer.Option("--text", help="A UTF-8 file to predict, instead of the built-in text.", dir_okay=False)
]
_ContextOption = Annotated[
    int | None, typer.Option("--context-tokens", min=2, help="The longest stretch read at once; 2048 if the model can.")
]
_StrideOption = Annotated[
    int | None,
    typer.Option("--stride", min=1, help="How many tokens one stretch begins after the other; 3/4 of the context."),
]


@app.command()
def perplexity(
    model: Annotated[str, typer.Argument(help=_VARIANT_HELP, metavar="MODEL", show_default=False)],
    text: _TextOption = None,
    context_tokens: _ContextOption = None,
    stride: _StrideOption = None,
    threads: ThreadsOption = None,
    as_json: JsonFlag = False,
) -> None:
    """How well a model predicts a text."""
    subjects = _load([model], text, context_tokens, stride, threads)
    from taximeter.engine import evaluate  # noqa: PLC0415  # as in `main`: --help stays fast

    [subject] = subjects
    with _bar(model, quiet=as_json) as on_progress:
        found = evaluate.perplexity(subject.source, subject.passage, on_progress)
    if as_json:
        print_json({"text": _text_name(text), "windows": _windows(subject), "model": _fields(subject, found)})
        return
    rows = [
        ("perplexity", _with_error(found.perplexity, 3)),
        ("-ln p of a token", f"{_with_error(found.nll_nats, 4)} nats"),
        ("tokens predicted", f"{found.tokens:,}"),
        *_circumstances(subjects, text),
    ]
    _print_rows(model, rows)


@app.command()
def divergence(
    a: Annotated[str, typer.Argument(help=f"The standard. {_VARIANT_HELP}", metavar="A", show_default=False)],
    b: Annotated[
        str, typer.Argument(help="What is compared with it, in the same form.", metavar="B", show_default=False)
    ],
    text: _TextOption = None,
    context_tokens: _ContextOption = None,
    stride: _StrideOption = None,
    threads: ThreadsOption = None,
    as_json: JsonFlag = False,
) -> None:
    """How far B's predictions are from A's, token by token of a text."""
    subjects = _load([a, b], text, context_tokens, stride, threads)
    from taximeter.engine import evaluate  # noqa: PLC0415  # as above

    standard, compared = subjects
    with _bar(f"{a} and {b}", quiet=as_json) as on_progress:
        [found] = evaluate.divergences(standard.source, [compared.source], standard.passage, on_progress)
    if as_json:
        document = {
            "text": _text_name(text),
            "windows": _windows(standard),
            "a": _fields(standard, found.a),
            "b": _fields(compared, found.b),
            "divergence": found,
        }
        print_json(document)
        return
    _print_rows(f"{b}\nagainst {a}", [*_divergence_rows(found), *_circumstances(subjects, text)])


def _load(
    texts: Sequence[str], text: Path | None, context_tokens: int | None, stride: int | None, threads: int | None
) -> list[Subject]:
    settings = Settings.load(threads=threads)
    words = _read(text)
    from taximeter.engine.logit_source import Variant, load_subjects  # noqa: PLC0415  # the whole engine: a second
    from taximeter.engine.model_store import ModelStore  # noqa: PLC0415

    variants = [Variant.parse(one) for one in texts]
    with waiting(f"loading {' and '.join(texts)}"):
        return load_subjects(
            variants,
            ModelStore(settings.models_dir).resolve,
            words,
            context_tokens=context_tokens,
            stride_tokens=stride,
            threads=settings.threads,
        )


def _read(path: Path | None) -> str:
    """The file, or the built-in text. Raises RequestError for what is no text."""
    if path is None:
        return files("taximeter.engine").joinpath("held_out.txt").read_text("utf-8")
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise RequestError(
            f"{path} cannot be read: {error.strerror}", param="text", hint="check the path behind --text"
        ) from error
    except UnicodeDecodeError as error:
        raise RequestError(f"{path} is not UTF-8 text", param="text", hint="give --text a plain text") from error


def _text_name(path: Path | None) -> str:
    return "built-in" if path is None else str(path)


def _windows(subject: Subject) -> dict[str, int]:
    return {"context_tokens": subject.passage.context_tokens, "stride_tokens": subject.passage.stride_tokens}


def _fields(subject: Subject, found: Perplexity) -> dict[str, object]:
    variant = subject.variant
    return {
        "model": variant.model,
        "level": subject.level,
        "weights": variant.weights,
        "kv": subject.kv,
        "tokens": variant.tokens,
        "perplexity": found,
    }


def _divergence_rows(found: Divergence) -> list[tuple[str, str]]:
    percentiles = (found.kl_median_nats, found.kl_p90_nats, found.kl_p99_nats, found.kl_max_nats)
    return [
        ("KL divergence, mean", f"{_small_with_error(found.kl_nats)} nats"),
        ("median, 90 %, 99 %, most", ", ".join(f"{value:.3g}" for value in percentiles)),
        (
            "same likeliest token",
            f"{found.same_top:.2%} ({found.same_top_low:.2%} to {found.same_top_high:.2%})".replace("%", " %"),
        ),
        ("right token's probability", f"changes by {found.rms_probability_change:.3g} (root mean square)"),
        ("perplexity of A", _with_error(found.a.perplexity, 3)),
        ("perplexity of B", _with_error(found.b.perplexity, 3)),
        ("-ln p of a token, B less A", f"{_small_with_error(found.nll_change_nats)} nats"),
        ("tokens predicted", f"{found.tokens:,}"),
    ]


def _circumstances(subjects: Sequence[Subject], text: Path | None) -> list[tuple[str, str]]:
    passage = subjects[0].passage
    levels = ", ".join(dict.fromkeys(subject.level for subject in subjects))
    return [
        ("text", f"{_text_name(text)}, {len(passage.token_ids):,} tokens"),
        ("windows", f"{passage.context_tokens:,} tokens, one every {passage.stride_tokens:,}"),
        ("computed by", levels),
    ]


def _with_error(mean: Mean, decimals: int) -> str:
    return f"{mean.value:,.{decimals}f} ± {mean.standard_error:.{decimals}f}"


def _small_with_error(mean: Mean) -> str:
    return f"{mean.value:.3g} ± {mean.standard_error:.1g}"


def _print_rows(title: str, rows: Sequence[tuple[str, str]]) -> None:
    from rich.table import Table  # noqa: PLC0415  # as in `console`

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, value in rows:
        table.add_row(name, value)
    console = out()
    console.print(title, style="bold", soft_wrap=True)
    console.print(table)
    console.print("± is one standard error, with tokens taken as independent", style="dim")


@contextmanager
def _bar(name: str, *, quiet: bool) -> Generator[Progress]:
    """Shows how far the text is read, on a terminal's stderr."""
    console = err()
    if quiet or not console.is_terminal:
        yield lambda _done, _total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task(name, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
