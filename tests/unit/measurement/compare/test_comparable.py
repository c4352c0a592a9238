"""What must agree, and the refusal that says what does not."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.errors import RequestError
from taximeter.measurement.compare.comparable import FIELDS, Kind, comparability, facts_of
from taximeter.measurement.results import DEFINITIONS, Result
from tests.measurement_samples import an_observation

FACTS: dict[str, str | None] = {field.name: "same" for field in FIELDS}


def a_result(**changes: Any) -> Result:
    observations = tuple(an_observation(length, began_ns=length) for length in (64, 512))
    result = Result(
        kind="sweep",
        run="sweep-1",
        made_at=datetime(2026, 11, 30, tzinfo=UTC),
        taximeter_version="0.1.0",
        environment={"client_cpu": "Xeon"},
        targets=(
            {
                "name": "here",
                "url": "http://127.0.0.1:8000",
                "model": "SmolLM2-135M",
                "dialect": "openai.completions",
                "engine": "vllm",
                "context_tokens": 4096,
                "setup": {"dtype": "bfloat16", "kv_cache_dtype": "auto", "max_num_seqs": 128},
            },
        ),
        plan={"prompt_tokens": [64, 512], "output_tokens": 16, "concurrency": 1, "cache": "cold"},
        conclusions={},
        observations={"here": observations},
    )
    return replace(result, **changes)


@pytest.mark.parametrize("field", [field.name for field in FIELDS])
def test_each_field_is_held_against_the_others(field: str) -> None:
    found = comparability({"A": FACTS, "B": FACTS | {field: "other"}})
    assert not found.may_be_ranked
    assert f"{field.replace('_', ' ')}: A same, B other" in found.refusal()
    assert [each.field.name for each in found.differing] == [field]


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_unknown_is_not_equal(field: Any) -> None:
    """It is a doubt where only the server can know, and a refusal where the measurer should have said."""
    for values in ({"A": FACTS, "B": FACTS | {field.name: None}}, {side: FACTS | {field.name: None} for side in "AB"}):
        found = comparability(values)
        assert field.name not in found.agreed
        assert found.may_be_ranked is not field.is_asked
        told = found.refusal() if field.is_asked else " ".join(found.doubts)
        assert f"{field.name.replace('_', ' ')}: A " in told
        assert "B unknown" in told


def test_all_that_agrees_is_ranked() -> None:
    found = comparability({"A": FACTS, "B": FACTS, "C": FACTS})
    assert found.may_be_ranked
    assert found.doubts == ()
    assert set(found.agreed) == {field.name for field in FIELDS}


def test_a_third_that_differs_is_enough() -> None:
    found = comparability({"A": FACTS, "B": FACTS, "C": FACTS | {"cache": "warm"}})
    assert "cache: A same, B same, C warm" in found.refusal()


def test_hardware_may_be_what_is_compared() -> None:
    found = comparability({"A": FACTS, "B": FACTS | {"hardware": "H200"}}, meant=("hardware",))
    assert found.may_be_ranked
    assert found.doubts == ("differs, as you mean it to: hardware: A same, B H200",)


def test_one_model_may_have_two_names() -> None:
    found = comparability({"A": FACTS, "B": FACTS | {"model": "org/same"}}, same=("model",))
    assert found.may_be_ranked
    assert found.doubts == ("taken to be equal on your word: model: A same, B org/same",)


@pytest.mark.parametrize("field", [field.name for field in FIELDS if field.kind in (Kind.MEASUREMENT, Kind.TARGET)])
def test_how_it_was_measured_cannot_be_waived(field: str) -> None:
    for waiver in ({"same": (field,)}, {"meant": (field,)}):
        with pytest.raises(RequestError, match="cannot be waived"):
            comparability({"A": FACTS, "B": FACTS}, **waiver)


def test_a_field_that_is_none_is_no_waiver() -> None:
    with pytest.raises(RequestError, match="no such field"):
        comparability({"A": FACTS, "B": FACTS}, meant=("colour",))


def test_a_result_says_what_it_is_of() -> None:
    assert facts_of(a_result()) == {
        "model": "SmolLM2-135M",
        "weights": "bfloat16",
        "kv_cache_format": "auto",
        "hardware": "Xeon",
        "context_tokens": "4,096",
        "max_batch": "128",
        "api": "openai.completions",
        "study": "sweep",
        "workload": "random words",
        "prompt_tokens": "64, 512",
        "output_tokens": "16",
        "loop": "closed",
        "levels": "1",
        "cache": "cold",
        "latency_target": "none",
        "definitions": "version 1",
    }


def test_a_machine_elsewhere_is_unknown_and_a_files_name_tells_its_weights() -> None:
    target = dict(a_result().targets[0]) | {
        "url": "http://10.0.0.7:8000",
        "setup": {"model_path": "/models/smol-q4_k_m.gguf"},
    }
    facts = facts_of(a_result(targets=(target,), observations={}))
    assert (facts["hardware"], facts["weights"], facts["max_batch"]) == (None, "Q4_K_M", None)
    assert facts["prompt_tokens"] == "64, 512"  # as planned, where nothing was observed


def test_other_definitions_are_other_figures() -> None:
    other = a_result(definitions=dict(DEFINITIONS) | {"itl": "end_to_end / output_tokens"})
    found = comparability({"A": facts_of(a_result()), "B": facts_of(other)})
    more = a_result(definitions=dict(DEFINITIONS) | {"goodput": "within the target"})
    less = a_result(definitions=dict(DEFINITIONS) | {"goodput": "nearly within it"})
    assert "and 1 more (" in str(facts_of(more)["definitions"])
    assert facts_of(more)["definitions"] != facts_of(less)["definitions"]
    assert "definitions: A version 1, B version 1; itl = end_to_end / output_tokens" in found.refusal()


def test_loads_agree_by_their_workload() -> None:
    """Lengths are drawn, and differ from run to run."""
    plan = {
        "workload": "chat",
        "loop": "open",
        "levels": [1.0, 2.0],
        "slo": "TTFT 500 ms for 0.95 of all",
        "cache": "cold",
    }
    facts = facts_of(a_result(kind="load", plan=plan))
    assert facts["loop"] == "open"
    poisson = facts_of(a_result(kind="load", plan=plan | {"arrivals": "poisson"}))
    assert poisson["loop"] == "open, poisson"
    assert (facts["prompt_tokens"], facts["levels"]) == ("as the workload has them", "1, 2")
    assert facts["latency_target"] == "TTFT 500 ms for 0.95 of all"
    assert facts_of(a_result(kind="load", plan={}))["prompt_tokens"] is None


_VALUES = st.none() | st.sampled_from(["a", "b"])
_SIDES = st.dictionaries(st.sampled_from("ABC"), st.fixed_dictionaries({f.name: _VALUES for f in FIELDS}), min_size=2)


@given(sides=_SIDES)
def test_each_field_is_in_one_place(sides: dict[str, dict[str, str | None]]) -> None:
    found = comparability(sides)
    places = [*found.agreed, *(each.field.name for each in (*found.differing, *found.unknown))]
    assert sorted(places) == sorted(field.name for field in FIELDS)
    for name in found.agreed:
        assert len({facts[name] for facts in sides.values()}) == 1
    for each in found.differing:
        assert str(each) in found.refusal()
