"""Taximeter beside llama.cpp on models as large as people run: the same file for both, with random weights.

    python bench/large_models.py [--shapes llama-3.2-1b,qwen3-4b,llama-3.1-8b] [--formats Q4_0,Q4_K,Q8_0]
                                 [--rounds 5] [--minutes N] [--short] [--folder PATH [--keep]] [--json PATH]

Each file is written when its turn comes, measured through the same door as in bench/engines.py, and deleted: up to 9 GB
of disk and of memory for the largest. With `--keep` it stays in the folder, and one that is there is not written again.
The smallest come first. Random weights answer nonsense; they cost what real ones cost.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from engines_lab.contestants import Contestant, LlamaCpp, Places, Taximeter
from engines_lab.measures import MEASURES, SHORT_MEASURES, Target
from engines_lab.options import add_common_options, end_on_signal, words
from engines_lab.report import Report, available_bytes, page
from engines_lab.rounds import Run, measure_rounds, minutes
from engines_lab.synthetic import FORMATS, SHAPES, size_bytes, write_model

from taximeter.engine.model_store import ModelStore
from taximeter.settings import Settings

_AHEAD = Target(ratio=1.0)
_MEASURED = {"start": Target(), "memory": Target(), "decode": _AHEAD, "prefill-512": _AHEAD}
_MEASURED_SHORT = {"start": Target(), "memory": Target(), "decode-short": _AHEAD, "prefill-128": _AHEAD}
_DISK_RESERVE_BYTES = 1 << 30
_MEMORY_RESERVE_BYTES = 3 << 30


def main() -> None:
    """Write, measure, delete; file after file."""
    signal.signal(signal.SIGTERM, end_on_signal)
    options = _options()
    sizes = {(shape, kind): size_bytes(SHAPES[shape], kind) for shape in options.shapes for kind in options.formats}
    files = sorted(sizes, key=lambda file: sizes[file])
    whole_s = sum(_guess_s(size, options.rounds) for size in sizes.values())
    print(f"{len(files)} files, this may take {minutes(whole_s)}", file=sys.stderr)
    ends_at = None if options.minutes is None else time.monotonic() + options.minutes * 60
    report = Report(options.json, rounds=options.rounds, threads=options.threads)
    measured: list[str] = []
    try:
        for index, (shape, kind) in enumerate(files):
            # Each file has its part of the time that is left, by its size.
            weights = [_guess_s(sizes[file], options.rounds) for file in files[index:]]
            now = time.monotonic()
            until = None if ends_at is None else now + (ends_at - now) * weights[0] / sum(weights)
            kept = _kept(options, f"{shape}-{kind.lower()}")
            to_write = 0 if kept is not None and kept.exists() else sizes[shape, kind]
            if reason := _cannot(sizes[shape, kind], to_write, options.folder, ends_at):
                print(f"{shape} {kind} is left out: {reason}", file=sys.stderr)
                continue
            measured.append(f"{shape}-{kind.lower()}")
            _measure(shape, kind, options, report, until)
    finally:  # also of a run that was broken off
        page().print(report.ratios(measured))
    if options.json:
        print(f"written to {options.json}", file=sys.stderr)


def _measure(shape: str, kind: str, options: argparse.Namespace, report: Report, until: float | None) -> None:
    """One file from its making to its end."""
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="taximeter-large-") as folder:
        name = f"{shape}-{kind.lower()}"
        path = _kept(options, name) or Path(folder) / f"{name}.gguf"
        if not path.exists():
            _write(path, shape, kind, Path(folder))
        places = Places(
            packaged={name: path},
            peer_models=Path(folder),
            scratch=options.logs or Path(folder),
            llama_bin=options.llama_bin,
            openvino_python=None,
            vllm_bin=None,
            threads=options.threads,
        )
        must = _MEASURED_SHORT if options.short else _MEASURED
        both: list[Contestant] = [Taximeter(places=places), LlamaCpp(places=places, precision="packaged")]
        absent = {who.label: reason for who in both if (reason := who.missing(name))}
        free = available_bytes()
        run = Run(
            model=name,
            places=places,
            contestants=[who for who in both if who.label not in absent],
            measures=[
                replace(m, must=must[m.key], aim=must[m.key])
                for m in (SHORT_MEASURES if options.short else MEASURES)
                if m.key in must and m.key in options.measures
            ],
            seed=options.seed,
            together=free is None or path.stat().st_size * 2.5 + _MEMORY_RESERVE_BYTES < free,
            warm_up_tokens=128 if options.short else 512,
        )
        report.begin(run, absent)
        try:
            asyncio.run(measure_rounds(run, options.rounds, report, until=until))
        finally:
            page().print(report.tables(name))


def _kept(options: argparse.Namespace, name: str) -> Path | None:
    """Where a file lies that outlives its measurement."""
    return options.folder / f"{name}.gguf" if options.keep else None


def _write(path: Path, shape: str, kind: str, folder: Path) -> None:
    """A model file, which has its name only when it is whole."""
    began_at = time.monotonic()
    part = folder / f"{path.name}.part"
    tokenizer_of = ModelStore(Settings.load().models_dir).resolve("smollm2-135m-instruct")
    write_model(part, SHAPES[shape], kind, tokenizer_of=tokenizer_of)
    part.rename(path)
    told = f"{path.stat().st_size / 1e9:.1f} GB in {time.monotonic() - began_at:.0f} s"
    print(f"{path.stem}: wrote {told}", file=sys.stderr)


def _guess_s(size: int, rounds: int) -> float:
    """Written at half a gigabyte a second; a turn reads the weights a few hundred times, and computes as long again."""
    return size / 0.5e9 + rounds * 2 * (8 + 13 * size / 1e9)


def _cannot(size: int, to_write: int, folder: Path | None, ends_at: float | None) -> str | None:
    """Why a file of this size cannot be measured here and now."""
    if ends_at is not None and time.monotonic() + _guess_s(size, 1) > ends_at:
        return "not enough time is left"
    place = folder or Path(tempfile.gettempdir())
    if (free := shutil.disk_usage(place).free) < to_write + _DISK_RESERVE_BYTES:
        return f"{place} has {free / 1e9:.1f} GB left for a file of {size / 1e9:.1f} GB"
    # The weights once in the engine's own form and once more in the page cache, which gives way.
    free = available_bytes()
    if free is not None and free < size * 1.25 + _MEMORY_RESERVE_BYTES:
        return f"{free / 1e9:.1f} GB of memory are free for weights of {size / 1e9:.1f} GB"
    return None


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=words, default=list(SHAPES), help=f"of {','.join(SHAPES)}")
    parser.add_argument("--formats", type=words, default=list(FORMATS), help=f"of {','.join(FORMATS)}")
    parser.add_argument(
        "--measures",
        type=words,
        default=[*_MEASURED, *_MEASURED_SHORT],
        help=f"of {','.join(_MEASURED)}; with --short of {','.join(_MEASURED_SHORT)}",
    )
    parser.add_argument("--short", action="store_true", help="a quarter of the tokens")
    parser.add_argument("--folder", type=Path, help="where the files are written; the system's folder for such")
    parser.add_argument("--keep", action="store_true", help="leave the files in --folder, and use those that are there")
    add_common_options(parser)
    options = parser.parse_args()
    if options.keep and options.folder is None:
        parser.error("--keep needs a --folder to keep files in")
    if unknown := (set(options.shapes) - set(SHAPES)) | (set(options.formats) - set(FORMATS)):
        parser.error(f"no such shape or format: {', '.join(sorted(unknown))}")
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    main()
