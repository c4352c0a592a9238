"""Observations of Langfuse's are read in less time where they say what most do, and mean the same."""

from __future__ import annotations

import io
import json
from itertools import product
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.importers import langfuse
from taximeter.importers.instants import epoch_us
from taximeter.importers.logged import LogFile, LoggedCall
from taximeter.importers.origins import Origins

_anything = st.none() | st.sampled_from(["", " ", "a", "b", "{}", '["a"]', "1", True, 1, 1.5, -1, 0, [], ["a"], {}])
_counts = st.integers(0, 9) | _anything
_names = st.sampled_from([*(name for names in langfuse._NAMES for name in names), "other"])


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


_details = (
    st.builds(
        lambda known, others, more: {**known, **others, "total": sum(known.values()) + more},
        st.fixed_dictionaries({"input": st.integers(5, 30), "output": st.integers(5, 30)}),
        st.dictionaries(_names, st.integers(0, 5), max_size=4),
        st.integers(0, 10),
    )
    | st.dictionaries(_names, _counts, max_size=5)
    | _some(input=_counts, output=_counts, total=_counts, unit=st.sampled_from(["TOKENS", "CHARACTERS"]) | _anything)
)
_cells = st.sampled_from(["a", "b"]) | _anything
_tags = st.lists(_anything, max_size=2) | _anything
_times = st.sampled_from(["2026-10-01T00:00:00Z", "2026-10-01T00:00:02Z"]) | _anything
_of_an_origin = _some(
    metadata=_some(ls_provider=_cells) | _anything,
    tags=_tags,
    traceTags=_tags,
    **dict.fromkeys(langfuse._OF_AN_ORIGIN, _cells),
)
_of_counts = _some(
    usageDetails=_details | _details | _details.map(json.dumps) | _anything,
    usage_details=_details | _anything,
    promptTokens=_counts,
    output_usage=_counts,
)
_of_a_call = _some(
    type=st.sampled_from(["GENERATION", "generation", "EMBEDDING", "SPAN"]) | _anything,
    id=_cells,
    model=_cells,
    providedModelName=_cells,
    startTime=_times,
    start_time=_times,
    endTime=_times,
    end_time=_times,
    completionStartTime=_times,
    latency=_anything,
    level=st.sampled_from(["DEFAULT", "ERROR", "error"]) | _anything,
    statusMessage=_cells,
    modelParameters=_some(service_tier=_cells) | _anything,
    model_parameters=_some(service_tier=_cells) | _anything,
    calculatedTotalCost=_anything,
    total_cost=_anything,
    costDetails=_some(total=_anything) | _anything,
)
_GIVEN: dict[str, Any] = {"id": "i", "startTime": "2026-10-01T00:00:00Z", "type": "GENERATION", "model": "m"}
_rows = st.one_of(_of_an_origin, _of_counts, _of_a_call).map(lambda row: _GIVEN | row)


def _read(rows: list[dict[str, Any]]) -> tuple[list[LoggedCall], dict[str, int]]:
    data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    log = LogFile(path=Path("x.jsonl"), file=cast("io.FileIO", io.BytesIO(data)), size=len(data))
    return list(langfuse.read(log)), dict(log.notes)


def _read_the_long_way(rows: list[dict[str, Any]]) -> tuple[list[LoggedCall], dict[str, int]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(langfuse._Plans, "leaves", lambda *_: None)
        patch.setattr(Origins, "told_by", lambda _, __, made: made())
        patch.setattr(langfuse, "instants_us", lambda values: list(map(epoch_us, values)))
        patch.setattr(langfuse, "_column", lambda chunk, *names: [langfuse.first(row, *names) for row in chunk])
        return _read(rows)


@settings(max_examples=300)
@given(rows=st.lists(_rows, min_size=1, max_size=6))
def test_what_is_remembered_is_what_the_row_says(rows: list[dict[str, Any]]) -> None:
    """Of rows that say nearly the same, too."""
    assert _read(rows) == _read_the_long_way(rows)


_names_of_origins = ("sessionId", "session_id", "traceId", "trace_id", "traceName", "trace_name")
_more_of_origins = ("name", "userId", "user_id", "environment")


@pytest.mark.parametrize("name", [*_names_of_origins, *_more_of_origins])
def test_rows_that_differ_in_one_name_have_two_origins(name: str) -> None:
    rows = [_GIVEN | {name: value} for value in ("a", "b", "a")]
    one, other, again = _read(rows)[0]
    assert one.origin is again.origin
    assert one.origin != other.origin


def test_a_tag_is_no_text_of_a_tag() -> None:
    rows: list[dict[str, Any]] = [_GIVEN | {"tags": tags} for tags in ("a", ["a"], '["a"]', ["list", "a"], [])]
    assert _read(rows) == _read_the_long_way(rows)


def test_the_seller_is_of_the_origin() -> None:
    rows = [_GIVEN | {"metadata": {"ls_provider": name}} for name in ("openai", "anthropic")]
    assert [call.origin.provider for call in _read(rows)[0]] == ["openai", "anthropic"]


@given(counts=st.dictionaries(_names, st.sampled_from([0, 1, 5, 30, -1, True, None, 2.0, "3"]), min_size=1, max_size=4))
def test_counts_that_were_read_by_a_plan_are_those_of_the_row(counts: dict[str, Any]) -> None:
    said = {"input": 30, "output": 5, "total": 35} | counts
    leaves = langfuse._Plans().leaves(said)
    assert leaves is None or leaves == langfuse._usage({"usageDetails": dict(said)})


def test_usual_counts_are_read_by_a_plan() -> None:
    said = {"input": 20, "input_cached_tokens": 7, "output": 5, "output_reasoning": 2, "total": 34, "more": 1}
    assert langfuse._Plans().leaves(said) == (20, 7, 0, 0, 0, 5, 2)


@given(
    more=st.integers(-3, 12),
    parts=st.integers(0, 6),
    parts_out=st.integers(0, 6),
    writes=st.tuples(st.integers(0, 5)) | st.tuples(st.integers(0, 5), st.integers(0, 5)),
)
def test_the_likeliest_reading_is_chosen(more: int, parts: int, parts_out: int, writes: tuple[int, ...]) -> None:
    """Rather both have their parts in them than one, rather the input than the output, and then rather all writes."""
    likeliest = next(
        (
            (unknown, in_input, in_output)
            for in_input, in_output, unknown in product((True, False), (True, False), writes)
            if more == (0 if in_input else parts + unknown) + (0 if in_output else parts_out)
        ),
        None,
    )
    assert langfuse._reading(more, parts, parts_out, writes) == likeliest
