"""What engines say of themselves beside the usage: their own times, and what llama.cpp found in its cache.

Owns: the names and units of those fields. Refuses to know: dialects, and what we measured. Only known fields count; one
that cannot be right is left out, as if it had not been sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from taximeter.records import Phase

_NS_PER_MS = 1e6
_NS_PER_S = 1e9
_LONGEST_S = 10 * 24 * 3600  # no request takes longer; a stamp of the wall clock in a field for durations does

Object = Mapping[str, object]


def spent_ns(*, metrics: object = None, meta_info: object = None, timings: object = None) -> dict[Phase, int]:
    """The engine's own times in nanoseconds, by phase: vLLM's `metrics`, SGLang's `meta_info`, llama.cpp's `timings`.

    vLLM counts its time to first token from when the request was scheduled, so that it is the prefill alone. llama.cpp
    does not say how long a request waited.
    """
    spent: dict[Phase, int | None] = {}
    if isinstance(metrics, Mapping):
        said = cast("Object", metrics)
        spent[Phase.QUEUE] = _ns(said.get("queue_time_ms"), _NS_PER_MS)
        spent[Phase.PREFILL] = _ns(said.get("time_to_first_token_ms"), _NS_PER_MS)
        spent[Phase.DECODE] = _ns(said.get("generation_time_ms"), _NS_PER_MS)
    elif isinstance(meta_info, Mapping):
        said = cast("Object", meta_info)
        spent[Phase.QUEUE] = _ns(said.get("queue_time"), _NS_PER_S)
        spent[Phase.PREFILL] = _ns(_between(said, "forward_entry_time", "prefill_finished_time"), _NS_PER_S)
        spent[Phase.DECODE] = _ns(_between(said, "first_token_latency", "e2e_latency"), _NS_PER_S)
    elif isinstance(timings, Mapping):
        said = cast("Object", timings)
        spent[Phase.PREFILL] = _ns(said.get("prompt_ms"), _NS_PER_MS)
        spent[Phase.DECODE] = _ns(said.get("predicted_ms"), _NS_PER_MS)
    return {phase: ns for phase, ns in spent.items() if ns is not None}


def with_llama_cpp_counts(usage: Object | None, timings: object) -> Object | None:
    """A usage object in OpenAI's words, with the cached tokens that llama.cpp says in its `timings` only.

    `usage` itself where it names cached tokens already, or where the two do not agree about the prompt; None where
    there is neither.
    """
    if not isinstance(timings, Mapping):
        return usage
    said = cast("Object", timings)
    cached, computed, predicted = (_count(said.get(key)) for key in ("cache_n", "prompt_n", "predicted_n"))
    if cached is None or computed is None:
        return usage
    prompt = cached + computed
    if usage is None:
        usage = {"prompt_tokens": prompt, "completion_tokens": predicted}
    details = usage.get("prompt_tokens_details")
    known: dict[str, object] = {**cast("Object", details)} if isinstance(details, Mapping) else {}
    if known.get("cached_tokens") is not None or usage.get("prompt_tokens") != prompt:
        return usage
    return {**usage, "prompt_tokens_details": {**known, "cached_tokens": cached}}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _between(said: Object, begin: str, end: str) -> float | None:
    began, ended = _number(said.get(begin)), _number(said.get(end))
    return None if began is None or ended is None else ended - began


def _ns(value: object, unit_ns: float) -> int | None:
    number = _number(value)
    if number is None or not 0 <= number * unit_ns <= _LONGEST_S * _NS_PER_S:
        return None
    return round(number * unit_ns)
