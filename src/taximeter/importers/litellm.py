"""LiteLLM's spend logs: its table `LiteLLM_SpendLogs`, as CSV, JSON or a dump of Postgres.

Owns: which columns say what, and which rows are no calls of a provider. Refuses to know: prices, and what a usage
object means.

The table has totals only; what was cached stands within a JSON column. Its keys are digests already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, cast

from taximeter.importers.chunks import Row
from taximeter.importers.instants import between_ns, instants_us
from taximeter.importers.logged import LogFile, LoggedCall, Origin, terms_of_tier
from taximeter.importers.origins import Origins, tagged
from taximeter.importers.rows import chunks_of
from taximeter.importers.sellers import seller_called, without_seller
from taximeter.importers.strangers import amount, count, first, group_name, listed, nested, text
from taximeter.importers.timing import reported_timing
from taximeter.providers.metering import words
from taximeter.providers.metering.complaint import complaint
from taximeter.providers.metering.leaves import read_usage, word, word_at
from taximeter.providers.metering.plain import PlainReader
from taximeter.records import Dialect, Outcome

NAME = "litellm"
SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".sql")
EDITION = "3"

_TIMES = ("startTime", "endTime", "completionStartTime")
_TOTALS = ("prompt_tokens", "completion_tokens", "total_tokens")
_UNTIMED = "the row has no times that fit together"
_DIALECTS = {
    "completion": Dialect.OPENAI_CHAT,
    "text_completion": Dialect.OPENAI_COMPLETIONS,
    "responses": Dialect.OPENAI_RESPONSES,
    "embedding": Dialect.OPENAI_EMBEDDINGS,
    "anthropic_messages": Dialect.ANTHROPIC_MESSAGES,
}
_BILLED_BY_OTHER_THINGS = frozenset({"transcription", "speech", "image_generation", "image_edit", "video_generation"})


_plain = PlainReader(words.LITELLM)


def is_mine(entry: Mapping[str, Any]) -> bool:
    """Whether `entry` is a row of the table."""
    return "spend" in entry and "request_id" in entry and "call_type" in entry


def read(log: LogFile) -> Iterator[LoggedCall]:
    """The calls of one export."""
    origins = Origins()
    for chunk in chunks_of(log, tables=is_mine):
        begins, ends, firsts = (instants_us(chunk.column(name)) for name in _TIMES)
        for place, at_us in enumerate(begins):
            call = _call(chunk.row(place), (at_us, ends[place], firsts[place]), origins, log)
            if call is not None:
                yield call


def _call(
    row: Row, times_us: tuple[int | None, int | None, int | None], origins: Origins, log: LogFile
) -> LoggedCall | None:
    """The call of a row, whose `_TIMES` are `times_us`."""
    at_us, identity = times_us[0], text(row.get("request_id"))
    if at_us is None or identity is None:
        log.note("a row without a time" if at_us is None else "a row without an id")
        return None
    hit = row.get("cache_hit")
    if hit != "False" and str(hit).strip().lower() in ("true", "t", "1"):
        log.note("answered from LiteLLM's own cache: no provider was asked")
        return None
    metadata = nested(row.get("metadata"))
    failed = "failure" in (metadata.get("status"), row.get("status"))
    kind, spent = _kind(row.get("call_type")), amount(row.get("spend"))
    usage = _whole_usage(metadata) or _usage(row, metadata)
    has_none = not any(usage.get(name) for name in ("prompt_tokens", "completion_tokens", "total_tokens"))
    # Minutes of sound, pictures and the like: the row has no tokens of them, and they are not free for that.
    is_other = has_none and (bool(spent) or kind in _BILLED_BY_OTHER_THINGS)
    uncosted = None
    if has_none and failed:
        uncosted = "a call that failed, of which no usage is known"
    elif is_other:
        uncosted = "billed by something else than tokens, of which the log has no count"
    leaves = _plain.leaves(usage) if uncosted is None else None
    counted = read_usage(words.LITELLM, _usage(row, metadata)) if uncosted is None and leaves is None else None
    total_ns, first_token_ns = between_ns(at_us, times_us[1]), between_ns(at_us, times_us[2])
    tier = word_at(usage, words.LITELLM.tier) or word(metadata.get("service_tier"))
    if kind == "retrieve_batch":  # all calls of a batch that was done, in one row
        tier = "batch"
    return LoggedCall(
        identity,
        at_us,
        _origin(row, metadata, origins),
        _model(text(row.get("model")), text(row.get("custom_llm_provider"))),
        leaves,
        usage=counted,
        terms=None if tier is None else terms_of_tier(tier),
        reported=spent,
        timing=reported_timing(total_ns, first_token_ns),
        outcome=Outcome.FAILED if failed else Outcome.COMPLETED,
        error=complaint(_error(metadata)) if failed else None,
        uncosted=uncosted,
    )


def _kind(called: object) -> str:
    """What was called, without the letter that says that nobody waited for it."""
    kind = str(called or "")
    return kind if kind == "anthropic_messages" else kind.removeprefix("a")


@lru_cache(maxsize=1_000)
def _model(model: str | None, provider: str | None) -> str:
    return without_seller(model or "unknown", provider)


def _whole_usage(metadata: Mapping[str, Any]) -> dict[str, object] | None:
    """The object in the metadata, where `_usage` would have nothing else."""
    said, beside = metadata.get("usage_object"), metadata.get("additional_usage_values")
    if type(said) is not dict:
        return None
    usage = cast("dict[str, object]", said)
    if any(type(usage.get(name)) is not int for name in _TOTALS):
        return None
    if beside is None or (type(beside) is dict and _is_empty(cast("dict[str, object]", beside))):
        return usage
    return None


def _is_empty(said: dict[str, object]) -> bool:
    return all(value is None for value in said.values())


def _usage(row: Row, metadata: Mapping[str, Any]) -> dict[str, object]:
    """The usage as far as the row has it: the object in its metadata, else its totals and what stands beside them."""
    usage: dict[str, object] = {name: count(row.get(name)) for name in _TOTALS}
    beside = {key: value for key, value in nested(metadata.get("additional_usage_values")).items() if value is not None}
    return (
        usage
        | beside
        | {key: value for key, value in nested(metadata.get("usage_object")).items() if value is not None}
    )


def _origin(row: Row, metadata: Mapping[str, Any], origins: Origins) -> Origin:
    cells = (*map(row.get, _OF_AN_ORIGIN), *map(metadata.get, _OF_AN_ORIGIN_WITHIN))
    tags = row.get("request_tags")
    # A text that holds a list is no list that holds a text.
    told = ("list", *cast("list[object]", tags)) if type(tags) is list else ("cell", tags)
    return origins.told_by((*cells, *told), lambda: _new_origin(row, metadata, origins))


_OF_AN_ORIGIN = (
    "custom_llm_provider",
    "session_id",
    "call_type",
    "team_alias",
    "team_id",
    "user",
    "end_user",
    "api_key",
)
_OF_AN_ORIGIN_WITHIN = ("user_api_key_alias", "user_api_key_team_alias")
"""All that `_new_origin` looks at, and the tags."""


def _new_origin(row: Row, metadata: Mapping[str, Any], origins: Origins) -> Origin:
    provider = text(row.get("custom_llm_provider"))
    labels: dict[str, object] = {
        "team": first(row, "team_alias", "team_id") or metadata.get("user_api_key_team_alias"),
        "user": first(row, "user"),
        "end_user": first(row, "end_user"),
    }
    return origins.of(
        source=NAME,
        dialect=_DIALECTS.get(_kind(row.get("call_type")), Dialect.UNSAID),
        provider=seller_called(provider),
        session=group_name(first(row, "session_id")),
        key=group_name(text(metadata.get("user_api_key_alias")) or _short(row.get("api_key"))),
        labels=tagged(labels, listed(row.get("request_tags"))),
        untimed=_UNTIMED,
    )


def _short(digest: object) -> str | None:
    """Enough of a key's digest to tell it from others. Should a key stand there itself, nothing of it is kept."""
    said = text(digest)
    if said is None:
        return None
    return said[:12] if len(said) == 64 and all(letter in "0123456789abcdef" for letter in said) else None


def _error(metadata: Mapping[str, Any]) -> object:
    said = nested(metadata.get("error_information"))
    return {"type": said.get("error_class"), "message": said.get("error_message")} if said else "the call failed"
