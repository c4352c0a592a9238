"""Synthetic tables of calls: CSV files, and the map that says what their columns are."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

from import_lab.transcripts import Made

_IN_A_FILE = 50_000
_MODELS = ("claude-opus-4-7", "gpt-5", "claude-haiku-4-5")
_MAP = """source = "proxy"

[columns]
time = "at"
model = "model"
id = "id"
session = "session"

[tokens]
input = "input_tokens"
output = "output_tokens"
cache_read = "cached_tokens"
"""


def make_tables(folder: Path, *, calls: int, seed: int = 1) -> Made:
    """Write so many calls to `folder`/tables, and `folder`/map.toml."""
    chance = random.Random(seed)  # noqa: S311 - synthetic data
    made = Made()
    at = datetime(2026, 10, 1, 8, tzinfo=UTC)
    tables = folder / "tables"
    tables.mkdir(parents=True, exist_ok=True)
    (folder / "map.toml").write_text(_MAP)
    for number, first in enumerate(range(0, calls, _IN_A_FILE)):
        lines = ["id,at,model,session,input_tokens,output_tokens,cached_tokens"]
        for place in range(first, min(first + _IN_A_FILE, calls)):
            at += timedelta(milliseconds=chance.randrange(1, 5_000))
            prompt, cached, output = (
                chance.randrange(2_000, 90_000),
                chance.randrange(2_000),
                chance.randrange(1, 1_800),
            )
            stamp, model = at.isoformat(timespec="milliseconds"), chance.choice(_MODELS)
            session = f"session-{place // 300 * 4 + chance.randrange(4)}"  # four go on side by side
            lines.append(f"{chance.getrandbits(96):024x},{stamp},{model},{session},{prompt},{output},{cached}")
            made.tokens["input_tokens"] += prompt - cached
            made.tokens["cache_read_input_tokens"] += cached
            made.tokens["output_tokens"] += output
            made.calls += 1
        content = "".join(f"{line}\n" for line in lines).encode()
        (tables / f"calls-{number:04}.csv").write_bytes(content)
        made.files += 1
        made.lines += len(lines)
        made.size_bytes += len(content)
    return made
