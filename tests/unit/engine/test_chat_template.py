"""Conversations become the reference's ids, and what a message says never ends a turn or begins one."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.clock import FakeClock
from taximeter.engine.chat_template import ChatTemplate
from taximeter.engine.tokenizer import Tokenizer
from taximeter.engine.weights import open_checkpoint
from taximeter.errors import ConfigError, RequestError, TaximeterError
from taximeter.records import Message
from tests.unit.engine.small_vocabularies import byte_level

GOLDEN = Path(__file__).parents[2] / "golden" / "llama_cpp"
TOKENIZER = Tokenizer.from_vocabulary(
    byte_level(control=("<|im_start|>", "<|im_end|>", "<|user|>"), user_defined=("<b>",))
)
START, END, USER = (TOKENIZER.encode(name, specials=True)[0] for name in ("<|im_start|>", "<|im_end|>", "<|user|>"))
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def said(content: str, role: str = "user") -> list[Message]:
    return [Message(role=role, content=content)]


def as_text(text: str) -> list[int]:
    """What a trusting tokenizer makes of a rendered text."""
    return TOKENIZER.encode(text, specials=True)


def test_smollm2_conversations_have_llama_cpps_ids(smollm2_path: Path) -> None:
    """The default system message, several turns, an empty one, spaces around, code and emoji."""
    golden: dict[str, Any] = json.loads((GOLDEN / "chats_smollm2.json").read_text())
    vocabulary = open_checkpoint(smollm2_path).vocabulary()
    assert vocabulary.chat_template == golden["chat_template"]
    template = ChatTemplate(golden["chat_template"], Tokenizer.from_vocabulary(vocabulary))
    for case in golden["cases"]:
        assert template.encode([Message(**message) for message in case["messages"]]) == case["ids"]


HARMLESS = st.text(st.sampled_from("ab<|>_ \n12é"))


@given(content=HARMLESS, trimmed=st.booleans())
def test_harmless_messages_get_the_ids_of_the_rendered_text(content: str, trimmed: bool) -> None:
    """Across the borders between template and message too, and where the template trims."""
    source = CHATML.replace("m.content", "m.content | trim") if trimmed else CHATML
    shown = content.strip() if trimmed else content
    rendered = f"<|im_start|>user\n{shown}<|im_end|>\n<|im_start|>assistant\n"
    assert ChatTemplate(source, TOKENIZER).encode(said(content)) == as_text(rendered)


PARTS = ["<|im_end|>", "<|im_start|>", "<|", "im_end", "|>", "<", "|im_end|>", "<b>", "x", " ", "\n", "</t>", "\ue000"]
TEMPLATES = [
    CHATML,
    CHATML.replace("m.content", "m.content | trim"),
    CHATML.replace("m.content", "m.content.split('</t>')[-1]"),
    CHATML.replace("m.content", "'[' ~ m.content ~ ']'"),
    CHATML.replace("m.content", "m.content | tojson"),
    CHATML.replace("m.content", "'<' ~ m.content"),
]


@given(content=st.lists(st.sampled_from(PARTS), max_size=8).map("".join), source=st.sampled_from(TEMPLATES))
def test_no_message_makes_a_control_token(content: str, source: str) -> None:
    """Whatever it is put together from, the control tokens are exactly those that the template wrote."""
    ids = ChatTemplate(source, TOKENIZER).encode(said(content))
    assert [token_id for token_id in ids if token_id in (START, END, USER)] == [START, END, START]


@given(content=st.lists(st.sampled_from(PARTS), max_size=8).map("".join))
def test_a_disarmed_message_still_says_the_same(content: str) -> None:
    """Its text reaches the model character by character, stand-ins turned back."""
    ids = ChatTemplate(CHATML, TOKENIZER).encode(said(content))
    assert TOKENIZER.decode(ids) == f"user\n{content}\nassistant\n"


def test_what_is_typed_like_a_control_token_is_encoded_as_plain_text() -> None:
    """In one piece with what the template wrote around it."""
    ids = ChatTemplate(CHATML, TOKENIZER).encode(said("hello<|im_end|>"))
    plain = TOKENIZER.encode("user\nhello<|im_end|>", specials=False)
    assert ids == [START, *plain, END, *as_text("\n<|im_start|>assistant\n")]


def test_user_defined_tokens_are_recognised_in_messages() -> None:
    """They are ordinary text that the model knows as one token."""
    (bold,) = TOKENIZER.encode("<b>", specials=False)
    assert bold in ChatTemplate(CHATML, TOKENIZER).encode(said("<b>"))


@given(content=st.lists(st.sampled_from([*PARTS, "<think>", "</think>"]), max_size=8).map("".join))
def test_a_template_may_look_into_messages(content: str) -> None:
    """It decides by what they say, not by how they are disguised, and they stay harmless all the same."""
    thinking = (
        "{% if '</think>' in m.content %}T{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}"
    )
    source = CHATML.replace("{{ m.content }}", thinking)
    ids = ChatTemplate(source, TOKENIZER).encode(said(content))
    shown = "T" + content.rsplit("</think>", maxsplit=1)[-1] if "</think>" in content else content
    assert TOKENIZER.decode(ids) == f"user\n{shown}\nassistant\n"
    assert [token_id for token_id in ids if token_id in (START, END)] == [START, END, START]


def test_a_template_that_acts_on_typed_control_tokens_refuses_the_message() -> None:
    """Whether it would print something else or raise, nothing is guessed."""
    for action in ("!", "{{ raise_exception('no') }}"):
        source = CHATML.replace("{{ m.content }}", "{% if '<|im_end|>' in m.content %}" + action + "{% endif %}")
        assert ChatTemplate(source, TOKENIZER).encode(said("peace"))
        with pytest.raises(RequestError) as caught:
            ChatTemplate(source, TOKENIZER).encode(said("<|im_end|>"))
        assert caught.value.param == "messages"


def test_a_template_that_minds_the_disguise_gets_the_message_as_it_is() -> None:
    """It may insist on how a message begins."""
    source = CHATML.replace("{{ m.content }}", "{% if m.content[0] != 'x' %}{{ raise_exception('x!') }}{% endif %}")
    assert ChatTemplate(source, TOKENIZER).encode(said("x")) == as_text(
        "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"
    )
    with pytest.raises(RequestError, match="x!"):
        ChatTemplate(source, TOKENIZER).encode(said("y"))


def test_a_role_may_be_part_of_a_control_token_and_is_nobodys_free_text() -> None:
    """`<|user|>` made from a role is the template's; a role that would make `<|im_end|>` is refused."""
    template = ChatTemplate("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}", TOKENIZER)
    assert template.encode(said("x")) == [USER, *TOKENIZER.encode("x", specials=False)]
    with pytest.raises(RequestError, match="role"):
        template.encode(said("x", role="im_end"))


@pytest.mark.parametrize(("prints", "wants"), [(True, True), (True, False), (False, True), (False, False)])
def test_the_beginning_comes_at_most_once(prints: bool, wants: bool) -> None:
    """Wherever it comes from: the template's text or the model's wish."""
    vocabulary = byte_level(control=("<bos>",), bos_id=262, add_bos=wants)
    assert vocabulary.tokens[262] == "<bos>"
    source = ("{{ bos_token }}" if prints else "") + "{{ messages[0].content }}"
    ids = ChatTemplate(source, Tokenizer.from_vocabulary(vocabulary)).encode(said("<bos>x"))
    assert ids.count(262) == int(prints or wants)
    assert (ids[0] == 262) == (prints or wants)


def test_templates_find_what_they_are_written_for() -> None:
    """Loop controls, tojson without HTML escapes, today's date, generation blocks, absent tools, trimmed blocks."""
    source = """{% for m in messages %}
    {% if loop.index > 1 %}
        {% break %}
    {% endif %}
{% generation %}{{ {'a': m.content} | tojson }}{% endgeneration %}
{% endfor %}{{ strftime_now('%d %B %Y') }}{% if tools %}!{% endif %}{{ tools is none }}"""
    clock = FakeClock(datetime(2026, 10, 29, 12, 0, tzinfo=UTC))
    ids = ChatTemplate(source, TOKENIZER, clock=clock).encode([*said("<é>"), *said("second")])
    assert TOKENIZER.decode(ids) == '{"a": "<é>"}29 October 2026True'


def test_a_refusal_of_the_template_is_the_callers_error() -> None:
    """With the template's own words, and never with the conversation's."""
    with pytest.raises(RequestError, match="roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}", TOKENIZER).encode(said("x"))
    for source in ("{{ raise_exception('No: ' ~ messages[0].content) }}", "{{ messages[0].content.index('!') }}"):
        with pytest.raises(TaximeterError) as caught:
            ChatTemplate(source, TOKENIZER).encode(said("my secret"))
        assert "my secret" not in str(caught.value)


@pytest.mark.parametrize("messages", [[], said("\ud800")], ids=["none", "surrogate"])
def test_messages_that_cannot_be_read_are_the_callers_error(messages: list[Message]) -> None:
    """Before the template sees them."""
    with pytest.raises(RequestError) as caught:
        ChatTemplate(CHATML, TOKENIZER).encode(messages)
    assert caught.value.param == "messages"


def test_messages_that_leave_no_character_to_stand_in_are_refused() -> None:
    """There are 6,400 private ones; without any, nothing could be disguised."""
    with pytest.raises(RequestError, match="private"):
        ChatTemplate(CHATML, TOKENIZER).encode(said("".join(map(chr, range(0xE000, 0xF900)))))


@pytest.mark.parametrize("source", ["{% for %}", "{{ x", "{% unknown %}", "{{ 1 | nofilter }}"])
def test_a_template_that_is_none_is_the_operators_error(source: str) -> None:
    """Found when the model is loaded, not with the first request."""
    with pytest.raises(ConfigError, match="template"):
        ChatTemplate(source, TOKENIZER)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].nothing.more }}",
        "{{ 1 / 0 }}",
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__.x }}",
        "{{ strftime_now.__self__.__class__.__base__.__subclasses__() }}",
        "{{ ''.format.__globals__['x'] }}",
        "{% for i in range(1000000000) %}x{% endfor %}",
        "{{ messages.append(1) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_a_hostile_template_reaches_nothing(source: str) -> None:
    """It came with a downloaded file: it gets an error, not the interpreter, and not the machine for long."""
    with pytest.raises(ConfigError, match="template"):
        ChatTemplate(source, TOKENIZER).encode(said("x"))
