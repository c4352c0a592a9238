"""The real files give the tokens and the perplexity that llama.cpp gives on the same weights (tests/golden)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engine_harness import GOLDEN, add, core_of, drain

# Where two tokens are nearly equally likely, rounding decides: equality is asked for up to there.
CLEAR_MARGIN = 0.5


def cases(name: str) -> list[dict[str, object]]:
    return json.loads((GOLDEN / "llama_cpp" / f"continuations_{name}.json").read_text())["cases"]


def check(path: Path, name: str) -> int:
    """Compare every continuation; returns how many tokens had to be equal."""
    core = core_of(path)
    everything = cases(name)
    collected = []
    for index, case in enumerate(everything):
        assert isinstance(case["prompt_ids"], list)
        assert isinstance(case["ids"], list)
        collected.append(add(core, str(index), case["prompt_ids"], len(case["ids"])))
    drain(core)
    compared = 0
    for case, one in zip(everything, collected, strict=True):
        ids, margins = case["ids"], case["margins"]
        assert isinstance(ids, list)
        assert isinstance(margins, list)
        clear = next((i for i, margin in enumerate(margins) if margin < CLEAR_MARGIN), len(ids))
        assert one.tokens()[:clear] == ids[:clear]
        compared += clear
    return compared


def test_smollm2_continues_as_llama_cpp_does(smollm2_path: Path) -> None:
    """Chat prompts, greedy, as long as the margins are clear."""
    assert check(smollm2_path, "smollm2") > 60


def test_gemma3_continues_as_llama_cpp_does(gemma3_path: Path) -> None:
    """Plain prompts, greedy, one of them longer than the sliding window of 512."""
    assert max(len(case["prompt_ids"]) for case in cases("gemma3")) > 512  # type: ignore[arg-type]
    assert check(gemma3_path, "gemma3") > 60


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_no_golden_case_is_empty(name: str) -> None:
    """A comparison of nothing would pass too."""
    assert len(cases(name)) >= 6
