"""LiteLLM's spend logs: its table `LiteLLM_SpendLogs`, as CSV, JSON or a dump of Postgres.

Owns: which columns say what, and which rows are no calls of a provider. Refuses to know: prices, and what a usage
object means.

The table has totals only; what was cached stands within a JSON column. Its keys are digests already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from taximeter.importers.alike import Alike, digests
from taximeter.importers.chunks import Chunk, Row
from taximeter.importers.instants import between_ns, epoch_us, epochs_us
from taximeter.importers.logged import LogFile, LoggedCall, Origin, terms_of_tier
from taximeter.importers.mapped_rows import Common
from taximeter.importers.origins import Origins, tagged
from taximeter.importers.rows import chunks_of
from taximeter.importers.sellers import seller_called, without_seller
from taximeter.importers.strangers import amount, count, first, group_name, listed, nested, text
from taximeter.importers.timing import reported_timing
from taximeter.importers.usual_rows import ODD, UNUSUAL, UsualCalls, comparable
from taximeter.ledger.calls import chosen, names_of
from taximeter.providers.metering import words
from taximeter.providers.metering.complaint import complaint
from taximeter.providers.metering.leaves import read_usage, word, word_at
from taximeter.providers.metering.plain import LEAVES, PlainReader
from taximeter.records import Dialect, Outcome

NAME = "litellm"
SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".sql")
EDITION = "3"

_TIMES = ("startTime", "endTime", "completionStartTime")
_TOTALS = ("prompt_tokens", "completion_tokens", "total_tokens")
_MANY = 20  # fewer rows are read one by one sooner than by columns
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
_NO_LEAVES = (0,) * len(LEAVES)


def is_mine(entry: Mapping[str, Any]) -> bool:
    """Whether `entry` is a row of the table."""
    return "spend" in entry and "request_id" in entry and "call_type" in entry


def read(log: LogFile) -> Iterator[Alike | LoggedCall]:
    """The calls of one export."""
    origins = Origins()
    for chunk in chunks_of(log, tables=is_mine):
        others: Sequence[int] = range(len(chunk))
        if len(chunk) >= _MANY:
            alike, others = _usual(chunk, origins)
            yield from alike
        for place in others:
            call = _call(chunk.row(place), origins, log)
            if call is not None:
                yield call


def _usual(chunk: Chunk, origins: Origins) -> tuple[list[Alike], Sequence[int]]:
    """The calls of rows that say what most do, column by column, and the places of all others: a test holds it to what
    `_call` says of each. Usual are calls that were answered by a provider, with tokens of which there is no more to say
    than `plain.LEAVES`."""
    begins, ends, firsts = (epochs_us(chunk.column(name))[0] for name in _TIMES)
    metadata = list(map(nested, chunk.column("metadata")))
    usages = [_whole_usage(said) or _usage(chunk.row(place), said) for place, said in enumerate(metadata)]
    codes = _Codes(chunk, metadata, usages, origins)
    kinds = np.fromiter(map(codes.of, _keys(chunk, metadata, usages), range(len(chunk))), np.int64, len(chunk))
    of_usages = map(_plain.leaves, usages)
    leaves = np.fromiter(chain.from_iterable(each or _NO_LEAVES for each in of_usages), np.int64)
    leaves = leaves.reshape(-1, len(LEAVES))
    identities = list(map(text, chunk.column("request_id")))
    is_usual = (begins != 0) & (kinds != UNUSUAL)
    is_usual &= leaves.any(axis=1)  # no tokens at all may mean that others are missing: see `_call`
    is_usual &= [identity is not None for identity in identities]
    places = np.flatnonzero(is_usual)
    if not len(places):
        return [], range(len(chunk))
    begins = begins[places]
    calls = UsualCalls(
        begins,
        leaves[places].T.copy(),
        names_of(digests(NAME, cast("list[str]", chosen(places, identities)))),
        list(map(amount, chosen(places, chunk.column("spend")))),
        list(map(reported_timing, _since_ns(begins, ends[places]), _since_ns(begins, firsts[places]))),
    )
    return list(calls.alike(codes.commons, kinds[places])), np.flatnonzero(~is_usual).tolist()


def _since_ns(begins_us: NDArray[np.int64], ends_us: NDArray[np.int64]) -> list[int | None]:
    """As `between_ns`, of instants that are known to have begun; those that are 0 are none."""
    took_us = (ends_us - begins_us).tolist()
    return [us * 1_000 if us >= 0 else None for us in took_us]


def _keys(chunk: Chunk, metadata: Sequence[Row], usages: Sequence[Row]) -> Iterator[tuple[Any, ...]]:
    """What decides of each row what `_Codes` says of it."""
    columns = [comparable(chunk.column(name)) for name in (*_OF_AN_ORIGIN, "model", "status")]
    hits = [str(hit) for hit in chunk.column("cache_hit")]
    tags = [_comparable_tags(cell) for cell in chunk.column("request_tags")]
    within = [comparable([said.get(name) for said in metadata]) for name in (*_OF_AN_ORIGIN_WITHIN, *_OF_TERMS_WITHIN)]
    tiers = comparable([usage.get("service_tier") for usage in usages])
    return zip(*columns, hits, tags, *within, tiers, strict=True)


def _comparable_tags(cell: object) -> Any:
    if type(cell) is list:
        tags = cast("list[object]", cell)
        return tuple(tags) if all(type(tag) is str for tag in tags) else ODD
    return cell if cell is None or type(cell) is str else ODD


class _Codes(dict[tuple[Any, ...], int]):
    """The place among `commons` of what rows with the same key have in common, `UNUSUAL` where their calls are."""

    def __init__(
        self, chunk: Chunk, metadata: Sequence[Row], usages: Sequence[Mapping[str, object]], origins: Origins
    ) -> None:
        super().__init__()
        self.commons: list[Common] = []
        self._rows = chunk, metadata, usages
        self._origins = origins

    def of(self, key: tuple[Any, ...], place: int) -> int:
        """The code of the row at `place`, which has this key."""
        code = self.get(key)
        if code is None:
            code = self[key] = UNUSUAL if ODD in key else self._first(place)
        return code

    def _first(self, place: int) -> int:
        chunk, metadata, usages = self._rows
        row, said = chunk.row(place), metadata[place]
        if _is_hit(row) or _has_failed(row, said):
            return UNUSUAL
        tier = _tier(row, said, usages[place])
        terms = None if tier is None else terms_of_tier(tier)
        self.commons.append(Common(_origin(row, said, self._origins), _model_of(row), terms, None, None))
        return len(self.commons) - 1


def _call(row: Row, origins: Origins, log: LogFile) -> LoggedCall | None:
    """The call of a row, whatever it says."""
    at_us, identity = epoch_us(row.get("startTime")), text(row.get("request_id"))
    if at_us is None or identity is None:
        log.note("a row without a time" if at_us is None else "a row without an id")
        return None
    if _is_hit(row):
        log.note("answered from LiteLLM's own cache: no provider was asked")
        return None
    metadata = nested(row.get("metadata"))
    failed, spent = _has_failed(row, metadata), amount(row.get("spend"))
    usage = _usage(row, metadata)
    has_none = not any(usage.get(name) for name in _TOTALS)
    # Minutes of sound, pictures and the like: the row has no tokens of them, and they are not free for that.
    is_other = has_none and (bool(spent) or _kind(row.get("call_type")) in _BILLED_BY_OTHER_THINGS)
    uncosted = None
    if has_none and failed:
        uncosted = "a call that failed, of which no usage is known"
    elif is_other:
        uncosted = "billed by something else than tokens, of which the log has no count"
    leaves = _plain.leaves(usage) if uncosted is None else None
    counted = read_usage(words.LITELLM, usage) if uncosted is None and leaves is None else None
    total_ns = between_ns(at_us, epoch_us(row.get("endTime")))
    tier = _tier(row, metadata, usage)
    return LoggedCall(
        identity,
        at_us,
        _origin(row, metadata, origins),
        _model_of(row),
        leaves,
        usage=counted,
        terms=None if tier is None else terms_of_tier(tier),
        reported=spent,
        timing=reported_timing(total_ns, between_ns(at_us, epoch_us(row.get("completionStartTime")))),
        outcome=Outcome.FAILED if failed else Outcome.COMPLETED,
        error=complaint(_error(metadata)) if failed else None,
        uncosted=uncosted,
    )


def _is_hit(row: Row) -> bool:
    return str(row.get("cache_hit")).strip().lower() in ("true", "t", "1")


def _has_failed(row: Row, metadata: Row) -> bool:
    return "failure" in (metadata.get("status"), row.get("status"))


def _tier(row: Row, metadata: Row, usage: Mapping[str, object]) -> str | None:
    if _kind(row.get("call_type")) == "retrieve_batch":  # all calls of a batch that was done, in one row
        return "batch"
    return word_at(usage, words.LITELLM.tier) or word(metadata.get("service_tier"))


def _model_of(row: Row) -> str:
    return _model(text(row.get("model")), text(row.get("custom_llm_provider")))


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
    for name in _TOTALS:
        if type(usage.get(name)) is not int:
            return None
    if beside is None or (type(beside) is dict and beside == dict.fromkeys(cast("dict[str, object]", beside))):
        return usage
    return None


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
_OF_TERMS_WITHIN = ("status", "service_tier")


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
