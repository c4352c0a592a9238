"""`/metrics`: one moment, in Prometheus' words.

Owns: the names and explanations of our metrics, and the only arithmetic in floats, for that format knows nothing else.
Refuses to know: how figures came to be.

Names follow Prometheus' customs: a prefix, base units last, `_total` on what only grows. Durations are in seconds,
money is in dollars, shares are from 0 to 1. What is not known is left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from taximeter.ledger import LedgerCounts
from taximeter.pricing.machine import MachineStatement
from taximeter.records import NS_PER_HOUR, PICODOLLARS_PER_DOLLAR, EngineLoad
from taximeter.telemetry.engines import EngineState
from taximeter.telemetry.tally import Figures, Histogram, Labels, Sums
from taximeter.upstreams.breaker import BreakerState

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.metrics_core import Metric

_NS_PER_S: Final = 1_000_000_000
_WHOSE: Final = ("upstream", "model", "dialect")
_WHOSE_AND_HOW: Final = (*_WHOSE, "outcome")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """All that the page tells, at one moment. `engine` is our own engine's load, None where there is none; `engines`
    are what those of upstreams say of themselves, with `scrapes` counted by upstream and result. `spans` counts what
    became of OpenTelemetry's spans, and is empty where nothing is exported."""

    version: str
    sums: Sums
    in_flight: int
    ledger: LedgerCounts
    lost_before: int | None
    breakers: Mapping[str, BreakerState]
    machines: Mapping[str, MachineStatement]
    engine: EngineLoad | None
    engines: Mapping[str, EngineState]
    scrapes: Mapping[tuple[str, str], int]
    spans: Mapping[str, int]


def render(moment: Moment, accept: str) -> tuple[bytes, str]:
    """The page and its content type: in OpenMetrics for who accepts that, else in the text format."""
    from prometheus_client.exposition import choose_encoder  # noqa: PLC0415  # a quarter of a second, at the first look

    encode, content_type = choose_encoder(accept)
    return encode(_Collected(list(_families(moment)))), content_type


class _Collected:
    """As much of a registry as encoders want."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _families(moment: Moment) -> Iterator[Metric]:
    yield _gauge("taximeter_build_info", "Which version this is; always 1.", {(moment.version,): 1.0}, "version")
    yield from _of_receipts(moment.sums)
    yield from _of_tokens_and_money(moment.sums)
    yield from _of_times(moment.sums)
    yield from _of_upstreams(moment)
    yield from _of_the_house(moment)
    yield from _of_machines(moment.machines)
    if moment.engine is not None:
        yield from _of_the_engine(moment.engine, moment.sums)


def _of_receipts(sums: Sums) -> Iterator[Metric]:
    yield _counter(
        "taximeter_receipts",
        "Requests that have their receipt, by how they ended. upstream is who answered, and nobody where nobody was "
        "reached; model is the name that was asked for, and other beyond the first hundred.",
        _summed(sums, lambda figures: figures.receipts, with_outcome=True),
        *_WHOSE_AND_HOW,
    )
    yield _counter(
        "taximeter_receipts_without_usage",
        "Receipts on which the tokens are not known in all: refused requests, broken answers, silent providers.",
        _summed(sums, lambda figures: figures.without_usage),
        *_WHOSE,
    )
    yield _counter(
        "taximeter_receipts_unpriced",
        "Receipts without a cost: it is not known, which is not the same as nothing. Each says why.",
        _summed(sums, lambda figures: figures.unpriced),
        *_WHOSE,
    )


def _of_tokens_and_money(sums: Sums) -> Iterator[Metric]:
    yield _counter(
        "taximeter_tokens",
        "Tokens, each in exactly one bucket: the sum over buckets is all of them.",
        _by_bucket(sums, lambda figures: figures.tokens),
        *_WHOSE,
        "bucket",
    )
    yield _counter(
        "taximeter_tokens_unknown_receipts",
        "Receipts on which it is not known how many tokens a bucket has.",
        _by_bucket(sums, lambda figures: figures.unknown),
        *_WHOSE,
        "bucket",
    )
    yield _counter(
        "taximeter_cost_dollars",
        "Cost of all receipts that have one, in US dollars. A float, as everything here: for graphs. The ledger has "
        "the sum to the last picodollar.",
        _summed(sums, lambda figures: figures.picodollars / PICODOLLARS_PER_DOLLAR),
        *_WHOSE,
    )


def _of_times(sums: Sums) -> Iterator[Metric]:
    yield _histogram(
        "taximeter_request_duration_seconds",
        "From a request's arrival until its answer is whole.",
        _merged(sums, lambda figures: figures.total, with_outcome=True),
        *_WHOSE_AND_HOW,
    )
    yield _histogram(
        "taximeter_time_to_first_token_seconds",
        "From a request's arrival to the first generated token on any channel; an empty or role-only chunk is none.",
        _merged(sums, lambda figures: figures.first_token),
        *_WHOSE,
    )
    yield _histogram(
        "taximeter_inter_token_latency_seconds",
        "Of one answer: (total - time to first token) / (output tokens - 1). Not known, and not here, with fewer than "
        "two tokens.",
        _merged(sums, lambda figures: figures.inter_token),
        *_WHOSE,
    )
    phases: defaultdict[tuple[str, ...], list[Histogram]] = defaultdict(list)
    for labels, figures in sums.figures.items():
        for phase, histogram in figures.phases.items():
            phases[*_whose(labels), phase.value].append(histogram)
    yield _histogram(
        "taximeter_phase_seconds",
        "What requests were doing, by phase, of those that were doing it at all. The sums over phases are the sum of "
        "all durations.",
        phases,
        *_WHOSE,
        "phase",
    )
    overheads: defaultdict[tuple[str, ...], list[Histogram]] = defaultdict(list)
    for labels, figures in sums.figures.items():
        overheads[(labels.upstream,)].append(figures.overhead)
    yield _histogram(
        "taximeter_overhead_seconds",
        "The gateway phase of each request: what it spent in here, waiting for this process included.",
        overheads,
        "upstream",
    )


def _of_upstreams(moment: Moment) -> Iterator[Metric]:
    tries: Counter[tuple[str, ...]] = Counter()
    for (upstream, status), count in moment.sums.tries.items():
        tries[upstream, "none" if status is None else str(status)] += count
    yield _counter(
        "taximeter_upstream_tries",
        "Tries at upstreams by the status that came back, none where nothing did.",
        tries,
        "upstream",
        "status",
    )
    yield _gauge(
        "taximeter_upstream_breaker_state",
        "1 for the state that an upstream's breaker is in, 0 for the others.",
        {
            (upstream, state.value): float(state is now)
            for upstream, now in moment.breakers.items()
            for state in BreakerState
        },
        "upstream",
        "state",
    )
    for name, help_text, read in _OF_ENGINES:
        values = {
            (upstream, state.engine or ""): value
            for upstream, state in moment.engines.items()
            if (value := read(state)) is not None
        }
        yield _gauge(name, help_text, values, "upstream", "engine")
    yield _counter(
        "taximeter_upstream_scrapes",
        "Readings of upstreams' own pages, ok or failed.",
        moment.scrapes,
        "upstream",
        "result",
    )


_OF_ENGINES: Final[tuple[tuple[str, str, Callable[[EngineState], float | None]], ...]] = (
    (
        "taximeter_upstream_queue",
        "Requests that wait in an engine behind us, as its own page has it.",
        lambda s: s.queue,
    ),
    ("taximeter_upstream_running", "Requests that an engine behind us is working on.", lambda s: s.running),
    (
        "taximeter_upstream_kv_usage_ratio",
        "Share of its KV memory that an engine behind us has in use.",
        lambda s: s.kv_usage_ratio,
    ),
    (
        "taximeter_upstream_prefix_hit_ratio",
        "Share of prompt tokens that an engine behind us found in its cache, since its start where it counts them.",
        lambda s: s.prefix_hit_ratio,
    ),
)


def _of_the_house(moment: Moment) -> Iterator[Metric]:
    yield _gauge("taximeter_requests_in_flight", "Requests without a receipt yet.", {(): float(moment.in_flight)})
    ledger = moment.ledger
    yield _counter(
        "taximeter_ledger_accepted_receipts",
        "Receipts that were to be written since this process began: accepted = written + spooled + waiting + lost.",
        {(): ledger.accepted},
    )
    yield _counter("taximeter_ledger_written_receipts", "Receipts in the database.", {(): ledger.written})
    yield _counter("taximeter_ledger_lost_receipts", "Receipts that nobody has.", {(): ledger.lost})
    yield _gauge(
        "taximeter_ledger_lost_before_receipts",
        "Receipts that processes lost which have ended, as the ledger was told; nothing until it has been seen.",
        {} if moment.lost_before is None else {(): float(moment.lost_before)},
    )
    yield _gauge("taximeter_ledger_waiting_receipts", "Receipts on their way there.", {(): float(ledger.waiting)})
    spooled = {(): float(ledger.spooled)}
    yield _gauge(
        "taximeter_ledger_spooled_receipts", "Receipts on this machine's disk until the database is back.", spooled
    )
    if moment.spans:
        yield _counter(
            "taximeter_otlp_spans",
            "OpenTelemetry's spans: sent, dropped because nobody took them in time, or not sampled.",
            {(result,): count for result, count in moment.spans.items()},
            "result",
        )


def _of_machines(machines: Mapping[str, MachineStatement]) -> Iterator[Metric]:
    seconds: dict[tuple[str, ...], float] = {}
    dollars: dict[tuple[str, ...], float] = {}
    rates: dict[tuple[str, ...], float] = {}
    for name, statement in machines.items():
        seconds[name, "charged"] = statement.charged_ns / _NS_PER_S
        seconds[name, "in_flight"] = statement.in_flight_ns / _NS_PER_S
        seconds[name, "idle"] = statement.idle_ns / _NS_PER_S
        dollars[name, "charged"] = float(statement.charged)
        dollars[name, "in_flight"] = float(statement.in_flight)
        dollars[name, "idle"] = float(statement.idle)
        rates[(name,)] = float(statement.rate.amount_per_hour) * _NS_PER_S / NS_PER_HOUR
    whose = "machine", "use"
    yield _gauge(
        "taximeter_machine_seconds",
        "Where the time of a machine with an hourly rate went since it came up: charged to receipts, in flight on "
        "requests without one yet, idle. The three are all of it.",
        seconds,
        *whose,
    )
    yield _gauge("taximeter_machine_dollars", "The same in dollars: together the machine's bill.", dollars, *whose)
    yield _gauge("taximeter_machine_dollars_per_second", "What a machine costs.", rates, "machine")


def _of_the_engine(engine: EngineLoad, sums: Sums) -> Iterator[Metric]:
    blocks: dict[tuple[str, ...], float] = {}
    for model, load in engine.models.items():
        blocks[model, "free"] = load.free_kv_blocks
        blocks[model, "cached"] = load.cached_kv_blocks
        blocks[model, "used"] = load.used_kv_blocks
    yield _gauge(
        "taximeter_engine_kv_blocks",
        "Blocks of our own engine's KV cache: free, cached (given up when they are needed), used.",
        blocks,
        "model",
        "state",
    )
    running = {(model,): float(load.running_sequences) for model, load in engine.models.items()}
    yield _gauge("taximeter_engine_running_sequences", "Sequences in our engine's steps.", running, "model")
    waiting = {(): float(engine.waiting_requests)}
    yield _gauge("taximeter_engine_queue", "Requests that wait in our own engine.", waiting)
    yield _counter(
        "taximeter_engine_decode_read_bytes",
        "What decoding had to read: by the seconds, and by the ceiling, it is the share of the memory bus in use.",
        {(): sums.decode_read_bytes},
    )
    yield _counter("taximeter_engine_decode_seconds", "Machine time of decoding.", {(): sums.decode_ns / _NS_PER_S})
    ceiling = sums.read_ceiling_bytes_per_s
    yield _gauge(
        "taximeter_engine_read_ceiling_bytes_per_second",
        "What this machine's memory bus was measured to do at most.",
        {} if ceiling is None else {(): float(ceiling)},
    )


def _whose(labels: Labels, *, with_outcome: bool = False) -> tuple[str, ...]:
    whose = (labels.upstream, labels.model, labels.dialect.value)
    return (*whose, labels.outcome.value) if with_outcome else whose


def _summed(
    sums: Sums, value: Callable[[Figures], float], *, with_outcome: bool = False
) -> Mapping[tuple[str, ...], float]:
    found: defaultdict[tuple[str, ...], float] = defaultdict(int)
    for labels, figures in sums.figures.items():
        found[_whose(labels, with_outcome=with_outcome)] += value(figures)
    return found


def _by_bucket(sums: Sums, value: Callable[[Figures], Mapping[str, int]]) -> Mapping[tuple[str, ...], float]:
    found: Counter[tuple[str, ...]] = Counter()
    for labels, figures in sums.figures.items():
        for bucket, count in value(figures).items():
            found[*_whose(labels), bucket.removesuffix("_tokens")] += count
    return found


def _merged(
    sums: Sums, value: Callable[[Figures], Histogram], *, with_outcome: bool = False
) -> Mapping[tuple[str, ...], list[Histogram]]:
    found: defaultdict[tuple[str, ...], list[Histogram]] = defaultdict(list)
    for labels, figures in sums.figures.items():
        histogram = value(figures)
        if histogram.count:
            found[_whose(labels, with_outcome=with_outcome)].append(histogram)
    return found


def _counter(name: str, help_text: str, values: Mapping[tuple[str, ...], float], *labels: str) -> CounterMetricFamily:
    from prometheus_client.core import CounterMetricFamily  # noqa: PLC0415  # see `render`

    family = CounterMetricFamily(name, help_text, labels=labels)
    for whose, value in sorted(values.items()):
        family.add_metric(whose, value)
    return family


def _gauge(name: str, help_text: str, values: Mapping[tuple[str, ...], float], *labels: str) -> GaugeMetricFamily:
    from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415  # see `render`

    family = GaugeMetricFamily(name, help_text, labels=labels)
    for whose, value in sorted(values.items()):
        family.add_metric(whose, value)
    return family


def _histogram(
    name: str, help_text: str, values: Mapping[tuple[str, ...], Iterable[Histogram]], *labels: str
) -> HistogramMetricFamily:
    from prometheus_client.core import HistogramMetricFamily  # noqa: PLC0415  # see `render`

    family = HistogramMetricFamily(name, help_text, labels=labels)
    for whose, histograms in sorted(values.items()):
        first, *others = histograms
        whole = first.copy()
        for other in others:
            whole.merge(other)
        family.add_metric(whose, _buckets(whole), whole.total / whole.unit)
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Cumulative, as the format has it."""
    below = 0
    buckets: list[tuple[str, float]] = []
    bounds = [*(str(bound / histogram.unit) for bound in histogram.bounds), "+Inf"]
    for bound, count in zip(bounds, histogram.counts, strict=True):
        below += count
        buckets.append((bound, below))
    return buckets
