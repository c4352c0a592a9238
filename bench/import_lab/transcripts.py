"""Synthetic transcripts of Claude Code, as many bytes as wanted: sessions with tool results, answers that take several
lines, subagents, and sessions that were resumed and hold the history of another.

Made from a seed: the same bytes everywhere. It gives what is in them, counted as it was made, so that a reader of them
can be held to it.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

_MODELS = ("claude-opus-4-7", "claude-sonnet-4-6", "claude-haiku-4-5")
_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_WORDS = (
    "the function returns a list of open files and the caller closes them again before the next test begins, so that "
    "nothing of it stays behind when the run is over and the folder is removed; see also the notes on the fixture"
)
_LEAVES = (
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
)
_DENSE_TIME = timedelta(days=55)


@dataclass(slots=True)
class Made:
    """What was written: files, lines, and what the calls in them sum to, each call once."""

    size_bytes: int = 0
    files: int = 0
    lines: int = 0
    calls: int = 0
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_LEAVES, 0))


def make_dense_transcripts(folder: Path, *, calls: int, seed: int = 1) -> Made:
    """Write at least so many calls to `folder`/projects, in transcripts with next to no text: each call is one line of
    what its usage takes, in sessions of some hundreds, which begin one after the other. Most of what an import of them
    does is booking and writing."""
    chance = random.Random(seed)  # noqa: S311 - synthetic data
    made = Made()
    start = datetime(2026, 10, 1, 8, tzinfo=UTC)
    number = 0
    while made.calls < calls:
        place = number % 12
        session = _uuid(chance)
        at = start + _DENSE_TIME * (made.calls / calls)
        lines = list(_dense_session(chance, made, session, f"/home/dev/project-{place}", at))
        path = folder / "projects" / f"-home-dev-project-{place}" / f"{session}.jsonl"
        _write(path, lines, made)
        # Files are last written to in the order in which they were begun, more or less: here exactly.
        os.utime(path, (at.timestamp(), at.timestamp()))
        number += 1
    return made


def _dense_session(chance: random.Random, made: Made, session: str, cwd: str, at: datetime) -> Iterator[str]:
    model = chance.choices(_MODELS, weights=(5, 3, 2))[0]
    context_tokens = chance.randrange(9_000, 22_000)
    common = _common(chance, session, cwd, agent=None)
    parent = None
    for _ in range(chance.randrange(100, 500)):
        at += timedelta(seconds=chance.uniform(2, 40))
        usage = _usage(chance, context_tokens)
        context_tokens = _grown(context_tokens, usage)
        _count(made, usage)
        content = [{"type": "text", "text": "ok"}]
        message = {"model": model, "id": f"msg_01{_id(chance)}", "type": "message", "role": "assistant"}
        message |= {"content": content, "stop_reason": None, "stop_sequence": None, "usage": usage}
        fields = {"parentUuid": parent, **common, "message": message, "requestId": f"req_011{_id(chance)}"}
        parent = _uuid(chance)
        yield _line({**fields, "type": "assistant"}, parent, at, {})


def make_transcripts(folder: Path, *, size_bytes: int, seed: int = 1) -> Made:
    """Write some `size_bytes` of transcripts to `folder`/projects."""
    chance = random.Random(seed)  # noqa: S311 - synthetic data
    made = Made()
    filler = _Filler(chance)
    start = datetime(2026, 10, 1, 8, tzinfo=UTC)
    number = 0
    earlier: list[str] = []
    while made.size_bytes < size_bytes:
        project = folder / "projects" / f"-home-dev-project-{number % 12}"
        session = _uuid(chance)
        at = start + timedelta(minutes=37 * number % (60 * 24 * 55))
        lines = list(_session(chance, filler, made, session, f"/home/dev/project-{number % 12}", at, agent=None))
        # Every eighth session goes on from an earlier one, and begins with what that one held.
        history = earlier if number % 8 == 7 else []
        _write(project / f"{session}.jsonl", [*history, *lines], made)
        if number % 3 == 0:
            agent = "".join(chance.choices("0123456789abcdef", k=8))
            lines = list(_session(chance, filler, made, session, f"/home/dev/project-{number % 12}", at, agent=agent))
            _write(project / session / "subagents" / f"agent-{agent}.jsonl", lines, made)
        earlier = lines[: len(lines) // 2]
        number += 1
    return made


class _Filler:
    """Text of a wanted length, cut from one long piece: making it anew would be most of the work."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        words = [chance.choice(_WORDS.split(" ")) for _ in range(60_000)]
        # As in program text and logs: quotes, line ends and some letters beyond ASCII.
        self._text = (
            " ".join(words).replace("fixture", '"fixture"').replace("closes", "closes\n\t").replace("notes", "nötes")
        )

    def text(self, characters: int) -> str:
        begin = self._chance.randrange(len(self._text) - characters)
        return self._text[begin : begin + characters]


def _session(
    chance: random.Random, filler: _Filler, made: Made, session: str, cwd: str, at: datetime, *, agent: str | None
) -> Iterator[str]:
    model = chance.choices(_MODELS, weights=(5, 3, 2))[0]
    context_tokens = chance.randrange(9_000, 22_000)
    common = _common(chance, session, cwd, agent=agent)
    parent = None
    for _ in range(chance.randrange(12, 90)):
        at += timedelta(seconds=chance.uniform(2, 40))
        uuid = _uuid(chance)
        size = round(min(60_000, chance.lognormvariate(7.6, 1.1)))
        result = {"type": "tool_result", "tool_use_id": f"toolu_{_id(chance)}", "content": filler.text(size)}
        yield _line(
            {"parentUuid": parent, **common, "type": "user", "message": {"role": "user", "content": [result]}},
            uuid,
            at,
            {"toolUseResult": {"stdout": filler.text(size // 3), "stderr": "", "interrupted": False}},
        )
        usage = _usage(chance, context_tokens)
        context_tokens = _grown(context_tokens, usage)
        _count(made, usage)
        message = {"model": model, "id": f"msg_01{_id(chance)}", "type": "message", "role": "assistant"}
        request = f"req_011{_id(chance)}"
        blocks = [
            {"type": "thinking", "thinking": filler.text(chance.randrange(100, 900)), "signature": _id(chance) * 12},
            {"type": "text", "text": filler.text(chance.randrange(20, 700))},
            {
                "type": "tool_use",
                "id": f"toolu_{_id(chance)}",
                "name": "Bash",
                "input": {"command": filler.text(chance.randrange(30, 1_500))},
            },
        ][chance.choice((0, 0, 1, 1, 2)) :]
        for place, block in enumerate(blocks):
            parent, uuid = uuid, _uuid(chance)
            at += timedelta(seconds=chance.uniform(0.5, 6))
            # While an answer is streamed its lines say what was generated until then.
            so_far = usage if place == len(blocks) - 1 else usage | {"output_tokens": min(9, usage["output_tokens"])}
            yield _line(
                {
                    "parentUuid": parent,
                    **common,
                    "message": {
                        **message,
                        "content": [block],
                        "stop_reason": None,
                        "stop_sequence": None,
                        "usage": so_far,
                    },
                    "requestId": request,
                    "type": "assistant",
                },
                uuid,
                at,
                {},
            )
        parent = uuid


def _common(chance: random.Random, session: str, cwd: str, *, agent: str | None) -> dict[str, Any]:
    return {
        "isSidechain": agent is not None,
        "userType": "external",
        "cwd": cwd,
        "sessionId": session,
        "version": "2.1.14",
        "gitBranch": chance.choice(("main", "fix/readers", "feature/imports")),
    } | ({} if agent is None else {"agentId": agent})


def _usage(chance: random.Random, context_tokens: int) -> dict[str, Any]:
    written = chance.randrange(200, 4_000)
    return {
        "input_tokens": chance.randrange(1, 12),
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": context_tokens,
        "cache_creation": {"ephemeral_5m_input_tokens": written, "ephemeral_1h_input_tokens": 0},
        "output_tokens": chance.randrange(60, 1_800),
        "service_tier": "standard",
        "inference_geo": "not_available",
    }


def _grown(context_tokens: int, usage: Mapping[str, Any]) -> int:
    return 15_000 if context_tokens > 150_000 else context_tokens + usage["cache_creation_input_tokens"]


def _count(made: Made, usage: Mapping[str, Any]) -> None:
    made.calls += 1
    for leaf in _LEAVES:
        made.tokens[leaf] += usage[leaf]


def _line(fields: dict[str, object], uuid: str, at: datetime, more: dict[str, object]) -> str:
    stamp = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({**fields, "uuid": uuid, "timestamp": stamp, **more}, separators=(",", ":"), ensure_ascii=False)


def _write(path: Path, lines: list[str], made: Made) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(content)
    made.files += 1
    made.lines += len(lines)
    made.size_bytes += len(content)


def _id(chance: random.Random) -> str:
    return "".join(chance.choices(_ALPHABET, k=22))


def _uuid(chance: random.Random) -> str:
    text = f"{chance.getrandbits(128):032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
