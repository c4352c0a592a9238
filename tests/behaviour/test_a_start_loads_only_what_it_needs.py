"""What a server starts with is what its first answer needs: everything else can wait, and the answer cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine_harness import TINY_LLAMA

# For steps from older ledgers, questions to the ledger, published prices, prescribed forms, hubs, terminals, pages of
# metrics and tokenizer.json; and what comes along with some of them.
LATER = (
    "alembic",
    "genai_prices",
    "llguidance",
    "huggingface_hub",
    "rich",
    "pydantic",
    "sqlalchemy",
    "filelock",
    "tokenizers",
    "prometheus_client",
    "opentelemetry",
    "importlib.metadata",
)

OPEN_A_HOUSE = f"""
import sys
from taximeter.cli import main
from taximeter.serve import House
from taximeter.settings import Settings

House.open(Settings.load(), [{str(TINY_LLAMA / "model.gguf")!r}]).ledger.close()
print(*(name for name in {LATER!r} if name in sys.modules))
"""


def start(home: Path, code: str = OPEN_A_HOUSE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TAXIMETER_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_neither_the_first_start_nor_a_later_one_loads_what_can_wait(tmp_path: Path) -> None:
    """A new ledger is made without Alembic, and one that is as it should be takes nothing."""
    for _ in range(2):
        started = start(tmp_path)
        assert (started.stdout.split(), started.stderr) == ([], "")


@pytest.mark.parametrize("prices", ["[[price]]\nmodel = 7\n", "this is not TOML"])
def test_a_mistake_in_the_users_prices_is_still_told_at_the_start(tmp_path: Path, prices: str) -> None:
    """Prices are loaded late where nobody asks for any, but not where somebody wrote some down."""
    (tmp_path / "prices.toml").write_text(prices)
    started = start(tmp_path)
    assert started.returncode == 1
    assert "ConfigError" in started.stderr
    assert "prices.toml" in started.stderr


REPORT = """
import atexit, sys
from taximeter.__main__ import main

later = ("alembic", "sqlalchemy", "pydantic", "genai_prices", "asyncio", "taximeter.engine")
later += ("taximeter.records.backend",)
atexit.register(lambda: print(*(name for name in later if name in sys.modules), file=sys.stderr, end=""))
sys.argv[1:] = ["report", "--by", "task"]
main()
"""


def test_a_report_loads_neither_backends_nor_what_makes_tables(tmp_path: Path) -> None:
    """It is asked for at a prompt, and starting takes longer than what it asks."""
    for _ in range(2):
        started = start(tmp_path, REPORT)
        assert (started.returncode, started.stderr) == (0, "")
        assert "no receipts yet" in started.stdout
