"""Every nanosecond of a request is in exactly one phase."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.records import Phase, Stopwatch, Timing


@given(
    st.integers(0, 10**18),
    st.lists(st.tuples(st.sampled_from(Phase), st.integers(-(10**9), 10**12)), max_size=40),
    st.integers(0, 10**12),
)
def test_phases_sum_to_the_total_whatever_the_stamps(
    start_ns: int, moves: list[tuple[Phase, int]], last_ns: int
) -> None:
    """Also when two threads stamp out of order: nothing is lost, nothing is negative."""
    watch = Stopwatch(start_ns)
    at_ns = start_ns
    for phase, step_ns in moves:
        at_ns += step_ns
        watch.enter(phase, at_ns)
    timing = watch.stop(at_ns + last_ns)
    assert sum(timing.phases().values()) == timing.total_ns >= 0
    assert min(timing.phases().values()) >= 0


def test_a_request_with_everything() -> None:
    """Door 5, queue 10, prefill 100, decode 40, stalled 30, decode 20, door 3; tokens at 115, 155, 205."""
    watch = Stopwatch(1000)
    for phase, at_ns in (
        (Phase.QUEUE, 1005),
        (Phase.PREFILL, 1015),
        (Phase.DECODE, 1115),
        (Phase.STALLED, 1155),
        (Phase.DECODE, 1185),
        (Phase.GATEWAY, 1205),
    ):
        watch.enter(phase, at_ns)
    for at_ns in (1115, 1155, 1205):
        watch.tokens(at_ns)
    timing = watch.stop(1208)
    assert timing == Timing(
        gateway_ns=5 + 3,
        queue_ns=10,
        prefill_ns=100,
        decode_ns=40 + 20,
        stalled_ns=30,
        total_ns=208,
        first_token_ns=115,
        first_answer_ns=115,
        longest_gap_ns=50,
    )


def test_without_tokens_there_is_no_time_to_the_first() -> None:
    """Unknown, not zero; and one token has no gap."""
    watch = Stopwatch(0)
    assert watch.stop(10).first_token_ns is None
    watch.tokens(20)
    assert watch.stop(30).first_token_ns == 20
    assert watch.stop(30).longest_gap_ns is None


def test_phases_that_do_not_sum_are_refused() -> None:
    """A timing that does not add up cannot exist."""
    with pytest.raises(ValueError, match="sum to 7"):
        Timing(queue_ns=3, decode_ns=4, total_ns=8)
    with pytest.raises(ValueError, match="negative"):
        Timing(queue_ns=-1, decode_ns=9, total_ns=8)
