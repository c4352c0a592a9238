"""A conversation to token ids, through the template that the model's files bring.

Owns: rendering in a sandbox, and keeping what people wrote from being read as what the template wrote. Refuses to know:
how text becomes tokens.

The danger: a message that contains `<|im_end|>` must not end its own turn, nor a tool's description begin one. The
rendered text alone cannot tell who wrote it. So while rendering, the characters in messages and tools that could begin
a control token are replaced by *stand-ins*, private-use characters that occur nowhere else. Control tokens are
recognised in that rendering; then the stand-ins turn back and what lies between control tokens is encoded in one piece,
so that ordinary messages get exactly the tokens of the text as rendered.

A template may look into a message ("does it hold `</think>`?") and stand-ins may change what it finds. The rendering
is therefore compared with one of the messages as they are; if they differ, fewer characters are replaced, at last only
those that begin a whole control token. If even that changes the template's mind, the messages are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from taximeter.clock import SYSTEM_CLOCK, Clock
from taximeter.engine.call_syntax import call_syntax_of
from taximeter.engine.conversation import Change, template_values
from taximeter.engine.tokenizer import Tokenizer, undisguised
from taximeter.errors import ConfigError, RequestError, TaximeterError
from taximeter.records import Message, Tool

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_PRIVATE_USE = range(0xE000, 0xF900)
_PADDING = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})  # as wide as they are told to be
_WIDE = re.compile(r"\*|\d{4}")  # in the text that `%` is to fill in
_MOST_TURNS = 1_000_000
_MOST_CHARACTERS = 1 << 22  # that a template adds to a conversation


class ChatTemplate:
    """One model's template, compiled. Safe to use from several threads."""

    def __init__(self, source: str, tokenizer: Tokenizer, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Raises ConfigError when the template is not one."""
        self._source = source
        self._tokenizer = tokenizer
        self._clock = clock
        environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock])
        environment.filters["tojson"] = _to_json
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(tree)
        except (jinja2.TemplateError, RecursionError) as error:
            raise _broken(f"{type(error).__name__}: {str(error)[:200]}") from error
        self._shows_tools = any(name.name == "tools" for name in tree.find_all(nodes.Name))
        self._shows_calls = "tool_calls" in source
        self.call_syntax = call_syntax_of(source) if self._shows_tools else None

    def encode(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """Ids of the conversation, up to where the assistant is to answer. The model is shown `tools` as its template
        does that.

        A model that wants a token at the beginning gets it once, whether or not its template writes it. RequestError
        when the template refuses the messages or has no place for tools, or when they cannot be kept apart from it;
        ConfigError when the template itself fails.
        """
        if not messages:
            raise RequestError("a conversation needs at least one message", param="messages")
        for message in messages:
            # A template may put a role inside a control token, as in `<|user|>`: it cannot be anybody's free text.
            if message.role not in _ROLES:
                raise RequestError(
                    "a message has a role that is not known here",
                    param="messages",
                    hint=f"known roles: {', '.join(_ROLES)}",
                )
        if tools and not self._shows_tools:
            raise _no_place("tools", "tools")
        if not self._shows_calls and any(message.tool_calls for message in messages):
            raise _no_place("tool calls", "messages")
        ids = self._encode(messages, tools)
        bos_id = self._tokenizer.bos_id
        return [bos_id, *ids] if self._tokenizer.add_bos and bos_id is not None and ids[:1] != [bos_id] else ids

    def _encode(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        prose: list[str] = []
        data: list[str] = []
        values = template_values(messages, tools, prose=_noted_in(prose), data=_noted_in(data))
        written = "".join((*prose, *data))
        try:
            written.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RequestError("a message is not valid Unicode: it has a lone surrogate", param="messages") from error
        now = self._clock.utc_now()  # once, so that renderings can be compared
        rendered = self._render(*values, now)
        for in_prose, in_data in (
            (self._beginnings, self._beginnings),
            (self._beginnings, self._tokenizer.control.possible_starts),  # a template may look for "string" in a schema
            (self._control_tokens, self._control_tokens),
        ):
            suspects = {text[at] for text in prose for at in in_prose(text)}
            suspects |= {text[at] for text in data for at in in_data(text)}
            stand_ins = _stand_ins(suspects, avoid=set(rendered) | set(written))
            originals = {stand_in: original for original, stand_in in stand_ins.items()}
            try:
                guarded = rendered
                if stand_ins:
                    disguise = _disguise(in_prose, stand_ins), _disguise(in_data, stand_ins)
                    disguised = template_values(messages, tools, prose=disguise[0], data=disguise[1])
                    guarded = self._render(*disguised, now)
            except TaximeterError:
                continue  # it rendered the messages as they are: what it minds is the disguise
            if undisguised(guarded, originals) == rendered:
                return self._tokenizer.encode(guarded, specials=True, stand_ins=originals)
        raise RequestError(
            "a message holds the text of a control token, and this model's chat template would act on it",
            param="messages",
            hint="remove texts like <|im_end|> from the messages",
        )

    def _beginnings(self, content: str) -> Iterator[int]:
        """Places of all characters that a control token could begin with, whatever the template puts after them, and
        of the first visible one, lest it go on with what the template put before it."""
        yield from self._tokenizer.control.possible_starts(content)
        if visible := content.strip():
            yield content.index(visible)

    def _control_tokens(self, content: str) -> Iterator[int]:
        """Places where a whole control token is written out."""
        return (at for at, _ in self._tokenizer.control.starts(content))

    def _render(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, now: datetime) -> str:
        tokenizer = self._tokenizer
        try:
            pieces = self._template.generate(
                range=_range_within(_MOST_TURNS + 4 * len(messages) ** 2),  # some look back from every message
                messages=messages,
                add_generation_prompt=True,
                bos_token=tokenizer.token_name(tokenizer.bos_id),
                eos_token=tokenizer.token_name(tokenizer.eos_id),
                tools=tools,
                documents=None,
                raise_exception=self._refuse,
                strftime_now=now.strftime,
            )
            # Nothing is wrong with a long conversation, of which a template may repeat all.
            return _joined(pieces, at_most=_MOST_CHARACTERS + 8 * sum(map(_size, (*messages, *(tools or ())))))
        except RequestError:
            raise
        except _TooMuch as error:
            raise _broken("it does far more than a conversation calls for") from error
        except Exception as error:  # a template is a program that came with a file: it may fail in any way
            raise _broken(type(error).__name__) from error  # its message might quote the conversation

    def _refuse(self, reason: object = "") -> str:
        """What templates call as `raise_exception`. Their reason is passed on if it is all their own words."""
        words = f": {reason}" if isinstance(reason, str) and reason and reason in self._source else ""
        raise RequestError(f"the model's chat template refuses the messages{words}", param="messages")


def _stand_ins(originals: set[str], *, avoid: set[str]) -> dict[str, str]:
    """A private-use character for each of some characters."""
    free = (chr(code) for code in _PRIVATE_USE if chr(code) not in avoid)
    stand_ins = dict(zip(sorted(originals), free, strict=False))
    if len(stand_ins) < len(originals):
        raise RequestError("the messages use up the private characters of Unicode", param="messages")
    return stand_ins


def _noted_in(texts: list[str]) -> Change:
    def note(text: str) -> str:
        texts.append(text)
        return text

    return note


def _disguise(suspects: Callable[[str], Iterator[int]], stand_ins: Mapping[str, str]) -> Change:
    def disguise(text: str) -> str:
        characters = list(text)
        for at in suspects(text):
            characters[at] = stand_ins[text[at]]
        return "".join(characters)

    return disguise


def _no_place(what: str, param: str) -> RequestError:
    return RequestError(
        f"this model's chat template has no place for {what}", param=param, hint="use a model that was made for tools"
    )


def _broken(why: str) -> ConfigError:
    return ConfigError(
        f"this model's chat template does not work: {why}",
        hint="use another file of the model, or send a plain prompt to the completions endpoint",
    )


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Templates are written for a `tojson` that does not escape for HTML, as jinja's own does."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _TooMuch(Exception):
    """A template does more than any conversation calls for: it came with a file, and may have been made to."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """Also without products that take all memory: a word times ten billion, or a number of as many digits."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        match operator:
            case "*":
                both = (left, right)
                numbers = [one for one in both if isinstance(one, int)]
                lengths = [len(cast("Sequence[object]", one)) for one in both if isinstance(one, str | list | tuple)]
                if lengths and numbers and lengths[0] * numbers[0] > _MOST_CHARACTERS:
                    raise _TooMuch
            case "**" if isinstance(left, int) and isinstance(right, int):
                if left.bit_length() * right > _MOST_CHARACTERS:
                    raise _TooMuch
            case "%" if isinstance(left, str) and _WIDE.search(left):
                raise _TooMuch
            case _:
                pass
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return not (isinstance(obj, str) and attr in _PADDING) and super().is_safe_attribute(obj, attr, value)


def _range_within(turns: int) -> Callable[..., range]:
    """`range` for one rendering, whose loops together may go round so many times."""
    left = turns

    def limited(*bounds: int) -> range:
        nonlocal left
        numbers = range(*bounds)
        left -= 1 + len(numbers)
        if left < 0:
            raise _TooMuch
        return numbers

    return limited


def _joined(pieces: Iterable[str], *, at_most: int) -> str:
    kept: list[str] = []
    for piece in pieces:
        kept.append(piece)
        at_most -= len(piece)
        if at_most < 0:
            raise _TooMuch
    return "".join(kept)


def _size(value: object) -> int:
    """How many characters an entry of a conversation has, about."""
    if isinstance(value, Mapping):
        return sum(len(str(key)) + _size(inner) for key, inner in cast("Mapping[object, object]", value).items())
    if isinstance(value, str):
        return len(value)
    return sum(map(_size, cast("list[object]", value))) if isinstance(value, list) else 8


class _GenerationBlock(Extension):
    """`{% generation %}` marks, for training, what the assistant wrote. For us it is just what is inside."""

    tags = {"generation"}  # noqa: RUF012  (as jinja declares it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
