"""The desk at which logs are imported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.importers.logs import Desk, desk


@pytest.fixture(name="desk")
def _desk(tmp_path: Path) -> Iterator[Desk]:
    with desk(tmp_path) as one:
        yield one
