"""Points in time as logs write them. Owns: reading them, into microseconds since 1970. Refuses to know: what happened
then."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

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
