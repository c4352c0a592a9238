"""What both commands ask of the operator.

Owns: the options that they share, and where peers are looked for. Refuses to know: what is measured.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Rounds, where peers are, and where results go. Each place may also come from the environment."""
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, help="begin no further round that would not end in that time")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write everything there, after every turn")
    parser.add_argument("--logs", type=_folder, metavar="FOLDER", help="keep what the servers print")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", default="taximeter", help="for the prompts")
    for option, metavar, what in (
        ("--llama-bin", "FOLDER", "where llama-server is"),
        ("--openvino-python", "PROGRAM", "of an environment with openvino-genai"),
        ("--vllm-bin", "FOLDER", "where vllm is"),
    ):
        variable = "TAXIMETER_BENCH" + option[1:].replace("-", "_").upper()
        parser.add_argument(option, type=Path, metavar=metavar, default=place(variable), help=f"{what} ({variable})")


def words(text: str) -> list[str]:
    """Several values in one option."""
    return text.split(",")


def place(variable: str) -> Path | None:
    """A path from the environment; empty is unset."""
    return Path(value).expanduser() if (value := os.environ.get(variable)) else None


def end_on_signal(number: int, _frame: object) -> None:
    """A handler: asked to end, a command still ends the server it started."""
    sys.exit(128 + number)


def _folder(text: str) -> Path:
    folder = Path(text)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
