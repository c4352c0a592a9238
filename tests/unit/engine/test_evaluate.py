"""The definitions behind `taximeter eval`, against values worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from taximeter.engine.evaluate import (
    Mean,
    Passage,
    Perplexity,
    divergences,
    kl_divergence,
    log_softmax,
    perplexity,
    positions,
    wilson_interval,
)
from taximeter.errors import InvariantBroken, RequestError

F32 = npt.NDArray[np.float32]


class Table:
    """A model whose prediction depends on the last token only: row t is the distribution after token t. `rows` is how
    many positions it gives at a time."""

    def __init__(self, probabilities: Sequence[Sequence[float]], *, rows: int = 3) -> None:
        self._logits = np.log(np.array(probabilities, np.float64)).astype(np.float32)
        self._rows = rows
        self.vocab_size = self._logits.shape[1]
        self.reads: list[tuple[tuple[int, ...], int]] = []

    def logits(self, token_ids: Sequence[int], wanted_from: int) -> Iterator[F32]:
        self.reads.append((tuple(token_ids), wanted_from))
        for start in range(wanted_from, len(token_ids), self._rows):
            yield self._logits[list(token_ids[start : start + self._rows])]


def passage(*token_ids: int, context_tokens: int = 100, stride_tokens: int = 50) -> Passage:
    return Passage(token_ids=token_ids, context_tokens=context_tokens, stride_tokens=stride_tokens)


HALF = Table([[0.5, 0.25, 0.25]] * 3)
OTHER_HALF = Table([[0.25, 0.5, 0.25]] * 3)


def test_a_model_that_knows_nothing_is_as_perplexed_as_its_vocabulary_is_large() -> None:
    """Seven equally likely tokens: perplexity 7, without any error."""
    found = perplexity(Table([[1 / 7] * 7] * 7), passage(0, 1, 2, 3, 4, 5, 6))
    assert found.tokens == 6
    assert found.nll_nats.value == pytest.approx(math.log(7), rel=1e-7)
    assert found.perplexity.value == pytest.approx(7, rel=1e-6)
    assert found.perplexity.standard_error == pytest.approx(0, abs=1e-6)


def test_perplexity_is_the_geometric_mean_of_the_surprises() -> None:
    """After token 0 come 0, 1, 0, 2 with 1/2, 1/4, 1/2, 1/4: -ln p is ln 2, ln 4, ln 2, ln 4, and the perplexity
    2^1.5. Its standard error: the deviation of (1, 2, 1, 2) ln 2 with n - 1, over the root of 4."""
    found = perplexity(HALF, passage(0, 0, 1, 0, 2))
    assert found.tokens == 4
    assert found.nll_nats.value == pytest.approx(1.5 * math.log(2))
    assert found.perplexity.value == pytest.approx(2**1.5)
    standard_error = math.log(2) * math.sqrt(4 * 0.25 / 3) / 2
    assert found.nll_nats.standard_error == pytest.approx(standard_error)
    assert found.perplexity.standard_error == pytest.approx(2**1.5 * standard_error)


def test_the_divergence_of_two_known_distributions() -> None:
    """KL((1/2, 1/4, 1/4) from (1/4, 1/2, 1/4)) = 1/2 ln 2 - 1/4 ln 2; from certain to uniform over 4 it is ln 4."""
    [found] = divergences(HALF, [OTHER_HALF], passage(0, 0, 1, 0, 2))
    assert found.kl_nats.value == pytest.approx(0.25 * math.log(2))
    for percentile in (found.kl_median_nats, found.kl_p90_nats, found.kl_p99_nats, found.kl_max_nats):
        assert percentile == pytest.approx(0.25 * math.log(2))
    certain, uniform = np.array([[200.0, 0, 0, 0]], np.float32), np.zeros((1, 4), np.float32)
    assert kl_divergence(log_softmax(certain), log_softmax(uniform))[0] == pytest.approx(math.log(4))
    assert kl_divergence(log_softmax(uniform), log_softmax(certain))[0] == pytest.approx(150 - math.log(4))


def test_everything_that_a_divergence_says() -> None:
    """Four positions, worked out one by one: agreement at three, and -ln p off by ±ln 2 at three of them."""
    a = Table([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]])
    b = Table([[0.25, 0.5, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]])
    [found] = divergences(a, [b], passage(0, 1, 1, 2, 2))
    # After 0 comes 1: A gives it 1/4, B 1/2. After 1 and 2 they agree.
    assert found.tokens == 4
    assert found.same_top == 3 / 4
    assert found.kl_nats.value == pytest.approx(0.25 * math.log(2) / 4)
    assert found.kl_median_nats == pytest.approx(0, abs=1e-15)
    assert found.kl_max_nats == pytest.approx(0.25 * math.log(2))
    assert found.kl_p90_nats == pytest.approx(0.7 * 0.25 * math.log(2))  # linear: at 0.9 × 3 = 2.7 of (0, 0, 0, most)
    assert found.rms_probability_change == pytest.approx(math.sqrt((1 / 4) ** 2 / 4))
    assert found.nll_change_nats.value == pytest.approx(-math.log(2) / 4)
    # A: 1/4, 1/2, 1/4, 1/2. B: 1/2, 1/2, 1/4, 1/2.
    assert found.a.perplexity.value == pytest.approx(2 ** (6 / 4))
    assert found.b.perplexity.value == pytest.approx(2 ** (5 / 4))
    assert (found.same_top_low, found.same_top_high) == wilson_interval(3, 4)


def test_two_are_compared_at_the_same_positions() -> None:
    """One is 1/4 ln 2 from the standard and misses its likeliest token after 0, the other everywhere: three of four
    positions differ, and the error is that of those differences, not of two means."""
    standard = Table([[0.5, 0.25, 0.25]] * 3)
    seldom = Table([[0.25, 0.5, 0.25], [0.5, 0.25, 0.25], [0.5, 0.25, 0.25]])
    always = Table([[0.25, 0.5, 0.25]] * 3)
    one, other = positions(standard, [seldom, always], passage(0, 1, 1, 2, 2))
    found = one.less(other)
    assert found.kl_nats.value == pytest.approx(-0.25 * math.log(2) * 3 / 4)
    assert found.kl_nats.standard_error == pytest.approx(0.25 * math.log(2) * math.sqrt(3 / 4 * 1 / 4 * 4 / 3) / 2)
    assert found.same_top.value == pytest.approx(3 / 4)
    assert one.less(one).kl_nats == Mean(value=0, standard_error=0)
    assert [one.divergence(), other.divergence()] == divergences(standard, [seldom, always], passage(0, 1, 1, 2, 2))


def test_several_are_compared_in_one_reading() -> None:
    """Each gets what it would alone, and the standard is read once."""
    standard = Table([[0.5, 0.25, 0.25]] * 3)
    text = passage(0, 1, 2, 0, 1, 2, 0)
    both = divergences(standard, [OTHER_HALF, HALF], text)
    assert len(standard.reads) == 1
    assert both == [*divergences(HALF, [OTHER_HALF], text), *divergences(HALF, [HALF], text)]
    assert both[1].kl_max_nats == 0
    assert both[1].same_top == 1


def test_the_interval_of_a_share() -> None:
    """8 of 10: 0.4902 to 0.9433, as published; none of 10 and all of 10 end at 0 and 1, and are not certain."""
    low, high = wilson_interval(8, 10)
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)
    assert wilson_interval(0, 10) == (0, pytest.approx(0.2775, abs=1e-4))
    assert wilson_interval(10, 10) == (pytest.approx(0.7225, abs=1e-4), pytest.approx(1, abs=1e-12))


def test_a_mean_and_its_error() -> None:
    """1, 2, 3, 4: 2.5, and a deviation of sqrt(5/3) over the root of 4."""
    mean = Mean.of(np.array([1.0, 2, 3, 4]))
    assert (mean.value, mean.standard_error) == (2.5, pytest.approx(math.sqrt(5 / 3) / 2))


def test_windows_as_they_are_read() -> None:
    """Ten tokens, four at a time, every third: without a prefix the first token is never predicted."""
    model = Table([[0.1] * 10] * 10)
    perplexity(model, passage(*range(10), context_tokens=4, stride_tokens=3))
    assert model.reads == [((0, 1, 2), 0), ((3, 4, 5), 0), ((6, 7, 8), 0)]
    model.reads.clear()
    perplexity(model, passage(*range(10), context_tokens=4, stride_tokens=1))
    assert model.reads[:3] == [((0, 1, 2), 0), ((1, 2, 3), 2), ((2, 3, 4), 2)]
    model.reads.clear()
    text = Passage(token_ids=tuple(range(10)), prefix=(9,), context_tokens=5, stride_tokens=4)
    assert perplexity(model, text).tokens == 10
    assert model.reads == [((9, 0, 1, 2), 0), ((9, 4, 5, 6), 0), ((9, 8), 0)]


@given(data=st.data(), tokens=st.integers(3, 60), prefixed=st.booleans())
def test_every_token_is_judged_once_with_the_context_it_was_promised(
    data: st.DataObject, tokens: int, prefixed: bool
) -> None:
    """Whatever the context and the stride."""
    context_tokens = data.draw(st.integers(2 + prefixed, 70))
    stride_tokens = data.draw(st.integers(1, context_tokens - 1))
    text = Passage(
        token_ids=tuple(range(tokens)),
        prefix=(99,) if prefixed else (),
        context_tokens=context_tokens,
        stride_tokens=stride_tokens,
    )
    judged: list[int] = []
    for window in text.windows():
        assert len(window.read) <= context_tokens
        own = window.read[prefixed:]
        assert own == tuple(range(own[0], own[0] + len(own))) if own else prefixed
        first = len(judged) + (not prefixed)
        assert window.targets.tolist() == list(range(first, first + len(window.targets)))
        assert window.wanted_from + len(window.targets) == len(window.read)
        if own and own[0] > 0:  # not the first window
            assert window.wanted_from + 1 >= context_tokens - stride_tokens
        judged.extend(window.targets.tolist())
    assert judged == list(range(not prefixed, tokens))
    assert len(judged) == text.predicted_tokens


@pytest.mark.parametrize(
    ("token_ids", "context_tokens", "stride_tokens", "said"),
    [
        ((1, 2, 3), 1, 1, "no room to predict"),
        ((1, 2, 3), 4, 4, "does not fit windows"),
        ((1, 2, 3), 4, 0, "does not fit windows"),
        ((1, 2), 4, 2, "too few"),
        ((), 4, 2, "too few"),
    ],
)
def test_impossible_windows_are_refused(
    token_ids: tuple[int, ...], context_tokens: int, stride_tokens: int, said: str
) -> None:
    """With what is wrong about them."""
    with pytest.raises(RequestError, match=said):
        passage(*token_ids, context_tokens=context_tokens, stride_tokens=stride_tokens)


def test_progress_comes_to_its_end() -> None:
    """Positions judged, of all of them."""
    told: list[tuple[int, int]] = []
    text = passage(*[0] * 9, context_tokens=5, stride_tokens=4)
    perplexity(HALF, text, lambda done, total: told.append((done, total)))
    assert told == [(3, 8), (4, 8), (7, 8), (8, 8)]


def test_a_model_that_computes_no_numbers_has_no_figures() -> None:
    """NaN and infinity end the evaluation: neither may become somebody's perplexity."""
    for wrong in (math.nan, math.inf, -math.inf):
        with pytest.raises(InvariantBroken, match="not numbers"):
            log_softmax(np.full((1, 3), wrong, np.float32))


def test_a_source_that_stops_early_is_noticed() -> None:
    """A mean over fewer positions than were wanted would look like any other."""

    class Short(Table):
        def logits(self, token_ids: Sequence[int], wanted_from: int) -> Iterator[F32]:
            return super().logits(token_ids[:-1], wanted_from)

    with pytest.raises(InvariantBroken, match="8 rows of logits were wanted, and 7 came"):
        perplexity(Short([[0.5, 0.5]] * 2), passage(*[0] * 9))


_LOGITS = arrays(np.float32, st.tuples(st.integers(1, 4), st.just(5)), elements=st.floats(-80, 80, width=32))


@given(_LOGITS, st.randoms())
def test_a_divergence_is_never_negative_and_zero_for_equals(logits: F32, chance: object) -> None:
    """Of a distribution from itself it is exactly 0, also when all logits are shifted by what float32 holds exactly."""
    del chance
    log_p = log_softmax(logits)
    assert (kl_divergence(log_p, log_p) == 0).all()
    other = np.roll(logits, 1, axis=1)
    assert (kl_divergence(log_p, log_softmax(other)) >= 0).all()


@given(_LOGITS, _LOGITS)
def test_a_divergence_is_zero_only_for_equals(one: F32, other: F32) -> None:
    """What differs in probability by more than rounding diverges, by at least half the square of the sum of
    differences (Pinsker's inequality)."""
    rows = min(len(one), len(other))
    log_p, log_q = log_softmax(one[:rows]), log_softmax(other[:rows])
    distance = np.abs(np.exp(log_p) - np.exp(log_q)).sum(axis=1)
    assert (kl_divergence(log_p, log_q) >= 0.5 * distance**2 * (1 - 1e-9) - 1e-30).all()


@given(_LOGITS)
def test_probabilities_sum_to_one(logits: F32) -> None:
    """To float64's precision, whatever the logits' size."""
    np.testing.assert_allclose(np.exp(log_softmax(logits)).sum(axis=1), 1, rtol=1e-14)


def test_close_distributions_do_not_drown_in_rounding() -> None:
    """Logits a millionth apart: the divergence is half the variance of the difference, 5e-13 × p (1 - p)."""
    step = 2.0**-20
    log_p, log_q = (log_softmax(np.array([[x, 0.0]], np.float32)) for x in (0.0, step))
    assert kl_divergence(log_p, log_q)[0] == pytest.approx(0.5 * step**2 * 0.25, rel=1e-5)


def test_a_perplexity_needs_no_model() -> None:
    """From surprises that come from elsewhere: ln 2 and ln 8 are a perplexity of 4."""
    assert Perplexity.of(np.log([2.0, 8.0])).perplexity.value == pytest.approx(4)
