"""Why it is slow: what an answer's time went to, as shares with intervals, and what to work on.

Owns: dividing the time of measured requests into waiting, network, reading the prompt and writing the answer, and the
words for it. Refuses to know: how the requests were chosen.

| part | what it is | how it is known |
|---|---|---|
| decode | from the first token to the last | the client saw it: time per token, times the answer's length less one |
| prefill | reading the prompt | the server's own time; else b·n + c·n² of the fit: what grows with the prompt |
| queue | waiting to be taken up | the server's own time; else what short requests took longer than the fastest |
| network | one round trip | the time to open a connection |
| unexplained | the rest of the time to the first token | fixed work of the server, templates, routers |

Under load, waiting is what requests took longer than they would have alone, by a fit that was made alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from taximeter.figures import duration_text
from taximeter.measurement.asking.observation import Observation
from taximeter.measurement.estimates import DRAWS, Estimate, of_draws
from taximeter.measurement.sweep.fit import Fit
from taximeter.records import Phase

if TYPE_CHECKING:
    from numpy import float64
    from numpy.random import Generator
    from numpy.typing import NDArray

    Floats = NDArray[float64]

PARTS: Final = ("queue", "network", "prefill", "decode", "unexplained")
"""What a request's time goes to, in the order of its life."""

LEVERS: Final[Mapping[str, tuple[str, ...]]] = {
    "queue": (
        "more capacity: replicas, slots, a larger batch",
        "fewer requests at once, or limits on who may send them",
    ),
    "network": ("a server that is nearer, or a better way to it", "connections that are kept open"),
    "prefill": ("shorter prompts", "caching what prompts begin with", "faster reading: larger chunks, better kernels"),
    "decode": ("shorter answers", "a faster model", "speculative decoding", "quantization"),
    "unexplained": (
        "find out what the server does before it reads a prompt: its own times per request would say it",
        "requests that carry more, so that a fixed price is paid less often",
    ),
}
_UNCERTAIN_LEVERS: Final = ("more repeats: --repeats",)
_NAMES: Final[Mapping[str, str]] = {
    "queue": "waiting in the queue",
    "network": "the network",
    "prefill": "prefill",
    "decode": "decode",
    "unexplained": "time that nobody explains",
}
_LEAST_SAMPLES: Final = 3
_SOME: Final = 0.05  # a part that may be no more than this is not worth a word


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What the time of requests with `prompt_tokens` (a mean, where they differ) and `output_tokens` went to.

    `parts_ns` and `shares` have the parts that are known, by name; together with `unexplained` they are the whole.
    `known_by` says how each is known, `unknown` why the others are not.
    """

    prompt_tokens: float
    output_tokens: int
    total_ns: Estimate
    parts_ns: Mapping[str, Estimate]
    shares: Mapping[str, Estimate]
    known_by: Mapping[str, str]
    unknown: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def largest(self) -> str:
        """The part that is the largest, whether that is certain or not."""
        return max(self.shares, key=lambda part: self.shares[part].value)

    @property
    def dominant(self) -> str | None:
        """The part that is certainly the largest: its interval lies above all others'. None where it cannot be told."""
        top = self.largest
        low = self.shares[top].low
        others = [share.high for part, share in self.shares.items() if part != top]
        if low is None or any(high is None or high >= low for high in others):
            return None
        return top


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What to work on. `part` is what the time goes to, None where that cannot be told; `says` is the finding in a
    sentence or two, `levers` what would change it. `splits` are all lengths, of which `shares` is the one at
    `at_prompt_tokens`."""

    at_prompt_tokens: int
    shares: Mapping[str, Estimate]
    part: str | None
    says: str
    levers: tuple[str, ...]

    @property
    def is_certain(self) -> bool:
        return self.part is not None


def split(
    observations: Sequence[Observation],
    *,
    output_tokens: int,
    fit: Fit | None,
    network_ns: Sequence[float] = (),
    waits_ns: Sequence[float] = (),
    alone: Fit | None = None,
    rng: Generator,
) -> Split:
    """Divide the time of complete `observations`, of which there is at least one with a time per token.

    `fit` is TTFT by prompt tokens, `network_ns` round trips, `waits_ns` what equal requests with short prompts took
    longer than the fastest of them: prompts that take no time to read differ by their waiting only. With `alone`, the
    TTFT of the same server when it has nothing else to do, these were measured under load, and what they took longer is
    waiting. Answers count as `output_tokens` long, so that requests can be compared. Raises ValueError where nothing
    can be divided.
    """
    import numpy as np  # noqa: PLC0415  # as in `estimates`

    seen = _Seen.of(observations, output_tokens)
    n = len(seen.ttft)
    picks = rng.integers(0, n, size=(DRAWS, n), dtype=np.int64)
    known_by = {"decode": "the client saw it"}
    unknown: dict[str, str] = {}

    def drawn(each: Floats) -> tuple[float, Floats]:
        return float(each.mean()), each[picks].mean(axis=1)

    ttft, decode = drawn(seen.ttft), drawn(seen.decode)
    zero = 0.0, np.zeros(DRAWS)
    queue = network = prefill = zero
    if len(network_ns):
        known_by["network"] = "one round trip: the time to open a connection"
        network = _capped(_resampled(network_ns, np.median, rng), ttft)
    else:
        unknown["network"] = "no round trip was measured"
    left = _less(ttft, network)
    if seen.queue is not None:
        known_by["queue"] = "the server says so"
        queue = _capped(drawn(seen.queue), left)
    elif alone is not None:
        known_by["queue"] = "what requests took longer than alone"
        usual = np.array([alone.at(tokens).value for tokens in seen.tokens])
        queue = _capped(drawn(np.maximum(seen.ttft - usual, 0.0)), left)
    elif len(waits_ns):
        known_by["queue"] = "what equal short requests took longer than the fastest"
        waited = seen.ttft if seen.prefill is None else seen.ttft - seen.prefill
        excess = waited - waited.min()
        # Long prompts differ by their reading too: not more of it is waiting than short ones wait.
        real = min(1.0, float(np.mean(waits_ns)) / (float(excess.mean()) or 1.0))
        queue = _capped(drawn(real * excess), left)
    else:
        unknown["queue"] = "the server does not say"
    left = _less(left, queue)
    curve = alone or fit
    if seen.prefill is not None:
        known_by["prefill"] = "the server says so"
        prefill = _capped(drawn(seen.prefill), left)
    elif curve is not None:
        known_by["prefill"] = "what grows with the prompt: b·n + c·n²"
        prefill = _capped(_grown(curve, seen.tokens, rng), left)
    else:
        unknown["prefill"] = "the server does not say, and there are too few lengths for a curve"
    found = {"queue": queue, "network": network, "prefill": prefill, "decode": decode}
    found["unexplained"] = _less(left, prefill)
    known_by["unexplained"] = "the rest of the time to the first token"
    total = ttft[0] + decode[0], ttft[1] + decode[1]
    parts = [part for part in PARTS if part not in unknown]
    return Split(
        prompt_tokens=float(seen.tokens.mean()),
        output_tokens=output_tokens,
        total_ns=_estimate(total, n),
        parts_ns={part: _estimate(found[part], n) for part in parts},
        shares={part: _estimate((found[part][0] / total[0], found[part][1] / total[1]), n) for part in parts},
        known_by={part: known_by[part] for part in parts},
        unknown=unknown,
    )


def verdict(splits: Sequence[Split], *, at: int | None = None) -> Verdict:
    """What `splits`, one for each length in ascending order and at least one, say together.

    The shares are those at the length nearest to `at`; without it, at the middle one.
    """
    middle = splits[len(splits) // 2]
    chosen = middle if at is None else min(splits, key=lambda each: abs(each.prompt_tokens - at))
    part = chosen.dominant
    where = (
        f"of {duration_text(round(chosen.total_ns.value))} at {chosen.prompt_tokens:,.0f} prompt tokens "
        f"and {chosen.output_tokens:,} of answer"
    )
    if part is None:
        says, levers = _undecided(chosen, where), _UNCERTAIN_LEVERS
    else:
        share = chosen.shares[part]
        most = "most" if share.low is not None and share.low > 0.5 else "the largest part"
        says = f"{_NAMES[part]} takes {most} of the time: {share_text(share)} {where}"
        levers = LEVERS[part]
    says = says[:1].upper() + says[1:] + "."
    return Verdict(
        at_prompt_tokens=round(chosen.prompt_tokens),
        shares=chosen.shares,
        part=part,
        says=" ".join((says, *_elsewhere(splits, chosen))),
        levers=levers,
    )


def share_text(share: Estimate) -> str:
    """A share with its interval, as in a sentence."""
    if share.low is None or share.high is None:
        return f"{share.value:.0%} ({share.unknown_reason})"
    return f"{share.value:.0%} ({share.low * 100:.0f} to {share.high:.0%})"


def _undecided(split: Split, where: str) -> str:
    by_size = sorted(split.shares.items(), key=lambda item: -item[1].value)
    first, lowest = by_size[0], by_size[0][1].low
    if lowest is None:
        return (
            f"cannot tell what most of the time goes to ({first[1].unknown_reason}): {_NAMES[first[0]]} is "
            f"{first[1].value:.0%} {where}"
        )
    rivals = [item for item in by_size if item[1].high is not None and item[1].high >= lowest]
    named = [f"{_NAMES[part]} {share_text(share)}" for part, share in rivals]
    return f"cannot tell which is the largest: {' or '.join(named)} {where}"


def _elsewhere(splits: Sequence[Split], chosen: Split) -> list[str]:
    """What else there is to say: how TTFT grows, and where another part leads."""
    said: list[str] = []
    first, last = splits[0], splits[-1]
    if first is not last:
        grown = _ttft_ns(last) / _ttft_ns(first)
        said.append(
            f"The time to the first token grows {_times(grown)} while the prompt grows "
            f"{_times(last.prompt_tokens / first.prompt_tokens)}, from {first.prompt_tokens:,.0f} tokens to "
            f"{last.prompt_tokens:,.0f}."
        )
    others = [each for each in splits if each.dominant not in (None, chosen.dominant)]
    above = [each for each in others if each.prompt_tokens > chosen.prompt_tokens]
    below = [each for each in others if each.prompt_tokens < chosen.prompt_tokens]
    if above:
        said.append(f"From {above[0].prompt_tokens:,.0f} tokens on it is {_NAMES[above[0].dominant or '']}.")
    if below:
        said.append(f"Up to {below[-1].prompt_tokens:,.0f} tokens it is {_NAMES[below[-1].dominant or '']}.")
    rest = chosen.shares["unexplained"]
    if chosen.dominant != "unexplained" and rest.value > 2 * _SOME:
        said.append(f"{rest.value:.0%} is explained by nobody.")
    return said


def _times(ratio: float) -> str:
    return f"{ratio:.1f} times" if ratio < 9.95 else f"{ratio:,.0f} times"


def _ttft_ns(split: Split) -> float:
    return sum(part.value for name, part in split.parts_ns.items() if name != "decode")


@dataclass(frozen=True, slots=True)
class _Seen:
    tokens: Floats
    ttft: Floats
    decode: Floats
    queue: Floats | None
    prefill: Floats | None

    @classmethod
    def of(cls, observations: Sequence[Observation], output_tokens: int) -> _Seen:
        import numpy as np  # noqa: PLC0415

        rows: list[tuple[int, int, int]] = []
        used: list[Observation] = []
        for each in observations:
            ttft, itl = each.ttft_ns(), each.itl_ns if output_tokens > 1 else 0
            tokens = each.prompt_tokens if each.prompt_tokens is not None else each.asked_prompt_tokens
            if each.is_complete and ttft is not None and itl is not None and tokens is not None:
                rows.append((tokens, ttft, itl * (output_tokens - 1)))
                used.append(each)
        if not rows:
            raise ValueError("no request has the times that are divided")
        columns = np.array(rows, dtype=np.float64).T
        return cls(columns[0], columns[1], columns[2], _said(used, Phase.QUEUE), _said(used, Phase.PREFILL))


def _said(observations: Sequence[Observation], phase: Phase) -> Floats | None:
    """The server's own times, where it gives them for every request."""
    import numpy as np  # noqa: PLC0415

    if any(phase not in each.reported_ns for each in observations):
        return None
    return np.array([each.reported_ns[phase] for each in observations], dtype=np.float64)


_Drawn = tuple[float, "Floats"]


def _resampled(samples: Sequence[float], figure: Callable[..., Any], rng: Generator) -> _Drawn:
    import numpy as np  # noqa: PLC0415

    values = np.asarray(samples, dtype=np.float64)
    picks = rng.integers(0, len(values), size=(DRAWS, len(values)), dtype=np.int64)
    return float(figure(values)), figure(values[picks], axis=1)


def _less(one: _Drawn, other: _Drawn) -> _Drawn:
    return one[0] - other[0], one[1] - other[1]


def _capped(one: _Drawn, most: _Drawn) -> _Drawn:
    import numpy as np  # noqa: PLC0415

    return min(max(one[0], 0.0), most[0]), np.minimum(np.maximum(one[1], 0.0), most[1])


def _grown(curve: Fit, tokens: Floats, rng: Generator) -> _Drawn:
    """The mean of what grows with the prompt, over requests of so many tokens."""
    import numpy as np  # noqa: PLC0415

    first, second = float(tokens.mean()), float((tokens**2).mean())
    values = curve.values()
    value = float(values[1] * first + (values[2] * second if len(values) > 2 else 0.0))
    if curve.draws is None:
        return value, np.full(DRAWS, value)
    draws = curve.draws[rng.permutation(DRAWS)]
    return value, draws[:, 1] * first + (draws[:, 2] * second if len(values) > 2 else 0.0)


def _estimate(drawn: _Drawn, n: int) -> Estimate:
    if n < _LEAST_SAMPLES:
        return Estimate(value=drawn[0], n=n, unknown_reason=f"n too small: {_LEAST_SAMPLES} are needed")
    return of_draws(drawn[0], drawn[1], n=n)
