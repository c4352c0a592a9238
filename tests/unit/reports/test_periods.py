"""Days, weeks, months and blocks: half-open, in every zone, to the microsecond."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.errors import RequestError
from taximeter.reports import periods
from taximeter.reports.question import Question, default_since, kind_named
from taximeter.reports.report import blocks_within
from tests.slices_oracle import ReceiptsInMemory
from tests.unit.reports.worlds import a_receipt

NOW = datetime(2026, 11, 30, 9, 30, tzinfo=UTC)
LOS_ANGELES = ZoneInfo("America/Los_Angeles")
zones = st.sampled_from(sorted(available_timezones() - {"localtime"})).map(ZoneInfo)
instants = st.datetimes(datetime(2024, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - hypothesis wants it naive


def days(since: datetime, until: datetime, zone: ZoneInfo) -> list[datetime]:
    return periods.day_edges(since, until, zone, lambda day: day, periods.next_day)


def test_an_evening_belongs_to_its_own_day() -> None:
    """ccusage/ccusage#349: what happens at half past four in London's night is yesterday evening in Los Angeles."""
    at = datetime(2026, 8, 6, 4, 30, tzinfo=UTC)
    assert periods.day_of(at, LOS_ANGELES) == date(2026, 8, 5)
    edges = days(at - timedelta(hours=20), at + timedelta(hours=20), LOS_ANGELES)
    (begin,) = [since for since, until in pairwise(edges) if since <= at < until]
    assert periods.day_of(begin, LOS_ANGELES) == date(2026, 8, 5)


@given(instants, st.timedeltas(timedelta(seconds=1), timedelta(days=400)), zones)
def test_periods_meet_and_every_instant_has_its_own_day(since: datetime, length: timedelta, zone: ZoneInfo) -> None:
    """Edges ascend from the beginning to the end; within two of them it is one date, by the zone's own clock."""
    until = since + length
    for edges in (
        days(since, until, zone),
        periods.day_edges(since, until, zone, periods.week_of, periods.next_week),
        periods.day_edges(since, until, zone, periods.month_of, periods.next_month),
        periods.hour_edges(since, until),
    ):
        assert (edges[0], edges[-1]) == (since, until)
        assert all(one < other for one, other in pairwise(edges))
    for begin, end in pairwise(days(since, until, zone)):
        last = end - timedelta(microseconds=1)
        assert periods.day_of(begin, zone) == periods.day_of(last, zone)
    for begin, end in pairwise(periods.day_edges(since, until, zone, periods.week_of, periods.next_week)):
        weeks = {periods.week_of(periods.day_of(at, zone)) for at in (begin, end - timedelta(microseconds=1))}
        assert len(weeks) == 1


def test_days_have_23_and_25_hours_where_clocks_change() -> None:
    """And the half hour of Lord Howe."""
    spring = days(datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 3, 31, tzinfo=UTC), ZoneInfo("Europe/Berlin"))
    autumn = days(datetime(2026, 10, 24, tzinfo=UTC), datetime(2026, 10, 27, tzinfo=UTC), ZoneInfo("Europe/Berlin"))
    island = days(datetime(2026, 4, 3, tzinfo=UTC), datetime(2026, 4, 6, tzinfo=UTC), ZoneInfo("Australia/Lord_Howe"))
    assert timedelta(hours=23) in {one - other for other, one in pairwise(spring)}
    assert timedelta(hours=25) in {one - other for other, one in pairwise(autumn)}
    assert timedelta(hours=24, minutes=30) in {one - other for other, one in pairwise(island)}


@given(st.sets(st.integers(0, 300), max_size=60))
def test_blocks_are_those_of_one_walk_through_all_activity(hours: set[int]) -> None:
    """Five hours from the whole hour of the first activity after the block before: every activity is in one."""
    active = [NOW.replace(minute=0) + timedelta(hours=hour) for hour in sorted(hours)]
    begun = periods.blocks(active)
    assert all(later - earlier >= periods.BLOCK for earlier, later in pairwise(begun))
    assert set(begun) <= set(active)
    for hour in active:
        assert sum(begin <= hour < begin + periods.BLOCK for begin in begun) == 1
    # Cut at a silence of five hours, the rest is the same.
    for earlier, later in pairwise(active):
        if later - earlier >= periods.BLOCK:
            assert periods.blocks(active[active.index(later) :]) == [at for at in begun if at >= later]


@given(st.sets(st.integers(0, 24 * 40), max_size=200), st.integers(0, 24 * 40), st.booleans())
def test_blocks_of_a_span_are_those_of_all_time(hours: set[int], first: int, without_a_silence: bool) -> None:
    """Found without looking further back than to a silence; where there is none, at all of it."""
    begin = NOW - timedelta(days=50)
    hours = {hour + 4 * place for hour in hours for place in range(6 if without_a_silence else 1)}
    world = ReceiptsInMemory([a_receipt(begin + timedelta(hours=hour)) for hour in sorted(hours)])
    since, until = begin + timedelta(hours=first, minutes=30), NOW + timedelta(days=1)
    every = periods.blocks(world.active_hours(begin - timedelta(days=1), until))
    touching = [at for at in every if at + periods.BLOCK > since]
    assert [at for at in blocks_within(world, since, until) if at + periods.BLOCK > since] == touching


@pytest.mark.parametrize(
    ("text", "since", "until"),
    [
        ("2026-11-23", "2026-11-23T08:00", "2026-11-24T08:00"),  # midnight in Los Angeles; a day is in its report
        ("20261123", "2026-11-23T08:00", "2026-11-24T08:00"),
        ("today", "2026-11-30T08:00", "2026-12-01T08:00"),
        ("Yesterday", "2026-11-29T08:00", "2026-11-30T08:00"),
        ("2026-11-23T10:15", "2026-11-23T18:15", "2026-11-23T18:15"),
        ("2026-11-23T10:15+01:00", "2026-11-23T09:15", "2026-11-23T09:15"),
        ("2026-11-23T10:15Z", "2026-11-23T10:15", "2026-11-23T10:15"),
        ("now", "2026-11-30T09:30", "2026-11-30T09:30"),
        ("12h", "2026-11-29T21:30", "2026-11-29T21:30"),
        ("2w", "2026-11-16T09:30", "2026-11-16T09:30"),
    ],
)
def test_instants_as_people_say_them(text: str, since: str, until: str) -> None:
    """Days are those of the zone; an instant with an offset of its own is itself."""
    assert periods.instant_named(text, LOS_ANGELES, NOW) == datetime.fromisoformat(f"{since}+00:00")
    assert periods.instant_named(text, LOS_ANGELES, NOW, end=True) == datetime.fromisoformat(f"{until}+00:00")


@pytest.mark.parametrize(
    "text", ["", "soon", "2026-13-01", "2026-02-30", "99999w", "d", "-3d", "٣d", "1e9d", "2026-1-1"]
)
def test_what_is_no_instant_is_told(text: str) -> None:
    """With what one is."""
    with pytest.raises(RequestError) as caught:
        periods.instant_named(text, LOS_ANGELES, NOW)
    assert "2026-11-23" in (caught.value.hint or "")


@given(st.text(max_size=12))
def test_any_text_is_an_instant_or_told(text: str) -> None:
    """Nothing else comes of it."""
    with suppress(RequestError):
        assert periods.instant_named(text, LOS_ANGELES, NOW).tzinfo is not None


def test_the_machines_own_zone(tmp_path: Path) -> None:
    """TZ, then what the system's link says, then UTC."""
    link = tmp_path / "localtime"
    link.symlink_to("/usr/share/zoneinfo/Asia/Kolkata")
    assert periods.own_zone({"TZ": ":Europe/Paris"}, link).key == "Europe/Paris"
    assert periods.own_zone({"TZ": "EST5EDT4,M3"}, link).key == "Asia/Kolkata"
    assert periods.own_zone({}, link).key == "Asia/Kolkata"
    assert periods.own_zone({}, tmp_path / "nothing").key == "UTC"


def test_a_default_is_whole_days_and_the_period_before_as_long() -> None:
    """Seven days with today, eight weeks, twelve months."""
    berlin = ZoneInfo("Europe/Berlin")
    assert default_since("task", NOW, berlin) == datetime(2026, 11, 23, 23, tzinfo=UTC)
    assert default_since("week", NOW, berlin) == datetime(2026, 10, 11, 22, tzinfo=UTC)
    assert default_since("month", NOW, berlin) == datetime(2025, 11, 30, 23, tzinfo=UTC)
    question = Question(by="day", since=default_since("day", NOW, berlin), until=NOW, zone=berlin)
    assert question.since - question.before == NOW - question.since


@pytest.mark.parametrize("by", ["", "colour", "label", "label:", "task:x", "day week"])
def test_what_no_report_is_by_is_told(by: str) -> None:
    """With what one can be by."""
    with pytest.raises(RequestError, match="no report by"):
        kind_named(by)
    assert kind_named(" Label:Team ") == "label:team"
