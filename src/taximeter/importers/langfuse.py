"""Langfuse's exports of observations: CSV, JSON and JSON lines, in the words of its interface, its API and its files.

Owns: which columns say what, which observations are calls of a model, and whether their counts contain each other.
Refuses to know: prices.

Counts there are free: whoever sent them chose the names, and whether `input` has what came from a cache in it. The
total tells which; where it does not, `input` is what it should be there, the part that no other count has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, cast

from taximeter.importers.chunks import Chunk, Row
from taximeter.importers.instants import between_ns, instants_us
from taximeter.importers.logged import LogFile, LoggedCall, Origin, terms_of_tier, usage_of
from taximeter.importers.origins import Origins, tagged
from taximeter.importers.rows import chunks_of
from taximeter.importers.sellers import seller_called
from taximeter.importers.strangers import amount, count, first, group_name, listed, nested, text
from taximeter.importers.timing import reported_timing
from taximeter.providers.metering.complaint import complaint
from taximeter.providers.metering.leaves import word
from taximeter.providers.metering.plain import MOST_TOKENS
from taximeter.records import Dialect, Outcome, Usage

NAME = "langfuse"
SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson")
EDITION = "2"

_UNTIMED = "the observation has no end, or no start"
_MODEL_TYPES = frozenset({"GENERATION", "EMBEDDING"})
_READS = ("input_cache_read", "cache_read_input_tokens", "input_cached_tokens", "input_cached", "cached_tokens")
_WRITES_5M = ("input_cache_creation_5m", "cache_creation_5m", "ephemeral_5m_input_tokens")
_WRITES_1H = ("input_cache_creation_1h", "cache_creation_1h", "ephemeral_1h_input_tokens")
_WRITES = ("input_cache_creation", "cache_creation_input_tokens", "input_cache_write", "cache_write_input_tokens")
_REASONING = ("output_reasoning", "output_reasoning_tokens", "reasoning_tokens", "reasoning")
_INPUT = ("input", "input_tokens", "prompt_tokens")
_OUTPUT = ("output", "output_tokens", "completion_tokens")
_AUDIO_IN, _AUDIO_OUT = ("input_audio", "input_audio_tokens"), ("output_audio", "output_audio_tokens")
_TOTAL = ("total", "total_tokens")
_ROLES = (_INPUT, _OUTPUT, _TOTAL, _READS, _WRITES, _WRITES_5M, _WRITES_1H, _AUDIO_IN, _REASONING, _AUDIO_OUT)
_TIMES = (
    ("startTime", "start_time"),
    ("endTime", "end_time"),
    ("completionStartTime", "completion_start_time"),
)
_SESSION, _TRACE = ("sessionId", "session_id"), ("traceId", "trace_id")
_TRACE_NAME, _NAMES, _USER = ("traceName", "trace_name"), ("name",), ("userId", "user_id")
_ENVIRONMENT, _TAGS = ("environment",), ("tags", "traceTags", "trace_tags")
_OF_AN_ORIGIN = (*_SESSION, *_TRACE, *_TRACE_NAME, *_NAMES, *_USER, *_ENVIRONMENT)
"""All that `_new_origin` looks at, but for the provider and the tags."""


def is_mine(entry: Mapping[str, Any]) -> bool:
    """Whether `entry` is an observation."""
    has_trace = "traceId" in entry or "trace_id" in entry or "Trace ID" in entry
    words = ("usageDetails", "usage_details", "completionStartTime", "completion_start_time", "calculatedTotalCost")
    return has_trace and any(word in entry for word in words)


def read(log: LogFile) -> Iterator[LoggedCall]:
    """The model calls of one export."""
    origins = Origins()
    for chunk in chunks_of(log):
        begins, ends, firsts = (instants_us(_either(chunk, *names)) for names in _TIMES)
        for place, at_us in enumerate(begins):
            call = _call(chunk.row(place), (at_us, ends[place], firsts[place]), origins, log)
            if call is not None:
                yield call


def _either(chunk: Chunk, name: str, other: str) -> list[object]:
    """As `first`, of all rows."""
    both = zip(chunk.column(name), chunk.column(other), strict=True)
    return [another if value is None or value == "" else value for value, another in both]


def _call(
    row: Row, times_us: tuple[int | None, int | None, int | None], origins: Origins, log: LogFile
) -> LoggedCall | None:
    """The call of a row, whose `_TIMES` are `times_us`."""
    kind = text(row.get("type"))
    model = text(first(row, "model", "providedModelName", "provided_model_name", "internalModel", "internal_model_id"))
    if (kind.upper() not in _MODEL_TYPES) if kind is not None else model is None:
        log.note("an observation that is no call of a model")
        return None
    at_us, identity = times_us[0], text(first(row, "id", "observation_id"))
    if at_us is None or identity is None:
        log.note("a row without a time" if at_us is None else "a row without an id")
        return None
    failed = str(row.get("level") or "").upper() == "ERROR"
    usage = _usage(row)
    leaves, usage = (usage, None) if isinstance(usage, tuple) else (None, usage)
    total_ns, first_token_ns = between_ns(at_us, times_us[1]), between_ns(at_us, times_us[2])
    if total_ns is None and (latency := amount(row.get("latency"))) is not None:
        total_ns = int(latency * 10**9)
    tier = text(nested(first(row, "modelParameters", "model_parameters")).get("service_tier"))
    return LoggedCall(
        identity,
        at_us,
        _origin(row, origins),
        model or "unknown",
        leaves,
        usage=usage,
        terms=None if tier is None else terms_of_tier(tier),
        reported=_reported(row),
        timing=reported_timing(total_ns, first_token_ns),
        outcome=Outcome.FAILED if failed else Outcome.COMPLETED,
        error=complaint(text(first(row, "statusMessage", "status_message")) or "the call failed") if failed else None,
        uncosted=None if model else "the log does not name the model",
    )


def _origin(row: Row, origins: Origins) -> Origin:
    provider = nested(row.get("metadata")).get("ls_provider")
    tags = first(row, *_TAGS)
    # A text that holds a list is no list that holds a text.
    told = ("list", *cast("list[object]", tags)) if type(tags) is list else ("cell", tags)
    cells = (provider, *map(row.get, _OF_AN_ORIGIN), *told)
    return origins.told_by(cells, lambda: _new_origin(row, text(provider), origins))


def _new_origin(row: Row, provider: str | None, origins: Origins) -> Origin:
    return origins.of(
        source=NAME,
        dialect=Dialect.UNSAID,
        provider=seller_called(provider),
        session=group_name(first(row, *_SESSION)),
        run=group_name(first(row, *_TRACE)),
        labels=_labels(row),
        untimed=_UNTIMED,
    )


def _usage(row: Row) -> tuple[int, ...] | Usage | None:
    """The leaves, in the order of `plain.LEAVES`, where there is no more to say."""
    said = nested(first(row, "usageDetails", "usage_details", "usage"))
    for name, column in (("input", "promptTokens"), ("output", "completionTokens"), ("total", "totalTokens")):
        if said.get(name) is None and (value := first(row, column, f"{name}Usage", f"{name}_usage")) is not None:
            said[name] = value
    counts = {
        name: number
        for name, value in said.items()
        if (number := value if type(value) is int else count(value)) is not None
    }
    of = _roles(tuple(counts))
    given, answer, total, *parts_told = (None if name is None else counts[name] for name in of)
    if given is None and answer is None:
        return None
    if (unit := text(said.get("unit"))) not in (None, "TOKENS"):
        return Usage.unknown(f"the observation counts {word(unit)}, not tokens", reported=said)
    read, write, write_5m, write_1h, audio, reasoning, audio_out = (number or 0 for number in parts_told)
    divided = write_5m + write_1h
    parts, parts_out = read + divided + audio, reasoning + audio_out
    fresh, written = given or 0, answer or 0
    for unknown, input_has_parts, output_has_parts in _readings(write, divided, with_total=total is not None):
        inside = (parts + unknown) * input_has_parts, parts_out * output_has_parts
        if total in (None, fresh + written + parts + unknown + parts_out - sum(inside)):
            fresh, written = fresh - inside[0], written - inside[1]
            break
    else:
        return Usage.unknown("the observation's counts do not sum to its total", reported=said)
    plain = (fresh, read, write_5m, write_1h, unknown, written, reasoning)
    if not audio and not audio_out and min(plain) >= 0 and sum(plain) <= MOST_TOKENS:
        return plain
    leaves = {
        "input_fresh_tokens": fresh,
        "input_cache_read_tokens": read,
        "input_cache_write_5m_tokens": write_5m,
        "input_cache_write_1h_tokens": write_1h,
        "input_cache_write_unknown_tokens": unknown,
        "input_audio_tokens": audio,
        "output_text_tokens": written,
        "output_reasoning_tokens": reasoning,
        "output_audio_tokens": audio_out,
    }
    return usage_of(leaves, wrong="the observation's counts contradict each other", reported=said)


def _readings(write: int, divided: int, *, with_total: bool) -> Iterator[tuple[int, bool, bool]]:
    """What counts may mean, the likeliest first: how much was written for an unknown time, if the count of writes has
    those in it that were `divided` by their time, or has not; and whether input and output have their parts in them."""
    writes = [write - divided, write] if 0 < divided <= write else [write]
    inclusions = ((True, True), (True, False), (False, True), (False, False)) if with_total else ((False, False),)
    for input_has_parts, output_has_parts in inclusions:
        for unknown in writes:
            yield unknown, input_has_parts, output_has_parts


@lru_cache(maxsize=1_000)
def _roles(there: tuple[str, ...]) -> list[str | None]:
    """Which of the names that are there each of `_ROLES` has."""
    return [next((name for name in names if name in there), None) for names in _ROLES]


def _reported(row: Row) -> Any:
    value = first(row, "calculatedTotalCost", "totalCost", "total_cost", "Total Cost")
    return amount(nested(first(row, "costDetails", "cost_details")).get("total") if value is None else value)


def _labels(row: Row) -> dict[str, object]:
    labels: dict[str, object] = {
        "trace_name": first(row, *_TRACE_NAME),
        "name": first(row, *_NAMES),
        "user": first(row, *_USER),
        "environment": first(row, *_ENVIRONMENT),
    }
    return tagged(labels, listed(first(row, *_TAGS)))
