"""When a price holds."""

from datetime import UTC, date, datetime, timedelta

from taximeter.pricing.periods import ALWAYS, Period, midnight, period_around

MARCH, JUNE, SEPTEMBER = (datetime(2026, month, 1, tzinfo=UTC) for month in (3, 6, 9))


def test_a_period_holds_from_its_start_to_just_before_its_end():
    """The first instant belongs to a period, the last to the next one."""
    spring = Period(start=MARCH, end=JUNE)
    assert not spring.holds(MARCH - timedelta(microseconds=1))
    assert spring.holds(MARCH)
    assert not spring.holds(JUNE)
    assert ALWAYS.holds(JUNE)


def test_within_is_the_common_part():
    """Open ends give way to closed ones."""
    assert Period(start=MARCH).within(Period(end=SEPTEMBER)) == Period(start=MARCH, end=SEPTEMBER)
    assert Period(start=MARCH, end=SEPTEMBER).within(Period(start=JUNE)) == Period(start=JUNE, end=SEPTEMBER)
    assert ALWAYS.within(ALWAYS) == ALWAYS


def test_only_real_changes_end_a_period():
    """A boundary at which the choice stays the same is looked through."""

    def chosen(at: datetime) -> str:
        return "old" if at < JUNE else "new"

    boundaries = [SEPTEMBER, MARCH, JUNE]
    assert period_around(MARCH, chosen, boundaries) == Period(end=JUNE)
    assert period_around(JUNE, chosen, boundaries) == Period(start=JUNE)
    assert period_around(SEPTEMBER, chosen, boundaries) == Period(start=JUNE)
    assert period_around(MARCH, lambda _: "same", boundaries) == ALWAYS


def test_a_day_begins_at_midnight_utc():
    """Dates in price lists are UTC days."""
    assert midnight(date(2026, 3, 1)) == MARCH
