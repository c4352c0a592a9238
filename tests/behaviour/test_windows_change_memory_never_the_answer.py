"""Layers that see a window keep only what it reaches, and every answer is what it was when they kept everything."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from taximeter.engine import kernels
from taximeter.engine.core import EngineCore, EngineOptions
from taximeter.engine.kv_cache import blocks_at_once
from taximeter.records import Sampling
from tests.engine_harness import GOLDEN, Collected, add, all_logits, core_of, drain, loaded, preempt_youngest

GEMMA, MISTRAL = GOLDEN / "tiny_gemma3", GOLDEN / "tiny_mistral"  # one layer of seven sees everything; none does
WINDOW, BLOCK = 16, 16  # of both models, of the cache
ANSWER_TOKENS = 18
LOGPROBS = Sampling(temperature=0, ignore_eos=True, logprobs=1)
# Room for less than half of the prompts, and a cache in float32, like that of the logits to compare with.
TIGHT = EngineOptions(kv_cache_tokens=512, block_tokens=BLOCK, kv_format="f32")

Answer = list[tuple[int, float]]


def prompts() -> list[list[int]]:
    """From shorter than the window to many times as long; some go on from the same beginning."""
    random = np.random.default_rng(5)
    shared = random.integers(6, 260, 100).tolist()
    own = [random.integers(6, 260, length).tolist() for length in (3, 150, 40, 75, 17, 60, 9, 200)]
    return [own[0], own[1], shared + own[2], shared + own[3], own[4], shared + own[5], shared[:50] + own[6], own[7]]


def answer_of(collected: Collected) -> Answer:
    """Tokens, and their log probabilities to the bit."""
    picked = [entry.picked for event in collected.events for entry in getattr(event, "logprobs", ())]
    return [(entry.token_id, entry.logprob) for entry in picked]


@functools.cache
def plain_answers(path: Path, level: str) -> list[Answer]:
    """Each prompt alone, whole, in memory for all of it."""
    answers: list[Answer] = []
    with kernels.use_level(level):
        for prompt in prompts():
            core = core_of(path, replace(TIGHT, kv_cache_tokens=None, step_tokens=None, prefix_caching=False))
            collected = add(core, "r", prompt, ANSWER_TOKENS, LOGPROBS)
            drain(core)
            answers.append(answer_of(collected))
    return answers


def ask(core: EngineCore, batch: int, *, preempting: bool) -> list[Collected]:
    """All prompts, `batch` at a time; with memory taken from the youngest now and then."""

    def preempt_sometimes(step: int) -> None:
        if preempting and step in {3, 9, 40, 90}:
            preempt_youngest(core)

    everything: list[Collected] = []
    asked = prompts()
    for start in range(0, len(asked), batch):
        some = [add(core, str(i), prompt, ANSWER_TOKENS, LOGPROBS) for i, prompt in enumerate(asked[start:][:batch])]
        drain(core, preempt_sometimes)
        everything += some
    return everything


def check(path: Path, options: EngineOptions, batch: int, *, preempting: bool) -> None:
    core = core_of(path, options)
    collected = ask(core, batch, preempting=preempting)
    assert [answer_of(one) for one in collected] == plain_answers(path, kernels.level())
    # The levers were really pulled, or the equality above would prove nothing.
    works = [one.work for one in collected]
    if batch == 1 or preempting:
        assert (sum(work.preemptions for work in works) > 0) == preempting
        if not options.prefix_caching:  # with it, little or nothing is lost
            assert (sum(work.recomputed_tokens for work in works) > 0) == preempting
    if batch == 1:
        assert (sum(work.reused_tokens for work in works) > 0) == options.prefix_caching


@pytest.mark.parametrize("path", [GEMMA, MISTRAL], ids=lambda path: path.name)
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("preempting", [False, True])
@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("step_tokens", [7, 64, None])
def test_every_combination_gives_the_same_answers(
    path: Path, batch: int, preempting: bool, prefix_caching: bool, step_tokens: int | None
) -> None:
    """{budget 7, 64, none} × {prefix cache} × {forced preemption} × {batch 1, 8}: identical to the bit."""
    options = replace(TIGHT, step_tokens=step_tokens, prefix_caching=prefix_caching)
    check(path, options, batch, preempting=preempting)


@pytest.mark.parametrize("path", [GEMMA, MISTRAL], ids=lambda path: path.name)
@pytest.mark.parametrize("level", kernels.levels())
def test_every_level_gives_the_same_answers(path: Path, level: str) -> None:
    """All levers at once, whichever arithmetic reads the memory."""
    with kernels.use_level(level):
        check(path, replace(TIGHT, step_tokens=30), 8, preempting=True)


@pytest.mark.parametrize("path", [GEMMA, MISTRAL], ids=lambda path: path.name)
def test_the_plain_answers_are_those_of_a_memory_that_keeps_everything(path: Path) -> None:
    """Greedy tokens, checked against logits at every position, for which nothing was ever let go of."""
    for prompt, answer in zip(prompts(), plain_answers(path, kernels.level()), strict=True):
        tokens = [token for token, _ in answer]
        logits = all_logits(loaded(path)[0], prompt + tokens[:-1])
        assert logits[len(prompt) - 1 :].argmax(axis=1).tolist() == tokens


@pytest.mark.parametrize("path", [GEMMA, MISTRAL], ids=lambda path: path.name)
def test_memory_is_given_back_while_a_sequence_grows(path: Path) -> None:
    """447 tokens, 32 at a time: layers that slide never hold more blocks than a window and a step, and what they gave
    back is used again; the receipt's peak counts the blocks of all groups."""
    core = core_of(path, replace(TIGHT, step_tokens=32))
    sliding, *everything = core.kv.pools[::-1]
    at_most = blocks_at_once(WINDOW - 1 + 32, BLOCK)
    collected = add(core, "r", np.random.default_rng(1).integers(6, 260, 430).tolist(), 18)
    most = 0
    while core.has_work:
        core.step()
        most = max(most, core.audit().used)
    whole = 28 * len(everything)
    assert collected.work.peak_kv_blocks <= whole + at_most
    assert most <= whole + at_most
    assert [pool.touched_blocks for pool in everything] == [28] * len(everything)
    assert sliding.touched_blocks <= at_most + 4  # four blocks, two windows, are the least that stays findable


def test_a_prompt_longer_than_the_memory_of_its_layers() -> None:
    """Where all layers slide, memory for 128 tokens answers a prompt of 400."""
    prompt = np.random.default_rng(2).integers(6, 260, 400).tolist()
    options = EngineOptions(kv_cache_tokens=128, block_tokens=BLOCK, step_tokens=32, kv_format="f32")
    small, large = core_of(MISTRAL, options), core_of(MISTRAL, replace(options, kv_cache_tokens=None))
    assert small.limit_tokens == large.limit_tokens == small.config.context_length_tokens
    answers: list[Answer] = []
    for core in (small, large):
        collected = add(core, "r", prompt, ANSWER_TOKENS, LOGPROBS)
        drain(core)
        answers.append(answer_of(collected))
    assert answers[0] == answers[1]
