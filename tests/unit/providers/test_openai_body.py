"""What a client may ask in OpenAI's dialect, and how it is told that it may not."""

import contextlib
import json
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taximeter.errors import RequestError
from taximeter.providers.bodies import model_named_in
from taximeter.providers.door import Endpoint
from taximeter.providers.openai import CHAT, COMPLETIONS
from taximeter.providers.openai.body import _ChatBody, _CompletionBody
from taximeter.records import Image, Message, Prompt, Sampling

HELLO = [{"role": "user", "content": "hello"}]


def chat(**fields: object) -> bytes:
    return json.dumps({"model": "m", "messages": HELLO, **fields}).encode()


def completion(**fields: object) -> bytes:
    return json.dumps({"model": "m", "prompt": "hello", **fields}).encode()


def image(url: str) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


def refused(endpoint: Endpoint, body: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        endpoint.parse(body)
    return caught.value


def test_a_bare_chat_gets_openais_defaults():
    """Temperature 1, one choice, no limit of its own, not streamed."""
    call = CHAT.parse(chat())
    assert call.sampling == Sampling(temperature=1.0)
    assert call.prompt == Prompt(messages=(Message(role="user", content="hello"),))
    assert (call.max_output_tokens, call.stream, call.include_usage) == (None, False, False)


def test_a_bare_completion_gets_openais_sixteen_tokens():
    """The legacy endpoint's default limit is 16."""
    assert COMPLETIONS.parse(completion()).max_output_tokens == 16


def test_every_sampling_field_arrives():
    """Nothing that is accepted is dropped on the way."""
    body = chat(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        repetition_penalty=1.1,
        presence_penalty=-0.5,
        frequency_penalty=0.25,
        logit_bias={"7": -100, "9": 2.5},
        seed=-3,
        logprobs=True,
        top_logprobs=5,
        stop=["a", "b"],
        n=3,
        min_tokens=2,
        ignore_eos=True,
        max_tokens=9,
    )
    call = CHAT.parse(body)
    assert call.max_output_tokens == 9
    assert call.sampling == Sampling(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        repetition_penalty=1.1,
        presence_penalty=-0.5,
        frequency_penalty=0.25,
        logit_bias={7: -100.0, 9: 2.5},
        seed=-3,
        logprobs=5,
        stop=("a", "b"),
        choices=3,
        min_tokens=2,
        ignore_eos=True,
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop", "x"),
        ("top_k", -1),
        ("repeat_penalty", 1.0),
        ("temperature", 0),
        ("top_p", 0),
        ("stream_options", None),
        ("response_format", {"type": "text"}),
        ("tools", []),
        ("stop_token_ids", []),
        ("user", "u"),
        ("metadata", {"a": "b"}),
        ("service_tier", "auto"),
        ("a_field_of_tomorrow", [{"deep": [1]}]),
    ],
)
def test_neutral_and_unknown_fields_are_accepted(field: str, value: object):
    """Clients send what they always send; only what would change the answer is refused."""
    CHAT.parse(chat(**{field: value}))
    COMPLETIONS.parse(completion(**{field: value}))


def test_the_newer_name_of_the_limit_wins():
    """`max_completion_tokens` replaced `max_tokens`; clients in between send both."""
    assert CHAT.parse(chat(max_tokens=5, max_completion_tokens=7)).max_output_tokens == 7


def test_no_alternatives_still_reports_the_pick():
    """`logprobs` alone is the picked token's own."""
    assert CHAT.parse(chat(logprobs=True)).sampling.logprobs == 0
    assert CHAT.parse(chat(logprobs=False)).sampling.logprobs is None
    assert COMPLETIONS.parse(completion(logprobs=0)).sampling.logprobs == 0


@pytest.mark.parametrize(
    ("prompt", "meant"),
    [
        ("a b", Prompt(text="a b")),
        ("", Prompt(text="")),
        (["a b"], Prompt(text="a b")),
        ([1, 2], Prompt(token_ids=(1, 2))),
        ([[1, 2]], Prompt(token_ids=(1, 2))),
    ],
)
def test_every_form_of_one_prompt_is_read(prompt: object, meant: Prompt):
    """Text, token ids, or a list of one of these."""
    assert COMPLETIONS.parse(completion(prompt=prompt)).prompt == meant


@pytest.mark.parametrize(
    "prompt", [[], ["a", "b"], [[1], [2]], [1, "a"], ["a", 1], [1, [2]], [-1], [2**31], [1.5], [True]]
)
def test_any_other_prompt_is_refused_by_name(prompt: object):
    """Several prompts are several requests, and a token id is a small natural number."""
    assert str(refused(COMPLETIONS, completion(prompt=prompt)).param).startswith("prompt")


def test_text_parts_become_one_message():
    """A list of text parts is one text, in paragraphs."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    call = CHAT.parse(chat(messages=[{"role": "user", "content": parts}]))
    assert call.prompt.messages == (Message(role="user", content="a\nb"),)


def test_images_arrive_between_the_texts():
    """By their address, or as the data that a URL of data holds."""
    parts = [{"type": "text", "text": "a"}, image("https://x/y.png"), image("data:image/png;base64,aGk=")]
    call = CHAT.parse(chat(messages=[{"role": "user", "content": parts}]))
    images = (Image(url="https://x/y.png"), Image(data="aGk=", media_type="image/png"))
    assert call.prompt.messages == (Message(role="user", content=("a", *images)),)


def test_the_tier_that_is_asked_for_is_kept():
    """In the caller's words; too long a word is none."""
    assert CHAT.parse(chat(service_tier="flex")).tier == "flex"
    assert CHAT.parse(chat()).tier is None
    assert refused(CHAT, chat(service_tier="x" * 201)).param == "service_tier"


def test_developer_is_the_newer_word_for_system():
    """Templates know `system` only."""
    call = CHAT.parse(chat(messages=[{"role": "developer", "content": "be brief"}, *HELLO]))
    assert call.prompt.messages is not None
    assert call.prompt.messages[0].role == "system"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": [image("x")]}, "messages[0].content[0].image_url"),
        ({"role": "user", "content": [image("data:image/png;base64,")]}, "messages[0].content[0].image_url"),
        ({"role": "user", "content": [image("data:text/plain;base64,aGk=")]}, "messages[0].content[0].image_url"),
        ({"role": "user", "content": [image("https://x/" + "y" * 9000)]}, "messages[0].content[0].image_url"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0].image_url"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": 3}, "messages[0].content"),
        ({"role": "wizard", "content": "x"}, "messages[0].role"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}, "messages[0].tool_calls[0].function"),
        ({"role": "assistant", "content": "x", "function_call": {"name": "f"}}, "messages[0].function_call"),
        ("x", "messages[0]"),
    ],
)
def test_a_message_that_cannot_be_represented_is_refused_by_name(message: object, param: str):
    """Audio, images that are none, half a tool call and unknown roles are said to be so, not dropped."""
    assert refused(CHAT, chat(messages=[message])).param == param


# As JSON text, because Python cannot write some of it.
OUT_OF_RANGE = {
    "temperature": ["-0.1", "2.1", '"1"', "true", "[]", "1e400", "NaN"],
    "top_p": ["-0.1", "1.1", '"x"'],
    "min_p": ["-0.1", "1.1"],
    "top_k": ["-2", "1.5", "2147483648", "true"],
    "n": ["0", "-1", "129", "1.5", "true", '"2"', "1" + "0" * 30],
    "seed": ["9223372036854775808", "-9223372036854775809", "0.5", '"s"'],
    "max_tokens": ["0", "-1", "2147483648", '"9"', "true", "1" + "0" * 5000],
    "presence_penalty": ["-2.1", "2.1"],
    "frequency_penalty": ["-2.1", "2.1"],
    "repetition_penalty": ["0", "-1", "11"],
    "repeat_penalty": ["0", "11"],
    "min_tokens": ["-1", '"x"'],
    "ignore_eos": ["1", '"yes"'],
    "stream": ["1", '"true"'],
    "stop": ['""', '[""]', json.dumps(["x"] * 17), json.dumps("x" * 257), "[3]", "3"],
    "logit_bias": ['{"x": 1}', '{"-1": 1}', '{"1.5": 1}', '{"٣": 1}', json.dumps({"9" * 5000: 1}), "[]", '{"1": "x"}'],
    "logprobs": ["21", "-1", '"x"', "1.5"],
    "response_format": ['{"type": "xml"}', '"text"', '{"type": 3}', '{"type": "json_schema"}'],
    "stop_token_ids": ["[1]"],
    "structured_outputs": ['"a"', '{"regex": 3}', '{"choice": "a"}', '{"structural_tag": {"a": 1}}'],
    "guided_regex": ["3"],
    "guided_choice": ['"a"', "[1]"],
    "guided_json": ["3", "[]"],
    "grammar": ["{}"],
    "model": ["1", '""', json.dumps("x" * 257), '"a\\u0000b"', "null"],
}


@pytest.mark.parametrize("field", OUT_OF_RANGE)
@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS], ids=["chat", "completions"])
def test_a_wrong_value_is_refused_and_the_field_is_named(endpoint: Endpoint, field: str):
    """Wrong types (true is no number), ranges, infinities and absurd sizes: the caller learns which field."""
    good = json.loads(chat() if endpoint is CHAT else completion())
    for written in OUT_OF_RANGE[field]:
        body = json.dumps(good | {field: "HERE"}).replace('"HERE"', written)
        error = refused(endpoint, body.encode())
        if written != "NaN":  # which is no JSON: then there is no field
            assert re.split(r"[.\[]", str(error.param))[0] == field, written
            assert field in error.message


@pytest.mark.parametrize(
    ("endpoint", "fields", "param"),
    [
        (CHAT, {"top_logprobs": 3}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, {"stream_options": {"include_usage": True}}, "stream_options"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"tools": [{"type": "function"}]}, "tools[0].function"),
        (CHAT, {"functions": [{}]}, "functions"),
        (CHAT, {"logit_bias": {"1": 101}}, "logit_bias"),
        (CHAT, {"logit_bias": {"1": -101}}, "logit_bias"),
        (CHAT, {"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias"),
        (CHAT, {"modalities": ["text", "audio"]}, "modalities"),
        (CHAT, {"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
        (CHAT, {"repeat_penalty": 1.1, "repetition_penalty": 1.2}, "repeat_penalty"),
        (COMPLETIONS, {"echo": True}, "echo"),
        (COMPLETIONS, {"suffix": "x"}, "suffix"),
        (COMPLETIONS, {"best_of": 2}, "best_of"),
        (COMPLETIONS, {"min_tokens": 17}, "min_tokens"),
    ],
)
def test_what_does_not_go_together_or_is_not_there_yet_is_refused(
    endpoint: Endpoint, fields: dict[str, object], param: str
):
    """An answer to another question would be worse than none."""
    body = chat(**fields) if endpoint is CHAT else completion(**fields)
    assert refused(endpoint, body).param == param


def test_best_of_all_choices_is_neutral():
    """`best_of` equal to `n` gives back every choice that is made, which is what happens anyway."""
    assert COMPLETIONS.parse(completion(best_of=2, n=2)).sampling.choices == 2


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"model": "m"',
        b'{"model": "m"} trailing',
        b'\xef\xbb\xbf{"model": "m"}',
        b'{"model": "\xff"}',
        b'{"model": "\xed\xa0\x80"}',
        b'{"model": "\\ud800"}',
        b'{"model": "m", "temperature": NaN}',
        b'{"model": "m", "x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    ],
)
@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_what_is_not_a_json_object_is_refused(endpoint: Endpoint, body: bytes):
    """Empty, broken, of another encoding, or too deep: always a RequestError, never anything else."""
    refused(endpoint, body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from(["model", "messages", "prompt", "suffix", "max_completion_tokens", *OUT_OF_RANGE])


@settings(suppress_health_check=[HealthCheck.too_slow])  # the first input imports what it is made with
@given(st.dictionaries(FIELDS, JSON, max_size=6), st.sampled_from([CHAT, COMPLETIONS]))
def test_any_json_is_either_a_call_or_a_request_error(fields: dict[str, object], endpoint: Endpoint):
    """Whatever arrives, nothing but RequestError comes out."""
    with contextlib.suppress(RequestError):
        assert endpoint.parse(json.dumps(fields).encode()).model == fields["model"]


@given(st.binary(max_size=200))
def test_any_bytes_are_either_a_call_or_a_request_error(body: bytes):
    """The same for bytes that are no JSON at all."""
    for endpoint in (CHAT, COMPLETIONS):
        refused(endpoint, body)
    assert model_named_in(body) is None or b"model" in body


def test_the_model_is_known_where_the_rest_is_wrong():
    """So that a refusal can have a receipt."""
    assert model_named_in(b'{"model": "m", "n": "many"}') == "m"
    assert model_named_in(b'{"model": 3}') is None
    assert model_named_in(b'{"model": "a\\u0000"}') is None
    assert model_named_in(b'{"model": "m"') is None


@pytest.mark.parametrize("body", [_ChatBody, _CompletionBody])
def test_every_field_is_documented(body: type):
    """docs/api.md says of each field whether it is accepted or refused."""
    page = (Path(__file__).parents[3] / "docs" / "api.md").read_text("utf-8")
    names = {field.name for field in msgspec.structs.fields(body)} - {"audio", "modalities"}  # in words: "audio"
    assert {name for name in names if name.partition("_")[0] != "guided" and f"`{name}" not in page} == set()
