"""OpenTelemetry's traces and logs, as JSON by OTLP: spans of models in all three generations of names, and the events
of Claude Code.

Owns: the names of attributes, and which spans are calls of a model and not of an agent around them. Refuses to know:
prices, and what a usage object means.

An agent's span has the sum of the spans within it: only those count that have none with usage below them. Metrics are
sums over calls that events tell one by one, and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from taximeter.importers.instants import epoch_us, stored_text
from taximeter.importers.logged import LogFile, LoggedCall, Origin, terms_of_tier
from taximeter.importers.origins import Origins
from taximeter.importers.otlp_attributes import attributes_in, is_of_a_span, objects, value_in
from taximeter.importers.rows import entries_of
from taximeter.importers.sellers import seller_called
from taximeter.importers.strangers import amount, count, first, group_name, listed, mapping, nested, text
from taximeter.importers.timing import reported_timing
from taximeter.importers.usual_spans import COUNTS, Slots, Spans, UsualSpan, message_in
from taximeter.providers.metering import words
from taximeter.providers.metering.complaint import complaint
from taximeter.providers.metering.leaves import read_usage, terms_in, word, word_at
from taximeter.providers.metering.plain import PlainReader
from taximeter.records import Dialect, Outcome, Terms

NAME = "otlp"
EVENTS = "claude-code-telemetry"
SUFFIXES = (".json", ".jsonl", ".ndjson")
EDITION = "3"

Attributes = Mapping[str, Any]

_plain, _plain_event = PlainReader(words.OTEL), PlainReader(words.MESSAGES)

_UNTIMED = "the span has no duration"
_COUNTS = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
_PROVIDERS = ("gen_ai.provider.name", "gen_ai.system", "llm.provider", "llm.system", "ai.model.provider")
_COUNT_CACHES_APART = ("anthropic", "bedrock")
_NO_CALLS = frozenset({"invoke_agent", "create_agent", "execute_tool", "invoke_workflow", "retrieval"})
_CALLS = frozenset({"LLM", "EMBEDDING"})
_DETAILS = frozenset({"gen_ai.client.inference.operation.details", "gen_ai.client.operation.details"})
_CLAUDE_CODE = "claude_code."


def is_mine(entry: Mapping[str, Any]) -> bool:
    """Whether `entry` is a message of OTLP."""
    return any(name in entry for name in ("resourceSpans", "resource_spans", "resourceLogs", "resource_logs"))


def read(log: LogFile) -> Iterator[LoggedCall]:
    """The calls of one file: those of its spans, then those of its events."""
    origins = Origins()
    spans = _Told(origins, log)
    details: dict[str, _Span] = {}
    for message in entries_of(log, message_in):
        if isinstance(message, Spans):
            spans.take_usual(message)
            continue
        for resource, scope_spans in _scopes(message, "resourceSpans", "resource_spans", "scopeSpans", "scope_spans"):
            for span in objects(first(scope_spans, "spans")):
                spans.take(span, resource)
        for resource, scope_logs in _scopes(message, "resourceLogs", "resource_logs", "scopeLogs", "scope_logs"):
            for record in objects(first(scope_logs, "logRecords", "log_records")):
                call = _event_call(record, resource, origins, log)
                if call is not None:
                    yield call
                else:
                    _keep_details(details, record, resource)
        if "resourceMetrics" in message or "resource_metrics" in message:
            log.note("metrics are left out: they are sums over calls that spans and events tell")
    alone = (span for name, span in details.items() if name not in spans.counted)
    for span in (*(spans.counted[name] for name in spans.leaves()), *alone):
        call = span if isinstance(span, LoggedCall) else _span_call(span, origins, log)
        if call is not None:
            yield call


class _Span(msgspec.Struct):
    """As much of a span as counts: one that counts tokens, or a call that failed. `attributes` has the newest names."""

    id: str
    trace: str | None
    start: Any
    end: Any
    attributes: dict[str, Any]
    resource: dict[str, Any]
    failed: str | None


class _Told:
    """The spans of a file. `counted` are those that count tokens or are calls that failed, by trace and id: as calls
    already where that was plain."""

    def __init__(self, origins: Origins, log: LogFile) -> None:
        self.counted: dict[str, _Span | LoggedCall] = {}
        self._above: dict[str, str | None] = {}
        self._slots = Slots(is_of_a_span)
        self._origins = origins
        self._log = log

    def take_usual(self, message: Spans) -> None:
        """Those of a usual message."""
        for each in message.resourceSpans:
            resource = attributes_in((each.resource or {}).get("attributes"))
            for scope in each.scopeSpans:
                for span in scope.spans:
                    if not self._take_usual(span, resource):
                        self.take(span.as_any(), resource)

    def _take_usual(self, span: UsualSpan, resource: dict[str, Any]) -> bool:
        """Whether it could be told at once what this span is."""
        name, trace, parent = span.spanId.strip(), span.traceId, (span.parentSpanId or "").strip()
        if not name or not trace or span.has_older_names or (span.status and _is_failed(span.status.code)):
            return False
        told = self._slots.told(span.attributes or [])
        if told is None:
            return False
        trace = trace.strip() or None
        if told[0] is None and told[1] is None:
            call = None
        else:
            call = _usual_call(span, f"{trace} {name}", trace, told, resource, self._origins)
            if call is None:
                return False
        self._keep(f"{trace} {name}", f"{trace} {parent}" if parent else None, call)
        return True

    def take(self, span: Mapping[str, Any], resource: dict[str, Any]) -> None:
        """One as an object of JSON."""
        name = text(first(span, "spanId", "span_id"))
        if name is None:
            self._log.note("a span without an id")
            return
        trace, parent = (
            text(first(span, "traceId", "trace_id")),
            text(first(span, "parentSpanId", "parent_span_id")),
        )
        attributes = attributes_in(span.get("attributes"), only=is_of_a_span)
        has_usage = any(count(attributes.get(key)) for key in _COUNTS)
        status = mapping(span.get("status")) or {}
        failed = _is_failed(status.get("code"))
        kept = None
        if has_usage or (failed and _is_call(attributes)):
            kept = _Span(
                id=name,
                trace=trace,
                start=first(span, "startTimeUnixNano", "start_time_unix_nano"),
                end=first(span, "endTimeUnixNano", "end_time_unix_nano"),
                attributes=attributes if has_usage else {},
                resource=resource,
                failed=(text(status.get("message")) or "the call failed") if failed else None,
            )
        self._keep(f"{trace} {name}", None if parent is None else f"{trace} {parent}", kept)

    def _keep(self, name: str, parent: str | None, span: _Span | LoggedCall | None) -> None:
        self._above[name] = parent
        if span is not None:
            self.counted[name] = span
        else:
            self.counted.pop(name, None)  # it has been told before

    def leaves(self) -> list[str]:
        """The names of spans that count and have none below them that do."""
        above: set[str] = set()
        for name in self.counted:
            parent = self._above[name]
            # Those above one that is known to be above others are known to be that too.
            while parent is not None and parent not in above and parent in self._above:
                above.add(parent)
                parent = self._above[parent]
        leaves = [name for name in self.counted if name not in above]
        if len(leaves) < len(self.counted):
            self._log.note("a span that sums up the calls within it", len(self.counted) - len(leaves))
        return leaves


def _is_failed(code: object) -> bool:
    return code is not None and str(code) in ("2", "STATUS_CODE_ERROR")


def _keep_details(details: dict[str, _Span], record: Mapping[str, Any], resource: dict[str, Any]) -> None:
    """An event that tells of a whole call. It has the name of the span that it was in, which may tell of it too."""
    attributes = attributes_in(record.get("attributes"))
    name = text(first(record, "eventName", "event_name")) or text(attributes.get("event.name"))
    if name not in _DETAILS or not any(count(attributes.get(key)) for key in _COUNTS):
        return
    at = first(record, "timeUnixNano", "time_unix_nano", "observedTimeUnixNano", "observed_time_unix_nano")
    trace, span = text(first(record, "traceId", "trace_id")), text(first(record, "spanId", "span_id"))
    kept = {key: value for key, value in attributes.items() if is_of_a_span(key)}
    span = span or f"{at} {sorted(_counts(kept).items(), key=str)}"
    details[f"{trace} {span}"] = _Span(span, trace, at, None, kept, resource, None)


def _is_call(attributes: Attributes) -> bool:
    operation = text(attributes.get("gen_ai.operation.name"))
    return "gen_ai.request.model" in attributes and operation not in _NO_CALLS


def _usual_call(
    span: UsualSpan, identity: str, trace: str | None, told: list[Any], resource: dict[str, Any], origins: Origins
) -> LoggedCall | None:
    """What `_span_call` makes of a span that says this, in the order of `usual_spans.WANTED`; None where that takes a
    closer look."""
    counts: dict[str, object] = {
        name: count(number) for name, number in zip(COUNTS, told, strict=False) if number is not None
    }
    if not counts.get(_COUNTS[1]):
        counts.setdefault(_COUNTS[1], 0 if _COUNTS[0] in counts else None)
        if not counts.get(_COUNTS[0]):
            return None
    leaves = _plain.leaves(counts)
    operation, asked, answered, response, provider, system, conversation, session, agent, tier, reasons = told[6:]
    start_ns, end_ns = count(span.startTimeUnixNano), count(span.endTimeUnixNano)
    at_us = epoch_us(start_ns)
    if leaves is None or at_us is None or start_ns is None or (operation and operation.strip() in _NO_CALLS):
        return None
    asked = text(asked)
    served = text(answered) or asked
    service = resource.get("service.name")

    def origin() -> Origin:
        return _origin(provider or system, conversation or session, trace, service, agent, origins)

    return LoggedCall(
        text(response) or identity,
        at_us,
        origins.told_by((trace, conversation, session, provider, system, service, agent), origin),
        served or "unknown",
        leaves,
        terms=None if tier is None or (word_of := word(tier)) is None else terms_of_tier(word_of),
        model_asked=asked,
        timing=None if end_ns is None or end_ns < start_ns else reported_timing(end_ns - start_ns),
        finish_reason=_reason(reasons),
        uncosted=None if served else "the log does not name the model",
    )


def _origin(
    provider: object, session: object, trace: str | None, service: object, agent: object, origins: Origins
) -> Origin:
    return origins.of(
        source=NAME,
        dialect=Dialect.UNSAID,
        provider=seller_called(text(provider)),
        session=group_name(session),
        run=group_name(trace),
        labels={"service": service, "agent": agent},
        untimed=_UNTIMED,
    )


def _span_call(span: _Span, origins: Origins, log: LogFile) -> LoggedCall | None:
    said, at_us = span.attributes, epoch_us(count(span.start))
    if _is_around_calls(said):
        log.note("a span of an agent or a tool, without the calls within it")
        return None
    if at_us is None:
        log.note("a span without a time")
        return None
    start, end = count(span.start) or 0, count(span.end)
    total_ns = None if end is None or end < start else end - start
    asked = text(
        first(
            said, "gen_ai.request.model", "llm.request.model", "llm.model_name", "embedding.model_name", "ai.model.id"
        )
    )
    served = text(first(said, "gen_ai.response.model", "llm.response.model")) or asked
    leaves, usage = None, None
    if said or not span.failed:
        counts = _counts(said)
        leaves = _plain.leaves(counts)
        usage = read_usage(words.OTEL, counts) if leaves is None else None
    tier = word_at(said, words.OTEL.tier)
    return LoggedCall(
        text(first(said, "gen_ai.response.id")) or f"{span.trace} {span.id}",
        at_us,
        _origin(
            first(said, *_PROVIDERS),
            first(said, "gen_ai.conversation.id", "session.id"),
            span.trace,
            span.resource.get("service.name"),
            said.get("gen_ai.agent.name"),
            origins,
        ),
        served or "unknown",
        leaves,
        usage=usage,
        terms=None if tier is None else terms_of_tier(tier),
        model_asked=asked,
        reported=amount(first(said, "gen_ai.usage.cost", "llm.cost.total", "gen_ai.cost.total_cost")),
        timing=reported_timing(total_ns, first_chunk_ns=_first_chunk_ns(said)),
        outcome=Outcome.COMPLETED if span.failed is None else Outcome.FAILED,
        error=complaint(span.failed),
        finish_reason=_reason(said.get("gen_ai.response.finish_reasons")),
        uncosted=None if served else "the log does not name the model",
    )


def _is_around_calls(said: Attributes) -> bool:
    """Whether a span is of an agent, a tool or the like, whose usage is that of calls with spans of their own, be these
    in another file."""
    operation, step = text(said.get("gen_ai.operation.name")), text(said.get("ai.operationId"))
    kind = text(said.get("openinference.span.kind"))
    if operation in _NO_CALLS or (kind is not None and kind.upper() not in _CALLS):
        return True
    # `ai.generateText.doGenerate` is a call, `ai.generateText` what goes on until there is an answer.
    return step is not None and step.count(".") == 1


def _event_call(
    record: Mapping[str, Any], resource: dict[str, Any], origins: Origins, log: LogFile
) -> LoggedCall | None:
    """A call of Claude Code, by its own event."""
    said = attributes_in(record.get("attributes"))
    body = value_in(record.get("body"))
    name = text(first(record, "eventName", "event_name")) or text(said.get("event.name")) or text(body)
    kind = (name or "").removeprefix(_CLAUDE_CODE)
    if kind not in ("api_request", "api_error"):
        return None
    at_us = epoch_us(said.get("event.timestamp"))
    if at_us is None:
        at_us = epoch_us(count(first(record, "timeUnixNano", "observedTimeUnixNano")))
    model = text(said.get("model"))
    if at_us is None or model is None:
        log.note("an event without a time" if at_us is None else "an event without a model")
        return None
    request, session = text(said.get("request_id")), text(said.get("session.id"))
    usage = {
        "input_tokens": count(said.get("input_tokens")),
        "output_tokens": count(said.get("output_tokens")),
        "cache_read_input_tokens": count(said.get("cache_read_tokens")),
        "cache_creation_input_tokens": count(said.get("cache_creation_tokens")),
        "speed": text(said.get("speed")),
    }
    failed, terms = kind == "api_error", terms_in(words.MESSAGES, usage)
    leaves = None if failed else _plain_event.leaves(usage)
    milliseconds = amount(said.get("duration_ms"))
    sequence = text(str(said.get("event.sequence") or ""))
    tokens = f"{usage['input_tokens']} {usage['output_tokens']}"
    return LoggedCall(
        request or f"{session} {stored_text(at_us)} {sequence} {model} {tokens}",
        at_us,
        origins.of(
            source=EVENTS,
            dialect=Dialect.ANTHROPIC_MESSAGES,
            provider="anthropic",
            session=group_name(session),
            key=group_name(first(said, "user.account_uuid", "user.id")),
            labels={"query_source": said.get("query_source"), "service": resource.get("service.name")},
            untimed="the event has no duration",
        ),
        model,
        leaves,
        usage=None if failed or leaves is not None else read_usage(words.MESSAGES, usage, model=model),
        terms=None if terms == Terms() else terms,
        reported=amount(said.get("cost_usd")),
        request_id=request,
        timing=reported_timing(None if milliseconds is None else int(milliseconds * 10**6)),
        outcome=Outcome.FAILED if failed else Outcome.COMPLETED,
        error=complaint(text(said.get("error")) or "the call failed") if failed else None,
    )


def _counts(said: Attributes) -> dict[str, object]:
    """The counts, and what goes with them."""
    counts: dict[str, object] = {
        key: number
        for key, value in said.items()
        if key.startswith("gen_ai.usage.") and (number := count(value)) is not None
    }
    # Embeddings have no answer, and many leave out what is none.
    counts.setdefault("gen_ai.usage.output_tokens", 0 if "gen_ai.usage.input_tokens" in counts else None)
    return counts | _apart_from_caches(said)


def _apart_from_caches(said: Attributes) -> dict[str, object]:
    """The counts that the AI SDK before version 6 had of models whose provider counts cached tokens apart: its input is
    without them, and what was written stands only in the provider's own words. Nothing for all other calls."""
    provider = text(said.get("ai.model.provider"))
    if provider is None or not any(name in provider for name in _COUNT_CACHES_APART):
        return {}
    fresh = count(first(said, "ai.usage.inputTokens", "ai.usage.promptTokens"))
    if fresh is None or any(name.startswith("ai.usage.inputTokenDetails.") for name in said):
        return {}
    own = nested(said.get("ai.response.providerMetadata"))
    words = nested(first(own, "anthropic", "bedrock"))
    usage = nested(words.get("usage"))
    read = count(said.get("ai.usage.cachedInputTokens"))
    if read is None:
        read = count(first(words, "cacheReadInputTokens")) or count(first(usage, "cacheReadInputTokens")) or 0
    written = count(first(words, "cacheCreationInputTokens")) or count(first(usage, "cacheWriteInputTokens")) or 0
    return {
        "gen_ai.usage.input_tokens": fresh + read + written,
        "gen_ai.usage.cache_read.input_tokens": read,
        "gen_ai.usage.cache_write.input_tokens": written,
    }


def _reason(reasons: object) -> str | None:
    """Why an answer ended, the first reason of several."""
    return word(next(iter(listed(reasons)), reasons))


def _first_chunk_ns(said: Attributes) -> int | None:
    seconds, milliseconds = (
        amount(said.get(name)) for name in ("gen_ai.response.time_to_first_chunk", "ai.response.msToFirstChunk")
    )
    if seconds is not None:
        return int(seconds * 10**9)
    return None if milliseconds is None else int(milliseconds * 10**6)


def _scopes(message: Mapping[str, Any], *names: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """What a message holds by instrument, each with what it says of its process."""
    for resource in objects(first(message, *names[:2])):
        about = attributes_in((mapping(resource.get("resource")) or {}).get("attributes"))
        for scope in objects(first(resource, *names[2:], "instrumentationLibrarySpans")):
            yield about, scope
