"""Receipts as spans, and their sums as metrics, in OpenTelemetry's own classes.

Owns: what each receipt's span says, and that the two signals agree with each other and with the ledger. Refuses to
know: when they are sent. This is the only module that imports `opentelemetry`.

There is no text of a prompt or an answer in here, for receipts have none, and no text of an error either: a provider
may repeat what it was asked. Ids follow from the receipt's, so that the span of a receipt can be found: the trace is
the caller's, or else the first 16 bytes of SHA-256 of the request's id, and the span the first 8 of the receipt's.
"""

from __future__ import annotations

import hashlib
import logging
import re
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http import metric_exporter, trace_exporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as OtelHistogram
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from taximeter.records import PICODOLLARS_PER_DOLLAR, Cost, Outcome, Receipt, Timing, Usage
from taximeter.telemetry import names
from taximeter.telemetry.tally import NOBODY, Figures, Histogram, Labels, Sums, first_chunk_of
from taximeter.upstreams.config import Network

Value = str | bool | int | float | Sequence[str]

_SCOPE: Final = "taximeter"
_NS_PER_S: Final = 1_000_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ERRORS: Final = frozenset({Outcome.REFUSED, Outcome.FAILED, Outcome.INTERRUPTED})
_ERROR_CLASS: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,60}(?=:|$)")
_MOST: Final = 2**63 - 1
_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE


class Otlp:
    """Speaks to one collector. For one thread; only `give_up` may be called from another."""

    def __init__(self, network: Network, *, endpoint: str | None, started_at: datetime) -> None:
        """`endpoint` is the collector's base URL, None where OpenTelemetry's variables say it. `started_at` is when
        the sums began."""
        from taximeter import __version__  # noqa: PLC0415  # reads the installation's metadata

        base = None if endpoint is None else endpoint.rstrip("/")
        self._span_exporter = trace_exporter.OTLPSpanExporter(base and f"{base}/v1/traces")
        self._metric_exporter = metric_exporter.OTLPMetricExporter(base and f"{base}/v1/metrics")
        self._started_ns = _wall_ns(started_at)
        self._resource = _resource(__version__)
        self._scope = InstrumentationScope(_SCOPE, __version__)
        self._peers = {name: _peer(upstream.url) for name, upstream in network.upstreams.items()}
        self._providers = {
            name: names.PROVIDERS.get(upstream.provider, upstream.provider)
            if upstream.provider
            else upstream.speaks.value
            for name, upstream in network.upstreams.items()
        }
        self._ids = _Ids()
        self._ended = _Ended()
        provider = TracerProvider(resource=self._resource, id_generator=self._ids, shutdown_on_exit=False)
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer(_SCOPE, __version__)

    def spans(self, receipts: Iterable[Receipt]) -> list[ReadableSpan]:
        """One span for each receipt whose trace is recorded: who does not want that says so in `traceparent`, or with
        OTEL_TRACES_SAMPLER."""
        for receipt in receipts:
            self._make_span(receipt)
        return self._ended.take()

    def send_spans(self, spans: Sequence[ReadableSpan]) -> bool:
        """Whether the collector took them."""
        return self._span_exporter.export(spans) is SpanExportResult.SUCCESS

    def send_metrics(self, sums: Sums, at: datetime) -> bool:
        """Whether the collector took them."""
        points = _Points(self._started_ns, _wall_ns(at))
        for labels, figures in sums.figures.items():
            points.add(self._whose(labels), labels, figures)
        scope = ScopeMetrics(scope=self._scope, metrics=points.metrics(), schema_url="")
        data = MetricsData([ResourceMetrics(resource=self._resource, scope_metrics=[scope], schema_url="")])
        result = self._metric_exporter.export(data)  # pyright: ignore[reportUnknownMemberType]  # its **kwargs
        return result is MetricExportResult.SUCCESS

    def quiet(self, *, is_quiet: bool) -> None:
        """Whether the exporters keep their failures to themselves: they tell each one, in several lines."""
        for module in (trace_exporter, metric_exporter):
            logging.getLogger(module.__name__).disabled = is_quiet

    def give_up(self) -> None:
        """Let a collector go that does not answer."""
        self.quiet(is_quiet=True)
        self._span_exporter.shutdown()
        self._metric_exporter.shutdown()  # pyright: ignore[reportUnknownMemberType]  # the same

    def _whose(self, labels: Labels) -> dict[str, Value]:
        whose: dict[str, Value] = {
            names.OPERATION: names.OPERATIONS[labels.dialect],
            names.PROVIDER: self._provider(labels.upstream),
            names.REQUEST_MODEL: labels.model,
            names.OWN_UPSTREAM: labels.upstream,
        }
        return whose

    def _provider(self, upstream: str | None) -> str:
        return self._providers.get(upstream or NOBODY, names.OUR_ENGINE)

    def _make_span(self, receipt: Receipt) -> None:
        request = receipt.request
        started_ns = _wall_ns(request.received_at)
        self._ids.next_for(receipt)
        context = Context()
        if request.traceparent is not None:
            context = TraceContextTextMapPropagator().extract({"traceparent": request.traceparent}, context)
        operation = names.OPERATIONS[request.dialect]
        span = self._tracer.start_span(
            _text(f"{operation} {request.model}"),
            context=context,
            kind=SpanKind.INTERNAL if receipt.work is not None else SpanKind.CLIENT,
            attributes={
                names.OPERATION: operation,
                names.PROVIDER: self._provider(receipt.served_by),
                names.REQUEST_MODEL: _text(request.model),
            },
            start_time=started_ns,
        )
        if span.is_recording():
            span.set_attributes(dict(_attributes(receipt)))
            span.set_attributes(self._peers.get(receipt.served_by or NOBODY, {}))
            for attempt in receipt.tries:
                tried: dict[str, Value] = {names.OWN_UPSTREAM: _text(attempt.upstream)}
                if attempt.status is not None:
                    tried[names.OWN_TRY_STATUS] = attempt.status
                span.add_event(names.OWN_TRY, tried, timestamp=min(started_ns + attempt.started_ns, _MOST))
            if receipt.outcome in _ERRORS:
                span.set_attribute(names.ERROR, _error_type(receipt))
                span.set_status(Status(StatusCode.ERROR))
        took_ns = 0 if receipt.timing is None else receipt.timing.total_ns
        span.end(min(started_ns + took_ns, _MOST))


def _attributes(receipt: Receipt) -> Iterable[tuple[str, Value]]:
    """What is known of a receipt. What is not is left out."""
    request, terms = receipt.request, receipt.terms
    said: dict[str, Value | None] = {
        names.RESPONSE_MODEL: receipt.model_served if _was_answered(receipt) else None,
        names.STREAM: True if request.stream else None,
        names.MAX_TOKENS: request.max_output_tokens,
        names.CHOICES: request.sampling.choices if request.sampling.choices != 1 else None,
        names.CONVERSATION: request.session,
        names.FINISH_REASONS: receipt.finish_reasons or None,
        names.FIRST_CHUNK: _seconds(first_chunk_of(receipt)),
        names.OWN_RECEIPT: receipt.id,
        names.OWN_REQUEST: request.id,
        names.OWN_UPSTREAM_REQUEST: receipt.upstream_request_id,
        names.OWN_DIALECT: request.dialect.value,
        names.OWN_OUTCOME: receipt.outcome.value,
        names.OWN_UPSTREAM: receipt.served_by,
        names.OWN_ATTEMPTS: receipt.attempts,
        names.OWN_TASK: request.task,
        names.OWN_RUN: request.run,
        names.OWN_UNCOSTED: receipt.uncosted_reason,
        names.OWN_TIER_ASKED: request.tier,
        names.OWN_TIER_SERVED: None if terms is None else terms.tier,
        names.OWN_SPEED: None if terms is None else terms.speed,
        names.OWN_GEOGRAPHY: None if terms is None else terms.geography,
        names.OWN_INTER_TOKEN: _seconds(receipt.inter_token_ns),
    }
    said |= {names.OWN_LABEL + name: value for name, value in request.labels.items()}
    if receipt.timing is not None:
        said |= _of_timing(receipt.timing)
    if receipt.usage is not None:
        said |= _of_usage(receipt.usage)
    if receipt.cost is not None:
        said |= _of_cost(receipt.cost)
    return ((_text(name), _sendable(value)) for name, value in said.items() if value is not None)


def _was_answered(receipt: Receipt) -> bool:
    """Whether a model can have answered: else a receipt only has the one that was asked for."""
    statuses = [attempt.status for attempt in receipt.tries]
    return not statuses or any(status is not None and status < 300 for status in statuses)


def _sendable(value: Value) -> Value:
    """As OTLP can carry it: one attribute that it could not would cost a whole batch."""
    if isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return max(-_MOST, min(value, _MOST))
    return _text(value) if isinstance(value, str) else [_text(each) for each in value]


def _text(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _of_timing(timing: Timing) -> dict[str, Value | None]:
    phases = {names.OWN_PHASE + phase.value: ns / _NS_PER_S for phase, ns in timing.phases().items() if ns}
    return {
        names.OWN_FIRST_TOKEN: _seconds(timing.first_token_ns),
        names.OWN_FIRST_ANSWER: _seconds(timing.first_answer_ns),
        **phases,
    }


def _of_usage(usage: Usage) -> dict[str, Value | None]:
    """Totals that include their parts, as the conventions have it, and leaves, of which each token is in one."""
    leaves = usage.leaves()
    said: dict[str, Value | None] = {
        names.INPUT_TOKENS: usage.input_tokens,
        names.OUTPUT_TOKENS: usage.output_tokens,
        names.OWN_USAGE_BASIS: usage.basis.value,
    }
    for part, of in names.USAGE_PARTS.items():
        said[part] = _sum(leaves, of) or None
    modalities = {names.LEAVES[leaf][0] for leaf, tokens in leaves.items() if tokens}
    if modalities - {"text"}:
        for modality in modalities:
            for side, parts in (("input", Usage.INPUT_LEAVES), ("output", Usage.OUTPUT_LEAVES)):
                of = tuple(leaf for leaf in parts if names.LEAVES[leaf][0] == modality)
                said[f"gen_ai.usage.{modality}.{side}_tokens"] = _sum(leaves, of) or None
    said |= {names.OWN_USAGE + leaf: tokens for leaf, tokens in leaves.items() if tokens}
    return said


def _sum(leaves: Mapping[str, int | None], of: Iterable[str]) -> int | None:
    counts = [leaves[leaf] for leaf in of]
    return None if None in counts else sum(count or 0 for count in counts)


def _of_cost(cost: Cost) -> dict[str, Value | None]:
    return {
        names.OWN_COST: float(cost.total),
        names.OWN_COST_EXACT: f"{cost.total:f}",
        names.OWN_COST_BASIS: cost.basis.value,
    }


def _error_type(receipt: Receipt) -> str:
    """The status that came back, or the class of what went wrong; never its text."""
    status = receipt.tries[-1].status if receipt.tries else None
    if status is not None and status >= 400:
        return str(status)
    named = _ERROR_CLASS.match(receipt.error or "")
    return receipt.outcome.value if named is None else named[0]


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / _NS_PER_S


def _wall_ns(at: datetime) -> int:
    return min((at - _EPOCH) // timedelta(microseconds=1) * 1_000, _MOST)


def _peer(url: str) -> dict[str, Value]:
    parts = urlsplit(url)
    peer: dict[str, Value] = {}
    if parts.hostname:
        peer = {
            names.SERVER_ADDRESS: parts.hostname,
            names.SERVER_PORT: parts.port or (443 if parts.scheme == "https" else 80),
        }
    return peer


def _resource(version: str) -> Resource:
    """What the environment says of this process, and our name where it says none."""
    resource = Resource.create({"service.version": version})
    ours: dict[str, str] = {}
    if str(resource.attributes.get("service.name", "unknown_service")).startswith("unknown_service"):
        ours["service.name"] = _SCOPE
    if "service.instance.id" not in resource.attributes:
        ours["service.instance.id"] = str(uuid.uuid4())  # sums of several processes must not be taken for one's
    return resource.merge(Resource(ours))


class _Ids(IdGenerator):
    def __init__(self) -> None:
        self._trace_id = self._span_id = 0

    def next_for(self, receipt: Receipt) -> None:
        self._trace_id = int.from_bytes(hashlib.sha256(receipt.request.id.encode()).digest()[:16])
        self._span_id = int.from_bytes(hashlib.sha256(receipt.id.encode()).digest()[:8])

    def generate_trace_id(self) -> int:
        return self._trace_id

    def generate_span_id(self) -> int:
        return self._span_id


class _Ended(SpanProcessor):
    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self._spans.append(span)

    def take(self) -> list[ReadableSpan]:
        spans, self._spans = self._spans, []
        return spans


_Whose = tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True)
class _Instrument:
    name: str
    unit: str
    text: str


_SUMS: Final[Mapping[str, _Instrument]] = {
    instrument.name: instrument
    for instrument in (
        _Instrument(names.USAGE_INPUT, "{token}", "Input tokens, cached ones included."),
        _Instrument(names.USAGE_OUTPUT, "{token}", "Output tokens, reasoning included."),
        _Instrument(names.USAGE_CACHE_READ, "{token}", "Input tokens that came from a cache."),
        _Instrument(names.USAGE_CACHE_WRITE, "{token}", "Input tokens that were written to a cache."),
        _Instrument(names.USAGE_REASONING, "{token}", "Output tokens that are reasoning."),
        _Instrument(names.OWN_METRIC_TOKENS, "{token}", "Tokens, each in one bucket."),
        _Instrument(names.OWN_METRIC_RECEIPTS, "{receipt}", "Receipts, by outcome."),
        _Instrument(names.OWN_METRIC_UNPRICED, "{receipt}", "Receipts whose cost is not known."),
        _Instrument(names.OWN_METRIC_OMITTED, "{receipt}", "Receipts whose tokens are not known, and not counted."),
        _Instrument(names.OWN_METRIC_COST, "{USD}", "Cost of receipts that have one."),
    )
}
_HISTOGRAMS: Final[Mapping[str, _Instrument]] = {
    instrument.name: instrument
    for instrument in (
        _Instrument(names.DURATION, "s", "From a request's arrival until its answer is whole."),
        _Instrument(names.TIME_TO_FIRST_CHUNK, "s", "To the first chunk of a stream, whatever is in it."),
        _Instrument(names.OPERATION_INPUT, "{token}", "Input tokens of a request."),
        _Instrument(names.OPERATION_OUTPUT, "{token}", "Output tokens of a request."),
        _Instrument(names.OWN_METRIC_FIRST_TOKEN, "s", "To the first generated token on any channel."),
        _Instrument(names.OWN_METRIC_INTER_TOKEN, "s", "(total - first token) / (output tokens - 1), of one answer."),
        _Instrument(names.OWN_METRIC_PHASE, "s", "What requests were doing, by phase."),
    )
}


class _Points:
    """Data points in the making. Figures of several outcomes may belong to one point."""

    def __init__(self, started_ns: int, at_ns: int) -> None:
        self._started_ns = started_ns
        self._at_ns = at_ns
        self._sums: defaultdict[str, defaultdict[_Whose, int]] = defaultdict(lambda: defaultdict(int))
        self._histograms: defaultdict[str, dict[_Whose, Histogram]] = defaultdict(dict)

    def add(self, whose: Mapping[str, Value], labels: Labels, figures: Figures) -> None:
        """All that is known of one set of labels. A counter of tokens that nobody knows is omitted, not 0."""
        plain = tuple(whose.items())
        failed = (*plain, (names.ERROR, labels.outcome.value)) if labels.outcome in _ERRORS else plain
        for leaf, tokens in figures.tokens.items():
            modality, counters = names.LEAVES[leaf]
            for counter in counters:
                self._sums[counter][*plain, (names.MODALITY, modality)] += tokens
            bucket = leaf.removesuffix("_tokens")
            self._sums[names.OWN_METRIC_TOKENS][*plain, (names.OWN_BUCKET, bucket)] += tokens
        self._sums[names.OWN_METRIC_RECEIPTS][*plain, (names.OWN_OUTCOME, labels.outcome.value)] += figures.receipts
        self._sums[names.OWN_METRIC_UNPRICED][plain] += figures.unpriced
        self._sums[names.OWN_METRIC_OMITTED][plain] += figures.without_usage
        self._sums[names.OWN_METRIC_COST][plain] += figures.picodollars
        self._merge(names.DURATION, failed, figures.total)
        self._merge(names.TIME_TO_FIRST_CHUNK, plain, figures.first_chunk)
        self._merge(names.OPERATION_INPUT, failed, figures.input_tokens)
        self._merge(names.OPERATION_OUTPUT, failed, figures.output_tokens)
        self._merge(names.OWN_METRIC_FIRST_TOKEN, plain, figures.first_token)
        self._merge(names.OWN_METRIC_INTER_TOKEN, plain, figures.inter_token)
        for phase, histogram in figures.phases.items():
            self._merge(names.OWN_METRIC_PHASE, (*plain, (names.OWN_PHASE_NAME, phase.value)), histogram)

    def metrics(self) -> list[Metric]:
        """All of it, in OpenTelemetry's words."""
        made: list[Metric] = []
        for name, values in self._sums.items():
            points = [self._number(whose, value, name) for whose, value in values.items()]
            data = Sum(data_points=points, aggregation_temporality=_CUMULATIVE, is_monotonic=True)
            made.append(_metric(_SUMS[name], data))
        for name, histograms in self._histograms.items():
            of = [self._distribution(whose, histogram, name) for whose, histogram in histograms.items()]
            made.append(_metric(_HISTOGRAMS[name], OtelHistogram(data_points=of, aggregation_temporality=_CUMULATIVE)))
        return made

    def _merge(self, name: str, whose: _Whose, histogram: Histogram) -> None:
        if not histogram.count:
            return
        known = self._histograms[name].get(whose)
        if known is None:
            self._histograms[name][whose] = histogram.copy()
        else:
            known.merge(histogram)

    def _number(self, whose: _Whose, value: int, name: str) -> NumberDataPoint:
        return NumberDataPoint(
            attributes=dict(whose),
            start_time_unix_nano=self._started_ns,
            time_unix_nano=self._at_ns,
            value=value / PICODOLLARS_PER_DOLLAR if name == names.OWN_METRIC_COST else min(value, _MOST),
        )

    def _distribution(self, whose: _Whose, histogram: Histogram, name: str) -> HistogramDataPoint:
        bounds, counts = tuple(bound / histogram.unit for bound in histogram.bounds), histogram.counts
        if name in (names.DURATION, names.TIME_TO_FIRST_CHUNK):
            bounds, counts = _folded(bounds, counts, names.DURATION_BOUNDS_S)
        return HistogramDataPoint(
            attributes=dict(whose),
            start_time_unix_nano=self._started_ns,
            time_unix_nano=self._at_ns,
            count=histogram.count,
            sum=histogram.total / histogram.unit,
            bucket_counts=counts,
            explicit_bounds=bounds,
            min=(histogram.smallest or 0) / histogram.unit,
            max=(histogram.largest or 0) / histogram.unit,
        )


def _folded(
    bounds: Sequence[float], counts: Sequence[int], wanted: Sequence[float]
) -> tuple[tuple[float, ...], list[int]]:
    """The same over fewer bounds, each of which is among the many."""
    kept = [bounds.index(bound) for bound in wanted]
    edges = [0, *(index + 1 for index in kept), len(counts)]
    return tuple(wanted), [sum(counts[low:high]) for low, high in pairwise(edges)]


def _metric(instrument: _Instrument, data: Sum | OtelHistogram) -> Metric:
    return Metric(name=instrument.name, description=instrument.text, unit=instrument.unit, data=data)
