"""Messages of spans as most programs write them: decoded into structs, of which only what is looked at is taken.

Owns: which messages and spans are usual, and where in a span the attributes are that a call is made of. Refuses to
know: what is to be made of them.

A message is usual if it has nothing but spans, under their names of today and each of the kind that OTLP says. Every
other one comes as any object of JSON does. A span in it is usual as far as its attributes are those of `WANTED`, each
of its kind, and others that nobody looks at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from taximeter.importers.decoding import UNREADABLE

COUNTS = (
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_write.input_tokens",
    "gen_ai.usage.cache_creation.input_tokens",
    "gen_ai.usage.reasoning.output_tokens",
)
TEXTS = (
    "gen_ai.operation.name",
    "gen_ai.request.model",
    "gen_ai.response.model",
    "gen_ai.response.id",
    "gen_ai.provider.name",
    "gen_ai.system",
    "gen_ai.conversation.id",
    "session.id",
    "gen_ai.agent.name",
    "openai.response.service_tier",
)
REASONS = "gen_ai.response.finish_reasons"
WANTED = (*COUNTS, *TEXTS, REASONS)
"""What a usual span says of a call, in the order in which `Slots.told` gives it."""

_WITHOUT_MEANING = "gen_ai.usage.total_tokens"  # looked at as all counts are, but no part of any sum
_NOTHING, _UNUSUAL = -1, -2
_FIRST_TEXT = len(COUNTS)
_REASONS = len(WANTED) - 1
_MOST_KEYS = 10_000


class Value(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A value of an attribute; it has one kind."""

    stringValue: str | UnsetType = UNSET  # noqa: N815 - as OTLP has it
    intValue: str | int | UnsetType = UNSET  # noqa: N815
    doubleValue: int | float | str | UnsetType = UNSET  # noqa: N815
    boolValue: bool | UnsetType = UNSET  # noqa: N815
    arrayValue: Values | UnsetType = UNSET  # noqa: N815
    kvlistValue: Any = UNSET  # noqa: N815
    bytesValue: Any = UNSET  # noqa: N815


class Values(msgspec.Struct, gc=False):
    """A list of them."""

    values: list[Value] = []


class Attribute(msgspec.Struct, gc=False):
    """A name, and what it has."""

    key: str
    value: Value


class Status(msgspec.Struct, gc=False):
    """What became of a span."""

    code: Any = None
    message: Any = None


class UsualSpan(msgspec.Struct, gc=False):
    """A span by the names of today. Where it has older ones too, it is not usual."""

    spanId: str  # noqa: N815
    traceId: str | None = None  # noqa: N815
    parentSpanId: str | None = None  # noqa: N815
    startTimeUnixNano: str | int | float | None = None  # noqa: N815
    endTimeUnixNano: str | int | float | None = None  # noqa: N815
    attributes: list[Attribute] | None = None
    status: Status | None = None
    span_id: Any = UNSET
    trace_id: Any = UNSET
    parent_span_id: Any = UNSET
    start_time_unix_nano: Any = UNSET
    end_time_unix_nano: Any = UNSET

    @property
    def has_older_names(self) -> bool:
        """Whether there is something under names that are not looked at here."""
        return not (
            self.span_id is UNSET
            and self.trace_id is UNSET
            and self.parent_span_id is UNSET
            and self.start_time_unix_nano is UNSET
            and self.end_time_unix_nano is UNSET
        )

    def as_any(self) -> Mapping[str, Any]:
        """The same as an object of JSON."""
        return msgspec.to_builtins(self)


class _Scope(msgspec.Struct, gc=False):
    spans: list[UsualSpan] = []


class ResourceSpans(msgspec.Struct, gc=False):
    """The spans of one process, and what it says of itself."""

    scopeSpans: list[_Scope]  # noqa: N815
    resource: dict[str, Any] | None = None


class Spans(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A usual message."""

    resourceSpans: list[ResourceSpans]  # noqa: N815


_decode = msgspec.json.Decoder(Spans).decode
_decode_any = msgspec.json.Decoder(dict[str, Any]).decode


def message_in(line: bytes) -> Spans | Mapping[str, Any]:
    """The message that a line is. Raises one of `UNREADABLE` where it is none."""
    try:
        return _decode(line)
    except UNREADABLE:
        return _decode_any(line)


class Slots(dict[str, int]):
    """Where each attribute has its place. `is_looked_at` says of any other name whether it may mean something."""

    def __init__(self, is_looked_at: Callable[[str], bool]) -> None:
        super().__init__({name: slot for slot, name in enumerate(WANTED)})
        self[_WITHOUT_MEANING] = _NOTHING
        self._is_looked_at = is_looked_at

    def __missing__(self, key: str) -> int:
        slot = _UNUSUAL if self._is_looked_at(key) else _NOTHING
        if len(self) < _MOST_KEYS:
            self[key] = slot
        return slot

    def told(self, attributes: list[Attribute]) -> list[Any] | None:
        """What these say, in the order of `WANTED`, None for what they do not: numbers as they are written, texts, and
        reasons as a text or as a list of such; None for all of it where that is not usual."""
        told: list[Any] = [None] * len(WANTED)
        for attribute in attributes:
            slot = self[attribute.key]
            if slot == _NOTHING:
                continue
            value = attribute.value
            if slot >= _FIRST_TEXT:
                said = value.stringValue
                if said is UNSET:
                    said = _reasons(value) if slot == _REASONS else None
                    if said is None:
                        return None
            elif slot >= 0 and value.stringValue is UNSET and value.intValue is not UNSET:
                said = value.intValue
            else:
                return None
            told[slot] = said
        return told


def _reasons(value: Value) -> list[str] | None:
    """A list of texts."""
    if value.arrayValue is UNSET or not (value.intValue is value.doubleValue is value.boolValue is UNSET):
        return None
    reasons = [each.stringValue for each in value.arrayValue.values]
    return [each for each in reasons if isinstance(each, str)] if UNSET not in reasons else None
