"""Whole studies of load, against scripted servers on a virtual clock whose limits are known by arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest

from taximeter.measurement.asking.asker import Asker
from taximeter.measurement.load.arrivals import Arrivals
from taximeter.measurement.load.client_health import HealthWatch
from taximeter.measurement.load.level import Level, closed_level, drive, open_level
from taximeter.measurement.load.load import Load, measure
from taximeter.measurement.load.run import LoadRun
from taximeter.measurement.load.slo import Slo
from taximeter.measurement.load.workload import Ask, fixed
from tests.measurement_harness import ScriptedServer, VirtualClock, chat, question, virtually

WORK = fixed(64, 4)
ANSWER = chat([25, 50, 75, 100])  # 100 ms of service


def studied(levels: list[float], *, slots: int, slo: Slo | None, is_open_loop: bool = True) -> Load:
    async def work(clock: VirtualClock) -> Load:
        server = ScriptedServer(clock, lambda _q, _n: ANSWER, slots=slots)

        async def one(value: float) -> LoadRun:
            asker = Asker(server, name="server", run="run", clock=clock, began_ns=clock.ns)
            watch = HealthWatch(began_ns=clock.ns, clock=clock, cpu_ns=lambda: 0, waited_ns=lambda: 0)

            def make(shape: str, ask: Ask) -> object:
                return question(shape, prompt_tokens=ask.prompt_tokens, output_tokens=ask.output_tokens)

            return await drive(level(value), asker, make, watch=watch, clock=clock)  # type: ignore[arg-type]

        def level(value: float) -> Level:
            if not is_open_loop:
                return closed_level(WORK, round(value), jitter_s=0.1, duration_s=6, seed=1)
            return open_level(WORK, value, arrivals=Arrivals(burstiness=math.inf), duration_s=6, seed=1)

        return await measure(one, levels, is_open_loop=is_open_loop, slo=slo, rng=np.random.default_rng(1))

    return virtually(work)


def test_the_limit_of_an_open_loop_is_within_its_bracket() -> None:
    """Two places of 100 ms each take 20 requests a second. Beyond, a queue grows, and the target is missed."""
    found = studied([8, 16, 32], slots=2, slo=Slo(ttft_ns=100_000_000))
    limit = found.saturation
    assert limit is not None
    assert limit.held_at is not None
    assert limit.missed_at is not None
    assert limit.held_at <= 20 < limit.missed_at <= 1.1 * limit.held_at
    assert limit.is_certain
    assert limit.goodput_per_s == pytest.approx(limit.held_at, rel=0.01)
    assert limit.goodput_tokens_per_s == pytest.approx(4 * limit.held_at, rel=0.01)
    assert found.knee is not None
    assert found.knee.level == limit.held_at
    assert f"holds at {limit.held_at:.4g} requests/s and is missed at {limit.missed_at:.4g}" in found.says
    assert found.is_complete


def test_latency_below_the_limit_is_that_of_an_idle_server() -> None:
    found = studied([8, 16], slots=2, slo=None)
    assert [point.ttft and point.ttft.most_ns for point in found.points] == [25_000_000] * 2
    assert [point.itl and point.itl.at("p99").value for point in found.points] == [25_000_000] * 2
    assert [point.flags for point in found.points] == [()] * 2
    assert {seen.shape for seen in found.observations} == {"8/s", "16/s"}


def test_capacity_is_where_more_slots_bring_nothing() -> None:
    """Four places of 100 ms and four tokens each: 160 tokens a second, from four at a time on."""
    found = studied([1, 2, 4, 8], slots=4, slo=None, is_open_loop=False)
    assert [round(point.output.mean_per_s) for point in found.points if point.output] == [40, 80, 160, 160]
    assert found.knee is not None
    assert (found.knee.level, found.knee.is_within) == (4, True)
    assert "capacity: 4 at a time" in found.says
    # and what a request takes grows in proportion, which a closed loop shows as well
    last = found.points[-1]
    assert last.end_to_end is not None
    assert last.end_to_end.at("p50").value == pytest.approx(200_000_000, rel=0.01)
    assert last.in_flight_mean == pytest.approx(8, rel=0.01)
