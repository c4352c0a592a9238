"""Rows of LiteLLM's table that are read by columns say what they would have said one by one, whatever is in them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.importers import litellm
from taximeter.importers.alike import call_digest
from taximeter.importers.chunks import Cells, Chunk, Objects
from taximeter.importers.logged import LogFile, LoggedCall
from taximeter.importers.origins import Origins
from taximeter.ledger.calls import texts_of

_anything = st.none() | st.sampled_from(["", " ", "a", "b", "{}", '["a"]', "1", True, 1, 1.5, -1, [], ["a"], {}])
_counts = st.integers(0, 9) | _anything
_details = st.none() | _anything | st.fixed_dictionaries({}, optional={"cached_tokens": _counts})


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


_times = st.sampled_from(["2026-10-01T00:00:00Z", "2026-10-01T00:00:02Z", "2026-10-01T00:00:01.5Z"]) | _anything


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
_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "prompt_tokens": _counts,
    "completion_tokens": _counts,
    "total_tokens": _counts,
    "spend": _anything,
    "model": _anything,
    "custom_llm_provider": _anything,
    "call_type": st.sampled_from(["acompletion", "retrieve_batch", "transcription"]) | _anything,
    "cache_hit": st.sampled_from(["False", "True"]) | _anything,
    "session_id": _anything,
    "team_alias": _anything,
    "team_id": _anything,
    "user": _anything,
    "end_user": _anything,
    "api_key": _anything,
    "request_tags": st.lists(_anything, max_size=2) | _anything,
    "metadata": _metadata | _metadata.map(json.dumps) | _anything,
    "startTime": _times,
    "endTime": _times,
    "completionStartTime": _times,
    "request_id": st.sampled_from(["r1", "r2"]) | _anything,
    "status": st.sampled_from(["success", "failure"]) | _anything,
}
_NAMES = list(_FIELDS)
_rows = _some(**_FIELDS)
_USUAL_USAGE: dict[str, Any] = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
_words = st.sampled_from(["failure", "batch", "flex", None, 1, True])
_said = _some(status=_words, service_tier=_words, user_api_key_alias=_anything, user_api_key_team_alias=_anything)
_usual_metadata = st.tuples(_said, _some(service_tier=_words)).map(
    lambda drawn: {**drawn[0], "usage_object": _USUAL_USAGE | drawn[1]}
)
_USUAL: dict[str, Any] = {
    "request_id": "r",
    "startTime": "2026-10-01T00:00:00Z",
    "call_type": "acompletion",
    "model": "openai/m",
    "custom_llm_provider": "openai",
    "spend": 0.5,
    "metadata": {"usage_object": _USUAL_USAGE},
}


def _log() -> LogFile:
    return LogFile(Path("x.jsonl"), cast("Any", None), 0, notes=Counter[str]())


def _named(call: LoggedCall | None) -> object:
    """A call by what names it, without its name."""
    if call is None:
        return None
    digest, call.identity = call_digest(call), ""
    return digest, call


@st.composite
def _chunks(draw: st.DrawFn) -> Chunk:
    """Rows of JSON, or of a table; most of what they say is usual."""
    rows = [
        _USUAL | row for row in draw(st.lists(st.one_of(_rows, _few(_rows), _metadata_alone), min_size=1, max_size=6))
    ]
    if draw(st.booleans()):
        return Objects(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return Cells(names, [[_in_a_cell(row.get(name)) for name in names] for row in rows])


def _few(rows: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    some = st.tuples(st.sets(st.sampled_from(_NAMES), max_size=3), rows)
    return some.map(lambda drawn: {name: value for name, value in drawn[1].items() if name in drawn[0]})


_metadata_alone = _usual_metadata.map(lambda said: {"metadata": said})


def _in_a_cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


@settings(max_examples=300)
@given(chunk=_chunks())
def test_by_columns_rows_say_what_they_say_one_by_one(chunk: Chunk) -> None:
    """Each call once, in the one way or the other; and only what is read one by one has anything to note."""
    alike, others = litellm._usual(chunk, Origins())
    log, of_others = _log(), _log()
    one_by_one = [_alone(chunk.row(place), log) for place in range(len(chunk))]
    left = [_named(_alone(chunk.row(place), of_others)) for place in others]
    found = [
        *left,
        *((digest, each.call(place)) for each in alike for place, digest in enumerate(texts_of(each.digests))),
    ]
    assert sorted(map(repr, found)) == sorted(map(repr, map(_named, one_by_one)))
    assert log.notes == of_others.notes
    assert all(each.kind.source == origin.source for each in alike for origin in each.origins)
    assert all(each.kind.provider == origin.provider for each in alike for origin in each.origins)


def _alone(row: Mapping[str, Any], log: LogFile) -> LoggedCall | None:
    """The call of a row, of which nothing is remembered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Origins, "told_by", lambda _, __, made: made())
        return litellm._call(row, Origins(), log)


def test_usual_rows_are_read_by_columns() -> None:
    """All but those that have failed, were answered from a cache, or have sound in them."""
    sound = {"usage_object": {**_USUAL_USAGE, "prompt_tokens_details": {"audio_tokens": 3}}}
    rows = [_USUAL | {"request_id": f"r{n}", "session_id": f"s{n % 2}"} for n in range(6)]
    rows[1] |= {"metadata": sound}
    rows[3] |= {"status": "failure"}
    rows[4] |= {"cache_hit": "True"}
    alike, others = litellm._usual(Objects(rows), Origins())
    assert others == [1, 3, 4]
    assert [(each.kind.model, len(each), len(each.origins)) for each in alike] == [("m", 3, 2)]
