"""Batching, chunking, prefix hits and preemption give bit-equal tokens under greedy decoding."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from taximeter.engine.core import EngineOptions
from taximeter.engine.kv_cache import BLOCK_TOKENS
from taximeter.records import Work
from tests.engine_harness import add, core_of, drain, loaded, preempt_youngest

ANSWER_TOKENS = 8
TEXTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived a",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Water boils at 100 degrees Celsius. Ice melts at",
    "A list of primes: 2, 3, 5, 7, 11, 13, 17,",
    "The meter starts to run when the passenger sits down. " * 7 + "When the ride is over,",
    "The meter starts to run when the passenger sits down. " * 7 + "When the passenger sits,",
    "Hello",
)


def prompts(path: Path) -> list[list[int]]:
    tokenizer = loaded(path)[1]
    return [tokenizer.encode_prompt(text) for text in TEXTS]


@pytest.fixture(scope="module")
def plain_answers(smollm2_path: Path) -> list[list[int]]:
    """Each prompt alone, whole, in an engine of its own: nothing shared, nothing cut."""
    answers: list[list[int]] = []
    for prompt in prompts(smollm2_path):
        core = core_of(smollm2_path, EngineOptions(step_tokens=None, prefix_caching=False))
        collected = add(core, "r", prompt, ANSWER_TOKENS)
        drain(core)
        answers.append(collected.tokens())
    assert len({tuple(answer) for answer in answers}) > 5, "answers this alike would prove nothing"
    return answers


@pytest.mark.parametrize(
    ("step_tokens", "prefix_caching", "preempting", "batch"),
    list(itertools.product((64, 512, None), (True, False), (True, False), (1, 8))),
)
def test_every_combination_gives_the_same_tokens(
    smollm2_path: Path,
    plain_answers: list[list[int]],
    step_tokens: int | None,
    prefix_caching: bool,
    preempting: bool,
    batch: int,
) -> None:
    """{budget 64, 512, none} × {prefix cache} × {forced preemption} × {batch 1, 8}: identical token ids."""
    core = core_of(smollm2_path, EngineOptions(step_tokens=step_tokens, prefix_caching=prefix_caching))

    def preempt_sometimes(step: int) -> None:
        if preempting and step % 3 == 2:
            preempt_youngest(core)

    answers: list[list[int]] = []
    works: list[Work] = []
    everything = prompts(smollm2_path)
    for start in range(0, len(everything), batch):
        group = everything[start : start + batch]
        collected = [add(core, str(index), prompt, ANSWER_TOKENS) for index, prompt in enumerate(group)]
        drain(core, preempt_sometimes)
        answers += [one.tokens() for one in collected]
        works += [one.work for one in collected]
    assert answers == plain_answers
    # The levers were really pulled, or the equality above would prove nothing.
    assert (sum(work.preemptions for work in works) > 0) == preempting
    if not prefix_caching:  # with it, little or nothing is lost
        assert (sum(work.recomputed_tokens for work in works) > 0) == preempting
    if batch == 1:
        assert (sum(work.reused_tokens for work in works) > 0) == prefix_caching


def test_a_pool_that_is_too_small_preempts_and_changes_nothing(
    smollm2_path: Path, plain_answers: list[list[int]]
) -> None:
    """Eight requests in memory for less than half of them: real preemptions, the same tokens."""
    core = core_of(smollm2_path, EngineOptions(kv_cache_tokens=256, block_tokens=16, step_tokens=128))
    collected = [add(core, str(index), prompt, ANSWER_TOKENS) for index, prompt in enumerate(prompts(smollm2_path))]
    drain(core)
    assert [one.tokens() for one in collected] == plain_answers
    assert sum(one.work.preemptions for one in collected) > 0


def test_a_second_identical_prompt_is_read_from_the_cache(smollm2_path: Path) -> None:
    """Its receipt will show the cached tokens, and the answer is the same."""
    core = core_of(smollm2_path)
    prompt = prompts(smollm2_path)[5]
    first = add(core, "a", prompt, ANSWER_TOKENS)
    drain(core)
    second = add(core, "b", prompt, ANSWER_TOKENS)
    drain(core)
    hit = len(prompt) - 1
    assert hit % BLOCK_TOKENS, "the last block should be no whole one"
    assert second.tokens() == first.tokens()
    assert first.served.usage.input_cache_read_tokens == 0
    assert second.served.usage.input_cache_read_tokens == hit > 0
    assert second.served.usage.input_fresh_tokens == len(prompt) - hit
