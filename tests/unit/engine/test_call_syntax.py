"""Families are told from their templates, and their grammars allow calls that their readers understand."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.engine.answer_rules import AnswerRules, rules_of
from taximeter.engine.call_syntax import HERMES, LLAMA3, MISTRAL, CallSyntax, call_syntax_of
from taximeter.engine.structured import Grammars
from taximeter.engine.tokenizer import Tokenizer
from taximeter.errors import RequestError
from taximeter.records import FinishReason, Form, FormKind, Message, Prompt, Tool, Toolbox
from tests import toolbox_models
from tests.unit.engine.small_vocabularies import byte_level

SYNTAXES = {"hermes": HERMES, "llama3": LLAMA3, "mistral": MISTRAL}
MARKS = ("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]")
AS_TEXT = Tokenizer.from_vocabulary(byte_level(merges=("< t", '{ "', '" :'), user_defined=("<tool_call>",)))
AS_CONTROL = Tokenizer.from_vocabulary(byte_level(control=("<|im_end|>", *MARKS)))
GRAMMARS = {id(each): Grammars(each, logits=each.vocab_size) for each in (AS_TEXT, AS_CONTROL)}

ADD = Tool(
    name="add",
    parameters={
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}, "b": {"enum": ["x", "}"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    strict=True,
)
STOP = Tool(name="stop", parameters={"type": "object", "properties": {}, "additionalProperties": False, "not": {}})
ANSWER = Form(kind=FormKind.JSON_SCHEMA, text='{"enum": [{"word": "hi"}]}', field="response_format")


def rules(syntax: CallSyntax, tokenizer: Tokenizer, toolbox: Toolbox, form: Form | None = None) -> AnswerRules:
    prompt = Prompt(messages=(Message(role="user", content="?"),), toolbox=toolbox, form=form)
    return rules_of(prompt, syntax, tokenizer, GRAMMARS[id(tokenizer)])


def random_answer(
    rules: AnswerRules, tokenizer: Tokenizer, choose: np.random.Generator, start: str = ""
) -> tuple[str, list[tuple[str, str]], int]:
    """(text, calls, whole calls) of an answer of random tokens among those that may come, behind a given start."""
    follow, reader = rules.new_matcher(), rules.new_reader("salt")
    assert follow is not None
    assert reader is not None
    detokenizer = tokenizer.detokenizer(continuing=True, visible=rules.marks)
    given = tokenizer.encode(start, specials=True)
    text, calls = "", list[tuple[str, str]]()
    for place in range(3000):
        allowed = np.flatnonzero(follow.allowed())
        token = given[place] if place < len(given) else int(choose.choice(allowed))
        assert token in allowed
        reason = follow.advance(token)
        heard = [reader.push(detokenizer.push(token))]
        if reason is not None:
            assert reason is FinishReason.STOP
            heard.append(reader.flush())
        for piece in heard:
            text += piece.text
            for delta in piece.calls:
                if delta.name is not None:
                    calls.append((delta.name, ""))
                else:
                    calls[-1] = calls[-1][0], calls[-1][1] + delta.arguments
        if reason is not None:
            return text, calls, reader.whole_calls
    raise AssertionError("no end")


def check_add(arguments: str) -> None:
    values = json.loads(arguments)
    assert list(values) == ["a", "b"]
    assert 0 <= values["a"] <= 9
    assert values["b"] in ("x", "}")


@pytest.mark.parametrize("family", SYNTAXES)
def test_a_template_shows_its_family(family: str) -> None:
    """By the calls that it writes itself."""
    assert call_syntax_of(toolbox_models.TEMPLATES[family]) == SYNTAXES[family]


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}",
        "<tool_call>\n<function=name>\n<parameter=x>",
        "<tool_call>name\n<arg_key>",
        "[TOOL_CALLS]name[ARGS]{}",
    ],
)
def test_a_form_that_is_not_known_is_no_family(template: str) -> None:
    """Calls that nobody here can read must not be offered; some look like a family's at first sight."""
    assert call_syntax_of(template) is None


@pytest.mark.parametrize("tokenizer", [AS_TEXT, AS_CONTROL], ids=["marks are text", "marks are control tokens"])
@pytest.mark.parametrize("family", SYNTAXES)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_required_calls_are_made_and_read(family: str, tokenizer: Tokenizer, seed: int) -> None:
    """Whatever tokens are picked: nothing but calls, with arguments that keep to their schemas."""
    must = rules(SYNTAXES[family], tokenizer, Toolbox(tools=(ADD, STOP), must_call=True))
    text, calls, whole = random_answer(must, tokenizer, np.random.default_rng(seed))
    assert text == ""
    assert whole == len(calls) > 0
    for name, arguments in calls:
        if name == "add":
            check_add(arguments)
        else:
            assert json.loads(arguments) == {}


@pytest.mark.parametrize("family", SYNTAXES)
def test_one_named_call(family: str) -> None:
    """Of that tool, and without parallel calls only one."""
    toolbox = Toolbox(tools=(STOP, ADD), must_call=True, only="add", parallel=False)
    _, calls, _ = random_answer(rules(SYNTAXES[family], AS_TEXT, toolbox), AS_TEXT, np.random.default_rng(3))
    assert [name for name, _ in calls] == ["add"]


@pytest.mark.parametrize("tokenizer", [AS_TEXT, AS_CONTROL], ids=["marks are text", "marks are control tokens"])
@pytest.mark.parametrize(
    ("family", "start"),
    [
        ("hermes", "Let me add.\n<tool_call>"),
        ("mistral", "Let me add. [TOOL_CALLS]"),
        ("llama3", "{"),
        ("llama3", "<|python_tag|>"),
    ],
)
def test_a_strict_tools_call_keeps_to_its_schema_once_it_has_begun(
    family: str, start: str, tokenizer: Tokenizer
) -> None:
    """Although the model may say what it likes before."""
    free = rules(SYNTAXES[family], tokenizer, Toolbox(tools=(ADD,)))
    for seed in range(10):
        text, calls, whole = random_answer(free, tokenizer, np.random.default_rng(seed), start)
        assert text == start.partition("<")[0].partition("[")[0].partition("{")[0].rstrip()
        assert whole == len(calls) > 0
        for _, arguments in calls:
            check_add(arguments)


@pytest.mark.parametrize("family", SYNTAXES)
def test_an_answer_without_calls_is_free(family: str) -> None:
    """Also with a strict tool; and without one there is nothing to follow at all."""
    free = rules(SYNTAXES[family], AS_TEXT, Toolbox(tools=(ADD,)))
    follow = free.new_matcher()
    assert follow is not None
    for token in AS_TEXT.encode("The sum is <b>5</b>, é [1] {x}.\n\n", specials=False):
        assert follow.allowed()[token]
        assert follow.advance(token) is None
    assert follow.allowed()[list(AS_TEXT.stop_ids)].all()
    assert rules(SYNTAXES[family], AS_TEXT, Toolbox(tools=(STOP,))).matcher is None


@pytest.mark.parametrize("family", SYNTAXES)
def test_tools_and_a_schema_for_the_answer_go_together(family: str) -> None:
    """It calls, or it answers in that form: both turn up, and nothing else."""
    both = rules(SYNTAXES[family], AS_TEXT, Toolbox(tools=(ADD,)), ANSWER)
    seen = set[bool]()
    for seed in range(20):
        text, calls, _ = random_answer(both, AS_TEXT, np.random.default_rng(seed))
        seen.add(bool(calls))
        if calls:
            assert text == ""
        else:
            assert json.loads(text) == {"word": "hi"}
    assert seen == {True, False}


UNFOLLOWABLE: dict[str, Callable[[], AnswerRules]] = {
    "not": lambda: rules(HERMES, AS_TEXT, Toolbox(tools=(Tool(name="t", parameters={"not": {}}, strict=True),))),
    "may call tools": lambda: rules(
        HERMES, AS_TEXT, Toolbox(tools=(ADD,)), Form(kind=FormKind.REGEX, text="a", field="guided_regex")
    ),
    "Expecting": lambda: rules(
        HERMES, AS_TEXT, Toolbox(tools=(ADD,)), Form(kind=FormKind.JSON_SCHEMA, text="{", field="guided_json")
    ),
    "does not say how": lambda: rules_of(
        Prompt(messages=(Message(role="user", content="?"),), toolbox=Toolbox(tools=(ADD,))),
        None,
        AS_TEXT,
        GRAMMARS[id(AS_TEXT)],
    ),
}


@pytest.mark.parametrize("says", UNFOLLOWABLE)
def test_what_cannot_be_followed_is_refused(says: str) -> None:
    """A strict tool's schema that is beyond us, a form that leaves no room for calls, a family that is not known."""
    with pytest.raises(RequestError, match=says):
        UNFOLLOWABLE[says]()


def test_a_schema_of_a_tool_that_is_not_strict_is_followed_as_far_as_possible() -> None:
    """`STOP` has a keyword that cannot be followed; it was never promised."""
    must = rules(HERMES, AS_TEXT, Toolbox(tools=(STOP,), must_call=True, parallel=False))
    assert random_answer(must, AS_TEXT, np.random.default_rng(0))[1][0][0] == "stop"
