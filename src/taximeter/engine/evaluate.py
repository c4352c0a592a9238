"""How well a model predicts a text, and how far one set of logits is from another.

Owns: the definitions (perplexity, divergence, agreement), computed in float64, position by position, so that memory
does not grow with the text. Refuses to know: where logits come from (a `LogitSource` gives them), files, and printing.

Standard errors treat positions as independent. Neighbouring tokens are not quite, so they are a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from taximeter.errors import InvariantBroken, RequestError

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

Progress = Callable[[int, int], None]
"""Called with the positions judged until now, and all there are."""

_Z_95 = 1.959963984540054  # of a normal distribution, two-sided
_BLOCK_VALUES = 1 << 18  # float64 work at a time: 2 MB, which stay in the second-level cache


class LogitSource(Protocol):
    """A model as evaluation sees it."""

    vocab_size: int

    def logits(self, token_ids: Sequence[int], wanted_from: int) -> Iterator[F32]:
        """Logits (some rows, vocabulary) after each of `token_ids[wanted_from:]`, in order, some rows at a time.

        Sources of one vocabulary cut alike, however they compute.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A text to predict, as token ids. `prefix` stands before every window: the beginning token where a model wants
    one. A window has at most `context_tokens`, `prefix` among them, and begins `stride_tokens` after the one before;
    a token is judged in the first window that reaches it, so with at least `context_tokens - stride_tokens` before it,
    those of the first window aside. Raises RequestError for numbers that fit no window."""

    token_ids: tuple[int, ...]
    prefix: tuple[int, ...] = ()
    context_tokens: int
    stride_tokens: int

    def __post_init__(self) -> None:
        room = self.context_tokens - len(self.prefix)
        if room < 2:
            raise RequestError(
                f"a context of {self.context_tokens} tokens has no room to predict anything", param="context_tokens"
            )
        longest = room - (not self.prefix)
        if not 1 <= self.stride_tokens <= longest:
            raise RequestError(
                f"a stride of {self.stride_tokens} tokens does not fit windows of {self.context_tokens}",
                param="stride",
                hint=f"give 1 to {longest}, so that there is something before each token",
            )
        if self.predicted_tokens < 2:
            count = len(self.token_ids)
            raise RequestError(
                f"the text is of {count} token{'' if count == 1 else 's'}: too few to say anything",
                hint="give a longer text",
            )

    @property
    def predicted_tokens(self) -> int:
        """Every token but the very first, which nothing comes before unless there is a prefix."""
        return len(self.token_ids) - (not self.prefix)

    def windows(self) -> Iterator[Window]:
        """The windows in order; together they judge every predicted token once."""
        room = self.context_tokens - len(self.prefix)
        judged = len(self.token_ids) - self.predicted_tokens
        for start in range(0, len(self.token_ids), self.stride_tokens):
            end = min(start + room, len(self.token_ids))
            read = (*self.prefix, *self.token_ids[start : end - 1])  # nothing follows the last token
            targets = np.array(self.token_ids[judged:end], np.int64)
            yield Window(read=read, wanted_from=len(read) - len(targets), targets=targets)
            judged = end
            if end == len(self.token_ids):
                return


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window:
    """Tokens to read, and the tokens to predict after each of `read[wanted_from:]`."""

    read: tuple[int, ...]
    wanted_from: int
    targets: I64


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """An average and its standard error: the sample's standard deviation (n - 1) over the root of n."""

    value: float
    standard_error: float

    @classmethod
    def of(cls, values: F64) -> Mean:
        return cls(value=float(values.mean()), standard_error=float(values.std(ddof=1) / math.sqrt(len(values))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Perplexity:
    """How surprised a model is by a text: `perplexity` is exp of the mean negative log-likelihood of a token.

    Comparable only between models of one tokenizer, on one text, with equal windows. Its standard error is the mean's
    times the perplexity (first order).
    """

    tokens: int
    nll_nats: Mean
    perplexity: Mean

    @classmethod
    def of(cls, nll_nats: F64) -> Perplexity:
        mean = Mean.of(nll_nats)
        value = math.exp(mean.value)
        return cls(
            tokens=len(nll_nats),
            nll_nats=mean,
            perplexity=Mean(value=value, standard_error=value * mean.standard_error),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """How far B's prediction is from A's over the positions of a text.

    `kl_nats` is the Kullback-Leibler divergence of B's next-token distribution from A's, sum of A ln(A/B), 0 only
    where they are equal; its percentiles are of these positions, interpolated linearly. `same_top` is the share of
    positions where both find the same token likeliest, `same_top_low` and `same_top_high` its 95 % interval (Wilson).
    `rms_probability_change` is the root mean square of the difference that B makes to the probability of the token
    that really follows, `nll_change_nats` the difference it makes to that token's negative log-likelihood.
    """

    tokens: int
    kl_nats: Mean
    kl_median_nats: float
    kl_p90_nats: float
    kl_p99_nats: float
    kl_max_nats: float
    same_top: float
    same_top_low: float
    same_top_high: float
    rms_probability_change: float
    nll_change_nats: Mean
    a: Perplexity
    b: Perplexity


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Positions:
    """What `Divergence` is made of, for each position of a text."""

    kl_nats: F64
    same_top: npt.NDArray[np.bool_]
    nll_a_nats: F64
    nll_b_nats: F64

    def divergence(self) -> Divergence:
        """All of them together."""
        same_top = int(self.same_top.sum())
        low, high = wilson_interval(same_top, len(self.kl_nats))
        median, p90, p99 = (float(value) for value in np.percentile(self.kl_nats, (50, 90, 99)))
        change = np.exp(-self.nll_b_nats) - np.exp(-self.nll_a_nats)
        return Divergence(
            tokens=len(self.kl_nats),
            kl_nats=Mean.of(self.kl_nats),
            kl_median_nats=median,
            kl_p90_nats=p90,
            kl_p99_nats=p99,
            kl_max_nats=float(self.kl_nats.max()),
            same_top=same_top / len(self.kl_nats),
            same_top_low=low,
            same_top_high=high,
            rms_probability_change=float(np.sqrt(np.square(change).mean())),
            nll_change_nats=Mean.of(self.nll_b_nats - self.nll_a_nats),
            a=Perplexity.of(self.nll_a_nats),
            b=Perplexity.of(self.nll_b_nats),
        )

    def less(self, other: Positions) -> PairedDifference:
        """What these have beyond `other`'s, which are of the same `a` and text. Some positions are hard for all, so the
        mean of the differences has a smaller error than the difference of the means."""
        same_top = self.same_top.astype(np.float64) - other.same_top
        return PairedDifference(kl_nats=Mean.of(self.kl_nats - other.kl_nats), same_top=Mean.of(same_top))


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """Means over positions of how much more one source diverges than another, and how much oftener it agrees."""

    kl_nats: Mean
    same_top: Mean


def perplexity(source: LogitSource, passage: Passage, on_progress: Progress | None = None) -> Perplexity:
    """How well `source` predicts a text."""
    nll: list[F64] = []
    for [logits], targets in _judged([source], passage, on_progress):
        nll.append(-_of_targets(log_softmax(logits), targets))
    return Perplexity.of(np.concatenate(nll))


def divergences(
    a: LogitSource, others: Sequence[LogitSource], passage: Passage, on_progress: Progress | None = None
) -> list[Divergence]:
    """How far each of `others` is from `a` on a text, all of them in one go."""
    return [found.divergence() for found in positions(a, others, passage, on_progress)]


def positions(
    a: LogitSource, others: Sequence[LogitSource], passage: Passage, on_progress: Progress | None = None
) -> list[Positions]:
    """The same, position by position."""
    nll_a: list[F64] = []
    columns = [_Columns() for _ in others]
    for [logits_a, *logits_of_others], targets in _judged([a, *others], passage, on_progress):
        log_a = log_softmax(logits_a)
        nll_a.append(-_of_targets(log_a, targets))
        top_a = logits_a.argmax(axis=1)
        for column, logits_b in zip(columns, logits_of_others, strict=True):
            log_b = log_softmax(logits_b)
            column.kl.append(kl_divergence(log_a, log_b))
            column.nll.append(-_of_targets(log_b, targets))
            column.same_top.append(logits_b.argmax(axis=1) == top_a)
    return [column.against(np.concatenate(nll_a)) for column in columns]


def log_softmax(logits: F32) -> F64:
    """Natural logarithms of the probabilities (rows, vocabulary), in float64. Raises InvariantBroken where a row is not
    made of numbers: a model that computes NaN has no distribution, and no figure about it would mean anything."""
    shifted = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):
        shifted -= shifted.max(axis=1, keepdims=True)
    total = np.exp(shifted).sum(axis=1, keepdims=True)
    if not np.isfinite(total).all():
        raise InvariantBroken("the model gave logits that are not numbers")
    return shifted - np.log(total)


def kl_divergence(log_p: F64, log_q: F64) -> F64:
    """Sum of p ln(p/q) for each row (nats).

    Written as the sum of p (exp(d) - 1 - d) with d = ln(q/p), which is the same since both distributions sum to 1. No
    term is negative, so that close distributions do not drown in rounding.
    """
    p = np.exp(log_p)
    with np.errstate(over="ignore", invalid="ignore"):
        d = log_q - log_p
        # From d = 1 on nothing cancels, and exp(d) alone may be too large for a number where p × exp(d) = q is not.
        terms = np.where(d < 1, p * (np.expm1(d) - d), np.exp(log_q) - p - p * d)
    terms[p == 0] = np.exp(log_q[p == 0])
    return np.maximum(terms, 0).sum(axis=1)


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a share, after Wilson: sensible at 0 and 1 too."""
    share, z2 = successes / trials, _Z_95**2
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z_95 / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    return max(0.0, middle - half), min(1.0, middle + half)


class _Columns:
    """What is kept of each position of one comparison, while they come."""

    def __init__(self) -> None:
        self.kl: list[F64] = []
        self.nll: list[F64] = []
        self.same_top: list[npt.NDArray[np.bool_]] = []

    def against(self, nll_a: F64) -> Positions:
        return Positions(
            kl_nats=np.concatenate(self.kl),
            same_top=np.concatenate(self.same_top),
            nll_a_nats=nll_a,
            nll_b_nats=np.concatenate(self.nll),
        )


def _judged(
    sources: Sequence[LogitSource], passage: Passage, on_progress: Progress | None
) -> Iterator[tuple[list[F32], I64]]:
    """A few positions at a time: every source's logits for them, and the tokens that really follow."""
    rows_at_once = max(1, _BLOCK_VALUES // sources[0].vocab_size)
    done = 0
    for window in passage.windows():
        at = 0
        streams = [source.logits(window.read, window.wanted_from) for source in sources]
        for blocks in zip(*streams, strict=True):
            for first in range(0, len(blocks[0]), rows_at_once):
                parts = [block[first : first + rows_at_once] for block in blocks]
                yield parts, window.targets[at : at + len(parts[0])]
                at += len(parts[0])
            if on_progress is not None:
                on_progress(done + at, passage.predicted_tokens)
        if at != len(window.targets):
            raise InvariantBroken(f"{len(window.targets)} rows of logits were wanted, and {at} came")
        done += at


def _of_targets(log_probabilities: F64, targets: I64) -> F64:
    return log_probabilities[np.arange(len(targets)), targets]
