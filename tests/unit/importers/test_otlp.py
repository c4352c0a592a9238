"""Traces of OpenTelemetry: three generations of names, only the calls themselves, and Claude Code's events."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest

from taximeter.importers import otlp, otlp_attributes
from taximeter.importers.logged import LogFile
from taximeter.importers.origins import Origins
from taximeter.records import Outcome
from tests.unit.importers.logs import Desk, total_tokens

START = 1_790_000_000_000_000_000


def value(given: object) -> dict[str, Any]:
    """As OTLP has it in JSON."""
    if isinstance(given, int):
        return {"intValue": str(given)}
    if isinstance(given, float):
        return {"doubleValue": given}
    if isinstance(given, list):
        return {"arrayValue": {"values": [value(each) for each in given]}}
    return {"stringValue": given}


def attributes(given: Mapping[str, object]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value(each)} for key, each in given.items()]


def span(name: str, parent: str | None = None, **given: object) -> dict[str, Any]:
    """A span of a second and a half."""
    return {
        "traceId": "5b8efff798038103d269b633813fc60c",
        "spanId": name,
        "parentSpanId": parent or "",
        "startTimeUnixNano": str(START),
        "endTimeUnixNano": str(START + 1_500_000_000),
        "attributes": attributes({key.replace("__", "."): each for key, each in given.items()}),
    }


def trace(*spans: Mapping[str, Any]) -> dict[str, Any]:
    resource = {"attributes": attributes({"service.name": "shop"})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": list(spans)}]}]}


def usage(total: int, **more: object) -> dict[str, object]:
    """Attributes of a call of so many tokens."""
    named = {"gen_ai__request__model": "opus-card", "gen_ai__provider__name": "anthropic"}
    return {**named, "gen_ai__usage__input_tokens": total - 1, "gen_ai__usage__output_tokens": 1, **more}


@pytest.mark.parametrize("name", ["openai.response.service_tier", "gen_ai.openai.response.service_tier"])
def test_the_tier_that_was_served_is_priced(desk: Desk, name: str) -> None:
    """By its newest name and by the one before."""
    said: dict[str, object] = {"gen_ai.request.model": "g5-card", "gen_ai.provider.name": "openai", name: "priority"}
    desk.write("t.jsonl", trace(span("a", **said, **{"gen_ai.usage.input_tokens": 1_000_000})))
    desk.run()
    assert desk.total() == Decimal("2.50")


def test_an_agents_span_is_the_sum_of_the_calls_in_it(desk: Desk) -> None:
    """Children of 3,031 + 4,421 + 10,709 + 11,738 under a root of 29,899 are 29,899 (Arize-ai/openinference#3164)."""
    children = [
        span(f"c{number}", "root", **usage(total)) for number, total in enumerate((3_031, 4_421, 10_709, 11_738))
    ]
    root = span("root", **usage(29_899, gen_ai__operation__name="invoke_agent"))
    desk.write("trace.json", trace(root, *children))
    desk.run()
    assert desk.tokens() == 29_899
    assert len(desk.receipts()) == 4


@pytest.mark.parametrize(
    "around",
    [
        {"gen_ai__operation__name": "invoke_agent"},
        {"openinference__span__kind": "AGENT"},
        {"openinference__span__kind": "chain"},
        {"ai__operationId": "ai.generateText"},
    ],
)
def test_what_goes_on_around_calls_is_none_in_another_file_either(desk: Desk, around: dict[str, object]) -> None:
    """A collector begins a new file when it likes: the agent's span comes last."""
    inner = {"ai__operationId": "ai.generateText.doGenerate", "openinference__span__kind": "LLM"}
    desk.write("1.json", trace(span("call", "root", **usage(100, **inner))))
    desk.write("2.json", trace(span("root", **usage(100, **around))))
    summary = desk.run()
    assert desk.tokens() == 100
    assert summary.notes["a span of an agent or a tool, without the calls within it"] == 1


def test_a_sum_above_a_span_without_usage_is_found_too(desk: Desk) -> None:
    """There may be a tool or a chain between them."""
    desk.write(
        "trace.jsonl",
        trace(span("root", **usage(100))),
        trace(span("tool", "root"), span("call", "tool", **usage(100))),
    )
    desk.run()
    assert desk.tokens() == 100


@pytest.mark.parametrize(
    "given",
    [
        {
            "gen_ai__system": "anthropic",
            "gen_ai__request__model": "opus-card",
            "gen_ai__usage__prompt_tokens": 130_213,
            "gen_ai__usage__completion_tokens": 10,
            "gen_ai__usage__cache_read_input_tokens": 128_955,
            "gen_ai__usage__cache_creation_input_tokens": 1_253,
        },
        {
            "gen_ai__provider__name": "anthropic",
            "gen_ai__response__model": "opus-card",
            "gen_ai__usage__input_tokens": 130_213,
            "gen_ai__usage__output_tokens": 10,
            "gen_ai__usage__cache_read__input_tokens": 128_955,
            "gen_ai__usage__cache_creation__input_tokens": 1_253,
        },
        {
            "gen_ai__provider__name": "anthropic",
            "gen_ai__response__model": "opus-card",
            "gen_ai__usage__input_tokens": 130_213,
            "gen_ai__usage__output_tokens": 10,
            "gen_ai__usage__prompt_tokens": 1,
            "gen_ai__usage__cache_read__input_tokens": 128_955,
            "gen_ai__usage__cache_write__input_tokens": 1_253,
        },
    ],
    ids=["legacy", "deprecated", "newest"],
)
def test_all_generations_of_names_say_the_same(desk: Desk, given: dict[str, object]) -> None:
    """Totals have their parts in them: leaves 5 / 1,253 / 128,955, never 260,421 tokens (langfuse/langfuse#12306)."""
    desk.write("trace.json", trace(span("a", **given)))
    desk.run()
    (receipt,) = desk.receipts()
    used = receipt.usage
    assert used is not None
    assert (used.input_fresh_tokens, used.input_cache_write_unknown_tokens, used.input_cache_read_tokens) == (
        5,
        1_253,
        128_955,
    )
    assert used.input_tokens == 130_213
    assert receipt.cost is not None
    assert receipt.cost.input == Decimal("0.07233375")
    assert receipt.timing is not None
    assert receipt.timing.total_ns == 1_500_000_000
    assert receipt.request.labels == {"service": "shop"}
    assert receipt.request.run == "5b8efff798038103d269b633813fc60c"


@pytest.mark.parametrize(
    "given",
    [
        {  # version 5: the input is without what was cached, and what was written stands in the provider's own words
            "ai__usage__inputTokens": 3,
            "ai__usage__cachedInputTokens": 2_000,
            "ai__response__providerMetadata": '{"anthropic":{"cacheCreationInputTokens":12304}}',
            "gen_ai__usage__input_tokens": 3,
        },
        {  # version 4
            "ai__usage__promptTokens": 3,
            "ai__response__providerMetadata": json.dumps(
                {"anthropic": {"cacheCreationInputTokens": 12_304, "cacheReadInputTokens": 2_000}}
            ),
            "gen_ai__usage__input_tokens": 3,
        },
        {  # version 6: all of it
            "ai__usage__inputTokens": 14_307,
            "ai__usage__cachedInputTokens": 2_000,
            "ai__usage__inputTokenDetails__noCacheTokens": 3,
            "ai__usage__inputTokenDetails__cacheReadTokens": 2_000,
            "ai__usage__inputTokenDetails__cacheWriteTokens": 12_304,
            "ai__response__providerMetadata": '{"anthropic":{"cacheCreationInputTokens":12304}}',
            "gen_ai__usage__input_tokens": 14_307,
        },
    ],
)
def test_what_an_sdk_calls_input_has_cached_tokens_in_it_since_its_version_six(
    desk: Desk, given: dict[str, object]
) -> None:
    said = {"ai__model__provider": "anthropic.messages", "ai__model__id": "opus-card", "ai__usage__outputTokens": 550}
    desk.write("t.json", trace(span("a", **said, **given, gen_ai__usage__output_tokens=550)))
    desk.run()
    used = desk.receipts()[0].usage
    assert used is not None
    assert (used.input_fresh_tokens, used.input_cache_read_tokens, used.output_tokens) == (3, 2_000, 550)
    assert desk.total() == (3 * 5 + 2_000 * Decimal("0.5") + 12_304 * Decimal("6.25") + 550 * 25) / Decimal(1_000_000)


def test_embeddings_of_the_sdk_are_calls(desk: Desk) -> None:
    """Which have one count, of what went in."""
    said = {"ai__model__id": "g5-card", "ai__model__provider": "openai.embedding", "ai__usage__tokens": 1_000_000}
    inner = span("b", "a", ai__operationId="ai.embed.doEmbed", **said)
    desk.write("t.json", trace(span("a", ai__operationId="ai.embed", **said), inner))
    desk.run()
    assert desk.total() == Decimal("1.25")


def test_details_of_usage_are_parts_of_it(desk: Desk) -> None:
    """As Pydantic AI has them: its input is the whole prompt."""
    details = {"cache_read_tokens": 2_000, "cache_write_tokens": 12_304, "reasoning_tokens": 50}
    named: dict[str, object] = {f"gen_ai.usage.details.{name}": count for name, count in details.items()}
    desk.write("t.json", trace(span("a", **usage(14_307 + 1, gen_ai__usage__output_tokens=60), **named)))
    desk.run()
    used = desk.receipts()[0].usage
    assert used is not None
    assert (used.input_fresh_tokens, used.input_cache_read_tokens, used.output_reasoning_tokens) == (3, 2_000, 50)


def test_a_first_chunk_is_not_called_a_first_token(desk: Desk) -> None:
    """The convention counts any chunk."""
    desk.write("trace.json", trace(span("a", **usage(10, gen_ai__response__time_to_first_chunk=0.25))))
    desk.run()
    timing = desk.receipts()[0].timing
    assert timing is not None
    assert (timing.first_chunk_ns, timing.first_token_ns) == (250_000_000, None)


def test_a_failed_call_has_no_usage_and_is_there(desk: Desk) -> None:
    """Unknown, with the reason."""
    failed = span("a", gen_ai__request__model="opus-card", gen_ai__operation__name="chat")
    desk.write("trace.json", trace(failed | {"status": {"code": 2, "message": "overloaded"}}))
    desk.run()
    (receipt,) = desk.receipts()
    assert (receipt.outcome, receipt.usage, receipt.error) == (Outcome.FAILED, None, "overloaded")


def event(name: str, **given: object) -> dict[str, Any]:
    """A record of Claude Code's log."""
    said: dict[str, object] = {
        "event.name": name,
        "event.timestamp": "2026-10-29T12:00:00.000Z",
        "session.id": "s1",
        "model": "opus-card",
    }
    said |= given
    return {"timeUnixNano": str(START), "body": {"stringValue": f"claude_code.{name}"}, "attributes": attributes(said)}


def test_claude_codes_events_are_calls_and_its_metrics_are_not(desk: Desk) -> None:
    """Both tell of the same tokens; a try that failed is there too."""
    request = event(
        "api_request",
        input_tokens=10,
        output_tokens=100,
        cache_read_tokens=2_000,
        cache_creation_tokens=400,
        cost_usd=0.006,
        duration_ms=4_500,
        request_id="req_1",
    )
    error = event("api_error", error="Overloaded", duration_ms=100, attempt=2)
    logs = {"resourceLogs": [{"scopeLogs": [{"logRecords": [request, error, event("user_prompt")]}]}]}
    desk.write("events.jsonl", logs, {"resourceMetrics": [{"scopeMetrics": []}]}, logs)
    summary = desk.run()
    failed, done = sorted(desk.receipts(), key=lambda each: each.usage is not None)
    assert done.usage is not None
    assert done.usage.total_tokens == 2_510
    assert done.cost_reported == Decimal("0.006")
    assert done.timing is not None
    assert done.timing.total_ns == 4_500_000_000
    assert (done.source, done.request.session) == ("claude-code-telemetry", "s1")
    assert failed.outcome is Outcome.FAILED
    assert any("metrics" in note for note in summary.notes)


def test_events_with_a_calls_details_count_where_no_span_does(desk: Desk) -> None:
    """Some programs tell of calls in spans, some in events, some in both, in one file or in two."""

    def details(span_id: str | None, total: int) -> dict[str, Any]:
        said = {key.replace("__", "."): each for key, each in usage(total).items()}
        record: dict[str, Any] = {
            "timeUnixNano": str(START),
            "eventName": "gen_ai.client.inference.operation.details",
            "attributes": attributes({**said, "gen_ai.usage.cost": 0.25}),
        }
        return record | ({"spanId": span_id, "traceId": span("a")["traceId"]} if span_id else {})

    def events(*records: Mapping[str, Any]) -> dict[str, Any]:
        return {"resourceLogs": [{"scopeLogs": [{"logRecords": list(records)}]}]}

    both = events(details("a", 100), details("b", 200), details(None, 400), details(None, 800))
    desk.write("both.jsonl", both, trace(span("a", **usage(100))))
    desk.write("late.json", trace(span("b", **usage(200))))
    desk.run()
    assert sorted(total_tokens(each) for each in desk.receipts()) == [100, 200, 400, 800]
    assert sum(each.cost_reported == Decimal("0.25") for each in desk.receipts()) == 3


class _Looked(dict[str, Any]):
    """Attributes that know which of them were asked for."""

    def __init__(self, said: Mapping[str, Any], asked: set[str]) -> None:
        super().__init__(said)
        self._asked = asked

    def get(self, key: str, default: Any = None) -> Any:
        self._asked.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._asked.add(str(key))
        return super().__contains__(key)


@pytest.mark.parametrize("said", [{}, {"ai.model.provider": "anthropic"}, {"gen_ai.usage.input_tokens": 3}])
def test_all_that_is_looked_at_is_kept(said: dict[str, Any]) -> None:
    """Of a span the attributes are left out that nothing is read from, prompts above all."""
    asked: set[str] = set()
    span = otlp._Span("a", "t", "1790000000000000000", None, _Looked(said, asked), {}, None)
    log = LogFile(path=Path("t.json"), file=cast("io.FileIO", io.BytesIO()), size=0)
    otlp._span_call(span, Origins(), log)
    assert otlp._is_call(_Looked(said, asked)) is False
    assert len(asked) > 20
    assert [key for key in asked if not otlp_attributes.is_of_a_span(key)] == []
    assert not otlp_attributes.is_of_a_span("gen_ai.input.messages")
