"""What leaves over OTLP, as a collector reads it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Generator, Iterable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from taximeter.errors import ConfigError
from taximeter.records import Dialect, Outcome, Receipt, Usage, Work
from taximeter.telemetry import exporter as exporter_module
from taximeter.telemetry import names
from taximeter.telemetry.exporter import Exporter
from taximeter.telemetry.tally import Tally
from taximeter.upstreams.config import Network
from tests.otlp_harness import Collector, attributes, collecting
from tests.unit.ledger.records import any_receipts
from tests.unit.telemetry.receipts import NETWORK, NOON, a_receipt, refused

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Generator[Collector]:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_SAMPLER", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)
    with collecting() as started:
        yield started


def export(collector: Collector, receipts: Iterable[Receipt], network: Network = NETWORK) -> Exporter:
    """Send everything, spans and metrics, and stop."""
    tally = Tally()
    exporter = Exporter(tally, network, endpoint=collector.url)
    for receipt in receipts:
        tally.add(receipt)
        exporter.add(receipt)
    exporter.start()
    exporter.close()
    return exporter


def the_span(collector: Collector, receipt: Receipt) -> tuple[Span, dict[str, object]]:
    export(collector, [receipt])
    [span] = collector.spans(1)
    return span, attributes(span)


def test_a_span_has_todays_names_and_ours(collector: Collector):
    """One span per receipt, over the whole time with all tries; totals include their parts."""
    receipt = a_receipt(request={"session": "s1", "task": "t1", "tier": "auto", "labels": {"team": "red"}})
    span, said = the_span(collector, receipt)
    assert span.name == "chat claude-x"
    assert span.kind == Span.SPAN_KIND_CLIENT
    assert span.end_time_unix_nano - span.start_time_unix_nano == 1_200_000_000
    assert span.start_time_unix_nano == int(NOON.timestamp()) * 10**9
    assert span.status.code == Status.STATUS_CODE_UNSET
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "claude-x",
        "gen_ai.response.model": "claude-x-20261001",
        "gen_ai.request.stream": True,
        "gen_ai.conversation.id": "s1",
        "gen_ai.response.finish_reasons": ["end_turn"],
        "gen_ai.response.time_to_first_chunk": 0.1,
        "gen_ai.usage.input_tokens": 60 + 40 + 7 + 200,
        "gen_ai.usage.cache_read.input_tokens": 40,
        "gen_ai.usage.cache_write.input_tokens": 7,
        "gen_ai.usage.text.input_tokens": 107,
        "gen_ai.usage.image.input_tokens": 200,
        "gen_ai.usage.output_tokens": 11,
        "gen_ai.usage.reasoning.output_tokens": 3,
        "server.address": "api.example.com",
        "server.port": 443,
        "taximeter.time_to_first_token": 0.2,
        "taximeter.time_to_first_answer": 0.3,
        "taximeter.inter_token_latency": 0.1,
        "taximeter.phase.gateway": 0.002,
        "taximeter.phase.upstream": 1.198,
        "taximeter.usage.input_cache_write_1h_tokens": 7,
        "taximeter.usage.basis": "reported",
        "taximeter.cost.usd": 0.25,
        "taximeter.cost.usd_exact": "0.25",
        "taximeter.tier.asked": "auto",
        "taximeter.tier.served": "priority",
        "taximeter.task": "t1",
        "taximeter.label.team": "red",
        "taximeter.receipt.id": receipt.id,
        "taximeter.outcome": "completed",
        "taximeter.attempts": 2,
    }
    assert {name: said.get(name) for name in expected} == expected
    assert [attributes(event) for event in span.events] == [
        {"taximeter.upstream.name": "farm", "taximeter.try.status": 503},
        {"taximeter.upstream.name": "claude", "taximeter.try.status": 200},
    ]


def test_the_conventions_own_example(collector: Collector):
    """100 text tokens of which 40 were cached, and 200 of an image: 300 in, 40 cached, 100 text, 200 image."""
    usage = Usage(input_fresh_tokens=60, input_cache_read_tokens=40, input_image_tokens=200, output_text_tokens=5)
    _, said = the_span(collector, a_receipt(usage=usage))
    assert said["gen_ai.usage.input_tokens"] == 300
    assert said["gen_ai.usage.cache_read.input_tokens"] == 40
    assert said["gen_ai.usage.text.input_tokens"] == 100
    assert said["gen_ai.usage.image.input_tokens"] == 200
    metrics = collector.newest_metrics()
    assert numbers(metrics[names.USAGE_INPUT], names.MODALITY) == {"text": 100, "image": 200}
    assert numbers(metrics[names.USAGE_CACHE_READ], names.MODALITY) == {"text": 40}


def numbers(metric: object, by: str) -> dict[object, float]:
    """The points of a sum, by one of their attributes."""
    found: dict[object, float] = {}
    for point in metric.sum.data_points:  # type: ignore[attr-defined]
        key = attributes(point).get(by)
        found[key] = found.get(key, 0) + (point.as_int or point.as_double)
    return found


def test_metrics_are_the_sums_of_receipts(collector: Collector):
    """Cumulative and monotonic, with the conventions' own bounds; what is not known is omitted, and counted."""
    export(collector, [a_receipt(), a_receipt(dollars=None), refused()])
    metrics = collector.newest_metrics()
    assert numbers(metrics[names.USAGE_INPUT], names.REQUEST_MODEL) == {"claude-x": 2 * 307}
    assert numbers(metrics[names.USAGE_CACHE_WRITE], names.PROVIDER) == {"anthropic": 2 * 7}
    assert numbers(metrics[names.USAGE_REASONING], names.MODALITY) == {"text": 2 * 3}
    assert numbers(metrics[names.OWN_METRIC_COST], names.PROVIDER) == {"anthropic": 0.25, "taximeter": 0}
    assert numbers(metrics[names.OWN_METRIC_OMITTED], names.OWN_UPSTREAM) == {"claude": 0, "nobody": 1}
    assert numbers(metrics[names.OWN_METRIC_TOKENS], names.OWN_BUCKET)["input_cache_write_1h"] == 2 * 7
    duration = metrics[names.DURATION].histogram
    points = {attributes(point).get(names.ERROR): point for point in duration.data_points}
    assert set(points) == {None, "refused"}
    assert tuple(points[None].explicit_bounds) == names.DURATION_BOUNDS_S
    assert sum(points[None].bucket_counts) == points[None].count == 2
    assert points[None].bucket_counts[7] == 2  # 1.2 s is above 0.64 and not above 1.28
    assert points["refused"].bucket_counts[0] == 1  # a millisecond, folded into the first
    assert points[None].sum == 2 * 1.2
    assert metrics[names.TIME_TO_FIRST_CHUNK].histogram.data_points[0].sum == 0.2
    assert metrics[names.OWN_METRIC_FIRST_TOKEN].histogram.data_points[0].sum == 0.4
    for metric in metrics.values():
        kind = metric.histogram if metric.HasField("histogram") else metric.sum
        assert kind.aggregation_temporality == 2
        assert metric.HasField("histogram") or metric.sum.is_monotonic


def test_a_request_without_usage_has_no_tokens(collector: Collector):
    """Rather than 0; and an error has its class, not its text."""
    span, said = the_span(collector, refused())
    assert not any(name.startswith("gen_ai.usage") for name in said)
    assert said["error.type"] == "RequestError"
    assert span.status.code == Status.STATUS_CODE_ERROR
    assert not span.status.message
    assert not any(b"secret" in body for body in collector.bodies)


def test_a_refusal_of_an_upstream_is_its_status(collector: Collector):
    """The last try's."""
    tries = a_receipt().tries[:1]
    _, said = the_span(collector, a_receipt(outcome=Outcome.FAILED, tries=tries, error="overloaded: nobody"))
    assert said["error.type"] == "503"
    assert said["gen_ai.request.model"] == "claude-x"
    assert "gen_ai.response.model" not in said  # nobody's answer has no model


def test_the_callers_span_is_the_parent(collector: Collector):
    """By `traceparent`; without one the trace is our own, and both ids can be told from the receipt."""
    named = a_receipt(request={"traceparent": f"00-{TRACE}-{PARENT}-01", "trace": TRACE})
    alone = a_receipt()
    export(collector, [named, alone])
    one, other = collector.spans(2)
    assert (one.trace_id.hex(), one.parent_span_id.hex()) == (TRACE, PARENT)
    assert one.span_id == hashlib.sha256(named.id.encode()).digest()[:8]
    assert other.parent_span_id == b""
    assert other.trace_id == hashlib.sha256(alone.request.id.encode()).digest()[:16]


def test_who_does_not_record_a_trace_gets_no_span(collector: Collector):
    """Its flag says so; metrics count the request all the same."""
    exporter = export(collector, [a_receipt(request={"traceparent": f"00-{TRACE}-{PARENT}-00"})])
    assert exporter.counts() == {"sent": 0, "dropped": 0, "unsampled": 1}
    assert numbers(collector.newest_metrics()[names.OWN_METRIC_RECEIPTS], names.PROVIDER) == {"anthropic": 1}


def test_our_own_engine_is_in_here(collector: Collector):
    """INTERNAL, by our name; its first chunk is its first token."""
    work = Work(prefill_passes=1, decode_passes=1, computed_tokens=2)
    receipt = a_receipt(served_by="embedded", work=work, request={"dialect": Dialect.OPENAI_COMPLETIONS})
    span, said = the_span(collector, receipt)
    assert span.kind == Span.SPAN_KIND_INTERNAL
    assert said["gen_ai.provider.name"] == "taximeter"
    assert said["gen_ai.operation.name"] == "text_completion"
    assert said["gen_ai.response.time_to_first_chunk"] == 0.2
    assert "server.address" not in said


def test_the_environment_names_the_service_and_its_headers(collector: Collector, monkeypatch: pytest.MonkeyPatch):
    """As everywhere in OpenTelemetry."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "front-desk")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=blue")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    export(collector, [a_receipt()])
    collector.spans(1)
    said = attributes(collector.traces[0].resource_spans[0].resource)
    assert (said["service.name"], said["deployment.environment.name"]) == ("front-desk", "test")
    assert said["service.instance.id"]
    assert {headers["x-tenant"] for headers in collector.headers} == {"blue"}


def test_a_collector_that_is_away_costs_spans_and_one_line(collector: Collector, caplog: pytest.LogCaptureFixture):
    """Counted as dropped; the log has it once, and has the exporter's reason once."""
    caplog.set_level(logging.WARNING)
    collector.is_away = True
    exporter = export(collector, [a_receipt() for _ in range(3)])
    assert exporter.counts() == {"sent": 0, "dropped": 3, "unsampled": 0}
    assert [record.message for record in caplog.records].count("the OpenTelemetry collector takes no data") == 1
    assert len(caplog.records) <= 3


def test_nobody_waits_for_a_collector_that_hangs(collector: Collector, monkeypatch: pytest.MonkeyPatch):
    """What does not fit into the queue is dropped at once, and counted; closing has a limit."""
    monkeypatch.setattr(exporter_module, "_PATIENCE_AT_THE_END_S", 0.2)
    collector.is_stuck = True
    exporter = Exporter(Tally(), NETWORK, endpoint=collector.url)
    exporter.start()
    receipt = a_receipt()
    for _ in range(512):
        exporter.add(receipt)
    assert collector.asked.acquire(timeout=20)
    for _ in range(2048 + 5):
        exporter.add(receipt)
    assert exporter.counts()["dropped"] == 5
    exporter.close()
    exporter.close()
    collector.may_answer.set()


# While an input is made, OpenTelemetry's own threads may still be at work, with ids and pauses from `random`.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(st.lists(any_receipts(), min_size=1, max_size=4))
def test_whatever_is_on_receipts_all_of_them_arrive(collector: Collector, receipts: Sequence[Receipt]):
    """Names that are no UTF-8 and numbers that no integer of theirs can hold do not cost the others."""
    before = len(collector.spans(0))
    assert export(collector, receipts).counts() == {"sent": len(receipts), "dropped": 0, "unsampled": 0}
    assert len(collector.spans(before + len(receipts))) == before + len(receipts)
    counted = numbers(collector.newest_metrics()[names.OWN_METRIC_RECEIPTS], names.OWN_UPSTREAM)
    assert sum(counted.values()) == len(receipts)


def test_it_is_on_only_when_asked_for(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """By the setting, or by any of OpenTelemetry's variables; and off when those say so."""

    def configured(endpoint: str | None = None, **environ: str) -> Exporter | None:
        return Exporter.configured(Tally(), NETWORK, endpoint=endpoint, environ=environ)

    assert configured() is None
    assert configured(OTEL_EXPORTER_OTLP_ENDPOINT="") is None
    assert configured(OTEL_EXPORTER_OTLP_ENDPOINT="http://localhost:4318") is not None
    assert configured(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="http://localhost:4318/v1/traces") is not None
    assert configured("http://localhost:4318") is not None
    assert configured("http://localhost:4318", OTEL_SDK_DISABLED="true") is None
    with pytest.raises(ConfigError, match="otlp_endpoint"):
        configured("localhost:4318")
    monkeypatch.setattr(exporter_module, "_is_installed", lambda: False)
    with pytest.raises(ConfigError) as caught:
        configured("http://localhost:4318")
    assert "taximeter[otel]" in str(caught.value.hint)
    assert configured(OTEL_EXPORTER_OTLP_ENDPOINT="http://localhost:4318") is None
    assert "taximeter[otel]" in caplog.text
