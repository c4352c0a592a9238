"""What is seen of a body that passes through, and how little of it is changed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.errors import RequestError
from taximeter.gateway.peek import peek, sent, spliced
from taximeter.records import Dialect

CHAT = Dialect.OPENAI_CHAT

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
SPACE = st.text(" \t\r\n", max_size=3)


@st.composite
def written(draw: st.DrawFn, fields: dict[str, object]) -> str:
    """An object in any order and spacing, with escapes or without."""
    pairs = draw(st.permutations(list(fields.items())))
    texts: list[str] = []
    for key, value in pairs:
        ascii_only = draw(st.booleans())
        texts.append(
            draw(SPACE)
            + json.dumps(key, ensure_ascii=ascii_only)
            + draw(SPACE)
            + ":"
            + draw(SPACE)
            + json.dumps(value, ensure_ascii=ascii_only, indent=draw(st.sampled_from([None, 2])))
            + draw(SPACE)
        )
    return draw(SPACE) + "{" + ",".join(texts) + "}" + draw(SPACE)


def is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


OTHERS = st.dictionaries(
    st.text().filter(lambda key: key not in ("model", "stream", "stream_options")), JSON, max_size=4
)


@given(st.data(), OTHERS)
def test_every_other_byte_survives(data: st.DataObject, others: dict[str, object]) -> None:
    """A value is replaced where it stands, a new key is put in front, and nothing else is touched."""
    text = data.draw(written({"model": "gpt", **others}).filter(is_utf8))
    assert text.count('"gpt"') >= 1
    changed = spliced(text.encode(), {"model": "MODEL"}).decode()
    at = next(n for n, (a, b) in enumerate(zip(text, changed, strict=False)) if a != b)
    assert text[:at] + text[at + len("gpt") :] == changed[:at] + changed[at + len("MODEL") :]
    assert json.loads(changed) == {**json.loads(text), "model": "MODEL"}
    added = spliced(text.encode(), {"new": [1]}).decode()
    opened = text.index("{") + 1
    assert added == text[:opened] + '"new":[1],' + text[opened:]


@given(st.data(), OTHERS, st.sampled_from([..., None, {}, {"include_usage": False}, {"x": 1, "include_usage": None}]))
def test_a_stream_is_asked_for_its_usage(data: st.DataObject, others: dict[str, object], options: object) -> None:
    """Merged with the options that there are; a body that asks already is not touched."""
    fields = {"model": "gpt", "stream": True, **others}
    if options is not ...:
        fields["stream_options"] = options
    text = data.draw(written(fields).filter(is_utf8)).encode()
    seen = peek(text)
    assert (seen.stream, seen.wants_usage) == (True, False)
    asked = sent(text, seen, CHAT, send_as=None)
    kept = options if isinstance(options, dict) else {}
    assert json.loads(asked) == {**json.loads(text), "stream_options": {**kept, "include_usage": True}}
    again = peek(asked)
    assert again.wants_usage
    assert sent(asked, again, CHAT, send_as=None) is asked


@pytest.mark.parametrize("dialect", [Dialect.OPENAI_RESPONSES, Dialect.ANTHROPIC_MESSAGES, Dialect.OPENAI_EMBEDDINGS])
def test_other_dialects_need_not_be_asked(dialect: Dialect) -> None:
    """They say it anyway."""
    text = b'{"model": "x", "stream": true}'
    assert sent(text, peek(text), dialect, send_as=None) is text


def test_options_that_make_no_sense_are_the_upstreams_to_refuse() -> None:
    """A list, a number: they go on as they are."""
    for options in (b"[]", b"1", b'"include_usage"'):
        text = b'{"model": "x", "stream": true, "stream_options": ' + options + b"}"
        assert sent(text, peek(text), CHAT, send_as=None) == text


@pytest.mark.parametrize("text", [b'{"model":"a","model":"b"}', b'{"model":"a","x":1,"model":"b","x":2}'])
def test_a_key_that_comes_twice_comes_once_then(text: bytes) -> None:
    """Which one others read is uncertain; after us there is one. What is not changed at all stays as it is."""
    seen = peek(text)
    assert seen.model == "b"
    assert sent(text, seen, CHAT, send_as=None) is text
    changed = sent(text, seen, CHAT, send_as="c")
    assert changed.count(b'"model"') == 1
    assert json.loads(changed) == {**json.loads(text), "model": "c"}


def test_what_is_seen() -> None:
    """Limits, choices, tier; in each dialect's words."""
    body = {"model": "m", "max_completion_tokens": 7, "max_tokens": 9, "n": 3, "service_tier": "flex"}
    seen = peek(json.dumps(body).encode())
    assert (seen.max_output_tokens, seen.choices, seen.tier) == (7, 3, "flex")
    assert peek(b'{"model": "m", "max_output_tokens": 5}').max_output_tokens == 5
    odd = peek(b'{"model": "m", "max_tokens": "9", "n": true, "service_tier": 1, "stream": "yes"}')
    assert (odd.model, odd.stream, odd.wants_usage) == ("m", False, False)
    assert (odd.max_output_tokens, odd.choices, odd.tier, odd.fingerprint) == (None, 1, None, ())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"model": 1}',
        b'{"model": ""}',
        b'{"model": "a\\nb"}',
        b'{"model": "' + b"x" * 300 + b'"}',
        b'{"model": "a"',
        b'{"model": "\xff"}',
        b'{"model": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 50_000,
    ],
)
def test_nonsense_is_refused(body: bytes) -> None:
    """With a sentence, never a crash."""
    with pytest.raises(RequestError):
        peek(body)


@given(st.binary(max_size=200))
def test_no_bytes_crash_it(body: bytes) -> None:
    """They are seen, or refused."""
    for text in (body, b'{"model": "m", "stream": true, "messages": ' + body + b"}"):
        try:
            seen = peek(text)
        except RequestError:
            continue
        sent(text, seen, CHAT, send_as="x")


def test_a_conversation_that_grows_keeps_its_fingerprints() -> None:
    """One for each turn, of its own bytes: a cache can be seen in them. Long ones are summed up."""
    turns = [{"role": "user", "content": str(n)} for n in range(600)]
    short = peek(json.dumps({"model": "m", "messages": turns[:3], "system": "s"}).encode())
    longer = peek(json.dumps({"model": "m", "messages": turns[:5], "system": "s"}).encode())
    assert longer.fingerprint[:4] == short.fingerprint
    assert len(longer.fingerprint) == 6
    assert len(peek(json.dumps({"model": "m", "messages": turns}).encode()).fingerprint) == 513
    assert len(peek(b'{"model": "m", "prompt": [1, 2, 3]}').fingerprint) == 1
