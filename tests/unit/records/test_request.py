"""A prompt's fingerprint: equal for equal prompts, on every machine, and cheap for long ones."""

import hashlib

import pytest

from taximeter.records import Form, FormKind, Message, Prompt, Tool, Toolbox, ToolCall


def test_token_ids_are_hashed_as_eight_little_endian_bytes_each() -> None:
    """The same on every machine, so that ledgers can be compared."""
    bytes_of_ids = b"\x01\0\0\0\0\0\0\0" + b"\xff\xff\xff\x7f\0\0\0\0"
    expected = "sha256:" + hashlib.sha256(bytes_of_ids).hexdigest()[:16]
    assert Prompt(token_ids=(1, 2**31 - 1)).fingerprint() == (expected,)


@pytest.mark.parametrize(
    ("one", "other"), [((1, 2), (2, 1)), ((1, 2), (12,)), ((), (0,)), ((2**63,), (2**63 + 1,)), ((-1,), (2**64 - 1,))]
)
def test_other_token_ids_have_another_fingerprint(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    """Also those beyond any vocabulary, which are refused later and have a receipt before."""
    assert Prompt(token_ids=one).fingerprint() != Prompt(token_ids=other).fingerprint()
    assert Prompt(token_ids=one).fingerprint() == Prompt(token_ids=one).fingerprint()


def said(content: str = "x", **more: object) -> Prompt:
    return Prompt(messages=(Message(role="assistant", content=content, **more),))


def test_tools_and_calls_are_part_of_what_is_read() -> None:
    """Each tool is a part of its own, before the conversation; calls belong to their message."""
    tools = tuple(Tool(name=name, parameters={"type": "object"}) for name in ("f", "g"))
    plain = said().fingerprint()
    assert Prompt(messages=said().messages, toolbox=Toolbox(tools=tools)).fingerprint()[2:] == plain
    assert len({said(tool_calls=(ToolCall(id="1", name=name, arguments="{}"),)).fingerprint() for name in "fg"}) == 2
    assert said(tool_call_id="1").fingerprint() != plain


def test_the_form_of_an_answer_is_not_part_of_what_is_read() -> None:
    """Two requests that differ in it alone share their prompt in every cache."""
    form = Form(kind=FormKind.REGEX, text="a", field="guided_regex")
    assert Prompt(text="x", form=form).fingerprint() == Prompt(text="x").fingerprint()


def test_tools_without_a_conversation_make_no_sense() -> None:
    """They are shown by chat templates only."""
    tool = Tool(name="f", parameters={})
    with pytest.raises(ValueError, match="conversation"):
        Prompt(text="x", toolbox=Toolbox(tools=(tool,)))
