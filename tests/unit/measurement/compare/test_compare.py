"""Rounds in turn, ratios with intervals, and no ranking of what differs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from taximeter.errors import RequestError, UpstreamError
from taximeter.measurement.asking.asker import Asker
from taximeter.measurement.asking.observation import Observation
from taximeter.measurement.compare.compare import Comparison, Contender, Metric, Rounds, compare, run_rounds, sides_of
from taximeter.measurement.compare.page import comparison_csv, comparison_page, comparison_pictures, comparison_table
from taximeter.measurement.pictures.page import page_html
from taximeter.measurement.results import Result
from taximeter.records import Outcome, to_json
from tests.measurement_harness import MS, ScriptedServer, VirtualClock, chat, question, refusal, virtually
from tests.measurement_samples import a_load, an_observation


def a_result(
    name: str = "a:1",
    *,
    ttft_ms: float = 100,
    itl_ms: float = 10,
    n: int = 20,
    lengths: tuple[int, ...] = (64, 512),
    outcome: Outcome = Outcome.COMPLETED,
    **target: Any,
) -> Result:
    observations = tuple(
        an_observation(
            length,
            17,
            shape=str(length),
            began_ns=number * 10**9,
            ttft=(ttft_ms * length / 64 + number % 5) * MS,
            itl_ms=itl_ms + (number % 3) / 10,
            outcome=outcome,
        )
        for number in range(n)
        for length in lengths
    )
    described = {"name": name, "url": f"http://{name}", "model": "m", "dialect": "openai.completions", "setup": {}}
    return Result(
        kind="sweep",
        run="sweep-1",
        made_at=datetime(2026, 11, 30, tzinfo=UTC),
        taximeter_version="0.1.0",
        environment={},
        targets=(described | target,),
        plan={"prompt_tokens": list(lengths), "output_tokens": 17, "concurrency": 1, "cache": "cold"},
        conclusions={},
        observations={name: observations},
    )


def held(*results: Result, **waived: Any) -> Comparison:
    return compare(sides_of(results), rng=np.random.default_rng(1), **waived)


def test_a_ratio_is_recovered_within_its_interval() -> None:
    found = held(a_result(), a_result("b:1", ttft_ms=60, itl_ms=10))
    ratios = {(row.condition, row.metric): row.ratios["B"] for row in found.rows}
    ttft = ratios["64 tokens", Metric.TTFT]
    assert ttft.low is not None
    assert ttft.high is not None
    assert ttft.low <= 62 / 102 <= ttft.high
    assert found.says[0].startswith("TTFT: B's is shorter everywhere, 0.60 to 0.61 times A's")
    assert found.says[1] == "ITL: no difference is shown anywhere (1.00 times A's)"


def test_what_is_better_here_and_worse_there_is_said_so() -> None:
    slow = a_result("b:1", ttft_ms=200)
    mixed = replace(
        slow,
        observations={
            "b:1": (
                *a_result(ttft_ms=50, lengths=(64,)).observations["a:1"],
                *a_result(ttft_ms=200, lengths=(512,)).observations["a:1"],
            )
        },
    )
    said = held(a_result(), mixed).says[0]
    assert "B's is shorter at 64 tokens, 0.51 times A's" in said
    assert "B's is longer at 512 tokens" in said


def test_what_differs_is_not_ranked_and_named() -> None:
    found = held(a_result(), a_result("b:1", ttft_ms=60, model="another"))
    assert not found.comparability.may_be_ranked
    assert found.says == ("these are not ranked, because they differ in model: A m, B another",)
    assert all(row.ratios == {} for row in found.rows)
    assert comparison_pictures(found) == ()
    assert "B / A" not in comparison_table(found).headings
    assert held(a_result(), a_result("b:1", model="another"), same=("model",)).comparability.may_be_ranked


def test_lengths_that_only_one_has_are_left_out_and_said() -> None:
    found = held(a_result(lengths=(64, 512)), a_result("b:1", lengths=(64, 1024)))
    assert {row.condition for row in found.rows} == {"64 tokens"}
    assert "A alone was measured at 512 tokens: left out" in found.warnings
    none = held(a_result(lengths=(64,)), a_result("b:1", lengths=(128,)))
    assert "prompt tokens: A 64, B 128" in none.comparability.refusal()


def test_too_few_samples_have_a_ratio_and_no_verdict() -> None:
    found = held(a_result(n=3), a_result("b:1", ttft_ms=50, n=3))
    assert found.says[0] == "TTFT: too few samples to say everywhere"
    assert any("(n too small)" in cell for row in comparison_table(found).rows for cell in row)


def test_failures_and_void_prompts_are_in_no_figure_and_counted() -> None:
    bad = a_result("b:1", n=20)
    seen = bad.observations["b:1"]
    broken = [replace(each, outcome=Outcome.FAILED, error="broke off") for each in seen[:4]]
    void = [
        replace(each, asked_prompt_tokens=each.asked_prompt_tokens, usage=an_observation(65, 17).usage)
        for each in seen[4:6]
    ]
    short = [replace(each, asked_output_tokens=99) for each in seen[6:8]]
    found = held(a_result(), replace(bad, observations={"b:1": (*broken, *void, *short, *seen[8:])}))
    assert "B: 4 of 40 requests were not answered whole: they are in no figure" in found.warnings
    assert "B: 2 of 40 prompts did not have the length asked for: they are void" in found.warnings
    assert "B: 2 of 40 answers did not have the length asked for: they are not in end to end" in found.warnings
    n = {row.metric: row.figures["B"].n for row in found.rows if row.condition == "64 tokens"}
    assert (n[Metric.TTFT], n[Metric.END_TO_END]) == (17, 16)


def test_a_warm_cache_is_seen() -> None:
    warm = a_result("b:1")
    usage = replace(an_observation(64, 17).usage, input_fresh_tokens=32, input_cache_read_tokens=32)
    seen = tuple(replace(each, usage=usage) if each.shape == "64" else each for each in warm.observations["b:1"])
    told = " ".join(held(a_result(), replace(warm, observations={"b:1": seen})).warnings)
    assert "B: 6% of its prompt tokens came from a cache: it was not cold" in told


def test_loads_are_held_against_each_other_level_by_level() -> None:
    def result(name: str, rates: tuple[float, ...]) -> Result:
        load = a_load(rates)
        plan = {"loop": "open", "levels": list(rates), "workload": "chat", "cache": "cold", "slo": str(load.slo)}
        conclusions = to_json(replace(load, observations=()))
        assert isinstance(conclusions, dict)
        return replace(
            a_result(name), kind="load", plan=plan, conclusions=conclusions, observations={name: load.observations}
        )

    sides = sides_of([result("a:1", (1, 2, 16)), result("b:1", (2, 4, 16))])
    found = compare(sides, rng=np.random.default_rng(1))
    assert found.comparability.may_be_ranked
    assert [row.condition for row in found.rows if row.metric is Metric.TTFT] == ["2/s", "16/s"]
    assert [(point.level, point.meets_target) for point in sides[0].points] == [(1, True), (2, True), (16, False)]
    first = sides[0].points[0]
    assert first.itl_ns == 10.5 * MS
    assert first.itl_interval == (10.5 * MS, 10.5 * MS)
    assert first.tokens_interval is not None
    assert first.tokens_interval[0] < first.tokens_per_s < first.tokens_interval[1]
    assert found.says[0].startswith("TTFT: no difference is shown anywhere")


def test_a_level_that_was_never_under_its_load_is_no_point_of_a_curve() -> None:
    conclusions: Any = to_json(replace(a_load((1, 2, 16)), observations=()))
    conclusions["points"][1]["flags"] = [{"trouble": "no steady window", "says": "too short"}]
    result = replace(a_result(), kind="load", conclusions=conclusions)
    assert [point.level for point in sides_of([result, a_result("b:1")])[0].points] == [1, 16]


def test_conditions_that_share_a_word_say_it_once() -> None:
    said = held(a_result(lengths=(64, 512, 4096)), a_result("b:1", lengths=(64, 512, 4096), n=3)).says[0]
    assert said == "TTFT: too few samples to say everywhere"
    mixed = a_result("b:1", ttft_ms=50, lengths=(64, 512, 4096))
    seen = mixed.observations["b:1"]
    few = [each for each in seen if each.shape != "4096"] + [each for each in seen if each.shape == "4096"][:2]
    said = held(a_result(lengths=(64, 512, 4096)), replace(mixed, observations={"b:1": tuple(few)})).says[0]
    assert said.startswith("TTFT: B's is shorter at 64 and 512 tokens, 0.5")


def test_a_comparison_has_two_sides_at_least() -> None:
    for results in ([], [a_result()], [a_result(f"{n}:1") for n in range(9)]):
        with pytest.raises(RequestError, match="between 2 to 8"):
            sides_of(results)


def test_the_page_and_the_lines_have_every_side() -> None:
    results = [a_result(), a_result("b:1", ttft_ms=60), a_result("c:1", ttft_ms=300)]
    found = held(*results)
    assert len([says for says in found.says if says.startswith("TTFT")]) == 2
    page = page_html(comparison_page(found, curves=None, facts={}, made=""))
    assert "m at http://c:1" in page
    assert page.count("<svg") == 3
    lines = comparison_csv(sides_of(results)).splitlines()
    assert len(lines) == 1 + 3 * 40
    assert lines[0].startswith("side,target,condition,request")
    assert lines[-1].startswith("C,m at http://c:1,512 tokens,")


# Live, on a virtual clock.

PLAN = Rounds(prompt_tokens=(64, 256), output_tokens=3, rounds=5, seed=7)


def rounds(
    speeds_ms: dict[str, float], plan: Rounds = PLAN, *, refuses: str | None = None, most: int | None = None
) -> tuple[dict[str, list[Observation]], list[tuple[str, str]], bool]:
    """What was seen, in which order who was asked what, and whether that was all."""
    asked: list[tuple[str, str]] = []
    seen: dict[str, list[Observation]] = {label: [] for label in speeds_ms}

    async def work(clock: VirtualClock) -> bool:
        def contender(label: str, speed_ms: float) -> Contender:
            def answer(each: Any, _: int) -> Any:
                asked.append((label, each.shape))
                return (
                    refusal()
                    if label == refuses
                    else chat([speed_ms, speed_ms + 10], prompt_tokens=each.asked_prompt_tokens)
                )

            return Contender(
                label=label,
                asker=Asker(ScriptedServer(clock, answer), name=label, run="run", clock=clock),
                question=lambda shape, tokens, output: question(shape, prompt_tokens=tokens, output_tokens=output),
            )

        return await run_rounds(
            [contender(label, speed) for label, speed in speeds_ms.items()],
            plan,
            on_seen=lambda label, one: seen[label].append(one),
            may_ask=lambda _label, _tokens: most is None or len(asked) < most,
        )

    return seen, asked, virtually(work)


def test_each_round_asks_everybody_everything_once_in_another_order() -> None:
    _, asked, is_whole = rounds({"A": 100, "B": 50})
    assert is_whole
    warming, measured = asked[:4], asked[4:]
    assert all(shape.startswith("warm-up") for _, shape in warming)
    by_round = [measured[start : start + 4] for start in range(0, 20, 4)]
    assert all(Counter(each) == Counter({(s, n): 1 for s in "AB" for n in ("64", "256")}) for each in by_round)
    assert all(each[0][1] == each[1][1] for each in by_round)  # both sides beside each other
    assert len({tuple(each) for each in by_round}) > 1
    assert PLAN.order("AB") == PLAN.order("AB") != replace(PLAN, seed=8).order("AB")


def test_warming_up_is_not_measured() -> None:
    seen, _, _ = rounds({"A": 100, "B": 50})
    assert {label: len(many) for label, many in seen.items()} == {"A": 10, "B": 10}
    assert {each.shape for each in seen["A"]} == {"64", "256"}


def test_who_does_not_answer_its_warm_up_ends_it() -> None:
    with pytest.raises(UpstreamError, match="B does not answer 64 prompt tokens"):
        rounds({"A": 100, "B": 50}, refuses="B")


def test_money_that_is_spent_ends_it_and_what_was_seen_stays() -> None:
    seen, asked, is_whole = rounds({"A": 100, "B": 50}, most=9)
    assert not is_whole
    assert len(asked) == 9
    assert sum(map(len, seen.values())) == 5
