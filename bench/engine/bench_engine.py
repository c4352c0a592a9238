"""How fast the engine itself is, without HTTP: prefill at two lengths, decode alone and in company.

    python bench/engine/bench_engine.py [--model NAME_OR_PATH] [--level LEVEL ...] [--rounds N] [--json]

Prompts are random token ids, so that nothing is found in the prefix cache; answers are greedy and of fixed length.
Medians over rounds; all levels take turns in one run.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from taximeter.clock import SYSTEM_CLOCK
from taximeter.engine import kernels
from taximeter.engine.core import EngineCore, EngineOptions
from taximeter.engine.model_store import ModelStore
from taximeter.engine.models import load_model
from taximeter.engine.tokenizer import Tokenizer
from taximeter.engine.weights import open_checkpoint
from taximeter.records import Dialect, Request, Sampling
from taximeter.settings import Settings

DECODE_TOKENS = 64
MEASURES: dict[str, Callable[[EngineCore, random.Random], float]] = {
    "prefill 512, tok/s": lambda core, chance: prefill(core, chance, 512),
    "prefill 2,048, tok/s": lambda core, chance: prefill(core, chance, 2048),
    "decode, 1 stream, tok/s": lambda core, chance: decode(core, chance, 1),
    "decode, 8 streams, tok/s": lambda core, chance: decode(core, chance, 8),
}


def ask(core: EngineCore, chance: random.Random, prompt_tokens: int, answer_tokens: int) -> None:
    """Queue a prompt of random tokens."""
    request = Request(
        id=f"req_{chance.random()}",
        received_at=SYSTEM_CLOCK.utc_now(),
        received_ns=SYSTEM_CLOCK.monotonic_ns(),
        dialect=Dialect.COMMAND_LINE,
        model=core.name,
        sampling=Sampling(temperature=0, ignore_eos=True),
    )
    # The first thousand ids are control tokens and single bytes in many vocabularies.
    prompt = tuple(chance.randrange(1000, core.config.vocab_size) for _ in range(prompt_tokens))
    core.add(request, prompt, answer_tokens, lambda _events: None)


def prefill(core: EngineCore, chance: random.Random, tokens: int) -> float:
    """Prompt tokens a second, first token included."""
    ask(core, chance, tokens, 1)
    return tokens / drain_s(core)


def decode(core: EngineCore, chance: random.Random, streams: int) -> float:
    """Answer tokens a second over all streams, each behind a prompt of 128 tokens, which is not in the time."""
    for _ in range(streams):
        ask(core, chance, 128, DECODE_TOKENS)
    while not all(sequence.output for sequence in core.scheduler.running) or core.scheduler.waiting:
        core.step()
    written = sum(len(sequence.output) for sequence in core.scheduler.running)
    return (streams * DECODE_TOKENS - written) / drain_s(core)


def drain_s(core: EngineCore) -> float:
    """Step until nothing is left; seconds."""
    start_ns = SYSTEM_CLOCK.monotonic_ns()
    while core.has_work:
        core.step()
    return (SYSTEM_CLOCK.monotonic_ns() - start_ns) / 1e9


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--level", action="append", choices=kernels.levels(), help="only this one (repeatable)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    levels: list[str] = options.level or [kernels.level()]

    checkpoint = open_checkpoint(ModelStore(Settings.load().models_dir).resolve(options.model))
    core = EngineCore(
        name=options.model,
        model=load_model(checkpoint),
        tokenizer=Tokenizer.from_vocabulary(checkpoint.vocabulary()),
        chat_template=None,
        options=EngineOptions(step_tokens=512),
        clock=SYSTEM_CLOCK,
    )
    chance = random.Random(0)  # noqa: S311 - prompts to measure with
    figures: dict[str, dict[str, list[float]]] = {level: {name: [] for name in MEASURES} for level in levels}
    for round_number in range(options.rounds + 1):
        for level in levels:
            with kernels.use_level(level):
                for name, measure in MEASURES.items():
                    figure = measure(core, chance)
                    if round_number:  # the first round warms up
                        figures[level][name].append(figure)
    if options.json:
        print(json.dumps({"model": options.model, "rounds": options.rounds, "tok_per_s": figures}, indent=2))
        return
    table = Table(title=f"{options.model}, median of {options.rounds} rounds (lowest to highest)", box=SIMPLE_HEAD)
    for heading in ("measure", *levels):
        table.add_column(heading, justify="left" if heading == "measure" else "right")
    for name in MEASURES:
        cells = [figures[level][name] for level in levels]
        table.add_row(name, *(f"{statistics.median(c):,.1f} ({min(c):,.1f} to {max(c):,.1f})" for c in cells))
    Console().print(table)


if __name__ == "__main__":
    main()
