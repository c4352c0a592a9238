"""Any table, CSV or JSON lines, with a map that says what its columns are.

Owns: the form of the map, and the reading of a row by it. Refuses to know: whose table it is.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import msgspec

from taximeter.errors import ConfigError
from taximeter.importers.instants import between_ns, stored
from taximeter.importers.logged import LogFile, LoggedCall, usage_of
from taximeter.importers.origins import Origins
from taximeter.importers.rows import Row, rows_of
from taximeter.importers.strangers import amount, count, group_name, key_name, nested, text
from taximeter.importers.timing import reported_timing
from taximeter.providers.metering.complaint import complaint
from taximeter.records import Dialect, Outcome, Terms, Usage

NAME = "columns"
SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson")
EDITION = "1"

_UNTIMED = "the table has no duration of the call"

_Name = Annotated[str, msgspec.Meta(min_length=1)]
_GOOD = ("success", "succeeded", "ok", "completed", "complete", "true", "200", "")


class _Tokens(msgspec.Struct, forbid_unknown_fields=True):
    """The columns of counts. With `input_includes_cache` the whole prompt is in `input`."""

    input: _Name | None = None
    output: _Name | None = None
    cache_read: _Name | None = None
    cache_write: _Name | None = None
    cache_write_5m: _Name | None = None
    cache_write_1h: _Name | None = None
    reasoning: _Name | None = None
    input_includes_cache: bool = True
    output_includes_reasoning: bool = True


class _Columns(msgspec.Struct, forbid_unknown_fields=True):
    """The columns of everything else."""

    time: _Name
    model: _Name | None = None
    id: _Name | None = None
    end: _Name | None = None
    first_token: _Name | None = None
    duration_s: _Name | None = None
    duration_ms: _Name | None = None
    first_token_s: _Name | None = None
    first_token_ms: _Name | None = None
    provider: _Name | None = None
    cost: _Name | None = None
    task: _Name | None = None
    run: _Name | None = None
    session: _Name | None = None
    key: _Name | None = None
    tier: _Name | None = None
    outcome: _Name | None = None
    error: _Name | None = None


class ColumnMap(msgspec.Struct, forbid_unknown_fields=True):
    """What a map says. `labels` are columns by the label they become; `model` and `provider` are those of all rows,
    where no column has them."""

    source: _Name
    columns: _Columns
    tokens: _Tokens = msgspec.field(default_factory=_Tokens)
    labels: dict[str, str] = {}
    model: _Name | None = None
    provider: _Name | None = None


def load_map(path: Path) -> tuple[ColumnMap, str]:
    """The map in a TOML file, and its digest. Raises ConfigError for one that is not understood."""
    try:
        body = path.read_bytes()
        columns = msgspec.convert(tomllib.loads(body.decode()), ColumnMap)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path} is no map of columns: {error}", hint="docs/importing.md shows one") from error
    if columns.model is None and columns.columns.model is None:
        raise ConfigError(f"{path} says nowhere which model was called", hint='columns.model = "NAME OF A COLUMN"')
    return columns, sha256(body).hexdigest()[:16]


def read(log: LogFile, columns: ColumnMap) -> Iterator[LoggedCall]:
    """The calls of one table."""
    origins = Origins()
    for row in rows_of(log):
        call = _call(row, columns, origins, log)
        if call is not None:
            yield call


def _call(row: Row, by: ColumnMap, origins: Origins, log: LogFile) -> LoggedCall | None:
    place = by.columns
    at = stored(_cell(row, place.time))
    if at is None:
        log.note("a row without a time")
        return None
    model = text(_cell(row, place.model)) or by.model
    usage = _usage(row, by.tokens)
    word = (text(_cell(row, place.outcome)) or "").lower()
    error = text(_cell(row, place.error))
    failed = error is not None or word not in _GOOD
    name = _cell(row, place.id)
    tier = text(_cell(row, place.tier))
    return LoggedCall(
        str(name) if name is not None else _digest(row),
        at,
        origins.of(
            source=by.source,
            dialect=Dialect.UNSAID,
            provider=text(_cell(row, place.provider)) or by.provider,
            task=group_name(_cell(row, place.task)),
            run=group_name(_cell(row, place.run)),
            session=group_name(_cell(row, place.session)),
            key=key_name(_cell(row, place.key)),
            labels={label: _cell(row, column) for label, column in by.labels.items()},
            untimed=_UNTIMED,
        ),
        model or "unknown",
        usage=usage,
        terms=None if tier is None else Terms(tier=tier),
        reported=amount(_cell(row, place.cost)),
        timing=_timing(row, place),
        outcome=Outcome.FAILED if failed else Outcome.COMPLETED,
        error=complaint(error or word) if failed else None,
        uncosted=None if model else "the log does not name the model",
    )


def _timing(row: Row, place: _Columns) -> Any:
    begin = _cell(row, place.time)
    total_ns = _ns(row, place.duration_s, place.duration_ms)
    first_ns = _ns(row, place.first_token_s, place.first_token_ms)
    if total_ns is None and place.end is not None:
        total_ns = between_ns(begin, _cell(row, place.end))
    if first_ns is None and place.first_token is not None:
        first_ns = between_ns(begin, _cell(row, place.first_token))
    return reported_timing(total_ns, first_ns)


def _ns(row: Row, seconds: str | None, milliseconds: str | None) -> int | None:
    for column, unit_ns in ((seconds, 10**9), (milliseconds, 10**6)):
        value = amount(_cell(row, column))
        if value is not None:
            return int(value * unit_ns)
    return None


def _usage(row: Row, by: _Tokens) -> Usage | None:
    counts = {name: count(_cell(row, column)) for name in _COUNTS if (column := getattr(by, name)) is not None}
    given, answer = counts.get("input"), counts.get("output")
    if given is None and answer is None:
        return None
    read, reasoning = counts.get("cache_read") or 0, counts.get("reasoning") or 0
    write_5m, write_1h = counts.get("cache_write_5m") or 0, counts.get("cache_write_1h") or 0
    write = counts.get("cache_write")
    unknown = 0 if write is None else write - write_5m - write_1h
    prompt = {
        "input_fresh_tokens": (given or 0) - (read + write_5m + write_1h + unknown if by.input_includes_cache else 0),
        "input_cache_read_tokens": read,
        "input_cache_write_5m_tokens": write_5m,
        "input_cache_write_1h_tokens": write_1h,
        "input_cache_write_unknown_tokens": unknown,
    }
    answered = {
        "output_text_tokens": (answer or 0) - (reasoning if by.output_includes_reasoning else 0),
        "output_reasoning_tokens": reasoning,
    }
    if given is not None and (answer is not None or by.output is None):  # as in tables of embeddings
        return usage_of(prompt | answered, wrong=_WRONG)
    known = usage_of(prompt if answer is None else answered, wrong=_WRONG)
    side, missing = ("answer", Usage.OUTPUT_LEAVES) if answer is None else ("prompt", Usage.INPUT_LEAVES)
    reasons = dict.fromkeys(missing, f"the row does not say how many tokens the {side} had")
    return replace(known, **dict.fromkeys(missing), unknown_reasons=reasons | dict(known.unknown_reasons))  # pyright: ignore[reportArgumentType]  # names of leaves only


_WRONG = "the row's counts contradict each other: see input_includes_cache in the map"
_COUNTS = ("input", "output", "cache_read", "cache_write", "cache_write_5m", "cache_write_1h", "reasoning")


def _cell(row: Row, column: str | None) -> Any:
    """What a column has, None where that is nothing. Dots lead into objects."""
    if column is None:
        return None
    if column in row:
        value = row[column]
        return None if value == "" else value
    name, dot, rest = column.partition(".")
    return _cell(nested(row.get(name)), rest) if dot else None


def _digest(row: Row) -> str:
    """A name for a row that has none: all that it says."""
    return sha256(msgspec.json.encode(dict(row), order="sorted")).hexdigest()[:32]


def is_mine(entry: Mapping[str, Any]) -> bool:  # noqa: ARG001 - as the others
    """Never: only who has a map can say."""
    return False
