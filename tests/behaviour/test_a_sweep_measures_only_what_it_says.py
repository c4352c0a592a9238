"""What makes a sweep's figures wrong elsewhere is seen here: prompts of another length, warm caches, cold starts,
answers that come in one piece, servers that go away, and a user who stops it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import pairwise

import numpy as np
import pytest

from taximeter.errors import UpstreamError
from taximeter.measurement.asking.asker import Asker
from taximeter.measurement.asking.wire import Question, Stale
from taximeter.measurement.sweep.study import Plan, Progress
from taximeter.measurement.sweep.sweep import Sweep, Sweeping, geometric
from taximeter.telemetry.engines import EngineState, read_page
from tests.measurement_harness import MS, Script, ScriptedServer, VirtualClock, chat, refusal, until, virtually
from tests.sweep_harness import LENGTHS, Asked, Truth, swept

PLAN = Plan(prompt_tokens=(64, 256, 1024), output_tokens=4, repeats=5)


def test_a_prompt_of_another_length_is_void() -> None:
    """The template added 13 tokens to one of them: it does not count, and the first one is named."""

    def answer(asked: Question, number: int) -> Script:
        tokens = asked.asked_prompt_tokens or 0
        return chat([10, 20, 30, 40], prompt_tokens=tokens + (13 if number in (4, 9) else 0))

    found = swept(answer, plan=PLAN)
    assert sum(sum(point.void.values()) for point in found.points) == 2
    assert sum(len(point.observations) for point in found.points) == 13
    assert len(found.observations) == 15
    assert any("the prompt had another length" in warning for warning in found.warnings)
    first = found.observations[4 - 3]
    said = next(warning for warning in found.warnings if warning.startswith("the first that does not count"))
    assert first.id in said
    assert f"{first.prompt_tokens:,} prompt tokens by the server's count, {first.asked_prompt_tokens:,} were" in said


def test_off_by_one_is_void_too() -> None:
    found = swept(lambda asked, _: chat([10, 20], prompt_tokens=(asked.asked_prompt_tokens or 0) - 1), plan=PLAN)
    assert [point.ttft_ns for point in found.points] == [None] * 3
    assert found.verdict is None
    assert not found.is_valid


def test_every_shape_is_warmed_up_first() -> None:
    """The first request of each length takes ten times as long: none of those is in the figures."""
    seen: Counter[int] = Counter()

    def answer(asked: Question, _: int) -> Script:
        tokens = asked.asked_prompt_tokens or 0
        seen[tokens] += 1
        return chat([1000 if seen[tokens] == 1 else 100, 1010, 1020, 1030], prompt_tokens=tokens)

    found = swept(answer, plan=PLAN)
    assert seen == {64: 6, 256: 6, 1024: 6}
    assert {ttft for each in found.observations if (ttft := each.ttft_ns())} == {100 * MS}


def test_the_order_is_random_and_each_round_has_every_length() -> None:
    plan = Plan(prompt_tokens=LENGTHS, output_tokens=2, repeats=4, seed=5)
    orders = [each.asked_prompt_tokens for each in swept(Truth().answer, plan=plan).observations]
    rounds = [orders[start : start + len(LENGTHS)] for start in range(0, len(orders), len(LENGTHS))]
    assert all(sorted(each, key=int) == list(LENGTHS) for each in map(list, rounds))  # pyright: ignore[reportArgumentType]
    assert len({tuple(each) for each in rounds}) == 4
    again = [each.asked_prompt_tokens for each in swept(Truth().answer, plan=plan).observations]
    assert orders == again


def test_requests_never_overlap() -> None:
    found = swept(Truth().answer, plan=PLAN).observations
    assert all(later.sent_ns >= earlier.ended_ns for earlier, later in pairwise(found))


@pytest.mark.parametrize(("cached", "is_cold"), [(0, True), (2, True), (5, False), (64, False)])
def test_a_warm_cache_fails_a_run_that_claims_to_be_cold(cached: int, is_cold: bool) -> None:
    """Per mille: 1,344 prompt tokens a round, of which 3 · `cached` come from a cache. From 1 % on it is not cold."""
    found = swept(
        lambda asked, _: chat([10, 20], prompt_tokens=asked.asked_prompt_tokens or 0, cached_tokens=cached), plan=PLAN
    )
    assert found.cold.hit_ratio == pytest.approx(3 * cached / 1344)
    assert (found.cold.is_cold, found.cold.by) == (is_cold, ("usage",))
    assert found.is_valid is is_cold
    assert any("this was no cold run" in warning for warning in found.warnings) is not is_cold


def test_the_counters_of_the_servers_page_are_believed_too() -> None:
    """Its usage says nothing of a cache, its page counts 98 % hits."""
    pages = iter(
        read_page(f"vllm:prefix_cache_hits_total {hits}\nvllm:prefix_cache_queries_total {asked}\n")
        for hits, asked in [(100, 1000), *((100 + 980 * round_, 1000 + 1000 * round_) for round_ in range(1, 6))]
    )

    async def counters() -> EngineState:
        return next(pages)

    found = swept(Truth(spread=0).answer, plan=PLAN, counters=counters)
    assert (found.cold.is_cold, found.cold.by) == (False, ("counters",))
    assert found.cold.hit_ratio == pytest.approx(0.98)
    assert "98.0% of prompt tokens came from a cache, by the counters of its page" in found.cold.says


def test_counters_that_began_anew_say_nothing() -> None:
    pages = iter([(100, 1000)] + [(5, 10)] * 5)

    async def counters() -> EngineState:
        hits, asked = next(pages)
        return EngineState(engine="vllm", prefix_hit_tokens=hits, prefix_asked_tokens=asked)

    found = swept(Truth().answer, plan=PLAN, counters=counters)
    assert found.cold.is_cold is None
    assert found.is_valid
    assert "not known" in found.cold.says


def test_answers_in_one_piece_are_void() -> None:
    """Something on the way keeps tokens back: TTFT would be the whole answer's time."""
    found = swept(
        lambda asked, _: chat([500], prompt_tokens=asked.asked_prompt_tokens or 0, output_tokens=4), plan=PLAN
    )
    assert found.verdict is None
    assert any("the answer came in one piece" in warning for warning in found.warnings)


def test_a_connection_that_had_died_is_told_and_its_time_counts() -> None:
    """Some servers close connections that are kept for seconds; the second attempt comes 3 ms after the first."""
    died: set[int] = set()

    def run(clock: VirtualClock) -> Callable[[Question, int], Awaitable[Script]]:
        async def answer(asked: Question, number: int) -> Script:
            if number in (4, 9):
                died.add(number)
                await until(clock.ns + 3 * MS, clock)
                raise Stale("it had been closed")
            return chat([10, 20, 30, 40], prompt_tokens=asked.asked_prompt_tokens or 0)

        return answer

    async def work(clock: VirtualClock) -> Sweep:
        server = ScriptedServer(clock, run(clock))
        sweeping = Sweeping(Asker(server, name="server", run="run", clock=clock), Asked(), PLAN)
        await sweeping.run()
        return sweeping.conclude(np.random.default_rng(1))

    found = virtually(work)
    assert died == {4, 9}
    assert [len(point.observations) for point in found.points] == [5, 5, 5]
    assert sorted(seen.ttft_ns() or 0 for seen in found.observations)[-2:] == [13 * MS, 13 * MS]
    assert any(warning.startswith("2 of 15 were sent again") for warning in found.warnings)


def test_failures_are_counted_and_do_not_end_it() -> None:
    truth = Truth(spread=0)
    found = swept(lambda asked, number: refusal() if number in (5, 7) else truth.answer(asked), plan=PLAN)
    assert sum(point.void.get("refused", 0) for point in found.points) == 2
    assert found.stopped is None
    assert "too many requests" in next(warning for warning in found.warnings if "the first that" in warning)


def test_a_server_that_went_away_is_not_asked_for_ever() -> None:
    truth = Truth(spread=0)
    found = swept(lambda asked, number: refusal(503, "no more") if number >= 9 else truth.answer(asked), plan=PLAN)
    assert len(found.observations) == 6 + 5
    assert found.stopped == "5 requests in a row failed: rate_limit: no more"
    assert [len(point.observations) for point in found.points] == [2, 2, 2]


def test_a_length_that_is_refused_is_left_out_with_the_reason() -> None:
    truth = Truth(spread=0)
    found = swept(
        lambda asked, _: refusal(400, "too long") if asked.asked_prompt_tokens == 1024 else truth.answer(asked),
        plan=PLAN,
    )
    assert "1,024 prompt tokens are not answered: rate_limit: too long" in found.warnings
    assert [len(point.observations) for point in found.points] == [5, 5, 0]
    assert found.ttft_fit is not None
    assert found.ttft_fit.names == ("a", "b")


def test_a_server_that_answers_nothing_ends_it() -> None:
    with pytest.raises(UpstreamError, match="no prompt was answered: rate_limit: too many requests"):
        swept(lambda _asked, _number: refusal(), plan=PLAN)


def test_the_limit_of_what_may_be_spent_stops_it() -> None:
    sent: list[tuple[int, int]] = []

    def allows(prompt: int, output: int) -> bool:
        sent.append((prompt, output))
        return len(sent) <= 8

    found = swept(Truth(spread=0).answer, plan=PLAN, allows=allows)
    assert found.stopped == "the limit of what may be spent is reached"
    assert len(found.observations) == 8 - 3
    assert set(sent) == {(64, 4), (256, 4), (1024, 4)}


def test_what_was_measured_before_it_was_stopped_stays() -> None:
    async def stopped(sweeping: Sweeping, clock: VirtualClock, server: ScriptedServer) -> None:
        running = asyncio.ensure_future(sweeping.run())
        while len(server.asked) < 3 + 7:  # in the middle of the third round
            await until(clock.ns + 5 * MS, clock)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    found = swept(Truth(spread=0).answer, plan=PLAN, run=stopped)
    assert found.stopped == "it was interrupted"
    assert len(found.observations) == 6
    assert found.ttft_fit is not None
    assert found.verdict is not None


def test_progress_knows_how_much_time_is_left() -> None:
    told: list[Progress] = []
    found = swept(Truth(spread=0).answer, plan=PLAN, on_progress=told.append)
    assert [each.done for each in told] == list(range(1, 19))
    assert {each.of for each in told} == {18}
    assert told[0].left_s is None
    assert told[-1].left_s == pytest.approx(0)
    assert told[2].left_s == pytest.approx((found.observations[-1].ended_ns - found.observations[0].sent_ns) / 1e9)


def test_a_server_that_grows_slow_is_told() -> None:
    fast, slow = Truth(spread=0.01), Truth(per_token=0.15, step=15, spread=0.01)
    found = swept(lambda asked, number: (fast if number < 18 else slow).answer(asked), plan=PLAN)
    assert found.warnings == ()  # 18 were all of them
    plan = Plan(prompt_tokens=(64, 256, 1024), output_tokens=4, repeats=8)
    half = swept(lambda asked, number: (fast if number < 15 else slow).answer(asked), plan=plan)
    assert any("the second half of the run took +" in warning for warning in half.warnings)


def test_answers_of_another_length_are_told_and_compared_per_token() -> None:
    def answer(asked: Question, number: int) -> Script:
        arrivals = [100 + 10 * step for step in range(2 if number % 2 else 4)]
        return chat(arrivals, prompt_tokens=asked.asked_prompt_tokens or 0)

    found = swept(answer, plan=PLAN)
    assert any("answers had another length than 4 tokens" in warning for warning in found.warnings)
    assert {point.total_ns.value for point in found.points if point.total_ns} == {130 * MS}


def test_without_a_count_of_the_answer_nothing_is_said_of_decode() -> None:
    found = swept(lambda asked, _: chat([10, 20, 30], with_usage=False), plan=PLAN)
    assert found.itl_fit is None
    assert found.verdict is None
    assert any("nothing can be said of decode" in warning for warning in found.warnings)
    assert any("does not say how many tokens a prompt has" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (64, 4096, (64, 128, 256, 512, 1024, 2048, 4096)),
        (64, 64, (64,)),
        (64, 65, (65,)),
        (100, 3000, (100, 197, 390, 770, 1519, 3000)),
    ],
)
def test_lengths_are_geometric(low: int, high: int, expected: tuple[int, ...]) -> None:
    assert geometric(low, high) == expected
