"""A server whose true times are known is swept: they lie within the stated intervals, and the verdict names the right
part, or says that it cannot."""

from __future__ import annotations

from taximeter.measurement.estimates import Estimate
from taximeter.measurement.sweep.study import Plan
from taximeter.measurement.sweep.verdict import LEVERS, PARTS
from tests.measurement_harness import MS
from tests.sweep_harness import LENGTHS, Truth, round_trip, swept


def holds(estimate: Estimate, true: float) -> bool:
    return estimate.low is not None and estimate.high is not None and estimate.low <= true <= estimate.high


def test_true_times_are_recovered_within_their_intervals() -> None:
    """20 ms + 0.5 ms · n + 1e-4 ms · n² to the first token, 10 ms + 0.002 ms · depth for each further one."""
    truth = Truth(fixed=20, per_token=0.5, per_pair=1e-4, step=10, per_depth=0.002, spread=0.03)
    found = swept(truth.answer, plan=Plan(prompt_tokens=LENGTHS, output_tokens=16, repeats=7))
    assert found.ttft_fit is not None
    assert found.itl_fit is not None
    true = {"a": 20 * MS, "b": 0.5 * MS, "c": 1e-4 * MS}
    assert all(holds(found.ttft_fit[name], value) for name, value in true.items())
    assert holds(found.itl_fit["d"], 10 * MS)
    assert holds(found.itl_fit["e"], 0.002 * MS)
    assert holds(found.ttft_fit.overtakes("c", "b"), 5000)
    assert holds(found.ttft_fit.share("c", ("b", "c"), 1000), 1 / 6)
    assert holds(found.itl_fit.share("e", ("d", "e"), 5000), 0.5)
    assert found.warnings == ()
    assert found.stopped is None
    assert len(found.observations) == 7 * 7


def test_prefill_is_named() -> None:
    """Of 1,024 tokens at 2 ms each and 15 steps of 10 ms: 2,048 of 2,218 ms."""
    truth = Truth(fixed=20, per_token=2.0, step=10)
    found = swept(truth.answer, at=1024).verdict
    assert found is not None
    assert (found.part, found.levers, found.at_prompt_tokens) == ("prefill", LEVERS["prefill"], 1024)
    assert "shorter prompts" in found.levers
    assert holds(found.shares["prefill"], 2048 / 2218)
    assert found.says.startswith("Prefill takes most of the time: 92% (")
    assert "grows 56 times while the prompt grows 64 times, from 64 tokens to 4,096" in found.says


def test_decode_is_named() -> None:
    truth = Truth(fixed=5, per_token=0.05, step=40)
    found = swept(truth.answer, at=512).verdict
    assert found is not None
    assert (found.part, found.is_certain) == ("decode", True)
    assert "shorter answers" in found.levers
    assert holds(found.shares["decode"], 600 / (600 + 5 + 25.6))


def test_a_queue_is_named_by_the_servers_own_times() -> None:
    truth = Truth(per_token=0.1, step=10, queue=900, says=True)
    found = swept(truth.answer, at=512)
    assert found.verdict is not None
    assert found.verdict.part == "queue"
    assert any("capacity" in lever for lever in found.verdict.levers)
    assert holds(found.verdict.shares["queue"], 900 / (900 + 51.2 + 150))
    assert found.splits[3].known_by["queue"] == "the server says so"


def test_a_queue_is_named_where_equal_requests_take_unequal_times() -> None:
    """Nobody says that requests wait; but some take 5 s, and some the same for nothing."""
    truth = Truth(per_token=0.05, step=2, queue=2000, is_random=True)
    found = swept(truth.answer, plan=Plan(prompt_tokens=LENGTHS, output_tokens=16, repeats=15), at=256).verdict
    assert found is not None
    assert found.part == "queue"


def test_the_network_is_named() -> None:
    truth = Truth(per_token=0.05, step=4, network=300)
    found = swept(truth.answer, at=256, ping=lambda: round_trip(300)).verdict
    assert found is not None
    assert found.part == "network"
    assert any("nearer" in lever for lever in found.levers)
    assert holds(found.shares["network"], 300 / (300 + 12.8 + 60))


def test_fixed_time_that_nobody_explains_is_no_prefill() -> None:
    """A fixed second before the first token, whatever the prompt: the time to the first event is not taken for the
    prompt's."""
    truth = Truth(fixed=1000, per_token=0.1, step=10)
    found = swept(truth.answer, at=512, ping=lambda: round_trip(1)).verdict
    assert found is not None
    assert found.part == "unexplained"
    assert found.shares["prefill"].value < 0.1


def test_what_cannot_be_told_is_not_told() -> None:
    """Prefill and decode are the same within what is known of them."""
    truth = Truth(per_token=1.0, step=512 / 15, spread=0.1)
    found = swept(truth.answer, at=512).verdict
    assert found is not None
    assert found.part is None
    assert not found.is_certain
    assert found.says.startswith("Cannot tell which is the largest: ")
    assert found.levers == ("more repeats: --repeats",)


def test_one_repeat_is_too_few_to_tell() -> None:
    found = swept(Truth().answer, plan=Plan(prompt_tokens=LENGTHS, output_tokens=16, repeats=1)).verdict
    assert found is not None
    assert found.part is None
    assert "n too small" in found.says


def test_the_verdict_says_where_another_part_leads() -> None:
    """15 steps of 10 ms against 1 ms a token: even at 150 tokens."""
    truth = Truth(per_token=1.0, step=10)
    found = swept(truth.answer, at=64).verdict
    assert found is not None
    assert found.part == "decode"
    assert "From 256 tokens on it is prefill." in found.says
    above = swept(truth.answer, at=2048).verdict
    assert above is not None
    assert "Up to 128 tokens it is decode." in above.says or "Up to 64 tokens it is decode." in above.says


def test_shares_are_the_whole() -> None:
    truth = Truth(fixed=30, per_token=0.4, step=12, network=20, queue=15, says=True)
    found = swept(truth.answer, ping=lambda: round_trip(20))
    for split in found.splits:
        assert list(split.shares) == list(PARTS)
        assert abs(sum(share.value for share in split.shares.values()) - 1) < 1e-9
        assert abs(sum(part.value for part in split.parts_ns.values()) - split.total_ns.value) < 1
    split = found.splits[-1]
    assert holds(split.parts_ns["prefill"], 0.4 * 4096 * MS)
    assert holds(split.parts_ns["unexplained"], 30 * MS)
