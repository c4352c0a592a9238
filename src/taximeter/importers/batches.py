"""Results of batches, of Anthropic and of OpenAI: one line a request, in no order.

Owns: what became of each request of a batch. Refuses to know: prices, and what a usage object means.

A batch is a tier of its own, whether its results say so or not. A result has no time; the file's is taken, which is
when the results were fetched, and OpenAI's answers say when they were made.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, cast

import msgspec

from taximeter.importers.instants import epoch_us
from taximeter.importers.logged import LogFile, LoggedCall, Origin
from taximeter.importers.rows import rows_of
from taximeter.importers.strangers import mapping, text
from taximeter.providers.metering import tap_for, words
from taximeter.providers.metering.complaint import complaint
from taximeter.providers.metering.leaves import terms_in, word
from taximeter.providers.metering.plain import PlainReader
from taximeter.records import Dialect, Outcome, Terms

ANTHROPIC = "anthropic-batch"
OPENAI = "openai-batch"
SUFFIXES = (".jsonl", ".ndjson")
EDITION = "1"

_UNTIMED = "a batch's results have no times of single requests"
_BATCH_ID = re.compile(r"(?:msgbatch|batch)_[0-9A-Za-z]{6,}")
_OUTCOMES = {"errored": Outcome.FAILED, "canceled": Outcome.ABORTED, "expired": Outcome.ABORTED}
_SPOKEN = {
    Dialect.OPENAI_CHAT: "chat.completion",
    Dialect.OPENAI_RESPONSES: "response",
    Dialect.OPENAI_EMBEDDINGS: "list",
    Dialect.OPENAI_COMPLETIONS: "text_completion",
}
_WHY = {
    "canceled": "the batch was canceled before this request was sent",
    "expired": "the batch expired before this request was sent",
}


def is_anthropics(entry: Mapping[str, Any]) -> bool:
    """Whether `entry` is a line of Anthropic's results."""
    return "custom_id" in entry and isinstance(entry.get("result"), dict)


def is_openais(entry: Mapping[str, Any]) -> bool:
    """Whether `entry` is a line of OpenAI's results, or of its file of errors."""
    return "custom_id" in entry and ("response" in entry or "error" in entry)


def read_anthropics(log: LogFile) -> Iterator[LoggedCall]:
    """The requests of one file of results."""
    batch, at_us = _batch(log), _fetched_us(log)
    origin = _origin(ANTHROPIC, "anthropic", Dialect.ANTHROPIC_MESSAGES, batch)
    for row in rows_of(log):
        result, name = mapping(row.get("result")), text(row.get("custom_id"))
        if result is None or name is None:
            log.note("a line that is no result of a batch")
            continue
        message = mapping(result.get("message"))
        if message is None:
            kind = text(result.get("type")) or "errored"
            yield _unanswered(origin, f"{batch} {name}", at_us, kind, result.get("error"))
        else:
            yield _answered(origin, text(message.get("id")) or f"{batch} {name}", at_us, message)


def read_openais(log: LogFile) -> Iterator[LoggedCall]:
    """The requests of one file of results or of errors."""
    batch, fetched_us = _batch(log), _fetched_us(log)
    origins = {dialect: _origin(OPENAI, "openai", dialect, batch) for dialect in _SPOKEN}
    for row in rows_of(log):
        name, response = text(row.get("custom_id")), mapping(row.get("response")) or {}
        if name is None:
            log.note("a line that is no result of a batch")
            continue
        body = mapping(response.get("body")) or {}
        origin = origins[_dialect(body)]
        error = row.get("error") or body.get("error")
        identity = text(body.get("id")) or text(row.get("id")) or f"{batch} {name}"
        if mapping(body.get("usage")) is None and (error or not body):
            yield _unanswered(origin, identity, fetched_us, "expired" if "expired" in str(error) else "errored", error)
            continue
        at_us = epoch_us(body.get("created") or body.get("created_at")) or fetched_us
        call = _answered(origin, identity, at_us, body)
        call.request_id = text(response.get("request_id"))
        yield call


def _answered(origin: Origin, identity: str, at_us: int, answer: Mapping[str, Any]) -> LoggedCall:
    """A request with its answer."""
    return _usual(origin, identity, at_us, answer) or _metered(origin, identity, at_us, answer)


def _usual(origin: Origin, identity: str, at_us: int, answer: Mapping[str, Any]) -> LoggedCall | None:
    """The same as `_metered`, of an answer that says what most do: a test holds the two together. Buckets are all that
    is kept of its usage. None for other answers."""
    usage, model = answer.get("usage"), word(answer.get("model"))
    plain = _PLAIN.get(origin.dialect)
    if plain is None or type(usage) is not dict or model is None or answer.get("error") is not None:
        return None
    reader, dialects_words = plain
    leaves = reader.leaves(cast("dict[str, object]", usage))
    if leaves is None:
        return None
    if origin.dialect is Dialect.ANTHROPIC_MESSAGES:
        said = terms_in(dialects_words, cast("dict[str, object]", usage))
        terms, reason = _terms(said.speed, said.geography), answer.get("stop_reason")
    else:
        choices = answer.get("choices")
        if type(choices) is not list or len(cast("list[object]", choices)) != 1 or not _SERVERS_OWN.isdisjoint(answer):
            return None
        choice = cast("list[object]", choices)[0]
        if type(choice) is not dict or not _OF_ODD_CHOICES.isdisjoint(cast("dict[str, object]", choice)):
            return None
        terms, reason = _terms(None, None), cast("dict[str, object]", choice).get("finish_reason")
    return LoggedCall(identity, at_us, origin, model, leaves, terms=terms, finish_reason=word(reason))


_PLAIN = {
    dialect: (PlainReader(those), those)
    for dialect, those in ((Dialect.ANTHROPIC_MESSAGES, words.MESSAGES), (Dialect.OPENAI_CHAT, words.CHAT))
}
_SERVERS_OWN = frozenset({"metrics", "meta_info", "timings", "x_groq"})
_OF_ODD_CHOICES = frozenset({"delta", "meta_info", "usage"})


@lru_cache(maxsize=100)  # by words of strangers
def _terms(speed: str | None, geography: str | None) -> Terms:
    return Terms(tier="batch", speed=speed, geography=geography)


def _metered(origin: Origin, identity: str, at_us: int, answer: Mapping[str, Any]) -> LoggedCall:
    """The same of any answer, read as the gateway reads it."""
    tap = tap_for(origin.dialect, streamed=False)
    tap.whole(msgspec.json.encode(answer))
    found = tap.found()
    said = found.terms or Terms()
    return LoggedCall(
        identity,
        at_us,
        origin,
        found.model or "unknown",
        usage=found.usage,
        terms=_terms(said.speed, said.geography),
        finish_reason=next(iter(found.finish_reasons), None),
        outcome=Outcome.FAILED if found.error else Outcome.COMPLETED,
        error=found.error,
        uncosted=None if found.model else "the log does not name the model",
    )


def _unanswered(origin: Origin, identity: str, at_us: int, kind: str, error: object) -> LoggedCall:
    """A request that was not answered, and is not billed."""
    inner = mapping(error) or {}
    return LoggedCall(
        identity,
        at_us,
        origin,
        "unknown",
        outcome=_OUTCOMES.get(kind, Outcome.FAILED),
        error=_WHY.get(kind) or complaint(inner.get("error") or error or kind),
        uncosted=f"{kind}: what a batch does not answer is not billed",
    )


def _batch(log: LogFile) -> str:
    """The id of the batch, where the file is named after it: errors have no ids of their own."""
    found = _BATCH_ID.search(log.path.name)
    return "" if found is None else found[0]


def _fetched_us(log: LogFile) -> int:
    return os.fstat(log.file.fileno()).st_mtime_ns // 1_000


def _dialect(body: Mapping[str, Any]) -> Dialect:
    kind = body.get("object")
    return next((dialect for dialect, word in _SPOKEN.items() if word == kind), Dialect.OPENAI_CHAT)


def _origin(source: str, provider: str, dialect: Dialect, batch: str) -> Origin:
    return Origin(source=source, dialect=dialect, provider=provider, run=batch or None, untimed=_UNTIMED)
