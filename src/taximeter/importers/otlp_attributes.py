"""Attributes of OTLP in JSON, by their newest names.

Owns: the names that one thing has had, which attributes are looked at, and what their values are. Refuses to know: what
a span or an event is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

from taximeter.importers.strangers import count, listed, mapping

_NEWEST = {
    "gen_ai.usage.prompt_tokens": "gen_ai.usage.input_tokens",
    "gen_ai.usage.completion_tokens": "gen_ai.usage.output_tokens",
    "llm.usage.prompt_tokens": "gen_ai.usage.input_tokens",
    "llm.usage.completion_tokens": "gen_ai.usage.output_tokens",
    "llm.token_count.prompt": "gen_ai.usage.input_tokens",
    "llm.token_count.completion": "gen_ai.usage.output_tokens",
    "llm.token_count.prompt_details.cache_read": "gen_ai.usage.cache_read.input_tokens",
    "llm.token_count.prompt_details.cache_write": "gen_ai.usage.cache_write.input_tokens",
    "llm.token_count.completion_details.reasoning": "gen_ai.usage.reasoning.output_tokens",
    "gen_ai.usage.cache_read_input_tokens": "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_creation_input_tokens": "gen_ai.usage.cache_creation.input_tokens",
    "ai.usage.promptTokens": "gen_ai.usage.input_tokens",
    "ai.usage.completionTokens": "gen_ai.usage.output_tokens",
    "ai.usage.inputTokens": "gen_ai.usage.input_tokens",
    "ai.usage.tokens": "gen_ai.usage.input_tokens",
    "ai.usage.outputTokens": "gen_ai.usage.output_tokens",
    "ai.usage.cachedInputTokens": "gen_ai.usage.cache_read.input_tokens",
    "ai.usage.reasoningTokens": "gen_ai.usage.reasoning.output_tokens",
    "ai.usage.inputTokenDetails.cacheReadTokens": "gen_ai.usage.cache_read.input_tokens",
    "ai.usage.inputTokenDetails.cacheWriteTokens": "gen_ai.usage.cache_write.input_tokens",
    "ai.usage.outputTokenDetails.reasoningTokens": "gen_ai.usage.reasoning.output_tokens",
    "gen_ai.usage.details.cache_read_tokens": "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.details.cache_read_input_tokens": "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.details.cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.details.cache_write_tokens": "gen_ai.usage.cache_write.input_tokens",
    "gen_ai.usage.details.cache_creation_input_tokens": "gen_ai.usage.cache_write.input_tokens",
    "gen_ai.usage.details.reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
    "gen_ai.openai.response.service_tier": "openai.response.service_tier",
}
"""Older names of the same, those of OpenInference, of the AI SDK, and of Pydantic AI."""

OF_A_SPAN = frozenset(
    {
        "ai.model.id",
        "ai.model.provider",
        "ai.operationId",
        "ai.response.msToFirstChunk",
        "ai.response.providerMetadata",
        "embedding.model_name",
        "gen_ai.agent.name",
        "gen_ai.conversation.id",
        "gen_ai.cost.total_cost",
        "gen_ai.operation.name",
        "gen_ai.provider.name",
        "gen_ai.request.model",
        "gen_ai.response.finish_reasons",
        "gen_ai.response.id",
        "gen_ai.response.model",
        "gen_ai.response.time_to_first_chunk",
        "gen_ai.system",
        "llm.cost.total",
        "llm.model_name",
        "llm.provider",
        "llm.request.model",
        "llm.response.model",
        "llm.system",
        "openai.response.service_tier",
        "openinference.span.kind",
        "session.id",
        *_NEWEST,
    }
)
"""What is looked at of a span, and all `_COUNTED`. There are texts of prompts besides, and a trace may be long."""

_COUNTED = ("gen_ai.usage.", "ai.usage.")


@lru_cache(maxsize=10_000)  # the same few in each span, and the names of each message of long prompts
def is_of_a_span(key: str) -> bool:
    """Whether an attribute of a span is looked at."""
    return key in OF_A_SPAN or key.startswith(_COUNTED)


def objects(value: object) -> list[dict[str, Any]]:
    """The objects in a list; none where it is no list."""
    return [cast("dict[str, Any]", each) for each in listed(value) if isinstance(each, dict)]


def attributes_in(value: object, *, only: Callable[[str], bool] = bool) -> dict[str, Any]:
    """Attributes by their newest names, those alone that are wanted; where a count has an old and a new one, the new
    one holds."""
    said: dict[str, Any] = {}
    for attribute in objects(value):
        key = attribute.get("key")
        if isinstance(key, str) and only(key):
            said[key] = value_in(attribute.get("value"))
    if not said.keys().isdisjoint(_NEWEST.keys()):
        for old, new in _NEWEST.items():
            if old in said:
                said.setdefault(new, said[old])
    return said


_KINDS = ("stringvalue", "intvalue", "doublevalue", "boolvalue", "arrayvalue")


def _place_of_kind(kind: str) -> int:
    """A value has one kind; of several, that is the first of these."""
    said = kind.lower().replace("_", "")
    return _KINDS.index(said) if said in _KINDS else len(_KINDS)


_AS_IT_IS = frozenset({"stringValue", "doubleValue", "boolValue"})


def value_in(value: object) -> Any:
    """A value as OTLP writes it in JSON: its kind, and the value, whole numbers as text."""
    if not isinstance(value, dict):
        return value
    said = cast("dict[str, Any]", value)
    for kind in said if len(said) == 1 else sorted(said, key=_place_of_kind):
        content = said[kind]
        if kind in _AS_IT_IS:
            return content
        if kind in ("intValue", "int_value"):
            return count(content)
        if kind in ("arrayValue", "array_value"):
            return [value_in(each) for each in listed((mapping(content) or {}).get("values"))]
        if kind.lower().replace("_", "") in ("stringvalue", "doublevalue", "boolvalue"):
            return content
    return None
