"""Over a busy run, receipts + idle = hourly rate × wall time, to the last picodollar."""

from __future__ import annotations

import asyncio
import random
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

from taximeter.clock import SYSTEM_CLOCK, FakeClock
from taximeter.engine.backend import EmbeddedBackend
from taximeter.engine.core import EngineOptions
from taximeter.gateway import Relay
from taximeter.ledger import Ledger
from taximeter.pricing import MachineMeter, Settler
from taximeter.records import (
    NS_PER_HOUR,
    PICODOLLARS_PER_DOLLAR,
    Dialect,
    MachineRate,
    Outcome,
    Prompt,
    Receipt,
    Request,
    Sampling,
    TokensGenerated,
)
from tests.engine_harness import TINY_LLAMA, add, core_of

RATE = MachineRate(amount_per_hour=Decimal("0.37"))


def bill_of(wall_ns: int) -> Decimal:
    """Rate × time, rounded once, from first principles."""
    exact = Fraction(RATE.amount_per_hour) * wall_ns / NS_PER_HOUR
    return Decimal(round(exact * PICODOLLARS_PER_DOLLAR)) / PICODOLLARS_PER_DOLLAR


async def run_busy(relay: Relay, chance: random.Random, requests: int) -> list[Receipt]:
    """Many overlapping requests: short and long, shared prefixes, several choices, refused ones and hang-ups."""

    async def one(index: int) -> Receipt:
        choices = chance.choice([1, 1, 2])
        length = chance.randint(3, 60)
        leaves_after = chance.choice([None, None, None, 2])
        request = Request(
            id=f"req_{index}",
            received_at=SYSTEM_CLOCK.utc_now(),
            received_ns=SYSTEM_CLOCK.monotonic_ns(),
            dialect=Dialect.OPENAI_COMPLETIONS,
            model="tiny",
            sampling=Sampling(temperature=1.0, seed=index, choices=choices, ignore_eos=True),
            max_output_tokens=chance.randint(1, 20),
        )
        exchange = await relay.open(request, Prompt(token_ids=tuple(range(5, 5 + length))))
        seen = 0
        async for event in exchange:
            seen += isinstance(event, TokensGenerated)
            if seen == leaves_after:
                await exchange.abort()
        return exchange.receipt

    return list(await asyncio.gather(*(one(index) for index in range(requests))))


async def test_a_busy_run_adds_up_to_the_last_picodollar(tmp_path: Path) -> None:
    """60 overlapping requests on a pool too small for them, read back from the ledger they were written to."""
    backend = EmbeddedBackend.load(
        {"tiny": TINY_LLAMA}, options=EngineOptions(step_tokens=48, kv_cache_tokens=640, max_running=16)
    )
    meter = MachineMeter(RATE)
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}")
    relay = Relay(backend=backend, ledger=ledger, settler=Settler(machine=meter))
    try:
        receipts = await run_busy(relay, random.Random(1), 60)
        time = backend.machine_time()
        statement = meter.statement(time)
        on_receipts = ledger.total_cost()
        written = ledger.receipts(limit=1000)
    finally:
        await relay.aclose()
        await backend.aclose()
        ledger.close()

    assert sum((receipt.cost.total for receipt in written if receipt.cost), Decimal(0)) == on_receipts
    assert on_receipts + statement.idle == bill_of(time.wall_ns)
    assert statement.in_flight_ns == 0
    # Idle is not just the remainder: it is what the idle nanoseconds cost.
    assert abs(statement.idle - bill_of(time.wall_ns - time.busy_ns)) <= Decimal("1e-12")
    assert {receipt.outcome for receipt in receipts} == {Outcome.COMPLETED, Outcome.ABORTED}
    assert sum(receipt.work.compute_ns for receipt in written if receipt.work) == time.busy_ns
    assert len(written) == 60


async def test_every_receipts_phases_sum_to_its_total(tmp_path: Path) -> None:
    """Also when requests queue, stall, share steps and are cancelled; and engine time fits into the phases."""
    backend = EmbeddedBackend.load(
        {"tiny": TINY_LLAMA}, options=EngineOptions(step_tokens=48, kv_cache_tokens=640, max_running=4)
    )
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}")
    settler = Settler(machine=MachineMeter(RATE))
    relay = Relay(backend=backend, ledger=ledger, settler=settler)
    try:
        receipts = await run_busy(relay, random.Random(2), 30)
    finally:
        await relay.aclose()
        await backend.aclose()
        ledger.close()
    for receipt in receipts:
        assert receipt.timing is not None
        assert receipt.work is not None
        timing = receipt.timing
        assert sum(timing.phases().values()) == timing.total_ns
        assert receipt.work.compute_ns <= timing.prefill_ns + timing.decode_ns + timing.stalled_ns
    assert any(receipt.timing.queue_ns > 0 for receipt in receipts if receipt.timing)


def test_requests_of_one_step_share_it_by_the_work_they_brought() -> None:
    """A step of 1,000 ns with a prompt of 60 tokens and a decode: the prompt pays for what it brought, no more."""

    class Ticking(FakeClock):
        """Every second reading of the clock is 1,000 ns later: a step takes exactly that."""

        reads = 0

        def monotonic_ns(self) -> int:
            self.reads += 1
            return self.reads // 2 * 1000

    core = core_of(TINY_LLAMA, EngineOptions(), Ticking())
    decoding = add(core, "decoding", range(5, 15), 3)
    core.step()
    prompt = add(core, "prompt", range(100, 160), 1)
    core.step()
    core.step()
    assert not core.has_work
    config = core.config
    width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
    per_token = (
        2 * config.layers * (config.hidden_size * (2 * width + 2 * kv_width) + 3 * config.hidden_size * config.ff_size)
    )
    head = 2 * config.hidden_size * config.vocab_size
    per_key = 4 * config.layers * width
    decode_flop = per_token + 11 * per_key + head
    prompt_flop = 60 * per_token + (60 * 61 // 2) * per_key + head
    assert prompt.work.compute_ns == round(1000 * prompt_flop / (decode_flop + prompt_flop))
    assert decoding.work.compute_ns == 3000 - prompt.work.compute_ns
