"""How far logits are from the float32 reference on the same file: ours in each setting, and llama.cpp's.

    python bench/fidelity.py [--model NAME_OR_PATH ...] [--setting KEY=VALUE[,...] ...] [--llama-cpp PYTHON] [--json]

The reference is the numpy path in float32. A setting is what may stand behind a model in `taximeter eval`, for example
`weights=int8,kv=f32`; `as-served` is none. `--llama-cpp` names an interpreter that has llama-cpp-python; llama.cpp then
reads the same tokens of the same file. The text is the built-in one of `taximeter eval`, or the beginning of it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from taximeter.engine import kernels
from taximeter.engine.evaluate import F32, Divergence, LogitSource, PairedDifference, positions
from taximeter.engine.logit_source import Variant, load_subjects, rows_at_once
from taximeter.engine.model_store import ModelStore
from taximeter.records import to_json
from taximeter.settings import Settings

HERE = Path(__file__).parent
TEXT = HERE.parent / "src" / "taximeter" / "engine" / "held_out.txt"
MODELS = ["smollm2-135m-instruct", "gemma3-270m"]
AS_SERVED = "as-served"


class LlamaCpp:
    """llama.cpp in another process, as an `evaluate.LogitSource`."""

    def __init__(self, python: Path, model: Path, *, vocab_size: int, context_tokens: int, threads: int) -> None:
        self.vocab_size = vocab_size
        self._rows = rows_at_once(vocab_size)
        command = [str(python), str(HERE / "fidelity_llama_cpp.py"), str(model)]
        for option, value in (("context-tokens", context_tokens), ("threads", threads), ("rows", self._rows)):
            command += [f"--{option}", str(value)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603 - ours
        assert self._process.stdin is not None  # noqa: S101 - pipes were asked for
        assert self._process.stdout is not None  # noqa: S101
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self.version = self._stdout.readline().decode().strip()
        if not self.version:
            sys.exit(f"llama.cpp did not start: {' '.join(command)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stdin.close()
        self._process.wait()

    def logits(self, token_ids: Sequence[int], wanted_from: int) -> Iterator[F32]:
        """See `evaluate.LogitSource`."""
        asked = {"token_ids": list(token_ids), "wanted_from": wanted_from}
        self._stdin.write(json.dumps(asked).encode() + b"\n")
        self._stdin.flush()
        for start in range(wanted_from, len(token_ids), self._rows):
            rows = min(self._rows, len(token_ids) - start)
            data = self._stdout.read(rows * self.vocab_size * 4)
            yield np.frombuffer(data, np.float32).reshape(rows, self.vocab_size)


@dataclass(frozen=True, slots=True)
class Found:
    """One setting's divergence from the reference, and the difference from the last one's at the same positions."""

    divergence: Divergence
    less_last: PairedDifference | None


def measure(model: str, settings: Sequence[str], options: argparse.Namespace) -> dict[str, Found]:
    """Every setting's divergence from the reference, on one model. The last is llama.cpp's, if it was asked for."""
    store = ModelStore(Settings.load().models_dir)
    variants = [Variant.parse(f"{model},level=reference")]
    variants += [Variant.parse(model if setting == AS_SERVED else f"{model},{setting}") for setting in settings]
    reference, *subjects = load_subjects(
        variants,
        store.resolve,
        TEXT.read_text("utf-8"),
        context_tokens=options.context_tokens,
        stride_tokens=options.stride,
        threads=options.threads,
    )
    passage = replace(reference.passage, token_ids=reference.passage.token_ids[: options.tokens])
    others: dict[str, LogitSource] = {
        f"ours, {setting}, {subject.level}": subject.source for setting, subject in zip(settings, subjects, strict=True)
    }
    with ExitStack() as stack:
        if options.llama_cpp is not None:
            source = LlamaCpp(
                options.llama_cpp,
                store.resolve(model),
                vocab_size=reference.source.vocab_size,
                context_tokens=passage.context_tokens,
                threads=kernels.threads(),
            )
            others[source.version] = stack.enter_context(source)
        bars = stack.enter_context(Progress(console=Console(stderr=True), transient=True))
        task = bars.add_task(model)
        found = positions(
            reference.source,
            list(others.values()),
            passage,
            lambda done, total: bars.update(task, completed=done, total=total),
        )
    last = found[-1]
    return {
        name: Found(one.divergence(), None if one is last else one.less(last))
        for name, one in zip(others, found, strict=True)
    }


def shown(model: str, found: dict[str, Found]) -> Table:
    """One model's table."""
    first = next(iter(found.values())).divergence
    table = Table(
        title=f"{model}: from the float32 reference, {first.tokens:,} tokens",
        caption=f"perplexity of the reference: {first.a.perplexity.value:.3f}; ± one standard error; "
        "less the last: the mean difference from the last line at the same positions",
        box=SIMPLE_HEAD,
    )
    table.add_column("logits", no_wrap=True)
    for heading in ("mean KL, nats", "less the last", "99 %", "most", "same top token", "less the last", "perplexity"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, of_setting in found.items():
        one, change = of_setting.divergence, of_setting.less_last
        table.add_row(
            name,
            f"{one.kl_nats.value:.3g} ± {one.kl_nats.standard_error:.1g}",
            "" if change is None else f"{change.kl_nats.value:+.2g} ± {change.kl_nats.standard_error:.1g}",
            f"{one.kl_p99_nats:.3g}",
            f"{one.kl_max_nats:.3g}",
            f"{one.same_top:.2%} ({one.same_top_low:.2%} to {one.same_top_high:.2%})",
            "" if change is None else f"{change.same_top.value:+.2%} ± {change.same_top.standard_error:.2%}",
            f"{one.b.perplexity.value:.3f}",
        )
    return table


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help=f"a name or a path (repeatable): {' and '.join(MODELS)}")
    parser.add_argument("--setting", action="append", help=f"(repeatable) {AS_SERVED} and kv=f32 without it")
    parser.add_argument("--llama-cpp", type=Path, metavar="PYTHON", help="an interpreter that has llama-cpp-python")
    parser.add_argument("--tokens", type=int, help="only the text's first tokens")
    parser.add_argument("--context-tokens", type=int, help="of a window; 2,048 without it")
    parser.add_argument("--stride", type=int, help="from one window to the next; three quarters of one without it")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    settings: list[str] = options.setting or [AS_SERVED, "kv=f32"]
    found = {model: measure(model, settings, options) for model in options.model or MODELS}
    if options.json:
        print(json.dumps(to_json(found), indent=2))
        return
    console = Console()
    if not console.is_terminal:
        console.width = 180
    for model, of_model in found.items():
        console.print(shown(model, of_model))


if __name__ == "__main__":
    main()
