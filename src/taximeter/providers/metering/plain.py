"""A shortcut to the buckets of usual usage objects, for readers of a hundred thousand of them.

Owns: telling a usual object from one that `leaves` has to take apart, and the buckets of the former. Refuses to know:
anything that `leaves` does not do with it too: a test holds the two together, on any object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from taximeter.providers.metering.words import Path, Words

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


_Tree = dict[str, "int | _Tree"]
_NOTHING, _NEVER = -1, -2  # what a usual object has nothing of, and what it has not at all
_PROMPT, _ANSWER, _TOTAL, _READ, _WRITE, _WRITE_5M, _WRITE_1H, _REASONING = range(8)


class PlainReader:
    """Reads usual usage objects by the words of their dialect: those that have nothing but whole numbers of text
    tokens, in `LEAVES`, that say nothing twice in different words unless it is the same, and whose total, if they say
    one, is the sum of these."""

    def __init__(self, words: Words) -> None:
        self._tree: _Tree = {}
        self._input_has_parts = words.input_has_parts
        self._has_output = words.output is not None
        writes = words.writes
        self._place(_PROMPT, words.input)
        self._place(_ANSWER, *([] if words.output is None else [words.output]))
        self._place(_TOTAL, *([] if words.total is None else [words.total]))
        self._place(_READ, *words.read)
        self._place(_WRITE, *words.write)
        self._place(_WRITE_5M, *writes.get("input_cache_write_5m_tokens", ()))
        self._place(_WRITE_1H, *writes.get("input_cache_write_1h_tokens", ()))
        self._place(_REASONING, *words.reasoning)
        self._place(_NOTHING, *words.input_audio, *words.input_image, *words.read_audio, *words.read_image)
        self._place(_NOTHING, *words.output_audio, *words.output_image, *words.counted.values())
        self._place(_NOTHING, *(path for leaf, paths in writes.items() if leaf not in LEAVES for path in paths))
        self._place(_NEVER, *(path[:1] for path in (words.iterations, words.repriced) if path is not None))

    def leaves(self, said: Mapping[str, object]) -> tuple[int, ...] | None:
        """The buckets, in the order of `LEAVES`; None for an object that is not usual."""
        counts: list[int | None] = [None] * (_REASONING + 1)
        if not _gathered(self._tree, said, counts):
            return None
        prompt, answer, total, read, write, write_5m, write_1h, reasoning = counts
        if not self._has_output:
            answer = 0
        if prompt is None or answer is None:
            return None
        read, write_5m, write_1h, reasoning = read or 0, write_5m or 0, write_1h or 0, reasoning or 0
        unknown = 0 if write is None else write - write_5m - write_1h
        fresh = prompt - read - write_5m - write_1h - unknown if self._input_has_parts else prompt
        text = answer - reasoning
        tokens = fresh + read + write_5m + write_1h + unknown + answer
        if fresh < 0 or unknown < 0 or text < 0 or tokens > MOST_TOKENS or (total is not None and total != tokens):
            return None
        return fresh, read, write_5m, write_1h, unknown, text, reasoning

    def _place(self, what: int, *paths: Path) -> None:
        for path in paths:
            tree = self._tree
            for key in path[:-1]:
                tree = cast("_Tree", tree.setdefault(key, {}))
            tree[path[-1]] = what


def _gathered(tree: _Tree, said: Mapping[str, object], counts: list[int | None]) -> bool:
    """Puts the counts where they belong. Whether all that is there is usual."""
    for key, value in said.items():
        what = tree.get(key)
        if what is None or value is None:
            continue
        if type(what) is int and type(value) is int:
            if what < 0:
                if value or what == _NEVER:
                    return False
                continue
            before = counts[what]
            if value < 0 or (before is not None and before != value):
                return False
            counts[what] = value
        elif (
            not isinstance(what, dict)
            or not isinstance(value, dict)
            or not _gathered(what, cast("Mapping[str, object]", value), counts)
        ):
            return False
    return True
