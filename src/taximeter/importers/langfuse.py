"""Langfuse's exports of observations: CSV, JSON and JSON lines, in the words of its interface, its API and its files.

Owns: which columns say what, which observations are calls of a model, and whether their counts contain each other.
Refuses to know: prices.

Counts there are free: whoever sent them chose the names, and whether `input` has what came from a cache in it. The
total tells which; where it does not, `input` is what it should be there, the part that no other count has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from taximeter.providers.metering.plain import LEAVES, MOST_TOKENS
from taximeter.records import Dialect, Outcome, Usage

NAME = "langfuse"
SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson")
EDITION = "2"

_UNTIMED = "the observation has no end, or no start"
_MODEL_TYPES = frozenset({"GENERATION", "EMBEDDING"})
_TIMES = (("startTime", "start_time"), ("endTime", "end_time"), ("completionStartTime", "completion_start_time"))
_NAMES = (
    ("input", "input_tokens", "prompt_tokens"),
    ("output", "output_tokens", "completion_tokens"),
    ("total", "total_tokens"),
    ("input_cache_read", "cache_read_input_tokens", "input_cached_tokens", "input_cached", "cached_tokens"),
    ("input_cache_creation_5m", "cache_creation_5m", "ephemeral_5m_input_tokens"),
    ("input_cache_creation_1h", "cache_creation_1h", "ephemeral_1h_input_tokens"),
    ("input_cache_creation", "cache_creation_input_tokens", "input_cache_write", "cache_write_input_tokens"),
    ("output_reasoning", "output_reasoning_tokens", "reasoning_tokens", "reasoning"),
    ("input_audio", "input_audio_tokens"),
    ("output_audio", "output_audio_tokens"),
)
"""What counts are called, of several names the first that is there: prompt, answer, total; reads from a cache; writes
to it for five minutes, for an hour, and all of them; reasoning; sound on both sides."""

_TOTAL = 2
_NEEDED = ("input", "output", "total")  # where these are there, no column beside is looked at


def is_mine(entry: Mapping[str, Any]) -> bool:
    """Whether `entry` is an observation."""
    has_trace = "traceId" in entry or "trace_id" in entry or "Trace ID" in entry
    words = ("usageDetails", "usage_details", "completionStartTime", "completion_start_time", "calculatedTotalCost")
    return has_trace and any(word in entry for word in words)


def read(log: LogFile) -> Iterator[LoggedCall]:
    """The model calls of one export."""
    origins, plans = Origins(), _Plans()
    for chunk in chunks_of(log):
        begins, ends, firsts = (instants_us(_column(chunk, *names)) for names in _TIMES)
        for place, at_us in enumerate(begins):
            call = _call(chunk.row(place), (at_us, ends[place], firsts[place]), origins, plans, log)
            if call is not None:
                yield call


def _column(chunk: Chunk, name: str, other: str) -> Sequence[Any]:
    """What `first` has of each row."""
    values = chunk.column(name)
    if all(values):  # which is nearly always so, and quickly seen
        return values
    others = chunk.column(other)
    return [beside if value is None or value == "" else value for value, beside in zip(values, others, strict=True)]


def _call(
    row: Row, times_us: tuple[int | None, int | None, int | None], origins: Origins, plans: _Plans, log: LogFile
) -> LoggedCall | None:
    """The call of a row, whose `_TIMES` are `times_us`."""
    kind = row.get("type")
    model = text(
        row.get("model")
        or first(row, "model", "providedModelName", "provided_model_name", "internalModel", "internal_model_id")
    )
    if kind != "GENERATION" and (
        (kind.upper() not in _MODEL_TYPES) if (kind := text(kind)) is not None else model is None
    ):
        log.note("an observation that is no call of a model")
        return None
    at_us, identity = times_us[0], text(row.get("id") or first(row, "id", "observation_id"))
    if at_us is None or identity is None:
        log.note("a row without a time" if at_us is None else "a row without an id")
        return None
    level = row.get("level")
    failed = level != "DEFAULT" and str(level or "").upper() == "ERROR"
    leaves, usage = plans.leaves(row.get("usageDetails")), None
    if leaves is None:
        usage = _usage(row)
        leaves, usage = (usage, None) if isinstance(usage, tuple) else (None, usage)
    total_ns = between_ns(at_us, times_us[1])
    if total_ns is None and (latency := amount(row.get("latency"))) is not None:
        total_ns = int(latency * 10**9)
    asked = row.get("modelParameters") or first(row, "modelParameters", "model_parameters")
    tier = text(nested(asked).get("service_tier"))
    return LoggedCall(
        identity,
        at_us,
        _origin(row, origins),
        model or "unknown",
        leaves,
        usage=usage,
        terms=None if tier is None else terms_of_tier(tier),
        reported=_reported(row),
        timing=reported_timing(total_ns, between_ns(at_us, times_us[2])),
        outcome=Outcome.FAILED if failed else Outcome.COMPLETED,
        error=complaint(text(first(row, "statusMessage", "status_message")) or "the call failed") if failed else None,
        uncosted=None if model else "the log does not name the model",
    )


# --- Counts -------------------------------------------------------------------------------------------------------


class _Plans:
    """Leaves of usual objects, by what their keys have meant before: all values are whole numbers, also of the unit,
    and none is to be looked for beside them."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], tuple[int, ...] | None] = {}

    def leaves(self, said: object) -> tuple[int, ...] | None:
        """The leaves, in the order of `plain.LEAVES`; None for an object that is not usual."""
        if type(said) is not dict:
            return None
        details = cast("dict[str, object]", said)
        keys = tuple(details)
        try:
            plan = self._known[keys]
        except KeyError:
            if len(self._known) >= _MOST_PLANS:
                self._known.clear()
            plan = self._known[keys] = _plan(keys)
        if plan is None:
            return None
        counts = [0] * (len(_NAMES) + 1)  # the last is of those that mean nothing here
        for place, value in zip(plan, details.values(), strict=True):
            if type(value) is not int:
                return None
            counts[place] = value
        _, divided = _divided(counts, counts[_TOTAL])
        return divided


_MOST_PLANS = 1_000


def _plan(keys: tuple[str, ...]) -> tuple[int, ...] | None:
    """Where among `_NAMES` each key has its place."""
    if any(key not in keys for key in _NEEDED):
        return None
    chosen = [next((name for name in names if name in keys), None) for names in _NAMES]
    return tuple(chosen.index(key) if key in chosen else len(_NAMES) for key in keys)


def _usage(row: Row) -> tuple[int, ...] | Usage | None:
    """The leaves, in the order of `plain.LEAVES`, where there is no more to say."""
    said = nested(first(row, "usageDetails", "usage_details", "usage"))
    for name, column in (("input", "promptTokens"), ("output", "completionTokens"), ("total", "totalTokens")):
        if said.get(name) is None and (value := first(row, column, f"{name}Usage", f"{name}_usage")) is not None:
            said[name] = value
    counts = {name: number for name, value in said.items() if (number := count(value)) is not None}
    told = [next((counts[name] for name in names if name in counts), None) for names in _NAMES]
    if told[0] is None and told[1] is None:
        return None
    if (unit := text(said.get("unit"))) not in (None, "TOKENS"):
        return Usage.unknown(f"the observation counts {word(unit)}, not tokens", reported=said)
    leaves, plain = _divided([number or 0 for number in told], told[_TOTAL])
    if plain is not None:
        return plain
    if leaves is None:
        return Usage.unknown("the observation's counts do not sum to its total", reported=said)
    return usage_of(
        dict(zip(_LEAVES, leaves, strict=True)), wrong="the observation's counts contradict each other", reported=said
    )


def _divided(counts: list[int], total: int | None) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """The tokens in the order of `_LEAVES`, None where they do not sum to the total; and in that of `plain.LEAVES`
    where these hold them. Counts are in the order of `_NAMES`, 0 where there is none."""
    given, answer, _, read, write_5m, write_1h, write, reasoning, audio, audio_out = counts[: len(_NAMES)]
    by_time = write_5m + write_1h
    parts, parts_out = read + by_time + audio, reasoning + audio_out
    # How much was written for an unknown time, if the count of writes has those in it that have one, or has not.
    writes = (write - by_time, write) if 0 < by_time <= write else (write,)
    reading = _reading(None if total is None else total - given - answer, parts, parts_out, writes)
    if reading is None:
        return None, None
    unknown, input_has_parts, output_has_parts = reading
    fresh = given - parts - unknown if input_has_parts else given
    written = answer - parts_out if output_has_parts else answer
    leaves = (fresh, read, write_5m, write_1h, unknown, written, reasoning, audio, audio_out)
    if not audio and not audio_out and min(leaves) >= 0 and sum(leaves) <= MOST_TOKENS:
        return leaves, leaves[:-2]
    return leaves, None


_LEAVES = (*LEAVES, "input_audio_tokens", "output_audio_tokens")


def _reading(more: int | None, parts: int, parts_out: int, writes: tuple[int, ...]) -> tuple[int, bool, bool] | None:
    """What counts may mean, of several readings the likeliest: which of `writes` it is, and whether input and output
    have their parts in them. The total has so much `more` than these two; None where there is none."""
    if more is None:
        return writes[0], False, False
    if not more:
        return writes[0], True, True
    if more == parts_out:
        return writes[0], True, False
    for output_has_parts in (True, False):
        for unknown in writes:
            if more == parts + unknown + (0 if output_has_parts else parts_out):
                return unknown, False, output_has_parts
    return None


def _reported(row: Row) -> Any:
    value = row.get("calculatedTotalCost")
    if value is None or value == "":
        value = first(row, "totalCost", "total_cost", "Total Cost")
    if value is None:
        value = nested(first(row, "costDetails", "cost_details")).get("total")
    return amount(value)


# --- What calls belong to -----------------------------------------------------------------------------------------


def _origin(row: Row, origins: Origins) -> Origin:
    metadata = nested(row.get("metadata"))
    tags = first(row, *_TAGS)
    # A text that holds a list is no list that holds a text.
    told = ("list", *cast("list[object]", tags)) if type(tags) is list else ("cell", tags)
    cells = (metadata.get("ls_provider"), *map(row.get, _OF_AN_ORIGIN), *told)
    return origins.told_by(cells, lambda: _new_origin(row, metadata, origins))


_OF_AN_ORIGIN = (
    *("sessionId", "session_id", "traceId", "trace_id", "traceName", "trace_name"),
    *("name", "userId", "user_id", "environment"),
)
_TAGS = ("tags", "traceTags", "trace_tags")
"""All that `_new_origin` looks at."""


def _new_origin(row: Row, metadata: Mapping[str, Any], origins: Origins) -> Origin:
    labels: dict[str, object] = {
        "trace_name": first(row, "traceName", "trace_name"),
        "name": first(row, "name"),
        "user": first(row, "userId", "user_id"),
        "environment": first(row, "environment"),
    }
    return origins.of(
        source=NAME,
        dialect=Dialect.UNSAID,
        provider=seller_called(text(metadata.get("ls_provider"))),
        session=group_name(first(row, "sessionId", "session_id")),
        run=group_name(first(row, "traceId", "trace_id")),
        labels=tagged(labels, listed(first(row, *_TAGS))),
        untimed=_UNTIMED,
    )
