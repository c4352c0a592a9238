"""Codex's rollouts: one file a session, with an event for the usage of each call.

Owns: which events are calls, also the agent's own compactions; and which a session has only copied from the one it was
forked from. Refuses to know: prices, and what a usage object means.

A call has no id there. Its event has the session's totals so far, which only grow: they and the session name it. A fork
begins with the lines of its parent, whose calls they stay; or those of the parent's own parent, whose lines that one
began with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import datetime, timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from taximeter.importers.decoding import UNREADABLE, decoded
from taximeter.importers.files import unpacked_name
from taximeter.importers.instants import epoch_us, stored_text
from taximeter.importers.lines import first_lines, marked_lines
from taximeter.importers.logged import LogFile, LoggedCall, Origin
from taximeter.importers.packed import beginning, opened
from taximeter.importers.strangers import group_name, home_shortened, mapping, text
from taximeter.providers.metering import words
from taximeter.providers.metering.leaves import read_usage
from taximeter.providers.metering.plain import PlainReader
from taximeter.records import Dialect, Terms

NAME = "codex"
SUFFIXES = (".jsonl",)
EDITION = "2"

_MARK = re.compile(
    rb'"type"\s*:\s*"(?:token_count|turn_context|session_meta|token_usage_record|compacted|thread_settings_applied)"'
)
_COUNTS = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_output_tokens")
_UNTIMED = "a rollout has only the instants at which usage was told"
_BURST = timedelta(seconds=1)  # a copied history is written at once; the first call of one's own takes longer
_HEAD_BYTES = 1 << 20
_MOST_TOLD = 64
_MOST_GENERATIONS = 64

Object = Mapping[str, Any]


class _Told(msgspec.Struct):
    """A call that was told with its response's id, and that nothing else has counted yet."""

    at: str
    model: str | None
    usage: dict[str, Any]
    thread: dict[str, Any] | None
    tier: str | None = None


class _Ancestor(msgspec.Struct):
    """A session whose first line a fork has copied."""

    session: str
    began_at: str | None
    parent: str | None


class _Memory(msgspec.Struct, omit_defaults=True):
    """What a session is at some line of its file."""

    session: str | None = None
    parent: str | None = None
    ancestors: list[_Ancestor] = []  # the parent, then its parent, as far as their first lines were copied
    forked_at: str | None = None
    provider: str | None = None
    project: str | None = None
    branch: str | None = None
    model: str | None = None
    turn: str | None = None
    tier: str | None = None
    totals: dict[str, Any] | None = None
    own: bool = False  # the copied history is over
    copied: int = 0
    compacted: list[str] = []
    told: dict[str, _Told] = {}


class _Line(msgspec.Struct):
    type: Any = None
    timestamp: Any = None
    payload: Any = None


_plain = PlainReader(words.CODEX)
_decode = msgspec.json.Decoder(_Line).decode
_decode_mended = partial(msgspec.convert, type=_Line)
_remembered = msgspec.json.Decoder(_Memory).decode


def _read_line(line: bytes) -> _Line:
    try:
        return _decode(line)
    except UNREADABLE:
        return _decode_mended(decoded(line))


def places(environ: Mapping[str, str], home: Path) -> list[Path]:
    """Where rollouts usually lie."""
    root = Path(environ.get("CODEX_HOME") or home / ".codex").expanduser()
    return [root / "sessions", root / "archived_sessions"]


def is_mine(entry: Mapping[str, Any]) -> bool:
    """Whether `entry` is a line of a rollout."""
    return isinstance(entry.get("payload"), dict) and isinstance(entry.get("type"), str) and "timestamp" in entry


def read(log: LogFile) -> Iterator[LoggedCall]:
    """The calls of one rollout, from where the log stands."""
    rollout = _Rollout(log)
    yield from rollout.calls()
    rollout.remember()


class _Rollout:
    """One file."""

    def __init__(self, log: LogFile, *, ancestors: frozenset[str] = frozenset()) -> None:
        self._log = log
        self._ancestors = ancestors
        self._at = _remembered(log.memory) if log.memory else _Memory()
        self._latest_told: str | None = None
        self._history: list[tuple[str, str]] | None = None
        self._is_parents = True  # that history; it may be that of the parent's parent
        self._last_copy_at: str | None = None
        self._origin: Origin | None = None

    def calls(self) -> Iterator[LoggedCall]:
        for _, line in marked_lines(self._log, _MARK):
            try:
                entry = _read_line(line)
            except UNREADABLE:
                self._log.note("a line that is no JSON object")
                continue
            payload = mapping(entry.payload)
            call = None if payload is None else self._take(entry.type, payload, entry.timestamp)
            if call is not None:
                yield call

    def remember(self) -> None:
        """Leave in the log what the next reader has to know."""
        self._log.memory = msgspec.json.encode(self._at).decode()

    def _take(self, kind: object, payload: dict[str, Any], at: object) -> LoggedCall | None:
        now = self._at
        if kind == "session_meta":
            self._begin(payload, at)
        elif kind == "turn_context":
            now.model = text(payload.get("model")) or now.model
            now.turn = None if now.own else text(payload.get("turn_id"))
            self._origin = None
        elif kind == "token_usage_record":
            return self._take_record(payload, at)
        elif kind == "compacted":
            return self._take_marker(text(payload.get("compaction_response_id")))
        elif kind == "event_msg" and payload.get("type") == "thread_settings_applied":
            settings = mapping(payload.get("thread_settings")) or {}
            now.tier = text(settings.get("service_tier"))  # all settings as they are now: none of it is the usual tier
        elif kind == "event_msg" and payload.get("type") == "token_count":
            info = mapping(payload.get("info"))
            return None if info is None else self._take_count(payload, info, at)
        return None

    def _begin(self, payload: dict[str, Any], at: object) -> None:
        now = self._at
        if now.session is not None:
            self._learn_ancestor(payload, at)
            return
        git, cwd = mapping(payload.get("git")) or {}, text(payload.get("cwd"))
        now.session = text(payload.get("id")) or _stem(self._log.path)
        now.parent = _parent(payload)
        now.own = now.parent is None or now.parent == now.session
        now.forked_at = _stored(at)
        now.provider = text(payload.get("model_provider"))
        now.branch = text(git.get("branch"))
        now.project = None if cwd is None else home_shortened(cwd)

    def _learn_ancestor(self, payload: Object, at: object) -> None:
        """A fork copies the first line of its parent too, behind which is that of the parent's own parent."""
        now, name = self._at, text(payload.get("id"))
        if now.own or name is None or name != self._eldest() or len(now.ancestors) >= _MOST_GENERATIONS:
            return
        began_at = _stored(payload.get("timestamp")) or _stored(at)  # a line's own time may be that of the copy
        now.ancestors.append(_Ancestor(name, began_at, _parent(payload)))

    def _eldest(self) -> str | None:
        """The ancestor of which nothing but the name is known."""
        now = self._at
        name = now.ancestors[-1].parent if now.ancestors else now.parent
        return None if name == now.session or any(name == each.session for each in now.ancestors) else name

    def _generations(self) -> list[tuple[str, str | None]]:
        """The sessions that this one descends from, the parent first, and when each began, where that is known."""
        line: list[tuple[str, str | None]] = [(each.session, each.began_at) for each in self._at.ancestors]
        eldest = self._eldest()
        return line if eldest is None else [*line, (eldest, None)]

    def _take_count(self, payload: Object, info: Object, at: object) -> LoggedCall | None:
        now = self._at
        totals, last = mapping(info.get("total_token_usage")), mapping(info.get("last_token_usage"))
        before, now.totals = now.totals, totals or now.totals
        advanced = totals is None or totals != before
        if last is None or not advanced:
            last = None if totals is None else _difference(totals, before)
        if last is None or not any(last.get(name) for name in _COUNTS):
            return None
        tier = text(info.get("service_tier")) or text(payload.get("service_tier"))
        if advanced:
            tier = self._count_told(last, totals) or tier
        model = text(info.get("model")) or text(payload.get("model"))
        now.model = model or now.model
        at_us = epoch_us(at)
        if at_us is None:
            self._log.note("a line without a time")
            return None
        when = stored_text(at_us)
        sign = " ".join(str(count) for count in (*(_counts(totals) if totals else [when]), *_counts(last)))
        return self._call(self._identity(sign, when), at_us, last, tier=tier)

    def _take_record(self, payload: Object, at: object) -> LoggedCall | None:
        """A call with its response's id. Most are told again as a count, and counted there; compactions are not."""
        response, usage, when = text(payload.get("response_id")), mapping(payload.get("usage")), _stored(at)
        self._latest_told = None
        if response is None or usage is None or when is None or not any(usage.get(name) for name in _COUNTS):
            return None
        now = self._at
        thread, tier = mapping(payload.get("thread_token_usage")), text(payload.get("service_tier"))
        told = _Told(when, text(payload.get("model")), usage, thread, tier)
        if response in now.compacted:
            return self._call_told(response, told)
        self._latest_told = response
        now.told.setdefault(response, told)
        if len(now.told) > _MOST_TOLD:
            del now.told[next(iter(now.told))]
        return None

    def _take_marker(self, response: str | None) -> LoggedCall | None:
        if response is None:
            return None
        now = self._at
        if response not in now.compacted:
            now.compacted = [*now.compacted[-_MOST_TOLD:], response]
        told = now.told.pop(response, None)
        return None if told is None else self._call_told(response, told)

    def _call_told(self, response: str, told: _Told) -> LoggedCall | None:
        at_us = epoch_us(told.at)
        return None if at_us is None else self._call(response, at_us, told.usage, model=told.model, tier=told.tier)

    def _count_told(self, last: Object, totals: Object | None) -> str | None:
        """The call that was told with its id just now is the one that this count is of. Its tier, if it had one."""
        response = self._latest_told or ""
        told = self._at.told.get(response)
        if told is None:
            return None
        same_thread = told.thread is not None and totals is not None and _counts(told.thread) == _counts(totals)
        if same_thread or _counts(told.usage) == _counts(last):
            del self._at.told[response]
            return told.tier
        return None

    def _identity(self, sign: str, when: str) -> str:
        """The session that made the call, and what its totals were then."""
        now = self._at
        session = now.session or _stem(self._log.path)
        if now.own or now.parent is None:
            return f"{session} {sign}"
        history = self._found_history()
        place = now.copied
        if place < len(history) and history[place][0] == sign:
            now.copied += 1
            self._is_burst(when)
            return history[place][1]
        # Behind all that an ancestor did comes what the sessions between did that are not there.
        may_be_copy = place == 0 or not self._is_parents
        if may_be_copy and ((now.forked_at is not None and when < now.forked_at) or self._is_burst(when)):
            self._log.note("a call that a fork has copied from a session that is not there")
            return f"{self._owner(when)} {sign}"
        now.own = True
        return f"{session} {sign}"

    def _is_burst(self, when: str) -> bool:
        """Whether the copied history goes on: its events are written at the instant of the fork."""
        before = self._last_copy_at or self._at.forked_at
        if before is None or datetime.fromisoformat(when) - datetime.fromisoformat(before) > _BURST:
            return False
        self._last_copy_at = when
        return True

    def _owner(self, when: str) -> str:
        """Which ancestor made a call that was copied: the youngest that had begun by then. The copy may have a time of
        its own; then the turn's id tells, and without one all such calls are the parent's."""
        generations, turn_at = self._generations(), _instant_in(self._at.turn)
        when = when if turn_at is None else min(when, turn_at)
        begun = (name for name, began_at in generations if began_at is not None and began_at <= when)
        return next(begun, generations[-1][0])

    def _found_history(self) -> list[tuple[str, str]]:
        """What the events of the nearest ancestor say that is there, and the names of their calls, as far as they were
        there when the next one began."""
        if self._history is None:
            self._history, until = [], self._at.forked_at
            ancestors = self._ancestors | {self._at.session or ""}
            for name, began_at in self._generations():
                path = None if name in self._ancestors else _file_of(name, _root_of(self._log.path))
                if path is not None:
                    self._history, self._is_parents = _history(path, until, ancestors), name == self._at.parent
                    break
                until = began_at or until
        return self._history

    def _call(
        self, identity: str, at_us: int, usage: Object, *, model: str | None = None, tier: str | None = None
    ) -> LoggedCall:
        now = self._at
        leaves = _plain.leaves(usage)
        return LoggedCall(
            identity,
            at_us,
            self._origin_now(),
            model or now.model or "unknown",
            leaves,
            usage=read_usage(words.CODEX, usage) if leaves is None else None,
            terms=_terms(tier or now.tier),
            uncosted=None if model or now.model else "the log does not name the model",
        )

    def _origin_now(self) -> Origin:
        if self._origin is None:
            now = self._at
            labels = {"project": group_name(now.project), "branch": group_name(now.branch)}
            self._origin = Origin(
                source=NAME,
                dialect=Dialect.OPENAI_RESPONSES,
                provider=now.provider or "openai",
                session=group_name(now.session or _stem(self._log.path)),
                labels={key: value for key, value in labels.items() if value},
                stream=True,
                untimed=_UNTIMED,
            )
        return self._origin


def _history(path: Path, until: str | None, ancestors: frozenset[str]) -> list[tuple[str, str]]:
    try:
        found = opened(path)
        with closing(found.file):
            log = LogFile(path=path, file=found.file, size=found.size)
            calls = list(_Rollout(log, ancestors=ancestors).calls())
    except OSError:
        return []
    # A call that was told by its response's id has no totals in its name, and is in no fork's history of counts.
    counted = [call for call in calls if " " in call.identity and (until is None or stored_text(call.at_us) <= until)]
    return [(call.identity.partition(" ")[2], call.identity) for call in counted]


def _root_of(path: Path) -> Path:
    """The folder that holds all rollouts, as far as the path tells; else the file's own."""
    for folder in path.parents:
        if folder.name in ("sessions", "archived_sessions"):
            return folder.parent
    return path.parent


def _file_of(session: str, root: Path) -> Path | None:
    """The rollout of `session`; its name ends with its id. None where it is gone."""
    named = (path for path in _rollouts(root) if _stem(path).endswith(session) or _session_in(path) == session)
    return next(named, None)


def _stem(path: Path) -> str:
    """The name of a rollout, which is the same where it is packed."""
    return unpacked_name(path.name).removesuffix(SUFFIXES[0])


@lru_cache(maxsize=4)
def _rollouts(root: Path) -> tuple[Path, ...]:
    return tuple(sorted(path for path in root.rglob("*.jsonl*") if unpacked_name(path.name).endswith(SUFFIXES)))


@lru_cache(maxsize=65_536)
def _session_in(path: Path) -> str | None:
    """The id in the first line of a rollout."""
    try:
        with path.open("rb") as file:
            head = beginning(file.read(_HEAD_BYTES))
        entry = next((_read_line(line) for line in first_lines(head)), None)
    except (OSError, *UNREADABLE):
        return None
    payload = None if entry is None else mapping(entry.payload)
    return None if payload is None else text(payload.get("id"))


def _parent(payload: Object) -> str | None:
    """The session that this one was forked from, or is a part of."""
    place = mapping(payload.get("source")) or {}
    for key in ("subagent", "thread_spawn"):
        place = mapping(place.get(key)) or {}
    return text(payload.get("forked_from_id")) or text(place.get("parent_thread_id"))


def _difference(totals: Object, before: Object | None) -> dict[str, Any]:
    """What came to the totals since the event before. Where they began anew, all of them did."""
    counts = {name: value for name, value in totals.items() if _is_count(value)}
    parts = {
        name: value - (before or {}).get(name, 0)
        for name, value in counts.items()
        if _is_count((before or {}).get(name, 0))
    }
    return counts if min(parts.values(), default=0) < 0 else parts


def _stored(at: object) -> str | None:
    at_us = epoch_us(at)
    return None if at_us is None else stored_text(at_us)


def _instant_in(turn: str | None) -> str | None:
    """When a turn began, by its id: UUIDs of version 7 begin with milliseconds."""
    try:
        said = UUID(turn or "")
    except ValueError:
        return None
    return _stored(said.int >> 80) if said.version == 7 else None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _counts(usage: Object) -> tuple[object, ...]:
    return tuple(usage.get(name) or 0 for name in _COUNTS)


@lru_cache(maxsize=64)
def _terms(tier: str | None) -> Terms | None:
    # Who asks for `fast` is served as `priority`.
    return None if tier is None else Terms(tier="priority" if tier == "fast" else tier)
