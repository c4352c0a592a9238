"""What a step read, computed and used is on the requests that shared it, to the last byte."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from taximeter.engine import kernels
from taximeter.engine.core import EngineCore, EngineOptions
from taximeter.engine.limits import KnownLimits, MachineLimits, Rates
from taximeter.engine.metering import StepCosts
from taximeter.engine.models import kv_bytes_per_token
from taximeter.records import Ceiling
from tests.engine_harness import TINY_LLAMA, add, core_of, drain, loaded

LIMITS = MachineLimits(
    version=1,
    cpu="any",
    level="any",
    measured_at=datetime(2026, 11, 29, tzinfo=UTC),
    read_bytes=1,
    rates=(Rates(threads=1, read_gb_per_s=30.0, int8_gop_per_s=900.0, bf16_gop_per_s=450.0, f32_gop_per_s=200.0),),
)


def costs_of(core: EngineCore) -> StepCosts:
    kv_format = "f32" if kernels.level() == "reference" else "bf16"
    return StepCosts.of(core.config, kv_bytes_per_token=kv_bytes_per_token(core.config, kv_format))


def weight_bytes() -> int:
    """What a pass of the model reads whose head has no coarser copy, once there was one."""
    return loaded(TINY_LLAMA)[0].read_bytes


def test_one_stream_pays_for_every_byte() -> None:
    """A prompt of 20 tokens and an answer of 5: four decode steps, at contexts of 21 to 24, each reading all weights;
    the prompt's own operations, its first token's logits included."""
    core = core_of(TINY_LLAMA)
    costs = costs_of(core)
    answer = add(core, "a", range(20), 5)
    drain(core)
    per_token = kv_bytes_per_token(core.config, "f32" if kernels.level() == "reference" else "bf16")
    assert answer.work.decode_read_bytes == 4 * weight_bytes() + (21 + 22 + 23 + 24) * per_token
    assert answer.work.prefill_operations == costs.of_chunk(0, 20, 1)
    assert answer.work.prefill_compute_ns is not None
    assert answer.work.decode_compute_ns is not None
    assert answer.work.prefill_compute_ns + answer.work.decode_compute_ns == answer.work.compute_ns == core.busy_ns


def test_streams_share_the_weights_and_pay_for_their_own_context() -> None:
    """Three answers of one length: together they read the weights once a step, and each its own keys and values."""
    core = core_of(TINY_LLAMA)
    costs = costs_of(core)
    answers = [add(core, f"{i}", [i + 1] * (10 * (i + 1)), 6) for i in range(3)]
    drain(core)
    contexts = [10 * (i + 1) + step for i in range(3) for step in range(1, 6)]
    own = sum(costs.kv_read_bytes(context - 1, context) for context in contexts)
    assert sum(answer.work.decode_read_bytes or 0 for answer in answers) == 5 * weight_bytes() + own
    assert sum(answer.work.compute_ns for answer in answers) == core.busy_ns


def test_a_machine_that_was_measured_is_on_the_account() -> None:
    """The ceiling for the threads and the numbers that computed, and shares that follow from it."""
    core = core_of(TINY_LLAMA, EngineOptions(limits=KnownLimits(limits=LIMITS)))
    answer = add(core, "a", range(20), 5)
    drain(core)
    work = answer.work
    assert work.ceiling in [
        Ceiling(read_bytes_per_s=30_000_000_000, operations_per_s=rate, unit=unit)
        for rate, unit in ((900_000_000_000, "int8"), (450_000_000_000, "bf16"), (200_000_000_000, "f32"))
    ]
    assert work.decode_read_bytes is not None
    assert work.decode_compute_ns is not None
    assert work.decode_bus_ratio == pytest.approx(work.decode_read_bytes / (work.decode_compute_ns * 30))
    assert work.prefill_peak_ratio is not None
    assert "ceiling" not in work.unknown_reasons


def test_a_machine_that_was_not_measured_is_a_reason() -> None:
    """Counts without shares."""
    core = core_of(TINY_LLAMA)
    answer = add(core, "a", range(20), 5)
    drain(core)
    assert answer.work.ceiling is None
    assert answer.work.decode_bus_ratio is None
    assert answer.work.prefill_peak_ratio is None
    assert answer.work.unknown_reasons["ceiling"] == "the engine was not told the machine's limits"


class Joules:
    """A meter that goes up by 1,000 at each reading, and may break."""

    def __init__(self) -> None:
        self.readings = 0
        self.unknown_reason: str | None = None

    def read_uj(self) -> int | None:
        self.readings += 1
        return None if self.unknown_reason else self.readings * 1000


def test_energy_is_shared_by_those_who_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step's, exactly, whatever was used between two steps."""
    core = core_of(TINY_LLAMA)
    meter = Joules()
    monkeypatch.setattr(core, "_energy", meter)
    answers = [add(core, "a", range(20), 5), add(core, "b", range(40), 3)]
    steps = drain(core)
    assert meter.readings == 2 * steps
    assert sum(answer.work.energy_uj or 0 for answer in answers) == 1000 * steps
    assert "energy_uj" not in answers[0].work.unknown_reasons


def test_a_counter_that_breaks_leaves_its_requests_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the truth is none."""
    core = core_of(TINY_LLAMA)
    meter = Joules()
    monkeypatch.setattr(core, "_energy", meter)
    answer = add(core, "a", range(20), 5)
    core.step()
    meter.unknown_reason = "it broke"
    drain(core)
    assert answer.work.energy_uj is None
    assert answer.work.unknown_reasons["energy_uj"] == "it broke"
