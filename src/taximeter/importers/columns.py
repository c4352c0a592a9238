"""Any table, CSV or JSON lines, with a map that says what its columns are.

Owns: the form of the map, and the reading of a row by it. Refuses to know: whose table it is.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import msgspec

from taximeter.errors import ConfigError
from taximeter.importers.instants import between_ns, epoch_us
from taximeter.importers.logged import LogFile, LoggedCall, Origin, terms_of_tier, usage_of
from taximeter.importers.origins import Origins
from taximeter.importers.rows import Row, rows_of
from taximeter.importers.strangers import amount, count, group_name, key_name, nested, text
from taximeter.importers.timing import ReportedTiming, reported_timing
from taximeter.providers.metering.complaint import complaint
from taximeter.providers.metering.plain import INPUTS, LEAVES, MOST_TOKENS
from taximeter.records import Dialect, Outcome, Usage

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
    table = _Table(columns)
    for row in rows_of(log):
        call = table.call(row, log)
        if call is not None:
            yield call


class _Table:
    """Reads rows of one table. Most maps name few columns, and there is nothing to do for the others."""

    def __init__(self, by: ColumnMap) -> None:
        self._by = by
        self._columns = _named(by.columns)
        self._counts = [(name, column) for name, column in _named(by.tokens) if name in _COUNTS]
        self._has_times = any(name in _TIMES for name, _ in self._columns)
        self._origins = Origins()

    def call(self, row: Row, log: LogFile) -> LoggedCall | None:
        """The call of a row."""
        cells = {name: _cell(row, column) for name, column in self._columns}
        cell = cells.get
        at_us = epoch_us(cell("time"))
        if at_us is None:
            column = self._by.columns.time
            is_there = column in row or column.partition(".")[0] in row
            log.note("a row without a time" if is_there else f"a row without the column {column!r}, which has the time")
            return None
        model = text(cell("model")) or self._by.model
        counts = {name: count(_cell(row, column)) for name, column in self._counts}
        usage = _usage(counts, self._by.tokens)
        leaves, usage = (usage, None) if isinstance(usage, tuple) else (None, usage)
        word = (text(cell("outcome")) or "").lower()
        error = text(cell("error"))
        failed = error is not None or word not in _GOOD
        name = cell("id")
        tier = text(cell("tier"))
        cost = amount(cell("cost"))
        if cost is None and text(cell("cost")) is not None:
            log.note("a cost that is no number")
        return LoggedCall(
            str(name) if name is not None else _digest(row),
            at_us,
            self._origin(cells, [_cell(row, column) for column in self._by.labels.values()]),
            model or "unknown",
            leaves,
            usage=usage,
            terms=None if tier is None else terms_of_tier(tier),
            reported=cost,
            timing=_timing(cells, at_us) if self._has_times else None,
            outcome=Outcome.FAILED if failed else Outcome.COMPLETED,
            error=complaint(error or word) if failed else None,
            uncosted=None if model else "the log does not name the model",
        )

    def _origin(self, cells: Mapping[str, Any], labels: Sequence[Any]) -> Origin:
        said = (*map(cells.get, _OF_AN_ORIGIN), *labels)
        return self._origins.told_by(said, lambda: self._new_origin(cells, labels))

    def _new_origin(self, cells: Mapping[str, Any], labels: Sequence[Any]) -> Origin:
        return self._origins.of(
            source=self._by.source,
            dialect=Dialect.UNSAID,
            provider=text(cells.get("provider")) or self._by.provider,
            task=group_name(cells.get("task")),
            run=group_name(cells.get("run")),
            session=group_name(cells.get("session")),
            key=key_name(cells.get("key")),
            labels=dict(zip(self._by.labels, labels, strict=True)),
            untimed=_UNTIMED,
        )


def _named(columns: msgspec.Struct) -> list[tuple[str, str]]:
    """Which column has what, of what a column has."""
    return [(name, column) for name, column in msgspec.structs.asdict(columns).items() if isinstance(column, str)]


def _timing(cells: Mapping[str, Any], at_us: int) -> ReportedTiming | None:
    total_ns = _ns(cells, "duration_s", "duration_ms")
    first_ns = _ns(cells, "first_token_s", "first_token_ms")
    if total_ns is None:
        total_ns = between_ns(at_us, epoch_us(cells.get("end")))
    if first_ns is None:
        first_ns = between_ns(at_us, epoch_us(cells.get("first_token")))
    return reported_timing(total_ns, first_ns)


def _ns(cells: Mapping[str, Any], seconds: str, milliseconds: str) -> int | None:
    for name, unit_ns in ((seconds, 10**9), (milliseconds, 10**6)):
        value = amount(cells.get(name))
        if value is not None:
            return int(value * unit_ns)
    return None


def _usage(counts: Mapping[str, int | None], by: _Tokens) -> tuple[int, ...] | Usage | None:
    """The leaves, in the order of `plain.LEAVES`, where there is no more to say."""
    given, answer = counts.get("input"), counts.get("output")
    if given is None and answer is None:
        return None
    read, reasoning = counts.get("cache_read") or 0, counts.get("reasoning") or 0
    write_5m, write_1h = counts.get("cache_write_5m") or 0, counts.get("cache_write_1h") or 0
    write = counts.get("cache_write")
    unknown = 0 if write is None else write - write_5m - write_1h
    fresh = (given or 0) - (read + write_5m + write_1h + unknown if by.input_includes_cache else 0)
    prompt = (fresh, read, write_5m, write_1h, unknown)
    answered = ((answer or 0) - (reasoning if by.output_includes_reasoning else 0), reasoning)
    if given is not None and (answer is not None or by.output is None):  # as in tables of embeddings
        leaves = (*prompt, *answered)
        if min(leaves) >= 0 and sum(leaves) <= MOST_TOKENS:
            return leaves
        return usage_of(dict(zip(LEAVES, leaves, strict=True)), wrong=_WRONG)
    sides = zip(INPUTS, prompt, strict=True) if answer is None else zip(LEAVES[len(INPUTS) :], answered, strict=True)
    known = usage_of(dict(sides), wrong=_WRONG)
    side, missing = ("answer", Usage.OUTPUT_LEAVES) if answer is None else ("prompt", Usage.INPUT_LEAVES)
    reasons = dict.fromkeys(missing, f"the row does not say how many tokens the {side} had")
    return replace(known, **dict.fromkeys(missing), unknown_reasons=reasons | dict(known.unknown_reasons))  # pyright: ignore[reportArgumentType]  # names of leaves only


_WRONG = "the row's counts contradict each other: see input_includes_cache in the map"
_TIMES = ("end", "first_token", "duration_s", "duration_ms", "first_token_s", "first_token_ms")
_OF_AN_ORIGIN = ("provider", "task", "run", "session", "key")
_COUNTS = ("input", "output", "cache_read", "cache_write", "cache_write_5m", "cache_write_1h", "reasoning")


def _cell(row: Row, column: str) -> Any:
    """What a column has, None where that is nothing. Dots lead into objects."""
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
