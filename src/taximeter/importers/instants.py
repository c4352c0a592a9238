"""Points in time as logs write them. Owns: reading them, into microseconds since 1970. Refuses to know: what happened
then."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_WITHOUT_ZONE = _EPOCH.replace(tzinfo=None)
_MICROSECOND = timedelta(microseconds=1)
# Seconds, milliseconds, microseconds or nanoseconds since 1970: of our time, they are apart by three digits.
_UNITS = ((10**11, 10**6), (10**14, 10**3), (10**17, 1))
_NANOSECONDS_END = 10**20
_DATE_DIGITS = 8
_EARLIEST_US = (datetime(2015, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LATEST_US = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND


def epoch_us(value: object) -> int | None:
    """Microseconds since 1970 of an instant; None for what is none, or long before there were models to call. A text
    without a zone is taken for UTC, a number for time since 1970 in the unit that puts it into our days."""
    if isinstance(value, str):
        if value.isdecimal() and len(value) > _DATE_DIGITS:  # some can be read as days of other centuries
            return _from_number(value)
        try:
            instant = datetime.fromisoformat(value)
        except ValueError:
            return _from_number(value)
        since = instant - (_EPOCH_WITHOUT_ZONE if instant.tzinfo is None else _EPOCH)
        microseconds = since // _MICROSECOND
    elif isinstance(value, int | float) and not isinstance(value, bool):
        return _since_1970(value)
    else:
        return None
    # West of Greenwich, the last day of the year 9999 goes on for longer than calendars do.
    return min(microseconds, _LATEST_US) if microseconds >= _EARLIEST_US else None


def epochs_us(values: Sequence[object]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The same of many, in an array, 0 for what is none; and of which they are."""
    found = _alike_us(values)
    for place in np.flatnonzero(found < _EARLIEST_US).tolist():
        found[place] = epoch_us(values[place]) or 0
    return found, found != 0


def instants_us(values: Sequence[object]) -> list[int | None]:
    """The same as a list, None for what is none."""
    if len(values) < _MANY:
        return list(map(epoch_us, values))
    return [us or None for us in epochs_us(values)[0].tolist()]


def _alike_us(values: Sequence[object]) -> NDArray[np.int64]:
    """Of texts that are written as the first value is: day, time and zone, as most programs write them; 0 for all
    others."""
    first = values[0] if values else None
    layout = _LAYOUT.fullmatch(first) if isinstance(first, str) else None
    if layout is None:
        return np.zeros(len(values), dtype=np.int64)
    length = layout.end()
    texts = [value if type(value) is str and len(value) == length and value.isascii() else "" for value in values]
    letters = np.array(texts, dtype=f"S{length}").view(np.uint8).reshape(-1, length)
    of_first = letters[0]
    is_digit = (of_first >= ord("0")) & (of_first <= ord("9"))
    is_digit[layout.end("second") if layout["fraction"] is None else layout.end("fraction") :] = False
    digits = letters.astype(np.int64) - ord("0")
    has_layout = (letters[:, ~is_digit] == of_first[~is_digit]).all(axis=1)
    has_layout &= ((digits[:, is_digit] >= 0) & (digits[:, is_digit] <= 9)).all(axis=1)

    def number(name: str) -> NDArray[np.int64]:
        begin, end = layout.span(name)
        end = min(end, begin + _MOST_DIGITS)  # what is finer than microseconds is cut off
        return digits[:, begin:end] @ 10 ** np.arange(end - begin)[::-1]

    months = (number("year") - 1970) * 12 + number("month") - 1
    days = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) + number("day") - 1
    seconds = (days * 24 + number("hour")) * 60 + number("minute")
    seconds = seconds * 60 + number("second") - _zone_s(layout)
    microseconds = seconds * 1_000_000
    if layout["fraction"] is not None:
        microseconds += number("fraction") * 10 ** max(0, _MOST_DIGITS - len(layout["fraction"]))
    has_layout &= (number("month") >= 1) & (number("month") <= 12) & (number("day") >= 1)
    has_layout &= days < (months + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    has_layout &= (number("hour") < 24) & (number("minute") < 60) & (number("second") < 60)
    has_layout &= microseconds <= _LATEST_US
    return np.where(has_layout, microseconds, 0)


def _zone_s(layout: re.Match[str]) -> int:
    zone = layout["zone"]
    if zone in (None, "Z"):
        return 0
    behind = int(zone[1:3]) * 3_600 + int(zone[4:6]) * 60
    return behind if zone[0] == "+" else -behind


_MOST_DIGITS = 6
_MANY = 20  # fewer than these are read one by one sooner than an array is made
_LAYOUT = re.compile(
    r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)[T ](?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
    r"(?:\.(?P<fraction>\d{1,9}))?(?P<zone>Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)?",
    re.ASCII,
)


def instant_of(at_us: int) -> datetime:
    """The instant that is so many microseconds after the beginning of 1970."""
    return _EPOCH + timedelta(microseconds=at_us)


def stored_text(at_us: int) -> str:
    """The same as the ledger has it, `2026-10-29 12:00:00.000000`; it sorts by time."""
    return text_of(instant_of(at_us))


def text_of(instant: datetime) -> str:
    """An instant as the ledger has it."""
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


def between_ns(begin_us: int | None, end_us: int | None) -> int | None:
    """Nanoseconds from one instant to a later one; None where one is unknown, or they are turned around."""
    if begin_us is None or end_us is None or end_us < begin_us:
        return None
    return (end_us - begin_us) * 1_000


def _from_number(text: str) -> int | None:
    try:
        return _since_1970(int(text) if text.isdecimal() else float(text))
    except ValueError:
        return None


def _since_1970(number: float) -> int | None:
    if not 0 < number < _NANOSECONDS_END:
        return None
    for below, unit in _UNITS:
        if number < below:
            microseconds = round(number * unit)
            break
    else:
        microseconds = int(number // 1_000)
    return microseconds if microseconds >= _EARLIEST_US else None
