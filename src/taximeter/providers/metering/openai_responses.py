"""A tap on OpenAI's Responses.

Owns: which events of such a stream hold tokens, and where the response at its end has what. Refuses to know: what the
counts are called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from taximeter.providers.metering.leaves import Object, word, word_at
from taximeter.providers.metering.tap import ANSWER, TOKENS, UNREADABLE, DialectTap
from taximeter.providers.metering.words import SEARCHES, SEARCHING
from taximeter.providers.sighting import Seen

_REASONING = Seen.TOKENS
_ANSWER = Seen.TOKENS | Seen.ANSWER

_DELTAS: Mapping[bytes, Seen] = {
    b"response.output_text.delta": _ANSWER,
    b"response.reasoning_text.delta": _REASONING,
    b"response.reasoning_summary_text.delta": _REASONING,
    b"response.function_call_arguments.delta": _ANSWER,
    b"response.custom_tool_call_input.delta": _ANSWER,
    b"response.mcp_call_arguments.delta": _ANSWER,
    b"response.code_interpreter_call_code.delta": _ANSWER,
    b"response.refusal.delta": _ANSWER,
    b"response.audio.delta": _ANSWER,
    b"response.audio.transcript.delta": _ANSWER,
}
_TERMINAL: Mapping[bytes, Seen] = {
    b"response.completed": Seen.END,
    b"response.incomplete": Seen.END,
    b"response.failed": Seen.END | Seen.ERROR,
}
_MOST_SEARCHES = 1_000
_PENDING = frozenset({"queued", "in_progress"})


class _Item(msgspec.Struct):
    type: Any = None
    status: Any = None
    action: Any = None


class _Extras(msgspec.Struct):
    model: Any = None
    status: Any = None
    service_tier: Any = None
    usage: Any = None
    error: Any = None
    incomplete_details: Any = None


class _Response(_Extras):
    output: list[_Item] | None = None


class _Event(msgspec.Struct):
    type: Any = None
    delta: Any = None
    response: msgspec.Raw = msgspec.Raw()
    item: msgspec.Raw = msgspec.Raw()
    error: Any = None
    code: Any = None
    message: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_response = msgspec.json.Decoder(_Response).decode
_decode_item = msgspec.json.Decoder(_Item).decode
_decode_extras = msgspec.json.Decoder(_Extras).decode


class OpenAIResponsesTap(DialectTap):
    """See the module."""

    _searches: Mapping[str, int] = {}
    _done: tuple[_Item, ...] = ()  # the output as it was finished, item by item

    def event(self, name: bytes, data: bytes) -> Seen:
        try:
            event = _decode_event(data)
        except UNREADABLE:
            self._unreadable_events += bool(data)
            return Seen.NOTHING
        kind = event.type.encode("utf-8", "replace") if isinstance(event.type, str) else name
        delta = _DELTAS.get(kind)
        if delta is not None:
            if not event.delta:
                return Seen.NOTHING
            self._generated(ANSWER if delta is _ANSWER else TOKENS)
            return delta
        if kind == b"response.output_item.done":
            self._take_item(bytes(event.item))
            return Seen.NOTHING
        if kind == b"error":
            self._take_error(event.error or {"code": event.code, "message": event.message})
            return Seen.ERROR
        response = bytes(event.response)
        if response.startswith(b"{"):
            self._take_response(response)
        seen = _TERMINAL.get(kind, Seen.NOTHING)
        if seen:
            self._is_whole = self._is_settled = True
        return seen

    def whole(self, body: bytes) -> None:
        self._is_whole = self._is_settled = self._take_response(body)

    def _take_response(self, body: bytes) -> bool:
        try:
            response: _Extras = _decode_response(body)
        except UNREADABLE:
            try:
                response = _decode_extras(body)
            except UNREADABLE:
                self._no_usage = "the response is no JSON object that could be read"
                return False
        self._take_model(response.model)
        self._tier = word(response.service_tier) or self._tier
        self._take_usage(response.usage)
        if response.error is not None:
            self._take_error(response.error)
        status = word(response.status)
        details = response.incomplete_details
        why = word(cast("Object", details).get("reason")) if isinstance(details, Mapping) else None
        if status in _PENDING:
            if not self._streamed:
                self._no_usage = f"the response is {status}: its usage comes when it is fetched again"
        elif status is not None:
            self._no_usage = None
            self._take_finish_reason(0, why or status)
        if isinstance(response, _Response):
            # Where nothing is stored, some streams end with a response without its output.
            self._searches = _searches(response.output or self._done)
        return True

    def _take_item(self, said: bytes) -> None:
        try:
            item = _decode_item(said)
        except UNREADABLE:
            return
        if isinstance(item.type, str) and item.type in SEARCHES and len(self._done) < _MOST_SEARCHES:
            self._done = (*self._done, item)
            self._searches = _searches(self._done)

    def _counted(self) -> Mapping[str, int]:
        return self._searches


def _searches(items: Sequence[_Item]) -> Mapping[str, int]:
    """The searches that were made, by unit: not those that failed, and not the tool that was only offered."""
    made = Counter[str]()
    for item in items:
        unit = SEARCHES.get(item.type) if isinstance(item.type, str) else None
        if unit is None or item.status not in (None, "completed"):
            continue
        action = word_at({"action": cast("object", item.action)}, ("action", "type"))
        if action is None or action in SEARCHING:
            made[unit] += 1
    return made
