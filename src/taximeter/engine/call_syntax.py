"""How each family of models writes a tool call, and which family a chat template belongs to.

Owns: the marks around calls and the words inside them, and the grammar of answers that call as they should. Refuses to
know: how answers are read (`tool_calls`), how grammars are compiled and followed (`structured`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from taximeter.engine.structured import json_rule, schema_rule
from taximeter.errors import RequestError
from taximeter.records import Form, Tool, Toolbox


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """A call is a JSON object with a `name` and, under the key `arguments`, another object.

    It begins with `opener`, which a `bare` answer that is nothing but calls may leave out. Calls come in a JSON list
    (`listed`), or with a `closer` after each, or with a `separator` between two.

    For grammars, in Lark: `first` is what follows the opener up to the end of the first call, `further` is one more
    call, None where the family makes one only, `last` is what follows the last. `opener` and `closer` stand for the
    marks, `one` for the object. `id_characters` is how long a call's id must be, where templates insist on that.
    """

    opener: str
    closer: str = ""
    separator: str = ""
    listed: bool = False
    bare: bool = False
    arguments: str = "arguments"
    first: str
    further: str | None = None
    last: str = ""
    id_characters: int | None = None


HERMES = CallSyntax(
    opener="<tool_call>",
    closer="</tool_call>",
    first=r'"\n" one "\n" closer',
    further=r'"\n" opener "\n" one "\n" closer',
)
LLAMA3 = CallSyntax(opener="<|python_tag|>", separator=";", bare=True, arguments="parameters", first="one")
MISTRAL = CallSyntax(
    opener="[TOOL_CALLS]",
    separator=",",
    listed=True,
    first='"[" one',
    further='", " one',
    last='"]"',
    id_characters=9,
)


def call_syntax_of(template: str) -> CallSyntax | None:
    """The family of a chat template, by the calls that it writes itself; None when that is none of ours."""
    if "[TOOL_CALLS]" in template:
        return None if "[ARGS]" in template else MISTRAL
    if "<tool_call>" in template:
        return None if "<function=" in template or "<arg_key>" in template else HERMES
    if "<|python_tag|>" in template or ('{"name": ' in template and '"parameters": ' in template):
        return LLAMA3
    return None


def calls_grammar(
    syntax: CallSyntax, toolbox: Toolbox, *, answer: Form | None, token: Callable[[str], int | None]
) -> str | None:
    """The grammar of answers that call as they should, in Lark; None where an answer may be anything.

    Calls that are required keep to their tool's schema: a strict tool's to all of it, the others' as far as it can be
    followed. Where the model decides whether to call, only strict tools' calls are held to a schema. An answer without
    calls is held to the JSON schema `answer`, if there is one. `token` gives the control token that a mark is, or None
    for a mark that is text. Raises RequestError for a tool whose arguments could not be an object.
    """
    for tool in toolbox.tools:
        _refuse_other_arguments(tool)
    if not toolbox.must_call and answer is None and not any(tool.strict for tool in toolbox.tools):
        return None
    tools = [tool for tool in toolbox.tools if toolbox.only in (None, tool.name)]
    further = f" ({syntax.further})*" if syntax.further and toolbox.parallel else ""
    rest = f"{syntax.first}{further} {syntax.last}"
    calls = rest if syntax.bare else f"opener {rest}"
    if toolbox.must_call:
        starts = [f"start: {calls}"]
    elif answer is not None:
        starts = [f"start: {calls} | %json {schema_rule(answer)}"]
    else:
        starts = _text_or_calls(syntax, rest, opener_is_text=token(syntax.opener) is None)
    marks = {"opener": syntax.opener, "closer": syntax.closer}
    return "\n".join(
        [
            *starts,
            "one: " + " | ".join(f"call_{index}" for index in range(len(tools))),
            *(f"call_{index}: {_call(syntax, tool, held=toolbox.must_call)}" for index, tool in enumerate(tools)),
            *(f"{name}: {_mark(mark, token(mark))}" for name, mark in marks.items() if mark),
        ]
    )


def _text_or_calls(syntax: CallSyntax, rest: str, *, opener_is_text: bool) -> list[str]:
    """Any text, but what looks like the beginning of a call becomes one."""
    bare = f" | {rest}" if syntax.bare else ""
    text = r"TEXT: /([^{\s](.|\n)*)?/" if syntax.bare else r"TEXT: /(.|\n)*/"
    if opener_is_text:
        # Lazy: the text ends with the first opener in it.
        opened = f"opened[lazy]: TEXT {json.dumps(syntax.opener)}"
        return [f"start: TEXT | opened {rest}{bare}", opened, text]
    return [f"start: TEXT | TEXT opener {rest}{bare}", text]


def _mark(mark: str, token_id: int | None) -> str:
    return json.dumps(mark) if token_id is None else f"<[{token_id}]>"


def _call(syntax: CallSyntax, tool: Tool, *, held: bool) -> str:
    rule = arguments_rule(tool) if held or tool.strict else json_rule({"type": "object"})
    head = f'{{"name": {json.dumps(tool.name)}, "{syntax.arguments}": '
    return f'{json.dumps(head)} %json {rule} "}}"'


def arguments_rule(tool: Tool) -> str:
    """The JSON schema that a tool's arguments are held to, as a rule: an object, whether its schema says so or not."""
    return json_rule({**tool.parameters, "type": "object"}, lenient=not tool.strict)


def _refuse_other_arguments(tool: Tool) -> None:
    kind = tool.parameters.get("type", "object")
    if "object" not in (kind if isinstance(kind, list) else [kind]):
        raise RequestError(
            f"the parameters of the tool `{tool.name}` are a JSON schema of type {json.dumps(kind)[:64]}",
            param="tools",
            hint="arguments are always an object, with a property for each",
        )
