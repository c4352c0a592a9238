"""Points in time as logs write them. Owns: reading them, into text that sorts by time. Refuses to know: what happened
then."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

# Seconds, milliseconds, microseconds or nanoseconds since 1970: of our time, they are apart by three digits.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = ((10**11, 10**6), (10**14, 10**3), (10**17, 1))
_EARLIEST = "2015-01-01"


def stored(value: object) -> str | None:
    """An instant as the ledger has it, `2026-10-29 12:00:00.000000` in UTC; None for what is none, or long before there
    were models to call. A text without a zone is taken for UTC, a number for time since 1970 in the unit that puts it
    into our days."""
    if isinstance(value, str):
        try:
            instant = datetime.fromisoformat(value)
        except ValueError:
            return _from_number(value)
        # Most are in milliseconds and in UTC, and need not be written anew.
        if value[19:20] == "." and value[23:] in ("Z", "+00:00"):
            text = f"{value[:10]} {value[11:23]}000"
        else:
            text = text_of(instant)
        return text if text >= _EARLIEST else None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _since_1970(value)
    return None


def text_of(instant: datetime) -> str:
    """An instant as the ledger has it."""
    if instant.tzinfo is None:
        return instant.isoformat(" ", "microseconds")
    try:
        return instant.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")
    except OverflowError:  # the last day of the year 9999, west of Greenwich
        return instant.replace(tzinfo=None).isoformat(" ", "microseconds")


def instant_of(text: str) -> datetime:
    """The instant that `stored` made the text of."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def between_ns(begin: object, end: object) -> int | None:
    """Nanoseconds from one instant of a log to a later one; None where one is unknown, or they are turned around."""
    first, last = stored(begin), stored(end)
    if first is None or last is None or last < first:
        return None
    return (instant_of(last) - instant_of(first)) // timedelta(microseconds=1) * 1_000


def _from_number(text: str) -> str | None:
    try:
        return _since_1970(int(text) if text.isdecimal() else float(text))
    except (ValueError, OverflowError):
        return None


def _since_1970(number: float) -> str | None:
    try:
        for below, microseconds in _UNITS:
            if 0 < number < below:
                text = text_of(_EPOCH + timedelta(microseconds=number * microseconds))
                return text if text >= _EARLIEST else None
        return text_of(_EPOCH + timedelta(microseconds=number // 1_000)) if 0 < number < 10**20 else None
    except (OverflowError, ValueError):
        return None
