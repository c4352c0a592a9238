"""Buckets are exclusive, unknown is not zero, and inter-token latency is the field's formula."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.clock import FakeClock
from taximeter.records import (
    Basis,
    Ceiling,
    Cost,
    CostLine,
    Dialect,
    Message,
    Outcome,
    Prompt,
    Rate,
    Receipt,
    Request,
    Timing,
    Usage,
    Work,
    decimal_text,
    inter_token_ns,
    new_id,
    to_json,
    weakest,
)

AT = datetime(2026, 10, 29, 12, tzinfo=UTC)
REQUEST = Request(id="req_1", received_at=AT, received_ns=0, dialect=Dialect.OPENAI_CHAT, model="m")


def a_receipt(**changes: object) -> Receipt:
    known = Receipt(
        id="rcpt_1",
        request=REQUEST,
        closed_at=AT,
        outcome=Outcome.COMPLETED,
        timing=Timing(prefill_ns=500, decode_ns=7980, total_ns=8480, first_token_ns=500),
        usage=Usage(input_fresh_tokens=3000, input_cache_read_tokens=0, output_text_tokens=400),
        uncosted_reason="no price",
    )
    return replace(known, **changes)  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 10**12), min_size=14, max_size=14))
def test_totals_are_the_sum_of_the_buckets(counts: list[int]) -> None:
    """Input, output and total, from fourteen exclusive leaves."""
    names = Usage.INPUT_LEAVES + Usage.OUTPUT_LEAVES
    usage = Usage(**dict(zip(names, counts, strict=True)))  # type: ignore[arg-type]
    assert usage.input_tokens == sum(counts[:10])
    assert usage.output_tokens == sum(counts[10:])
    assert usage.total_tokens == sum(counts)


def test_an_unknown_bucket_needs_a_reason_and_makes_its_totals_unknown() -> None:
    """Never a zero that nobody counted."""
    with pytest.raises(ValueError, match="must say why"):
        Usage(input_fresh_tokens=None, input_cache_read_tokens=0, output_text_tokens=1)
    usage = Usage(
        input_fresh_tokens=None,
        input_cache_read_tokens=0,
        output_text_tokens=1,
        unknown_reasons={"input_fresh_tokens": "the provider did not say"},
    )
    assert usage.input_tokens is None
    assert usage.total_tokens is None
    assert usage.output_tokens == 1


def test_a_negative_bucket_is_an_error_and_not_a_clamp() -> None:
    """What a subtraction got wrong must not become a free token."""
    with pytest.raises(ValueError, match="negative"):
        Usage(input_fresh_tokens=-19, input_cache_read_tokens=39_000, output_text_tokens=0)


def test_inter_token_latency_is_the_formula() -> None:
    """(8.48 s - 0.5 s) ÷ (400 - 1) = 20 ms; the case of 13,228 tokens gives 14.4913 ms."""
    timing = Timing(upstream_ns=8_480_000_000, total_ns=8_480_000_000, first_token_ns=500_000_000)
    assert inter_token_ns(timing, 400) == 20_000_000
    long = Timing(upstream_ns=192_851_000_000, total_ns=192_851_000_000, first_token_ns=1_175_000_000)
    assert round((inter_token_ns(long, 13_228) or 0) / 1e6, 4) == 14.4913


@pytest.mark.parametrize("tokens", [None, 0, 1])
def test_with_fewer_than_two_tokens_it_is_unknown(tokens: int | None) -> None:
    """A gap needs two ends."""
    assert inter_token_ns(Timing(decode_ns=9, total_ns=9, first_token_ns=5), tokens) is None


def test_a_receipt_says_why_what_it_does_not_know() -> None:
    """No cost, no timing, no usage: each with a reason or not at all."""
    with pytest.raises(ValueError, match="cost"):
        a_receipt(uncosted_reason=None)
    with pytest.raises(ValueError, match="timing or usage"):
        a_receipt(usage=None)
    assert a_receipt(usage=None, unmeasured_reason="gone").inter_token_ns is None


def test_the_keys_that_scripts_rely_on() -> None:
    """JSON has the records' own names; money is a string."""
    rate = Rate(unit="input_fresh_tokens", amount=Decimal(2), per=1_000_000)
    line = CostLine(unit=rate.unit, quantity=3000, rate=rate, amount=Decimal("0.0060"), basis=Basis.DERIVED)
    cost = Cost(lines=(line,), basis=Basis.DERIVED)
    document = to_json(a_receipt(cost=cost, uncosted_reason=None))
    assert isinstance(document, dict)
    flat = {
        f"{part}.{key}": value
        for part, inside in document.items()
        if isinstance(inside, dict)
        for key, value in inside.items()
    }
    assert flat["usage.input_fresh_tokens"] == 3000
    assert flat["usage.input_cache_read_tokens"] == 0
    assert flat["usage.output_text_tokens"] == 400
    assert flat["usage.input_tokens"] == 3000
    assert flat["timing.total_ns"] == 8480
    assert flat["timing.first_token_ns"] == 500
    assert flat["timing.prefill_ns"] == 500
    assert flat["cost.total"] == "0.006"
    assert document["outcome"] == "completed"
    assert document["inter_token_ns"] == 20


def test_what_has_no_json_form_is_refused() -> None:
    """Nothing is turned into text by accident."""
    with pytest.raises(TypeError, match="no JSON form"):
        to_json({"a": object()})


@pytest.mark.parametrize(
    ("amount", "text"),
    [("0.0100", "0.01"), ("0", "0"), ("0E-12", "0"), ("1E+3", "1000"), ("-0.50", "-0.5"), ("1E-12", "0.000000000001")],
)
def test_money_is_plain_digits(amount: str, text: str) -> None:
    """No exponent and no trailing zeros, whatever the arithmetic left behind."""
    assert decimal_text(Decimal(amount)) == text


def test_a_prompt_is_exactly_one_thing_and_its_fingerprint_hides_it() -> None:
    """Equal parts have equal hashes, and no word survives."""
    with pytest.raises(ValueError, match="exactly one"):
        Prompt()
    with pytest.raises(ValueError, match="exactly one"):
        Prompt(text="a", token_ids=(1,))
    shared = Message(role="system", content="be brief")
    one = Prompt(messages=(shared, Message(role="user", content="a secret"))).fingerprint()
    two = Prompt(messages=(shared, Message(role="user", content="another"))).fingerprint()
    assert one[0] == two[0]
    assert one[1] != two[1]
    assert "secret" not in "".join(one)


def test_a_result_is_as_good_as_its_worst_input() -> None:
    """Reported and assumed make assumed."""
    assert weakest([Basis.REPORTED, Basis.ASSUMED, Basis.MEASURED]) is Basis.ASSUMED
    assert weakest([Basis.REPORTED]) is Basis.REPORTED


def test_ids_sort_by_birth_and_do_not_repeat() -> None:
    """A later one is larger; two of one instant differ."""
    clock = FakeClock()
    first = new_id("rcpt", clock.utc_now())
    clock.advance(ms=1)
    later = {new_id("rcpt", clock.utc_now()) for _ in range(100)}
    assert len(later) == 100
    assert all(first < one for one in later)


def test_shares_of_the_machine_follow_from_the_counts() -> None:
    """12 GB in 0.6 s are 20 of 40 GB/s; 30 billion operations in 0.4 s are 75 of 300."""
    work = Work(
        prefill_passes=1,
        decode_passes=9,
        computed_tokens=14,
        compute_ns=1_000_000_000,
        decode_compute_ns=600_000_000,
        decode_read_bytes=12_000_000_000,
        prefill_operations=30_000_000_000,
        ceiling=Ceiling(read_bytes_per_s=40_000_000_000, operations_per_s=300_000_000_000, unit="int8"),
    )
    assert work.prefill_compute_ns == 400_000_000
    assert (work.decode_bus_ratio, work.prefill_peak_ratio) == (0.5, 0.25)
    document = to_json(work)
    assert isinstance(document, dict)
    assert (document["decode_bus_ratio"], document["prefill_peak_ratio"]) == (0.5, 0.25)


def test_shares_that_cannot_be_known_are_none() -> None:
    """Nothing was counted, nothing is known of the machine, or it took no time."""
    counted = Work(
        prefill_passes=1,
        decode_passes=0,
        computed_tokens=5,
        compute_ns=10,
        decode_compute_ns=0,
        decode_read_bytes=0,
        prefill_operations=5,
    )
    ceiling = Ceiling(read_bytes_per_s=1, operations_per_s=1, unit="f32")
    for work in (
        Work(prefill_passes=1, decode_passes=1, computed_tokens=2, compute_ns=10, ceiling=ceiling),
        replace(counted, decode_compute_ns=10, ceiling=None),
        replace(counted, compute_ns=0, ceiling=ceiling),
    ):
        assert work.decode_bus_ratio is None
        assert work.prefill_peak_ratio is None
    assert replace(counted, ceiling=ceiling).decode_bus_ratio is None
    assert replace(counted, ceiling=ceiling).prefill_peak_ratio == 5e8


@pytest.mark.parametrize("rates", [(0, 1), (1, 0), (-1, 1)])
def test_a_machine_that_can_do_nothing_is_none(rates: tuple[int, int]) -> None:
    """No share of nothing."""
    with pytest.raises(ValueError, match="a machine that computes"):
        Ceiling(read_bytes_per_s=rates[0], operations_per_s=rates[1], unit="f32")
