"""A shortcut to the buckets of Anthropic's usual usage object, for readers of a hundred thousand of them.

Owns: telling a usual object from one that `leaves` has to take apart, and the buckets of the former. Refuses to know:
anything that `leaves` does not do with it too: a test holds the two together, on any object.
"""

from __future__ import annotations

from typing import Any

import msgspec

INPUTS = (
    "input_fresh_tokens",
    "input_cache_read_tokens",
    "input_cache_write_5m_tokens",
    "input_cache_write_1h_tokens",
    "input_cache_write_unknown_tokens",
)
LEAVES = (*INPUTS, "output_text_tokens", "output_reasoning_tokens")
"""The buckets that such an object can fill, in the order in which they are given here: the prompt's come first."""

MOST_TOKENS = 10**12  # a usual count is far below; what is more is looked at closely


class _Writes(msgspec.Struct, gc=False):
    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


class _Details(msgspec.Struct, gc=False):
    thinking_tokens: int | None = None


class _Tools(msgspec.Struct, gc=False):
    web_search_requests: int | None = None


class _Call(msgspec.Struct, gc=False):
    type: str | None = None
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation: _Writes | None = None


class MessagesUsage(msgspec.Struct, gc=False):
    """A usage object of `Dialect.ANTHROPIC_MESSAGES`, as it usually is. Another one does not decode."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation: _Writes | None = None
    output_tokens_details: _Details | None = None
    server_tool_use: _Tools | None = None
    iterations: list[_Call] | None = None
    service_tier: str | None = None
    speed: str | None = None
    inference_geo: str | None = None
    fallback_credit: Any = None


def plain_leaves(usage: MessagesUsage) -> tuple[int, ...] | None:
    """The buckets, in the order of `LEAVES`; None for an object that is not usual."""
    fresh, output = usage.input_tokens, usage.output_tokens
    written = usage.cache_creation_input_tokens or 0
    read = usage.cache_read_input_tokens or 0
    writes = usage.cache_creation
    write_5m = write_1h = 0
    unknown = written
    if writes is not None:
        write_5m, write_1h = writes.ephemeral_5m_input_tokens, writes.ephemeral_1h_input_tokens
        unknown = 0 if usage.cache_creation_input_tokens is None else written - write_5m - write_1h
    details, tools = usage.output_tokens_details, usage.server_tool_use
    thought = 0 if details is None else details.thinking_tokens or 0
    if (
        fresh < 0
        or read < 0
        or write_5m < 0
        or write_1h < 0
        or unknown < 0
        or thought < 0
        or thought > output
        or fresh + read + written + write_5m + write_1h + output > MOST_TOKENS
        or usage.fallback_credit is not None
        or (tools is not None and tools.web_search_requests)
        or (usage.iterations and not _is_the_only_call(usage, usage.iterations))
    ):
        return None
    return fresh, read, write_5m, write_1h, unknown, output - thought, thought


def _is_the_only_call(usage: MessagesUsage, calls: list[_Call]) -> bool:
    """Whether the list of calls says no more than the object that it is in."""
    if len(calls) != 1:
        return False
    call = calls[0]
    return (
        call.type == "message"
        and call.model is None
        and call.input_tokens == usage.input_tokens
        and call.output_tokens == usage.output_tokens
        and (call.cache_creation_input_tokens or 0) == (usage.cache_creation_input_tokens or 0)
        and (call.cache_read_input_tokens or 0) == (usage.cache_read_input_tokens or 0)
        and call.cache_creation == usage.cache_creation
    )
