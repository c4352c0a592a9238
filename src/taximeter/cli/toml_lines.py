"""Where in a TOML file a key stands. Owns: line numbers, which the standard library's reader does not keep. Refuses to
know: what keys mean."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

Place = tuple[str | int, ...]

_HEADER = re.compile(r"\s*(\[\[?)(.*?)\]\]?\s*(?:#.*)?")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"\n]*"|'[^'\n]*')(?:\s*\.\s*(?:[\w-]+|"[^"\n]*"|'[^'\n]*'))*)\s*=""")
_LONGEST_VALUE_LINES = 1000
_SYNTAX_ERROR = re.compile(r"\(at line (\d+), column \d+\)")


def lines_of(text: str) -> Mapping[Place, int]:
    """The line, counted from 1, of each table and key in a valid file; in lists of tables these are numbered from 0."""
    lines = text.split("\n")
    found: dict[Place, int] = {}
    tables: Counter[Place] = Counter()
    table: Place = ()
    number = 0
    while number < len(lines):
        number += 1
        line = lines[number - 1]
        if header := _HEADER.fullmatch(line):
            table = _words(header[2])
            if header[1] == "[[":
                tables[table] += 1
                found.setdefault(table, number)
                table = (*table, tables[table] - 1)
            elif tables[table[:-1]]:  # [routes.x] belongs to the last [[routes]]
                table = (*table[:-1], tables[table[:-1]] - 1, *table[-1:])
            found.setdefault(table, number)
        elif key := _KEY.match(line):
            here = (*table, *_words(key[1]))
            for length in range(len(table) + 1, len(here) + 1):
                found.setdefault(here[:length], number)
            number += _lines_of_value(lines, number - 1) - 1
    return found


def line_of(places: Mapping[Place, int], place: Place) -> int | None:
    """The line of the nearest thing that is there: a key that is missing is a mistake of its table."""
    return next((places[place[:length]] for length in range(len(place), 0, -1) if place[:length] in places), None)


def line_of_syntax_error(message: str) -> int | None:
    """What the reader says of a file that is no TOML."""
    match = _SYNTAX_ERROR.search(message)
    return None if match is None else int(match[1])


def _words(dotted: str) -> Place:
    """A dotted name in its parts."""
    try:
        table: dict[str, Any] = tomllib.loads(f"{dotted} = 0")
    except tomllib.TOMLDecodeError:
        return (dotted.strip(),)
    words: list[str] = []
    inner: Any = table
    while isinstance(inner, dict):
        ((word, inner),) = cast(dict[str, Any], inner).items()
        words.append(word)
    return tuple(words)


def _lines_of_value(lines: list[str], start: int) -> int:
    """How many lines the key at `start` and its value take."""
    for count in range(1, _LONGEST_VALUE_LINES):
        try:
            tomllib.loads("\n".join(lines[start : start + count]))
        except tomllib.TOMLDecodeError:
            continue
        return count
    return 1
