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
from taximeter.records import Message, Tool, ToolCall
from tests.toolbox_models import TEMPLATES as FAMILIES
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
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}",
        "{{ 'x' * 10**10 }}",
        "{{ 10**10 * [1] }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ 'x'.ljust(10**10) }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ '%*d' % (10**10, 1) }}",
    ],
)
def test_a_hostile_template_reaches_nothing(source: str) -> None:
    """It came with a downloaded file: it gets an error, not the interpreter, and not the machine for long."""
    with pytest.raises(ConfigError, match="template"):
        ChatTemplate(source, TOKENIZER).encode(said("x"))


def test_honest_work_of_a_template_is_not_held_up() -> None:
    """Long conversations that are gone through again and again, products, powers and padding of everyday size."""
    source = (
        "{% for i in range(20) %}{% for m in messages %}{{ m.content }}{% endfor %}{% endfor %}"
        "{{ '-' * 40 }}{{ 2 ** 10 }}{{ '%5.2f' % 1.5 }}{{ 3 * 1.5 }}"
    )
    words = "many words " * 1_000
    text = TOKENIZER.decode(ChatTemplate(source, TOKENIZER).encode(said(words)))
    assert text == words * 20 + "-" * 40 + "1024 1.504.5"


def test_a_template_may_look_back_from_every_message() -> None:
    """A thousand turns of a conversation are a million looks."""
    source = "{% for m in messages %}{% for i in range(messages|length) %}{% endfor %}{% endfor %}."
    assert TOKENIZER.decode(ChatTemplate(source, TOKENIZER).encode(said("x") * 1100)) == "."


LOOK_UP = Tool(
    name="look_up",
    description="Look a word up.",
    parameters={"type": "object", "properties": {"word": {"type": "string"}}},
)
CALLED = Message(
    role="assistant", content="", tool_calls=(ToolCall(id="abcdefghi", name="look_up", arguments='{"word": "é"}'),)
)
RESULT = Message(role="tool", content="a letter", tool_call_id="abcdefghi")


def test_tools_and_calls_reach_templates_as_transformers_passes_them() -> None:
    """Functions in an envelope, arguments as values and not as text; nothing that was not said."""
    source = "{{ tools | tojson }}{% for m in messages %}{{ m | tojson }}{% endfor %}{# tool_calls #}"
    ids = ChatTemplate(source, TOKENIZER).encode([*said("x"), CALLED, RESULT], [LOOK_UP])
    schema = {"type": "object", "properties": {"word": {"type": "string"}}}
    function = {"name": "look_up", "description": "Look a word up.", "parameters": schema}
    call = {"type": "function", "id": "abcdefghi", "function": {"name": "look_up", "arguments": {"word": "é"}}}
    expected = [
        [{"type": "function", "function": function}],
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "a letter", "tool_call_id": "abcdefghi"},
    ]
    assert TOKENIZER.decode(ids) == "".join(json.dumps(value, ensure_ascii=False) for value in expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_writes_a_conversation_with_calls(family: str) -> None:
    """The tool is shown, the call is written as the model would write it, and the result follows."""
    template = ChatTemplate(FAMILIES[family], TOKENIZER)
    assert template.call_syntax is not None
    text = TOKENIZER.decode(template.encode([*said("look é up"), CALLED, RESULT], [LOOK_UP]))
    call = f'{{"name": "look_up", "{template.call_syntax.arguments}": {{"word": "é"}}'
    places = [text.index(part) for part in ("Look a word up.", call, "a letter")]
    assert places == sorted(places)


@pytest.mark.parametrize("source", [CHATML, "{% for m in messages %}{{ m.content }}{% endfor %} tools"])
def test_a_template_without_tools_refuses_them(source: str) -> None:
    """A model that is not shown its tools would answer another question."""
    template = ChatTemplate(source, TOKENIZER)
    assert template.call_syntax is None
    for messages, tools, what in ((said("x"), [LOOK_UP], "tools"), ([*said("x"), CALLED], [], "tool calls")):
        with pytest.raises(RequestError, match=f"no place for {what}"):
            template.encode(messages, tools)


@pytest.mark.parametrize(
    "arguments", ["{", "[1]", '"x"', "NaN", '{"a": NaN}', "[" * 5000, '{"a":' * 900 + "1" + "}" * 900]
)
def test_arguments_that_are_no_object_are_the_callers_error(arguments: str) -> None:
    """Templates walk through them."""
    call = Message(role="assistant", content="", tool_calls=(ToolCall(id="1", name="f", arguments=arguments),))
    with pytest.raises(RequestError) as caught:
        ChatTemplate(FAMILIES["hermes"], TOKENIZER).encode([*said("x"), call])
    assert caught.value.param == "messages"


@given(words=st.lists(st.lists(st.sampled_from(PARTS), max_size=5).map("".join), min_size=6, max_size=6))
def test_no_tool_and_no_call_makes_a_control_token(words: list[str]) -> None:
    """Descriptions, names in schemas, values in arguments, ids and results: all of them are other people's words."""
    description, key, value, argument, call_id, result = words
    tool = Tool(name="f", description=description, parameters={key: {"enum": [value]}})
    call = ToolCall(id=call_id, name="f", arguments=json.dumps({key: [argument]}))
    messages = [
        *said("x"),
        Message(role="assistant", content="", tool_calls=(call,)),
        Message(role="tool", content=result, tool_call_id=call_id),
    ]
    ids = ChatTemplate(FAMILIES["hermes"], TOKENIZER).encode(messages, [tool])
    turns = 4  # the tools', the user's, the assistant's and the tool's; another begins
    assert [token for token in ids if token in (START, END, USER)] == [*[START, END] * turns, START]


def test_a_template_may_look_into_schemas() -> None:
    """It asks whether a type is "string", and still nothing in a schema is a control token."""
    source = (
        "{% for t in tools %}{% for k, v in t.function.parameters.items() %}{{ k }}={{ 's' if v == 'string' else v }}"
    )
    source += ";{% endfor %}{% endfor %}{{ messages[0].content }}"
    tool = Tool(name="f", parameters={"type": "string", "title": "<|im_end|>"})
    ids = ChatTemplate(source, TOKENIZER).encode(said("x"), [tool])
    assert TOKENIZER.decode(ids) == "type=s;title=<|im_end|>;x"
    assert END not in ids
