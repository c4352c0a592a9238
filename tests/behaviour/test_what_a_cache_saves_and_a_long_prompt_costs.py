"""The other studies of a server, each against one whose truth is known."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from taximeter.measurement.asking.asker import Asker
from taximeter.measurement.asking.wire import Question
from taximeter.measurement.sweep.cache_study import CacheStudy, CacheStudying, shared_of
from taximeter.measurement.sweep.findings import findings
from taximeter.measurement.sweep.interference import Interference, Interfering, largest_gaps
from taximeter.measurement.sweep.study import Plan, Progress
from taximeter.measurement.sweep.study_pages import shown_cache, shown_depth, shown_interference
from tests.measurement_harness import MS, Script, ScriptedServer, VirtualClock, chat, until, virtually
from tests.sweep_harness import LENGTHS, Asked, Truth, swept

Told = list[Progress]


def cache_study(*, has_cache: bool, spread: float = 0.02, told: Told | None = None) -> CacheStudy:
    """A server at 0.5 ms a token, for what it has not seen."""
    source = np.random.default_rng(5)

    async def work(clock: VirtualClock) -> CacheStudy:
        seen: set[bytes] = set()

        def answer(asked: Question, _: int) -> Script:
            tokens = asked.asked_prompt_tokens or 0
            hit = shared_of(tokens) if has_cache and asked.body in seen else 0
            seen.add(asked.body)
            first = (10 + 0.5 * (tokens - hit)) * float(source.lognormal(0, spread))
            return chat([first, first + 10], prompt_tokens=tokens, cached_tokens=hit)

        server = ScriptedServer(clock, answer)
        study = CacheStudying(
            Asker(server, name="server", run="run", clock=clock),
            Asked(),
            Plan(prompt_tokens=(128, 512, 2048), output_tokens=2, repeats=7),
            on_progress=[].append if told is None else told.append,
        )
        await study.run()
        assert len(server.asked) == 2 * 3 * 8
        return study.conclude(np.random.default_rng(1))

    return virtually(work)


def test_what_a_cache_saves_is_found() -> None:
    """Of 2,048 tokens 256 are new: 138 ms instead of 1,034."""
    found = cache_study(has_cache=True)
    longest = found.points[-1]
    assert longest.ratio is not None
    assert longest.ratio.low is not None
    assert longest.ratio.high is not None
    assert longest.ratio.low <= 138 / 1034 <= longest.ratio.high
    assert (longest.hit_ratio, longest.cold_hit_ratio) == (pytest.approx(1792 / 2048), 0)
    assert found.has_cache is True
    assert found.says.startswith("A warm prompt takes 14% (")
    assert "the server says it had 88% of it" in found.says
    shown = shown_cache(found)
    assert shown.is_valid
    assert [row[0] for row in shown.tables[0].rows] == ["128", "512", "2,048"]


def test_where_there_is_no_cache_nothing_is_saved() -> None:
    found = cache_study(has_cache=False)
    assert found.has_cache is False
    assert found.says.startswith("Nothing is saved")
    assert shown_cache(found).levers == ()


def interference(
    *, chunk_ms: float, prompt_ms: float = 1000, output_tokens: int = 200, told: Told | None = None
) -> Interference:
    """Running answers have a token each 10 ms; while a prompt is read, one each `chunk_ms`, and 20 ms after."""

    async def work(clock: VirtualClock) -> Interference:
        reading: dict[str, float] = {"until": -1.0, "from": -1.0}

        async def answer(asked: Question) -> Script:
            now_ms = clock.ns / MS
            if asked.shape.startswith("long"):
                reading.update({"from": now_ms, "until": now_ms + prompt_ms})
                return chat([prompt_ms, prompt_ms + 1], prompt_tokens=asked.asked_prompt_tokens or 0)
            # The long prompt comes when 8 tokens are there, 80 ms after the beginning.
            arrivals, at = [], 10.0
            for _ in range(asked.asked_output_tokens or 0):
                arrivals.append(at)
                is_reading = 80 <= at < 80 + prompt_ms
                at += min(chunk_ms, max(10.0, 80 + prompt_ms - at)) if is_reading else 10.0
            return chat(arrivals, prompt_tokens=asked.asked_prompt_tokens or 0)

        server = ScriptedServer(clock, lambda asked, _: answer(asked))

        def asker_for(arrived: Any) -> Asker:
            return Asker(server, name="server", run="run", clock=clock, began_ns=0, on_progress=arrived)

        plan = Plan(prompt_tokens=(4096,), output_tokens=output_tokens, repeats=5)
        tell = [].append if told is None else told.append
        study = Interfering(asker_for, Asked(), plan, streams=3, on_progress=tell)
        await study.run()
        return study.conclude(np.random.default_rng(1))

    return virtually(work)


def test_answers_that_stand_still_are_seen() -> None:
    """A server that reads the whole prompt at once: a gap of a second."""
    found = interference(chunk_ms=1000)
    assert {phase: gap.value for phase, gap in found.largest_ns.items()} == {
        "before": 10 * MS,
        "during": 1000 * MS,
        "after": 10 * MS,
    }
    assert found.ratio is not None
    assert found.ratio.value == 100
    assert found.says.startswith("Running answers stand still: while a prompt of 4,096 tokens is read")
    assert found.alone_ns is not None
    assert found.alone_ns.value == 1000 * MS
    shown = shown_interference(found)
    assert shown.tables[0].rows[1] == ("during", "1.000 s (1.000-1.000)")
    assert "smaller chunks" in (shown.advice or "")


def test_small_chunks_hold_nobody_up() -> None:
    found = interference(chunk_ms=12)
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx(1.2)
    assert found.says.startswith("Running answers are not held up")
    assert shown_interference(found).levers == ()


def test_answers_that_end_too_early_do_not_count() -> None:
    found = interference(chunk_ms=10, output_tokens=20)
    assert found.encounters == ()
    assert "5 of 5 rounds do not count: an answer was over before the prompt was read" in found.warnings[0]
    assert not shown_interference(found).is_valid


def test_a_gap_belongs_to_where_it_reaches_into() -> None:
    async def work(clock: VirtualClock) -> dict[str, int] | None:
        scripts = {"stream": chat([10, 20, 95, 300, 310, 350]), "prompt": chat([150, 151])}
        server = ScriptedServer(clock, lambda asked, _: scripts[asked.shape])
        asker = Asker(server, name="server", run="run", clock=clock)
        stream = asyncio.ensure_future(asker.ask(Asked().question("stream", prompt_tokens=1, output_tokens=1)))
        await until(100 * MS, clock)
        prompt = await asker.ask(Asked().question("prompt", prompt_tokens=1, output_tokens=1))
        return largest_gaps([await stream], prompt)

    assert virtually(work) == {"before": 75 * MS, "during": 205 * MS, "after": 40 * MS}


def test_decode_at_depth_says_what_looking_back_costs() -> None:
    """10 ms and 0.002 ms for each token back: twice as long at a depth of 5,000."""
    sweep = swept(
        Truth(step=10, per_depth=0.002, spread=0.01).answer, plan=Plan(prompt_tokens=LENGTHS, output_tokens=16)
    )
    shown = shown_depth(sweep, findings(sweep))
    assert shown.says.startswith("A token takes 18.")
    assert "ms at depth 4,104" in shown.says
    assert "looking back is 46% (" in shown.says
    assert sweep.itl_fit is not None
    twice = sweep.itl_fit.overtakes("e", "d")
    assert twice.low is not None
    assert twice.high is not None
    assert twice.low <= 5000 <= twice.high
    assert shown.facts["Twice as long"].startswith("at depth 4,890 (")
    assert [row[0] for row in shown.tables[0].rows][-1] == "4,104"


def test_where_depth_cannot_be_told_from_chance_it_says_so() -> None:
    """Each request is off by half of itself: what a token back costs is lost in that."""
    sweep = swept(
        Truth(step=10, per_depth=0.0001, spread=0.5).answer, plan=Plan(prompt_tokens=LENGTHS[:4], output_tokens=16)
    )
    assert shown_depth(sweep, findings(sweep)).says.startswith("Cannot tell whether depth slows it: a token takes")


def test_every_study_knows_how_much_time_is_left() -> None:
    """Nothing before each kind of step was made once; from then on just what it takes, on a server that is always
    equally fast."""
    told: Told = []
    cached = cache_study(has_cache=True, spread=0, told=told)
    took_s = sum(seen.ended_ns - seen.sent_ns for seen in cached.observations) / 1e9
    assert [now.left_s for now in told[:5]] == [None] * 5
    assert told[5].left_s == pytest.approx(took_s)
    assert (told[-1].left_s, told[-1].done, told[-1].of) == (0, 48, 48)

    told = []
    met = interference(chunk_ms=100, told=told)
    took_s = (max(seen.ended_ns for seen in met.observations) - min(seen.sent_ns for seen in met.observations)) / 1e9
    assert told[0].left_s is None
    assert told[1].left_s == pytest.approx(took_s)
    assert told[-1].left_s == 0
    assert told[-1].done == told[-1].of
