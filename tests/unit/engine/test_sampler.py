"""The pick follows the distribution it was asked for."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.engine.sampler import Sampler
from taximeter.engine.structured import Grammars, Matcher, form_grammar
from taximeter.engine.tokenizer import Tokenizer
from taximeter.errors import ModelFileError
from taximeter.records import FinishReason, Form, FormKind, Sampling
from tests.unit.engine.small_vocabularies import byte_level

LOGITS = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))


def sampler(sampling: Sampling, *, prompt: tuple[int, ...] = (), stop_ids: tuple[int, ...] = ()) -> Sampler:
    return Sampler(sampling, choice=0, penalized=np.unique(prompt).astype(np.int64), stop_ids=stop_ids)


def frequencies(sampling: Sampling, draws: int = 4000) -> dict[int, float]:
    """How often each token is picked by fresh samplers with seeds 0, 1, 2, ..."""
    picks = Counter(sampler(dataclasses.replace(sampling, seed=seed)).pick(LOGITS).token_id for seed in range(draws))
    return {token: count / draws for token, count in picks.items()}


def assert_close(seen: dict[int, float], expected: dict[int, float], draws: int = 4000) -> None:
    """Within four standard deviations of a fair draw; the seeds are fixed, so this is not a gamble."""
    assert set(seen) == set(expected)
    for token, p in expected.items():
        assert abs(seen[token] - p) < 4 * math.sqrt(p * (1 - p) / draws) + 1e-9


def test_temperature_zero_picks_the_best_and_the_first_of_equals() -> None:
    """Greedy is argmax, ties go to the lowest id."""
    assert sampler(Sampling(temperature=0)).pick(LOGITS).token_id == 0
    assert sampler(Sampling(temperature=0)).pick(np.array([1, 5, 5, 0], np.float32)).token_id == 1


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0),
        Sampling(temperature=0, logprobs=2),
        Sampling(temperature=0, logit_bias={3: 1.0}),
        Sampling(temperature=1, seed=1),
        Sampling(temperature=1, seed=1, top_p=0.5),
        Sampling(temperature=1, seed=1, top_k=2),
        Sampling(temperature=1, seed=1, min_p=0.5),
    ],
    ids=str,
)
def test_logits_that_are_no_numbers_are_an_error_and_not_a_token(sampling: Sampling, wrong: float) -> None:
    """Of a damaged model there is no likeliest token, whichever way one is picked."""
    for logits in ([0.0, wrong, 0.0, 0.0], [wrong] * 4):
        with pytest.raises(ModelFileError, match="not numbers"):
            sampler(sampling).pick(np.array(logits, np.float32))
    with pytest.raises(ModelFileError, match="not numbers"):
        sampler(Sampling(temperature=0)).take(-1)


def test_a_token_that_cannot_come_is_no_damage() -> None:
    """A logit of minus infinity rules its token out, as some models' unused ones are."""
    logits = np.array([0.0, -math.inf, 1.0, -math.inf], np.float32)
    for sampling in (Sampling(temperature=0), Sampling(temperature=1, seed=1, top_k=3), Sampling(seed=1, top_p=0.9)):
        assert sampler(sampling).pick(logits).token_id in (0, 2)


@given(st.lists(st.integers(-3, 3), min_size=4, max_size=4), st.integers(0, 2), st.sampled_from([None, 2]))
def test_the_short_way_to_the_best_token_is_the_long_one(
    logits: list[int], min_tokens: int, logprobs: int | None
) -> None:
    """A greedy pick that nothing adjusts takes no copy of the logits, and the same token as with a bias of nothing."""
    plain = Sampling(temperature=0, min_tokens=min_tokens, logprobs=logprobs)
    short, long = (
        sampler(sampling, stop_ids=(1,)) for sampling in (plain, dataclasses.replace(plain, logit_bias={0: 0.0}))
    )
    for _ in range(4):
        scores = np.array(logits, np.float32)
        pick = short.take(int(scores.argmax())) if short.takes_the_best else short.pick(scores)
        assert pick == long.pick(scores)
        assert not long.takes_the_best


def test_neutral_sampling_follows_the_model() -> None:
    """Temperature 1 and nothing else draws from the softmax."""
    assert_close(frequencies(Sampling()), {0: 0.5, 1: 0.3, 2: 0.15, 3: 0.05})


def test_temperature_sharpens() -> None:
    """At one half the probabilities are squared."""
    squares = [0.25, 0.09, 0.0225, 0.0025]
    expected = {token: value / sum(squares) for token, value in enumerate(squares)}
    assert_close(frequencies(Sampling(temperature=0.5)), expected)


def test_top_k_keeps_the_k_best() -> None:
    """And shares their probability out."""
    assert_close(frequencies(Sampling(top_k=2)), {0: 0.5 / 0.8, 1: 0.3 / 0.8})


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    """0.5 + 0.3 reaches 0.7; exactly 0.5 is reached by the first alone."""
    assert_close(frequencies(Sampling(top_p=0.7)), {0: 0.5 / 0.8, 1: 0.3 / 0.8})
    assert set(frequencies(Sampling(top_p=0.49), draws=200)) == {0}


def test_min_p_keeps_what_is_likely_beside_the_best() -> None:
    """0.25 × 0.5 = 0.125: the third stays, the fourth goes."""
    assert_close(frequencies(Sampling(min_p=0.25)), {0: 0.5 / 0.95, 1: 0.3 / 0.95, 2: 0.15 / 0.95})


def test_a_seed_means_one_answer_and_choices_differ() -> None:
    """Same seed, same picks; another choice of the same request draws its own."""

    def picks(choice: int) -> list[int]:
        nothing = np.empty(0, np.int64)
        one = Sampler(Sampling(seed=42), choice=choice, penalized=nothing, stop_ids=())
        return [one.pick(LOGITS).token_id for _ in range(30)]

    assert picks(0) == picks(0)
    assert picks(0) != picks(1)


def test_negative_and_huge_seeds_are_seeds() -> None:
    """Any 64-bit integer will do."""
    for seed in (-1, 2**63 - 1, -(2**63)):
        assert sampler(Sampling(seed=seed)).pick(LOGITS).token_id in range(4)


def test_early_ends_are_ruled_out_until_min_tokens() -> None:
    """The stop token is the best one, and comes exactly when it may."""
    one = sampler(Sampling(temperature=0, min_tokens=2), stop_ids=(0,))
    assert [one.pick(LOGITS).token_id for _ in range(3)] == [1, 1, 0]


def test_logit_bias_is_added() -> None:
    """+100 makes a token certain, -100 rules it out."""
    assert sampler(Sampling(temperature=0, logit_bias={3: 100.0})).pick(LOGITS).token_id == 3
    assert sampler(Sampling(temperature=0, logit_bias={0: -100.0})).pick(LOGITS).token_id == 1


def test_repetition_penalty_counts_the_prompt_too() -> None:
    """Positive scores are divided, negative ones multiplied: both go down."""
    one = sampler(Sampling(temperature=0, repetition_penalty=2.0), prompt=(0,))
    assert one.pick(np.array([1.0, 0.6, 0, 0], np.float32)).token_id == 1
    two = sampler(Sampling(temperature=0, repetition_penalty=2.0), prompt=(0,))
    assert two.pick(np.array([-1.0, -1.5, -9, -9], np.float32)).token_id == 1


def test_frequency_and_presence_count_the_answer_only() -> None:
    """Frequency by how often, presence by whether."""
    logits = np.array([1.0, 0.0, -9, -9], np.float32)
    frequency = sampler(Sampling(temperature=0, frequency_penalty=0.6), prompt=(0, 0, 0))
    assert [frequency.pick(logits).token_id for _ in range(3)] == [0, 0, 1]
    presence = sampler(Sampling(temperature=0, presence_penalty=0.6))
    assert [presence.pick(logits).token_id for _ in range(4)] == [0, 0, 0, 0]


def test_logprobs_are_the_models_own() -> None:
    """Before temperature and bias, natural, best first; 0 alternatives report the pick alone."""
    pick = sampler(Sampling(temperature=0, logprobs=2, logit_bias={2: 100.0})).pick(LOGITS)
    assert pick.token_id == 2
    assert pick.logprob == pytest.approx(math.log(0.15), abs=1e-6)
    assert [token for token, _ in pick.top] == [0, 1]
    assert pick.top[0][1] == pytest.approx(math.log(0.5), abs=1e-6)
    assert sampler(Sampling(temperature=0, logprobs=0)).pick(LOGITS).top == ()
    assert sampler(Sampling(temperature=0)).pick(LOGITS).logprob is None


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=4, max_size=4),
    st.floats(1e-6, 100),
    st.integers(0, 6),
    st.floats(1e-9, 1),
    st.floats(0, 1),
)
def test_whatever_the_settings_some_token_comes_out(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """Extreme logits and settings never leave nothing to pick, and never warn of overflow."""
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=1)
    with np.errstate(invalid="raise", divide="raise"):
        assert sampler(sampling).pick(np.array(logits, np.float32)).token_id in range(4)


TOKENIZER = Tokenizer.from_vocabulary(byte_level())
A, B, C = (TOKENIZER.encode(letter, specials=False)[0] for letter in "abc")
(END,) = TOKENIZER.stop_ids
GRAMMARS = Grammars(TOKENIZER, logits=TOKENIZER.vocab_size)


@functools.cache
def follow(regex: str) -> Matcher:
    grammar = form_grammar(Form(kind=FormKind.REGEX, text=regex, field="field"))
    return GRAMMARS.compile(grammar, field="field")


def formed(regex: str, **sampling: object) -> Sampler:
    return Sampler(
        Sampling(**sampling),
        choice=0,
        penalized=np.array([A], np.int64),
        stop_ids=TOKENIZER.stop_ids,
        matcher=follow(regex).copy(),
    )


def favouring(*tokens: int) -> np.ndarray:
    """Logits that like these tokens, the first most, and none of the others."""
    logits = np.zeros(TOKENIZER.vocab_size, np.float32)
    logits[list(tokens)] = np.arange(len(tokens), 0, -1) * 10
    return logits


SAMPLINGS = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0, 0.01, 1.0, 2.0]), "seed": st.integers(0, 1000)},
    optional={
        "top_k": st.integers(1, 300),
        "top_p": st.sampled_from([0.0, 0.1, 0.9]),
        "min_p": st.sampled_from([0.1, 1.0]),
        "repetition_penalty": st.sampled_from([0.5, 2.0]),
        "presence_penalty": st.just(2.0),
        "frequency_penalty": st.just(-2.0),
        "logit_bias": st.just({C: 100.0, A: -100.0}),
        "min_tokens": st.integers(0, 4),
        "logprobs": st.integers(0, 3),
    },
)


@given(sampling=SAMPLINGS)
@settings(deadline=None)
def test_only_what_the_form_allows_is_picked(sampling: dict[str, object]) -> None:
    """However the distribution is bent and cut, and however much the model prefers something else."""
    chosen = formed("[ab]{3}", **sampling)
    picks = [chosen.pick(favouring(C, END, B)) for _ in range(3)]
    assert {pick.token_id for pick in picks} <= {A, B}
    assert [pick.end for pick in picks] == [None, None, FinishReason.STOP]


def test_log_probabilities_are_the_models_own_whatever_the_form_allows() -> None:
    """What was ruled out stays likely in the model's eyes."""
    pick = formed("b", temperature=0, logprobs=1).pick(favouring(C, B))
    assert pick.token_id == B
    assert pick.top[0][0] == C
    assert pick.logprob == pytest.approx(-10, abs=0.01)


def test_a_form_that_may_end_goes_on_until_the_least_is_reached() -> None:
    """`min_tokens` rules the end out, as far as the form has something else."""
    chosen = formed("ab*", temperature=0, min_tokens=3)
    picks = [chosen.pick(favouring(END, B)) for _ in range(4)]
    assert [pick.token_id for pick in picks] == [A, B, B, END]
    assert [pick.end for pick in picks] == [None, None, None, FinishReason.STOP]


def test_among_what_the_form_allows_the_models_distribution_is_kept() -> None:
    """Two tokens of four, in their own proportion."""
    logits = np.full(TOKENIZER.vocab_size, -50, np.float32)
    logits[[A, B, C]] = np.log([0.3, 0.1, 0.6])
    draws = 2000
    picks = Counter(formed("[ab]", seed=seed).pick(logits).token_id for seed in range(draws))
    assert_close({token: count / draws for token, count in picks.items()}, {A: 0.75, B: 0.25}, draws)
