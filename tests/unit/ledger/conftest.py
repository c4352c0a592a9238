"""A ledger in a folder of its own."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from taximeter.ledger import Ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Generator[Ledger]:
    with Ledger.open(str(path)) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared_ledger() -> Generator[Ledger]:
    """One for many examples of one property, which must not mind what is in it already."""
    with Ledger.open("sqlite://") as opened:
        yield opened
