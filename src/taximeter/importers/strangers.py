"""What strangers' words become here: names of groups, and amounts of money. Owns: cutting them to what reports can
print. Refuses to know: which log they are from."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from hashlib import sha256
from typing import Any, cast

from taximeter.importers.decoding import UNREADABLE, decoded
from taximeter.records import EXACT, MOST_GROUP_NAME_CHARACTERS

_HOME = re.compile(r"^(?:/home/[^/]+|/Users/[^/]+|/root|[A-Za-z]:[\\/]Users[\\/][^\\/]+)(?=[\\/]|$)")
_DIGEST = re.compile(r"[0-9a-f]{64}")
# What providers begin keys with, and what nobody would call one: 32 characters of three kinds, or hexadecimal digits.
_KEY = re.compile(
    r"(?:Bearer\s+\S+|(?:sk|pk|rk|gsk|hf|xai|pplx)[-_]\S{16,}|(?:AIza|AKIA)\S{12,}|[0-9a-f]{32,}"
    r"|(?=\S*\d)(?=\S*[a-z])(?=\S*[A-Z])[\w\-.=+/]{32,})"
)
_MOST_DOLLARS = Decimal(10**9)
_MOST_DOLLARS_AS_FLOAT = float(_MOST_DOLLARS)  # which it is exactly
_MANY_DIGITS = 20
_FEW_CHARACTERS = 13  # a point and what is behind it: no more than picodollars
_MOST_PYTHON_CHARACTERS = 1 << 20
_NO_DOLLARS = Decimal(0)
_PICODOLLAR = Decimal(1).scaleb(-12)
_DECIMAL_COMMA = re.compile(r"0?,\d+|\d{1,3}(\.\d{3})*,(\d{1,2}|\d{4,})|\d{1,3}(\.\d{3})+,\d+|\d{4,},\d+")
"""A number as much of Europe writes it. One comma with three digits behind it may part thousands: that is none."""


def group_name(value: object) -> str | None:
    """A name for a task, a run, a session or a label, as far as it is one: printable and short."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    text = str(value)
    if not text.isprintable():
        text = "".join(character if character.isprintable() else " " for character in text)
    if "\N{REPLACEMENT CHARACTER}" in text:
        text = text.replace("\N{REPLACEMENT CHARACTER}", "?")
    return text.strip()[:MOST_GROUP_NAME_CHARACTERS] or None


def home_shortened(path: str) -> str:
    """A folder's path, without whose home it is in."""
    return _HOME.sub("~", path)


def mapping(value: object) -> dict[str, Any] | None:
    """An object of a stranger's JSON."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def text(value: object) -> str | None:
    """A text that is not empty."""
    return value.strip() or None if isinstance(value, str) else None


def amount(value: object) -> Decimal | None:
    """Dollars to the picodollar, of a number or of a text that is one; None for what cannot be a price. Some write what
    floats made of their sums, and mean no more than that many digits."""
    if type(value) is float:  # as most logs have it
        if not 0 <= value <= _MOST_DOLLARS_AS_FLOAT:
            return None
        said = str(value)
    elif isinstance(value, str):
        said = value.strip().lstrip("$")
        if "," in said and _DECIMAL_COMMA.fullmatch(said):
            said = said.replace(".", "").replace(",", ".")
    elif isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        said = str(value)
    else:
        return None
    try:
        dollars = Decimal(said)
        if type(value) is not float and not 0 <= dollars <= _MOST_DOLLARS:
            return None
    except InvalidOperation:  # it is no number, or `NaN`, which is not compared
        return None
    if not dollars:
        return _NO_DOLLARS
    if len(said) > _FEW_CHARACTERS or "e" in said or "E" in said:
        dollars = dollars.quantize(_PICODOLLAR, context=EXACT)
    return dollars.normalize(EXACT)


def key_name(value: object) -> str | None:
    """The name of a key. A key itself, should one stand there, is told apart by the beginning of its digest, and is not
    kept."""
    said = group_name(value)
    if said is None or _KEY.fullmatch(said) is None:
        return said
    digest = said if len(said) == 64 and _DIGEST.fullmatch(said) else sha256(said.encode()).hexdigest()
    return digest[:12]


def count(value: object) -> int | None:
    """A count, of a number or of a text that is one; None for what is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str) and value.isdecimal() and len(value) < _MANY_DIGITS:
        return int(value)
    try:
        number = Decimal(str(value).strip()) if isinstance(value, str | float | Decimal) else None
    except InvalidOperation:
        return None
    if number is None or not number.is_finite() or number != number.to_integral_value():
        return None
    return int(number)


def nested(value: object) -> dict[str, Any]:
    """An object that stands in a cell; an empty one for everything else."""
    return mapping(value) or mapping(_in_a_cell(value, "{")) or {}


def listed(value: object) -> list[Any]:
    """A list that stands in a cell; an empty one for everything else."""
    if not isinstance(value, list):
        value = _in_a_cell(value, "[")
    return cast("list[Any]", value) if isinstance(value, list) else []


def _in_a_cell(value: object, begins: str) -> object:
    """What a cell holds, as it is, as JSON, or as Python writes it, which tables have that were made there."""
    if not isinstance(value, str) or not value.lstrip().startswith(begins):
        return value
    try:
        return decoded(value)
    except UNREADABLE:
        pass
    try:
        return ast.literal_eval(value.strip()) if len(value) <= _MOST_PYTHON_CHARACTERS else None
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def first(row: Mapping[str, Any], *names: str) -> Any:
    """What stands under the first of `names` that has something."""
    for name in names:
        value = row.get(name)
        if value is not None and value != "":
            return value
    return None
