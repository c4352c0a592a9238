"""Receipts for what adds them up and sends them on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from taximeter.ledger import LedgerCounts
from taximeter.pricing.machine import MachineMeter
from taximeter.records import (
    Attempt,
    Basis,
    Cost,
    CostLine,
    Dialect,
    EngineLoad,
    MachineRate,
    MachineTime,
    ModelLoad,
    Outcome,
    Rate,
    Receipt,
    Request,
    Terms,
    Timing,
    Usage,
    new_id,
)
from taximeter.telemetry.watch import Sources
from taximeter.upstreams.breaker import BreakerState
from taximeter.upstreams.config import Network, read_network

NOON = datetime(2026, 10, 29, 12, tzinfo=UTC)
MS = 1_000_000

NETWORK: Network = read_network(
    {
        "claude": {"url": "https://api.example.com", "speaks": "anthropic", "provider": "anthropic"},
        "farm": {"url": "http://farm:8001", "speaks": "openai", "machine_rate": "2/h"},
    },
    [{"model": "claude-*", "upstreams": ["claude"]}, {"model": "llama", "upstreams": ["farm"]}],
    path=Path("taximeter.toml"),
    environ={},
)


def a_cost(dollars: str) -> Cost:
    rate = Rate(unit="input_fresh_tokens", amount=Decimal(dollars), per=1)
    line = CostLine(unit=rate.unit, quantity=1, rate=rate, amount=Decimal(dollars), basis=Basis.REPORTED)
    return Cost(lines=(line,), basis=Basis.REPORTED)


def a_receipt(
    *,
    model: str = "claude-x",
    dollars: str | None = "0.25",
    request: Mapping[str, object] | None = None,
    **changes: object,
) -> Receipt:
    """A stream of 11 tokens from `claude`: first chunk after 100 ms, first token after 200 ms, whole after 1,200 ms, of
    which 2 ms in the gateway."""
    asked = Request(
        id=new_id("req", NOON),
        received_at=NOON,
        received_ns=0,
        dialect=Dialect.ANTHROPIC_MESSAGES,
        model=model,
        stream=True,
    )
    made = Receipt(
        id=new_id("rcpt", NOON),
        request=replace(asked, **(request or {})),
        closed_at=NOON,
        outcome=Outcome.COMPLETED,
        timing=Timing(
            gateway_ns=2 * MS,
            upstream_ns=1_198 * MS,
            total_ns=1_200 * MS,
            first_token_ns=200 * MS,
            first_answer_ns=300 * MS,
            first_chunk_ns=100 * MS,
        ),
        usage=Usage(
            input_fresh_tokens=60,
            input_cache_read_tokens=40,
            input_cache_write_1h_tokens=7,
            input_image_tokens=200,
            output_text_tokens=8,
            output_reasoning_tokens=3,
        ),
        cost=None if dollars is None else a_cost(dollars),
        uncosted_reason="no price" if dollars is None else None,
        served_by="claude",
        model_served="claude-x-20261001",
        finish_reasons=("end_turn",),
        tries=(
            Attempt(upstream="farm", started_ns=MS, duration_ns=MS, status=503, error="status 503"),
            Attempt(upstream="claude", started_ns=2 * MS, duration_ns=MS, status=200),
        ),
        attempts=2,
        terms=Terms(tier="priority"),
        upstream_request_id="up_1",
    )
    return replace(made, **changes)


def refused() -> Receipt:
    """One that reached nobody."""
    return a_receipt(
        model="whatever-a-caller-says",
        dollars=None,
        outcome=Outcome.REFUSED,
        usage=None,
        timing=Timing(gateway_ns=MS, total_ns=MS),
        unmeasured_reason="refused",
        served_by=None,
        model_served=None,
        finish_reasons=(),
        tries=(),
        error="RequestError: what the caller said: tell me a secret",
    )


def sources(models: Sequence[str] = ("llama",), **changes: object) -> Sources:
    """All there can be to look at."""
    meter = MachineMeter(MachineRate(amount_per_hour=Decimal("3.6")))
    meter.charge(1_000 * MS)
    statement = meter.statement(MachineTime(wall_ns=10_000 * MS, busy_ns=3_000 * MS))
    load = ModelLoad(running_sequences=2, free_kv_blocks=5, cached_kv_blocks=3, used_kv_blocks=8)
    whole = Sources(
        models=lambda: models,
        in_flight=lambda: 4,
        ledger=lambda: LedgerCounts(accepted=9, written=5, spooled=1, lost=1),
        receipts_lost=lambda: 1,
        lost_before=lambda: 7,
        machines=lambda: {"farm": statement},
        breaker=lambda name: BreakerState.OPEN if name == "farm" else BreakerState.CLOSED,
        engine=lambda: EngineLoad(waiting_requests=6, models={"llama": load}),
    )
    return replace(whole, **changes)
