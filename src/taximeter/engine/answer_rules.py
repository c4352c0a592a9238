"""What one answer has to keep to, beyond sampling: a form, and the tools it may or must call.

Owns: putting the two together for one prompt, and refusing what does not go together. Refuses to know: how a form is
followed (`structured`), how calls are written (`call_syntax`) and read (`tool_calls`).
"""

from __future__ import annotations

from dataclasses import dataclass

from taximeter.engine.call_syntax import CallSyntax, arguments_rule, calls_grammar
from taximeter.engine.structured import Grammars, Matcher, form_grammar, schema_grammar
from taximeter.engine.tokenizer import Tokenizer
from taximeter.engine.tool_calls import CallReader
from taximeter.errors import RequestError
from taximeter.records import Form, FormKind, Prompt, Toolbox


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRules:
    """The rules of all choices of one request. `syntax` and `toolbox` are there when its calls are to be read."""

    matcher: Matcher | None = None
    syntax: CallSyntax | None = None
    toolbox: Toolbox | None = None
    marks: frozenset[int] = frozenset()  # control tokens that are marks of calls, and text to whoever reads them

    def new_matcher(self) -> Matcher | None:
        """What follows the form through one choice."""
        return None if self.matcher is None else self.matcher.copy()

    def new_reader(self, salt: str) -> CallReader | None:
        """What finds the calls of one choice. See `CallReader` for `salt`."""
        if self.syntax is None or self.toolbox is None:
            return None
        names = frozenset(tool.name for tool in self.toolbox.tools)
        return CallReader(self.syntax, names, parallel=self.toolbox.parallel, salt=salt)


NO_RULES = AnswerRules()


def rules_of(prompt: Prompt, syntax: CallSyntax | None, tokenizer: Tokenizer, grammars: Grammars) -> AnswerRules:
    """The rules for the answer to a prompt, of a model whose calls are written in `syntax`. May take a while, see
    `Grammars.compile`. Raises RequestError for what cannot be followed."""
    form, toolbox = prompt.form, prompt.toolbox
    if toolbox is None:
        if form is None:
            return NO_RULES
        return AnswerRules(matcher=grammars.compile(form_grammar(form), field=form.field))
    if syntax is None:
        raise RequestError("this model's chat template does not say how its tool calls are written", param="tools")
    _refuse_together(form)

    def token(mark: str) -> int | None:
        ids = tokenizer.encode(mark, specials=True)
        return ids[0] if len(ids) == 1 and not tokenizer.token_bytes(ids[0]) else None

    grammar = calls_grammar(syntax, toolbox, answer=form, token=token)
    matcher = None
    if grammar is not None:
        try:
            matcher = grammars.compile(grammar, field=form.field if form else "tools")
        except RequestError:
            _blame_a_tool(toolbox, grammars)
            raise
    return AnswerRules(
        matcher=matcher,
        syntax=syntax,
        toolbox=toolbox,
        marks=frozenset(found for mark in (syntax.opener, syntax.closer) if (found := token(mark)) is not None),
    )


def _blame_a_tool(toolbox: Toolbox, grammars: Grammars) -> None:
    """Raises RequestError for the first tool whose schema cannot be followed by itself: what was wrong with the whole
    grammar is said of lines that nobody wrote."""
    for tool in toolbox.tools:
        if not (toolbox.must_call or tool.strict):
            continue
        try:
            grammars.compile(schema_grammar(arguments_rule(tool)), field="tools")
        except RequestError as error:
            _, _, why = error.message.partition(": ")
            raise RequestError(
                f"the parameters of the tool `{tool.name}` describe arguments that cannot be made: {why}", param="tools"
            ) from error


def _refuse_together(form: Form | None) -> None:
    if form is not None and form.kind is not FormKind.JSON_SCHEMA:
        raise RequestError(
            f"`{form.field}` cannot be followed by an answer that may call tools",
            param=form.field,
            hint='use a JSON schema, or "tool_choice": "none"',
        )
