"""Calls are found in the text of an answer, however it is cut, and what is no call is text."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.engine.call_syntax import HERMES, LLAMA3, MISTRAL, CallSyntax
from taximeter.engine.tool_calls import CallReader

TOOLS = ("look_up", "add")
SYNTAXES = {"hermes": HERMES, "llama3": LLAMA3, "mistral": MISTRAL}


@dataclass
class Read:
    """What an answer came to, put together as a client does."""

    text: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    whole: int = 0
    enough: bool = False


def read(syntax: CallSyntax, *pieces: str, parallel: bool = True) -> Read:
    reader = CallReader(syntax, TOOLS, parallel=parallel, salt="req_1/0")
    result = Read()
    for heard in (*map(reader.push, pieces), reader.flush()):
        result.text += heard.text
        for delta in heard.calls:
            if delta.name is not None:
                assert delta.index == len(result.calls)
                assert delta.id
                assert not delta.arguments
                result.calls.append((delta.name, ""))
                result.ids.append(delta.id)
            else:
                assert delta.index == len(result.calls) - 1
                name, arguments = result.calls[-1]
                result.calls[-1] = name, arguments + delta.arguments
    result.whole, result.enough = reader.whole_calls, reader.has_enough
    return result


CALLS = [("look_up", '{"word": "a } \\" b"}'), ("add", '{"a": [1, {"b": 2}], "c": ""}')]
WRITTEN = {
    "hermes": (
        '<tool_call>\n{"name": "look_up", "arguments": {"word": "a } \\" b"}}\n</tool_call>\n'
        '<tool_call>{"name":"add","arguments":{"a": [1, {"b": 2}], "c": ""}}</tool_call>'
    ),
    "llama3": (
        '{"name": "look_up", "parameters": {"word": "a } \\" b"}}; '
        '{"type": "function", "name": "add", "parameters": {"a": [1, {"b": 2}], "c": ""}}'
    ),
    "mistral": (
        '[TOOL_CALLS] [{"name": "look_up", "arguments": {"word": "a } \\" b"}}, '
        '{"name": "add", "arguments": {"a": [1, {"b": 2}], "c": ""}, "id": "abcdefghi"}]'
    ),
}


@pytest.mark.parametrize("family", SYNTAXES)
@pytest.mark.parametrize("before", ["", "Let me see.\n\n"])
def test_each_family_is_read(family: str, before: str) -> None:
    """Two calls, the text before them, and nothing of the marks or the white space around them."""
    if family == "llama3" and before:
        before = before + "<|python_tag|>"  # a bare object is a call only where the answer begins
    result = read(SYNTAXES[family], before + WRITTEN[family])
    assert result.calls == CALLS
    assert result.text == ("Let me see." if before else "")
    assert (result.whole, result.enough) == (2, False)
    assert len(set(result.ids)) == 2


@given(family=st.sampled_from([*SYNTAXES]), cuts=st.lists(st.integers(0, 200), max_size=8), data=st.data())
def test_it_does_not_matter_how_the_text_is_cut(family: str, cuts: list[int], data: st.DataObject) -> None:
    """Whole, by letters, or anywhere; cut off at the end, with text before, or damaged."""
    text = data.draw(st.sampled_from(["", " ", "Well <tool", "{"])) + WRITTEN[family]
    text = text[: data.draw(st.integers(0, len(text)))] + data.draw(
        st.sampled_from(["", "}", " and so on", "</tool_call>"])
    )
    places = sorted({0, *(min(cut, len(text)) for cut in cuts), len(text)})
    pieces = [text[start:end] for start, end in itertools.pairwise(places)]
    assert read(SYNTAXES[family], *pieces) == read(SYNTAXES[family], text) == read(SYNTAXES[family], *text)


MARKS = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "</to", "<"]
JSON_PARTS = ["{", "}", "[", "]", ":", ",", ";", '"', "\\", '"name"', '"add"', '"arguments"', '"id": 3']
CALL_PARTS = ['{"name": "add", "arguments": {', '{"name": "add"}', "x", " ", "\n"]
PARTS = st.sampled_from([*MARKS, *JSON_PARTS, *CALL_PARTS])


@given(family=st.sampled_from([*SYNTAXES]), parts=st.lists(PARTS, max_size=14))
def test_nothing_is_lost_whatever_the_model_writes(family: str, parts: list[str]) -> None:
    """Without a call the text is the answer to the letter; with calls it has every letter that is in none of them."""
    text = "".join(parts)
    result = read(SYNTAXES[family], *parts)
    if not result.calls:
        assert result.text == text
    else:
        assert result.text.count("x") + sum(arguments.count("x") for _, arguments in result.calls) == text.count("x")


@given(text=st.text(st.sampled_from('ab <{}\n[]"')), family=st.sampled_from([*SYNTAXES]))
def test_an_answer_without_calls_is_shown_as_it_is(text: str, family: str) -> None:
    """White space at its ends too."""
    assert read(SYNTAXES[family], *text) == Read(text=text)


@pytest.mark.parametrize(
    "inside",
    [
        "not JSON",
        "{",
        "{}",
        "[]",
        '{"name": "no_such_tool", "arguments": {}}',
        '{"name": ["add"], "arguments": {}}',
        '{"name": "add", "arguments": [1]}',
        '{"name": "add", "arguments": "no"}',
        '{"arguments": {}}',
        '{"name": "add", ' + "[" * 5000,
    ],
)
def test_what_is_no_call_is_text(inside: str) -> None:
    """With its marks."""
    text = f"So: <tool_call>\n{inside}\n</tool_call>"
    assert read(HERMES, *text) == Read(text=text)


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"arguments": {"a": 1}, "name": "add"}', '{"a": 1}'),
        ('{"name": "add"}', "{}"),
        ('{"name": "add", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('{"id": "7", "name": "add", "parameters": {"a": 1}, "type": "function"}', '{"a": 1}'),
        ('{"name": "add", "arguments": {"a": 1}', '{"a": 1}'),  # a brace is missing, as small models like it
    ],
)
def test_other_ways_to_write_a_call(written: str, arguments: str) -> None:
    """Models mix up orders, keys and braces."""
    result = read(HERMES, *f"<tool_call>\n{written}\n</tool_call>")
    assert (result.calls, result.text, result.whole) == ([("add", arguments)], "", 1)


def test_arguments_that_are_no_json_are_passed_on_and_do_not_count() -> None:
    """They have been announced, and whoever runs the call can tell the model what is wrong."""
    result = read(HERMES, *'<tool_call>{"name": "add", "arguments": {"a": x}}</tool_call>')
    assert (result.calls, result.text, result.whole) == ([("add", '{"a": x}')], "", 0)


def test_arguments_are_passed_on_as_they_come() -> None:
    """First the name, with its id, then letter by letter."""
    reader = CallReader(HERMES, TOOLS, parallel=True, salt="")
    (announced,) = reader.push('<tool_call>{"name": "add", "arguments": {').calls[:1]
    assert (announced.name, announced.arguments) == ("add", "")
    assert [reader.push(letter).calls[0].arguments for letter in '"a": 1}'] == list('"a": 1}')


def test_text_is_not_held_longer_than_needed() -> None:
    """Only white space and what may begin a call wait."""
    reader = CallReader(HERMES, TOOLS, parallel=True, salt="")
    assert [reader.push(piece).text for piece in ("Hello", " ", "you", " <", "b> ")] == [
        "Hello",
        "",
        " you",
        "",
        " <b>",
    ]


@pytest.mark.parametrize("family", SYNTAXES)
def test_one_call_is_enough_without_parallel_calls(family: str) -> None:
    """Then no more is wanted, and no more is read."""
    result = read(SYNTAXES[family], WRITTEN[family], parallel=False)
    assert result.calls == CALLS[:1]
    assert (result.text, result.enough) == ("", True)


def test_a_bare_answer_in_json_is_not_held_when_its_first_key_says_that_it_is_no_call() -> None:
    """An answer in JSON streams like any other."""
    reader = CallReader(LLAMA3, TOOLS, parallel=True, salt="")
    assert reader.push('{"ci').text == ""
    assert reader.push('ty": ').text == '{"city":'
    assert reader.push('"Rome"}').text == ' "Rome"}'


def test_ids_are_as_the_family_wants_them() -> None:
    """Mistral's templates insist on nine letters or digits."""
    (mistral,) = read(MISTRAL, '[TOOL_CALLS][{"name": "add", "arguments": {}}]').ids
    (hermes,) = read(HERMES, '<tool_call>{"name": "add", "arguments": {}}</tool_call>').ids
    assert len(mistral) == 9
    assert mistral.isalnum()
    assert hermes.startswith("call_")
