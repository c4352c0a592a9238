"""The lines of transcripts that native code reads are read as Python reads them; it leaves the others to Python."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taximeter.importers import claude_code, usual_lines
from taximeter.importers.logged import LogFile, LoggedCall

pytestmark = pytest.mark.skipif(
    usual_lines.usage_lines is usual_lines.places_only, reason="the native code was not built here"
)

STAMP = "2026-10-29T12:00:00.000Z"
USAGE: dict[str, Any] = {
    "input_tokens": 3,
    "cache_creation_input_tokens": 300,
    "cache_read_input_tokens": 20_000,
    "cache_creation": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 200},
    "output_tokens": 40,
    "service_tier": "standard",
}


def a_line(usage: object = USAGE, *, message: dict[str, Any] | None = None, **fields: object) -> dict[str, Any]:
    told = {"id": "msg_1", "model": "opus-card", "content": [{"text": 'a "quote" \\ \n ü'}], "usage": usage}
    entry = {
        "sessionId": "s",
        "cwd": "/home/me/project",
        "gitBranch": "main",
        "message": told | (message or {}),
        "requestId": "req_1",
        "uuid": "u",
        "timestamp": STAMP,
    }
    return entry | fields


def encoded(*lines: object) -> bytes:
    texts = (line if isinstance(line, bytes) else json.dumps(line, ensure_ascii=False).encode() for line in lines)
    return b"".join(text + b"\n" for text in texts)


def found_in(content: bytes) -> Sequence[usual_lines.Place | usual_lines.UsualLine]:
    return usual_lines.usage_lines(bytearray(content), 0, len(content))


def is_usual(line: object) -> bool:
    """Whether native code read the line by itself, or saw that it tells of no call."""
    return all(len(found) > 2 for found in found_in(encoded(line)))


def read(path: Path, content: bytes) -> tuple[list[LoggedCall], dict[str, int], int, str]:
    """What a transcript says: calls, notes, where to read on, and what to remember there."""
    path.write_bytes(content)
    with path.open("rb", buffering=0) as file:
        log = LogFile(path=path, file=file, size=len(content))
        calls = list(claude_code.read(log))
        return calls, dict(log.notes), log.offset, log.memory


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("transcript") / "a.jsonl"


def assert_read_alike(path: Path, content: bytes) -> None:
    native = read(path, content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claude_code, "usage_lines", usual_lines.places_only)
        assert native == read(path, content)


_small = st.integers(0, 3)
_odd: st.SearchStrategy[Any] = st.sampled_from(
    [None, -1, 1.5, 10**13, "3", True, [], {}, "a\\b", 'a"b', "a/b", "ü", "\n", ""]
)
_counts = _small | _small | _small | _odd
_usages = st.fixed_dictionaries(
    {"input_tokens": _small, "output_tokens": _counts},
    optional={
        "cache_creation_input_tokens": _counts,
        "cache_read_input_tokens": _counts,
        "cache_creation": st.fixed_dictionaries(
            {}, optional={f"ephemeral_{kept}_input_tokens": _counts for kept in ("5m", "1h")}
        )
        | _odd,
        "output_tokens_details": st.fixed_dictionaries({}, optional={"thinking_tokens": _counts}) | _odd,
        "server_tool_use": st.fixed_dictionaries({}, optional={"web_search_requests": _counts}) | _odd,
        "iterations": st.lists(
            st.fixed_dictionaries(
                {"type": st.sampled_from(["message", "compaction"])},
                optional={"input_tokens": _small, "output_tokens": _small, "model": _odd, "cache_creation": _odd},
            ),
            max_size=2,
        )
        | _odd,
        "service_tier": st.sampled_from(["standard", "batch", "priority"]) | _odd,
        "speed": _odd,
        "inference_geo": st.just("us") | _odd,
        "fallback_credit": _odd,
        "another": _odd,
    },
)
_stamps = st.sampled_from(
    [
        *(STAMP, "2026-10-29T12:00:00.001Z", "2026-10-28T23:59:59.999Z", "2024-02-29T00:00:00.000Z"),
        *(
            "2023-02-29T00:00:00.000Z",
            "2026-13-01T00:00:00.000Z",
            "2026-10-29T24:00:00.000Z",
            "2014-10-29T12:00:00.000Z",
        ),
        *("2026-10-29T12:00:00Z", "2026-10-29T12:00:00.000+02:00", "2026-10-29 12:00:00.000Z", "yesterday", ""),
    ]
)
_names = st.sampled_from(["a", "b"]) | _odd
_lines = st.builds(
    a_line,
    _usages | st.none() | _odd,
    message=st.fixed_dictionaries(
        {}, optional={"id": _names, "model": _names | st.just("<synthetic>"), "usages": _odd}
    ),
    timestamp=_stamps | _stamps | _odd,
    requestId=_names,
    sessionId=_names,
    cwd=_names,
    gitBranch=_names,
    agentId=_names,
    isSidechain=st.booleans() | _odd,
    uuid=_names,
    costUSD=st.none() | st.none() | st.just(0.25) | _odd,
) | st.just(a_line()).map(lambda line: {**line, "message": None})


@st.composite
def transcripts(draw: st.DrawFn) -> bytes:
    """Lines of calls, some of them damaged in a byte."""
    lines: list[bytes] = []
    for line in draw(st.lists(_lines, min_size=1, max_size=5)):
        text = json.dumps(line, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
        if draw(st.integers(0, 3)) == 0:
            place = draw(st.integers(0, len(text) - 1))
            text = (
                text[:place]
                + draw(st.sampled_from([b"", b"\\", b'"', b"\x01", b"\xff", b"0", b",", b" "]))
                + text[place + 1 :]
            )
        lines += [text] * draw(st.integers(1, 2))
    return encoded(*lines)


@settings(deadline=None, max_examples=300)
@given(content=transcripts())
@example(content=encoded(a_line(), a_line(USAGE | {"output_tokens": 9}), a_line(USAGE | {"output_tokens": 159})))
@example(content=encoded(a_line())[:-1])
def test_a_transcript_is_read_as_python_reads_it(path: Path, content: bytes) -> None:
    """Calls, notes and where to read on: whatever stands in it."""
    assert_read_alike(path, content)


def test_lines_of_one_call_come_as_one() -> None:
    """With the earliest instant, and the leaves of the line that tells of the most; of equals, of the later."""
    earlier = "2026-10-29T11:59:59.000Z"
    grown = USAGE | {"output_tokens": 159}
    content = encoded(a_line(), a_line(grown, timestamp=earlier), a_line(), a_line(message={"id": "msg_2"}))
    one, other = found_in(content)
    assert one[1:] == (
        "2026-10-29 11:59:59.000000",
        "msg_1",
        "req_1",
        (3, 20_000, 100, 200, 0, 159, 0),
        ("s", "/home/me/project", "main", None, False, "opus-card", "standard", None, None),
    )
    assert other[2:3] == ("msg_2",)
    assert one[-1] is other[-1]


@pytest.mark.parametrize(
    "line",
    [
        a_line(),
        a_line(isSidechain=None, requestId=None, cwd="C:\\Users\\me", gitBranch="ümlaut"),
        a_line(USAGE | {"iterations": None, "server_tool_use": {"web_search_requests": 0}, "speed": None}),
        a_line(USAGE | {"iterations": [{"type": "message", **USAGE}]}),
        a_line(USAGE | {"output_tokens_details": {"thinking_tokens": 7}, "cache_creation": None}),
        a_line(None),
        json.dumps(a_line(another={"usage": [1, -2.5e3, True, None, "\U0001f600"]})).encode(),
    ],
)
def test_what_most_lines_say_is_usual(line: object) -> None:
    """So that it is read natively: a line that is not costs ten times as much."""
    assert is_usual(line)


@pytest.mark.parametrize(
    "line",
    [
        a_line(costUSD=0.25),
        a_line(USAGE | {"iterations": [{"type": "message", **USAGE}] * 2}),
        a_line(USAGE | {"server_tool_use": {"web_search_requests": 1}}),
        a_line(USAGE | {"cache_creation_input_tokens": 299}),
        a_line(message={"id": None}),
        a_line(timestamp="2026-02-30T12:00:00.000Z"),
        a_line(another={"usage": 1}) | {"message": None},
        json.dumps(a_line()).encode().replace(b'"requestId"', b'"sessionId"'),
        json.dumps(a_line()).encode().replace(b'"requestId"', b'"request\\u0049d"'),
        json.dumps(a_line()).encode() + b"}",
        json.dumps(a_line(deep=0)).encode().replace(b'"deep": 0', b'"deep": ' + b"[" * 100 + b"]" * 100),
    ],
)
def test_what_needs_a_closer_look_is_left_to_python(line: object) -> None:
    """It comes as the place where it stands."""
    content = encoded(line)
    assert found_in(content) == [(0, len(content) - 1)]


def test_lines_are_found_wherever_they_stand() -> None:
    """Before and behind others of any length; and only within what was asked for."""
    other, mine = b"x" * 37, encoded(b'{"usage"')
    for before in range(40):
        content = encoded(b"y" * before, other) + mine + encoded(other)
        begin = content.index(mine)
        assert found_in(content) == [(begin, begin + len(mine) - 1)]
        assert usual_lines.usage_lines(bytearray(content), begin, len(content)) == found_in(content)
        assert usual_lines.usage_lines(bytearray(content), 0, begin) == []
    with pytest.raises(ValueError, match="not in the buffer"):
        usual_lines.usage_lines(bytearray(3), 0, 4)
