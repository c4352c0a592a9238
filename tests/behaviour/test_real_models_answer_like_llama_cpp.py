"""The real files give the tokens and the perplexity that llama.cpp gives on the same weights (tests/golden)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from taximeter.engine import kernels
from tests.engine_harness import GOLDEN, add, all_logits, core_of, drain, loaded

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


def likelihoods(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / "llama_cpp" / "likelihoods.json").read_text())[name]


def nlls_of(path: Path, golden: dict[str, Any]) -> npt.NDArray[np.float64]:
    """-ln p of each token of the fixed text after the first."""
    model, tokenizer, _template = loaded(path)
    ids = np.array(golden["ids"])
    assert tokenizer.encode_prompt((GOLDEN / "llama_cpp" / "text.txt").read_text()) == golden["ids"]
    nlls: list[float] = []
    for logits, target in zip(all_logits(model, golden["ids"], chunk=512), ids[1:], strict=False):
        wide = logits.astype(np.float64) - logits.max()
        nlls.append(float(np.log(np.exp(wide).sum()) - wide[target]))
    return np.array(nlls)


@pytest.mark.timeout(900)  # numpy, on a machine that runs other tests too
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_likelihood_of_a_fixed_text_by_the_reference(name: str, request: pytest.FixtureRequest) -> None:
    """llama.cpp's on the same weights in float32, token by token."""
    golden = likelihoods(name)
    with kernels.use_level("reference"):
        nlls = nlls_of(request.getfixturevalue(f"{name}_path"), golden)
    assert math.exp(nlls.mean()) == pytest.approx(golden["perplexity_float32"], rel=0.001)
    np.testing.assert_allclose(nlls, golden["nll_float32"], atol=0.05)


@pytest.mark.parametrize("level", kernels.levels()[2:])  # the portable one takes half a minute
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_likelihood_of_a_fixed_text_by_native_code(name: str, level: str, request: pytest.FixtureRequest) -> None:
    """Activations are rounded to 8 bits, which moves single tokens; not the mean, and none of them far."""
    golden = likelihoods(name)
    with kernels.use_level(level):
        nlls = nlls_of(request.getfixturevalue(f"{name}_path"), golden)
    moved = nlls - np.array(golden["nll_float32"])
    assert abs(moved.mean()) < 3 * moved.std() / math.sqrt(len(moved)), "a bias, and not rounding"
    assert np.sqrt(np.mean(moved**2)) < 0.1
    assert math.exp(nlls.mean()) == pytest.approx(golden["perplexity_float32"], rel=0.005)


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_no_golden_case_is_empty(name: str) -> None:
    """A comparison of nothing would pass too."""
    assert len(cases(name)) >= 6
