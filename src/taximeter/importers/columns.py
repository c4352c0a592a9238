"""Any table, CSV or JSON lines, with a map that says what its columns are.

Owns: the form of the map, and the reading of a row by it. Refuses to know: whose table it is.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import msgspec

from taximeter.errors import ConfigError
from taximeter.importers.chunks import Row, cell
from taximeter.importers.instants import between_ns, epoch_us
from taximeter.importers.logged import LogFile, LoggedCall, Origin, terms_of_tier, usage_of
from taximeter.importers.origins import Origins
from taximeter.importers.rows import rows_of
from taximeter.importers.strangers import amount, count, group_name, key_name, text
from taximeter.importers.timing import ReportedTiming, reported_timing
from taximeter.providers.metering.complaint import complaint
from taximeter.providers.metering.plain import LEAVES, MOST_TOKENS
from taximeter.records import Dialect, Outcome, Usage

NAME = "columns"
SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson")
EDITION = "2"

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
        cells = {name: cell(row, column) for name, column in self._columns}
        at_us = epoch_us(cells.get("time"))
        if at_us is None:
            column = self._by.columns.time
            if cells.get("time") is not None:
                log.note("a row with a time that is neither ISO 8601 nor a number since 1970")
            elif column in row or column.partition(".")[0] in row:
                log.note("a row without a time")
            else:
                log.note(f"a row without the column {column!r}, which has the time")
            return None
        model = text(cells.get("model")) or self._by.model
        usage = _usage(self._told(row, log), self._by.tokens)
        leaves, usage = (usage, None) if isinstance(usage, tuple) else (None, usage)
        word = (text(cells.get("outcome")) or "").lower()
        error = text(cells.get("error"))
        failed = error is not None or word not in _GOOD
        name = cells.get("id")
        tier = text(cells.get("tier"))
        cost = amount(cells.get("cost"))
        if cost is None and text(cells.get("cost")) is not None:
            log.note("a cost that is no number")
        return LoggedCall(
            str(name) if name is not None else _digest(row),
            at_us,
            self._origin(cells, [cell(row, column) for column in self._by.labels.values()]),
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

    def _told(self, row: Row, log: LogFile) -> dict[str, int | None]:
        """The counts of the row by their names in the map; None for what is there and is no count, which is said."""
        told: dict[str, int | None] = {}
        for name, column in self._counts:
            value = cell(row, column)
            if value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING):
                continue
            number = count(value)
            if number is None and isinstance(value, str) and "," in value:
                number = count(amount(value))  # `12,0`, as much of Europe writes it
            if number is None:
                log.note(f"a cell of the column {column!r} that is no count")
            told[name] = number
        return told

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


def _usage(told: Mapping[str, int | None], by: _Tokens) -> tuple[int, ...] | Usage | None:
    """The leaves, in the order of `plain.LEAVES`, where there is no more to say. Of a whole that is told, what is not
    told of its parts is nothing; of another one, the parts that are told are known all the same."""
    if not told:
        return None
    given, answer = told.get("input"), told.get("output")
    if answer is None and by.output is None and given is not None:  # as in tables of embeddings
        answer = 0
    untold = None if given is None else 0
    read = told.get("cache_read", untold)
    untold = 0 if any(name in told for name in _WRITES) else untold
    write_5m, write_1h = told.get("cache_write_5m", untold), told.get("cache_write_1h", untold)
    unknown = _less(told["cache_write"], write_5m, write_1h) if "cache_write" in told else untold
    parts = (read, write_5m, write_1h, unknown)
    fresh = _less(given, *parts) if by.input_includes_cache else given
    reasoning = told.get("reasoning", None if answer is None else 0)
    spoken = _less(answer, reasoning) if by.output_includes_reasoning else answer
    leaves = (fresh, *parts, spoken, reasoning)
    known = {leaf: number for leaf, number in zip(LEAVES, leaves, strict=True) if number is not None}
    if min(known.values(), default=0) < 0:
        return Usage.unknown(_WRONG)
    if len(known) == len(LEAVES):
        return tuple(known.values()) if sum(known.values()) <= MOST_TOKENS else usage_of(known, wrong=_WRONG)
    reasons = {
        leaf: _UNTOLD[side] if whole is None else _UNTOLD_PARTS[side]
        for side, whole, of_side in ((0, given, Usage.INPUT_LEAVES), (1, answer, Usage.OUTPUT_LEAVES))
        for leaf in of_side
        if leaf not in known and (whole is None or leaf in LEAVES)
    }
    return Usage(**{**dict.fromkeys(LEAVES, 0), **known, **dict.fromkeys(reasons)}, unknown_reasons=reasons)  # pyright: ignore[reportArgumentType]  # names of leaves only


def _less(whole: int | None, *parts: int | None) -> int | None:
    """What is left of the whole; None where something is not known."""
    known = [part for part in parts if part is not None]
    return None if whole is None or len(known) < len(parts) else whole - sum(known)


_UNTOLD = [f"the row does not say how many tokens the {side} had" for side in ("prompt", "answer")]
_UNTOLD_PARTS = [f"the row does not say what the tokens of the {side} were" for side in ("prompt", "answer")]
_WRITES = ("cache_write", "cache_write_5m", "cache_write_1h")
_NOTHING = ("", "null", "none", "nan", "n/a", "na", "-", "\\n")
"""What programs and people write where there is nothing."""

_WRONG = "the row's counts contradict each other: see input_includes_cache in the map"
_TIMES = ("end", "first_token", "duration_s", "duration_ms", "first_token_s", "first_token_ms")
_OF_AN_ORIGIN = ("provider", "task", "run", "session", "key")
_COUNTS = ("input", "output", "cache_read", "cache_write", "cache_write_5m", "cache_write_1h", "reasoning")


def _digest(row: Row) -> str:
    """A name for a row that has none: all that it says."""
    return sha256(msgspec.json.encode(dict(row), order="sorted")).hexdigest()[:32]


def is_mine(entry: Mapping[str, Any]) -> bool:  # noqa: ARG001 - as the others
    """Never: only who has a map can say."""
    return False
