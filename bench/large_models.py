"""Taximeter beside llama.cpp on models as large as people run: the same file for both, with random weights.

    python bench/large_models.py [--shapes llama-3.2-1b,qwen3-4b,llama-3.1-8b] [--formats Q4_0,Q4_K,Q8_0] [--json PATH]

Each file is written when its turn comes, measured through the same door as in bench/engines.py, and deleted: up to 9 GB
of disk and 20 GB of memory for the largest. Random weights answer nonsense; they cost what real ones cost.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import tempfile
from pathlib import Path

from engines_lab.contestants import Contestant, LlamaCpp, Places, Taximeter
from engines_lab.measures import MEASURES
from engines_lab.options import add_common_options, end_on_signal, words
from engines_lab.report import Report
from engines_lab.rounds import Run, measure_rounds
from engines_lab.synthetic import FORMATS, SHAPES, write_model
from rich.console import Console

from taximeter.engine.model_store import ModelStore
from taximeter.settings import Settings

MEASURED = ("start", "memory", "decode", "prefill-512")


def main() -> None:
    """Write, measure, delete; file after file."""
    signal.signal(signal.SIGTERM, end_on_signal)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=words, default=list(SHAPES), help=f"of {','.join(SHAPES)}")
    parser.add_argument("--formats", type=words, default=list(FORMATS), help=f"of {','.join(FORMATS)}")
    parser.add_argument("--folder", type=Path, help="where the files are written; the system's folder for such")
    add_common_options(parser)
    options = parser.parse_args()
    if unknown := (set(options.shapes) - set(SHAPES)) | (set(options.formats) - set(FORMATS)):
        parser.error(f"no such shape or format: {', '.join(sorted(unknown))}")
    tokenizer_of = ModelStore(Settings.load().models_dir).resolve("smollm2-135m-instruct")
    report = Report(options.json, rounds=options.rounds, threads=options.threads)
    measures = [measure for measure in MEASURES if measure.key in MEASURED]
    for shape in options.shapes:
        for kind in options.formats:
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                name = f"{shape}-{kind.lower()}"
                path = Path(folder) / f"{name}.gguf"
                write_model(path, SHAPES[shape], kind, tokenizer_of=tokenizer_of)
                places = Places(
                    packaged={name: path},
                    peer_models=Path(folder),
                    scratch=options.logs or Path(folder),
                    llama_bin=options.llama_bin,
                    openvino_python=None,
                    vllm_bin=None,
                    threads=options.threads,
                )
                both: list[Contestant] = [Taximeter(places=places), LlamaCpp(places=places, precision="packaged")]
                absent = {who.label: reason for who in both if (reason := who.missing(name))}
                present = [who for who in both if who.label not in absent]
                run = Run(model=name, places=places, contestants=present, measures=measures, seed=options.seed)
                report.begin(run, absent)
                asyncio.run(measure_rounds(run, options.rounds, report))
                Console().print(report.tables(name))


if __name__ == "__main__":
    main()
