"""Records as JSON. Keys are the records' own field names; money is a string, times are ISO 8601, enums their value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import cache
from typing import cast

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def decimal_text(amount: Decimal) -> str:
    """Plain digits, no exponent, no trailing zeros: `0.01`, `12`, `0`."""
    if amount == 0:
        return "0"
    text = format(amount, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def to_json(value: object) -> Json:
    """A record, or anything made of records, as plain JSON values.

    Properties that a record class names in `JSON_PROPERTIES` (sums, mostly) follow its fields. Raises TypeError for
    a type that has no JSON form here.
    """
    match value:
        case Enum():
            return to_json(value.value)
        case None | bool() | int() | float() | str():
            return value
        case Decimal():
            return decimal_text(value)
        case datetime() | date():
            return value.isoformat()
        case bytes():
            return list(value)
        case Mapping():
            return {str(key): to_json(item) for key, item in cast(Mapping[object, object], value).items()}
        case list() | tuple():
            return [to_json(item) for item in cast(Sequence[object], value)]
        case _:
            return {name: to_json(getattr(value, name)) for name in _json_names(type(value))}


@cache  # a receipt is some twenty records deep, and reflection would be half of writing one
def _json_names(record: type) -> tuple[str, ...]:
    if not is_dataclass(record):
        raise TypeError(f"{record!r} has no JSON form")
    return (*(field.name for field in fields(record)), *getattr(record, "JSON_PROPERTIES", ()))
