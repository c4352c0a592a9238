"""Taximeter beside llama.cpp, OpenVINO GenAI and vLLM on this machine, in one run.

    python bench/engines.py [--models smollm2,gemma3] [--rounds 5] [--minutes N] [--only NAMES] [--json PATH]

In each round the machine's own limits are taken, every engine is started afresh, and each question goes to one after
the other within seconds, forwards and backwards by turns, because a machine drifts. Figures are medians over rounds,
and so are ratios: each is of one round. Prompts are the same token ids for everyone, answers greedy and of fixed
length; a point whose token counts the server does not confirm is void. Peers are not installed by this:
bench/peers/README.md says how; who is missing is named.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from engines_lab.contestants import Places, contestants, slug
from engines_lab.measures import MEASURES
from engines_lab.options import add_common_options, end_on_signal, place, words
from engines_lab.processes import adopt_orphans
from engines_lab.report import Report, page
from engines_lab.rounds import Run, guess_s, measure_rounds, minutes

from taximeter.engine.model_store import ModelStore
from taximeter.settings import Settings

PACKAGED = {"smollm2": "smollm2-135m-instruct", "gemma3": "gemma3-270m"}


def main() -> None:
    """Measure, print, write."""
    adopt_orphans()
    signal.signal(signal.SIGTERM, end_on_signal)
    options = _options()
    store = ModelStore(Settings.load().models_dir)
    with tempfile.TemporaryDirectory() as scratch:
        places = Places(
            packaged={model: store.resolve(PACKAGED[model]) for model in options.models},
            peer_models=options.peer_models,
            scratch=options.logs or Path(scratch),
            llama_bin=options.llama_bin,
            openvino_python=options.openvino_python,
            vllm_bin=options.vllm_bin,
            threads=options.threads,
        )
        measures = [m for m in MEASURES if _is_wanted(m.key, options.measures) and (m.quick or not options.quick)]
        report = Report(options.json, rounds=options.rounds, threads=options.threads)
        runs: list[Run] = []
        for model in options.models:
            wanted = [c for c in contestants(places, model) if _is_wanted(slug(c.label), options.only)]
            absent = {c.label: reason for c in wanted if (reason := c.missing(model))}
            present = [c for c in wanted if c.label not in absent]
            runs.append(Run(model=model, places=places, contestants=present, measures=measures, seed=options.seed))
            report.begin(runs[-1], absent)
        _measure(runs, report, options.rounds, None if options.minutes is None else options.minutes * 60)
    if options.json:
        print(f"written to {options.json}", file=sys.stderr)


def _measure(runs: Sequence[Run], report: Report, rounds: int, limit_s: float | None) -> None:
    """Model after model. Each has an equal part of the time that is left."""
    whole_s = sum(guess_s(run, rounds) for run in runs)
    capped = "" if limit_s is None or limit_s > whole_s else f", of which {minutes(limit_s)} are given"
    print(f"this may take {minutes(whole_s)}{capped}", file=sys.stderr)
    ends_at = None if limit_s is None else time.monotonic() + limit_s
    for index, run in enumerate(runs):
        now = time.monotonic()
        until = None if ends_at is None else now + (ends_at - now) / (len(runs) - index)
        try:
            asyncio.run(measure_rounds(run, rounds, report, until=until))
        finally:  # also of a run that was broken off
            page().print(report.tables(run.model))


def _is_wanted(key: str, given: list[str] | None) -> bool:
    """Whether it is one of the given words, or begins with one that is no whole name; without words all are wanted."""
    whole = {m.key for m in MEASURES}
    return given is None or any(key == word or (word not in whole and key.startswith(word)) for word in given)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=words, default=list(PACKAGED), help=f"of {','.join(PACKAGED)}")
    parser.add_argument("--only", type=words, help="engines, by the beginnings of names such as llamacpp-q4_0")
    parser.add_argument("--measures", type=words, help=f"of {','.join(m.key for m in MEASURES)}, or beginnings of them")
    parser.add_argument("--quick", action="store_true", help="about half of the measures, in a third of the time")
    parser.add_argument(
        "--peer-models",
        type=Path,
        metavar="FOLDER",
        default=place("TAXIMETER_BENCH_PEER_MODELS") or Settings.load().models_dir.with_name("peer-models"),
        help="what bench/peers/prepare.py made (TAXIMETER_BENCH_PEER_MODELS)",
    )
    add_common_options(parser)
    options = parser.parse_args()
    if unknown := set(options.models) - set(PACKAGED):
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    return options


if __name__ == "__main__":
    main()
