"""Claude Code's transcripts: one line for each block of an answer, in a file for each session and subagent.

Owns: which of the lines are of one call, what a call belongs to, and which lines are none. Refuses to know: prices, and
what a usage object means.

An answer has a line for each of its blocks, and each repeats the usage as it stood then; the last has it whole.
Sessions that were resumed or forked begin with the lines of another. So a call is known by its message's id, never by
its file. Times of a call are not in there: a line has the instant at which its block was done.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from taximeter.importers.alike import Alike, Kind
from taximeter.importers.decoding import UNREADABLE, decoded
from taximeter.importers.instants import epoch_us, stored_text
from taximeter.importers.lines import blocks
from taximeter.importers.logged import LogFile, LoggedCall, Origin, of_two
from taximeter.importers.strangers import amount, group_name, home_shortened, mapping, text
from taximeter.importers.usual_lines import MARK, Common, UsualLine, usage_lines
from taximeter.ledger.calls import chosen
from taximeter.providers.metering import words
from taximeter.providers.metering.leaves import read_usage, terms_in
from taximeter.providers.metering.plain import MessagesUsage, plain_leaves
from taximeter.records import Dialect, Terms

if TYPE_CHECKING:
    from taximeter._native import FoundFile

NAME = "claude-code"
SUFFIXES = (".jsonl",)
EDITION = "1"

# The provider's own ids are names of one message in the world; those of gateways may be used again.
_OWN_ID = re.compile(r"msg_(?:[a-z]+_)?[0-9A-Za-z]{20,}")
_SYNTHETIC = "<synthetic>"
_UNTIMED = "a transcript has only the instants at which the blocks of an answer were done"
_NO_MODEL = "no model answered: an error or a notice of the program's own"
_NO_TIME = "a line without a time"
_OPEN_CALLS = 64  # lines of one answer stand near each other


class _Message(msgspec.Struct, gc=False):
    id: str | None = None
    model: str | None = None
    usage: MessagesUsage | None = None


class _Line(msgspec.Struct, gc=False, rename="camel"):
    timestamp: str | None = None
    message: _Message | None = None
    request_id: str | None = None
    session_id: str | None = None
    cwd: str | None = None
    git_branch: str | None = None
    agent_id: str | None = None
    is_sidechain: bool | None = None
    uuid: str | None = None
    cost_usd: Decimal | None = msgspec.field(default=None, name="costUSD")


_decode = msgspec.json.Decoder(_Line).decode


def places(environ: Mapping[str, str], home: Path) -> list[Path]:
    """Where transcripts usually lie."""
    named = [each.strip() for each in environ.get("CLAUDE_CONFIG_DIR", "").split(",") if each.strip()]
    roots = [Path(each).expanduser() for each in named] or [home / ".claude", home / ".config" / "claude"]
    return [root if root.name == "projects" else root / "projects" for root in roots]


def is_mine(entry: Mapping[str, Any]) -> bool:
    """Whether `entry` is a line of a transcript."""
    message = mapping(entry.get("message"))
    if message is not None and isinstance(message.get("usage"), dict):
        return "timestamp" in entry
    return "sessionId" in entry and "type" in entry and any(name in entry for name in ("uuid", "cwd", "leafUuid"))


def read(log: LogFile) -> Iterator[LoggedCall]:
    """The calls of one transcript, from where the log stands."""
    return _Transcript(log).calls()


def read_whole(path: Path, memory: str, found: FoundFile) -> tuple[list[Alike], str]:
    """The same of a transcript that native code went through by itself, and what to remember of it."""
    origins = _OriginsOfAFile(path, memory)
    named, request_ids, at, leaves = found.columns()
    digests, instants = named.view(f"S{named.shape[1]}").ravel(), at.view("datetime64[us]")
    together: defaultdict[tuple[str, Terms | None], list[tuple[Origin, int, int]]] = defaultdict(list)
    begin = 0
    for common, end in found.runs():
        session, folder, branch, agent, sidechain, model, tier, speed, geography = common
        line = _Line(session_id=session, cwd=folder, git_branch=branch, agent_id=agent, is_sidechain=sidechain)
        together[model, _terms(tier, speed, geography)].append((origins.of(line), begin, end))
        begin = end
    made: list[Alike] = []
    for (model, terms), runs in together.items():
        places = np.concatenate([np.arange(begin, end) for _, begin, end in runs])
        made.append(
            Alike(
                Kind.of(runs[0][0], model, terms=terms),
                [origin for origin, _, _ in runs],
                np.repeat(np.arange(len(runs)), [end - begin for _, begin, end in runs]),
                digests[places],
                instants[places],
                np.take(leaves, places, axis=1),
                chosen(places, request_ids),
            )
        )
    return made, origins.project or ""


class _OriginsOfAFile:
    """What calls of one file belong to. `project` is what is remembered of the file: the folder in which the session
    began."""

    def __init__(self, path: Path, memory: str) -> None:
        self.project: str | None = memory or None
        self._path = path
        self._known: dict[tuple[str | None, str | None, str | None, bool], Origin] = {}

    def of(self, line: _Line) -> Origin:
        """One object for lines that belong to the same."""
        sidechain = line.is_sidechain is True
        kind = (line.session_id, line.git_branch, line.agent_id, sidechain)
        origin = self._known.get(kind)
        if origin is None:
            origin = self._known[kind] = self._new(line, sidechain=sidechain)
        return origin

    def _new(self, line: _Line, *, sidechain: bool) -> Origin:
        if self.project is None and line.cwd:
            # Where the session began: the program changes its folder as it works.
            self.project = home_shortened(line.cwd)
        labels = {"project": self.project, "branch": line.git_branch, "sidechain": "yes" if sidechain else None}
        return Origin(
            source=NAME,
            dialect=Dialect.ANTHROPIC_MESSAGES,
            provider="anthropic",
            session=group_name(line.session_id or self._path.stem),
            run=group_name(line.agent_id),
            labels={key: named for key, value in labels.items() if (named := group_name(value))},
            stream=True,
            untimed=_UNTIMED,
        )


class _Transcript:
    """One file. Its calls are open until lines of so many others have come that no more of theirs will."""

    def __init__(self, log: LogFile) -> None:
        self._log = log
        self._origins = _OriginsOfAFile(log.path, log.memory)
        self._open: dict[str, LoggedCall] = {}
        self._named: tuple[str | None, str | None] = (None, None)  # by which the last call was
        self._identity = ""
        self._common: Common | None = None  # what the last usual line said beside its call
        self._common_origin: Origin | None = None
        self._common_terms: Terms | None = None

    def calls(self) -> Iterator[LoggedCall]:
        log, open_calls = self._log, self._open
        began_at, last = log.offset, ""
        for offset, buffer, first, end in blocks(log, MARK):
            for found in usage_lines(buffer, first, end):
                # Either the place of a line, or what stands in it.
                call = self._call(bytes(buffer[found[0] : found[1]])) if len(found) == 2 else self._usual(found)
                if call is None or call.identity in open_calls:
                    continue
                open_calls[call.identity] = call
                began_at, last = offset + found[0], call.identity
                if len(open_calls) > _OPEN_CALLS:
                    yield open_calls.pop(next(iter(open_calls)))
        if last:
            # The last answer may be going on: the next time it is read whole, from its first line.
            log.offset = min(began_at, log.offset)
        log.memory = self._origins.project or ""
        yield from open_calls.values()

    def _usual(self, line: UsualLine) -> LoggedCall | None:
        """The same as `_call`, of a line that was read already."""
        _, at, message_id, request_id, leaves, common = line
        at_us = epoch_us(at) or 0  # it is an instant since 2015
        session, folder, branch, agent, sidechain, model, tier, speed, geography = common
        if common is not self._common:
            self._common, self._common_origin = common, None
            self._common_terms = _terms(tier, speed, geography)
        identity, terms = _identity(message_id, request_id, at_us, model, leaves), self._common_terms
        known = self._open.get(identity)
        if known is not None and _told_again(known, at_us, model, leaves, terms, None):
            return None
        origin = self._common_origin
        if origin is None:
            belongs = _Line(session_id=session, cwd=folder, git_branch=branch, agent_id=agent, is_sidechain=sidechain)
            origin = self._common_origin = self._origins.of(belongs)
        call = LoggedCall(identity, at_us, origin, model, leaves, terms=terms, request_id=request_id)
        return call if known is None else self._merge(known, call)

    def _call(self, line: bytes) -> LoggedCall | None:
        """The call that a line is of; None for one that is of none, and for one that only repeats what is known."""
        try:
            entry = _decode(line)
        except UNREADABLE:
            return self._unusual(line)
        message = entry.message
        if message is None or message.usage is None:
            # In messages within messages, and in results of tools, others' usage is told. The former are calls.
            return self._unusual(line) if message is None and b'"data"' in line else None
        usage = message.usage
        leaves = plain_leaves(usage)
        if leaves is None:
            return self._unusual(line)
        model, at_us = message.model, epoch_us(entry.timestamp)
        if not model or model == _SYNTHETIC:
            self._log.note(_NO_MODEL)
            return None
        if at_us is None:
            self._log.note(_NO_TIME)
            return None
        # Most lines are of the same call as the one before.
        named = (message.id, entry.request_id)
        if named != self._named or not message.id:
            self._named, self._identity = named, _identity(*named, at_us, model, leaves)
        identity = self._identity
        known = self._open.get(identity)
        if known is not None and known.leaves == leaves and entry.cost_usd is None:
            known.at_us = min(known.at_us, at_us)
            return None
        terms = _terms(usage.service_tier, usage.speed, usage.inference_geo)
        if known is not None and _told_again(known, at_us, model, leaves, terms, entry.cost_usd):
            return None
        call = LoggedCall(
            identity,
            at_us,
            self._origins.of(entry),
            model,
            leaves,
            terms=terms,
            reported=entry.cost_usd,
            request_id=entry.request_id,
        )
        return call if known is None else self._merge(known, call)

    def _merge(self, known: LoggedCall, call: LoggedCall) -> LoggedCall:
        merged = self._open[call.identity] = of_two(known, call)
        return merged

    def _unusual(self, line: bytes) -> LoggedCall | None:
        """A line whose usage has to be looked at closely, or that holds another."""
        try:
            entry = mapping(decoded(line))
        except UNREADABLE:
            entry = None
        if entry is None:
            self._log.note("a line that is no JSON object")
            return None
        inner = mapping(entry.get("data"))
        while inner is not None and (message := mapping(inner.get("message"))) is not None:
            if "usage" in message:
                entry = {**entry, **inner}
                break
            inner = message
        message = mapping(entry.get("message"))
        reported = None if message is None else mapping(message.get("usage"))
        if message is None or reported is None:
            return None
        model, at_us = text(message.get("model")), epoch_us(entry.get("timestamp"))
        if model is None or model == _SYNTHETIC:
            self._log.note(_NO_MODEL)
            return None
        if at_us is None:
            self._log.note(_NO_TIME)
            return None
        identity = text(message.get("id")), text(entry.get("requestId"))
        call = LoggedCall(
            _identity(*identity, at_us, model, reported),
            at_us,
            self._origins.of(_line_of(entry)),
            model,
            usage=read_usage(words.MESSAGES, reported, model=model),
            terms=terms_in(words.MESSAGES, reported),
            reported=amount(entry.get("costUSD")),
            request_id=identity[1],
        )
        known = self._open.get(call.identity)
        return call if known is None else self._merge(known, call)


def _told_again(
    known: LoggedCall, at_us: int, model: str, leaves: tuple[int, ...], terms: Terms | None, reported: Decimal | None
) -> bool:
    """Whether another account of the call is one of the same model with all it needs; `known` is both then. As `of_two`
    has it, for half of what it takes: most answers grow once."""
    if known.leaves is None or known.model != model:
        return False
    known.at_us = min(known.at_us, at_us)
    if sum(leaves) >= sum(known.leaves):
        known.leaves, known.terms = leaves, terms or known.terms
        known.reported = known.reported if reported is None else reported
    else:
        known.terms = known.terms or terms
        known.reported = reported if known.reported is None else known.reported
    return True


def _identity(message_id: str | None, request_id: str | None, at_us: int, model: str, used: object) -> str:
    """What names the call in whatever file it stands."""
    if message_id:
        return _name(message_id, request_id)
    if request_id:
        return request_id
    return sha256(f"{stored_text(at_us)}\0{model}\0{used}".encode("utf-8", "replace")).hexdigest()


def _name(message_id: str, request_id: str | None) -> str:
    return message_id if not request_id or _OWN_ID.fullmatch(message_id) else f"{message_id} {request_id}"


@lru_cache(maxsize=256)
def _terms(tier: str | None, speed: str | None, geography: str | None) -> Terms | None:
    said = {"service_tier": tier, "speed": speed, "inference_geo": geography}
    terms = terms_in(words.MESSAGES, said)
    return None if terms == Terms() else terms


def _line_of(entry: Mapping[str, Any]) -> _Line:
    """The fields of a line that say what it belongs to, as far as they are what they should be."""
    return _Line(
        session_id=text(entry.get("sessionId")),
        cwd=text(entry.get("cwd")),
        git_branch=text(entry.get("gitBranch")),
        agent_id=text(entry.get("agentId")),
        is_sidechain=entry.get("isSidechain") is True,
    )
