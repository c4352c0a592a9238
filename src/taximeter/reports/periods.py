"""Days, weeks, months and five-hour blocks, as instants.

Everything is half-open: what was closed at midnight belongs to the day that begins then, and every instant to exactly
one period, in every zone. Owns: where periods begin, what people call instants, which zone is the machine's own.
Refuses to know: what happened in them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from taximeter.errors import RequestError

BLOCK: Final = timedelta(hours=5)
"""How long a provider's billing window is."""

_DAY: Final = timedelta(days=1)
_AGO: Final = re.compile(r"(\d{1,5})\s*(h|d|w)", re.ASCII)
_AGO_UNITS: Final = {"h": timedelta(hours=1), "d": _DAY, "w": 7 * _DAY}
_YEARS: Final = range(1970, 3000)
_COMPACT_DAY: Final = re.compile(r"\d{8}", re.ASCII)
_WHAT_AN_INSTANT_IS: Final = "a day (2026-11-23), an instant (2026-11-23T14:30), 7d, 12h, 2w, today, yesterday or now"


def zone_named(name: str) -> ZoneInfo:
    """The IANA zone, such as Europe/Berlin. Raises RequestError for none."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise RequestError(
            f"there is no time zone {name!r}", param="timezone", hint="IANA names, such as Europe/Berlin or UTC"
        ) from error


def own_zone(environ: Mapping[str, str] = os.environ, localtime: Path = Path("/etc/localtime")) -> ZoneInfo:
    """The machine's own zone: that of TZ, else that of the system, else UTC."""
    told = environ.get("TZ", "").removeprefix(":")
    _, _, named = os.path.realpath(localtime).partition("zoneinfo/")
    for name in (told, named):
        try:
            return ZoneInfo(name.removeprefix("posix/").removeprefix("right/"))
        except (ZoneInfoNotFoundError, ValueError, OSError):
            continue  # TZ may also be a rule, such as EST5EDT4
    return ZoneInfo("UTC")


def instant_named(text: str, zone: ZoneInfo, now: datetime, *, end: bool = False) -> datetime:
    """The instant that people mean by `text`. A day is its beginning; as the `end` of a span it is the next day's, so
    that the last day is in it. Raises RequestError for what is none.
    """
    try:
        at = _instant(text.strip(), zone, now, end=end)
        if at.year not in _YEARS:
            raise ValueError("no receipt is of that time")
    except (ValueError, OverflowError) as error:
        raise RequestError(
            f"{text!r} is no instant", param="until" if end else "since", hint=_WHAT_AN_INSTANT_IS
        ) from error
    return at


def _instant(text: str, zone: ZoneInfo, now: datetime, *, end: bool) -> datetime:
    word = text.lower()
    today = now.astimezone(zone).date()
    named = {"today": today, "yesterday": today - _DAY}.get(word)
    if word == "now":
        return now
    if (ago := _AGO.fullmatch(word)) is not None:
        return now - int(ago[1]) * _AGO_UNITS[ago[2]]
    if named is None and (_COMPACT_DAY.fullmatch(word) or len(word) == len("2026-11-23")):
        named = date.fromisoformat(word)
    if named is not None:
        return midnight(named + _DAY if end else named, zone)
    at = datetime.fromisoformat(text)
    return (at if at.tzinfo is not None else at.replace(tzinfo=zone)).astimezone(UTC)


def midnight(day: date, zone: ZoneInfo) -> datetime:
    """When the day begins there, in UTC. A day that begins twice begins at the first of them; one whose midnight clocks
    leap over begins where they land."""
    return datetime.combine(day, time(), zone).astimezone(UTC)


def day_of(at: datetime, zone: ZoneInfo) -> date:
    """The day that has the instant `at` in it."""
    return at.astimezone(zone).date()


def week_of(day: date) -> date:
    """The Monday of the week that has `day` in it."""
    return day - timedelta(days=day.weekday())


def month_of(day: date) -> date:
    return day.replace(day=1)


def next_day(day: date) -> date:
    return day + _DAY


def next_week(monday: date) -> date:
    return monday + 7 * _DAY


def next_month(first: date) -> date:
    return (first + timedelta(days=31)).replace(day=1)


def day_edges(
    since: datetime, until: datetime, zone: ZoneInfo, begins: Callable[[date], date], following: Callable[[date], date]
) -> list[datetime]:
    """`since`, every beginning between it and `until`, and `until`. `begins` gives the first day of the period that has
    a day in it, `following` that of the next."""
    edges = [since]
    first = following(begins(day_of(since, zone)))
    while (at := midnight(first, zone)) < until:
        if at > edges[-1]:  # a day that a zone left out has no length
            edges.append(at)
        first = following(first)
    return [*edges, until]


def hour_edges(since: datetime, until: datetime) -> list[datetime]:
    """`since`, every whole hour of UTC between it and `until`, and `until`."""
    at = _hour_of(since) + timedelta(hours=1)
    edges = [since]
    while at < until:
        edges.append(at)
        at += timedelta(hours=1)
    return [*edges, until]


def blocks(active_hours: Sequence[datetime]) -> list[datetime]:
    """When blocks began, from the hours (of UTC, ascending) in which anything happened at all.

    A block begins with the whole hour of the first activity after the block before it, and lasts five hours. So it is
    the same whichever span is asked for, as long as the hours go back to a silence of five.
    """
    begun: list[datetime] = []
    for hour in active_hours:
        if not begun or hour >= begun[-1] + BLOCK:
            begun.append(hour)
    return begun


def block_edges(since: datetime, until: datetime, begun: Sequence[datetime]) -> list[datetime]:
    """`since`, the beginnings and the ends of blocks between it and `until`, and `until`."""
    bounds = {at for begin in begun for at in (begin, begin + BLOCK)}
    return [since, *sorted(at for at in bounds if since < at < until), until]


def _hour_of(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
