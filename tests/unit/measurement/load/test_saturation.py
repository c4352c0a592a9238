"""Levels, brackets, knees: on servers that are formulas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.errors import RequestError
from taximeter.measurement.estimates import share
from taximeter.measurement.load.point import Attainment, LoadPoint
from taximeter.measurement.load.saturation import Held, bisect, bracket, judged, knee, steps
from taximeter.measurement.load.slo import Slo
from taximeter.measurement.load.steady import SendRate, Throughput
from taximeter.records import Outcome

SLO = Slo(ttft_ns=1, share=0.9)


def point(level: float, met: int, of: int = 400, *, open_loop: bool = True, tokens_per_s: float = 0.0) -> LoadPoint:
    good = Attainment(share=share(met, of), met=met, requests_per_s=level * met / of, tokens_per_s=0.0, misses={})
    return LoadPoint(
        is_open_loop=open_loop,
        level=level,
        clients=1,
        window=None,
        requests=of,
        requests_in_window=of,
        outcomes={Outcome.COMPLETED: of if met else of // 2},
        ttft=None,
        itl=None,
        end_to_end=None,
        gaps=None,
        dispatch_delay=None,
        ttft_from_sending=None,
        end_to_end_from_sending=None,
        ramp=None,
        sent=SendRate(mean_per_s=level, peak_per_s=level, due_peak_per_s=level, waited=0),
        completed_per_s=level,
        output=Throughput(mean_per_s=tokens_per_s, peak_per_s=tokens_per_s, uncounted=0),
        prompt_tokens_per_s=None,
        cached_ratio=None,
        in_flight_mean=0.0,
        in_flight_most=0,
        attainment=good,
    )


def server(limit: float) -> Callable[[float], LoadPoint]:
    """Meets the target up to `limit`, and not beyond."""
    return lambda level: point(level, 400 if level <= limit else 0)


@settings(max_examples=50)
@given(limit=st.floats(2, 63.9))
def test_bisection_finds_the_limit_within_a_tenth(limit: float) -> None:
    asked: list[float] = []

    async def probe(level: float) -> LoadPoint:
        asked.append(level)
        return server(limit)(level)

    measured = [server(limit)(level) for level in steps(2, 64)]
    found = bracket([*measured, *asyncio.run(bisect(probe, measured, SLO))], SLO)
    assert found.held_at is not None
    assert found.missed_at is not None
    assert found.held_at <= limit < found.missed_at
    assert found.missed_at <= found.held_at * 1.1
    assert found.is_certain
    assert len(asked) <= 3  # a factor of two in three halvings: 2 ** (1 / 8) < 1.1
    assert found.goodput_per_s == pytest.approx(found.held_at)


def test_concurrencies_are_whole_numbers() -> None:
    async def probe(level: float) -> LoadPoint:
        assert level == int(level)
        return server(11)(level)

    measured = [server(11)(level) for level in (8.0, 16.0)]
    found = bracket([*measured, *asyncio.run(bisect(probe, measured, SLO, whole=True))], SLO)
    assert (found.held_at, found.missed_at) == (11, 12)


def test_a_side_that_was_not_found_is_said() -> None:
    assert "holds at 32/s, the most" in bracket([point(16, 400), point(32, 400)], SLO).says("/s")
    low = bracket([point(2, 0), point(4, 400)], SLO)  # what held above a level that missed counts for nothing
    assert (low.held_at, low.missed_at) == (None, 2)
    assert "missed at 2/s already" in low.says("/s")


def test_few_requests_decide_nothing_for_certain() -> None:
    """19 of 20 met a target of 0.9: Wilson's interval goes down to 0.76."""
    assert judged(point(2, 19, 20), SLO) is Held.PERHAPS
    assert judged(point(2, 17, 20), SLO) is Held.PERHAPS_NOT
    assert judged(point(2, 399), SLO) is Held.YES
    assert judged(point(2, 300), SLO) is Held.NO
    found = bracket([point(2, 19, 20), point(4, 0)], SLO)
    assert not found.is_certain
    assert "not certainly" in found.says("/s")


def test_an_unlucky_level_below_one_that_surely_held_did_not_miss() -> None:
    found = bracket([point(2, 17, 20), point(4, 400), point(8, 0)], SLO)
    assert (found.held_at, found.missed_at, found.is_certain) == (4, 8, True)
    assert bracket([point(2, 17, 20), point(4, 19, 20)], SLO).missed_at == 2


def test_a_probe_that_is_stopped_ends_it() -> None:
    async def probe(level: float) -> None:
        return None

    measured = [point(2, 400), point(64, 0)]
    assert asyncio.run(bisect(probe, measured, SLO)) == []


def test_steps_have_both_ends() -> None:
    assert steps(2, 32) == pytest.approx((2, 4, 8, 16, 32))
    assert steps(3, 3) == (3,)
    assert steps(1, 6, whole=True) == (1, 2, 3, 6)
    assert steps(1, 10)[-1] == pytest.approx(10)
    for low, high in ((0, 1), (3, 2), (1, float("inf")), (float("nan"), 1)):
        with pytest.raises(RequestError):
            steps(low, high)


def test_the_knee_is_the_last_level_that_was_kept_up_with() -> None:
    found = knee([point(8, 400), point(16, 0), point(4, 400)])
    assert found is not None
    assert (found.level, found.is_within) == (8, True)
    assert knee([point(2, 0)]) is None
    assert knee([]) is None


def test_the_knee_of_a_closed_loop_is_where_more_slots_bring_no_more_tokens() -> None:
    rates = {1: 100.0, 2: 190.0, 4: 340.0, 8: 370.0, 16: 372.0}
    found = knee([point(level, 400, open_loop=False, tokens_per_s=rate) for level, rate in rates.items()])
    assert found is not None
    assert (found.level, found.tokens_per_s, found.is_within) == (4, 340.0, True)
