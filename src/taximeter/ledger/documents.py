"""Records as JSON text, and back.

A document that nobody can read would spoil every list that it is in, so what could not be read back is refused before
it is written. Proving that by reading costs more than all the rest of writing; so the writer of each class of records
is made once from its annotations, and looks at every value's type on the way. What passes is readable by construction.
What does not (a number beyond floats, half a surrogate pair, a type that has no business there) goes the long way: the
standard library's codec, and is read back.

What only this machine's disk gets for a moment (`line`) is leaner: fields without what follows from them. It is cheap
enough to be read back each time.

Owns: the text of a record, the same as `to_json` says. Refuses to know: columns, SQL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from taximeter.errors import LedgerError
from taximeter.records import Json, Receipt, Request, Task, decimal_text, to_json

_Record = TypeVar("_Record", Receipt, Request, Task)
_Write = Callable[[Any], Json]
"""From a value to plain JSON; raises `_Unusual` for one that is not as annotated."""

_encode = msgspec.json.Encoder().encode


class _Unusual(Exception):
    """A value that only reading it back can vouch for."""


def document(record: _Record) -> str:
    """The record as JSON text. Raises LedgerError when it could not be read back."""
    try:
        return _encode(_writer(type(record))(record)).decode()
    except (_Unusual, ValueError):  # half a surrogate pair, or a number of thousands of digits
        return _by_the_long_way(record)


def line(record: _Record) -> str:
    """The record's fields as JSON text without a line break, for `record_from`. Raises as `document`."""
    try:
        text = _encode(record)
        if _reader(type(record))(text) == record:
            return text.decode()
    except (ValueError, OverflowError, TypeError, msgspec.ValidationError):
        pass
    return document(record)


def record_from(text: str, kind: type[_Record]) -> _Record:
    """The record that `text` was made from. Raises LedgerError when it is none of that kind."""
    try:
        return msgspec.convert(json.loads(text), kind, str_keys=True)
    except (ValueError, OverflowError, msgspec.ValidationError) as error:
        named = re.search(r'"id":"([^"]{1,80})"', text)
        raise LedgerError(
            f"{kind.__name__.lower()} {named[1] if named else '?'} cannot be read: {error}",
            hint="a newer Taximeter may have written it",
        ) from error


def _by_the_long_way(record: _Record) -> str:
    # The standard library's codec, both ways: a float may be infinite, and text half a pair.
    try:
        text = json.dumps(to_json(record), separators=(",", ":"))
    except (TypeError, ValueError) as error:
        name = record.name if isinstance(record, Task) else record.id
        raise LedgerError(f"{name} cannot be written as JSON: {error}") from error
    record_from(text, type(record))
    return text


@cache
def _reader(kind: type[_Record]) -> Callable[[bytes], _Record]:
    return msgspec.json.Decoder(kind).decode


@cache
def _writer(kind: type) -> _Write:
    """What writes records of `kind`."""
    hints = get_type_hints(kind)
    named = [(field.name, _checked(hints[field.name])) for field in fields(kind)]
    derived: tuple[str, ...] = getattr(kind, "JSON_PROPERTIES", ())

    def write(record: object) -> Json:
        written: dict[str, Json] = {}
        for name, checked in named:
            value: object = getattr(record, name)
            choose = checked.get(value.__class__)
            if choose is None:
                raise _Unusual
            written[name] = choose(value)
        for name in derived:
            written[name] = _any(getattr(record, name))
        return written

    return write


def _checked(hint: object) -> dict[type, _Write]:
    """The types that a value annotated with `hint` may have, and how each is written."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return {kind: write for part in get_args(hint) for kind, write in _checked(part).items()}
    if origin is tuple:
        return {tuple: _tuple_of(_checked(get_args(hint)[0]))}
    if origin is not None and issubclass(origin, Mapping):
        keys, values = get_args(hint)
        return {dict: _dict_of(_checked(keys), _checked(values))}
    if hint is object:
        return dict.fromkeys((NoneType, bool, int, float, str, list, dict), _any)
    if hint is float:
        return {float: _finite, int: _finite}
    kind = cast(type, hint)
    return {kind: _PLAIN[kind] if kind in _PLAIN else _known(kind)}


def _known(kind: type[object]) -> _Write:
    return _value if issubclass(kind, StrEnum) else _writer(kind)


def _value(member: StrEnum) -> Json:
    return member.value


def _same(value: Any) -> Json:
    return value


def _finite(value: float) -> Json:
    try:
        usual = isfinite(value)
    except OverflowError:
        usual = False
    if not usual:
        raise _Unusual
    return value


_PLAIN: dict[type, _Write] = {
    NoneType: _same,
    bool: _same,
    int: _same,
    str: _same,
    Decimal: decimal_text,
    datetime: datetime.isoformat,
    date: date.isoformat,
}


def _tuple_of(checked: Mapping[type, _Write]) -> _Write:
    def write(values: tuple[object, ...]) -> Json:
        try:
            return [checked[type(value)](value) for value in values]
        except KeyError:
            raise _Unusual from None

    return write


def _dict_of(keys: Mapping[type, _Write], values: Mapping[type, _Write]) -> _Write:
    def write(mapping: dict[object, object]) -> Json:
        try:
            return {str(keys[type(key)](key)): values[type(item)](item) for key, item in mapping.items()}
        except KeyError:
            raise _Unusual from None

    return write


def _any(value: object) -> Json:
    """What somebody else said, in plain JSON."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (int, float)):
        return _finite(value)
    if isinstance(value, dict):
        return {str(key): _any(item) for key, item in cast(dict[object, object], value).items()}
    if isinstance(value, list):
        return [_any(item) for item in cast(list[object], value)]
    if isinstance(value, Decimal):
        return decimal_text(value)
    raise _Unusual
