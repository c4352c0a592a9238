"""Instants of logs, in all the ways in which they are written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.importers.instants import between_ns, epoch_us, instant_of, stored_text

NOON = datetime(2026, 10, 29, 12, tzinfo=UTC)
NOON_S = int(NOON.timestamp())
WRITTEN = [
    "2026-10-29T12:00:00Z",
    "2026-10-29 12:00:00",
    "2026-10-29T12:00:00.000+00:00",
    "2026-10-29T14:00:00+02:00",
    "20261029T120000Z",
    NOON_S,
    float(NOON_S),
    NOON_S * 10**3,
    NOON_S * 10**6,
    NOON_S * 10**9,
    str(NOON_S),
    f"{NOON_S}.0",
    str(NOON_S * 10**9),
]
ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@pytest.mark.parametrize("written", WRITTEN)
def test_an_instant_in_all_its_forms(written: object) -> None:
    at_us = epoch_us(written)
    assert at_us == NOON_S * 10**6
    assert instant_of(at_us) == NOON
    assert stored_text(at_us) == "2026-10-29 12:00:00.000000"


@pytest.mark.parametrize(
    "written",
    [
        *("", "yesterday", "1e400", "9" * 5_000, None, True, [], 0, 1, -1, 1_400_000_000, 10**20),
        *(float("nan"), float("inf"), "1970-01-01T00:00:00Z", "2014-12-31T23:59:59Z", "0001-01-01T00:00:00+01:00"),
    ],
)
def test_what_is_no_instant_of_a_call(written: object) -> None:
    assert epoch_us(written) is None


def test_the_last_day_that_calendars_have() -> None:
    latest = epoch_us("9999-12-31T23:59:59-05:00")
    assert latest is not None
    assert stored_text(latest) == "9999-12-31 23:59:59.999999"


@given(st.datetimes(min_value=datetime(2015, 1, 2), max_value=datetime(9999, 12, 30), timezones=ZONES))  # noqa: DTZ001 - as hypothesis wants it
def test_every_microsecond_and_zone(instant: datetime) -> None:
    at_us = epoch_us(instant.isoformat())
    assert at_us is not None
    assert instant_of(at_us) == instant
    assert stored_text(at_us) == instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


@given(st.integers(1_420_070_400 * 10**9, 10**20 - 1))
def test_nanoseconds_are_cut_to_microseconds(nanoseconds: int) -> None:
    """Text and number; a float has not so many digits."""
    assert epoch_us(nanoseconds) == epoch_us(str(nanoseconds)) == nanoseconds // 1_000


def test_between_two_instants() -> None:
    assert between_ns(1, 3) == 2_000
    assert between_ns(3, 3) == 0
    assert between_ns(3, 1) is between_ns(None, 1) is between_ns(1, None) is None
