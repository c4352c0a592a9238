"""The figures of one level of load.

Owns: which requests each figure is of, goodput, and the flags that say what not to trust. Refuses to know: how
requests were sent, and what other levels say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

from numpy.random import Generator

from taximeter.figures import duration_text
from taximeter.measurement.asking.observation import Observation, Origin
from taximeter.measurement.estimates import Estimate, mean, percentile, percentile_name, share
from taximeter.measurement.load.run import Flag, LoadRun, Trouble, Window
from taximeter.measurement.load.slo import Miss, Slo, count_misses
from taximeter.measurement.load.steady import (
    Drift,
    SendRate,
    Throughput,
    drifts,
    in_flight,
    in_window,
    send_rate,
    throughput,
    window_of,
)
from taximeter.records import Outcome

SHARES: Final = (0.5, 0.9, 0.95, 0.99)

DEFINITIONS: Final[Mapping[str, str]] = {
    "TTFT": "first event with a generated token, on any channel, less when the request was due (open loop) or sent",
    "ITL": "of one request: (end to end less TTFT) / (output tokens - 1), tokens by the server's count",
    "end to end": "last event with a generated token, less when the request was due (open loop) or sent",
    "gap": "time between two events with tokens, of all requests; says nothing of tokens where events have several",
    "dispatch delay": "sent less due: a client that was late, or a request that waited for a free slot in it",
    "tokens/s": "output tokens that came in the window, by the server's count; peak: of the best second",
    "requests/s": "requests that were due in the window, answered whole, by the window's length",
    "goodput": "the same, of requests that met the target; refused, failed and given up are misses",
    "percentiles": "interpolated linearly; 95 % intervals by bootstrap; none where n is too small for one",
}
"""What the figures mean, for whoever shows them."""


_COMPLAINTS: Final = (
    (Trouble.CLIENT_BOUND, True, "the figures are as much its own as the server's"),
    (
        Trouble.MACHINE_FULL,
        False,
        "latencies are the server's and up to that much more; where both run here, the client is a part of the load",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """One latency over many requests, in nanoseconds: its mean, and its percentiles by their names (p50, p90, p95,
    p99)."""

    mean: Estimate
    percentiles: Mapping[str, Estimate]
    most_ns: float

    def at(self, name: str) -> Estimate:
        return self.percentiles[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attainment:
    """How a target was met by the requests of a window."""

    share: Estimate
    met: int
    requests_per_s: float
    tokens_per_s: float
    misses: Mapping[Miss, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """What came out at one level: a rate in requests per second, or a concurrency.

    Latencies are of the requests that were due in the window and answered whole; `outcomes` counts them all. A spread
    is None where no request has that figure. Latencies of an open loop count from when requests were due; from sending
    they are in `ttft_from_sending` and `end_to_end_from_sending`. `ramp` is the TTFT of those before the window.
    `cached_ratio` is how much of their prompts the server had from a cache, None where it does not say.
    """

    is_open_loop: bool
    level: float
    clients: int
    window: Window | None
    requests: int
    requests_in_window: int
    outcomes: Mapping[Outcome, int]
    ttft: Spread | None
    itl: Spread | None
    end_to_end: Spread | None
    gaps: Spread | None
    dispatch_delay: Spread | None
    ttft_from_sending: Spread | None
    end_to_end_from_sending: Spread | None
    ramp: Spread | None
    sent: SendRate
    completed_per_s: float
    output: Throughput | None
    prompt_tokens_per_s: float | None
    cached_ratio: float | None
    in_flight_mean: float
    in_flight_most: int
    attainment: Attainment | None
    drifts: tuple[Drift, ...] = ()
    flags: tuple[Flag, ...] = ()
    errors: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def is_too_short(self) -> bool:
        """Whether most requests took longer than the window: then nobody saw what such a load comes to."""
        whole = self.end_to_end
        return self.window is not None and whole is not None and whole.at("p50").value / 1e9 > self.window.seconds

    @property
    def is_sustained(self) -> bool:
        """Whether later requests did not take longer than earlier ones: else it would only get worse."""
        return not any(drift.is_growing for drift in self.drifts)


def load_point(run: LoadRun, *, slo: Slo | None, rng: Generator) -> LoadPoint:
    """The figures of `run`. Where it has no window they are of all of it, and a flag says so."""
    found = window_of(run)
    window = found or Window(start_ns=-1, end_ns=max(1, run.ended_ns))
    inside = in_window(run, window)
    whole = [seen for seen in inside if seen.is_complete]
    before = [seen for seen in run.observations if seen.scheduled_ns <= window.start_ns]
    itl = _spread(whole, lambda seen: seen.itl_ns, rng)
    sent = send_rate(run)
    drifted = tuple(drifts(inside, window, rng=rng)) if found else ()
    prompts = [seen.prompt_tokens for seen in whole]
    flags = _flags(run, found, inside, sent, drifted, itl)
    read, cached = sum(n or 0 for n in prompts), [seen.cached_tokens for seen in whole]
    average, most = in_flight(run.observations, window)
    point = LoadPoint(
        is_open_loop=run.is_open_loop,
        level=run.level,
        clients=len(run.clients),
        window=found,
        requests=len(run.observations),
        requests_in_window=len(inside),
        outcomes=dict(Counter(seen.outcome for seen in inside)),
        ttft=_spread(whole, lambda seen: seen.ttft_ns(), rng),
        itl=itl,
        end_to_end=_spread(whole, lambda seen: seen.end_to_end_ns(), rng),
        gaps=_of_all(list(chain.from_iterable(seen.chunk_gaps_ns for seen in whole)), rng),
        dispatch_delay=_spread(inside, lambda seen: seen.dispatch_delay_ns, rng),
        ttft_from_sending=_spread(whole, lambda seen: seen.ttft_ns(Origin.SENT), rng),
        end_to_end_from_sending=_spread(whole, lambda seen: seen.end_to_end_ns(Origin.SENT), rng),
        ramp=_spread(before, lambda seen: seen.ttft_ns(), rng),
        sent=sent,
        completed_per_s=len(whole) / window.seconds,
        output=throughput(run.observations, window, rng=rng) if run.observations else None,
        prompt_tokens_per_s=None if None in prompts else read / window.seconds,
        cached_ratio=None if None in cached or None in prompts or not read else sum(n or 0 for n in cached) / read,
        in_flight_mean=average,
        in_flight_most=most,
        attainment=None if slo is None or not inside else attainment(slo, inside, window),
        drifts=drifted,
        flags=tuple(flags),
        errors=dict(Counter(seen.error or "not known" for seen in inside if not seen.is_complete).most_common(5)),
    )
    if not point.is_too_short:
        return point
    says = f"most requests took longer than its window of {window.seconds:.3g} s: it has to last longer"
    return replace(point, flags=(*point.flags, Flag(trouble=Trouble.NO_WINDOW, says=says)))


def attainment(slo: Slo, observations: Sequence[Observation], window: Window) -> Attainment:
    """How many of the requests met the target, and what that comes to in the window's time."""
    met = [seen for seen in observations if slo.meets(seen)]
    return Attainment(
        share=share(len(met), len(observations)),
        met=len(met),
        requests_per_s=len(met) / window.seconds,
        tokens_per_s=sum(seen.output_tokens or 0 for seen in met) / window.seconds,
        misses=count_misses(slo, observations),
    )


def _spread(
    observations: Sequence[Observation], figure: Callable[[Observation], int | None], rng: Generator
) -> Spread | None:
    values = [float(value) for seen in observations if (value := figure(seen)) is not None]
    return _of_all(values, rng)


def _of_all(values: Sequence[float], rng: Generator) -> Spread | None:
    if not values:
        return None
    return Spread(
        mean=mean(values, rng=rng),
        percentiles={percentile_name(each): percentile(values, each, rng=rng) for each in SHARES},
        most_ns=max(values),
    )


def _flags(
    run: LoadRun,
    window: Window | None,
    inside: Sequence[Observation],
    sent: SendRate,
    drifted: Sequence[Drift],
    itl: Spread | None,
) -> list[Flag]:
    flags: list[Flag] = []
    if run.was_stopped:
        cut = sum(seen.outcome is Outcome.ABORTED for seen in run.observations)
        says = f"it was stopped before its end; {cut} requests that were under way count nowhere"
        flags.append(Flag(trouble=Trouble.CUT_SHORT, says=says))
    median_itl_ns = None if itl is None else itl.at("p50").value
    complaints = [said for client in run.clients if (said := client.complaint(median_itl_ns)) is not None]
    for trouble, is_own, means in _COMPLAINTS:
        if (found := next((said for said in complaints if said.is_own is is_own), None)) is not None:
            flags.append(Flag(trouble=trouble, says=f"{found.says}: {means}"))
    if sent.waited:
        says = (
            f"{sent.waited} of {len(run.observations)} requests waited in the client, where {run.most_in_flight} may "
            f"be under way; it sent up to {sent.peak_per_s:,.0f}/s (in a tenth of a second), where at most "
            f"{sent.due_peak_per_s:,.0f}/s were due"
        )
        flags.append(Flag(trouble=Trouble.NOT_OPEN_LOOP, says=says))
    if window is None:
        says = "it was over before it was under its load: the figures are of all of it, beginning and end included"
        flags.append(Flag(trouble=Trouble.NO_WINDOW, says=says))
    flags += [
        Flag(
            trouble=Trouble.NOT_STEADY,
            says=f"{drift.what} of the second half is {drift.ratio.value:.2f} times that of the first "
            f"({duration_text(round(drift.first_ns))}, then {duration_text(round(drift.second_ns))})",
        )
        for drift in drifted
        if drift.is_sure
    ]
    if run.repeated:
        says = f"{run.repeated} of {len(run.observations)} prompts had been sent before: a cache may have answered them"
        flags.append(Flag(trouble=Trouble.REPEATED, says=says))
    flags += _miscounts(inside)
    return flags


def _miscounts(observations: Sequence[Observation]) -> list[Flag]:
    """Where the server's count is another one than the client's, with the first request that shows it. The server's is
    the one that figures are made of."""
    complete = [seen for seen in observations if seen.is_complete]
    pairs: dict[str, Callable[[Observation], tuple[int | None, int | None]]] = {
        "prompt tokens were asked for": lambda seen: (seen.asked_prompt_tokens, seen.prompt_tokens),
        "prompt tokens were counted by the client": lambda seen: (seen.counted_prompt_tokens, seen.prompt_tokens),
        "answer tokens were asked for": lambda seen: (seen.asked_output_tokens, seen.output_tokens),
    }
    flags: list[Flag] = []
    for what, counts in pairs.items():
        known = [(seen, ours, theirs) for seen in complete for ours, theirs in [counts(seen)] if ours is not None]
        differ = [(seen, ours, theirs) for seen, ours, theirs in known if theirs is not None and theirs != ours]
        if differ:
            seen, ours, theirs = differ[0]
            says = f"{seen.id}: {ours:,} {what}, the server counted {theirs:,}; so for {len(differ)} of {len(known)}"
            flags.append(Flag(trouble=Trouble.COUNTS_DIFFER, says=says))
    uncounted = sum(seen.output_tokens is None for seen in complete)
    if uncounted:
        says = f"the server did not say how many tokens {uncounted} of {len(complete)} answers had: they have no ITL"
        flags.append(Flag(trouble=Trouble.COUNTS_DIFFER, says=says))
    return flags
