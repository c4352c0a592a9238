"""Levels of load in turn: whose turn it is, and what the stretches of a level come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from taximeter.measurement.asking.asker import Asker
from taximeter.measurement.asking.wire import Question
from taximeter.measurement.compare.levels import Levels, Turns, levels_of, run_turns
from taximeter.measurement.load.client_health import HealthWatch
from taximeter.measurement.load.closed_loop import run_closed_loop
from taximeter.measurement.load.run import LoadRun
from taximeter.measurement.load.slo import Slo
from tests.measurement_harness import MS, Script, ScriptedServer, VirtualClock, chat, question, virtually

TURNS = Turns(levels=(1, 4), rounds=5, seed=3)
SPEED = {"A": 1.0, "B": 2.0}


def measured(
    turns: Turns = TURNS, *, duration_s: float = 5, stops_after: int | None = None
) -> tuple[dict[str, Levels], list[tuple[str, int]], bool]:
    """Two servers with a place for everybody: a token each 10 ms and each 20 ms, eleven to an answer, the first after
    100 ms. B is a tenth slower in every second stretch."""
    order: list[tuple[str, int]] = []
    runs: dict[str, dict[int, list[LoadRun]]] = {label: {} for label in SPEED}

    async def work(clock: VirtualClock) -> bool:
        async def stretch(label: str, concurrency: int) -> LoadRun:
            order.append((label, concurrency))
            drift = 1.1 if label == "B" and len(order) % 2 else 1.0

            def answer(asked: Question, _: int) -> Script:
                step = 10 * SPEED[label] * drift
                return chat([100 + step * number for number in range(11)], prompt_tokens=asked.asked_prompt_tokens or 0)

            def questions() -> Iterator[Question]:
                while stops_after is None or len(order) <= stops_after:
                    yield question(f"concurrency {concurrency}", output_tokens=11)

            asker = Asker(ScriptedServer(clock, answer), name=label, run="run", clock=clock, began_ns=clock.ns)
            watch = HealthWatch(began_ns=clock.ns, clock=clock, cpu_ns=lambda: 0, waited_ns=lambda: 0)
            starts = [number * 37 * MS for number in range(concurrency)]
            return await run_closed_loop(asker, questions(), starts, duration_s=duration_s, watch=watch, clock=clock)

        return await run_turns(
            {label: lambda level, label=label: stretch(label, level) for label in SPEED},
            turns,
            on_run=lambda label, level, run: runs[label].setdefault(level, []).append(run),
        )

    is_whole = virtually(work)
    rng = np.random.default_rng(1)
    slo = Slo.parse("itl=15ms")
    return {label: levels_of(of, slo=slo, rng=rng) for label, of in runs.items()}, order, is_whole


def test_everybody_has_each_level_in_every_round_in_a_random_order() -> None:
    _, order, is_whole = measured()
    assert is_whole
    assert Counter(order) == {(label, level): 5 for label in SPEED for level in (1, 4)}
    for turn in range(0, len(order), 2):
        assert {label for label, _ in order[turn : turn + 2]} == {"A", "B"}
        assert len({level for _, level in order[turn : turn + 2]}) == 1  # one level, everybody, then the next
    assert len({label for label, _ in order[::2]}) == 2


def test_what_a_server_does_is_recovered() -> None:
    """A: an answer takes 200 ms, so one at a time is 5 answers of 11 tokens a second, four are 20. B's every second
    stretch is a tenth slower, which is in its interval."""
    found, _, _ = measured()
    one, four = found["A"].points
    assert (one.level, four.level) == (1, 4)
    assert one.tokens_per_s == pytest.approx(55, rel=0.03)
    assert four.tokens_per_s == pytest.approx(220, rel=0.03)
    assert one.itl_ns == pytest.approx(10 * MS)
    assert (one.meets_target, found["B"].points[0].meets_target) == (True, False)
    low, high = found["B"].points[1].tokens_interval or (0, 0)
    assert low < 4 * 11 / 0.3 < high * 1.03
    assert high - low > 5
    assert {seen.shape for seen in found["A"].observations} == {"concurrency 1", "concurrency 4"}


def test_a_stretch_that_never_was_under_its_load_is_in_no_figure() -> None:
    found, order, _ = measured(stops_after=2)
    assert len(order) == 20
    for label, levels in found.items():
        spoilt = sum(levels.spoilt.values())
        assert spoilt >= 8, label
        assert all(earlier.level < later.level for earlier, later in pairwise(levels.points))
