"""From the text of an answer to the calls that it makes.

Owns: finding calls in text that comes in pieces, and what is told of them when. Refuses to know: tokens, grammars, wire
formats.

A call is announced when its tool is known and its arguments begin; from then on they are passed on as they come. What
looks like a call and turns out to be none before that (no JSON, no such tool) is text like any other. What is wrong
with the arguments themselves is left to whoever runs the call: they are passed on as the model wrote them. Nothing that
was written is lost, but the marks and the white space around calls.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Generator
from dataclasses import dataclass, field
from typing import Any, cast

from taximeter.engine.call_syntax import CallSyntax
from taximeter.engine.held_back import possible_beginning
from taximeter.records import ToolCallDelta

_ID_CHARACTERS = 24
_ARGUMENTS = ("arguments", "parameters")  # families differ, and models forget which one they belong to
_HEAD = re.compile(
    r"""\{\s* (?: "(?:type|id)"\s*:\s*"[^"\\]*"\s*,\s* )*
    "name"\s*:\s*"(?P<name>[^"\\]*)"\s*,\s*
    "(?:arguments|parameters)"\s*:\s* (?=\{)""",
    re.VERBOSE,
)
_NO_HEAD = re.compile(r"""\{\s* (?: [^\s"] | " (?!(?:type|id|name|arguments|parameters)") [^"]*" )""", re.VERBOSE)

_Reading = Generator[None, None, None]  # stops wherever there has to be more text to go on


@dataclass(slots=True)
class Heard:
    """What some text came to: text to show, and pieces of calls."""

    text: str = ""
    calls: list[ToolCallDelta] = field(default_factory=list[ToolCallDelta])


class CallReader:
    """Reads one answer."""

    def __init__(self, syntax: CallSyntax, tools: Collection[str], *, parallel: bool, salt: str) -> None:
        """`tools` are the names there are; without `parallel` the first call is the last thing that is read. Ids of
        calls are made from `salt`, which no other answer shares."""
        self.whole_calls = 0  # how many had arguments that are a JSON object
        self.has_enough = False  # whether no more is to be written
        self._syntax = syntax
        self._tools = tools
        self._parallel = parallel
        self._salt = salt
        self._buffer = ""  # written, and not decided yet
        self._ended = False
        self._heard = Heard()
        self._announced = 0
        self._space = ""  # at the end of what was told: no part of the answer if a call follows
        self._is_behind_call = False
        self._reading = self._read()

    def push(self, text: str) -> Heard:
        """More of the answer."""
        self._buffer += text
        return self._resume()

    def flush(self) -> Heard:
        """The answer has ended."""
        self._ended = True
        return self._resume()

    def _resume(self) -> Heard:
        self._heard = Heard()
        next(self._reading, None)
        return self._heard

    def _read(self) -> _Reading:
        if self._syntax.bare:
            self._tell((yield from self._white_space()))
            if self._buffer.startswith("{"):
                yield from self._calls("")
        while not self.has_enough and (yield from self._text()):
            yield from self._calls(self._syntax.opener)
        if not self._announced:
            self._heard.text += self._space

    def _text(self) -> Generator[None, None, bool]:
        """Text up to the next opener; whether there is one."""
        opener = self._syntax.opener
        while True:
            before, found, after = self._buffer.partition(opener)
            split = len(before) if found or self._ended else len(before) - possible_beginning(before, (opener,))
            self._tell(before[:split])
            self._buffer = after if found else before[split:]
            if found or self._ended:
                return bool(found)
            yield

    def _calls(self, mark: str) -> _Reading:
        """Calls behind an opener. `mark` is what led to the next one: text after all, should it be none."""
        syntax = self._syntax
        mark += yield from self._white_space()
        in_list = syntax.listed and self._take("[")
        if in_list:
            mark += "[" + (yield from self._white_space())
        while (yield from self._call()):
            if not self._parallel:
                self.has_enough = True
                return
            yield from self._white_space()
            yield from self._until_clear(syntax.closer or syntax.separator)
            if self._take(syntax.closer) or (in_list and self._take("]")):
                return
            if syntax.listed > in_list or not self._take(syntax.separator):
                return
            mark = syntax.separator + (yield from self._white_space())
        self._tell(mark)

    def _call(self) -> Generator[None, None, bool]:
        """The object that the text goes on with, if it is a call; else nothing is taken."""
        whole = _Nesting(self._syntax.closer)
        if not self._buffer.startswith("{"):
            return False
        while not (head := _HEAD.match(self._buffer)) and not whole.follow(self._buffer):
            if self._ended or _NO_HEAD.match(self._buffer):
                return False
            yield
        if head is None:
            return whole.is_closed and self._take_whole_call(whole.at)
        if head["name"] not in self._tools:
            return False
        self._announce(head["name"])
        self._buffer = self._buffer[head.end() :]
        yield from self._arguments()
        yield from self._tail()
        return True

    def _take_whole_call(self, length: int) -> bool:
        """A call that is complete, and not written in the usual order or way."""
        call = _object(self._buffer[:length]) or {}
        name = call.get("name")
        given = next((call[key] for key in _ARGUMENTS if key in call), "{}")
        arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        if not isinstance(name, str) or name not in self._tools or _object(arguments) is None:
            return False
        self._announce(name)
        self._pass_on(arguments)
        self.whole_calls += 1
        self._buffer = self._buffer[length:]
        return True

    def _arguments(self) -> _Reading:
        nesting = _Nesting(self._syntax.closer)
        passed_on = 0
        while not nesting.follow(self._buffer) and not self._ended:
            self._pass_on(self._buffer[passed_on : nesting.at])
            passed_on = nesting.at
            yield
        end = len(self._buffer) if self._ended and not nesting.is_decided else nesting.at
        self._pass_on(self._buffer[passed_on:end])
        self.whole_calls += _object(self._buffer[:end]) is not None
        self._buffer = self._buffer[end:]

    def _tail(self) -> _Reading:
        """The rest of the object, behind its arguments. What does not belong there is text."""
        nesting = _Nesting(self._syntax.closer, depth=1)
        while not nesting.follow(self._buffer) and not self._ended:
            yield
        if nesting.is_closed and _object('{"": 0' + self._buffer[: nesting.at]) is not None:
            self._buffer = self._buffer[nesting.at :]

    def _white_space(self) -> Generator[None, None, str]:
        """Take white space, until something else comes."""
        taken = ""
        while True:
            rest = self._buffer.lstrip()
            taken += self._buffer[: len(self._buffer) - len(rest)]
            self._buffer = rest
            if rest or self._ended:
                return taken
            yield

    def _until_clear(self, mark: str) -> _Reading:
        """Wait until it is clear whether the text goes on with `mark`."""
        while len(self._buffer) < len(mark) and mark.startswith(self._buffer) and not self._ended:
            yield

    def _take(self, mark: str) -> bool:
        if not mark or not self._buffer.startswith(mark):
            return False
        self._buffer = self._buffer[len(mark) :]
        return True

    def _tell(self, text: str) -> None:
        if self._is_behind_call:
            text = text.lstrip()
            self._is_behind_call = not text
        told = self._space + text
        shown = told.rstrip()
        self._space = told[len(shown) :]
        self._heard.text += shown

    def _announce(self, name: str) -> None:
        index = self._announced
        digest = hashlib.sha256(f"{self._salt}/{index}".encode()).hexdigest()
        length = self._syntax.id_characters
        call_id = digest[:length] if length else f"call_{digest[:_ID_CHARACTERS]}"
        self._heard.calls.append(ToolCallDelta(index=index, id=call_id, name=name))
        self._announced += 1
        self._space, self._is_behind_call = "", True

    def _pass_on(self, arguments: str) -> None:
        if arguments:
            self._heard.calls.append(ToolCallDelta(index=self._announced - 1, arguments=arguments))


class _Nesting:
    """Finds the end of a JSON object in growing text, by its braces, without looking into it otherwise."""

    def __init__(self, closer: str, *, depth: int = 0) -> None:
        """`depth` is how deep the text begins; `closer` ends it too, outside of a string."""
        self.at = 0  # how far it has come
        self.is_closed = False  # whether the object ends there
        self.is_decided = False
        self._closer = closer
        self._depth = depth
        self._in_string = False
        self._is_escaped = False

    def follow(self, text: str) -> bool:
        """Go on in `text`, which begins as it did before. Whether the end is found: that of the object, or a closer
        too early. Until then everything before `at` is certain to be inside."""
        while self.at < len(text) and not self.is_decided:
            character = text[self.at]
            if self._in_string:
                self._in_string = self._is_escaped or character != '"'
                self._is_escaped = character == "\\" and not self._is_escaped
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                self.is_closed = self.is_decided = self._depth <= 0
            elif self._closer.startswith(text[self.at : self.at + len(self._closer)] or "\0"):
                if len(text) - self.at < len(self._closer):
                    return False
                self.is_decided = True
                return True
            self.at += 1
        return self.is_decided


def _object(text: str) -> dict[str, Any] | None:
    """The JSON object that `text` is; None when it is none."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast(dict[str, Any], value) if isinstance(value, dict) else None
