"""A tap on OpenAI's chat and legacy completions, and on embeddings.

Owns: what each chunk of such a stream is, and where an answer has its usage. Refuses to know: what the counts are
called.

Every event is decoded into the few fields that matter, so the decoder skips the rest without building it. Fields that
servers fill in their own ways have no type: an answer is metered as far as it can be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from taximeter.providers.metering import engines
from taximeter.providers.metering.leaves import Object
from taximeter.providers.metering.tap import (
    ANSWER,
    ERROR,
    NOTHING,
    SEEN,
    TOKENS,
    UNREADABLE,
    USAGE_ONLY,
    DialectTap,
)
from taximeter.providers.metering.words import Words
from taximeter.providers.sighting import Seen
from taximeter.records import Phase


class _Function(msgspec.Struct):
    name: Any = None
    arguments: Any = None


class _Custom(msgspec.Struct):
    name: Any = None
    input: Any = None


class _Call(msgspec.Struct):
    function: _Function | None = None
    custom: _Custom | None = None


class _Audio(msgspec.Struct):
    data: Any = None
    transcript: Any = None


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning_content: Any = None  # DeepSeek, vLLM, SGLang, llama.cpp
    reasoning: Any = None  # OpenRouter, newer vLLM
    refusal: Any = None
    tool_calls: list[_Call] | None = None
    function_call: _Function | None = None
    audio: _Audio | None = None


class _Choice(msgspec.Struct):
    index: Any = 0
    delta: _Delta | None = None
    text: Any = None
    finish_reason: Any = None
    meta_info: Any = None
    usage: Any = None  # Moonshot's streams have it here


class _Extras(msgspec.Struct):
    """What an answer says about itself, whole or in the chunks of a stream."""

    model: Any = None
    service_tier: Any = None
    usage: Any = None
    error: Any = None
    metrics: Any = None
    meta_info: Any = None
    timings: Any = None
    x_groq: Any = None


class _Answer(_Extras):
    choices: list[_Choice] | None = None


class _Refusal(msgspec.Struct):
    """An error where the body itself is it: `{"object": "error", "message": ...}`, or `{"detail": ...}`."""

    object: Any = None
    type: Any = None
    code: Any = None
    message: Any = None
    detail: Any = None


_decode = msgspec.json.Decoder(_Answer).decode
_decode_extras = msgspec.json.Decoder(_Extras).decode
_decode_refusal = msgspec.json.Decoder(_Refusal).decode


class OpenAIChatTap(DialectTap):
    """See the module."""

    def __init__(self, words: Words, *, streamed: bool) -> None:
        super().__init__(words, streamed=streamed)
        self._metrics: object = None
        self._meta_info: object = None
        self._timings: object = None

    def event(self, name: bytes, data: bytes) -> Seen:
        if data.strip() == b"[DONE]":
            self._is_whole = self._error is None
            return Seen.END
        try:
            chunk = _decode(data)
        except UNREADABLE:
            return self._odd_event(name, data)
        self._take_extras(chunk)
        bits = NOTHING
        if chunk.choices:
            for choice in chunk.choices:
                if (channel := _channel(choice)) != NOTHING:
                    bits |= channel
                    self._generated(channel)
                if choice.finish_reason is not None:
                    self._take_finish_reason(choice.index, choice.finish_reason)
                    self._is_settled = True
                if choice.meta_info is not None:
                    self._meta_info = choice.meta_info
                if choice.usage is not None:
                    self._take_usage(choice.usage)
            self._take_usage(chunk.usage if chunk.x_groq is None else _usage_in(chunk))
        else:
            bits = self._beside_the_choices(chunk)
        if chunk.error is not None or name == b"error":
            self._take_failure(chunk, data)
            bits |= ERROR
        return SEEN[bits]

    def whole(self, body: bytes) -> None:
        try:
            answer: _Extras = _decode(body)
        except UNREADABLE:
            try:
                answer = _decode_extras(body)
            except UNREADABLE:
                self._no_usage = "the answer is no JSON object that could be read"
                return
        self._is_whole = True
        self._take_extras(answer)
        self._take_usage(answer.usage)
        self._is_settled = True
        for choice in (answer.choices or ()) if isinstance(answer, _Answer) else ():
            self._take_finish_reason(choice.index, choice.finish_reason)
            if choice.meta_info is not None:
                self._meta_info = choice.meta_info
        if answer.error is not None or self._usage is None:
            self._take_failure(answer, body)

    def _odd_event(self, name: bytes, data: bytes) -> Seen:
        """An event of another shape: its usage or its error may still be where they belong."""
        try:
            chunk = _decode_extras(data)
        except UNREADABLE:
            self._unreadable_events += bool(data)
            if name == b"error":
                self._take_error("an error that could not be read")
                return Seen.ERROR
            return Seen.NOTHING
        self._unreadable_events += 1
        self._take_extras(chunk)
        self._take_usage(chunk.usage)
        if chunk.error is not None or name == b"error":
            self._take_failure(chunk, data)
            return Seen.ERROR
        return Seen.NOTHING

    def _beside_the_choices(self, chunk: _Answer) -> int:
        usage = _usage_in(chunk)
        if usage is None and chunk.timings is None and chunk.metrics is None:
            return NOTHING
        self._take_usage(usage)
        self._is_settled = True
        return USAGE_ONLY

    def _take_extras(self, said: _Extras) -> None:
        if said.model is not None:
            self._take_model(said.model)
        if said.service_tier is not None:
            self._tier = said.service_tier if isinstance(said.service_tier, str) else self._tier
        if said.timings is not None:
            self._timings, self._is_current = said.timings, True
        if said.metrics is not None:
            self._metrics = said.metrics
        if said.meta_info is not None:
            self._meta_info = said.meta_info

    def _take_failure(self, said: _Extras, body: bytes) -> None:
        """An error, under its key or as the body itself. Whether it is one at all shows in the latter."""
        if said.error is not None:
            self._take_error(said.error)
            return
        try:
            refusal = _decode_refusal(body)
        except UNREADABLE:
            return
        if refusal.object == "error" or refusal.detail is not None:
            message = refusal.message if refusal.message is not None else refusal.detail
            self._take_error({"type": refusal.type, "code": refusal.code, "message": message})

    def _said_usage(self) -> Object | None:
        return engines.with_llama_cpp_counts(self._usage, self._timings)

    def _spent_ns(self) -> Mapping[Phase, int]:
        return engines.spent_ns(metrics=self._metrics, meta_info=self._meta_info, timings=self._timings)


def _usage_in(said: _Extras) -> object:
    """The usage, also where Groq's streams have it: there they say it whether it was asked for or not."""
    beside: object = said.x_groq
    if said.usage is not None or not isinstance(beside, Mapping):
        return said.usage
    return cast("Object", beside).get("usage")


def _channel(choice: _Choice) -> int:
    """Whether a choice's piece holds generated tokens, and whether one of them is of the answer."""
    delta = choice.delta
    if delta is None:
        return ANSWER if choice.text else NOTHING
    if delta.content:
        return ANSWER if isinstance(delta.content, str) or _has_answer(delta.content) else TOKENS
    if delta.refusal:
        return ANSWER
    if delta.tool_calls:
        for call in delta.tool_calls:
            part, custom = call.function, call.custom
            if (part is not None and (part.arguments or part.name)) or (
                custom is not None and (custom.input or custom.name)
            ):
                return ANSWER
    if delta.function_call is not None and (delta.function_call.arguments or delta.function_call.name):
        return ANSWER
    if delta.audio is not None and (delta.audio.data or delta.audio.transcript):
        return ANSWER
    return TOKENS if delta.reasoning_content or delta.reasoning else NOTHING


def _has_answer(content: object) -> bool:
    """Whether a list of parts, which some servers write for a text, has one that is not reasoning."""
    if not isinstance(content, list):
        return True
    return any(
        not isinstance(part, Mapping) or cast("Object", part).get("type") != "thinking"
        for part in cast("list[object]", content)
    )
