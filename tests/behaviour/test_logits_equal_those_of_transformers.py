"""Tiny random models give the logits and the greedy answers that transformers gives (see tests/golden/README.md)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from taximeter.engine import kernels
from taximeter.engine.core import EngineOptions
from tests.engine_harness import TINY_MODELS, add, all_logits, core_of, drain, loaded

FORMS = [form for folder in TINY_MODELS for form in (folder, folder / "model.gguf")]


@pytest.fixture(params=kernels.levels())
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every arithmetic that this machine has, the numpy reference among them."""
    with kernels.use_level(request.param):
        yield request.param


def expected_of(form: Path) -> dict[str, np.ndarray]:
    folder = form if form.is_dir() else form.parent
    with np.load(folder / "expected.npz") as golden:
        return dict(golden)


def name_of(form: Path) -> str:
    return f"{form.name}-folder" if form.is_dir() else f"{form.parent.name}-gguf"


@pytest.mark.parametrize("form", FORMS, ids=name_of)
@pytest.mark.parametrize("chunk", [None, 7])
def test_logits_at_every_position(form: Path, chunk: int | None, level: str) -> None:
    """Also past the sliding window, also when the prompt is cut, from either kind of file, at every CPU level."""
    expected = expected_of(form)
    model = loaded(form)[0]
    for index in range(3):
        logits = all_logits(model, expected[f"prompt_{index}"].tolist(), chunk=chunk)
        np.testing.assert_allclose(logits, expected[f"logits_{index}"], rtol=2e-4, atol=2e-4, err_msg=level)


@pytest.mark.parametrize("form", FORMS, ids=name_of)
def test_greedy_answers(form: Path, level: str) -> None:
    """24 tokens on from each prompt, all three prompts in one engine, at every CPU level.

    With a cache in float32, as transformers had it: rounding keys to bfloat16 moves these logits by more than the
    smallest lead (0.01) of a likeliest token.
    """
    expected = expected_of(form)
    core = core_of(form, EngineOptions(kv_format="f32"))
    collected = [add(core, str(index), expected[f"prompt_{index}"].tolist(), 24) for index in range(3)]
    drain(core)
    for index, one in enumerate(collected):
        assert one.tokens() == expected[f"greedy_{index}"].tolist(), level
