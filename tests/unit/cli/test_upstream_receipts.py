"""The receipt of an answer that came from an upstream, on a terminal: tries, terms, reported phases, every line."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from rich.console import Console

from taximeter.cli.receipt_view import ReceiptView
from taximeter.records import (
    Attempt,
    Basis,
    Cost,
    CostLine,
    Dialect,
    Outcome,
    Phase,
    PriceList,
    Rate,
    Receipt,
    Request,
    Terms,
    Timing,
    Usage,
)

AT = datetime(2026, 11, 30, 6, 30, tzinfo=UTC)
MILLION = 1_000_000


def line(unit: str, quantity: int, rate: str, model: str | None = None) -> CostLine:
    amount = quantity * Decimal(rate) / MILLION
    per_million = Rate(unit=unit, amount=Decimal(rate), per=MILLION)
    return CostLine(unit=unit, quantity=quantity, rate=per_million, amount=amount, basis=Basis.DERIVED, model=model)


RECEIPT = Receipt(
    id="rcpt_01kbr9w8w8abcdefghjkmn",
    request=Request(
        id="req_01kbr9w8w8abcdefghjkmn",
        received_at=AT,
        received_ns=0,
        dialect=Dialect.ANTHROPIC_MESSAGES,
        model="claude-sonnet-5-5",
        task="nightly-report",
        run="7",
        tier="auto",
        labels={"team": "search"},
    ),
    closed_at=AT,
    outcome=Outcome.COMPLETED,
    timing=Timing(
        gateway_ns=1_500_000,
        queue_ns=20_000_000,
        prefill_ns=300_000_000,
        decode_ns=2_100_000_000,
        upstream_ns=178_500_000,
        total_ns=2_600_000_000,
        first_token_ns=500_000_000,
        first_answer_ns=1_200_000_000,
        reported_phases=(Phase.QUEUE, Phase.PREFILL, Phase.DECODE),
    ),
    usage=Usage(
        input_fresh_tokens=1_200,
        input_cache_read_tokens=8_000,
        input_cache_write_1h_tokens=300,
        output_text_tokens=150,
        output_reasoning_tokens=250,
        by_model={"claude-opus-5": {"input_fresh_tokens": 200, "output_text_tokens": 50}},
        other_units={"web_search_requests": 2},
    ),
    cost=Cost(
        lines=(
            line("input_fresh_tokens", 1_000, "2.00"),
            line("input_cache_read_tokens", 8_000, "0.20"),
            line("output_text_tokens", 350, "10"),
            line("input_fresh_tokens", 200, "5", "claude-opus-5"),
            CostLine(
                unit="web_search_requests",
                quantity=2,
                rate=Rate(unit="web_search_requests", amount=Decimal("0.01"), per=1),
                amount=Decimal("0.02"),
                basis=Basis.DERIVED,
            ),
        ),
        basis=Basis.DERIVED,
        price_list=PriceList(
            model="anthropic/claude-sonnet-5-5",
            rates=(),
            source="genai-prices 0.2.3",
            valid_from=datetime(2026, 10, 14, tzinfo=UTC),
            checked_on=date(2026, 11, 2),
        ),
    ),
    served_by="anthropic",
    model_served="claude-sonnet-5-5-20261014",
    finish_reasons=("end_turn",),
    attempts=2,
    tries=(
        Attempt(upstream="first", started_ns=400_000, duration_ns=120_000_000, status=503, error="status 503"),
        Attempt(upstream="second", started_ns=121_000_000, duration_ns=0, error="not tried: it failed several times"),
        Attempt(upstream="anthropic", started_ns=122_000_000, duration_ns=98_000_000, status=200),
    ),
    terms=Terms(tier="standard", geography="us"),
    upstream_request_id="req_011CV7",
)


def shown(receipt: Receipt, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, markup=False, emoji=False, highlight=False).print(ReceiptView(receipt))
    return out.getvalue().splitlines()


def test_everything_that_decides_time_and_money_is_there() -> None:
    """Who was asked and what came of it, under which terms, whose clock says so, and each line with its price."""
    lines = [one.strip() for one in shown(RECEIPT, 80)]
    assert "task nightly-report, run 7, team=search" in lines
    assert "tier auto asked for, standard served, geography us" in lines
    assert "request req_011CV7 at anthropic" in lines
    assert "tries    first: status 503, 0.4 to 120.4 ms" in lines
    assert "second: not tried: it failed several times" in lines
    assert "anthropic: answered with status 200, 122.0 to 220.0 ms" in lines
    assert "of these by claude-opus-5: 200 fresh + 50 text" in lines
    assert "the answer begins after 1.200 s, reasoning comes first" in lines
    reported = {one.split()[1] for one in lines if one.endswith("reported")}
    assert reported == {"queue", "prefill", "decode"}
    assert any(one.startswith("1,000 input fresh at $2.00/M ") and one.endswith(" $0.00200") for one in lines)
    assert any(one.startswith("200 input fresh of claude-opus-5 at $5.00/M") for one in lines)
    assert any(one.startswith("2 web search requests at $0.01 each") and one.endswith(" $0.02000") for one in lines)
    assert "prices of genai-prices 0.2.3, since 2026-10-14, checked on 2026-11-02" in " ".join(lines)


@pytest.mark.parametrize("width", [40, 68, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    """Whatever the names are: they go on in the next line."""
    long = replace(
        RECEIPT,
        served_by="an-upstream-with-quite-a-long-name",
        upstream_request_id="r" * 190,
        tries=(replace(RECEIPT.tries[0], upstream="u" * 60), *RECEIPT.tries[1:]),
        request=replace(RECEIPT.request, labels={"k" * 50: "v" * 150}),
    )
    assert max(map(len, shown(long, width))) <= min(width, 68)


def test_what_was_simple_stays_short() -> None:
    """One try that was answered at once is no news, and neither is a tier that nobody spoke of."""
    plain = replace(RECEIPT, tries=RECEIPT.tries[2:], terms=None, request=replace(RECEIPT.request, tier=None))
    lines = shown(plain, 80)
    assert not any(one.startswith(("tries", "tier")) for one in lines)


def test_a_tier_that_was_asked_for_and_not_confirmed_is_said() -> None:
    """It is why such a receipt may have no cost."""
    receipt = replace(RECEIPT, terms=None, request=replace(RECEIPT.request, tier="flex"))
    assert "tier flex asked for, which one was served is not said" in shown(receipt, 80)
