"""The shortcut for usual usage objects says what the long way says, or nothing."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from taximeter.providers.metering import words
from taximeter.providers.metering.leaves import read_usage
from taximeter.providers.metering.plain import LEAVES, MessagesUsage, plain_leaves

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
