"""A shortcut to the buckets of usual usage objects, for readers of a hundred thousand of them.

Owns: telling a usual object from one that `leaves` has to take apart, and the buckets of the former. Refuses to know:
anything that `leaves` does not do with it too: a test holds the two together, on any object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


class PlainReader:
    """Reads usual usage objects by the words of their dialect: those that have nothing but whole numbers of text
    tokens, in `LEAVES`, and whose total, if they say one, is the sum of these."""

    def __init__(self, words: Words) -> None:
        self._tree: _Tree = {}
        self._count = 0
        self._input_has_parts = words.input_has_parts
        self._input = self._placed([words.input])
        self._output = None if words.output is None else self._placed([words.output])
        self._total = self._placed([] if words.total is None else [words.total])
        self._read, self._write = self._placed(words.read), self._placed(words.write)
        self._write_5m = self._placed(words.writes.get("input_cache_write_5m_tokens", ()))
        self._write_1h = self._placed(words.writes.get("input_cache_write_1h_tokens", ()))
        self._reasoning = self._placed(words.reasoning)
        odd = [*words.input_audio, *words.input_image, *words.read_audio, *words.read_image, *words.output_audio]
        odd += [*words.output_image, *words.counted.values()]
        odd += [path for leaf, paths in words.writes.items() if leaf not in LEAVES for path in paths]
        for path in odd:
            self._place(path, _NOTHING)
        for path in (words.iterations, words.repriced):
            if path is not None:
                self._place(path[:1], _NEVER)

    def leaves(self, said: Mapping[str, object]) -> tuple[int, ...] | None:
        """The buckets, in the order of `LEAVES`; None for an object that is not usual."""
        counts: list[int | None] = [None] * self._count
        if not _gathered(self._tree, said, counts):
            return None
        prompt = _first(counts, self._input)
        answer = 0 if self._output is None else _first(counts, self._output)
        if prompt is None or answer is None:
            return None
        read, write = _first(counts, self._read) or 0, _first(counts, self._write)
        write_5m, write_1h = _first(counts, self._write_5m) or 0, _first(counts, self._write_1h) or 0
        unknown = 0 if write is None else write - write_5m - write_1h
        fresh = prompt - read - write_5m - write_1h - unknown if self._input_has_parts else prompt
        reasoning = _first(counts, self._reasoning) or 0
        leaves = (fresh, read, write_5m, write_1h, unknown, answer - reasoning, reasoning)
        tokens, total = sum(leaves), _first(counts, self._total)
        if min(leaves) < 0 or tokens > MOST_TOKENS or total not in (None, tokens):
            return None
        return leaves

    def _placed(self, paths: Sequence[Path]) -> tuple[int, ...]:
        """Where the counts at these paths are put."""
        places = tuple(range(self._count, self._count + len(paths)))
        self._count += len(paths)
        for path, place in zip(paths, places, strict=True):
            self._place(path, place)
        return places

    def _place(self, path: Path, place: int) -> None:
        tree = self._tree
        for key in path[:-1]:
            tree = cast("_Tree", tree.setdefault(key, {}))
        tree[path[-1]] = place


def _gathered(tree: _Tree, said: Mapping[str, object], counts: list[int | None]) -> bool:
    """Puts the counts where they belong. Whether all that is there is usual."""
    for key, value in said.items():
        place = tree.get(key)
        if place is None or value is None:
            continue
        if type(place) is dict:
            if type(value) is not dict or not _gathered(place, cast("Mapping[str, object]", value), counts):
                return False
        elif type(value) is not int or value < 0:
            return False
        elif cast("int", place) >= 0:
            counts[cast("int", place)] = value
        elif value or place == _NEVER:
            return False
    return True


def _first(counts: Sequence[int | None], places: tuple[int, ...]) -> int | None:
    for place in places:
        if counts[place] is not None:
            return counts[place]
    return None
