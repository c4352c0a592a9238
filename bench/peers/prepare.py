"""Make the peers' model files from ours: the packaged weights in each format that a peer reads.

    python bench/peers/prepare.py --llama-bin FOLDER --export-python PROGRAM [--models smollm2,gemma3]

What is there already is kept. The formats are made from packaged weights, already quantized: they say how fast a peer
is with them, and nothing about how well it answers. bench/peers/README.md says how to get the programs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from taximeter.engine.model_store import ModelStore
from taximeter.settings import Settings

_PACKAGED = {"smollm2": "smollm2-135m-instruct", "gemma3": "gemma3-270m"}
_LLAMA_FORMATS = ("Q4_0", "Q8_0", "BF16")
_OPENVINO_FORMATS = {"int8": (), "int4": ("--group-size", "64", "--ratio", "1.0")}
_TO_HF = Path(__file__).with_name("gguf_to_hf.py")


def main() -> None:
    """Make what is missing."""
    options = _options()
    store, folder = ModelStore(Settings.load().models_dir), options.peer_models
    folder.mkdir(parents=True, exist_ok=True)
    for model in options.models:
        packaged = store.resolve(_PACKAGED[model])
        if options.llama_bin:
            for precision in _LLAMA_FORMATS:
                quantize = [options.llama_bin / "llama-quantize", "--allow-requantize", packaged]
                _make(folder / f"{model}-{precision.lower()}.gguf", lambda at, q=quantize, p=precision: [*q, at, p])
        if options.export_python:
            hf = folder / f"{model}-hf"
            _make(hf, lambda at, packaged=packaged: [options.export_python, _TO_HF, packaged, at])
            export = [options.export_python.with_name("optimum-cli"), "export", "openvino", "-m", hf]
            export += ["--task", "text-generation-with-past", "--weight-format"]
            for precision, more in _OPENVINO_FORMATS.items():
                target = folder / f"{model}-openvino-{precision}"
                _make(target, lambda at, p=precision, m=more, e=export: [*e, p, *m, at])


def _make(target: Path, command: Callable[[Path], Sequence[str | Path]]) -> None:
    """Run what makes `target`; it gets its name only when it is whole."""
    if target.exists():
        return
    print(f"making {target}", file=sys.stderr)
    unfinished = target.with_name(f"unfinished-{target.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    subprocess.run(command(unfinished), check=True, stdout=sys.stderr)  # noqa: S603 - the operator said where it is
    unfinished.rename(target)


def _options() -> argparse.Namespace:
    default = os.environ.get("TAXIMETER_BENCH_PEER_MODELS")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(_PACKAGED))
    parser.add_argument("--llama-bin", type=Path, metavar="FOLDER", help="where llama-quantize is")
    parser.add_argument("--export-python", type=Path, metavar="PROGRAM", help="of an environment with optimum-intel")
    parser.add_argument(
        "--peer-models",
        type=Path,
        metavar="FOLDER",
        default=Path(default) if default else Settings.load().models_dir.with_name("peer-models"),
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
