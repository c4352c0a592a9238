"""The shortcut for usual usage objects says what the long way says, or nothing."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.providers.metering import words
from taximeter.providers.metering.leaves import read_usage
from taximeter.providers.metering.plain import LEAVES, MessagesUsage, PlainReader, plain_leaves
from taximeter.providers.metering.words import Words
from taximeter.records import Usage

COUNTS = st.one_of(st.integers(-3, 5), st.sampled_from([1_000, 10**12, 10**16]))
MAYBE = st.one_of(st.none(), COUNTS)
WRITES = st.one_of(
    st.none(),
    st.fixed_dictionaries({}, optional={"ephemeral_5m_input_tokens": COUNTS, "ephemeral_1h_input_tokens": COUNTS}),
)
CALL: dict[str, st.SearchStrategy[Any]] = {
    "input_tokens": COUNTS,
    "output_tokens": COUNTS,
    "cache_creation_input_tokens": MAYBE,
    "cache_read_input_tokens": MAYBE,
    "cache_creation": WRITES,
}
ITERATION = st.fixed_dictionaries(
    {"type": st.sampled_from(["message", "compaction", "advisor_message"])},
    optional={**CALL, "model": st.sampled_from(["m", "n"])},
)
USAGE = st.fixed_dictionaries(
    {"input_tokens": COUNTS, "output_tokens": COUNTS},
    optional={
        **{name: counts for name, counts in CALL.items() if name.startswith("cache")},
        "output_tokens_details": st.one_of(st.none(), st.fixed_dictionaries({"thinking_tokens": MAYBE})),
        "server_tool_use": st.one_of(st.none(), st.fixed_dictionaries({"web_search_requests": MAYBE})),
        "iterations": st.one_of(st.none(), st.lists(ITERATION, max_size=2)),
        "fallback_credit": st.one_of(st.none(), st.just({"status": {"type": "redeemed"}})),
    },
)


def shortcut(usage: dict[str, Any]) -> tuple[int, ...] | None:
    try:
        return plain_leaves(msgspec.convert(usage, MessagesUsage))
    except msgspec.ValidationError:
        return None


@given(USAGE, st.booleans())
def test_the_shortcut_and_the_long_way_agree(usage: dict[str, Any], repeated: bool) -> None:
    """For any object, also one whose list of calls repeats it."""
    if repeated:
        usage["iterations"] = [{key: usage[key] for key in CALL if key in usage} | {"type": "message"}]
    found = shortcut(usage)
    if found is None:
        return
    read = read_usage(words.MESSAGES, usage, model="m")
    assert {name: count for name, count in read.leaves().items() if count} == {
        name: count for name, count in zip(LEAVES, found, strict=True) if count
    }
    assert not read.other_units
    assert not read.by_model
    assert not read.prompts_tokens


def test_usual_objects_go_the_short_way() -> None:
    """Else it would be none."""
    usage = {
        "input_tokens": 4,
        "cache_creation_input_tokens": 1_000,
        "cache_read_input_tokens": 45_000,
        "cache_creation": {"ephemeral_5m_input_tokens": 400, "ephemeral_1h_input_tokens": 600},
        "output_tokens": 300,
        "output_tokens_details": {"thinking_tokens": 100},
        "server_tool_use": {"web_search_requests": 0, "web_fetch_requests": 0},
        "service_tier": "standard",
        "iterations": [],
    }
    assert shortcut(usage) == (4, 45_000, 400, 600, 0, 200, 100)
    assert shortcut(usage | {"server_tool_use": {"web_search_requests": 1}}) is None


def paths_of(dialect: Words) -> list[tuple[str, ...]]:
    """All places in an object that a dialect has a word for."""
    found = [path for path in (dialect.input, dialect.output, dialect.total, dialect.iterations) if path is not None]
    for each in fields(Words):
        value = getattr(dialect, each.name)
        if isinstance(value, tuple) and value and isinstance(value[0], tuple):
            found += value
    for path in (*dialect.writes.values(), *dialect.counted.values()):
        found += path if isinstance(path[0], tuple) else [path]
    return found


ODD = st.sampled_from([None, True, 2.0, 2.5, "3", "", [], {}, -1, 10**16])


@st.composite
def objects(draw: st.DrawFn, dialect: Words) -> dict[str, Any]:
    """Most have counts that fit together, some have anything anywhere."""
    made: dict[str, Any] = {"more": 3}
    total = 0
    for path, largest in ((dialect.input, 40), (dialect.output, 20)):
        if path is not None and draw(st.integers(0, 9)):
            made[path[0]] = draw(st.integers(0, largest))
            total += made[path[0]]
    for path in draw(st.lists(st.sampled_from(paths_of(dialect)), max_size=4, unique=True)):
        place = made
        for key in path[:-1]:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                return made
        place[path[-1]] = draw(st.integers(0, 9) | ODD if draw(st.booleans()) else st.integers(0, 9))
    if dialect.total is not None and draw(st.booleans()):
        made[dialect.total[0]] = draw(st.sampled_from([total, total + 1]))
    return made


DIALECTS = [words.CHAT, words.EMBEDDINGS, words.RESPONSES, words.CODEX, words.LITELLM, words.OTEL, words.MESSAGES]
READERS = [(dialect, PlainReader(dialect)) for dialect in DIALECTS]


@settings(max_examples=1_000)
@given(st.sampled_from(range(len(READERS))).flatmap(lambda at: st.tuples(st.just(at), objects(DIALECTS[at]))))
def test_readers_of_other_dialects_agree_with_the_long_way(drawn: tuple[int, dict[str, Any]]) -> None:
    """Where they say anything, there is nothing else to say."""
    at, said = drawn
    dialect, reader = READERS[at]
    found = reader.leaves(said)
    if found is None:
        return
    expected = read_usage(dialect, said)
    assert expected == Usage(**dict(zip(LEAVES, found, strict=True)), reported=said)  # pyright: ignore[reportArgumentType]  # names of leaves only


@pytest.mark.parametrize("at", range(len(READERS)))
def test_usual_objects_of_all_dialects_go_the_short_way(at: int) -> None:
    """With a cache, reasoning and a total."""
    dialect, reader = READERS[at]
    said: dict[str, Any] = {dialect.input[0]: 50}
    for path, count in ((dialect.output, 20), (dialect.total, 70 if dialect.output else 50)):
        if path is not None:
            said[path[0]] = count
    for paths, count in ((dialect.read, 8), (dialect.reasoning, 5)):
        place = said
        for key in paths[0][:-1] if paths else ():
            place = place.setdefault(key, {})
        if paths:
            place[paths[0][-1]] = count
    read, thought = (8 if dialect.read else 0), (5 if dialect.reasoning else 0)
    answer = 20 if dialect.output else 0
    fresh = 50 - read if dialect.input_has_parts else 50
    assert reader.leaves(said) == (fresh, read, 0, 0, 0, answer - thought, thought)
