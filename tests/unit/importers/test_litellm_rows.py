"""Rows of LiteLLM's table are read in less time where they say what most do, and mean the same."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taximeter.importers import litellm
from taximeter.importers.instants import instants_us
from taximeter.importers.logged import LogFile, LoggedCall
from taximeter.importers.origins import Origins

_anything = st.none() | st.sampled_from(["", " ", "a", "b", "{}", '["a"]', "1", True, 1, 1.5, -1, [], ["a"], {}])
_counts = st.integers(0, 9) | _anything
_details = st.none() | _anything | st.fixed_dictionaries({}, optional={"cached_tokens": _counts})


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


_usage = _some(
    prompt_tokens=st.integers(5, 9) | _counts,
    completion_tokens=_counts,
    total_tokens=_counts,
    prompt_tokens_details=_details,
    service_tier=_anything,
)
_metadata = _some(
    status=st.sampled_from(["success", "failure"]) | _anything,
    usage_object=_usage | _anything,
    additional_usage_values=_some(cache_read_input_tokens=_counts) | _anything,
    user_api_key_alias=_anything,
    user_api_key_team_alias=_anything,
)
_rows = _some(
    prompt_tokens=_counts,
    completion_tokens=_counts,
    total_tokens=_counts,
    spend=_anything,
    model=_anything,
    custom_llm_provider=_anything,
    call_type=st.sampled_from(["acompletion", "retrieve_batch", "transcription"]) | _anything,
    cache_hit=st.sampled_from(["False", "True"]) | _anything,
    session_id=_anything,
    team_alias=_anything,
    team_id=_anything,
    user=_anything,
    end_user=_anything,
    api_key=_anything,
    request_tags=st.lists(_anything, max_size=2) | _anything,
    metadata=_metadata | _metadata.map(json.dumps) | _anything,
    endTime=st.sampled_from(["2026-10-01T00:00:02Z"]) | _anything,
)
_GIVEN: dict[str, Any] = {"request_id": "r", "startTime": "2026-10-01T00:00:00Z"}


def _called(row: dict[str, Any], origins: Origins) -> tuple[LoggedCall | None, dict[str, int]]:
    log = LogFile(path=Path("x.jsonl"), file=cast("io.FileIO", io.BytesIO()), size=0)
    begin, end, first = (instants_us([row.get(name)])[0] for name in litellm._TIMES)
    return litellm._call(row, (begin, end, first), origins, log), dict(log.notes)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(_rows, min_size=1, max_size=6))
def test_what_is_remembered_is_what_the_row_says(rows: list[dict[str, Any]]) -> None:
    """Of rows that say nearly the same, too."""
    origins = Origins()
    for row in rows:
        quick = _called(row | _GIVEN, origins)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(litellm, "_whole_usage", lambda _: None)
            patch.setattr(Origins, "told_by", lambda _, __, made: made())
            assert quick == _called(row | _GIVEN, Origins())
