"""Answers in batches that say what most do are read in less time, and mean what they mean to the gateway."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from taximeter.importers import batches
from taximeter.importers.logged import LoggedCall, Origin
from taximeter.records import Dialect

_counts = st.integers(0, 10_000) | st.sampled_from([-1, None, 1.5, True, "12", 10**13])
_words = st.sampled_from(["end_turn", "stop", "", " ", "a\x00b", None, 3, "batch", "fast", "us"])
_anything = st.none() | st.integers(-1, 3) | st.text(max_size=3) | st.lists(st.integers(), max_size=1)


def _some(**fields: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    return st.fixed_dictionaries({}, optional=fields)


def _but(usual: dict[str, object], odd: st.SearchStrategy[dict[str, object]]) -> st.SearchStrategy[dict[str, object]]:
    """What is usual, but for a few fields that may say anything."""
    few = st.tuples(st.sets(st.integers(0, 7), max_size=2), odd)
    return few.map(lambda drawn: usual | {key: drawn[1][key] for at, key in enumerate(drawn[1]) if at in drawn[0]})


_chat_usage = _some(
    prompt_tokens=_counts,
    completion_tokens=_counts,
    total_tokens=_counts,
    cached_tokens=_counts,
    prompt_tokens_details=_some(cached_tokens=_counts, audio_tokens=_counts) | _anything,
    completion_tokens_details=_some(reasoning_tokens=_counts) | _anything,
    odd=_anything,
)
_messages_usage = _some(
    input_tokens=_counts,
    output_tokens=_counts,
    cache_read_input_tokens=_counts,
    cache_creation_input_tokens=_counts,
    cache_creation=_some(ephemeral_5m_input_tokens=_counts) | _anything,
    server_tool_use=_some(web_search_requests=_counts) | _anything,
    iterations=_anything,
    service_tier=_words,
    speed=_words,
    inference_geo=_words,
)
_CHAT_USAGE: dict[str, object] = {"prompt_tokens": 12_000, "completion_tokens": 11_000, "total_tokens": 23_000}
_MESSAGES_USAGE: dict[str, object] = {"input_tokens": 1, "output_tokens": 11_000, "service_tier": "batch"}
_CHOICE: dict[str, object] = {"index": 0, "finish_reason": "stop", "message": {"content": "yes"}}
_CHAT: dict[str, object] = {"model": "m", "usage": _CHAT_USAGE, "choices": [_CHOICE], "service_tier": "default"}
_MESSAGE: dict[str, object] = {"model": "m", "usage": _MESSAGES_USAGE, "stop_reason": "end_turn", "type": "message"}

_choice = _but(
    _CHOICE, _some(index=_anything, finish_reason=_words, delta=_anything, usage=_anything, message=_anything)
)
_chat = _but(
    _CHAT,
    _some(
        usage=_but(_CHAT_USAGE, _chat_usage) | _anything,
        choices=st.lists(_choice | _anything, max_size=2) | _anything,
        model=_words,
        error=_anything,
        service_tier=_words,
        timings=_anything,
        meta_info=_anything,
    ),
)
_message = _but(
    _MESSAGE,
    _some(
        usage=_but(_MESSAGES_USAGE, _messages_usage) | _anything,
        model=_words,
        stop_reason=_words,
        error=_anything,
        type=_words,
    ),
)


def _same(dialect: Dialect, answer: dict[str, object]) -> bool:
    """Holds both ways together. Whether the answer was usual."""
    origin = Origin(source="batch", dialect=dialect)
    decoded = msgspec.json.decode(msgspec.json.encode(answer))
    usual = batches._usual(origin, "a", 1, decoded)
    metered = batches._metered(origin, "a", 1, decoded)
    if usual is None:
        return False
    assert _told(usual) == _told(metered)
    return True


def _told(call: LoggedCall) -> dict[str, object]:
    said = {name: getattr(call, name) for name in call.__struct_fields__ if name not in ("leaves", "usage")}
    usage = call.as_usage()
    assert usage is not None
    return said | {"leaves": usage.leaves(), "units": usage.other_units, "basis": usage.basis}


@given(answer=_chat)
def test_of_openai(answer: dict[str, object]) -> None:
    _same(Dialect.OPENAI_CHAT, answer)


@given(answer=_message)
def test_of_anthropic(answer: dict[str, object]) -> None:
    _same(Dialect.ANTHROPIC_MESSAGES, answer)


def test_what_most_say_is_usual() -> None:
    """Else nothing above would be held together."""
    assert _same(Dialect.OPENAI_CHAT, _CHAT)
    assert _same(Dialect.ANTHROPIC_MESSAGES, _MESSAGE)
