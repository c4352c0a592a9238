"""Load and its figures, against scripted servers on a virtual clock: the mistakes that load generators make, each with
its exact result."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from taximeter.errors import InvariantBroken, UpstreamError
from taximeter.measurement.asking.asker import Asker
from taximeter.measurement.asking.observation import Observation, Origin
from taximeter.measurement.asking.wire import Question
from taximeter.measurement.load.client_health import HealthWatch
from taximeter.measurement.load.closed_loop import run_closed_loop
from taximeter.measurement.load.open_loop import NOT_SENT, run_open_loop
from taximeter.measurement.load.point import LoadPoint, load_point
from taximeter.measurement.load.run import LoadRun, Trouble, Window, merged
from taximeter.measurement.load.saturation import knee
from taximeter.measurement.load.slo import Miss, Slo
from taximeter.measurement.load.steady import Throughput, checked, send_rate, throughput, window_of
from taximeter.records import Outcome
from tests.measurement_harness import (
    MS,
    Script,
    ScriptedServer,
    VirtualClock,
    chat,
    question,
    refusal,
    text_chunk,
    until,
    virtually,
)

Answer = Callable[[Question, int], Script | Awaitable[Script]]


def questions(**fields: int | None) -> Iterator[Question]:
    return itertools.repeat(question(**fields))


def opened(
    due_ms: Sequence[float],
    answer: Answer,
    *,
    slots: int | None = None,
    cap: int | None = None,
    patience_s: float = 60,
    asked: Iterator[Question] | None = None,
    beside: Callable[[VirtualClock], Awaitable[None]] | None = None,
    stop_ms: float | None = None,
) -> LoadRun:
    """An open loop on a virtual clock that begins at 0."""

    async def work(clock: VirtualClock) -> LoadRun:
        asker = Asker(ScriptedServer(clock, answer, slots=slots), name="server", run="run", clock=clock)
        stop = asyncio.Event()
        if stop_ms is not None:
            asyncio.get_running_loop().call_later(stop_ms / 1e3, stop.set)
        other = asyncio.ensure_future(beside(clock)) if beside else None
        run = await run_open_loop(
            asker,
            asked or questions(),
            [round(at_ms * MS) for at_ms in due_ms],
            rate_per_s=10.0,
            most_in_flight=cap,
            patience_s=patience_s,
            stop=stop,
            watch=HealthWatch(began_ns=0, clock=clock, cpu_ns=lambda: 0, waited_ns=lambda: 0),
            clock=clock,
        )
        if other is not None:
            await other
        return run

    return virtually(work)


def closed(
    starts_ms: Sequence[float],
    answer: Answer,
    *,
    asked: Iterator[Question] | None = None,
    duration_s: float | None = None,
) -> LoadRun:
    async def work(clock: VirtualClock) -> LoadRun:
        asker = Asker(ScriptedServer(clock, answer), name="server", run="run", clock=clock)
        return await run_closed_loop(
            asker,
            asked or questions(),
            [round(at_ms * MS) for at_ms in starts_ms],
            duration_s=duration_s,
            watch=HealthWatch(began_ns=0, clock=clock, cpu_ns=lambda: 0, waited_ns=lambda: 0),
            clock=clock,
        )

    return virtually(work)


RNG = np.random.default_rng(1)


def point(run: LoadRun, slo: Slo | None = None) -> LoadPoint:
    return load_point(run, slo=slo, rng=np.random.default_rng(1))


def ms(values: Sequence[int | None]) -> list[float]:
    return [value / MS for value in values if value is not None]


def troubles(found: LoadPoint) -> set[Trouble]:
    return {flag.trouble for flag in found.flags}


def says(found: LoadPoint, trouble: Trouble) -> str:
    return " / ".join(flag.says for flag in found.flags if flag.trouble is trouble)


EIGHT = [100 * number for number in range(8)]


def test_waiting_for_a_slot_counts() -> None:
    """8 arrivals 100 ms apart, 500 ms of service, one at a time: 500 ms from sending, and 1,900 (3,300 at most) from
    when they were due. That is what the report has."""
    run = opened(EIGHT, lambda _q, _n: chat([100, 500]), cap=1)
    seen = run.observations
    assert fmean(ms([one.end_to_end_ns(Origin.SENT) for one in seen])) == 500
    assert fmean(ms([one.end_to_end_ns() for one in seen])) == 1900
    assert max(ms([one.end_to_end_ns() for one in seen])) == 3300
    assert fmean(ms([one.dispatch_delay_ns for one in seen])) == 1400
    assert max(ms([one.dispatch_delay_ns for one in seen])) == 2800
    found = point(replace(run, ramp_ns=0))
    assert found.end_to_end is not None
    assert found.end_to_end.most_ns == 3300 * MS


def test_waiting_at_the_server_is_the_same() -> None:
    """Without a cap the requests wait at the server, and what users see is no different."""
    run = opened(EIGHT, lambda _q, _n: chat([100, 500]), slots=1)
    assert fmean(ms([one.end_to_end_ns() for one in run.observations])) == 1900
    assert [one.dispatch_delay_ns for one in run.observations] == [0] * 8


def test_requests_are_sent_when_they_are_due_however_slow_the_server_is() -> None:
    due_ms = [0.0, 0.5, 3.25, 100.0, 100.0, 1234.567]
    run = opened(due_ms, lambda _q, _n: chat([5000]))
    assert [one.sent_ns for one in run.observations] == [round(at * MS) for at in due_ms]
    assert not send_rate(run).waited


def test_a_cap_makes_bursts_and_no_open_loop() -> None:
    """Four slots that are taken for a second, and ten requests a second due: they leave in bursts of four."""
    run = opened([100 * number for number in range(30)], lambda _q, _n: chat([500, 1000]), cap=4)
    sent = send_rate(run)
    assert (sent.due_peak_per_s, sent.waited) == (10.0, 26)
    found = point(run)
    assert Trouble.NOT_OPEN_LOOP in troubles(found)
    assert "26 of 30" in says(found, Trouble.NOT_OPEN_LOOP)
    # all slots free at once, where the first four were sent at once
    burst = send_rate(opened([0, 0, 0, 0, *[1000 + 100 * n for n in range(20)]], lambda _q, _n: chat([1500]), cap=4))
    assert burst.peak_per_s == 40.0


def test_a_cap_that_is_never_reached_is_an_open_loop() -> None:
    found = point(opened([100 * number for number in range(30)], lambda _q, _n: chat([50, 90]), cap=4))
    assert Trouble.NOT_OPEN_LOOP not in troubles(found)


def test_no_peak_is_below_the_mean() -> None:
    """11 tokens in chunks of 1, 5 and 5, of which the server tells the sum alone: 11 tokens in the second."""
    run = opened([0], lambda _q, _n: chat([500, 750, 1000], output_tokens=11))
    found = throughput(run.observations, Window(start_ns=0, end_ns=1000 * MS), rng=RNG)
    assert (found.mean_per_s, found.peak_per_s) == pytest.approx((11, 11))
    # three quarters of a second behind a full one, all tokens in there
    late = throughput(run.observations, Window(start_ns=-750 * MS, end_ns=1000 * MS), rng=RNG)
    assert late.peak_per_s >= late.mean_per_s
    with pytest.raises(InvariantBroken, match="peak"):
        checked(Throughput(mean_per_s=10, peak_per_s=9, uncounted=0))


def test_who_does_not_say_how_many_tokens_has_no_throughput() -> None:
    run = opened([0, 10], lambda _q, number: chat([500, 750], with_usage=number == 0))
    found = throughput(run.observations, Window(start_ns=0, end_ns=1000 * MS), rng=RNG)
    assert (found.mean_per_s, found.uncounted) == (2.0, 1)
    assert "1 of" in says(point(run), Trouble.COUNTS_DIFFER)


def test_the_server_counts_and_the_first_difference_is_told() -> None:
    """The client believes that it sent 65 tokens; the server read 64, and that is what counts."""
    asked = (
        replace(question(prompt_tokens=64, output_tokens=2), counted_prompt_tokens=64 + (number >= 3))
        for number in itertools.count()
    )
    run = opened(EIGHT, lambda _q, _n: chat([20, 40]), asked=asked)
    found = point(run)
    first = run.observations[3]
    assert says(found, Trouble.COUNTS_DIFFER).startswith(f"{first.id}: 65 prompt tokens")
    assert "5 of" in says(found, Trouble.COUNTS_DIFFER)
    assert all(one.prompt_tokens == 64 for one in run.observations)


def test_a_blocked_client_is_told() -> None:
    """The event loop stands still for 200 ms: the client is the one that was slow, and each request that was under way
    knows how much."""

    async def block(clock: VirtualClock) -> None:
        await until(1005 * MS, clock)
        clock.ns += 200 * MS

    due_ms = [100 * number for number in range(30)]
    run = opened(due_ms, lambda _q, _n: chat([20 + 10 * n for n in range(5)]), beside=block)
    found = point(run)
    assert "200 ms" in says(found, Trouble.CLIENT_BOUND) or "195 ms" in says(found, Trouble.CLIENT_BOUND)
    lags = [one.client_lag_ns or 0 for one in run.observations]
    assert max(lags[:10]) == 0
    assert 190 * MS <= max(lags) <= 200 * MS
    assert Trouble.CLIENT_BOUND not in troubles(point(opened(due_ms, lambda _q, _n: chat([20, 30]))))


def test_small_lags_count_against_the_time_between_tokens() -> None:
    """5 ms late at every fifth moment: nothing where tokens are 200 ms apart, much where they are 10."""

    async def hinder(clock: VirtualClock) -> None:
        for number in range(60):
            await until((50 * number + 7) * MS, clock)
            clock.ns += 8 * MS

    due_ms = [100 * number for number in range(30)]
    fast = opened(due_ms, lambda _q, _n: chat([20 + 10 * n for n in range(5)]), beside=hinder)
    slow = opened(due_ms, lambda _q, _n: chat([20 + 200 * n for n in range(5)]), beside=hinder)
    assert "time between two tokens" in says(point(fast), Trouble.CLIENT_BOUND)
    assert Trouble.CLIENT_BOUND not in troubles(point(slow))


def test_a_client_that_waits_for_a_processor_says_that_the_machine_is_full() -> None:
    """Late by 8 ms again and again: its own doing where it worked meanwhile, the machine's where it waited for a
    processor. Where nobody counts that, it is not made up."""

    def late(*, counted: bool, waits: bool) -> LoadPoint:
        waited_ns = 0

        async def work(clock: VirtualClock) -> LoadRun:
            async def hinder() -> None:
                nonlocal waited_ns
                for number in range(60):
                    await until((50 * number + 7) * MS, clock)
                    clock.ns += 8 * MS
                    waited_ns += 8 * MS if waits else 0

            answering = ScriptedServer(clock, lambda _q, _n: chat([20 + 10 * n for n in range(5)]))
            asker = Asker(answering, name="server", run="run", clock=clock)
            watch = HealthWatch(
                began_ns=0, clock=clock, cpu_ns=lambda: 0, waited_ns=lambda: waited_ns if counted else None
            )
            other = asyncio.ensure_future(hinder())
            due_ns = [number * 100 * MS for number in range(30)]
            run = await run_open_loop(asker, questions(), due_ns, rate_per_s=10, watch=watch, clock=clock)
            await other
            return run

        return point(virtually(work))

    full = late(counted=True, waits=True)
    assert Trouble.CLIENT_BOUND not in troubles(full)
    assert "waiting for a processor that others had (16 % of the time)" in says(full, Trouble.MACHINE_FULL)
    for own in (late(counted=True, waits=False), late(counted=False, waits=True)):
        assert Trouble.MACHINE_FULL not in troubles(own)
        assert "time between two tokens" in says(own, Trouble.CLIENT_BOUND)


def test_a_busy_client_is_told() -> None:
    async def work(clock: VirtualClock) -> LoadRun:
        asker = Asker(ScriptedServer(clock, lambda _q, _n: chat([20, 40])), name="server", run="run", clock=clock)
        watch = HealthWatch(began_ns=0, clock=clock, cpu_ns=lambda: clock.ns * 9 // 10, waited_ns=lambda: 0)
        due_ns = [number * 100 * MS for number in range(10)]
        return await run_open_loop(asker, questions(), due_ns, rate_per_s=10, watch=watch, clock=clock)

    assert "90 % of a processor" in says(point(virtually(work)), Trouble.CLIENT_BOUND)


def test_the_ramp_of_a_closed_loop_is_apart() -> None:
    """The first request of each of four slots takes 2 s, all later ones 100 ms: the slow ones are the ramp, however few
    requests there are."""
    asked = iter([question()] * 40)
    run = closed([0, 10, 20, 30], lambda _q, number: chat([2000 if number < 4 else 100]), asked=asked)
    found = point(run)
    assert (run.busy_ns, run.concurrency) == (30 * MS, 4)
    assert found.ttft is not None
    assert found.ramp is not None
    assert found.ttft.most_ns == 100 * MS
    assert found.ramp.percentiles["p50"].value == 2000 * MS
    assert (found.requests, found.requests_in_window) == (40, 36)


def test_the_end_of_a_closed_loop_is_not_in_its_window() -> None:
    """One slot has nothing more to do at 1 s, the other works on until 9: tokens per second are those of the time when
    both worked."""
    asked = iter([question(), question(), question()])
    script = [chat([500]), chat([1000]), chat([8500])]
    run = closed([0, 0], lambda _q, number: script[number], asked=asked)
    assert run.idle_ns == 1000 * MS
    window = window_of(run)
    assert window is not None
    assert (window.start_ns, window.end_ns) == (0, 1000 * MS)
    assert throughput(run.observations, window, rng=RNG).mean_per_s == pytest.approx(2)


def test_a_closed_loop_is_never_called_an_open_one() -> None:
    run = closed([0, 5], lambda _q, _n: chat([50]), duration_s=1.0)
    found = point(run)
    assert not found.is_open_loop
    assert found.level == 2
    assert run.busy_ns == 5 * MS
    assert run.idle_ns == 1005 * MS  # no request begins a second after both were busy
    assert found.in_flight_mean == pytest.approx(2)


def test_a_closed_loop_does_not_storm_who_refuses() -> None:
    run = closed([0], lambda _q, _n: refusal(), duration_s=2.0)
    assert len(run.observations) == 8


def test_slots_that_begin_together_stay_together_and_jitter_parts_them() -> None:
    together = closed([0, 0, 0, 0], lambda _q, _n: chat([100]), duration_s=1.0)
    apart = closed([0, 25, 50, 75], lambda _q, _n: chat([100]), duration_s=1.0)
    assert len({one.sent_ns for one in together.observations}) == len(together.observations) / 4
    assert len({one.sent_ns for one in apart.observations}) == len(apart.observations)


def test_a_queue_that_grows_is_not_steady() -> None:
    """One request takes 150 ms and one is due every 100: the second half waits longer than the first."""
    found = point(opened([100 * number for number in range(60)], lambda _q, _n: chat([50, 150]), slots=1))
    assert "TTFT of the second half" in says(found, Trouble.NOT_STEADY)
    assert not found.is_sustained
    calm = point(opened([200 * number for number in range(60)], lambda _q, _n: chat([50, 150]), slots=1))
    assert Trouble.NOT_STEADY not in troubles(calm)
    assert calm.is_sustained


def test_a_level_that_is_shorter_than_its_requests_says_nothing() -> None:
    """Ten requests in a second, each of which takes two: nobody saw them all under way."""
    found = point(opened([100 * number for number in range(10)], lambda _q, _n: chat([50, 2000])))
    assert "longer" in says(found, Trouble.NO_WINDOW)
    assert found.is_too_short
    assert knee([found]) is None
    assert not point(opened([100 * number for number in range(60)], lambda _q, _n: chat([50, 2000]))).is_too_short


def test_tokens_that_come_at_once_are_no_reason_to_fail() -> None:
    """Every third answer comes whole: there is no time between its tokens."""
    found = point(opened([50 * number for number in range(60)], lambda _q, n: chat([50, 50 + 10 * (n % 3 > 0)])))
    assert found.itl is not None
    assert found.itl.at("p50").value == 10 * MS
    assert [drift.what for drift in found.drifts] == ["TTFT"]
    whole = point(opened([50 * number for number in range(60)], lambda _q, _n: chat([50, 50])))
    assert whole.itl is not None
    assert whole.itl.most_ns == 0


def test_what_was_refused_failed_or_given_up_is_a_miss() -> None:
    """Of ten requests, two are late, one is refused, one breaks off, and one never ends: five met the target, and half
    is what there is of goodput."""
    scripts = [chat([40, 60])] * 5 + [chat([40, 400]), chat([300, 320]), refusal()]
    scripts += [Script(chunks=[(30.0, text_chunk())], breaks=True), Script(chunks=[(1e9, text_chunk())])]
    run = opened([100 * number for number in range(10)], lambda _q, number: scripts[number], patience_s=5)
    slo = Slo(ttft_ns=100 * MS, itl_ns=50 * MS)
    assert [slo.misses(one) for one in run.observations[5:]] == [
        (Miss.ITL,),
        (Miss.TTFT,),
        (Miss.REFUSED,),
        (Miss.FAILED,),
        (Miss.GIVEN_UP,),
    ]
    found = point(run, slo)
    window = window_of(run)
    assert window is not None
    inside = [one for one in run.observations if window.has(one.scheduled_ns)]
    met = sum(slo.meets(one) for one in inside)
    assert found.attainment is not None
    assert found.attainment.met == met
    assert found.attainment.share.n == len(inside)
    assert found.attainment.requests_per_s == pytest.approx(met / window.seconds)
    assert found.attainment.tokens_per_s == pytest.approx(2 * met / window.seconds)
    assert found.outcomes[Outcome.ABORTED] == 1


def test_what_was_never_sent_is_a_miss_too() -> None:
    run = opened(EIGHT, lambda _q, _n: chat([100, 1000]), cap=1, patience_s=1.5)
    unsent = [one for one in run.observations if one.error == NOT_SENT]
    assert len(run.observations) == 8
    assert len(unsent) == 5  # one a second, from 0 to 2.2 s
    assert all(Slo(ttft_ns=10**12).misses(one) == (Miss.GIVEN_UP,) for one in unsent)


def test_stopping_keeps_what_was_measured() -> None:
    run = opened([100 * number for number in range(100)], lambda _q, _n: chat([20, 250]), stop_ms=3030)
    assert run.was_stopped
    assert sum(one.is_complete for one in run.observations) == 28
    assert sum(one.outcome is Outcome.ABORTED for one in run.observations) == 3
    found = point(run)
    assert "3 requests" in says(found, Trouble.CUT_SHORT)
    assert set(found.outcomes) == {Outcome.COMPLETED}
    assert found.ttft is not None
    assert found.ttft.percentiles["p50"].value == 20 * MS


def test_percentiles_of_few_requests_have_no_interval() -> None:
    found = point(opened([100 * number for number in range(60)], lambda _q, number: chat([20 + number % 7])))
    assert found.ttft is not None
    p99 = found.ttft.percentiles["p99"]
    assert p99.interval is None
    assert "n too small" in (p99.unknown_reason or "")
    assert found.ttft.percentiles["p50"].interval is not None
    assert p99.n == found.requests_in_window


def test_several_clients_are_one_run() -> None:
    """The parts of a schedule, sent by two processes, come to what one would have seen."""
    one = opened(EIGHT, lambda _q, _n: chat([100, 500]))
    halves = [opened(EIGHT[start::2], lambda _q, _n: chat([100, 500])) for start in (0, 1)]
    both = merged([replace(half, rate_per_s=5.0) for half in halves])
    assert both.rate_per_s == 10
    assert both.due_ns == one.due_ns

    def figures(run: LoadRun) -> list[tuple[int, int | None]]:
        return [(seen.scheduled_ns, seen.end_to_end_ns()) for seen in run.observations]

    assert figures(both) == figures(one)
    assert point(both).clients == 2


def test_a_server_that_is_away_is_measured_as_such() -> None:
    async def away() -> Script:
        raise UpstreamError("connection refused")

    found = point(opened(EIGHT, lambda _q, _n: away()), Slo(ttft_ns=MS))
    assert found.ttft is None
    assert found.attainment is not None
    assert found.attainment.met == 0
    assert found.errors == {"connection refused": found.requests_in_window}


def test_an_observation_is_there_for_each_request_that_was_due() -> None:
    run = opened(EIGHT, lambda _q, _n: chat([100]))
    assert [one.scheduled_ns for one in run.observations] == list(run.due_ns)
    assert all(isinstance(one, Observation) for one in run.observations)
