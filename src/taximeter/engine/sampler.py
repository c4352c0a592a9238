"""Picks the next token of one sequence from its logits.

In this order: tokens that may not come yet are ruled out, biases and penalties are applied, and then, unless the pick
is greedy, temperature, top-k, top-p and min-p cut the distribution down before one number from the sequence's own
generator decides. Owns: that order and the generator. Refuses to know: batches, text, requests.

Log-probabilities are of the model's own distribution, before all of this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from taximeter.records import Sampling

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
_SEED_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """The token picked. `logprob` and `top` (token id, logprob; best first) are given when logprobs were asked for."""

    token_id: int
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
        prompt: Collection[int],
        stop_ids: Collection[int],
        vocabulary: int,
    ) -> None:
        self._sampling = sampling
        self._forbidden_early = np.array(sorted(stop_ids), np.int64)
        bias = [(token, value) for token, value in sampling.logit_bias.items() if 0 <= token < vocabulary]
        self._bias_ids = np.array([token for token, _ in bias], np.int64)
        self._bias = np.array([value for _, value in bias], np.float64)
        self._prompt_ids = np.unique(np.fromiter(prompt, np.int64, len(prompt)))
        self._said: Counter[int] = Counter()
        seed = None if sampling.seed is None else [sampling.seed & _SEED_MASK, choice]
        self._generator = np.random.Generator(np.random.PCG64(seed))

    def pick(self, logits: F32) -> Pick:
        """Pick from `logits` (vocabulary,), which are left as they are."""
        scores = self._adjusted(logits.astype(np.float64))
        token_id = int(scores.argmax()) if self._sampling.temperature == 0 else self._draw(scores)
        self._said[token_id] += 1
        if self._sampling.logprobs is None:
            return Pick(token_id=token_id)
        return self._with_logprobs(token_id, logits)

    def _adjusted(self, scores: F64) -> F64:
        sampling = self._sampling
        if self._said.total() < sampling.min_tokens:
            scores[self._forbidden_early] = -np.inf
        if len(self._bias_ids):
            scores[self._bias_ids] += self._bias
        said = np.fromiter(self._said, np.int64, len(self._said))
        if sampling.repetition_penalty != 1:
            seen = np.union1d(self._prompt_ids, said)
            penalty = sampling.repetition_penalty
            scores[seen] = np.where(scores[seen] > 0, scores[seen] / penalty, scores[seen] * penalty)
        if len(said) and (sampling.frequency_penalty or sampling.presence_penalty):
            times = np.fromiter(self._said.values(), np.float64, len(said))
            scores[said] -= sampling.frequency_penalty * times + sampling.presence_penalty
        return scores

    def _draw(self, scores: F64) -> int:
        sampling = self._sampling
        # Best first; equal scores in the order of their ids, so that a seed means one answer.
        order = self._candidates(scores)
        scaled = (scores[order] - scores[order[0]]) / sampling.temperature
        weights = np.exp(scaled)
        weights /= weights.sum()
        keep = len(order)
        if sampling.top_p < 1:
            # The smallest set whose probability reaches top_p.
            keep = min(keep, int(np.searchsorted(weights.cumsum(), sampling.top_p)) + 1)
        if sampling.min_p > 0:
            keep = min(keep, int(np.count_nonzero(weights >= sampling.min_p * weights[0])))
        cumulative: F64 = weights[: max(keep, 1)].cumsum()
        point = self._generator.random() * float(cumulative[-1])
        drawn = int(np.searchsorted(cumulative, point, side="right"))
        return int(order[min(drawn, len(cumulative) - 1)])

    def _candidates(self, scores: F64) -> npt.NDArray[np.int64]:
        top_k = self._sampling.top_k
        if 0 < top_k < len(scores):
            threshold = np.partition(scores, -top_k)[-top_k]
            ids = np.flatnonzero(scores >= threshold)
            return ids[np.argsort(-scores[ids], kind="stable")][:top_k]
        return np.argsort(-scores, kind="stable")

    def _with_logprobs(self, token_id: int, logits: F32) -> Pick:
        wide = logits.astype(np.float64)
        logprobs = wide - (np.log(np.exp(wide - wide.max()).sum()) + wide.max())
        count = min(self._sampling.logprobs or 0, len(logprobs))
        best = np.argpartition(-logprobs, range(count))[:count] if count else np.empty(0, np.int64)
        return Pick(
            token_id=token_id,
            logprob=float(logprobs[token_id]),
            top=tuple((int(i), float(logprobs[i])) for i in best),
        )
