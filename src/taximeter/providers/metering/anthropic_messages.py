"""A tap on Anthropic's Messages.

Owns: which events of such a stream hold tokens, and where its usage comes: the prompt's with the beginning, the
answer's with the end. Refuses to know: what the counts are called.
"""

from __future__ import annotations

from typing import Any

import msgspec

from taximeter.providers.metering.tap import ANSWER, TOKENS, UNREADABLE, DialectTap
from taximeter.providers.sighting import Seen

_ANSWER = Seen.TOKENS | Seen.ANSWER


class _Delta(msgspec.Struct):
    text: Any = None
    partial_json: Any = None
    thinking: Any = None
    stop_reason: Any = None


class _Message(msgspec.Struct):
    type: Any = None
    model: Any = None
    stop_reason: Any = None
    usage: Any = None
    error: Any = None


class _Event(msgspec.Struct):
    type: Any = None
    delta: _Delta | None = None
    message: _Message | None = None
    usage: Any = None
    error: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_message = msgspec.json.Decoder(_Message).decode


class AnthropicMessagesTap(DialectTap):
    """See the module."""

    def event(self, name: bytes, data: bytes) -> Seen:
        try:
            event = _decode_event(data)
        except UNREADABLE:
            self._unreadable_events += bool(data)
            if name != b"error":
                return Seen.NOTHING
            self._take_error("an error that could not be read")
            return Seen.ERROR
        kind, delta = event.type, event.delta
        if kind == "content_block_delta":
            if delta is None:
                return Seen.NOTHING
            if delta.text or delta.partial_json:
                self._generated(ANSWER)
                return _ANSWER
            if delta.thinking:
                self._generated(TOKENS)
                return Seen.TOKENS
            return Seen.NOTHING  # a signature or a citation: nothing of it was generated
        if kind == "message_start" and event.message is not None:
            self._take_model(event.message.model)
            self._take_usage(event.message.usage)
            self._is_current = False  # its output is a placeholder
        elif kind == "message_delta":
            self._take_usage(event.usage)
            if delta is not None and delta.stop_reason is not None:
                self._take_finish_reason(0, delta.stop_reason)
                self._is_settled = True
        elif kind == "message_stop":
            self._is_whole = self._error is None
            return Seen.END
        elif kind == "error" or name == b"error":
            self._take_error(event.error or "an error without a message")
            return Seen.ERROR
        return Seen.NOTHING

    def whole(self, body: bytes) -> None:
        try:
            message = _decode_message(body)
        except UNREADABLE:
            self._no_usage = "the answer is no JSON object that could be read"
            return
        self._is_whole = self._is_settled = True
        self._take_model(message.model)
        self._take_usage(message.usage)
        self._take_finish_reason(0, message.stop_reason)
        if message.error is not None:
            self._take_error(message.error)
