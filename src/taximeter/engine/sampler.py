"""Picks the next token of one sequence from its logits.

In this order: tokens that may not come (yet, or by the form of the answer) are ruled out, biases and penalties are
applied, and then, unless the pick is greedy, temperature, top-k, top-p and min-p cut the distribution down before one
number from the sequence's own generator decides. Owns: that order, and what the sequence's next pick depends on.
Refuses to know: batches, text, requests.

Log-probabilities are of the model's own distribution, before all of this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from taximeter.engine.structured import Matcher
from taximeter.errors import ModelFileError
from taximeter.records import FinishReason, Sampling

if TYPE_CHECKING:
    from numpy.random import Generator

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
_SEED_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """The token picked, and why none can follow it by the form of the answer, if so. `logprob` and `top` (token id,
    logprob; best first) are given when logprobs were asked for."""

    token_id: int
    end: FinishReason | None = None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """The sampling state of one sequence: penalties need to know what was said, and the generator goes on where it
    was, so that being preempted and computed again changes nothing."""

    def __init__(
        self,
        sampling: Sampling,
        *,
        choice: int,
        penalized: I64,
        stop_ids: Collection[int],
        matcher: Matcher | None = None,
    ) -> None:
        """`penalized` are the prompt's distinct tokens, for the repetition penalty; any array when there is none.
        `matcher` is this sequence's own, for an answer of a prescribed form."""
        self._sampling = sampling
        self._matcher = matcher
        self._forbidden_early = np.array(sorted(stop_ids), np.int64)
        self._bias_ids = np.fromiter(sampling.logit_bias.keys(), np.int64, len(sampling.logit_bias))
        self._bias = np.fromiter(sampling.logit_bias.values(), np.float64, len(sampling.logit_bias))
        self._penalized = penalized
        self._is_greedy = (
            matcher is None
            and sampling.temperature == 0
            and not sampling.logit_bias
            and sampling.repetition_penalty == 1
            and not sampling.frequency_penalty
            and not sampling.presence_penalty
        )
        self._picked = 0
        self._said: Counter[int] = Counter()
        self._seed = None if sampling.seed is None else [sampling.seed & _SEED_MASK, choice]

    @cached_property
    def _generator(self) -> Generator:
        """Made for the first token that is drawn: greedy answers, and a start, go without all of numpy's."""
        from numpy.random import PCG64, Generator  # noqa: PLC0415

        return Generator(PCG64(self._seed))

    @property
    def takes_the_best(self) -> bool:
        """Whether the next token is the one with the highest logit, of equal ones the lowest, and no more than that is
        asked of the logits: then `take` it, and nobody need see a vocabulary of them."""
        return self._is_greedy_now and self._sampling.logprobs is None

    @property
    def _is_greedy_now(self) -> bool:
        return self._is_greedy and self._picked >= self._sampling.min_tokens

    def take(self, best: int) -> Pick:
        """The next token where the sampler `takes_the_best`, as `Model.best` has it. Raises as `pick`."""
        if best < 0:
            raise _no_numbers()
        return Pick(token_id=best, end=self._said_one(best))

    def pick(self, logits: F32) -> Pick:
        """Pick from `logits` (vocabulary,), which are left as they are. Raises ModelFileError where they are no numbers
        that could be compared."""
        # The best is found without the copy of a vocabulary of logits that adjusting them would take.
        token_id = _greatest(logits) if self._is_greedy_now else self._choose(logits)
        end = self._said_one(token_id)
        if self._sampling.logprobs is None:
            return Pick(token_id=token_id, end=end)
        return self._with_logprobs(token_id, end, logits)

    def _said_one(self, token_id: int) -> FinishReason | None:
        self._said[token_id] += 1
        self._picked += 1
        return None if self._matcher is None else self._matcher.advance(token_id)

    def _choose(self, logits: F32) -> int:
        possible = logits if self._matcher is None else np.where(self._matcher.allowed(), logits, np.float32(-np.inf))
        scores = self._adjusted(possible.astype(np.float64))
        return _greatest(scores) if self._sampling.temperature == 0 else self._draw(scores)

    def _adjusted(self, scores: F64) -> F64:
        sampling = self._sampling
        if self._picked < sampling.min_tokens:  # a form that leaves nothing else has ended the answer before
            scores[self._forbidden_early] = -np.inf
        if len(self._bias_ids):
            scores[self._bias_ids] += self._bias
        if sampling.repetition_penalty != 1:
            seen = np.union1d(self._penalized, self._said_ids())
            penalty = sampling.repetition_penalty
            scores[seen] = np.where(scores[seen] > 0, scores[seen] / penalty, scores[seen] * penalty)
        if self._said and (sampling.frequency_penalty or sampling.presence_penalty):
            times = np.fromiter(self._said.values(), np.float64, len(self._said))
            scores[self._said_ids()] -= sampling.frequency_penalty * times + sampling.presence_penalty
        return scores

    def _said_ids(self) -> I64:
        return np.fromiter(self._said, np.int64, len(self._said))

    def _draw(self, scores: F64) -> int:
        """One token of the distribution that is left after the cuts.

        Nothing is sorted that need not be: a vocabulary has up to a quarter of a million entries, a nucleus a few
        hundred. Whatever the cuts, the order of the candidates is fixed, so a seed means one answer.
        """
        sampling = self._sampling
        greatest: np.float64 = scores[_greatest(scores)]  # the cuts leave it
        ids: I64 | slice = slice(None)  # all of them, without the copy that a list of all would make
        if 0 < sampling.top_k < len(scores):
            ids = _best(scores, sampling.top_k)
        elif self._matcher is not None:
            ids = np.flatnonzero(scores > -np.inf)  # often a handful
        weights: F64 = scores[ids] - greatest
        weights /= sampling.temperature
        np.exp(weights, out=weights)  # in place: arrays of this size are new pages, and those cost more than the exp
        weights /= weights.sum()
        if sampling.top_p < 1:
            nucleus = _nucleus(weights, sampling.top_p)
            ids, weights = _at(ids, nucleus), weights[nucleus]
        if sampling.min_p > 0:
            likely = np.flatnonzero(weights >= sampling.min_p * weights.max())
            ids, weights = _at(ids, likely), weights[likely]
        cumulative: F64 = weights.cumsum()
        total = float(cumulative[-1])
        drawn = int(np.searchsorted(cumulative, self._generator.random() * total, side="right"))
        last = int(np.searchsorted(cumulative, total))  # beyond it are only those that cannot come
        place = min(drawn, last)
        return place if isinstance(ids, slice) else int(ids[place])

    def _with_logprobs(self, token_id: int, end: FinishReason | None, logits: F32) -> Pick:
        wide = logits.astype(np.float64)
        logprobs = wide - (np.log(np.exp(wide - wide.max()).sum()) + wide.max())
        count = min(self._sampling.logprobs or 0, len(logprobs))
        best = np.argpartition(-logprobs, range(count))[:count] if count else np.empty(0, np.int64)
        return Pick(
            token_id=token_id,
            end=end,
            logprob=float(logprobs[token_id]),
            top=tuple((int(i), float(logprobs[i])) for i in best),
        )


def _greatest(scores: F32 | F64) -> int:
    """Where the greatest score is, the first of equal ones. Raises ModelFileError where it is infinite, or one of them
    is not a number."""
    place = int(scores.argmax())  # finds what is not a number before all others
    if not isfinite(scores[place]):
        raise _no_numbers()
    return place


def _no_numbers() -> ModelFileError:
    return ModelFileError(
        "the model computes logits that are infinite or not numbers", hint="its file is damaged; fetch the model again"
    )


def _at(ids: I64 | slice, places: I64) -> I64:
    """The ids at some places; with a slice for all ids, places are ids."""
    return places if isinstance(ids, slice) else ids[places]


def _best(scores: F64, count: int) -> I64:
    """Ids of the `count` best scores, fewer than there are; of equal ones the lowest ids."""
    ids = np.flatnonzero(scores >= np.partition(scores, -count)[-count])
    return ids[np.argsort(-scores[ids], kind="stable")][:count]


def _nucleus(weights: F64, top_p: float) -> I64:
    """Places of the smallest set of `weights` (which sum to 1) that reaches `top_p`, best first.

    All that are lighter than (1 - top_p) / n weigh less than 1 - top_p together, so the set needs none of them.
    """
    places = np.flatnonzero(weights >= (1 - top_p) / len(weights))
    places = places[np.argsort(-weights[places], kind="stable")]
    return places[: int(np.searchsorted(weights[places].cumsum(), top_p)) + 1]
