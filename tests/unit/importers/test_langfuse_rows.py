"""Rows of Langfuse's that have the same origin have it from the first of them, and say the same."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taximeter.importers import langfuse
from taximeter.importers.logged import LogFile, LoggedCall
from taximeter.importers.origins import Origins

_cells = st.none() | st.sampled_from(["", " ", "a", "b", '["a"]', "1", True, 1, 1.0, [], ["a"], {}])
_ROLES = ("ls_provider", "tags", "traceTags", *langfuse._OF_AN_ORIGIN)
_rows = st.fixed_dictionaries({}, optional=dict.fromkeys(_ROLES, _cells))


def _called(row: dict[str, Any], origins: Origins) -> LoggedCall | None:
    log = LogFile(path=Path("x.jsonl"), file=cast("io.FileIO", io.BytesIO()), size=0)
    whole = {"id": "a", "model": "m", "metadata": {"ls_provider": row.get("ls_provider")}} | row
    return langfuse._call(whole, (1_700_000_000_000_000, None, None), origins, log)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(_rows, min_size=1, max_size=6))
def test_an_origin_that_is_remembered_is_the_rows_own(rows: list[dict[str, Any]]) -> None:
    origins = Origins()
    for row in rows:
        quick = _called(row, origins)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Origins, "told_by", lambda _, __, made: made())
            assert quick == _called(row, Origins())
    assert quick is not None
