"""A row of a table, by the map of its columns: whatever it says.

Owns: what each column means for a call. Refuses to know: whose table it is, and how rows are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from taximeter.importers.chunks import Row, cell
from taximeter.importers.column_map import ColumnMap, Tokens, named
from taximeter.importers.instants import between_ns, epoch_us
from taximeter.importers.logged import LogFile, LoggedCall, Origin, terms_of_tier, usage_of
from taximeter.importers.origins import Origins
from taximeter.importers.strangers import amount, count, group_name, key_name, text
from taximeter.importers.timing import ReportedTiming, reported_timing
from taximeter.providers.metering.complaint import complaint
from taximeter.providers.metering.plain import LEAVES, MOST_TOKENS
from taximeter.records import Dialect, Outcome, Terms, Usage

_UNTIMED = "the table has no duration of the call"
_GOOD = ("success", "succeeded", "ok", "completed", "complete", "true", "200", "")


class Common(NamedTuple):
    """What many rows of a table have in common. `error` is of calls that have failed."""

    origin: Origin
    model: str
    terms: Terms | None
    uncosted: str | None
    error: str | None


class MappedRows:
    """Reads rows of one table. Most maps name few columns, and there is nothing to do for the others: `columns` and
    `counts` are the names that this one has something for, with the column. `labels` are labels with theirs."""

    def __init__(self, by: ColumnMap) -> None:
        self.by = by
        self.columns = named(by.columns)
        self.counts = [(name, column) for name, column in named(by.tokens) if name in COUNTS]
        self.labels = [(label, column.strip()) for label, column in by.labels.items()]
        self.has_times = any(name in TIMES for name, _ in self.columns)
        self._origins = Origins()

    def call(self, row: Row, log: LogFile) -> LoggedCall | None:
        """The call of a row."""
        cells = {name: cell(row, column) for name, column in self.columns}
        at_us = epoch_us(cells.get("time"))
        if at_us is None:
            column = dict(self.columns)["time"]
            if cells.get("time") is not None:
                log.note("a row with a time that is neither ISO 8601 nor a number since 1970")
            elif column in row or column.partition(".")[0] in row:
                log.note("a row without a time")
            else:
                log.note(f"a row without the column {column!r}, which has the time")
            return None
        usage = _usage(self._told(row, log), self.by.tokens)
        leaves, usage = (usage, None) if isinstance(usage, tuple) else (None, usage)
        cost = amount(cells.get("cost"))
        if cost is None and text(cells.get("cost")) is not None:
            log.note("a cost that is no number")
        common = self.common(cells, [cell(row, column) for _, column in self.labels])
        return LoggedCall(
            identity_of(row, cells.get("id")),
            at_us,
            common.origin,
            common.model,
            leaves,
            usage=usage,
            terms=common.terms,
            reported=cost,
            timing=timing_of(cells, at_us) if self.has_times else None,
            outcome=Outcome.COMPLETED if common.error is None else Outcome.FAILED,
            error=common.error,
            uncosted=common.uncosted,
        )

    def common(self, cells: Mapping[str, Any], labels: Sequence[Any]) -> Common:
        """What rows have in common of which these cells, `OF_MANY`, and labels are the same."""
        model = text(cells.get("model")) or self.by.model
        tier = text(cells.get("tier"))
        word = (text(cells.get("outcome")) or "").lower()
        error = text(cells.get("error"))
        said = (*map(cells.get, _OF_AN_ORIGIN), *labels)
        return Common(
            self._origins.told_by(said, lambda: self._new_origin(cells, labels)),
            model or "unknown",
            None if tier is None else terms_of_tier(tier),
            None if model else "the log does not name the model",
            complaint(error or word) if error is not None or word not in _GOOD else None,
        )

    def _told(self, row: Row, log: LogFile) -> dict[str, int | None]:
        """The counts of the row by their names in the map; None for what is there and is no count, which is said."""
        told: dict[str, int | None] = {}
        for name, column in self.counts:
            value = cell(row, column)
            if is_nothing(value):
                continue
            told[name] = count_in(value)
            if told[name] is None:
                log.note(f"a cell of the column {column!r} that is no count")
        return told

    def _new_origin(self, cells: Mapping[str, Any], labels: Sequence[Any]) -> Origin:
        return self._origins.of(
            source=self.by.source,
            dialect=Dialect.UNSAID,
            provider=text(cells.get("provider")) or self.by.provider,
            task=group_name(cells.get("task")),
            run=group_name(cells.get("run")),
            session=group_name(cells.get("session")),
            key=key_name(cells.get("key")),
            labels={label: value for (label, _), value in zip(self.labels, labels, strict=True)},
            untimed=_UNTIMED,
        )


def is_nothing(value: object) -> bool:
    """Whether a cell of a count has none."""
    return value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING)


def count_in(value: object) -> int | None:
    """The count in a cell, `12,0` too, as much of Europe writes it."""
    number = count(value)
    return count(amount(value)) if number is None and isinstance(value, str) and "," in value else number


def timing_of(cells: Mapping[str, Any], at_us: int) -> ReportedTiming | None:
    """What a row says of the times of its call."""
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


def _usage(told: Mapping[str, int | None], by: Tokens) -> tuple[int, ...] | Usage | None:
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
TIMES = ("end", "first_token", "duration_s", "duration_ms", "first_token_s", "first_token_ms")
_OF_AN_ORIGIN = ("provider", "task", "run", "session", "key")
OF_MANY = ("model", "tier", "outcome", "error", *_OF_AN_ORIGIN)
COUNTS = ("input", "output", "cache_read", "cache_write", "cache_write_5m", "cache_write_1h", "reasoning")


def identity_of(row: Row, name: Any) -> str:
    """What names a row: its `name`, or all that it says."""
    if name is not None:
        return str(name)
    return sha256(msgspec.json.encode(dict(row), order="sorted")).hexdigest()[:32]
